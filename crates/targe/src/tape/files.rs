//! The folder of a cartridge.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{DirBuilder, File, OpenOptions, TryLockError};
use std::io::{self, ErrorKind};
use std::os::unix::fs::{DirBuilderExt as _, FileExt as _, MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

use base::buffer::{Buf, DataList};
use cartridge::blocking::Files;
use cartridge::io::FileId;
use cartridge::label::{FILE_LEN, Label};
use rustix::fs::{Advice, fadvise};
use store::api::{self, Fault, OpAction, OpOutput};

const LABEL: &str = "label";

/// The open files of a cartridge. Another process can open the same cartridge only if both only read.
pub(super) struct Folder {
    path: PathBuf,
    label: File,
    logs: BTreeMap<FileId, File>,
    /// Files that were made, and whose names are not flushed.
    fresh: BTreeSet<FileId>,
    is_writable: bool,
    /// A buffer for the next read.
    spare: Option<Buf>,
    /// The first error of the operating system, which tells more than a fault.
    pub(super) error: Option<io::Error>,
}

impl Folder {
    /// Makes the folder of a new cartridge, durably. The folder does not exist, or is empty. Only the owner
    /// can access what is made: it will hold the data of hosts.
    pub(super) fn create(path: &Path, label: &Label) -> io::Result<()> {
        let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
        match DirBuilder::new().mode(0o700).create(path) {
            Err(error) if error.kind() == ErrorKind::AlreadyExists => {
                if std::fs::read_dir(path)?.next().is_some() {
                    return Err(io::Error::other("the folder exists and is not empty"));
                }
            }
            Err(error) if error.kind() == ErrorKind::NotFound => {
                let parent = parent.display();
                let why = format!("the folder {parent} does not exist; make it first: mkdir -p {parent}");
                return Err(io::Error::other(why));
            }
            Err(error) if error.kind() == ErrorKind::PermissionDenied => {
                let parent = parent.display();
                return Err(io::Error::other(format!(
                    "this user may not make folders in {parent}; run targe as the user of the daemon, which must be able to \
                     write the cartridge"
                )));
            }
            made => made?,
        }
        // Another process never sees half a label.
        let fresh = path.join("label.new");
        let file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&fresh)?;
        file.write_all_at(&label.file(), 0)?;
        file.sync_all()?;
        std::fs::rename(&fresh, path.join(LABEL))?;
        File::open(path)?.sync_all()?;
        File::open(parent)?.sync_all()
    }

    /// Opens the folder of a cartridge and locks it.
    pub(super) fn open(path: &Path, is_writable: bool) -> Result<Self, String> {
        let label_path = path.join(LABEL);
        let label = match OpenOptions::new().read(true).write(is_writable).open(&label_path) {
            Ok(label) => label,
            Err(error) if error.kind() == ErrorKind::NotFound && path.is_dir() => {
                return Err("the folder holds no cartridge: it has no file \"label\"".to_owned());
            }
            Err(error) => return Err(error.to_string()),
        };
        let locked = if is_writable { label.try_lock() } else { label.try_lock_shared() };
        match locked {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => return Err("another process uses the cartridge".to_owned()),
            Err(TryLockError::Error(error)) => {
                return Err(format!("the cartridge cannot be locked: {error}"));
            }
        }
        if label.metadata().map_err(|error| error.to_string())?.size() > FILE_LEN {
            return Err("the file \"label\" is longer than that of a cartridge".to_owned());
        }
        if is_writable {
            // What an earlier process wrote or made, and was killed before it flushed, counts from here on.
            let flushed = label.sync_all().and_then(|()| File::open(path)?.sync_all());
            flushed.map_err(|error| error.to_string())?;
        }
        let (logs, fresh) = (BTreeMap::new(), BTreeSet::new());
        Ok(Self { path: path.to_owned(), label, logs, fresh, is_writable, spare: None, error: None })
    }

    fn path_of(&self, file: FileId) -> PathBuf {
        match file {
            FileId::Label => self.path.join(LABEL),
            FileId::Log { partition, segment } => self.path.join(format!("p{partition}-{segment:08}.log")),
        }
    }

    /// Returns a file, or nothing if it does not exist and is not to be made.
    fn file(&mut self, file: FileId, make: bool) -> io::Result<Option<&File>> {
        if file == FileId::Label {
            return Ok(Some(&self.label));
        }
        if !self.logs.contains_key(&file) {
            let path = self.path_of(file);
            let mut options = OpenOptions::new();
            options.read(true).write(self.is_writable);
            let opened = match options.open(&path) {
                Err(error) if error.kind() == ErrorKind::NotFound => {
                    if !make {
                        return Ok(None);
                    }
                    self.fresh.insert(file);
                    options.create_new(true).mode(0o600).open(&path)?
                }
                Ok(file) => {
                    if self.is_writable {
                        // After a writeback that failed, the page cache holds what the disk does not.
                        fadvise(&file, 0, None, Advice::DontNeed)?;
                    }
                    file
                }
                Err(error) => return Err(error),
            };
            self.logs.insert(file, opened);
        }
        Ok(self.logs.get(&file))
    }

    fn try_perform(&mut self, file: FileId, action: OpAction) -> io::Result<Option<OpOutput>> {
        match action {
            OpAction::Read { at, len } => {
                let spare = self.spare.take().filter(|spare| spare.capacity() >= len);
                let Some(from) = self.file(file, false)? else { return Ok(None) };
                let buf = spare.unwrap_or_else(|| Buf::with_capacity(len));
                Ok(Some(OpOutput::Data(read_at(from, at, len, buf)?.freeze().into())))
            }
            OpAction::Write { at, data, .. } => {
                let Some(to) = self.file(file, true)? else { return Ok(None) };
                let mut offset = at;
                for part in data.parts() {
                    to.write_all_at(part, offset)?;
                    offset += base::int_cast::to_u64(part.len());
                }
                Ok(Some(OpOutput::Done(data)))
            }
            OpAction::Flush => {
                if let Some(file) = self.file(file, false)? {
                    file.sync_data()?;
                }
                if self.fresh.remove(&file) {
                    File::open(&self.path)?.sync_all()?;
                }
                Ok(Some(OpOutput::Done(DataList::new())))
            }
            OpAction::Deallocate { at, .. } => {
                if at == 0 {
                    self.logs.remove(&file);
                    match std::fs::remove_file(self.path_of(file)) {
                        Err(error) if error.kind() != ErrorKind::NotFound => return Err(error),
                        _ => {}
                    }
                } else if let Some(file) = self.file(file, false)?
                    && file.metadata()?.size() > at
                {
                    file.set_len(at)?;
                }
                Ok(Some(OpOutput::Done(DataList::new())))
            }
            OpAction::WriteZeroes { .. }
            | OpAction::MapStatus { .. }
            | OpAction::CryptoErase
            | OpAction::Command(_)
            | OpAction::Reset => Err(io::Error::from(ErrorKind::Unsupported)),
        }
    }
}

impl Files for Folder {
    fn recycle(&mut self, buf: Buf) {
        self.spare = Some(buf);
    }

    fn perform(&mut self, file: FileId, action: OpAction) -> Result<OpOutput, api::Failure> {
        match self.try_perform(file, action) {
            Ok(Some(output)) => Ok(output),
            Ok(None) => Err(Fault::OutOfRange.into()),
            Err(error) => {
                let fault = match error.kind() {
                    ErrorKind::StorageFull | ErrorKind::QuotaExceeded | ErrorKind::FileTooLarge => {
                        Fault::NoSpace
                    }
                    ErrorKind::PermissionDenied | ErrorKind::ReadOnlyFilesystem => Fault::ReadOnly,
                    _ => Fault::Medium,
                };
                self.error.get_or_insert(error);
                Err(fault.into())
            }
        }
    }
}

/// Reads `len` bytes into a buffer that has room for them; what is behind the end of the file is zeros.
fn read_at(file: &File, at: u64, len: usize, mut buf: Buf) -> io::Result<Buf> {
    buf.truncate(0);
    while buf.len() < len {
        let offset = at + base::int_cast::to_u64(buf.len());
        let left = len - buf.len();
        let spare = buf.spare_mut();
        let room = spare.len().min(left);
        match file.read_at(spare.get_mut(..room).unwrap_or_default(), offset) {
            Ok(0) => {
                buf.append_zeros(left);
            }
            Ok(read) => buf.advance(read),
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(buf)
}
