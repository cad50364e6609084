//! One client's session, as a state machine: received bytes in, operations on the medium out, their results
//! in, bytes to send out. It owns no socket and no medium.
//!
//! The driver calls [`Session::received`] (or [`Session::take_rx_buffer`] and [`Session::return_rx_buffer`])
//! and [`Session::completed`], then drains [`Session::poll`] and [`Session::transmit`]. It reads from the
//! socket only while [`Session::wants_input`] returns true.

mod refusal;

use std::collections::VecDeque;

use base::buffer::{Buf, Bytes, DataList, Pool};
use base::state_machine::RxBuffer;
use base::transmit::Transmit;
use store::api::{Capabilities, Durability, Extent, Failure, Fault, OpAction, OpOutput};

use ::nbd::wire::{
    Cmd, Errno, FIXED_NEWSTYLE, FLAG_FUA, FLAG_NO_HOLE, FLAG_REQ_ONE, Head, NO_ZEROES, Opt, OptionHeader,
    Rep, Request, WrongMagic, greeting,
};

use super::Export;
use super::block_status::descriptors;
use super::error::ProtocolError;
use super::handshake::{Negotiation, Next, Refusal};
use base::int_cast::{to_u32, to_u64, to_usize};

/// The longest payload, which every client may expect without a query.
pub(super) const PAYLOAD_LEN_MAX: usize = 32 << 20;
/// The longest data of an option. Options carry names of at most 4 KiB and lists of them; a longer option is
/// skipped and refused.
const OPTION_LEN_MAX: u32 = 64 << 10;
/// A client that has this many answers to options to read sends no further option.
const OPTION_ANSWERS_MAX: usize = 256;
/// The most requests of one client under way. QEMU keeps 16, the kernel 128 per connection.
const REQUESTS_MAX: usize = 256;
/// The bytes that one client's requests under way may hold before the session takes no further request. With
/// one more request, taken just below this bound, and one answer that is being sent, a client holds at most
/// three times this.
const HELD_BYTES_MAX: usize = PAYLOAD_LEN_MAX;
/// The length of the buffers in which payloads are received.
const BLOCK_LEN: usize = 1 << 20;
/// The most descriptors in one block status.
const EXTENTS_MAX: usize = 1024;

/// The ticket of an operation until its completion.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ticket(usize);

/// One client's session.
#[derive(Debug)]
pub struct Session {
    export: Export,
    profile: Capabilities,
    pool: Pool,
    phase: Phase,
    negotiation: Negotiation,
    /// Bytes that were received and are not parsed yet.
    input: Vec<u8>,
    shutting_down: bool,
    cut_off: Option<ProtocolError>,
    under_way: Vec<Option<UnderWay>>,
    free: Vec<usize>,
    held_bytes: usize,
    operations: VecDeque<(Ticket, OpAction)>,
    answers: VecDeque<Answer>,
    answer_bytes: usize,
}

/// What the next received bytes are.
#[derive(Debug)]
enum Phase {
    ClientFlags,
    Option,
    OptionData(OptionHeader),
    /// The data of an option that is too long; they are skipped.
    OptionSkipped {
        option: Opt,
        left: u64,
    },
    Request,
    Payload(WritePayload),
    /// The payload of a write that is refused; it is skipped.
    PayloadSkipped {
        left: u64,
        cookie: u64,
        error: Errno,
    },
    /// Nothing: the session ignores further bytes.
    End,
}

/// A write whose payload is being received.
#[derive(Debug)]
struct WritePayload {
    request: Request,
    durability: Durability,
    data: DataList,
    /// The buffer that is being filled; `None` while the driver has it.
    block: Option<Buf>,
    /// How many bytes it held when the driver took it.
    lent_at: usize,
    /// The bytes that are still to be received.
    left: usize,
}

/// A request that the medium executes.
#[derive(Debug)]
struct UnderWay {
    cookie: u64,
    held_bytes: usize,
    kind: Kind,
}

/// How a request is answered.
#[derive(Clone, Copy, Debug)]
enum Kind {
    /// With the data.
    Read { at: u64, len: u32 },
    /// With the extents, for at most this many bytes.
    Status { at: u64, len: u32 },
    /// With success or failure.
    Plain,
    /// As `Plain`, but only after a flush succeeded too.
    PlainThenFlush,
}

#[derive(Debug)]
struct Answer {
    head: Head,
    data: DataList,
}

impl Session {
    /// Starts a session. The first output is the server's greeting.
    pub fn new(export: Export, profile: Capabilities, pool: Pool) -> Self {
        let mut session = Self {
            export,
            profile,
            pool,
            phase: Phase::ClientFlags,
            negotiation: Negotiation::default(),
            input: Vec::new(),
            shutting_down: false,
            cut_off: None,
            under_way: Vec::new(),
            free: Vec::new(),
            held_bytes: 0,
            operations: VecDeque::new(),
            answers: VecDeque::new(),
            answer_bytes: 0,
        };
        session.say(&greeting());
        session
    }

    /// Records the present capabilities of the medium.
    pub fn medium_is(&mut self, profile: Capabilities) {
        self.profile = profile;
    }

    /// Returns whether the session can take more bytes now.
    pub fn wants_input(&self) -> bool {
        match self.phase {
            Phase::End => false,
            Phase::Request => !self.is_full(),
            Phase::Option | Phase::OptionData(_) | Phase::OptionSkipped { .. } => {
                self.answers.len() < OPTION_ANSWERS_MAX
            }
            Phase::ClientFlags | Phase::Payload(_) | Phase::PayloadSkipped { .. } => true,
        }
    }

    /// Handles received bytes.
    pub fn received(&mut self, bytes: &[u8]) {
        if matches!(self.phase, Phase::End) {
            return;
        }
        self.input.extend_from_slice(bytes);
        self.parse_input();
    }

    /// Gives the driver the buffer for the next bytes, if they are payload.
    pub fn take_rx_buffer(&mut self) -> Option<RxBuffer> {
        let Phase::Payload(incoming) = &mut self.phase else { return None };
        let buf = incoming.block.take().unwrap_or_else(|| self.pool.take(incoming.left.min(BLOCK_LEN)));
        incoming.lent_at = buf.len();
        let want = incoming.left.min(buf.capacity() - buf.len());
        Some(RxBuffer { buf, len_max: want })
    }

    /// Takes a buffer back, with the received bytes appended.
    pub fn return_rx_buffer(&mut self, rx_buffer: RxBuffer) {
        if let Phase::Payload(incoming) = &mut self.phase {
            let received = rx_buffer.buf.len().saturating_sub(incoming.lent_at);
            incoming.left = incoming.left.saturating_sub(received);
            incoming.block = Some(rx_buffer.buf);
        }
        self.block_filled();
    }

    /// Returns whether the client has not chosen the export yet.
    pub fn is_negotiating(&self) -> bool {
        matches!(
            self.phase,
            Phase::ClientFlags | Phase::Option | Phase::OptionData(_) | Phase::OptionSkipped { .. }
        )
    }

    /// Records that the client sends no more. A write with an incomplete payload is dropped.
    pub fn input_ended(&mut self) {
        self.phase = Phase::End;
        self.input = Vec::new();
    }

    /// Records that the connection is no longer usable: drops the operations that were not polled, and all
    /// that is to be sent.
    pub fn disconnected(&mut self) {
        self.input_ended();
        for (ticket, _) in std::mem::take(&mut self.operations) {
            if let Some(dropped) = self.under_way.get_mut(ticket.0).and_then(Option::take) {
                self.free.push(ticket.0);
                self.held_bytes = self.held_bytes.saturating_sub(dropped.held_bytes);
            }
        }
        self.answers.clear();
        self.answer_bytes = 0;
    }

    /// Refuses new requests from now on; those under way are still answered.
    pub fn shut_down(&mut self) {
        self.shutting_down = true;
    }

    /// Returns the next operation for the medium.
    pub fn poll(&mut self) -> Option<(Ticket, OpAction)> {
        self.operations.pop_front()
    }

    /// Handles the result of an operation.
    pub fn completed(&mut self, ticket: Ticket, result: Result<OpOutput, Failure>) {
        let Some(slot) = self.under_way.get_mut(ticket.0) else { return };
        if let (Some(UnderWay { kind: kind @ Kind::PlainThenFlush, .. }), Ok(_)) = (&mut *slot, &result) {
            *kind = Kind::Plain;
            self.operations.push_back((ticket, OpAction::Flush));
            return;
        }
        let Some(done) = slot.take() else { return };
        self.free.push(ticket.0);
        self.held_bytes = self.held_bytes.saturating_sub(done.held_bytes);
        match (done.kind, result) {
            (Kind::Read { at, len }, Ok(OpOutput::Data(data))) if to_u64(data.len()) == u64::from(len) => {
                let head = if self.negotiation.structured {
                    Head::offset_data(done.cookie, at, len)
                } else {
                    Head::simple(done.cookie, None)
                };
                self.push(head, data);
            }
            (Kind::Status { at, len }, Ok(OpOutput::MapStatus(extents))) => {
                self.status(done.cookie, at, len, &extents);
            }
            // Whether a range has storage is a hint: without an answer, the range counts as allocated.
            (Kind::Status { at, len }, Err(Failure { fault: Fault::Unsupported, .. })) => {
                self.status(done.cookie, at, len, &[]);
            }
            (Kind::Plain, Ok(outcome)) => {
                if let OpOutput::Done(data) | OpOutput::Data(data) = outcome {
                    data.into_parts().for_each(|part| self.pool.recycle(part));
                }
                self.answer(Head::simple(done.cookie, None));
            }
            (_, Err(failure)) => self.fail(done.cookie, Errno::of_fault(failure.fault), Some(failure)),
            // The result is of another kind than the operation.
            (_, Ok(_)) => self.fail(done.cookie, Errno::IO, None),
        }
        self.parse_input();
    }

    /// Appends bytes to send until `out` is full or nothing is left.
    pub fn transmit(&mut self, out: &mut Transmit) {
        while !out.is_full() {
            let Some(answer) = self.answers.pop_front() else { break };
            self.answer_bytes -= answer.data.len();
            out.put(answer.head.bytes());
            out.put_shared_list(answer.data);
        }
        // The session may have free slots now for a request that waited.
        self.parse_input();
    }

    /// Returns whether there are operations to poll.
    pub fn has_operations(&self) -> bool {
        !self.operations.is_empty()
    }

    /// Returns whether there are operations to poll, or something to transmit.
    pub fn has_output(&self) -> bool {
        self.has_operations() || !self.answers.is_empty()
    }

    /// Returns whether nothing is under way and nothing is to be sent.
    pub fn is_idle(&self) -> bool {
        self.under_way.len() == self.free.len() && !self.has_output()
    }

    /// Returns whether the session is over: the connection can be closed once what was transmitted is sent.
    pub fn is_over(&self) -> bool {
        matches!(self.phase, Phase::End) && self.is_idle()
    }

    /// Returns why the client was disconnected, if it broke a rule.
    pub const fn cut_off(&self) -> Option<ProtocolError> {
        self.cut_off
    }

    /// Parses as much of the input as the bounds allow.
    fn parse_input(&mut self) {
        let input = std::mem::take(&mut self.input);
        let mut at = 0;
        while let Some(consumed) = self.parse_next(input.get(at..).unwrap_or_default()) {
            at += consumed;
        }
        if matches!(self.phase, Phase::End) {
            return;
        }
        self.input = input;
        self.input.drain(..at);
    }

    /// Parses the next element of `input` and returns its length. Returns `None` when it needs more bytes, or
    /// when requests under way fill the bounds.
    fn parse_next(&mut self, input: &[u8]) -> Option<usize> {
        match &mut self.phase {
            Phase::ClientFlags => {
                let flags = u32::from_be_bytes(*input.first_chunk()?);
                if flags & !(FIXED_NEWSTYLE | NO_ZEROES) != 0 {
                    self.cut(ProtocolError::UnknownClientFlags);
                } else {
                    self.negotiation.no_zeroes = flags & NO_ZEROES != 0;
                    self.phase = Phase::Option;
                }
                Some(4)
            }
            Phase::Option => {
                match OptionHeader::parse(input)? {
                    Err(WrongMagic) => self.cut(ProtocolError::NotAnOption),
                    Ok(header) if header.len > OPTION_LEN_MAX => {
                        self.phase = Phase::OptionSkipped { option: header.option, left: header.len.into() };
                    }
                    Ok(header) => self.phase = Phase::OptionData(header),
                }
                Some(OptionHeader::LEN)
            }
            Phase::OptionData(header) => {
                let (option, len) = (header.option, to_usize(header.len));
                let data = input.get(..len)?;
                self.option(option, data);
                Some(len)
            }
            Phase::OptionSkipped { option, left } => {
                let (option, skipped) = (*option, skip(left, input)?);
                if skipped.ended {
                    let mut out = Vec::new();
                    Refusal(Rep::ERR_TOO_BIG, "this option is too long").reply(option, &mut out);
                    self.say(&out);
                    self.phase = Phase::Option;
                }
                Some(skipped.len)
            }
            Phase::Request => {
                if self.is_full() {
                    return None;
                }
                match Request::parse(input)? {
                    Err(WrongMagic) => self.cut(ProtocolError::NotARequest),
                    Ok(request) => self.request(request),
                }
                Some(Request::LEN)
            }
            Phase::Payload(incoming) => {
                let pool = &self.pool;
                let block = incoming.block.get_or_insert_with(|| pool.take(incoming.left.min(BLOCK_LEN)));
                let want = incoming.left.min(input.len());
                if want == 0 {
                    return None;
                }
                let taken = block.append(input.get(..want)?);
                incoming.left -= taken;
                self.block_filled();
                Some(taken)
            }
            Phase::PayloadSkipped { left, cookie, error } => {
                let (cookie, error, skipped) = (*cookie, *error, skip(left, input)?);
                if skipped.ended {
                    self.phase = Phase::Request;
                    self.fail(cookie, error, None);
                }
                Some(skipped.len)
            }
            Phase::End => None,
        }
    }

    fn option(&mut self, option: Opt, data: &[u8]) {
        let mut out = Vec::new();
        let next = if self.shutting_down && option != Opt::ABORT {
            Refusal(Rep::ERR_SHUTDOWN, "this server is shutting down").reply(option, &mut out);
            Next::Option
        } else {
            self.negotiation.option(&self.export, &self.profile, option, data, &mut out)
        };
        self.say(&out);
        self.phase = match next {
            Next::Option => Phase::Option,
            Next::Requests => Phase::Request,
            Next::End => Phase::End,
            Next::CutOff(why) => return self.cut(why),
        };
    }

    /// Accepts a request, or refuses it.
    fn request(&mut self, request: Request) {
        if request.command == Cmd::DISC {
            self.phase = Phase::End;
            return;
        }
        let refusal = self.refusal(&request);
        let durability = if request.flags & FLAG_FUA == 0 { Durability::Cached } else { Durability::Stable };
        if request.command == Cmd::WRITE {
            self.phase = match refusal {
                Some(error) => {
                    Phase::PayloadSkipped { left: request.len.into(), cookie: request.cookie, error }
                }
                None => {
                    self.held_bytes += to_usize(request.len);
                    let left = to_usize(request.len);
                    let data = DataList::new();
                    Phase::Payload(WritePayload { request, durability, data, block: None, lent_at: 0, left })
                }
            };
            // A payload of no bytes is complete already.
            if request.len == 0 {
                match refusal {
                    Some(error) => {
                        self.phase = Phase::Request;
                        self.fail(request.cookie, error, None);
                    }
                    None => self.block_filled(),
                }
            }
            return;
        }
        if let Some(error) = refusal {
            return self.fail(request.cookie, error, None);
        }
        let Request { at, len, .. } = request;
        let has = |flag: u16| request.flags & flag != 0;
        let (action, kind) = match request.command {
            Cmd::READ => (OpAction::Read { at, len: to_usize(len) }, Kind::Read { at, len }),
            // CACHE is a read without data in the reply: the medium may cache what was read, and nothing else
            // is promised.
            Cmd::CACHE => (OpAction::Read { at, len: to_usize(len) }, Kind::Plain),
            Cmd::FLUSH => (OpAction::Flush, Kind::Plain),
            Cmd::TRIM => {
                let kind = if has(FLAG_FUA) { Kind::PlainThenFlush } else { Kind::Plain };
                (OpAction::Deallocate { at, len: len.into() }, kind)
            }
            Cmd::WRITE_ZEROES => {
                let may_deallocate = !has(FLAG_NO_HOLE);
                (OpAction::WriteZeroes { at, len: len.into(), may_deallocate, durability }, Kind::Plain)
            }
            _ => {
                let count_max = if has(FLAG_REQ_ONE) { 1 } else { EXTENTS_MAX };
                (OpAction::MapStatus { at, len: len.into(), count_max }, Kind::Status { at, len })
            }
        };
        let transfers = matches!(action, OpAction::Read { .. });
        let held_bytes = if transfers { to_usize(len) } else { 0 };
        self.held_bytes += held_bytes;
        self.start(UnderWay { cookie: request.cookie, held_bytes, kind }, action);
    }

    /// Appends a full buffer to the payload, and starts the write when the payload is complete.
    fn block_filled(&mut self) {
        let Phase::Payload(incoming) = &mut self.phase else { return };
        let complete = incoming.left == 0;
        if let Some(block) = incoming.block.take_if(|block| complete || block.len() == block.capacity()) {
            incoming.data.push(block.freeze());
        }
        if !complete {
            return;
        }
        let Phase::Payload(incoming) = std::mem::replace(&mut self.phase, Phase::Request) else { return };
        let WritePayload { request, durability, data, .. } = incoming;
        let held_bytes = to_usize(request.len);
        let under_way = UnderWay { cookie: request.cookie, held_bytes, kind: Kind::Plain };
        self.start(under_way, OpAction::Write { at: request.at, data, durability });
    }

    fn start(&mut self, under_way: UnderWay, action: OpAction) {
        let index = self.free.pop().unwrap_or_else(|| {
            self.under_way.push(None);
            self.under_way.len() - 1
        });
        if let Some(slot) = self.under_way.get_mut(index) {
            *slot = Some(under_way);
        }
        self.operations.push_back((Ticket(index), action));
    }

    fn is_full(&self) -> bool {
        let count = self.under_way.len() - self.free.len() + self.answers.len();
        count >= REQUESTS_MAX || self.held_bytes + self.answer_bytes >= HELD_BYTES_MAX
    }

    fn status(&mut self, cookie: u64, at: u64, len: u32, extents: &[Extent]) {
        let descriptors = descriptors(at, len, extents);
        let data = Bytes::copied_from(&descriptors);
        let head = Head::block_status(cookie, to_u32(to_u64(data.len())));
        self.push(head, data.into());
    }

    /// Answers that a request failed, with a message if the client accepts one.
    fn fail(&mut self, cookie: u64, error: Errno, failure: Option<Failure>) {
        if !self.negotiation.structured {
            return self.answer(Head::simple(cookie, Some(error)));
        }
        let mut tail = failure.map_or_else(String::new, |failure| failure.fault.to_string()).into_bytes();
        let message_len = u16::try_from(tail.len()).unwrap_or(0);
        let head = Head::error(cookie, error, message_len);
        tail.truncate(message_len.into());
        self.push(head, Bytes::copied_from(&tail).into());
    }

    fn answer(&mut self, head: Head) {
        self.push(head, DataList::new());
    }

    fn push(&mut self, head: Head, data: DataList) {
        self.answer_bytes += data.len();
        self.answers.push_back(Answer { head, data });
    }

    /// Sends bytes that do not answer a request.
    fn say(&mut self, bytes: &[u8]) {
        if !bytes.is_empty() {
            self.push(Head::default(), Bytes::copied_from(bytes).into());
        }
    }

    pub(super) fn cut(&mut self, why: ProtocolError) {
        self.cut_off = Some(why);
        self.phase = Phase::End;
    }
}

/// How many bytes were skipped, and whether those were all.
struct Skipped {
    len: usize,
    ended: bool,
}

fn skip(left: &mut u64, input: &[u8]) -> Option<Skipped> {
    let len = to_usize((*left).min(to_u64(input.len())));
    *left -= to_u64(len);
    let ended = *left == 0;
    (len > 0 || ended).then_some(Skipped { len, ended })
}

#[cfg(test)]
#[allow(clippy::cast_possible_truncation, reason = "the numbers of these tests are small")]
mod tests;
