//! The files of a cartridge in memory, for tests and fuzzing.

use alloc::collections::BTreeMap;
use alloc::vec;
use alloc::vec::Vec;

use base::buffer::{Bytes, DataList};
use base::int_cast::to_usize;
use store::api::{Failure, Fault, OpAction, OpOutput};

use crate::blocking::Files;
use crate::io::FileId;
use crate::label::Label;

/// Files in memory. They grow as they are written, and read as zeros behind their end.
#[derive(Clone, Debug, Default)]
pub struct MemoryFiles {
    /// The contents.
    pub files: BTreeMap<FileId, Vec<u8>>,
}

impl MemoryFiles {
    /// Makes the files of a new cartridge.
    pub fn new(label: &Label) -> Self {
        Self { files: BTreeMap::from([(FileId::Label, label.file())]) }
    }
}

impl Files for MemoryFiles {
    fn perform(&mut self, file: FileId, action: OpAction) -> Result<OpOutput, Failure> {
        match action {
            OpAction::Read { at, len } => {
                let bytes = self.files.get(&file).ok_or(Fault::OutOfRange)?;
                let known = bytes.get(to_usize(at)..).unwrap_or_default();
                let mut out = vec![0; len];
                out.iter_mut().zip(known).for_each(|(to, from)| *to = *from);
                Ok(OpOutput::Data(Bytes::copied_from(&out).into()))
            }
            OpAction::Write { at, data, .. } => {
                let bytes = self.files.entry(file).or_default();
                let end = to_usize(at).saturating_add(data.len());
                if bytes.len() < end {
                    bytes.resize(end, 0);
                }
                data.copy_to(0, bytes.get_mut(to_usize(at)..end).unwrap_or_default());
                Ok(OpOutput::Done(data))
            }
            OpAction::Deallocate { at, .. } => {
                if let Some(bytes) = self.files.get_mut(&file) {
                    bytes.truncate(to_usize(at));
                }
                Ok(OpOutput::Done(DataList::new()))
            }
            OpAction::Flush => Ok(OpOutput::Done(DataList::new())),
            OpAction::WriteZeroes { .. }
            | OpAction::MapStatus { .. }
            | OpAction::CryptoErase
            | OpAction::Command(_)
            | OpAction::Reset => Err(Fault::Unsupported.into()),
        }
    }
}
