//! Checks that every service makes of its requests.

use std::collections::BTreeMap;

use crate::error::{CsiError, CsiResult};

/// The longest string of a request in bytes; the specification says 128 for most, and 4 KiB for maps.
const STRING_LEN_MAX: usize = 4096;

/// Checks that a field is there, and not too long.
pub(crate) fn present(what: &str, text: &str) -> CsiResult<()> {
    match text.len() {
        0 => Err(CsiError::invalid(format!("the {what} is missing"))),
        len if len > STRING_LEN_MAX => Err(CsiError::invalid(format!("the {what} is too long"))),
        _ => Ok(()),
    }
}

/// Checks the size of a map.
pub(crate) fn bounded(map: BTreeMap<String, String>) -> CsiResult<BTreeMap<String, String>> {
    let len: usize = map.iter().map(|(key, value)| key.len().saturating_add(value.len())).sum();
    if len > STRING_LEN_MAX {
        return Err(CsiError::invalid("the parameters are longer than 4096 bytes"));
    }
    Ok(map)
}
