//! Opens the PDUs of a connection with an AEAD digest (`docs/iscsi-aead.md` §6, §7).
//!
//! A data segment that has arrived whole with its tag is opened on its way to its sink, in one pass. Any
//! other one is received into its sink, which may be the driver's receive buffer, and opened there when its
//! tag arrives. The padding is a part of the record: it stands behind the data meanwhile, and what stood
//! there comes back.

use alloc::vec::Vec;

use base::buffer::Buf;
use security::aead::TAG_LEN;
use smallvec::SmallVec;

use super::{DataSink, FramingEvent, Receiver, State, StreamError};
use crate::aead::Decryptor;
use crate::pdu::{BHS_LEN, Bhs};

/// What opens the PDUs of a connection.
#[derive(Debug)]
pub(super) struct Opener {
    decryptor: Decryptor,
    /// The sum of the wrong tags of data segments, against those that were right.
    wrong_tags: u32,
}

/// How much a data segment with a wrong tag adds to the sum; one with a right tag takes 1 away.
const WRONG_TAG: u32 = 64;

/// The sum at which the session must end. Accidents that TCP does not notice are far rarer than one data
/// segment in [`WRONG_TAG`].
pub(crate) const WRONG_TAGS_MAX: u32 = 1024;

impl Opener {
    pub(super) const fn new(decryptor: Decryptor) -> Self {
        Self { decryptor, wrong_tags: 0 }
    }

    /// Returns what goes on where another receiver, with this sum of wrong tags, stopped.
    pub(super) const fn resumed(decryptor: Decryptor, wrong_tags: u32) -> Self {
        Self { decryptor, wrong_tags }
    }

    pub(super) const fn decryptor(&self) -> &Decryptor {
        &self.decryptor
    }

    pub(super) const fn wrong_tags(&self) -> u32 {
        self.wrong_tags
    }

    /// Counts a data segment. Returns an error if the session must end.
    const fn count(&mut self, is_right: bool) -> Result<(), StreamError> {
        self.wrong_tags = if is_right {
            self.wrong_tags.saturating_sub(1)
        } else {
            self.wrong_tags.saturating_add(WRONG_TAG)
        };
        if self.wrong_tags >= WRONG_TAGS_MAX { Err(StreamError::Modified) } else { Ok(()) }
    }

    /// Opens a data segment where it lies: `len` bytes from `start` on in the filled part of `buf`, with
    /// `padding` behind. The other bytes of the buffer stay as they are.
    fn open_in(
        &mut self,
        buf: &mut Buf,
        (start, len): (usize, usize),
        padding: &[u8],
        tag: &[u8],
    ) -> Option<()> {
        let end = start.checked_add(len)?;
        if padding.is_empty() {
            return self.decryptor.open_data(buf.filled_mut().get_mut(start..end)?, tag);
        }
        let filled = buf.len();
        let lacking = (end + padding.len()).saturating_sub(filled);
        if buf.append_zeros(lacking) < lacking {
            buf.truncate(filled);
            return self.open_copied(buf.filled_mut().get_mut(start..end)?, padding, tag);
        }
        let segment = buf.filled_mut().get_mut(start..end + padding.len())?;
        let mut behind = [0; 3];
        let behind = behind.get_mut(..padding.len())?;
        behind.copy_from_slice(segment.get(len..)?);
        segment.get_mut(len..)?.copy_from_slice(padding);
        let opened = self.decryptor.open_data(segment, tag);
        segment.get_mut(len..)?.copy_from_slice(behind);
        buf.truncate(filled);
        opened
    }

    /// Opens a data segment behind which the buffer has no room for the padding.
    fn open_copied(&mut self, data: &mut [u8], padding: &[u8], tag: &[u8]) -> Option<()> {
        let mut segment = Vec::with_capacity(data.len() + padding.len());
        segment.extend_from_slice(data);
        segment.extend_from_slice(padding);
        self.decryptor.open_data(&mut segment, tag)?;
        data.copy_from_slice(segment.get(..data.len())?);
        Some(())
    }
}

// These are not inlined, so that the receiver of plain PDUs has no larger frame for them.
impl Receiver {
    /// Opens a header segment, which is followed by its tag.
    #[inline(never)]
    pub(super) fn open_header(&mut self, whole: &[u8]) -> Result<FramingEvent, StreamError> {
        let Some(opener) = &mut self.opener else { return Err(StreamError::HeaderDigest) };
        let (sealed, tag) = whole.split_last_chunk::<TAG_LEN>().ok_or(StreamError::HeaderDigest)?;
        let mut segment: SmallVec<[u8; 64]> = SmallVec::from_slice(sealed);
        opener.decryptor.open_header(&mut segment, tag).ok_or(StreamError::HeaderDigest)?;
        let (bhs, ahs) = segment.split_first_chunk::<BHS_LEN>().ok_or(StreamError::HeaderDigest)?;
        self.accept_header(Bhs::from_bytes(*bhs), ahs)
    }

    /// Opens a data segment that is in `bytes`, whole and with its tag, on its way to its sink. Returns
    /// `None` if it is not there, or if its sink has no room for the padding.
    #[inline(never)]
    pub(super) fn open_on_the_way(&mut self, bytes: &mut &[u8]) -> Option<Result<FramingEvent, StreamError>> {
        let len = self.data_len();
        if len == 0 || self.missing < len {
            return None;
        }
        let segment_len = len.next_multiple_of(4);
        let (segment, rest) = bytes.split_at_checked(segment_len)?;
        let (tag, rest) = rest.split_first_chunk::<TAG_LEN>()?;
        let opener = self.opener.as_mut()?;
        let opened = match &mut self.sink {
            DataSink::Append(buf) => {
                let room = buf.spare_mut().get_mut(..segment_len)?;
                let opened = opener.decryptor.open_data_into(segment, tag, room);
                if opened.is_some() {
                    buf.advance(len);
                }
                opened
            }
            DataSink::Overwrite { buf, at } if segment_len == len => {
                let end = at.checked_add(len)?;
                let room = buf.filled_mut().get_mut(*at..end)?;
                *at = end;
                opener.decryptor.open_data_into(segment, tag, room)
            }
            DataSink::Overwrite { .. } | DataSink::Discard | DataSink::TakenByDriver { .. } => return None,
        };
        *bytes = rest;
        (self.missing, self.state) = (0, State::Header);
        Some(self.opened(opened))
    }

    /// Opens a data segment in its sink. The trailer is complete: `padding` bytes and the tag.
    #[inline(never)]
    pub(super) fn open_in_sink(&mut self, padding: usize) -> Result<FramingEvent, StreamError> {
        let len = self.data_len();
        let trailer = self.trailer.get(..padding + TAG_LEN).unwrap_or_default();
        let (padding, tag) = trailer.split_at_checked(padding).unwrap_or_default();
        let Some(opener) = &mut self.opener else { return Err(StreamError::HeaderDigest) };
        let opened = match &mut self.sink {
            DataSink::Append(buf) => {
                let start = buf.len().saturating_sub(len);
                let opened = opener.open_in(buf, (start, len), padding, tag);
                if opened.is_none() {
                    buf.truncate(start);
                }
                opened
            }
            DataSink::Overwrite { buf, at } => {
                opener.open_in(buf, (at.saturating_sub(len), len), padding, tag)
            }
            // No byte of the segment is kept, so whether its tag is right makes no difference.
            DataSink::Discard | DataSink::TakenByDriver { .. } => return Ok(self.received(true)),
        };
        self.opened(opened)
    }

    /// Returns the present PDU, whose data segment was opened or had a wrong tag.
    fn opened(&mut self, opened: Option<()>) -> Result<FramingEvent, StreamError> {
        let is_right = opened.is_some();
        if let Some(opener) = &mut self.opener {
            opener.count(is_right)?;
        }
        Ok(self.received(is_right))
    }

    fn data_len(&self) -> usize {
        usize::try_from(self.bhs.data_len()).unwrap_or(usize::MAX)
    }
}

#[cfg(test)]
mod tests;
