//! What the meaning of the configuration takes from the state directory.

use std::path::PathBuf;

use crate::admin::api::{ErrorKind, Failure};
use crate::admin::change_api::{KnownLibrary, StateFacts};
use crate::config::{Config, ServedLibrary, StateIdentity, library_record, served_libraries};
use crate::os_error;
use crate::serve::changes::failure;

/// Returns the facts for the configuration that runs.
pub(super) fn of(config: &Config) -> Result<StateFacts, Failure> {
    let identity = StateIdentity::read(&config.state_dir).map_err(|error| {
        let file = StateIdentity::file(&config.state_dir);
        failure(ErrorKind::Unavailable, format!("cannot read {}: {}", file.display(), os_error(&error)))
    })?;
    let mut libraries = library_record::read(&config.state_dir);
    libraries.extend(served_libraries(&config.units));
    let library = |(path, ServedLibrary { serial, drives }): (PathBuf, ServedLibrary)| KnownLibrary {
        path: path.display().to_string(),
        serial,
        drives,
    };
    Ok(StateFacts {
        salt: identity.and_then(|identity| identity.salt),
        libraries: libraries.into_iter().map(library).collect(),
    })
}
