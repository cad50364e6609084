//! Extends the files of units that are served.

use std::fs::OpenOptions;

use backends::open::FileIdentity;
use backends::open::undo::Undo;

use super::error::MediaError;
use super::{FileRollback, header_len};
use crate::config::{Medium, Unit};
use crate::os_error;

/// Returns whether a unit has a file that is extended to its configured size.
pub(in crate::serve) const fn can_grow(unit: &Unit) -> bool {
    matches!(unit.medium, Medium::File { size: Some(_), .. }) && !unit.read_only
}

/// Extends the file of a served unit, which has this identity, to its configured size. Allocates the storage
/// of a fully provisioned file. Returns whether it was shorter.
pub(in crate::serve) fn grow(
    unit: &Unit,
    served: FileIdentity,
    provisional: &mut FileRollback,
) -> Result<bool, MediaError> {
    let Medium::File { path, size: Some(size), .. } = &unit.medium else { return Ok(false) };
    if !can_grow(unit) {
        return Ok(false);
    }
    let size = size.0.saturating_add(header_len(unit));
    let failed = |error: std::io::Error| {
        let why = format!("cannot extend {}: {}", path.display(), os_error(&error));
        MediaError::new(unit, why)
    };
    let file = OpenOptions::new().write(true).open(path).map_err(failed)?;
    // The path was compared before, but it can lead to another file since.
    if FileIdentity::of_file(&file).map_err(failed)? != served {
        let why = format!("{} is not the file or device that is served", path.display());
        return Err(MediaError::new(unit, why));
    }
    if file.metadata().map_err(failed)?.len() >= size {
        return Ok(false);
    }
    provisional.0.push(Undo::growth(path, &file).map_err(failed)?);
    if !unit.thin {
        backends::open::expect_room(&file, size).map_err(failed)?;
        let flags = rustix::fs::FallocateFlags::empty();
        rustix::fs::fallocate(&file, flags, 0, size).map_err(|errno| failed(errno.into()))?;
    }
    // The store of the file makes the length durable, since it must not miss what the system reports.
    file.set_len(size).map_err(failed)?;
    Ok(true)
}

#[cfg(test)]
mod tests {
    use super::super::tests::unit;
    use super::*;
    use crate::scratch::Scratch;

    #[test]
    fn a_file_that_has_taken_the_place_of_the_served_one_is_not_extended() {
        let scratch = Scratch::new();
        let path = scratch.path().join("disk.img");
        let unit = unit(scratch.path(), "type = \"file\", path = \"disk.img\", size = \"2M\"");
        std::fs::write(&path, [0; 4096]).unwrap();
        let (served, _) = FileIdentity::of_path(&path).unwrap();
        std::fs::rename(&path, scratch.path().join("renamed.img")).unwrap();
        std::fs::write(&path, [0; 4096]).unwrap();
        let grow = |served| {
            let mut provisional = FileRollback::default();
            let grown = grow(&unit, served, &mut provisional);
            provisional.commit();
            grown.map(|_| path.metadata().unwrap().len())
        };
        let why = grow(served).unwrap_err().to_string();
        assert!(why.ends_with("disk.img is not the file or device that is served"), "{why}");
        assert_eq!(path.metadata().unwrap().len(), 4096);
        assert_eq!(grow(FileIdentity::of_path(&path).unwrap().0).unwrap(), 2 << 20);
    }
}
