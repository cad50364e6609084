//! Parameters of a StorageClass and of a VolumeAttributesClass: the limits of a volume. A StorageClass also
//! chooses its protection on the network.

use std::collections::BTreeMap;

use crate::error::{CsiError, CsiResult};
use crate::protection::Protection;

/// The keys, which are those of a LUN in the daemon's configuration.
const KEYS: [&str; 3] = ["limit_iops", "limit_bandwidth", "limit_burst"];
/// The key of the protection, which a volume keeps.
const PROTECTION: &str = "protection";
/// What sidecars add to the parameters.
const OF_SIDECARS: &str = "csi.storage.k8s.io/";

/// Checks the parameters of a volume that is to be made; returns the limits among them, and the protection.
/// The data is encrypted unless a parameter says otherwise.
///
/// # Errors
/// A key that is unknown, or a value that makes no sense.
pub fn of_new_volume(
    parameters: &BTreeMap<String, String>,
) -> CsiResult<(BTreeMap<String, String>, Protection)> {
    let mut rest = parameters.clone();
    let protection = match rest.remove(PROTECTION) {
        None => Protection::Encrypt,
        Some(name) => Protection::by_name(&name).ok_or_else(|| {
            CsiError::invalid(format!("parameter {PROTECTION}: \"{name}\" is not none, integrity or encrypt"))
        })?,
    };
    Ok((limits(&rest)?, protection))
}

/// Checks parameters; returns the limits among them. An empty value removes a limit.
///
/// # Errors
/// A key that is unknown, or a value that makes no sense.
pub fn limits(parameters: &BTreeMap<String, String>) -> CsiResult<BTreeMap<String, String>> {
    let mut limits = BTreeMap::new();
    for (key, value) in parameters.iter().filter(|(key, _)| !key.starts_with(OF_SIDECARS)) {
        let wrong = |wanted: &str| CsiError::invalid(format!("parameter {key}: \"{value}\" is not {wanted}"));
        let fits = |number: Option<u64>, min, max| number.is_some_and(|number| (min..=max).contains(&number));
        match key.as_str() {
            _ if value.is_empty() && KEYS.contains(&key.as_str()) => {}
            "limit_iops" if fits(value.parse().ok(), 10, 4_000_000_000) => {}
            "limit_iops" => return Err(wrong("a number from 10 to 4000000000")),
            "limit_bandwidth" if fits(size(value), 1 << 20, 1 << 50) => {}
            "limit_bandwidth" => return Err(wrong("a size from 1M to 1P, such as 100M")),
            "limit_burst" if fits(milliseconds(value), 10, 3_600_000) => {}
            "limit_burst" => return Err(wrong("a time from 10ms to 3600s")),
            PROTECTION => {
                return Err(CsiError::invalid(
                    "parameter protection is that of a new volume, and cannot be changed later",
                ));
            }
            _ => {
                let known = KEYS.join(", ");
                return Err(CsiError::invalid(format!("unknown parameter {key}; targe knows {known}")));
            }
        }
        limits.insert(key.clone(), value.clone());
    }
    Ok(limits)
}

/// Returns limits changed by others.
pub fn changed(
    limits: &BTreeMap<String, String>,
    others: BTreeMap<String, String>,
) -> BTreeMap<String, String> {
    let mut all = limits.clone();
    all.extend(others);
    all.retain(|_, value| !value.is_empty());
    all
}

fn size(text: &str) -> Option<u64> {
    let units = [("K", 10), ("M", 20), ("G", 30), ("T", 40), ("P", 50)];
    let found = units.iter().find_map(|(unit, shift)| Some((text.strip_suffix(unit)?, *shift)));
    let (digits, shift) = found.unwrap_or((text, 0));
    plain(digits)?.checked_mul(1_u64.checked_shl(shift)?)
}

fn milliseconds(text: &str) -> Option<u64> {
    match (text.strip_suffix("ms"), text.strip_suffix('s')) {
        (Some(digits), _) => plain(digits),
        (None, Some(digits)) => plain(digits)?.checked_mul(1000),
        (None, None) => None,
    }
}

/// Parses digits, without the sign that `parse` allows.
fn plain(digits: &str) -> Option<u64> {
    digits.bytes().all(|byte| byte.is_ascii_digit()).then(|| digits.parse().ok())?
}

#[cfg(test)]
mod tests {
    use super::*;

    fn one(key: &str, value: &str) -> CsiResult<BTreeMap<String, String>> {
        limits(&BTreeMap::from([(key.to_owned(), value.to_owned())]))
    }

    #[test]
    fn limits_have_units_and_ranges() {
        for (key, value) in [
            ("limit_iops", "10"),
            ("limit_bandwidth", "1M"),
            ("limit_bandwidth", "1048576"),
            ("limit_bandwidth", "1P"),
            ("limit_burst", "10ms"),
            ("limit_burst", "3600s"),
            ("limit_iops", ""),
        ] {
            assert_eq!(one(key, value).unwrap().len(), 1, "{key}={value}");
        }
        for (key, value) in [
            ("limit_iops", "9"),
            ("limit_iops", "1k"),
            ("limit_bandwidth", "1K"),
            ("limit_bandwidth", "+2M"),
            ("limit_bandwidth", "2P"),
            ("limit_bandwidth", "99999999999P"),
            ("limit_bandwidth", "M"),
            ("limit_burst", "5"),
            ("limit_burst", "9ms"),
            ("limit_burst", "99999999999999999999s"),
            ("size", "1G"),
        ] {
            assert_eq!(one(key, value).unwrap_err().code, tonic::Code::InvalidArgument, "{key}={value}");
        }
        assert!(one("csi.storage.k8s.io/pvc/name", "x").unwrap().is_empty());
    }

    #[test]
    fn a_new_volume_is_encrypted_unless_its_class_says_otherwise() {
        let chosen = |value: &str| {
            let parameters = BTreeMap::from([
                (PROTECTION.to_owned(), value.to_owned()),
                ("limit_iops".to_owned(), "100".to_owned()),
            ]);
            of_new_volume(&parameters)
        };
        assert_eq!(of_new_volume(&BTreeMap::new()).unwrap(), (BTreeMap::new(), Protection::Encrypt));
        for protection in [Protection::None, Protection::Integrity, Protection::Encrypt] {
            let (limits, found) = chosen(protection.name()).unwrap();
            assert_eq!((limits.len(), found), (1, protection));
        }
        for value in ["", "tls", "Encrypt"] {
            assert_eq!(chosen(value).unwrap_err().code, tonic::Code::InvalidArgument, "{value}");
        }
        let error = one(PROTECTION, "none").unwrap_err();
        assert!(error.message.ends_with("cannot be changed later"), "{error}");
    }

    #[test]
    fn an_empty_value_removes_a_limit() {
        let before = one("limit_iops", "100").unwrap();
        assert!(changed(&before, one("limit_iops", "").unwrap()).is_empty());
        assert_eq!(changed(&before, one("limit_burst", "1s").unwrap()).len(), 2);
    }
}
