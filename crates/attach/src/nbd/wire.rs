//! Numbers and headers of the NBD protocol.

use base::bytes::{Reader, UnexpectedEof, Writer};
use store::api::Fault;

/// `NBDMAGIC`, the first word that a server sends.
const GREETING_MAGIC: u64 = 0x4e42_444d_4147_4943;
/// `IHAVEOPT`, the second word, and the first of each option.
const OPTION_MAGIC: u64 = 0x4948_4156_454f_5054;
const OPTION_REPLY_MAGIC: u64 = 0x0003_e889_0455_65a9;
const REQUEST_MAGIC: u32 = 0x2560_9513;
const SIMPLE_REPLY_MAGIC: u32 = 0x6744_6698;
const STRUCTURED_REPLY_MAGIC: u32 = 0x668e_33ef;

/// Why a client is disconnected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProtocolError {
    /// The client set flags that were not offered.
    UnknownClientFlags,
    /// The bytes where an option should start are no option.
    NotAnOption,
    /// The bytes where a request should start are no request.
    NotARequest,
    /// The client chose an export that does not exist with `EXPORT_NAME`, which can be refused only by
    /// disconnecting.
    UnknownExport,
}

impl std::fmt::Display for ProtocolError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::UnknownClientFlags => "the client set flags that were not offered",
            Self::NotAnOption => "the client sent a malformed option",
            Self::NotARequest => "the client sent a malformed request",
            Self::UnknownExport => "the client requested an export that does not exist",
        })
    }
}

/// Handshake flags, of server and client alike.
pub(super) const FIXED_NEWSTYLE: u32 = 1 << 0;
pub(super) const NO_ZEROES: u32 = 1 << 1;

/// An option, by its number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Opt(pub(super) u32);

impl Opt {
    pub(super) const EXPORT_NAME: Self = Self(1);
    pub(super) const ABORT: Self = Self(2);
    pub(super) const LIST: Self = Self(3);
    pub(super) const INFO: Self = Self(6);
    pub(super) const GO: Self = Self(7);
    pub(super) const STRUCTURED_REPLY: Self = Self(8);
    pub(super) const LIST_META_CONTEXT: Self = Self(9);
    pub(super) const SET_META_CONTEXT: Self = Self(10);
}

/// The kind of a reply to an option.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Rep(pub(super) u32);

impl Rep {
    pub(super) const ACK: Self = Self(1);
    pub(super) const SERVER: Self = Self(2);
    pub(super) const INFO: Self = Self(3);
    pub(super) const META_CONTEXT: Self = Self(4);
    pub(super) const ERR_UNSUP: Self = Self(0x8000_0001);
    pub(super) const ERR_INVALID: Self = Self(0x8000_0003);
    pub(super) const ERR_UNKNOWN: Self = Self(0x8000_0006);
    pub(super) const ERR_SHUTDOWN: Self = Self(0x8000_0007);
    pub(super) const ERR_TOO_BIG: Self = Self(0x8000_0009);
}

/// Kinds of information about an export.
pub(super) const INFO_EXPORT: u16 = 0;
pub(super) const INFO_NAME: u16 = 1;
pub(super) const INFO_DESCRIPTION: u16 = 2;
pub(super) const INFO_BLOCK_SIZE: u16 = 3;

/// Transmission flags.
pub(super) mod transmission {
    pub(in super::super) const HAS_FLAGS: u16 = 1 << 0;
    pub(in super::super) const READ_ONLY: u16 = 1 << 1;
    pub(in super::super) const SEND_FLUSH: u16 = 1 << 2;
    pub(in super::super) const SEND_FUA: u16 = 1 << 3;
    pub(in super::super) const ROTATIONAL: u16 = 1 << 4;
    pub(in super::super) const SEND_TRIM: u16 = 1 << 5;
    pub(in super::super) const SEND_WRITE_ZEROES: u16 = 1 << 6;
    pub(in super::super) const SEND_DF: u16 = 1 << 7;
    pub(in super::super) const CAN_MULTI_CONN: u16 = 1 << 8;
    pub(in super::super) const SEND_CACHE: u16 = 1 << 10;
    pub(in super::super) const SEND_FAST_ZERO: u16 = 1 << 11;
}

/// The only metadata context that the server offers.
pub(super) const BASE_ALLOCATION: &str = "base:allocation";
/// The identifier of that context, which the server chooses.
pub(super) const BASE_ALLOCATION_ID: u32 = 1;
pub(super) const STATE_HOLE: u32 = 1 << 0;
pub(super) const STATE_ZERO: u32 = 1 << 1;

/// A command, by its number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Cmd(pub(super) u16);

impl Cmd {
    pub(super) const READ: Self = Self(0);
    pub(super) const WRITE: Self = Self(1);
    pub(super) const DISC: Self = Self(2);
    pub(super) const FLUSH: Self = Self(3);
    pub(super) const TRIM: Self = Self(4);
    pub(super) const CACHE: Self = Self(5);
    pub(super) const WRITE_ZEROES: Self = Self(6);
    pub(super) const BLOCK_STATUS: Self = Self(7);
}

/// Flags of a command.
pub(super) const FLAG_FUA: u16 = 1 << 0;
pub(super) const FLAG_NO_HOLE: u16 = 1 << 1;
pub(super) const FLAG_DF: u16 = 1 << 2;
pub(super) const FLAG_REQ_ONE: u16 = 1 << 3;
pub(super) const FLAG_FAST_ZERO: u16 = 1 << 4;

/// An error number of the protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Errno(pub(super) u32);

impl Errno {
    pub(super) const PERM: Self = Self(1);
    pub(super) const IO: Self = Self(5);
    pub(super) const INVAL: Self = Self(22);
    pub(super) const NOSPC: Self = Self(28);
    pub(super) const OVERFLOW: Self = Self(75);
    pub(super) const NOTSUP: Self = Self(95);
    pub(super) const SHUTDOWN: Self = Self(108);

    /// Returns the error number for a fault of the medium. The session refuses a range beyond the end before;
    /// from the medium, this fault means that the disk shrank meanwhile.
    pub(super) const fn of_fault(fault: Fault) -> Self {
        match fault {
            Fault::Medium
            | Fault::Hardware
            | Fault::Gone
            | Fault::Bug
            | Fault::Busy
            | Fault::Aborted
            | Fault::NotSubmitted => Self::IO,
            Fault::NoSpace | Fault::OutOfRange => Self::NOSPC,
            Fault::ReadOnly | Fault::Reserved | Fault::Forbidden => Self::PERM,
            Fault::Unsupported => Self::INVAL,
        }
    }
}

/// Returns the greeting of a server: 18 bytes.
pub(super) fn greeting() -> [u8; 18] {
    let mut out = [0; 18];
    let mut writer = Writer::new(&mut out);
    let _ = writer.u64(GREETING_MAGIC);
    let _ = writer.u64(OPTION_MAGIC);
    let _ = writer.u16(1 | 2);
    out
}

/// The header of an option.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct OptionHeader {
    pub(super) option: Opt,
    pub(super) len: u32,
}

impl OptionHeader {
    pub(super) const LEN: usize = 16;

    /// Parses a header. Returns `None` if it needs more bytes.
    pub(super) fn parse(bytes: &[u8]) -> Option<Result<Self, ProtocolError>> {
        let mut reader = Reader::new(bytes);
        let fields = (|| Ok::<_, UnexpectedEof>((reader.u64()?, reader.u32()?, reader.u32()?)))();
        let (magic, option, len) = fields.ok()?;
        if magic != OPTION_MAGIC {
            return Some(Err(ProtocolError::NotAnOption));
        }
        Some(Ok(Self { option: Opt(option), len }))
    }
}

/// Appends a reply to an option.
pub(super) fn option_reply(out: &mut Vec<u8>, option: Opt, kind: Rep, parts: &[&[u8]]) {
    let len: usize = parts.iter().map(|part| part.len()).sum();
    out.extend_from_slice(&OPTION_REPLY_MAGIC.to_be_bytes());
    out.extend_from_slice(&option.0.to_be_bytes());
    out.extend_from_slice(&kind.0.to_be_bytes());
    // The replies of this server are some kilobytes at most.
    out.extend_from_slice(&u32::try_from(len).unwrap_or(u32::MAX).to_be_bytes());
    for part in parts {
        out.extend_from_slice(part);
    }
}

/// A request, without its payload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Request {
    pub(super) flags: u16,
    pub(super) command: Cmd,
    pub(super) cookie: u64,
    pub(super) at: u64,
    pub(super) len: u32,
}

impl Request {
    pub(super) const LEN: usize = 28;

    /// Parses a header. Returns `None` if it needs more bytes.
    pub(super) fn parse(bytes: &[u8]) -> Option<Result<Self, ProtocolError>> {
        let mut reader = Reader::new(bytes);
        let fields = (|| {
            let (magic, flags, command) = (reader.u32()?, reader.u16()?, reader.u16()?);
            Ok::<_, UnexpectedEof>((magic, flags, command, reader.u64()?, reader.u64()?, reader.u32()?))
        })();
        let (magic, flags, command, cookie, at, len) = fields.ok()?;
        if magic != REQUEST_MAGIC {
            return Some(Err(ProtocolError::NotARequest));
        }
        Some(Ok(Self { flags, command: Cmd(command), cookie, at, len }))
    }
}

/// The header that precedes the data of a reply. No header of this server is longer.
#[derive(Clone, Debug, Default)]
pub(super) struct Head {
    bytes: [u8; 32],
    len: usize,
}

impl Head {
    pub(super) fn bytes(&self) -> &[u8] {
        self.bytes.get(..self.len).unwrap_or_default()
    }

    fn write(fill: impl FnOnce(&mut Writer<'_>) -> Result<(), UnexpectedEof>) -> Self {
        let mut head = Self::default();
        let mut writer = Writer::new(&mut head.bytes);
        // Each caller below writes at most 32 bytes; a test checks the length of every header.
        let _ = fill(&mut writer);
        head.len = writer.len();
        head
    }

    /// Returns a simple reply; `None` is success.
    pub(super) fn simple(cookie: u64, error: Option<Errno>) -> Self {
        Self::write(|out| {
            out.u32(SIMPLE_REPLY_MAGIC)?;
            out.u32(error.map_or(0, |error| error.0))?;
            out.u64(cookie)
        })
    }

    /// Returns the only chunk of a read; its data follow.
    pub(super) fn offset_data(cookie: u64, at: u64, len: u32) -> Self {
        Self::write(|out| {
            chunk(out, cookie, CHUNK_OFFSET_DATA, len.saturating_add(8))?;
            out.u64(at)
        })
    }

    /// Returns the only chunk of a block status; `len` bytes of descriptors follow.
    pub(super) fn block_status(cookie: u64, len: u32) -> Self {
        Self::write(|out| {
            chunk(out, cookie, CHUNK_BLOCK_STATUS, len.saturating_add(4))?;
            out.u32(BASE_ALLOCATION_ID)
        })
    }

    /// Returns an error chunk; a message of `message_len` bytes follows.
    pub(super) fn error(cookie: u64, error: Errno, message_len: u16) -> Self {
        Self::write(|out| {
            chunk(out, cookie, CHUNK_ERROR, u32::from(message_len) + 6)?;
            out.u32(error.0)?;
            out.u16(message_len)
        })
    }
}

const CHUNK_OFFSET_DATA: u16 = 1;
const CHUNK_BLOCK_STATUS: u16 = 5;
const CHUNK_ERROR: u16 = 0x8001;
/// Marks a chunk as the last. Every reply of this server is one chunk.
const CHUNK_DONE: u16 = 1;

fn chunk(out: &mut Writer<'_>, cookie: u64, kind: u16, len: u32) -> Result<(), UnexpectedEof> {
    out.u32(STRUCTURED_REPLY_MAGIC)?;
    out.u16(CHUNK_DONE)?;
    out.u16(kind)?;
    out.u64(cookie)?;
    out.u32(len)
}
