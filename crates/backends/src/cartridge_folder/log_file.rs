//! The files of a cartridge, as threads open them.

use std::fs::File;

use cartridge::io::FileId;
use drivers::files::{CallOutput, Errno, IoFile};
use rustix::fs::{Advice, Mode, OFlags, fadvise, openat};
use store::api::OpAction;

use super::LABEL;

/// Returns the file that an operation reads or changes.
pub(super) fn file_of(action: &OpAction) -> Option<FileId> {
    match action {
        OpAction::Read { at, .. } | OpAction::Write { at, .. } | OpAction::Deallocate { at, .. } => {
            Some(FileId::of_address(*at).0)
        }
        _ => None,
    }
}

/// Opens a file of a cartridge, or makes it. It can wait.
pub(super) fn open_file(
    folder: &File,
    number: FileId,
    is_read_only: bool,
    makes: bool,
) -> Result<CallOutput, Errno> {
    let name = match number {
        FileId::Label => LABEL.to_owned(),
        FileId::Log { partition, segment } => format!("p{partition}-{segment:08}.log"),
    };
    let access = if is_read_only { OFlags::RDONLY } else { OFlags::RDWR };
    let flags = access | OFlags::CLOEXEC | OFlags::NOCTTY | OFlags::NOFOLLOW;
    let opened = |file, is_new| CallOutput::Opened { file: IoFile::sequential(File::from(file)), is_new };
    match openat(folder, &name, flags, Mode::empty()) {
        Ok(file) => {
            if !is_read_only {
                // After a write-back that failed, the page cache holds what the disk does not.
                let _ = fadvise(&file, 0, None, Advice::DontNeed);
            }
            Ok(opened(file, false))
        }
        Err(Errno::NOENT) if !makes => Ok(CallOutput::Absent),
        Err(Errno::NOENT) => {
            let flags = flags | OFlags::CREATE | OFlags::EXCL;
            Ok(opened(openat(folder, &name, flags, Mode::RUSR | Mode::WUSR)?, true))
        }
        Err(errno) => Err(errno),
    }
}
