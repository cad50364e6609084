//! Framing: splits a byte stream into PDUs (RFC 7143 §11.1).
//!
//! A PDU is a basic header, additional header segments, a header digest, a data segment, padding to four
//! bytes and a data digest; only the basic header is always present. [`Receiver`] reads PDUs one after the
//! other and stores no more than one header itself. Once a header is complete and its digest is right, the
//! caller states where the data segment belongs ([`Receiver::set_sink`]), and the receiver writes the bytes
//! there and nowhere else. The driver can take the buffer of a large segment ([`Receiver::take_rx_buffer`]),
//! so that the kernel receives the bytes in place (zero copy).
//!
//! This module serves both roles and knows nothing of the meaning of PDUs.
//!
//! With an AEAD digest the segments of a PDU are records (`docs/iscsi-aead.md` §6), which the module `opener`
//! opens: a header before anything but its lengths is used, a data segment in its sink, or on the way to it.
//!
//! # After a header digest error
//!
//! RFC 7143 §7.8 permits two reactions: close the connection, or continue at the beginning of a later PDU if
//! that can be ascertained by other means than the length fields of the damaged header. The digest itself is
//! such a means: if one flipped bit explains the error, that bit is known with certainty
//! ([`crate::digest::single_flip`]), and with it the true lengths. So, where [`Framing::resync`] allows it,
//! the receiver reads a PDU whose header has one wrong bit to its end and drops it
//! ([`FramingEvent::Damaged`]); it uses nothing of the PDU but its length. Worse damage ends the stream, as
//! every header digest error does at ErrorRecoveryLevel 0.
//!
//! Two methods are deliberately not used. The receiver does not simply try the lengths of a damaged header:
//! they are wrong in one of thirteen cases, and then the next bytes are data, which are chosen by the
//! application that writes to a disk. For the same reason the receiver does not search the stream for bytes
//! that look like a header with a matching digest: a guest that stores a captured PDU on its disk could make
//! the target execute it.
//!
//! The tag of an AEAD digest does not tell which bit is wrong, so a wrong tag of a header always ends the
//! stream.

mod opener;

use alloc::boxed::Box;
use alloc::vec::Vec;
use core::mem;

use base::buffer::Buf;
use base::state_machine::RxBuffer;
use security::aead::TAG_LEN;
use smallvec::SmallVec;

use self::opener::Opener;
pub(crate) use self::opener::WRONG_TAGS_MAX;
use crate::aead::Decryptor;
use crate::digest::{Crc32c, DIGEST_LEN, Flipped, single_flip};
use crate::fault_injection::{self, Bug};
use crate::pdu::{BHS_LEN, Bhs};

/// The driver takes the buffer of a data segment when at least this many bytes of the segment are missing.
/// Below that, one receive into the read buffer also brings the next PDUs, which saves more than the copy
/// costs.
pub const RX_BUFFER_MIN: usize = 16 << 10;

/// How the PDUs of a connection are framed now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Framing {
    /// Whether headers carry a CRC32C.
    pub header_digest: bool,
    /// Whether data segments carry a CRC32C.
    pub data_digest: bool,
    /// The longest data segment that is accepted, in bytes.
    pub data_len_max: u32,
    /// Whether a PDU with a damaged header is skipped if its length is certain.
    pub resync: bool,
}

/// Reads PDUs from a stream.
#[derive(Debug)]
pub struct Receiver {
    framing: Framing,
    state: State,
    bhs: Bhs,
    /// The bytes of an incomplete header that arrives in pieces.
    staged: SmallVec<[u8; 64]>,
    /// The additional header segments of the present PDU.
    ahs: Vec<u8>,
    /// Whether the present PDU is to be dropped because its header was damaged.
    damaged: bool,
    sink: DataSink,
    /// How many bytes of the data segment are missing.
    missing: usize,
    crc: Crc32c,
    /// What opens the segments, if their digest is an AEAD.
    opener: Option<Box<Opener>>,
    trailer: [u8; TRAILER_MAX],
    trailer_len: usize,
}

/// The destination of a data segment.
#[derive(Debug, Default)]
pub enum DataSink {
    /// None: the segment is read and discarded.
    #[default]
    Discard,
    /// Behind the filled bytes of the buffer. The buffer has free space for the whole segment.
    Append(Buf),
    /// Over the filled bytes of the buffer, from `at` on.
    Overwrite {
        /// The buffer.
        buf: Buf,
        /// Where the next byte goes.
        at: usize,
    },
    /// A receive buffer that the driver holds, with this many bytes filled when the driver took it.
    TakenByDriver {
        /// The number of filled bytes.
        filled: usize,
    },
}

/// The result of reading the stream.
#[derive(Debug)]
pub enum FramingEvent {
    /// No PDU or header is complete: more bytes are needed.
    NeedMoreBytes,
    /// A complete header. The next call must be [`Receiver::set_sink`].
    Header(Bhs),
    /// The end of that PDU: all its parts were read.
    Pdu(ReceivedPdu),
    /// A PDU with a damaged header was read to its end and dropped.
    Damaged,
}

/// A PDU that was read to its end.
#[derive(Debug)]
pub struct ReceivedPdu {
    /// The header of the PDU.
    pub bhs: Bhs,
    /// The destination of its data.
    pub sink: DataSink,
    /// Whether the data digest was right, or absent, or not checked: an AEAD digest is not checked where the
    /// data is discarded.
    pub digest_ok: bool,
}

/// The error that ends the stream: the start of the next PDU cannot be found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StreamError {
    /// A header digest is wrong.
    HeaderDigest,
    /// So many data segments had a wrong tag that somebody must be modifying them.
    Modified,
    /// A header announces a data segment that is longer than allowed.
    TooLong,
    /// The caller passed bytes while the driver held the receive buffer.
    RxBufferTaken,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Header,
    AwaitingSink,
    Data,
    Trailer,
}

/// The offset of the byte in which a header states the length of its additional header segments (RFC 7143
/// §11.2.1.5).
const TOTAL_AHS_LENGTH: usize = 4;

/// The longest padding and digest, in bytes.
const TRAILER_MAX: usize = 3 + TAG_LEN;

impl Receiver {
    /// Returns a receiver that expects the start of a PDU.
    pub fn new(framing: Framing) -> Self {
        Self {
            framing,
            state: State::Header,
            bhs: Bhs::from_bytes([0; BHS_LEN]),
            staged: SmallVec::new(),
            ahs: Vec::new(),
            damaged: false,
            sink: DataSink::Discard,
            missing: 0,
            crc: Crc32c::new(),
            opener: None,
            trailer: [0; TRAILER_MAX],
            trailer_len: 0,
        }
    }

    /// Changes the framing of the PDUs after the present one.
    pub const fn set_framing(&mut self, framing: Framing) {
        self.framing = framing;
    }

    /// Opens the PDUs after the present one with `decryptor`. [`Self::set_framing`] must then announce no
    /// CRC32C, and no [`Framing::resync`].
    pub fn set_decryptor(&mut self, decryptor: Decryptor) {
        self.opener = Some(Box::new(Opener::new(decryptor)));
    }

    /// As [`Self::set_decryptor`], for a connection that another receiver has read so far, with this
    /// [`Self::wrong_tags`].
    pub(crate) fn resume_decryptor(&mut self, decryptor: Decryptor, wrong_tags: u32) {
        self.opener = Some(Box::new(Opener::resumed(decryptor, wrong_tags)));
    }

    /// Returns what opens the PDUs, if their digest is an AEAD.
    pub(crate) fn decryptor(&self) -> Option<&Decryptor> {
        self.opener.as_deref().map(Opener::decryptor)
    }

    /// Returns the sum of the wrong tags of data segments.
    pub(crate) fn wrong_tags(&self) -> u32 {
        self.opener.as_deref().map_or(0, Opener::wrong_tags)
    }

    /// Returns whether no incomplete PDU has begun.
    pub fn is_between_pdus(&self) -> bool {
        self.state == State::Header && self.staged.is_empty()
    }

    /// Returns the additional header segments of the present PDU, from its header to its end.
    pub fn ahs(&self) -> &[u8] {
        &self.ahs
    }

    /// Returns whether the header of the present PDU carries a CRC32C, and the padding and the CRC32C of its
    /// data segment, once that was read to its end. An AEAD digest is not a part of them.
    pub(crate) fn wire_form(&self) -> (bool, &[u8]) {
        let padding = usize::try_from(self.bhs.data_len()).unwrap_or(usize::MAX).wrapping_neg() % 4;
        match &self.opener {
            // The padding may have been opened on its way; it has no meaning.
            Some(_) => (false, [0; 3].get(..padding).unwrap_or_default()),
            None => (self.framing.header_digest, self.trailer.get(..self.trailer_len).unwrap_or_default()),
        }
    }

    /// Returns whether a PDU has lost its data segment because its AEAD tag was wrong.
    pub(crate) const fn lost_data(&self, pdu: &ReceivedPdu) -> bool {
        self.opener.is_some() && !pdu.digest_ok
    }

    /// Reads from `bytes` and moves it past the bytes that were read.
    ///
    /// # Errors
    /// Returns the error that makes the rest of the stream unreadable.
    pub fn advance(&mut self, bytes: &mut &[u8]) -> Result<FramingEvent, StreamError> {
        loop {
            match self.state {
                State::Header => {
                    if let Some(step) = self.header(bytes)? {
                        return Ok(step);
                    }
                }
                State::AwaitingSink => return Ok(FramingEvent::NeedMoreBytes),
                State::Data => {
                    if matches!(self.sink, DataSink::TakenByDriver { .. }) {
                        return if bytes.is_empty() {
                            Ok(FramingEvent::NeedMoreBytes)
                        } else {
                            Err(StreamError::RxBufferTaken)
                        };
                    }
                    if self.opener.is_some()
                        && let Some(done) = self.open_on_the_way(bytes)
                    {
                        return done;
                    }
                    let Some((data, rest)) = bytes.split_at_checked(self.missing.min(bytes.len())) else {
                        return Ok(FramingEvent::NeedMoreBytes);
                    };
                    *bytes = rest;
                    self.data(data);
                    if self.missing > 0 {
                        return Ok(FramingEvent::NeedMoreBytes);
                    }
                    self.state = State::Trailer;
                }
                State::Trailer => return self.trailer(bytes),
            }
        }
    }

    /// Sets the destination of the data segment of the header that [`Self::advance`] just returned.
    pub fn set_sink(&mut self, landing: DataSink) {
        self.sink = landing;
        self.missing = usize::try_from(self.bhs.data_len()).unwrap_or(usize::MAX);
        self.crc = Crc32c::new();
        self.trailer_len = 0;
        self.state = State::Data;
    }

    /// Returns the buffer that the next bytes belong to, if at least [`RX_BUFFER_MIN`] of them are missing.
    pub fn take_rx_buffer(&mut self) -> Option<RxBuffer> {
        if self.state != State::Data || self.missing < RX_BUFFER_MIN {
            return None;
        }
        match mem::take(&mut self.sink) {
            DataSink::Append(buf) => {
                self.sink = DataSink::TakenByDriver { filled: buf.len() };
                Some(RxBuffer { buf, len_max: self.missing })
            }
            other => {
                self.sink = other;
                None
            }
        }
    }

    /// Takes a receive buffer back and returns how many bytes the driver received into it. Bytes beyond the
    /// data segment are discarded.
    pub fn return_rx_buffer(&mut self, rx_buffer: RxBuffer) -> usize {
        let DataSink::TakenByDriver { filled } = self.sink else { return 0 };
        let mut buf = rx_buffer.buf;
        buf.truncate(filled.saturating_add(self.missing));
        let brought = buf.filled().get(filled..).unwrap_or_default();
        let len = brought.len();
        if self.framing.data_digest {
            self.crc.update(brought);
        }
        self.missing -= len;
        self.sink = DataSink::Append(buf);
        len
    }

    /// Gives up the present PDU and returns the destination of its data.
    pub fn discard_pdu(&mut self) -> DataSink {
        mem::take(&mut self.sink)
    }

    /// Reads a header. Returns `None` when the PDU is to be dropped: its data segment follows.
    fn header(&mut self, bytes: &mut &[u8]) -> Result<Option<FramingEvent>, StreamError> {
        if self.staged.is_empty()
            && let Some((bhs, _)) = bytes.split_first_chunk::<BHS_LEN>()
        {
            let bhs = Bhs::from_bytes(*bhs);
            let plain = bhs.ahs_len() == 0 || !self.framing.resync;
            if plain && let Some((whole, rest)) = bytes.split_at_checked(self.header_len(&bhs)) {
                *bytes = rest;
                return self.check_header(bhs, whole);
            }
        }
        while let Some(want) = self.header_want() {
            let Some((part, rest)) = bytes.split_at_checked(want.min(bytes.len())) else { break };
            if part.is_empty() {
                return Ok(Some(FramingEvent::NeedMoreBytes));
            }
            self.staged.extend_from_slice(part);
            *bytes = rest;
            if self.framing.resync && self.staged.len() == BHS_LEN + DIGEST_LEN && self.has_no_ahs() {
                self.staged.clear();
                return Ok(None);
            }
        }
        let whole = mem::take(&mut self.staged);
        let Some(bhs) = whole.first_chunk::<BHS_LEN>() else { return Ok(Some(FramingEvent::NeedMoreBytes)) };
        self.check_header(Bhs::from_bytes(*bhs), &whole)
    }

    /// Returns how many bytes of the header are missing up to the next point at which a decision is possible,
    /// or `None` once the header is complete.
    fn header_want(&self) -> Option<usize> {
        let have = self.staged.len();
        let whole = match self.staged.first_chunk::<BHS_LEN>() {
            Some(bhs) if self.framing.header_digest && have < BHS_LEN + DIGEST_LEN => {
                // Additional header segments are announced: the digest of a header without them would be
                // here.
                self.header_len(&Bhs::from_bytes(*bhs)).min(BHS_LEN + DIGEST_LEN)
            }
            Some(bhs) => self.header_len(&Bhs::from_bytes(*bhs)),
            None => BHS_LEN,
        };
        whole.checked_sub(have).filter(|want| *want > 0)
    }

    fn header_len(&self, bhs: &Bhs) -> usize {
        let digest = match &self.opener {
            None if self.framing.header_digest => DIGEST_LEN,
            None => 0,
            Some(_) => TAG_LEN,
        };
        BHS_LEN + bhs.ahs_len() + digest
    }

    /// Checks whether the present header announces additional header segments only because that one bit is
    /// wrong, and if so begins to drop the PDU.
    fn has_no_ahs(&mut self) -> bool {
        let Some((bhs, digest)) = self.staged.split_first_chunk::<BHS_LEN>() else { return false };
        let announced = Bhs::from_bytes(*bhs);
        let bhs = announced.with_ahs_len(0);
        let one_bit = (announced.ahs_len() / 4).is_power_of_two();
        if !self.framing.header_digest || !one_bit || Crc32c::of(bhs.bytes()) != digest {
            return false;
        }
        self.drop_pdu(bhs).is_ok()
    }

    /// Checks a complete header against its digest and the length limit.
    fn check_header(&mut self, bhs: Bhs, whole: &[u8]) -> Result<Option<FramingEvent>, StreamError> {
        if self.opener.is_some() {
            return self.open_header(whole).map(Some);
        }
        let (segments, digest) = whole.split_at_checked(BHS_LEN + bhs.ahs_len()).unwrap_or_default();
        let checked = self.framing.header_digest && !fault_injection::is_injected(Bug::SkipHeaderDigest);
        //= rfc7143#section-7.8
        //# When a target or an initiator receives any iSCSI PDU with a header digest error, it MUST either
        //# discard the header and all data up to the beginning of a later PDU or close the connection.
        if checked && *digest != Crc32c::of(segments) {
            return self.resync(bhs, segments, digest).map(|()| None);
        }
        self.accept_header(bhs, segments.get(BHS_LEN..).unwrap_or_default()).map(Some)
    }

    /// Accepts a header whose digest is right or absent, if it announces no data segment that is too long.
    fn accept_header(&mut self, bhs: Bhs, ahs: &[u8]) -> Result<FramingEvent, StreamError> {
        if bhs.data_len() > self.framing.data_len_max {
            return Err(StreamError::TooLong);
        }
        self.ahs.clear();
        self.ahs.extend_from_slice(ahs);
        self.bhs = bhs;
        self.state = State::AwaitingSink;
        Ok(FramingEvent::Header(bhs))
    }

    /// Determines the length of the PDU of a damaged header, and begins to drop the PDU.
    fn resync(&mut self, bhs: Bhs, segments: &[u8], digest: &[u8]) -> Result<(), StreamError> {
        let digest = digest.first_chunk().copied().filter(|_| self.framing.resync);
        let mut bytes = *bhs.bytes();
        match single_flip(segments, digest.ok_or(StreamError::HeaderDigest)?) {
            // The wrong byte is the one by which the segments were cut.
            Some(Flipped::Byte(TOTAL_AHS_LENGTH, _)) | None => return Err(StreamError::HeaderDigest),
            Some(Flipped::Byte(at, mask)) => {
                if let Some(byte) = bytes.get_mut(at) {
                    *byte ^= mask;
                }
            }
            Some(Flipped::Digest) => {}
        }
        self.drop_pdu(Bhs::from_bytes(bytes))
    }

    /// Begins to read the PDU of this header, as it was before the damage, to its end and to discard it.
    fn drop_pdu(&mut self, bhs: Bhs) -> Result<(), StreamError> {
        if bhs.data_len() > self.framing.data_len_max {
            return Err(StreamError::HeaderDigest);
        }
        self.ahs.clear();
        self.bhs = bhs;
        self.damaged = true;
        self.set_sink(DataSink::Discard);
        Ok(())
    }

    fn data(&mut self, data: &[u8]) {
        if self.framing.data_digest {
            self.crc.update(data);
        }
        match &mut self.sink {
            DataSink::Append(buf) => {
                buf.append(data);
            }
            DataSink::Overwrite { buf, at } => {
                let end = at.saturating_add(data.len());
                if let Some(room) = buf.filled_mut().get_mut(*at..end) {
                    room.copy_from_slice(data);
                }
                *at = end;
            }
            DataSink::Discard | DataSink::TakenByDriver { .. } => {}
        }
        self.missing -= data.len();
    }

    fn trailer(&mut self, bytes: &mut &[u8]) -> Result<FramingEvent, StreamError> {
        let data_len = usize::try_from(self.bhs.data_len()).unwrap_or(usize::MAX);
        let padding = data_len.wrapping_neg() % 4;
        let digest = match &self.opener {
            _ if data_len == 0 => 0,
            None if self.framing.data_digest => DIGEST_LEN,
            None => 0,
            Some(_) => TAG_LEN,
        };
        let whole = padding + digest;
        let take = whole.saturating_sub(self.trailer_len).min(bytes.len());
        if let Some((part, rest)) = bytes.split_at_checked(take) {
            let room = self.trailer.get_mut(self.trailer_len..self.trailer_len + take);
            if let Some(room) = room {
                room.copy_from_slice(part);
            }
            self.trailer_len += take;
            *bytes = rest;
        }
        if self.trailer_len < whole {
            return Ok(FramingEvent::NeedMoreBytes);
        }
        self.state = State::Header;
        if mem::take(&mut self.damaged) {
            return Ok(FramingEvent::Damaged);
        }
        if self.opener.is_some() && digest > 0 {
            return self.open_in_sink(padding);
        }
        let (pad, sent) =
            self.trailer.get(..whole).unwrap_or_default().split_at_checked(padding).unwrap_or_default();
        let intact = digest == 0 || fault_injection::is_injected(Bug::SkipDataDigest) || {
            let mut crc = self.crc;
            if !pad.is_empty() {
                crc.update(pad);
            }
            sent == crc.finish()
        };
        Ok(self.received(intact))
    }

    /// Returns the present PDU, which was read to its end.
    fn received(&mut self, digest_ok: bool) -> FramingEvent {
        FramingEvent::Pdu(ReceivedPdu { bhs: self.bhs, sink: mem::take(&mut self.sink), digest_ok })
    }
}
