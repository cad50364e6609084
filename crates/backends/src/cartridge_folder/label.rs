//! The label of a cartridge, as a file of its folder.

use std::fs::File;
use std::io::{self, ErrorKind};
use std::os::unix::fs::{FileExt as _, MetadataExt as _};
use std::path::Path;

use base::int_cast::to_usize;
use cartridge::label::{COPY_LEN, FILE_LEN, Label};
use rustix::fs::{Mode, OFlags, openat};
use rustix::io::Errno;

use super::{CartridgeError, LABEL, SEGMENT_LEN_MAX};

/// Opens a folder and the label in it.
pub(super) fn open_label(path: &Path, is_read_only: bool) -> Result<(File, File), CartridgeError> {
    let flags = OFlags::CLOEXEC | OFlags::NOCTTY;
    let folder = rustix::fs::open(path, OFlags::RDONLY | OFlags::DIRECTORY | flags, Mode::empty());
    let folder = folder
        .map_err(|errno| CartridgeError::Open { path: path.to_owned(), source: errno.into() })
        .map(File::from)?;
    let access = if is_read_only { OFlags::RDONLY } else { OFlags::RDWR };
    match openat(&folder, LABEL, access | flags, Mode::empty()) {
        Ok(label) => Ok((folder, File::from(label))),
        Err(Errno::NOENT) => Err(CartridgeError::NoLabel { path: path.to_owned() }),
        Err(errno) => Err(CartridgeError::Open { path: path.join(LABEL), source: errno.into() }),
    }
}

pub(super) fn label_of(path: &Path, file: &File) -> Result<Label, CartridgeError> {
    let found = read_label(file).map_err(|source| CartridgeError::Open { path: path.join(LABEL), source })?;
    found.map_err(|why| CartridgeError::Label { path: path.to_owned(), why })
}

/// Returns the label, or why there is none that can be served.
fn read_label(file: &File) -> io::Result<Result<Label, String>> {
    let len = file.metadata()?.size();
    if len > FILE_LEN {
        return Ok(Err("the file \"label\" is longer than that of a cartridge".to_owned()));
    }
    let mut copies = Vec::new();
    for copy in [0, 1] {
        let mut bytes = vec![0; to_usize(COPY_LEN)];
        match file.read_exact_at(&mut bytes, copy * COPY_LEN) {
            Err(error) if error.kind() == ErrorKind::UnexpectedEof => {}
            read => read?,
        }
        copies.push(Label::decode(&bytes));
    }
    let newest = copies.iter().flatten().max_by_key(|label| label.sequence).cloned();
    Ok(match (newest, copies.into_iter().find_map(Result::err)) {
        (Some(label), _) if label.segment_len > SEGMENT_LEN_MAX => {
            Err(format!("its segments are longer than {SEGMENT_LEN_MAX} bytes, which is not supported"))
        }
        (Some(label), _) => Ok(label),
        (None, why) => Err(why.map_or_else(String::new, |why| why.to_string())),
    })
}
