//! Numbers and headers of the NBD protocol, as clients and servers send them.

use alloc::vec::Vec;

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

/// The bytes where a message should begin are no such message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WrongMagic;

/// The handshake flag of the fixed newstyle negotiation, of server and client alike.
pub const FIXED_NEWSTYLE: u32 = 1 << 0;
/// The handshake flag that no zeros follow the answer to `EXPORT_NAME`.
pub const NO_ZEROES: u32 = 1 << 1;

/// An option, by its number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Opt(pub u32);

impl Opt {
    /// Chooses an export, the oldest way.
    pub const EXPORT_NAME: Self = Self(1);
    /// Ends the negotiation and the connection.
    pub const ABORT: Self = Self(2);
    /// Asks for the names of all exports.
    pub const LIST: Self = Self(3);
    /// Asks for what [`Self::GO`] would answer.
    pub const INFO: Self = Self(6);
    /// Chooses an export and begins the transmission.
    pub const GO: Self = Self(7);
    /// Asks for structured replies.
    pub const STRUCTURED_REPLY: Self = Self(8);
    /// Asks which metadata contexts exist.
    pub const LIST_META_CONTEXT: Self = Self(9);
    /// Chooses the metadata contexts of block status.
    pub const SET_META_CONTEXT: Self = Self(10);
}

/// The kind of a reply to an option.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rep(pub u32);

impl Rep {
    /// The option is done.
    pub const ACK: Self = Self(1);
    /// An export of a list.
    pub const SERVER: Self = Self(2);
    /// Information about an export.
    pub const INFO: Self = Self(3);
    /// A metadata context.
    pub const META_CONTEXT: Self = Self(4);
    /// The server does not know the option.
    pub const ERR_UNSUP: Self = Self(0x8000_0001);
    /// The administrator forbids it.
    pub const ERR_POLICY: Self = Self(0x8000_0002);
    /// The option is malformed.
    pub const ERR_INVALID: Self = Self(0x8000_0003);
    /// The server requires TLS.
    pub const ERR_TLS_REQD: Self = Self(0x8000_0005);
    /// There is no such export.
    pub const ERR_UNKNOWN: Self = Self(0x8000_0006);
    /// The server shuts down.
    pub const ERR_SHUTDOWN: Self = Self(0x8000_0007);
    /// The option is too long.
    pub const ERR_TOO_BIG: Self = Self(0x8000_0009);

    /// Returns whether the reply refuses the option.
    pub const fn is_error(self) -> bool {
        self.0 & 0x8000_0000 != 0
    }
}

/// Information: the size and the transmission flags of an export.
pub const INFO_EXPORT: u16 = 0;
/// Information: the name of an export.
pub const INFO_NAME: u16 = 1;
/// Information: the description of an export.
pub const INFO_DESCRIPTION: u16 = 2;
/// Information: the block sizes of an export.
pub const INFO_BLOCK_SIZE: u16 = 3;

/// Transmission flags: what an export is and can do.
pub mod transmission {
    /// The flags are valid.
    pub const HAS_FLAGS: u16 = 1 << 0;
    /// The export refuses every change.
    pub const READ_ONLY: u16 = 1 << 1;
    /// FLUSH is supported.
    pub const SEND_FLUSH: u16 = 1 << 2;
    /// FUA is supported.
    pub const SEND_FUA: u16 = 1 << 3;
    /// The medium is a rotating disk.
    pub const ROTATIONAL: u16 = 1 << 4;
    /// TRIM is supported.
    pub const SEND_TRIM: u16 = 1 << 5;
    /// `WRITE_ZEROES` is supported.
    pub const SEND_WRITE_ZEROES: u16 = 1 << 6;
    /// The flag against fragmented reads is supported.
    pub const SEND_DF: u16 = 1 << 7;
    /// What is flushed over one connection is durable for all.
    pub const CAN_MULTI_CONN: u16 = 1 << 8;
    /// CACHE is supported.
    pub const SEND_CACHE: u16 = 1 << 10;
    /// `WRITE_ZEROES` can be told to fail where it is slow.
    pub const SEND_FAST_ZERO: u16 = 1 << 11;
}

/// The metadata context that says which blocks have storage.
pub const BASE_ALLOCATION: &str = "base:allocation";
/// The identifier of that context that our server chooses.
pub const BASE_ALLOCATION_ID: u32 = 1;
/// The flag of blocks without storage.
pub const STATE_HOLE: u32 = 1 << 0;
/// The flag of blocks that read as zeros.
pub const STATE_ZERO: u32 = 1 << 1;

/// A command, by its number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cmd(pub u16);

impl Cmd {
    /// Reads.
    pub const READ: Self = Self(0);
    /// Writes.
    pub const WRITE: Self = Self(1);
    /// Ends the connection; has no reply.
    pub const DISC: Self = Self(2);
    /// Makes acknowledged writes durable.
    pub const FLUSH: Self = Self(3);
    /// Deallocates.
    pub const TRIM: Self = Self(4);
    /// Reads into the cache of the server.
    pub const CACHE: Self = Self(5);
    /// Makes a range read as zeros.
    pub const WRITE_ZEROES: Self = Self(6);
    /// Reports on the chosen metadata contexts.
    pub const BLOCK_STATUS: Self = Self(7);
}

/// The command is to be durable before it is acknowledged.
pub const FLAG_FUA: u16 = 1 << 0;
/// Zeroes are to keep their storage.
pub const FLAG_NO_HOLE: u16 = 1 << 1;
/// A read is to be answered in one chunk.
pub const FLAG_DF: u16 = 1 << 2;
/// One descriptor is enough.
pub const FLAG_REQ_ONE: u16 = 1 << 3;
/// Zeroes are to fail where they are not faster than a write.
pub const FLAG_FAST_ZERO: u16 = 1 << 4;

/// An error number of the protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Errno(pub u32);

impl Errno {
    /// Not permitted.
    pub const PERM: Self = Self(1);
    /// An error of the medium.
    pub const IO: Self = Self(5);
    /// An invalid request.
    pub const INVAL: Self = Self(22);
    /// No storage is left.
    pub const NOSPC: Self = Self(28);
    /// The request is too long.
    pub const OVERFLOW: Self = Self(75);
    /// Not supported.
    pub const NOTSUP: Self = Self(95);
    /// The server shuts down.
    pub const SHUTDOWN: Self = Self(108);

    /// Returns the error number that a server sends for a fault of its medium. The server refuses a range
    /// beyond the end before; from the medium, this fault means that the disk shrank meanwhile.
    pub const fn of_fault(fault: Fault) -> Self {
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

    /// Returns the fault that an error number means to a client. A number that the protocol does not define
    /// is an error of the medium.
    pub const fn fault(self) -> Fault {
        match self {
            Self::PERM => Fault::ReadOnly,
            Self::NOSPC => Fault::NoSpace,
            Self::NOTSUP => Fault::Unsupported,
            Self::INVAL | Self::OVERFLOW => Fault::Hardware,
            _ => Fault::Medium,
        }
    }
}

/// Returns the greeting of a server: 18 bytes.
pub fn greeting() -> [u8; GREETING_LEN] {
    let mut out = [0; GREETING_LEN];
    let mut writer = Writer::new(&mut out);
    let _ = writer.u64(GREETING_MAGIC);
    let _ = writer.u64(OPTION_MAGIC);
    let _ = writer.u16(1 | 2);
    out
}

/// The length of the greeting of a server.
pub const GREETING_LEN: usize = 18;

/// Parses the greeting of a server: returns its handshake flags. Returns `None` if it needs more bytes.
pub fn parse_greeting(bytes: &[u8]) -> Option<Result<u32, WrongMagic>> {
    let mut reader = Reader::new(bytes);
    let fields = (|| Ok::<_, UnexpectedEof>((reader.u64()?, reader.u64()?, reader.u16()?)))();
    let (first, second, flags) = fields.ok()?;
    let is_newstyle = (first, second) == (GREETING_MAGIC, OPTION_MAGIC);
    Some(if is_newstyle { Ok(u32::from(flags)) } else { Err(WrongMagic) })
}

/// The header of an option.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OptionHeader {
    /// The option.
    pub option: Opt,
    /// The length of its data.
    pub len: u32,
}

impl OptionHeader {
    /// The length of the header.
    pub const LEN: usize = 16;

    /// Parses a header. Returns `None` if it needs more bytes.
    pub fn parse(bytes: &[u8]) -> Option<Result<Self, WrongMagic>> {
        let mut reader = Reader::new(bytes);
        let fields = (|| Ok::<_, UnexpectedEof>((reader.u64()?, reader.u32()?, reader.u32()?)))();
        let (magic, option, len) = fields.ok()?;
        if magic != OPTION_MAGIC {
            return Some(Err(WrongMagic));
        }
        Some(Ok(Self { option: Opt(option), len }))
    }
}

/// Appends an option with its data.
pub fn option(out: &mut Vec<u8>, option: Opt, parts: &[&[u8]]) {
    out.extend_from_slice(&OPTION_MAGIC.to_be_bytes());
    out.extend_from_slice(&option.0.to_be_bytes());
    append_counted(out, parts);
}

/// Appends a reply to an option.
pub fn option_reply(out: &mut Vec<u8>, option: Opt, kind: Rep, parts: &[&[u8]]) {
    out.extend_from_slice(&OPTION_REPLY_MAGIC.to_be_bytes());
    out.extend_from_slice(&option.0.to_be_bytes());
    out.extend_from_slice(&kind.0.to_be_bytes());
    append_counted(out, parts);
}

/// Appends the length of the parts, which are some kilobytes at most, and the parts.
fn append_counted(out: &mut Vec<u8>, parts: &[&[u8]]) {
    let len: usize = parts.iter().map(|part| part.len()).sum();
    out.extend_from_slice(&u32::try_from(len).unwrap_or(u32::MAX).to_be_bytes());
    for part in parts {
        out.extend_from_slice(part);
    }
}

/// The header of a reply to an option.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OptionReplyHeader {
    /// The option that is answered.
    pub option: Opt,
    /// The kind of the reply.
    pub kind: Rep,
    /// The length of its data.
    pub len: u32,
}

impl OptionReplyHeader {
    /// The length of the header.
    pub const LEN: usize = 20;

    /// Parses a header. Returns `None` if it needs more bytes.
    pub fn parse(bytes: &[u8]) -> Option<Result<Self, WrongMagic>> {
        let mut reader = Reader::new(bytes);
        let fields =
            (|| Ok::<_, UnexpectedEof>((reader.u64()?, reader.u32()?, reader.u32()?, reader.u32()?)))();
        let (magic, option, kind, len) = fields.ok()?;
        if magic != OPTION_REPLY_MAGIC {
            return Some(Err(WrongMagic));
        }
        Some(Ok(Self { option: Opt(option), kind: Rep(kind), len }))
    }
}

/// A request, without its payload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Request {
    /// The flags of the command.
    pub flags: u16,
    /// The command.
    pub command: Cmd,
    /// What the reply repeats.
    pub cookie: u64,
    /// The offset of the first byte.
    pub at: u64,
    /// The length in bytes.
    pub len: u32,
}

impl Request {
    /// The length of the header.
    pub const LEN: usize = 28;

    /// Parses a header. Returns `None` if it needs more bytes.
    pub fn parse(bytes: &[u8]) -> Option<Result<Self, WrongMagic>> {
        let mut reader = Reader::new(bytes);
        let fields = (|| {
            let (magic, flags, command) = (reader.u32()?, reader.u16()?, reader.u16()?);
            Ok::<_, UnexpectedEof>((magic, flags, command, reader.u64()?, reader.u64()?, reader.u32()?))
        })();
        let (magic, flags, command, cookie, at, len) = fields.ok()?;
        if magic != REQUEST_MAGIC {
            return Some(Err(WrongMagic));
        }
        Some(Ok(Self { flags, command: Cmd(command), cookie, at, len }))
    }

    /// Returns the bytes of the header.
    pub fn encode(&self) -> [u8; Self::LEN] {
        let mut out = [0; Self::LEN];
        let mut writer = Writer::new(&mut out);
        // The fields are exactly as long as the array; a test compares the bytes.
        let _ = (|| {
            writer.u32(REQUEST_MAGIC)?;
            writer.u16(self.flags)?;
            writer.u16(self.command.0)?;
            writer.u64(self.cookie)?;
            writer.u64(self.at)?;
            writer.u32(self.len)
        })();
        out
    }
}

/// The header that precedes the data of a reply. No header of our server is longer.
#[derive(Clone, Debug, Default)]
pub struct Head {
    bytes: [u8; 32],
    len: usize,
}

impl Head {
    /// Returns the bytes of the header.
    pub fn bytes(&self) -> &[u8] {
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
    pub fn simple(cookie: u64, error: Option<Errno>) -> Self {
        Self::write(|out| {
            out.u32(SIMPLE_REPLY_MAGIC)?;
            out.u32(error.map_or(0, |error| error.0))?;
            out.u64(cookie)
        })
    }

    /// Returns the only chunk of a read; its data follow.
    pub fn offset_data(cookie: u64, at: u64, len: u32) -> Self {
        Self::write(|out| {
            chunk(out, cookie, CHUNK_OFFSET_DATA, len.saturating_add(8))?;
            out.u64(at)
        })
    }

    /// Returns the only chunk of a block status; `len` bytes of descriptors follow.
    pub fn block_status(cookie: u64, len: u32) -> Self {
        Self::write(|out| {
            chunk(out, cookie, CHUNK_BLOCK_STATUS, len.saturating_add(4))?;
            out.u32(BASE_ALLOCATION_ID)
        })
    }

    /// Returns an error chunk; a message of `message_len` bytes follows.
    pub fn error(cookie: u64, error: Errno, message_len: u16) -> Self {
        Self::write(|out| {
            chunk(out, cookie, CHUNK_ERROR, u32::from(message_len) + 6)?;
            out.u32(error.0)?;
            out.u16(message_len)
        })
    }
}

/// The kind of a chunk that ends a reply and says nothing else.
pub const CHUNK_NONE: u16 = 0;
/// The kind of a chunk with data of a read.
pub const CHUNK_OFFSET_DATA: u16 = 1;
/// The kind of a chunk that says that a range of a read is zeros.
pub const CHUNK_OFFSET_HOLE: u16 = 2;
/// The kind of a chunk with descriptors of a block status.
pub const CHUNK_BLOCK_STATUS: u16 = 5;
/// The kind of a chunk with an error.
pub const CHUNK_ERROR: u16 = 0x8001;
/// The kind of a chunk with an error and its offset.
pub const CHUNK_ERROR_OFFSET: u16 = 0x8002;
/// Marks a chunk as the last. Every reply of our server is one chunk.
pub const CHUNK_DONE: u16 = 1;

fn chunk(out: &mut Writer<'_>, cookie: u64, kind: u16, len: u32) -> Result<(), UnexpectedEof> {
    out.u32(STRUCTURED_REPLY_MAGIC)?;
    out.u16(CHUNK_DONE)?;
    out.u16(kind)?;
    out.u64(cookie)?;
    out.u32(len)
}

/// The header of a reply, as a client receives it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReplyHeader {
    /// A simple reply. The data of a read follow if there is no error.
    Simple {
        /// The cookie of the request.
        cookie: u64,
        /// The error, if the request failed.
        error: Option<Errno>,
    },
    /// A chunk of a structured reply.
    Chunk {
        /// The cookie of the request.
        cookie: u64,
        /// Whether it is the last chunk of the reply.
        is_last: bool,
        /// The kind of the chunk.
        kind: u16,
        /// The length of what follows.
        len: u32,
    },
}

impl ReplyHeader {
    /// The length of a simple reply, and of what both kinds have in common at least.
    pub const SIMPLE_LEN: usize = 16;
    /// The length of the header of a chunk.
    pub const CHUNK_LEN: usize = 20;

    /// Parses a header, and returns its length too. Returns `None` if it needs more bytes.
    pub fn parse(bytes: &[u8]) -> Option<Result<(Self, usize), WrongMagic>> {
        let mut reader = Reader::new(bytes);
        match reader.u32().ok()? {
            SIMPLE_REPLY_MAGIC => {
                let (error, cookie) = (reader.u32().ok()?, reader.u64().ok()?);
                let error = (error != 0).then_some(Errno(error));
                Some(Ok((Self::Simple { cookie, error }, Self::SIMPLE_LEN)))
            }
            STRUCTURED_REPLY_MAGIC => {
                let (flags, kind) = (reader.u16().ok()?, reader.u16().ok()?);
                let (cookie, len) = (reader.u64().ok()?, reader.u32().ok()?);
                let is_last = flags & CHUNK_DONE != 0;
                Some(Ok((Self::Chunk { cookie, is_last, kind, len }, Self::CHUNK_LEN)))
            }
            _ => Some(Err(WrongMagic)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_and_reply_headers_are_the_bytes_of_the_protocol_both_ways() {
        let request = Request { flags: FLAG_FUA, command: Cmd::WRITE, cookie: 7, at: 4096, len: 512 };
        let bytes = b"\x25\x60\x95\x13\0\x01\0\x01\0\0\0\0\0\0\0\x07\0\0\0\0\0\0\x10\0\0\0\x02\0";
        assert_eq!(&request.encode(), bytes);
        assert_eq!(Request::parse(bytes), Some(Ok(request)));

        let simple = b"\x67\x44\x66\x98\0\0\0\x05\0\0\0\0\0\0\0\x09";
        assert_eq!(Head::simple(9, Some(Errno::IO)).bytes(), simple);
        let parsed = ReplyHeader::Simple { cookie: 9, error: Some(Errno::IO) };
        assert_eq!(ReplyHeader::parse(simple), Some(Ok((parsed, 16))));

        let chunk = b"\x66\x8e\x33\xef\0\x01\0\x01\0\0\0\0\0\0\0\x09\0\0\x02\x08\0\0\0\0\0\0\x10\0";
        assert_eq!(Head::offset_data(9, 4096, 512).bytes(), chunk);
        let parsed = ReplyHeader::Chunk { cookie: 9, is_last: true, kind: CHUNK_OFFSET_DATA, len: 520 };
        assert_eq!(ReplyHeader::parse(chunk), Some(Ok((parsed, 20))));
        assert_eq!(ReplyHeader::parse(&chunk[..19]), None);
        assert_eq!(ReplyHeader::parse(b"HTTP/1.1"), Some(Err(WrongMagic)));
    }

    #[test]
    fn options_and_their_replies_are_the_bytes_of_the_protocol_both_ways() {
        let mut out = Vec::new();
        option(&mut out, Opt::GO, &[b"ab", b"c"]);
        assert_eq!(out, b"IHAVEOPT\0\0\0\x07\0\0\0\x03abc");
        assert_eq!(OptionHeader::parse(&out), Some(Ok(OptionHeader { option: Opt::GO, len: 3 })));
        let mut out = Vec::new();
        option_reply(&mut out, Opt::GO, Rep::ACK, &[]);
        assert_eq!(out, b"\0\x03\xe8\x89\x04\x55\x65\xa9\0\0\0\x07\0\0\0\x01\0\0\0\0");
        let parsed = OptionReplyHeader { option: Opt::GO, kind: Rep::ACK, len: 0 };
        assert_eq!(OptionReplyHeader::parse(&out), Some(Ok(parsed)));
        assert_eq!(parse_greeting(&greeting()), Some(Ok(FIXED_NEWSTYLE | NO_ZEROES)));
        assert_eq!(parse_greeting(b"SSH-2.0-OpenSSH_9.2"), Some(Err(WrongMagic)));
    }
}
