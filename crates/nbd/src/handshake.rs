//! The negotiation of a client, from the greeting of the server to the first request.
//!
//! The client asks for structured replies, for `base:allocation` where it got them, and for the export with
//! its block sizes, one option after the other. A server may refuse the first two.

use alloc::borrow::ToOwned;
use alloc::string::String;
use alloc::vec::Vec;
use core::fmt;

use base::bytes::{Reader, UnexpectedEof};
use base::int_cast::{to_u32, to_usize};

use crate::wire::{
    BASE_ALLOCATION, FIXED_NEWSTYLE, GREETING_LEN, INFO_BLOCK_SIZE, INFO_EXPORT, NO_ZEROES, Opt,
    OptionReplyHeader, Rep, WrongMagic, option, parse_greeting, transmission,
};

/// The longest reply to an option: a name of an export has at most 4096 bytes, and so has a message.
const REPLY_LEN_MAX: u32 = 8 << 10;

/// The most replies to one option: an export has four kinds of information, and one context is asked for.
const REPLIES_MAX: u32 = 64;

/// The longest message of a server that is shown.
const MESSAGE_LEN_MAX: usize = 200;

/// The payload that a server takes that does not say how much (doc/proto.md).
const PAYLOAD_LEN_USUAL: u32 = 32 << 20;

/// The most bytes that one request zeroes or deallocates. The protocol has no limit but that of its field.
pub const CHANGE_LEN_MAX: u32 = 1 << 31;

/// The least payload that a server must take to be used: a page.
const PAYLOAD_LEN_MIN: u32 = 4096;

/// The largest minimum block length that is legal (doc/proto.md: 64 KiB).
const BLOCK_LEN_MAX: u32 = 64 << 10;

/// What client and server agreed on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ExportInfo {
    /// The size of the export in bytes.
    pub len: u64,
    /// The transmission flags.
    pub flags: u16,
    /// Offsets and lengths must be multiples of this many bytes; a power of two.
    pub block_len: u32,
    /// The preferred granularity in bytes; a power of two.
    pub preferred_block_len: u32,
    /// The longest payload of one request in bytes, a multiple of `block_len`.
    pub payload_len_max: u32,
    /// The most bytes that one request zeroes or deallocates, a multiple of `block_len`.
    pub change_len_max: u32,
    /// Whether reads are answered in chunks (structured replies).
    pub structured: bool,
    /// The identifier of `base:allocation`, if the server offers it.
    pub allocation_id: Option<u32>,
}

impl ExportInfo {
    /// Checks that it is what a negotiation can end with.
    ///
    /// # Errors
    /// What is wrong with it.
    pub fn checked(self) -> Result<Self, HandshakeError> {
        let Self { len, block_len, preferred_block_len, payload_len_max, change_len_max, .. } = self;
        let is_whole = |bytes: u32| bytes.is_multiple_of(block_len);
        if !are_legal(block_len, preferred_block_len)
            || preferred_block_len < block_len
            || !len.is_multiple_of(u64::from(block_len))
            || !is_whole(payload_len_max)
            || !is_whole(change_len_max)
            || change_len_max == 0
        {
            return Err(HandshakeError::BadBlockSizes);
        }
        if payload_len_max < PAYLOAD_LEN_MIN.max(block_len) {
            return Err(HandshakeError::PayloadTooShort);
        }
        Ok(self)
    }

    /// Returns whether a transmission flag is set.
    pub const fn has(&self, flag: u16) -> bool {
        self.flags & flag != 0
    }
}

/// Why a negotiation failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum HandshakeError {
    /// The bytes are not the greeting of a newstyle server.
    NotNbd,
    /// The server does not support the fixed newstyle negotiation.
    NotFixedNewstyle,
    /// The bytes are no reply to an option.
    NotAnOptionReply,
    /// The reply is to another option.
    OtherOption,
    /// A reply is longer than any legal one.
    ReplyTooLong,
    /// An option has more replies than any legal one.
    TooManyReplies,
    /// A reply to an option is malformed.
    MalformedReply,
    /// The server chose the export without saying what it is.
    NoExportInfo,
    /// The block sizes contradict the protocol, or each other.
    BadBlockSizes,
    /// The server accepts no payload that is worth a request.
    PayloadTooShort,
    /// The server does not support `NBD_OPT_GO`.
    NoGo,
    /// There is no such export.
    UnknownExport,
    /// The server requires TLS.
    TlsRequired,
    /// The server refuses for another reason; with its number, and its message if it sent one.
    Refused(u32, String),
}

impl fmt::Display for HandshakeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::NotNbd => "the peer is not an NBD server with the newstyle negotiation",
            Self::NotFixedNewstyle => "the server does not support the fixed newstyle negotiation",
            Self::NotAnOptionReply => "the server sent a malformed reply in the negotiation",
            Self::OtherOption => "the server answered an option that was not sent",
            Self::ReplyTooLong => "the server sent a reply in the negotiation that is too long",
            Self::TooManyReplies => "the server sent too many replies to one option",
            Self::MalformedReply => "the server sent a reply in the negotiation with malformed content",
            Self::NoExportInfo => "the server did not say how large the export is",
            Self::BadBlockSizes => "the server sent impossible block sizes",
            Self::PayloadTooShort => "the server takes less than 4096 bytes in one request",
            Self::NoGo => "the server is too old: it does not support NBD_OPT_GO",
            Self::UnknownExport => "the server has no export of this name",
            Self::TlsRequired => "the server requires TLS, which is not supported",
            Self::Refused(number, message) if message.is_empty() => {
                return write!(f, "the server refuses the export (error {:#x})", number);
            }
            Self::Refused(_, message) => return write!(f, "the server refuses the export: {message}"),
        })
    }
}

impl core::error::Error for HandshakeError {}

/// A negotiation. Its owner sends [`Self::take_output`] after each [`Self::received`], and sends nothing
/// before the first.
#[derive(Debug)]
pub struct Handshake {
    export: String,
    phase: Phase,
    input: Vec<u8>,
    output: Vec<u8>,
    replies: u32,
    structured: bool,
    allocation_id: Option<u32>,
    size: Option<(u64, u16)>,
    block_sizes: Option<(u32, u32, u32)>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    Greeting,
    /// The replies to an option.
    Replies(Opt),
    Done,
}

impl Handshake {
    /// Starts the negotiation of an export.
    pub fn new(export: &str) -> Self {
        Self {
            export: export.to_owned(),
            phase: Phase::Greeting,
            input: Vec::new(),
            output: Vec::new(),
            replies: 0,
            structured: false,
            allocation_id: None,
            size: None,
            block_sizes: None,
        }
    }

    /// Returns the bytes to send, once.
    pub fn take_output(&mut self) -> Vec<u8> {
        core::mem::take(&mut self.output)
    }

    /// Returns the most bytes that may be received next: none of them belongs to what follows the
    /// negotiation.
    pub fn wanted(&self) -> usize {
        let have = self.input.len();
        let whole = match self.phase {
            Phase::Greeting => GREETING_LEN,
            Phase::Replies(_) => match OptionReplyHeader::parse(&self.input) {
                Some(Ok(header)) => OptionReplyHeader::LEN + to_usize(header.len.min(REPLY_LEN_MAX)),
                _ => OptionReplyHeader::LEN,
            },
            Phase::Done => 0,
        };
        whole.saturating_sub(have)
    }

    /// Handles received bytes, at most as many as [`Self::wanted`] said. Returns what was agreed on, once the
    /// negotiation is complete.
    ///
    /// # Errors
    /// [`HandshakeError`]; the connection must be closed.
    pub fn received(&mut self, bytes: &[u8]) -> Result<Option<ExportInfo>, HandshakeError> {
        self.input.extend_from_slice(bytes);
        match self.phase {
            Phase::Greeting => {
                if let Some(greeting) = parse_greeting(&self.input) {
                    let flags = greeting.map_err(|WrongMagic| HandshakeError::NotNbd)?;
                    self.input.clear();
                    self.greeted(flags)?;
                }
                Ok(None)
            }
            Phase::Replies(option) => {
                let Some(header) = OptionReplyHeader::parse(&self.input) else { return Ok(None) };
                let header = header.map_err(|WrongMagic| HandshakeError::NotAnOptionReply)?;
                if header.option != option {
                    return Err(HandshakeError::OtherOption);
                }
                if header.len > REPLY_LEN_MAX {
                    return Err(HandshakeError::ReplyTooLong);
                }
                if self.input.len() < OptionReplyHeader::LEN + to_usize(header.len) {
                    return Ok(None);
                }
                self.replies += 1;
                if self.replies > REPLIES_MAX {
                    return Err(HandshakeError::TooManyReplies);
                }
                let input = core::mem::take(&mut self.input);
                self.replied(option, header.kind, input.get(OptionReplyHeader::LEN..).unwrap_or_default())
            }
            Phase::Done => Ok(None),
        }
    }

    fn greeted(&mut self, flags: u32) -> Result<(), HandshakeError> {
        if flags & FIXED_NEWSTYLE == 0 {
            return Err(HandshakeError::NotFixedNewstyle);
        }
        self.output.extend_from_slice(&(flags & (FIXED_NEWSTYLE | NO_ZEROES)).to_be_bytes());
        self.ask(Opt::STRUCTURED_REPLY, &[]);
        Ok(())
    }

    fn ask(&mut self, opt: Opt, parts: &[&[u8]]) {
        (self.phase, self.replies) = (Phase::Replies(opt), 0);
        option(&mut self.output, opt, parts);
    }

    fn ask_for_export(&mut self) {
        let name = self.export.clone();
        let name_len = to_u32(name.len()).to_be_bytes();
        let wanted = [1_u16.to_be_bytes(), INFO_BLOCK_SIZE.to_be_bytes()].concat();
        self.ask(Opt::GO, &[&name_len, name.as_bytes(), &wanted]);
    }

    fn ask_for_allocation(&mut self) {
        let name = self.export.clone();
        let name_len = to_u32(name.len()).to_be_bytes();
        let (count, len) = (1_u32.to_be_bytes(), to_u32(BASE_ALLOCATION.len()).to_be_bytes());
        let parts = [&name_len[..], name.as_bytes(), &count, &len, BASE_ALLOCATION.as_bytes()];
        self.ask(Opt::SET_META_CONTEXT, &parts);
    }

    /// Handles one reply to an option.
    fn replied(&mut self, option: Opt, kind: Rep, data: &[u8]) -> Result<Option<ExportInfo>, HandshakeError> {
        match (option, kind) {
            (Opt::STRUCTURED_REPLY, Rep::ACK) => {
                self.structured = true;
                self.ask_for_allocation();
            }
            (Opt::SET_META_CONTEXT, Rep::META_CONTEXT) => {
                let (id, name) = data.split_first_chunk().ok_or(HandshakeError::MalformedReply)?;
                if name == BASE_ALLOCATION.as_bytes() {
                    self.allocation_id = Some(u32::from_be_bytes(*id));
                }
            }
            (Opt::SET_META_CONTEXT, Rep::ACK) => self.ask_for_export(),
            // Both are optional. A server may also refuse them by its policy.
            (Opt::STRUCTURED_REPLY | Opt::SET_META_CONTEXT, kind) if kind.is_error() => {
                self.allocation_id = None;
                self.ask_for_export();
            }
            (Opt::GO, Rep::INFO) => self.informed(data)?,
            (Opt::GO, Rep::ACK) => {
                self.phase = Phase::Done;
                return self.export_info().map(Some);
            }
            (_, kind) if kind.is_error() => return Err(refusal(kind, data)),
            _ => return Err(HandshakeError::MalformedReply),
        }
        Ok(None)
    }

    fn informed(&mut self, data: &[u8]) -> Result<(), HandshakeError> {
        let mut reader = Reader::new(data);
        let malformed = |UnexpectedEof| HandshakeError::MalformedReply;
        match reader.u16().map_err(malformed)? {
            INFO_EXPORT => {
                self.size = Some((reader.u64().map_err(malformed)?, reader.u16().map_err(malformed)?));
            }
            INFO_BLOCK_SIZE => {
                let sizes = (|| Ok((reader.u32()?, reader.u32()?, reader.u32()?)))();
                self.block_sizes = Some(sizes.map_err(malformed)?);
            }
            _ => return Ok(()),
        }
        if reader.is_empty() { Ok(()) } else { Err(HandshakeError::MalformedReply) }
    }

    fn export_info(&self) -> Result<ExportInfo, HandshakeError> {
        let (len, flags) = self.size.ok_or(HandshakeError::NoExportInfo)?;
        let (block_len, preferred, payload) =
            self.block_sizes.unwrap_or((1, PAYLOAD_LEN_MIN, PAYLOAD_LEN_USUAL));
        if !are_legal(block_len, preferred) {
            return Err(HandshakeError::BadBlockSizes);
        }
        let info = ExportInfo {
            len: len - len % u64::from(block_len),
            flags: if flags & transmission::HAS_FLAGS == 0 { 0 } else { flags },
            block_len,
            preferred_block_len: preferred.max(block_len),
            payload_len_max: payload - payload % block_len,
            change_len_max: CHANGE_LEN_MAX,
            structured: self.structured,
            allocation_id: self.allocation_id,
        };
        info.checked()
    }
}

/// Returns whether a minimum and a preferred block length are legal.
const fn are_legal(block_len: u32, preferred: u32) -> bool {
    block_len.is_power_of_two() && block_len <= BLOCK_LEN_MAX && preferred.is_power_of_two()
}

fn refusal(kind: Rep, message: &[u8]) -> HandshakeError {
    match kind {
        Rep::ERR_UNSUP => HandshakeError::NoGo,
        Rep::ERR_UNKNOWN => HandshakeError::UnknownExport,
        Rep::ERR_TLS_REQD => HandshakeError::TlsRequired,
        Rep(number) => {
            let text = String::from_utf8_lossy(message);
            let shown = text.chars().filter(|c| !c.is_control()).take(MESSAGE_LEN_MAX).collect();
            HandshakeError::Refused(number, shown)
        }
    }
}

#[cfg(test)]
mod tests;
