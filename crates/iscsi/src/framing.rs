//! Framing: from a byte stream to PDUs (RFC 7143 §11.1).
//!
//! A PDU is a basic header, additional header segments, a header digest, a data segment, padding to four bytes and
//! a data digest; only the basic header is always there. [`Receiver`] reads one after the other and keeps no more
//! than a header of its own: once a header is whole and its digest is right, whoever drives it says where the data
//! segment belongs ([`Receiver::set_sink`]), and the bytes go there and nowhere else. A large segment can be lent out
//! ([`Receiver::take_rx_buffer`]), so that the kernel puts the bytes in place.
//!
//! It serves both roles and knows nothing of what PDUs mean.
//!
//! # After a header digest error
//!
//! RFC 7143 §7.8 leaves two ways: close the connection, or go on at the beginning of a later PDU if that can be
//! ascertained by other means than the length fields of the damaged header. The digest itself is such a means: if one
//! flipped bit explains it, that bit is known with certainty ([`crate::digest::single_flip`]), and with it the true
//! lengths. So, where [`Framing::resync`] allows it, a PDU whose header has one wrong bit is read to its end and
//! dropped ([`FramingEvent::Damaged`]); nothing of it is used but its length. Anything worse ends the stream, as every such
//! error does at ErrorRecoveryLevel 0.
//!
//! Two things are deliberately not done. The lengths of a damaged header are not simply tried: they are wrong in one
//! of thirteen cases, and then the next bytes are data, which whoever writes to a disk chooses. For the same reason
//! the stream is not searched for something that looks like a header with a fitting digest: a guest that stores a
//! captured PDU on its disk would have it executed.

use alloc::vec::Vec;
use core::mem;

use base::buffer::Buf;
use base::fault_injection::{self, Bug};
use base::state_machine::RxBuffer;
use smallvec::SmallVec;

use crate::digest::{Crc32c, DIGEST_LEN, Flipped, single_flip};
use crate::pdu::{BHS_LEN, Bhs};

/// A data segment is lent out when at least this much of it is missing: below, one receive into the read buffer
/// brings the next PDUs too, which saves more than the copy costs.
pub const RX_BUFFER_MIN: usize = 16 << 10;

/// How the PDUs of a connection are framed at present.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Framing {
    /// Whether headers carry a digest.
    pub header_digest: bool,
    /// Whether data segments carry a digest.
    pub data_digest: bool,
    /// The longest data segment that may come.
    pub data_len_max: u32,
    /// Whether a PDU with a damaged header is passed over if its length is certain.
    pub resync: bool,
}

/// Reads PDUs from a stream.
#[derive(Debug)]
pub struct Receiver {
    framing: Framing,
    state: State,
    bhs: Bhs,
    /// The header so far, while it comes in pieces.
    staged: SmallVec<[u8; 64]>,
    /// The additional header segments of the present PDU.
    ahs: Vec<u8>,
    /// Whether the present PDU is to be dropped because its header was damaged.
    damaged: bool,
    sink: DataSink,
    /// How much of the data segment is missing.
    missing: usize,
    crc: Crc32c,
    trailer: [u8; TRAILER_MAX],
    trailer_len: usize,
}

/// Where a data segment goes.
#[derive(Debug, Default)]
pub enum DataSink {
    /// Nowhere: it is read and forgotten.
    #[default]
    Discard,
    /// Behind what the buffer holds. It has room for the whole segment.
    Append(Buf),
    /// Over the filled bytes of the buffer, from `at` on.
    Overwrite {
        /// The buffer.
        buf: Buf,
        /// Where the next byte goes.
        at: usize,
    },
    /// Into a buffer that is lent out and held this many bytes when it went.
    TakenByDriver {
        /// How many.
        filled: usize,
    },
}

/// What the stream brought.
#[derive(Debug)]
pub enum FramingEvent {
    /// Nothing whole: more bytes are needed.
    NeedMoreBytes,
    /// A header. The next call must be [`Receiver::set_sink`].
    Header(Bhs),
    /// The rest of that PDU.
    Pdu(ReceivedPdu),
    /// A PDU whose header was damaged; it was read to its end and dropped.
    Damaged,
}

/// The end of a PDU.
#[derive(Debug)]
pub struct ReceivedPdu {
    /// The header again.
    pub bhs: Bhs,
    /// Where its data went.
    pub sink: DataSink,
    /// Whether the data digest was right, or absent.
    pub digest_ok: bool,
}

/// What ends the stream: the start of the next PDU cannot be found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StreamError {
    /// A header digest is wrong.
    HeaderDigest,
    /// A data segment is announced that is longer than allowed.
    TooLong,
    /// Bytes were handed in while a loan was out.
    RxBufferTaken,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Header,
    AwaitingSink,
    Data,
    Trailer,
}

/// Where a header says how long its additional segments are (RFC 7143 §11.2.1.5).
const TOTAL_AHS_LENGTH: usize = 4;

/// Padding and digest.
const TRAILER_MAX: usize = 3 + DIGEST_LEN;

impl Receiver {
    /// Starts at the front of a PDU.
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
            trailer: [0; TRAILER_MAX],
            trailer_len: 0,
        }
    }

    /// Frames the PDUs behind the present one in another way.
    pub const fn set_framing(&mut self, framing: Framing) {
        self.framing = framing;
    }

    /// Returns whether no PDU has begun that is not whole.
    pub fn is_between_pdus(&self) -> bool {
        self.state == State::Header && self.staged.is_empty()
    }

    /// Returns the additional header segments of the present PDU, from its header to its end.
    pub fn ahs(&self) -> &[u8] {
        &self.ahs
    }

    /// Reads on in `bytes` and moves it past what was read.
    ///
    /// # Errors
    /// What makes the rest of the stream unreadable.
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
                State::Trailer => return Ok(self.trailer(bytes)),
            }
        }
    }

    /// Says where the data segment of the header that [`Self::advance`] just gave belongs.
    pub fn set_sink(&mut self, landing: DataSink) {
        self.sink = landing;
        self.missing = usize::try_from(self.bhs.data_len()).unwrap_or(usize::MAX);
        self.crc = Crc32c::new();
        self.trailer_len = 0;
        self.state = State::Data;
    }

    /// Lends the buffer out that the next bytes belong into, if enough of them are missing.
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

    /// Takes a loan back and returns how many bytes it brought. More than were wanted are forgotten.
    pub fn return_rx_buffer(&mut self, loan: RxBuffer) -> usize {
        let DataSink::TakenByDriver { filled } = self.sink else { return 0 };
        let mut buf = loan.buf;
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

    /// Gives up the present PDU and returns where its data was going.
    pub fn discard_pdu(&mut self) -> DataSink {
        mem::take(&mut self.sink)
    }

    /// Reads a header. Returns nothing when the PDU is to be dropped: what follows is its data segment.
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

    /// Returns how many bytes of the header are missing, up to the next point where something can be decided, or
    /// `None` once it is whole.
    fn header_want(&self) -> Option<usize> {
        let have = self.staged.len();
        let whole = match self.staged.first_chunk::<BHS_LEN>() {
            Some(bhs) if self.framing.header_digest && have < BHS_LEN + DIGEST_LEN => {
                // Additional segments are announced: the digest of a header without them would stand here.
                self.header_len(&Bhs::from_bytes(*bhs)).min(BHS_LEN + DIGEST_LEN)
            }
            Some(bhs) => self.header_len(&Bhs::from_bytes(*bhs)),
            None => BHS_LEN,
        };
        whole.checked_sub(have).filter(|want| *want > 0)
    }

    fn header_len(&self, bhs: &Bhs) -> usize {
        BHS_LEN + bhs.ahs_len() + if self.framing.header_digest { DIGEST_LEN } else { 0 }
    }

    /// Finds out whether the header that is here announces additional segments only because that one bit is wrong,
    /// and if so starts to drop the PDU.
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

    /// Judges a whole header with its digest.
    fn check_header(&mut self, bhs: Bhs, whole: &[u8]) -> Result<Option<FramingEvent>, StreamError> {
        let (segments, digest) = whole.split_at_checked(BHS_LEN + bhs.ahs_len()).unwrap_or_default();
        let checked = self.framing.header_digest && !fault_injection::is_injected(Bug::SkipHeaderDigest);
        if checked && *digest != Crc32c::of(segments) {
            return self.resync(bhs, segments, digest).map(|()| None);
        }
        if bhs.data_len() > self.framing.data_len_max {
            return Err(StreamError::TooLong);
        }
        self.ahs.clear();
        self.ahs.extend_from_slice(segments.get(BHS_LEN..).unwrap_or_default());
        self.bhs = bhs;
        self.state = State::AwaitingSink;
        Ok(Some(FramingEvent::Header(bhs)))
    }

    /// Finds out how long the PDU of a damaged header is, and starts to drop it.
    fn resync(&mut self, bhs: Bhs, segments: &[u8], digest: &[u8]) -> Result<(), StreamError> {
        let digest = digest.first_chunk().copied().filter(|_| self.framing.resync);
        let mut bytes = *bhs.bytes();
        match single_flip(segments, digest.ok_or(StreamError::HeaderDigest)?) {
            // The segments were cut by the very byte that is wrong.
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

    /// Reads the PDU of this header, as it was before the damage, to its end without keeping anything.
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

    fn trailer(&mut self, bytes: &mut &[u8]) -> FramingEvent {
        let data_len = usize::try_from(self.bhs.data_len()).unwrap_or(usize::MAX);
        let padding = data_len.wrapping_neg() % 4;
        let digest = if self.framing.data_digest && data_len > 0 { DIGEST_LEN } else { 0 };
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
            return FramingEvent::NeedMoreBytes;
        }
        self.state = State::Header;
        if mem::take(&mut self.damaged) {
            return FramingEvent::Damaged;
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
        FramingEvent::Pdu(ReceivedPdu { bhs: self.bhs, sink: mem::take(&mut self.sink), digest_ok: intact })
    }
}
