//! The buffers of READ BUFFER and WRITE BUFFER (SPC-5 §6.20): a data buffer and an echo buffer.
//!
//! They exist so that an initiator can test its path. Neither accepts microcode: those modes are not
//! supported. A buffer holds zeros until an initiator writes it, so that no earlier contents of memory can be
//! read (CVE-2024-8178).

use alloc::vec;
use alloc::vec::Vec;

use scsi::sense::{Asc, Sense, SenseKey};
use serde::{Deserialize, Serialize};

use crate::contract::NexusId;
use crate::handover::hex::HexBytes;
use crate::handover::{IndexOf, NexusOf, RestoreError, indices_are_unique};

/// The length of the data buffer, in bytes: enough for tools that measure a path with it, and little memory
/// for each unit.
pub(crate) const DATA_LEN: usize = 64 << 10;

/// The length of the echo buffer, in bytes: SPC-5 allows at most 4096, and a smaller buffer has no benefit.
pub(crate) const ECHO_LEN: usize = 4096;

/// The buffers of one logical unit. They use no memory until they are written.
#[derive(Clone, Debug, Default)]
pub(crate) struct DataBuffers {
    data: Vec<u8>,
    echo: Vec<u8>,
    /// The nexus that wrote the echo buffer last.
    echoed_by: Option<NexusId>,
    /// The nexuses whose echo data was overwritten by another nexus before they read it.
    overwritten: Vec<NexusId>,
}

impl DataBuffers {
    /// Writes `bytes` at `offset` of the data buffer.
    ///
    /// # Errors
    /// See [`check_data_range`].
    pub(crate) fn write_data(&mut self, offset: u64, bytes: &[u8]) -> Result<(), Sense> {
        check_data_range(offset, bytes.len() as u64)?;
        if bytes.is_empty() {
            return Ok(());
        }
        self.data.resize(DATA_LEN, 0);
        let start = usize::try_from(offset).unwrap_or(usize::MAX);
        if let Some(room) = self.data.get_mut(start..).and_then(|room| room.get_mut(..bytes.len())) {
            room.copy_from_slice(bytes);
        }
        Ok(())
    }

    /// Reads up to `len` bytes at `offset` of the data buffer.
    ///
    /// # Errors
    /// INVALID FIELD IN CDB for an offset beyond the end.
    pub(crate) fn read_data(&self, offset: u64, len: u64, offset_at: u16) -> Result<Vec<u8>, Sense> {
        let start = usize::try_from(offset).ok().filter(|start| *start <= DATA_LEN);
        let start = start.ok_or_else(|| Sense::invalid_cdb(offset_at, None))?;
        let len = usize::try_from(len).unwrap_or(usize::MAX).min(DATA_LEN - start);
        Ok(match self.data.get(start..).and_then(|data| data.get(..len)) {
            Some(data) => Vec::from(data),
            None => vec![0; len],
        })
    }

    /// Writes the echo buffer.
    ///
    /// # Errors
    /// INVALID FIELD IN CDB for more bytes than it holds.
    pub(crate) fn write_echo(&mut self, from: NexusId, bytes: &[u8]) -> Result<(), Sense> {
        if bytes.len() > ECHO_LEN {
            return Err(Sense::invalid_cdb(6, None));
        }
        if let Some(other) = self.echoed_by.filter(|other| *other != from) {
            self.overwritten.push(other);
        }
        self.overwritten.retain(|other| *other != from);
        self.echoed_by = Some(from);
        self.echo = Vec::from(bytes);
        Ok(())
    }

    /// Reads the echo buffer that this nexus wrote.
    ///
    /// # Errors
    /// COMMAND SEQUENCE ERROR when the nexus wrote none; ECHO BUFFER OVERWRITTEN when another nexus wrote the
    /// buffer since.
    pub(crate) fn read_echo(&mut self, from: NexusId) -> Result<Vec<u8>, Sense> {
        if self.echoed_by == Some(from) {
            return Ok(self.echo.clone());
        }
        if self.overwritten.contains(&from) {
            self.overwritten.retain(|other| *other != from);
            return Err(Sense::new(SenseKey::ABORTED_COMMAND, Asc::ECHO_BUFFER_OVERWRITTEN));
        }
        Err(Sense::illegal(Asc::COMMAND_SEQUENCE_ERROR))
    }

    /// Handles the loss of a nexus: the echo data that it wrote belongs to no nexus any more.
    pub(crate) fn lose(&mut self, nexus: NexusId) {
        self.overwritten.retain(|other| *other != nexus);
        if self.echoed_by == Some(nexus) {
            self.echoed_by = None;
            self.echo = Vec::new();
        }
    }

    /// Handles a reset: empties both buffers.
    pub(crate) fn reset(&mut self) {
        *self = Self::default();
    }
}

/// The buffers in a document that one process hands over to the next.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct DataBuffersState {
    data: HexBytes,
    echo: HexBytes,
    echoed_by: Option<u32>,
    overwritten: Vec<u32>,
}

impl DataBuffers {
    /// Returns the buffers in a document. What belongs to nexuses without an index is left out.
    pub(crate) fn export(&self, index_of: IndexOf<'_>) -> DataBuffersState {
        let Self { data, echo, echoed_by, overwritten } = self;
        let echoed_by = echoed_by.and_then(index_of);
        DataBuffersState {
            data: HexBytes::of(data),
            echo: HexBytes::of(if echoed_by.is_some() { echo } else { &[] }),
            echoed_by,
            overwritten: overwritten.iter().filter_map(|id| index_of(*id)).collect(),
        }
    }

    /// Returns the buffers of a document.
    ///
    /// # Errors
    /// [`RestoreError`] for buffers of a wrong length, and for a nexus that is there twice.
    pub(crate) fn restore(state: &DataBuffersState, nexus_of: NexusOf<'_>) -> Result<Self, RestoreError> {
        let DataBuffersState { data, echo, echoed_by, overwritten } = state;
        let is_length_possible = data.0.is_empty() || data.0.len() == DATA_LEN;
        if !is_length_possible || echo.0.len() > ECHO_LEN {
            return Err(RestoreError::DataBuffer);
        }
        if !indices_are_unique(overwritten.iter().chain(echoed_by).copied()) {
            return Err(RestoreError::NexusTwice);
        }
        let echoed_by = echoed_by.and_then(nexus_of);
        Ok(Self {
            data: data.0.clone(),
            echo: if echoed_by.is_some() { echo.0.clone() } else { Vec::new() },
            echoed_by,
            overwritten: overwritten.iter().filter_map(|index| nexus_of(*index)).collect(),
        })
    }
}

/// Checks that `len` bytes at `offset` lie in the data buffer.
///
/// # Errors
/// INVALID FIELD IN CDB, pointing at the offset or the length of a WRITE BUFFER.
pub(crate) fn check_data_range(offset: u64, len: u64) -> Result<(), Sense> {
    let capacity = DATA_LEN as u64;
    if offset > capacity {
        Err(Sense::invalid_cdb(3, None))
    } else if len > capacity - offset {
        Err(Sense::invalid_cdb(6, None))
    } else {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: NexusId = NexusId(1);
    const B: NexusId = NexusId(2);

    /// CVE-2024-8178: READ BUFFER returned memory that it did not own.
    #[test]
    fn what_was_never_written_reads_as_zeros() {
        let mut buffers = DataBuffers::default();
        assert_eq!(buffers.read_data(0, u64::MAX, 3).unwrap(), vec![0; DATA_LEN]);
        buffers.write_data(10, b"abc").unwrap();
        let read = buffers.read_data(8, 8, 3).unwrap();
        assert_eq!(read, b"\0\0abc\0\0\0");
        buffers.reset();
        assert_eq!(buffers.read_data(8, 8, 3).unwrap(), [0; 8]);
    }

    #[test]
    fn nothing_is_read_or_written_beyond_the_end() {
        let mut buffers = DataBuffers::default();
        let end = DATA_LEN as u64;
        assert_eq!(buffers.read_data(end - 1, 10, 3).unwrap().len(), 1);
        assert_eq!(buffers.read_data(end, 10, 3).unwrap().len(), 0);
        assert_eq!(buffers.read_data(end + 1, 10, 3), Err(Sense::invalid_cdb(3, None)));
        assert_eq!(buffers.read_data(u64::MAX, 10, 2), Err(Sense::invalid_cdb(2, None)));
        assert_eq!(buffers.write_data(end, b"x"), Err(Sense::invalid_cdb(6, None)));
        assert_eq!(buffers.write_data(u64::MAX, b""), Err(Sense::invalid_cdb(3, None)));
        assert!(buffers.write_data(end - 1, b"x").is_ok());
        assert!(buffers.data.len() == DATA_LEN);
    }

    #[test]
    fn an_echo_comes_back_to_who_sent_it() {
        let mut buffers = DataBuffers::default();
        let never = Err(Sense::illegal(Asc::COMMAND_SEQUENCE_ERROR));
        assert_eq!(buffers.read_echo(A), never);
        buffers.write_echo(A, b"hello").unwrap();
        assert_eq!(buffers.read_echo(B), never);
        assert_eq!(buffers.read_echo(A).unwrap(), b"hello");
        assert_eq!(buffers.read_echo(A).unwrap(), b"hello");
        buffers.write_echo(B, b"mine").unwrap();
        let overwritten = Sense::new(SenseKey::ABORTED_COMMAND, Asc::ECHO_BUFFER_OVERWRITTEN);
        assert_eq!(buffers.read_echo(A), Err(overwritten));
        assert_eq!(buffers.read_echo(A), never);
        assert_eq!(buffers.read_echo(B).unwrap(), b"mine");
        buffers.lose(B);
        assert_eq!(buffers.read_echo(B), never);
        assert!(buffers.write_echo(A, &[0; ECHO_LEN + 1]).is_err());
    }
}
