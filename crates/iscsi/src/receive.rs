//! Framing: from a byte stream to PDUs (RFC 7143 §11.1).
//!
//! A PDU is a basic header, additional header segments, a header digest, a data segment, padding to four bytes and
//! a data digest; only the basic header is always there. [`Receiver`] reads one after the other and keeps no more
//! than a header of its own: once a header is whole and its digest is right, whoever drives it says where the data
//! segment belongs ([`Receiver::land`]), and the bytes go there and nowhere else. A large segment can be lent out
//! ([`Receiver::lend`]), so that the kernel puts the bytes in place.
//!
//! It serves both roles and knows nothing of what PDUs mean.

use alloc::vec::Vec;
use core::mem;

use base::buffer::Buf;
use base::machine::Loan;
use smallvec::SmallVec;

use crate::digest::{Crc32c, DIGEST_LEN};
use crate::pdu::{BHS_LEN, Bhs};

/// A data segment is lent out when at least this much of it is missing: below, one receive into the read buffer
/// brings the next PDUs too, which saves more than the copy costs.
pub const LOAN_MIN: usize = 16 << 10;

/// How the PDUs of a connection are framed at present.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Framing {
    /// Whether headers carry a digest.
    pub header_digest: bool,
    /// Whether data segments carry a digest.
    pub data_digest: bool,
    /// The longest data segment that may come.
    pub data_len_max: u32,
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
    landing: Landing,
    /// How much of the data segment is missing.
    missing: usize,
    crc: Crc32c,
    trailer: [u8; TRAILER_MAX],
    trailer_len: usize,
}

/// Where a data segment goes.
#[derive(Debug, Default)]
pub enum Landing {
    /// Nowhere: it is read and forgotten.
    #[default]
    Discard,
    /// Behind what the buffer holds. It has room for the whole segment.
    Append(Buf),
    /// Over the filled bytes of the buffer, from `at` on.
    Place {
        /// The buffer.
        buf: Buf,
        /// Where the next byte goes.
        at: usize,
    },
    /// Into a buffer that is lent out and held this many bytes when it went.
    Lent {
        /// How many.
        filled: usize,
    },
}

/// What the stream brought.
#[derive(Debug)]
pub enum Step {
    /// Nothing whole: more bytes are needed.
    Starved,
    /// A header. The next call must be [`Receiver::land`].
    Header(Bhs),
    /// The rest of that PDU.
    Whole(Segment),
}

/// The end of a PDU.
#[derive(Debug)]
pub struct Segment {
    /// The header again.
    pub bhs: Bhs,
    /// Where its data went.
    pub landing: Landing,
    /// Whether the data digest was right, or absent.
    pub intact: bool,
}

/// What ends the stream: the start of the next PDU cannot be found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lost {
    /// A header digest is wrong.
    HeaderDigest,
    /// A data segment is announced that is longer than allowed.
    TooLong,
    /// Bytes were handed in while a loan was out.
    Lent,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Header,
    Landing,
    Data,
    Trailer,
}

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
            landing: Landing::Discard,
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

    /// Returns the additional header segments of the present PDU, from its header to its end.
    pub fn ahs(&self) -> &[u8] {
        &self.ahs
    }

    /// Reads on in `bytes` and moves it past what was read.
    ///
    /// # Errors
    /// What makes the rest of the stream unreadable.
    pub fn advance(&mut self, bytes: &mut &[u8]) -> Result<Step, Lost> {
        loop {
            match self.state {
                State::Header => return self.header(bytes),
                State::Landing => return Ok(Step::Starved),
                State::Data => {
                    if matches!(self.landing, Landing::Lent { .. }) {
                        return if bytes.is_empty() { Ok(Step::Starved) } else { Err(Lost::Lent) };
                    }
                    let Some((data, rest)) = bytes.split_at_checked(self.missing.min(bytes.len())) else {
                        return Ok(Step::Starved);
                    };
                    *bytes = rest;
                    self.data(data);
                    if self.missing > 0 {
                        return Ok(Step::Starved);
                    }
                    self.state = State::Trailer;
                }
                State::Trailer => return Ok(self.trailer(bytes)),
            }
        }
    }

    /// Says where the data segment of the header that [`Self::advance`] just gave belongs.
    pub fn land(&mut self, landing: Landing) {
        self.landing = landing;
        self.missing = usize::try_from(self.bhs.data_len()).unwrap_or(usize::MAX);
        self.crc = Crc32c::new();
        self.trailer_len = 0;
        self.state = State::Data;
    }

    /// Lends the buffer out that the next bytes belong into, if enough of them are missing.
    pub fn lend(&mut self) -> Option<Loan> {
        if self.state != State::Data || self.missing < LOAN_MIN {
            return None;
        }
        match mem::take(&mut self.landing) {
            Landing::Append(buf) => {
                self.landing = Landing::Lent { filled: buf.len() };
                Some(Loan { buf, want: self.missing })
            }
            other => {
                self.landing = other;
                None
            }
        }
    }

    /// Takes a loan back and returns how many bytes it brought. More than were wanted are forgotten.
    pub fn repay(&mut self, loan: Loan) -> usize {
        let Landing::Lent { filled } = self.landing else { return 0 };
        let mut buf = loan.buf;
        buf.truncate(filled.saturating_add(self.missing));
        let brought = buf.filled().get(filled..).unwrap_or_default();
        let len = brought.len();
        if self.framing.data_digest {
            self.crc.update(brought);
        }
        self.missing -= len;
        self.landing = Landing::Append(buf);
        len
    }

    fn header(&mut self, bytes: &mut &[u8]) -> Result<Step, Lost> {
        if self.staged.is_empty()
            && let Some((bhs, _)) = bytes.split_first_chunk::<BHS_LEN>()
        {
            let bhs = Bhs::from_bytes(*bhs);
            if let Some((whole, rest)) = bytes.split_at_checked(self.header_len(&bhs)) {
                *bytes = rest;
                return self.check_header(bhs, whole);
            }
        }
        while let Some(want) = self.header_want() {
            let Some((part, rest)) = bytes.split_at_checked(want.min(bytes.len())) else { break };
            if part.is_empty() {
                return Ok(Step::Starved);
            }
            self.staged.extend_from_slice(part);
            *bytes = rest;
        }
        let whole = mem::take(&mut self.staged);
        let Some(bhs) = whole.first_chunk::<BHS_LEN>() else { return Ok(Step::Starved) };
        self.check_header(Bhs::from_bytes(*bhs), &whole)
    }

    /// Returns how many bytes of the header are missing, or `None` once it is whole.
    fn header_want(&self) -> Option<usize> {
        let have = self.staged.len();
        let whole = match self.staged.first_chunk::<BHS_LEN>() {
            Some(bhs) => self.header_len(&Bhs::from_bytes(*bhs)),
            None => BHS_LEN,
        };
        whole.checked_sub(have).filter(|want| *want > 0)
    }

    fn header_len(&self, bhs: &Bhs) -> usize {
        BHS_LEN + bhs.ahs_len() + if self.framing.header_digest { DIGEST_LEN } else { 0 }
    }

    /// Judges a whole header with its digest.
    fn check_header(&mut self, bhs: Bhs, whole: &[u8]) -> Result<Step, Lost> {
        let segments = whole.get(..BHS_LEN + bhs.ahs_len()).unwrap_or_default();
        if self.framing.header_digest && whole.get(segments.len()..) != Some(&Crc32c::of(segments)) {
            return Err(Lost::HeaderDigest);
        }
        if bhs.data_len() > self.framing.data_len_max {
            return Err(Lost::TooLong);
        }
        self.ahs.clear();
        self.ahs.extend_from_slice(segments.get(BHS_LEN..).unwrap_or_default());
        self.bhs = bhs;
        self.state = State::Landing;
        Ok(Step::Header(bhs))
    }

    fn data(&mut self, data: &[u8]) {
        if self.framing.data_digest {
            self.crc.update(data);
        }
        match &mut self.landing {
            Landing::Append(buf) => {
                buf.append(data);
            }
            Landing::Place { buf, at } => {
                let end = at.saturating_add(data.len());
                if let Some(room) = buf.filled_mut().get_mut(*at..end) {
                    room.copy_from_slice(data);
                }
                *at = end;
            }
            Landing::Discard | Landing::Lent { .. } => {}
        }
        self.missing -= data.len();
    }

    fn trailer(&mut self, bytes: &mut &[u8]) -> Step {
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
            return Step::Starved;
        }
        self.state = State::Header;
        let (pad, sent) =
            self.trailer.get(..whole).unwrap_or_default().split_at_checked(padding).unwrap_or_default();
        let intact = digest == 0 || {
            let mut crc = self.crc;
            if !pad.is_empty() {
                crc.update(pad);
            }
            sent == crc.finish()
        };
        Step::Whole(Segment { bhs: self.bhs, landing: mem::take(&mut self.landing), intact })
    }
}
