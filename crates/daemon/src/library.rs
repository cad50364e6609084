//! Tape libraries for the command line: makes and reads them, and changes those that no process serves.

use std::error::Error;
use std::path::{Path, PathBuf};

use backends::cartridge_folder::CartridgeFolder;
use backends::library_folder::{LibraryFolder, LibraryFolderError};
use device::library::OperatorChange;

use crate::admin::change_api::{LibraryAction, LibraryRequest};
use crate::os_error;

/// A library was not changed.
#[derive(Debug)]
pub enum ChangeError {
    /// Another process uses it.
    InUse(String),
    /// Any other reason.
    Failed(String),
}

/// Makes the folder of a library with this file, durably.
///
/// # Errors
/// A sentence.
pub fn create(path: &Path, file: &[u8]) -> Result<(), String> {
    LibraryFolder::create(path, file).map(drop).map_err(|error| with_cause(&error))
}

/// Reads the file of a library, which can be in use.
///
/// # Errors
/// A sentence.
pub fn read(path: &Path) -> Result<Vec<u8>, String> {
    LibraryFolder::read(path).map(|library| library.encode()).map_err(|error| with_cause(&error))
}

/// Makes the change of an operator in a library that no process uses.
///
/// # Errors
/// [`ChangeError`]
pub fn change(request: &LibraryRequest) -> Result<(), ChangeError> {
    let path = Path::new(&request.path);
    let folder = LibraryFolder::open_at_once(path).map_err(|error| match error {
        LibraryFolderError::InUse { .. } => ChangeError::InUse(with_cause(&error)),
        other => ChangeError::Failed(with_cause(&other)),
    })?;
    let failed = |error: &dyn Error| ChangeError::Failed(with_cause(error));
    let mut library = folder.library().map_err(|error| failed(&error))?;
    let (_, change) = operator_change(request).map_err(ChangeError::Failed)?;
    change.apply(&mut library).map_err(|why| ChangeError::Failed(format!("{}: {why}", request.element)))?;
    let written = folder.replace(&library.encode()).and_then(|()| folder.synchronize());
    written.map_err(|error| {
        ChangeError::Failed(format!("cannot write in {}: {}", request.path, os_error(&error)))
    })
}

/// Checks what can be checked of a request without using the library. Returns the path of the library without
/// links, and the change.
pub(crate) fn operator_change(request: &LibraryRequest) -> Result<(PathBuf, OperatorChange), String> {
    let path = Path::new(&request.path);
    let library = LibraryFolder::read(path).map_err(|error| with_cause(&error))?;
    let canonical =
        path.canonicalize().map_err(|error| format!("cannot use {}: {}", request.path, os_error(&error)))?;
    let element = request.element.parse().map_err(|why| format!("{}: {why}", request.element))?;
    library.expect_element(element).map_err(|why| format!("{}: {why}", request.element))?;
    let change = match request.action {
        LibraryAction::Eject => OperatorChange::Eject(element),
        LibraryAction::Vault => OperatorChange::Vault(element, true),
        LibraryAction::Release => OperatorChange::Vault(element, false),
        LibraryAction::Load => {
            let mut cartridges = Vec::new();
            for name in &request.cartridges {
                if library.cartridges().iter().any(|held| held.name == *name) {
                    return Err(format!("{name}: the cartridge is in the library already"));
                }
                if name.contains('/') {
                    return Err(format!("{name} is no name of a folder in {}", request.path));
                }
                // Another process that uses the cartridge is found here, or when it goes into a drive.
                let cartridge = CartridgeFolder::open(&path.join(name), false);
                let cartridge = cartridge.map_err(|error| with_cause(&error))?;
                if cartridge.profile() != library.profile() {
                    let (is, must) = (cartridge.profile().name(), library.profile().name());
                    return Err(format!("{name} is a cartridge of {is}, and the library is of {must}"));
                }
                cartridges.push((name.clone(), cartridge.barcode().to_owned()));
            }
            if cartridges.is_empty() {
                return Err("name at least one cartridge".to_owned());
            }
            OperatorChange::Load(element, cartridges)
        }
    };
    Ok((canonical, change))
}

/// Formats an error with the system's message.
pub(crate) fn with_cause(error: &dyn Error) -> String {
    match error.source().and_then(|source| source.downcast_ref::<std::io::Error>()) {
        Some(source) => format!("{error}: {}", os_error(source)),
        None => error.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scratch::Scratch;

    /// The file of a library with a drive, two slots and a mail slot.
    const LIBRARY: &str = "targe-library 1\nserial LIB00001\nprofile lto8\ndrives 1\nslots 2\nmail-slots 1\n\
                           crc32c 331e6448\n";

    fn request(path: &Path, action: LibraryAction, element: &str, cartridges: &[&str]) -> LibraryRequest {
        LibraryRequest {
            path: path.display().to_string(),
            action,
            element: element.to_owned(),
            cartridges: cartridges.iter().map(|name| (*name).to_owned()).collect(),
        }
    }

    fn told(result: Result<(), ChangeError>) -> String {
        match result {
            Ok(()) => String::new(),
            Err(ChangeError::InUse(why) | ChangeError::Failed(why)) => why,
        }
    }

    #[test]
    fn a_request_that_cannot_be_granted_is_one_sentence() {
        let scratch = Scratch::new();
        let path = scratch.path().join("lib");
        create(&path, LIBRARY.as_bytes()).unwrap();
        std::fs::create_dir(path.join("empty")).unwrap();
        let before = read(&path).unwrap();
        for (action, element, cartridges, expected) in [
            (LibraryAction::Load, "1", &["none"][..], "cannot open LIB/none: no such file or directory"),
            (LibraryAction::Load, "1", &["empty"], "LIB/empty holds no cartridge"),
            (LibraryAction::Load, "1", &["../lib/empty"], "../lib/empty is no name of a folder in LIB"),
            (LibraryAction::Load, "1", &[], "name at least one cartridge"),
            (LibraryAction::Load, "3", &["empty"], "3: the library has no such slot"),
            (LibraryAction::Load, "x", &["empty"], "x: a slot is a number"),
            (LibraryAction::Eject, "2", &[], "2: there is no cartridge"),
            (LibraryAction::Eject, "drive1", &[], "drive1: a cartridge in a drive is moved to a slot first"),
            (LibraryAction::Vault, "mail1", &[], "mail1: there is no cartridge"),
            (LibraryAction::Vault, "1", &[], "1: a cartridge can be locked in a mail slot only"),
        ] {
            let told = told(change(&request(&path, action, element, cartridges)));
            let told = told.replace(path.to_str().unwrap(), "LIB");
            assert!(told.starts_with(expected), "{element} {cartridges:?}: {told}");
        }
        assert_eq!(read(&path).unwrap(), before);
        let missing = request(&scratch.path().join("nowhere"), LibraryAction::Eject, "1", &[]);
        assert!(told(change(&missing)).ends_with("no such file or directory"));
    }

    #[test]
    fn a_library_that_is_in_use_is_told_apart() {
        let scratch = Scratch::new();
        let path = scratch.path().join("lib");
        create(&path, LIBRARY.as_bytes()).unwrap();
        let held = LibraryFolder::open(&path).unwrap();
        let busy = change(&request(&path, LibraryAction::Eject, "1", &[]));
        assert!(matches!(busy, Err(ChangeError::InUse(_))));
        drop(held);
        assert!(matches!(
            change(&request(&path, LibraryAction::Eject, "1", &[])),
            Err(ChangeError::Failed(_))
        ));
    }
}
