//! The history of a run in a file, by which the device can be judged after a crash of the initiator or the
//! target.
//!
//! A journal is a line of [`HEAD_LEN`] bytes that names its device, followed by the entries of
//! [`oracle::journal`]. The run writes the entry of a change to the file before it sends the change, so that
//! the entry survives a crash of this process. With `synced` the entry is on stable storage before that, and
//! also survives a power loss of this machine.

use std::fs::File;
use std::io::{self, Write};

use oracle::block_header::DeviceId;
use oracle::journal::Entry;

use super::plan::RunError;

/// The length of the first line, in bytes.
pub const HEAD_LEN: usize = 128;

const MAGIC: &str = "targe verify journal 1";

/// A journal being written.
#[derive(Debug)]
pub struct Journal {
    file: File,
    synced: bool,
    pending: Vec<u8>,
}

/// The device and range that a journal belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct JournalHeader {
    /// The device identity in the signed blocks.
    pub device: DeviceId,
    /// The length of a signed block, in bytes.
    pub unit: usize,
    /// The start of the range, in bytes.
    pub from: u64,
    /// The length of the range, in bytes.
    pub len: u64,
}

/// Why a device cannot be judged by a journal.
#[derive(Debug, thiserror::Error)]
pub enum JournalError {
    /// The file does not start with the header of a journal.
    #[error("this is not a journal of `targe verify`")]
    NotOne,
    /// The range of the journal does not fit the device.
    #[error("the journal does not fit the device: {0}")]
    Refused(#[source] RunError),
}

impl Journal {
    /// Writes a journal to `file`, which must be empty. With `synced`, each entry is on stable storage before
    /// its operation is sent.
    pub const fn new(file: File, synced: bool) -> Self {
        Self { file, synced, pending: Vec::new() }
    }

    /// Writes the header, which must come before all entries.
    pub(super) fn begin(&mut self, head: &JournalHeader) -> io::Result<()> {
        let JournalHeader { device, unit, from, len } = head;
        let line = format!("{MAGIC} device={:016x} unit={unit} from={from} len={len}", device.0);
        let width = HEAD_LEN - 1;
        self.pending.extend_from_slice(format!("{line:width$}\n").as_bytes());
        self.flush()
    }

    /// Adds an entry. [`Self::flush`] writes it to the file.
    pub(super) fn note(&mut self, entry: &Entry) {
        self.pending.extend_from_slice(&entry.encode());
    }

    /// Writes all pending entries to the file, and with `synced` to stable storage.
    pub(super) fn flush(&mut self) -> io::Result<()> {
        if !self.pending.is_empty() {
            self.file.write_all(&self.pending)?;
            self.pending.clear();
            if self.synced {
                self.file.sync_data()?;
            }
        }
        Ok(())
    }
}

/// Splits a journal into its header and its entries.
pub(super) fn read(bytes: &[u8]) -> Result<(JournalHeader, &[u8]), JournalError> {
    let (line, entries) = bytes.split_at_checked(HEAD_LEN).ok_or(JournalError::NotOne)?;
    let line = std::str::from_utf8(line)
        .ok()
        .and_then(|line| line.strip_prefix(MAGIC))
        .ok_or(JournalError::NotOne)?;
    let value = |key: &str| {
        let word = line.split_ascii_whitespace().find_map(|word| word.strip_prefix(key)?.strip_prefix('='));
        word.ok_or(JournalError::NotOne)
    };
    let number = |key: &str| value(key)?.parse::<u64>().map_err(|_| JournalError::NotOne);
    let device = u64::from_str_radix(value("device")?, 16).map_err(|_| JournalError::NotOne)?;
    let unit = usize::try_from(number("unit")?).map_err(|_| JournalError::NotOne)?;
    Ok((
        JournalHeader { device: DeviceId(device), unit, from: number("from")?, len: number("len")? },
        entries,
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_head_reads_as_it_was_written() {
        let path = std::env::temp_dir().join(format!("targe-journal-head-{}", std::process::id()));
        let head =
            JournalHeader { device: DeviceId(u64::MAX), unit: 65_536, from: u64::MAX - 1, len: u64::MAX };
        let mut journal = Journal::new(File::create(&path).unwrap(), false);
        journal.begin(&head).unwrap();
        let bytes = std::fs::read(&path).unwrap();
        std::fs::remove_file(&path).unwrap();
        assert_eq!(bytes.len(), HEAD_LEN);
        let (read_back, entries) = read(&bytes).unwrap();
        assert_eq!((read_back, entries.len()), (head, 0));
        assert!(read(&bytes[1..]).is_err() && read(b"tarJ").is_err() && read(&[0; 200]).is_err());
    }
}
