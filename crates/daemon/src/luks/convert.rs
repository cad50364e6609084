//! Converts the file of a disk from the former format, whose key is in a `.media-key` beside it, into a LUKS2
//! image, in place.
//!
//! A file `.luks-conversion` beside the disk records how far the conversion has come. It exists until the
//! former key is removed, and as long as both exist the disk is not served. An interrupted conversion goes on
//! when it is started again.

use std::ffi::OsStr;
use std::fs::{self, File, OpenOptions};
use std::io::{self, ErrorKind};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use store::encrypt::MediaKey;
use store::luks2::convert::{Conversion, JOURNAL_LEN};
use store::luks2::{DATA_OFFSET, LuksError};

use super::former::{Wrap, beside, read_key_file};
use super::{FileIo, ImageFile, locked, random, secret_of};
use crate::os_error;

/// Returns the path of the record of a conversion.
pub(crate) fn journal_path(disk: &Path) -> PathBuf {
    let mut name = disk.as_os_str().to_owned();
    name.push(OsStr::new(".luks-conversion"));
    PathBuf::from(name)
}

/// Converts the disk in the file at `path`, whose secret is in `key_file`. `tell` is called with the bytes
/// that are moved, and the bytes of the disk.
///
/// # Errors
/// A sentence that says what is wrong. The disk can still be converted, or is still served as before.
pub fn convert(path: &Path, key_file: &Path, tell: &mut dyn FnMut(u64, u64)) -> Result<(), String> {
    let secret = secret_of(key_file)?;
    let mut io = locked(path)?;
    let name = path.display();
    let cannot = |error: &io::Error| format!("cannot convert {name}: {}", os_error(error));
    if io.is_device().map_err(|error| cannot(&error))? {
        return Err(format!(
            "{name} is a block device, which has no room for a header; serve a new disk and copy the data"
        ));
    }
    let (key_path, journal_path) = (beside(path), journal_path(path));
    let begun = journal_path.try_exists().map_err(|error| cannot(&error))?;
    let image = ImageFile::new(path, secret.clone());
    let Some(sealed) = read_key_file(&key_path)? else {
        let is_image = image.volume(true)?.is_some();
        return match (begun, is_image) {
            // Only the record is left of a conversion.
            (true, true) => remove(&journal_path).map_err(|error| cannot(&error)),
            (true, false) => Err(format!(
                "{} does not exist, and {name} is no LUKS2 image yet: restore the key file",
                key_path.display()
            )),
            (false, true) => Err(format!("{name} is a LUKS2 image already")),
            (false, false) => Err(format!(
                "{} does not exist, so {name} is no disk of the former format",
                key_path.display()
            )),
        };
    };
    if begun && is_overwritten(&sealed) && is_converted(&journal_path, &image)? {
        return remove(&key_path).and_then(|()| remove(&journal_path)).map_err(|error| cannot(&error));
    }
    let (key, unit) =
        Wrap::new(&secret).open(&sealed).map_err(|why| format!("{}: {why}", key_path.display()))?;
    let mut journal = open_journal(&journal_path).map_err(|error| cannot(&error))?;
    let found = Conversion::load(&mut journal).map_err(|error| cannot(&error))?;
    let mut conversion = match found {
        Some(found) if found.unit() == unit => found,
        Some(_) => return Err(format!("{} is not the record of this disk", journal_path.display())),
        None => {
            let mut new = Conversion::new(io.len().map_err(|error| cannot(&error))?, unit);
            new.store(&mut journal).map_err(|error| cannot(&error))?;
            new
        }
    };
    run(&mut io, &mut journal, &mut conversion, &key, &image, tell).map_err(|why| {
        format!("{why}; the disk is not served until the conversion is completed: start it again")
    })?;
    remove(&key_path).and_then(|()| remove(&journal_path)).map_err(|error| cannot(&error))
}

/// Returns whether [`remove`] was interrupted between its steps.
fn is_overwritten(file: &[u8]) -> bool {
    file.iter().all(|byte| *byte == 0)
}

/// Returns whether the record says that the header is written, and the header gives its key.
fn is_converted(journal_path: &Path, image: &ImageFile) -> Result<bool, String> {
    let journal = FileIo::open(journal_path, false);
    let found = journal.and_then(|mut journal| Conversion::load(&mut journal));
    let found =
        found.map_err(|error| format!("cannot read {}: {}", journal_path.display(), os_error(&error)))?;
    Ok(found.is_some_and(|found| found.is_done()) && image.volume(true)?.is_some())
}

/// Moves the data, writes the header, and checks it.
fn run(
    io: &mut FileIo,
    journal: &mut FileIo,
    conversion: &mut Conversion,
    key: &MediaKey,
    image: &ImageFile,
    tell: &mut dyn FnMut(u64, u64),
) -> Result<(), String> {
    let name = image.path.display();
    let cannot = |error: io::Error| format!("cannot convert {name}: {}", os_error(&error));
    if conversion.is_empty() {
        return Err(image.described(LuksError::NotLuks.into()).why);
    }
    let whole = conversion.len().saturating_add(DATA_OFFSET);
    if io.len().map_err(cannot)? < whole {
        io.0.set_len(whole).and_then(|()| io.0.sync_all()).map_err(cannot)?;
    }
    tell(conversion.len() - conversion.left(), conversion.len());
    while conversion.left() > 0 {
        conversion.move_piece(io, journal, key).map_err(cannot)?;
        tell(conversion.len() - conversion.left(), conversion.len());
    }
    let new = image.new_header(key, conversion.unit());
    conversion.write_header(io, journal, &new, &mut random).map_err(|why| image.described(why))?;
    // The former key is removed only after the header has given the same one.
    match image.volume(true)? {
        Some(volume) if volume.key.bytes() == key.bytes() => Ok(()),
        _ => Err(format!("{name}: the header does not give the key back")),
    }
}

fn open_journal(path: &Path) -> io::Result<FileIo> {
    let file =
        OpenOptions::new().read(true).write(true).create(true).truncate(false).mode(0o600).open(path)?;
    file.set_len(JOURNAL_LEN)?;
    file.sync_all()?;
    sync_directory(path)?;
    Ok(FileIo(file))
}

/// Overwrites a file and removes it.
fn remove(path: &Path) -> io::Result<()> {
    let file = OpenOptions::new().write(true).open(path)?;
    let len = usize::try_from(file.metadata()?.len()).map_err(|_| ErrorKind::FileTooLarge)?;
    file.write_all_at(&vec![0; len], 0)?;
    file.sync_all()?;
    fs::remove_file(path)?;
    sync_directory(path)
}

fn sync_directory(path: &Path) -> io::Result<()> {
    let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty());
    File::open(parent.unwrap_or(Path::new(".")))?.sync_all()
}

#[cfg(test)]
mod tests;
