//! The replies of a server: which requests are under way, and what the bytes of the stream answer to them.
//!
//! Nothing that a server sends is trusted: each length is compared with the request, each byte of a read is
//! accepted once, and each reply must belong to a request that is under way.

use alloc::collections::VecDeque;
use alloc::vec::Vec;

use base::buffer::{Buf, Bytes, Pool};
use base::bytes::{Reader, UnexpectedEof};
use base::int_cast::{to_u64, to_usize};
use base::state_machine::RxBuffer;
use base::time::Instant;
use store::api::Failure;

use super::coverage::Coverage;
use super::error::ProtocolError;
use crate::wire::{
    CHUNK_BLOCK_STATUS, CHUNK_ERROR_OFFSET, CHUNK_NONE, CHUNK_OFFSET_DATA, CHUNK_OFFSET_HOLE, Cmd, Errno,
    ReplyHeader, WrongMagic,
};

/// The most requests under way. nbdkit works on 16 at a time, and qemu-nbd on 16; the others hide the time
/// that the network takes.
pub(super) const REQUESTS_MAX: usize = 64;

/// The longest error chunk: an error number and a message of at most 4096 bytes, and an offset.
const ERROR_LEN_MAX: u32 = 8 << 10;

/// The most descriptors in one block status: as many as qemu-nbd sends (1 MiB).
const DESCRIPTORS_MAX: u32 = 128 << 10;

/// A shorter rest of a payload is not worth a receive of its own.
const IN_PLACE_MIN: usize = 4096;

/// A request whose reply is awaited.
#[derive(Debug)]
struct Pending<W> {
    cookie: u64,
    command: Cmd,
    at: u64,
    len: u32,
    work: W,
    /// When the request was sent.
    since: Instant,
    /// The buffer of a read; `None` for other commands, and while the driver receives into it.
    buf: Option<Buf>,
    coverage: Coverage,
    extents: Option<Vec<(u32, u32)>>,
    error: Option<ReplyError>,
}

/// An error that a server reported.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ReplyError {
    pub(super) errno: Errno,
    /// The offset of the first byte that failed, if the server knows it.
    at: Option<u64>,
}

impl ReplyError {
    pub(super) const fn failure(self) -> Failure {
        Failure { fault: self.errno.fault(), at: self.at }
    }
}

/// A request that ended.
#[derive(Debug)]
pub(super) struct Ended<W> {
    pub(super) work: W,
    pub(super) at: u64,
    pub(super) len: u32,
    pub(super) result: Result<Reply, ReplyError>,
}

/// What a request that succeeded returns.
#[derive(Debug)]
pub(super) enum Reply {
    Done,
    Data(Bytes),
    /// Lengths and flags.
    Extents(Vec<(u32, u32)>),
}

/// What the next bytes of the stream are.
#[derive(Clone, Copy, Debug)]
enum Rx {
    Header,
    /// The content of a chunk, or, of a chunk with data, the offset before the data.
    Content {
        slot: usize,
        kind: u16,
        len: u32,
        is_last: bool,
    },
    /// Data of a read, which belong at `at` in its buffer.
    Data {
        slot: usize,
        at: usize,
        left: usize,
        is_last: bool,
    },
}

/// The requests under way, and the position in the stream of replies.
#[derive(Debug)]
pub(super) struct Replies<W> {
    slots: Vec<Option<Pending<W>>>,
    open: usize,
    /// The number of requests sent so far, which makes each cookie a new one.
    sent: u64,
    rx: Rx,
    /// The bytes of a header or of a content that is not complete.
    input: Vec<u8>,
    ended: VecDeque<Ended<W>>,
    structured: bool,
    allocation_id: Option<u32>,
}

impl<W> Replies<W> {
    pub(super) fn new() -> Self {
        let slots = core::iter::repeat_with(|| None).take(REQUESTS_MAX).collect();
        Self {
            slots,
            open: 0,
            sent: 0,
            rx: Rx::Header,
            input: Vec::new(),
            ended: VecDeque::new(),
            structured: false,
            allocation_id: None,
        }
    }

    /// Begins a new connection. No request is under way.
    pub(super) fn reset(&mut self, structured: bool, allocation_id: Option<u32>, pool: &Pool) {
        for pending in self.slots.iter_mut().filter_map(Option::take) {
            if let Some(buf) = pending.buf {
                pool.recycle_buf(buf);
            }
        }
        (self.open, self.rx) = (0, Rx::Header);
        self.input.clear();
        self.ended.clear();
        (self.structured, self.allocation_id) = (structured, allocation_id);
    }

    pub(super) const fn is_idle(&self) -> bool {
        self.open == 0
    }

    /// Returns whether no request is under way, and the next byte of the stream begins a reply.
    pub(super) fn is_at_rest(&self) -> bool {
        self.is_idle() && matches!(self.rx, Rx::Header) && self.input.is_empty() && self.ended.is_empty()
    }

    pub(super) fn is_full(&self) -> bool {
        self.open >= self.slots.len()
    }

    /// Returns the lowest cookie of certain requests under way. A later request has a higher one.
    pub(super) fn first_under_way(&self, is_meant: impl Fn(&W) -> bool) -> Option<u64> {
        self.cookies(is_meant).min()
    }

    /// Returns the highest cookie of certain requests under way.
    pub(super) fn last_under_way(&self, is_meant: impl Fn(&W) -> bool) -> Option<u64> {
        self.cookies(is_meant).max()
    }

    fn cookies(&self, is_meant: impl Fn(&W) -> bool) -> impl Iterator<Item = u64> {
        let pending = self.slots.iter().flatten();
        pending.filter(move |pending| is_meant(&pending.work)).map(|pending| pending.cookie)
    }

    /// Returns when the oldest of certain requests under way was sent.
    pub(super) fn oldest(&self, is_meant: impl Fn(&W) -> bool) -> Option<Instant> {
        self.slots
            .iter()
            .flatten()
            .filter(|pending| is_meant(&pending.work))
            .map(|pending| pending.since)
            .min()
    }

    /// Registers a request, with the buffer of a read. Returns its cookie; `None` if too many are under way.
    pub(super) fn register(
        &mut self,
        since: Instant,
        command: Cmd,
        (at, len): (u64, u32),
        buf: Option<Buf>,
        work: W,
    ) -> Option<u64> {
        let slot = self.slots.iter().position(Option::is_none)?;
        self.sent = self.sent.wrapping_add(1);
        let cookie = self.sent << 8 | to_u64(slot);
        let (coverage, extents, error) = (Coverage::default(), None, None);
        let pending = Pending { cookie, command, at, len, work, since, buf, coverage, extents, error };
        if let Some(place) = self.slots.get_mut(slot) {
            *place = Some(pending);
            self.open += 1;
        }
        Some(cookie)
    }

    /// Returns the next request that ended.
    pub(super) fn next_ended(&mut self) -> Option<Ended<W>> {
        self.ended.pop_front()
    }

    /// Handles received bytes.
    ///
    /// # Errors
    /// [`ProtocolError`]; the connection must be ended.
    pub(super) fn received(&mut self, mut bytes: &[u8]) -> Result<(), ProtocolError> {
        loop {
            match self.rx {
                Rx::Header => {
                    if bytes.is_empty() {
                        return Ok(());
                    }
                    // The kinds of replies differ in length, and both are longer than a word.
                    if !self.gather(&mut bytes, 4) {
                        return Ok(());
                    }
                    let Some(header) = self.header(&mut bytes)? else { return Ok(()) };
                    self.input.clear();
                    self.begin(header)?;
                }
                Rx::Content { slot, kind, len, is_last } => {
                    let want = if kind == CHUNK_OFFSET_DATA { 8 } else { to_usize(len) };
                    if !self.gather(&mut bytes, want) {
                        return Ok(());
                    }
                    let content = core::mem::take(&mut self.input);
                    self.content(slot, kind, (len, is_last), &content)?;
                    self.input = content;
                    self.input.clear();
                }
                Rx::Data { slot, at, left, is_last } => {
                    let Some((data, rest)) = bytes.split_at_checked(left.min(bytes.len())) else {
                        return Ok(());
                    };
                    if data.is_empty() && left > 0 {
                        return Ok(());
                    }
                    if let Some(buf) = self.pending(slot).and_then(|pending| pending.buf.as_mut()) {
                        put(buf, at, data);
                    }
                    bytes = rest;
                    self.advance(slot, at, (left, data.len()), is_last)?;
                }
            }
        }
    }

    /// Handles the reply to one request, which did not come as bytes. `fill` appends the data of a read.
    ///
    /// # Errors
    /// [`ProtocolError`]; the connection must be ended.
    pub(super) fn replied(
        &mut self,
        cookie: u64,
        result: Result<(), Errno>,
        fill: impl FnOnce(&mut Buf),
    ) -> Result<(), ProtocolError> {
        let (slot, _) = self.slot_of(cookie)?;
        if let Some(pending) = self.pending(slot) {
            match (result, pending.buf.as_mut()) {
                (Err(errno), _) => pending.error = Some(ReplyError { errno, at: None }),
                (Ok(()), Some(buf)) => {
                    fill(buf);
                    if buf.len() != to_usize(pending.len) {
                        return Err(ProtocolError::DataMissing);
                    }
                    pending.coverage.add(0, pending.len)?;
                }
                (Ok(()), None) => {}
            }
        }
        self.end(slot)
    }

    /// Lends the buffer that the next bytes belong into.
    pub(super) fn take_rx_buffer(&mut self) -> Option<RxBuffer> {
        let Rx::Data { slot, at, left, .. } = self.rx else { return None };
        let buf = &mut self.pending(slot)?.buf;
        if left < IN_PLACE_MIN || buf.as_ref()?.len() != at {
            return None;
        }
        Some(RxBuffer { buf: buf.take()?, len_max: left })
    }

    /// Takes back a buffer.
    ///
    /// # Errors
    /// [`ProtocolError`]; the connection must be ended.
    pub(super) fn return_rx_buffer(&mut self, rx_buffer: RxBuffer, pool: &Pool) -> Result<(), ProtocolError> {
        let RxBuffer { buf, .. } = rx_buffer;
        let Rx::Data { slot, at, left, is_last } = self.rx else {
            pool.recycle_buf(buf);
            return Ok(());
        };
        let Some(pending) = self.pending(slot).filter(|pending| pending.buf.is_none()) else {
            pool.recycle_buf(buf);
            return Ok(());
        };
        let got = buf.len().saturating_sub(at).min(left);
        pending.buf = Some(buf);
        if got == 0 { Ok(()) } else { self.advance(slot, at, (left, got), is_last) }
    }

    /// Moves bytes to the input until it holds `want`. Returns whether it does.
    fn gather(&mut self, bytes: &mut &[u8], want: usize) -> bool {
        let missing = want.saturating_sub(self.input.len()).min(bytes.len());
        if let Some((taken, rest)) = bytes.split_at_checked(missing) {
            self.input.extend_from_slice(taken);
            *bytes = rest;
        }
        self.input.len() >= want
    }

    fn header(&mut self, bytes: &mut &[u8]) -> Result<Option<ReplyHeader>, ProtocolError> {
        let wrong = |WrongMagic| ProtocolError::NotAReply;
        for want in [ReplyHeader::SIMPLE_LEN, ReplyHeader::CHUNK_LEN] {
            // Bytes that begin with no magic number are refused at the first word.
            if let Some((header, _)) = ReplyHeader::parse(&self.input).transpose().map_err(wrong)? {
                return Ok(Some(header));
            }
            if !self.gather(bytes, want) {
                return Ok(None);
            }
        }
        let parsed = ReplyHeader::parse(&self.input).transpose().map_err(wrong)?;
        Ok(parsed.map(|(header, _)| header))
    }

    /// Returns the slot of a request under way.
    fn slot_of(&self, cookie: u64) -> Result<(usize, &Pending<W>), ProtocolError> {
        let slot = to_usize(cookie & 0xff);
        let pending = self.slots.get(slot).and_then(Option::as_ref);
        match pending.filter(|pending| pending.cookie == cookie) {
            Some(pending) => Ok((slot, pending)),
            None => Err(ProtocolError::UnknownCookie),
        }
    }

    fn begin(&mut self, header: ReplyHeader) -> Result<(), ProtocolError> {
        match header {
            ReplyHeader::Simple { cookie, error } => {
                let (slot, pending) = self.slot_of(cookie)?;
                let (command, len) = (pending.command, pending.len);
                let needs_chunks = command == Cmd::BLOCK_STATUS && error.is_none();
                if needs_chunks || (command == Cmd::READ && self.structured) {
                    return Err(ProtocolError::UnexpectedSimpleReply);
                }
                if let Some(errno) = error {
                    if let Some(pending) = self.pending(slot) {
                        pending.error = Some(ReplyError { errno, at: None });
                    }
                    return self.end(slot);
                }
                if command != Cmd::READ {
                    return self.end(slot);
                }
                if let Some(pending) = self.pending(slot) {
                    pending.coverage.add(0, len)?;
                }
                self.rx = Rx::Data { slot, at: 0, left: to_usize(len), is_last: true };
            }
            ReplyHeader::Chunk { cookie, is_last, kind, len } => {
                if !self.structured {
                    return Err(ProtocolError::UnexpectedChunk);
                }
                let (slot, pending) = self.slot_of(cookie)?;
                let is_read = pending.command == Cmd::READ;
                let fits = match kind {
                    CHUNK_NONE => is_last && len == 0,
                    CHUNK_OFFSET_DATA if is_read => len > 8 && len - 8 <= pending.len,
                    CHUNK_OFFSET_HOLE if is_read => len == 12,
                    CHUNK_BLOCK_STATUS if pending.command == Cmd::BLOCK_STATUS => {
                        len % 8 == 4 && (12..=4 + 8 * DESCRIPTORS_MAX).contains(&len)
                    }
                    // Kinds of errors that are not known yet begin like the known ones.
                    kind if kind & 0x8000 != 0 => (6..=ERROR_LEN_MAX).contains(&len),
                    _ => return Err(ProtocolError::WrongChunk),
                };
                if !fits {
                    return Err(ProtocolError::ChunkLength);
                }
                self.rx = Rx::Content { slot, kind, len, is_last };
            }
        }
        Ok(())
    }

    /// Handles the content of a chunk; of a chunk with data, the offset before them.
    fn content(
        &mut self,
        slot: usize,
        kind: u16,
        (len, is_last): (u32, bool),
        content: &[u8],
    ) -> Result<(), ProtocolError> {
        let allocation_id = self.allocation_id;
        let malformed = |UnexpectedEof| ProtocolError::ChunkLength;
        let pending = self.pending(slot).ok_or(ProtocolError::UnknownCookie)?;
        let mut reader = Reader::new(content);
        match kind {
            CHUNK_NONE => {}
            CHUNK_OFFSET_DATA => {
                let data_len = len.saturating_sub(8);
                let at = pending.cover(reader.u64().map_err(malformed)?, data_len)?;
                self.rx = Rx::Data { slot, at, left: to_usize(data_len), is_last };
                return Ok(());
            }
            CHUNK_OFFSET_HOLE => {
                let (at, hole) = (reader.u64().map_err(malformed)?, reader.u32().map_err(malformed)?);
                let at = pending.cover(at, hole)?;
                if let Some(buf) = pending.buf.as_mut() {
                    put_zeros(buf, at, to_usize(hole));
                }
            }
            CHUNK_BLOCK_STATUS => {
                let id = reader.u32().map_err(malformed)?;
                if Some(id) != allocation_id || pending.extents.is_some() {
                    return Err(ProtocolError::BadBlockStatus);
                }
                let mut extents = Vec::with_capacity(reader.remaining() / 8);
                while !reader.is_empty() {
                    let (len, flags) = (reader.u32().map_err(malformed)?, reader.u32().map_err(malformed)?);
                    if len == 0 {
                        return Err(ProtocolError::BadBlockStatus);
                    }
                    extents.push((len, flags));
                }
                pending.extents = Some(extents);
            }
            kind => {
                let (number, message_len) =
                    (reader.u32().map_err(malformed)?, reader.u16().map_err(malformed)?);
                reader.take(usize::from(message_len)).map_err(malformed)?;
                let mut at = None;
                if kind == CHUNK_ERROR_OFFSET {
                    let offset = reader.u64().map_err(malformed)?;
                    if offset < pending.at || offset - pending.at >= u64::from(pending.len) {
                        return Err(ProtocolError::ChunkOutsideRequest);
                    }
                    at = Some(offset);
                }
                // An error chunk must not have the number of success.
                let errno = if number == 0 { Errno::IO } else { Errno(number) };
                pending.error.get_or_insert(ReplyError { errno, at });
            }
        }
        self.rx = Rx::Header;
        if is_last { self.end(slot) } else { Ok(()) }
    }

    /// Handles the progress of a chunk with data: `got` of the `left` bytes are in the buffer.
    fn advance(
        &mut self,
        slot: usize,
        at: usize,
        (left, got): (usize, usize),
        is_last: bool,
    ) -> Result<(), ProtocolError> {
        if got < left {
            self.rx = Rx::Data { slot, at: at + got, left: left - got, is_last };
            return Ok(());
        }
        self.rx = Rx::Header;
        if is_last { self.end(slot) } else { Ok(()) }
    }

    /// Ends a request.
    fn end(&mut self, slot: usize) -> Result<(), ProtocolError> {
        self.rx = Rx::Header;
        let Some(pending) = self.slots.get_mut(slot).and_then(Option::take) else { return Ok(()) };
        self.open -= 1;
        let Pending { command, at, len, work, buf, coverage, extents, error, .. } = pending;
        let result = match (error, command) {
            (Some(error), _) => Err(error),
            (None, Cmd::READ) => match buf {
                Some(buf) if coverage.is_whole(len) => Ok(Reply::Data(buf.freeze().slice(0, to_usize(len)))),
                _ => return Err(ProtocolError::DataMissing),
            },
            (None, Cmd::BLOCK_STATUS) => match extents {
                Some(extents) => Ok(Reply::Extents(extents)),
                None => return Err(ProtocolError::DataMissing),
            },
            (None, _) => Ok(Reply::Done),
        };
        self.ended.push_back(Ended { work, at, len, result });
        Ok(())
    }

    fn pending(&mut self, slot: usize) -> Option<&mut Pending<W>> {
        self.slots.get_mut(slot).and_then(Option::as_mut)
    }
}

impl<W> Pending<W> {
    /// Records that the range of a chunk is answered. Returns its position in the buffer.
    fn cover(&mut self, at: u64, len: u32) -> Result<usize, ProtocolError> {
        let start = at.checked_sub(self.at).and_then(|start| u32::try_from(start).ok());
        let start = start.ok_or(ProtocolError::ChunkOutsideRequest)?;
        if len == 0 {
            return Err(ProtocolError::ChunkLength);
        }
        if start.checked_add(len).is_none_or(|end| end > self.len) {
            return Err(ProtocolError::ChunkOutsideRequest);
        }
        self.coverage.add(start, len)?;
        Ok(to_usize(start))
    }
}

/// Puts data at a position of a buffer. A gap before the position is filled with zeros, until its data come.
fn put(buf: &mut Buf, at: usize, data: &[u8]) {
    let room = room(buf, at, data.len());
    if let Some(room) = room {
        room.copy_from_slice(data);
    } else {
        buf.append(data);
    }
}

fn put_zeros(buf: &mut Buf, at: usize, len: usize) {
    if let Some(room) = room(buf, at, len) {
        room.fill(0);
    } else {
        buf.append_zeros(len);
    }
}

/// Returns the place in a buffer; `None` if it is the end of what is filled.
fn room(buf: &mut Buf, at: usize, len: usize) -> Option<&mut [u8]> {
    let filled = buf.len();
    if filled == at {
        return None;
    }
    buf.append_zeros((at + len).saturating_sub(filled));
    buf.filled_mut().get_mut(at..at + len)
}
