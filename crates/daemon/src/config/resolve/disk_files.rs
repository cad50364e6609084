//! Checks the files and block devices that hold disks.

use std::io::ErrorKind;
use std::os::unix::fs::FileTypeExt;
use std::path::Path;

use backends::unopened::host_use;
use base::units::BlockSize;
use store::luks2::DATA_OFFSET;

use super::super::quantity::show_size;
use super::super::raw;
use super::super::source_span::{ConfigReport, Located, SourceSpan};
use super::check_access;
use crate::os_error;

/// Checks that a file can be served, or created.
///
/// # Errors
/// A sentence that says why not.
pub(super) fn check_file(
    path: &Path,
    span: &SourceSpan,
    lun: &raw::Lun,
    bs: BlockSize,
    report: &mut ConfigReport,
) -> Result<(), String> {
    let name = path.display();
    let meta = match path.metadata() {
        Ok(meta) => meta,
        Err(error) if error.kind() == ErrorKind::NotFound => return check_creation(path, lun, bs),
        Err(error) => return Err(format!("cannot use {name}: {}", os_error(&error))),
    };
    if meta.file_type().is_block_device() {
        return Err(format!("{name} is a block device; use type \"block\""));
    }
    if !meta.is_file() {
        return Err(format!("{name} is not a regular file"));
    }
    check_access(path, lun.ro)?;
    check_blocks(path, lun, bs)?;
    let len = meta.len().max(lun.size.as_ref().map_or(0, |at| at.value));
    if len < u64::from(bs.bytes()) {
        return Err(format!("{name} is shorter than one block; give \"size\" to make it longer"));
    }
    // "size" does not count the header of an encrypted file.
    let header = lun.encrypt.as_ref().map_or(0, |_| DATA_OFFSET);
    if let Some(size) = &lun.size
        && meta.len().saturating_sub(header) > size.value
    {
        let len = show_size(meta.len());
        report.warn(&size.span, format!("{name} is longer than \"size\" ({len}) and is served whole"));
    }
    if meta.len() % u64::from(bs.bytes()) != 0 && lun.size.is_none() {
        report.warn(span, format!("{name} ends with a partial block, which is not served"));
    }
    Ok(())
}

fn check_creation(path: &Path, lun: &raw::Lun, bs: BlockSize) -> Result<(), String> {
    let name = path.display();
    if !lun.size_given {
        return Err(format!("{name} does not exist; give \"size\" to create it"));
    }
    if lun.ro {
        return Err(format!("{name} does not exist, and \"ro\" does not allow creating it"));
    }
    match path.parent().map(Path::metadata) {
        Some(Ok(parent)) if parent.is_dir() => check_blocks(path, lun, bs),
        Some(Err(error)) => Err(format!("cannot create {name}: its directory: {}", os_error(&error))),
        _ => Err(format!("cannot create {name}: its parent is not a directory")),
    }
}

/// Checks that a block device can be served.
///
/// # Errors
/// A sentence that says why not.
pub(super) fn check_device(path: &Path, lun: &raw::Lun, bs: BlockSize) -> Result<(), String> {
    let name = path.display();
    let meta = path.metadata().map_err(|error| format!("cannot use {name}: {}", os_error(&error)))?;
    if meta.is_file() {
        return Err(format!("{name} is a regular file; use type \"file\""));
    }
    if !meta.file_type().is_block_device() {
        return Err(format!("{name} is not a block device"));
    }
    if let Some(used) = host_use(path).filter(|_| !lun.ro) {
        return Err(format!("this host uses {name}: {used}; unmount or release it, or give \"ro\""));
    }
    check_access(path, lun.ro)?;
    check_blocks(path, lun, bs)
}

/// Checks that the blocks of the LUN can be read and written one by one.
fn check_blocks(path: &Path, lun: &raw::Lun, bs: BlockSize) -> Result<(), String> {
    let direct = lun.direct.as_ref().is_some_and(|at| at.value);
    backends::unopened::block_len(path, direct).map_or(Ok(()), |len| expect_block_len(path, len, bs))
}

/// Checks that the blocks of a LUN are multiples of those that its medium is read and written in.
///
/// # Errors
/// A sentence that says what to configure.
pub(crate) fn expect_block_len(path: &Path, medium: u32, bs: BlockSize) -> Result<(), String> {
    if bs.bytes().is_multiple_of(medium.max(1)) {
        return Ok(());
    }
    let hint =
        if medium <= 4096 { format!("; give bs = \"{medium}\"") } else { ", which no LUN has".to_owned() };
    let is_file = path.metadata().map_or(true, |meta| meta.is_file());
    let (with, other) = if is_file { (" with \"direct\"", ", or leave out \"direct\"") } else { ("", "") };
    Err(format!(
        "{} must be read and written{with} in blocks of {medium} bytes, and \"bs\" is {}{hint}{other}",
        path.display(),
        bs.bytes()
    ))
}

/// Warns of a disk that is larger than its whole file system.
pub(super) fn warn_of_size(path: &Path, lun: &raw::Lun, report: &mut ConfigReport) {
    let Some(size) = &lun.size else { return };
    let directory = path.parent().unwrap_or(path);
    let Ok(system) = rustix::fs::statvfs(if path.exists() { path } else { directory }) else { return };
    let whole = system.f_blocks.saturating_mul(system.f_frsize);
    if size.value > whole && whole > 0 {
        let message = format!(
            "{} is to be {} long, but its file system holds {whole} bytes: writes will fail when it is full",
            path.display(),
            show_size(size.value)
        );
        report.warn(&size.span, message);
    }
}

/// Returns the length of the logical blocks of a LUN.
pub(super) fn block_size_of_lun(lun: &raw::Lun) -> BlockSize {
    match lun.kind.as_ref().map(|kind| kind.value) {
        Some("disc") => BlockSize::B2048,
        _ => block_size(lun.bs.as_ref()),
    }
}

pub(super) fn block_size(word: Option<&Located<&'static str>>) -> BlockSize {
    word.map_or(BlockSize::B512, block_size_of_word)
}

pub(super) fn block_size_of_word(at: &Located<&'static str>) -> BlockSize {
    at.value.parse().ok().and_then(BlockSize::from_bytes).unwrap_or(BlockSize::B512)
}
