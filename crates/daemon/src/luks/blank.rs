//! Looks for data in a file or device that is to become a LUKS2 image.
//!
//! A device has no holes, so that all of it must be read, which can take hours. The caller decides how much
//! is read in one call, and on which thread.

use std::fmt::Debug;
use std::io;
use std::os::unix::fs::FileExt;

use store::luks2::{DATA_OFFSET, is_unfinished};

use super::FileIo;

/// How much is read in one system call.
const PIECE: usize = 1 << 20;

/// What is looked through.
pub(crate) trait BlankSource: Debug + Send {
    /// Returns the next place from `at` on that can hold data; `None` if the rest is a hole.
    fn data_from(&mut self, at: u64) -> io::Result<Option<u64>>;

    /// Reads at `at`, and returns how many bytes.
    fn read_at(&mut self, buf: &mut [u8], at: u64) -> io::Result<usize>;
}

impl BlankSource for FileIo {
    fn data_from(&mut self, at: u64) -> io::Result<Option<u64>> {
        // Block devices and some file systems report no holes.
        match rustix::fs::seek(&self.0, rustix::fs::SeekFrom::Data(at)) {
            Ok(data) => Ok(Some(data)),
            Err(rustix::io::Errno::NXIO) => Ok(None),
            Err(_) => Ok(Some(at)),
        }
    }

    fn read_at(&mut self, buf: &mut [u8], at: u64) -> io::Result<usize> {
        self.0.read_at(buf, at)
    }
}

/// What is known after a call of [`BlankScan::read`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Blankness {
    /// There are only zeros.
    Blank,
    /// There is data.
    Data,
    /// What was read holds only zeros, and there is more.
    Unknown,
}

/// The search for data in a file or device.
#[derive(Debug)]
pub(crate) struct BlankScan {
    source: Box<dyn BlankSource>,
    at: u64,
    end: u64,
}

impl BlankScan {
    /// Returns a search of the bytes from `from` to `end`.
    pub(crate) fn new(source: impl BlankSource + 'static, from: u64, end: u64) -> Self {
        Self { source: Box::new(source), at: from, end }
    }

    /// Returns a search of a file or device, without the part of a header whose writing was interrupted.
    ///
    /// # Errors
    /// That of the system.
    pub(super) fn of(io: &mut FileIo) -> io::Result<Self> {
        let end = io.len()?;
        let from = if is_unfinished(io, end)? { DATA_OFFSET } else { 0 };
        Ok(Self::new(FileIo(io.0.try_clone()?), from, end))
    }

    /// Returns the search of no more than the first `end` bytes.
    pub(super) fn up_to(self, end: u64) -> Self {
        Self { end: self.end.min(end), ..self }
    }

    /// Returns how many bytes there are.
    pub(crate) const fn len(&self) -> u64 {
        self.end
    }

    /// Returns how much was looked through.
    pub(crate) fn percent(&self) -> u64 {
        let percent = u128::from(self.at.min(self.end)) * 100 / u128::from(self.end.max(1));
        u64::try_from(percent).unwrap_or(100)
    }

    /// Goes on, and stops when about so many bytes are read. Holes are not read.
    ///
    /// # Errors
    /// That of the system.
    pub(crate) fn read(&mut self, bytes: u64) -> io::Result<Blankness> {
        let mut piece = vec![0; PIECE];
        let mut left = bytes;
        while self.at < self.end {
            match self.source.data_from(self.at)? {
                Some(data) => self.at = data,
                None => self.at = self.end,
            }
            if self.at >= self.end {
                break;
            }
            if left == 0 {
                return Ok(Blankness::Unknown);
            }
            let len = self.source.read_at(&mut piece, self.at)?;
            if len == 0 {
                break;
            }
            if piece.get(..len).unwrap_or_default().iter().any(|byte| *byte != 0) {
                return Ok(Blankness::Data);
            }
            let len = u64::try_from(len).unwrap_or(u64::MAX);
            (self.at, left) = (self.at.saturating_add(len), left.saturating_sub(len));
        }
        Ok(Blankness::Blank)
    }
}
