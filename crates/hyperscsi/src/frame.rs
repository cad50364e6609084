//! The header that every frame begins with.
//!
//! ```text
//! off len field
//!  0   3  RES[4] TAG[9] L[1] FRAG[10]      as the historical protocol has it
//!  3   1  VERSION = 20h
//!  4   1  P[1] CMD[7]                      P: a 16-byte authentication tag follows the payload, else a CRC32C
//!  5   1  FLAGS
//!  6   2  LEN                              bytes of payload, without tag, CRC and the padding of short frames
//!  8   4  SID                              the receiver's name for the session; 0 before there is one
//! 12   8  PN                               packet number: path[8] count[56]
//! 20   4  XID                              exchange; 0 for what concerns the session
//! 24   4  OFF                              where the payload belongs
//! 28   …  payload, then tag or CRC
//! ```

use base::bytes::{Reader, UnexpectedEof};
use security::Level;

/// The length of the header, in bytes.
pub const HEADER_LEN: usize = 28;

/// The offset of the SID, the receiver's name for the session, in a header.
pub const SID_AT: u8 = 8;

/// The length of the CRC32C behind an unprotected payload, in bytes.
pub const CRC_LEN: usize = 4;
/// The length of the authentication tag behind a protected payload, in bytes.
pub const TAG_LEN: usize = 16;
/// The protocol version that this crate implements.
pub const VERSION: u8 = 0x20;
/// How many exchanges can be under way in a session, as TAG has nine bits.
pub const TAGS: u16 = 512;

/// The command of a frame. The numbers up to 21h are those of the historical protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u8)]
pub enum Cmd {
    /// Initiator to target, in an exchange: a command with its first data, or solicited data.
    Request = 0x00,
    /// Target to initiator, in an exchange: data, a Transfer Ready, or the response.
    Reply = 0x01,
    /// Discovery, questions and answers.
    Discovery = 0x10,
    /// Handshake, initiator to target.
    Negotiate = 0x11,
    /// Handshake, target to initiator.
    Negotiated = 0x12,
    /// Ends the session.
    Disconnect = 0x13,
    /// Asks for an acknowledgement: probes, paths, windows.
    Ask = 0x20,
    /// Acknowledgement and credit.
    Ack = 0x21,
    /// Aborts the exchange (initiator to target, and back as its answer). Not in the historical protocol.
    Abort = 0x40,
}

impl Cmd {
    /// Returns the command with this number.
    pub const fn from_code(code: u8) -> Option<Self> {
        Some(match code {
            0x00 => Self::Request,
            0x01 => Self::Reply,
            0x10 => Self::Discovery,
            0x11 => Self::Negotiate,
            0x12 => Self::Negotiated,
            0x13 => Self::Disconnect,
            0x20 => Self::Ask,
            0x21 => Self::Ack,
            0x40 => Self::Abort,
            _ => return None,
        })
    }

    /// Returns whether frames of this command may carry several parts: Request and Reply, which carry
    /// commands, data and responses.
    pub const fn has_parts(self) -> bool {
        matches!(self, Self::Request | Self::Reply)
    }
}

/// The bits of the FLAGS byte.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Flags(pub u8);

impl Flags {
    /// The frame elicits an acknowledgement.
    pub const ELICITS: Self = Self(0x80);
    /// The key phase.
    pub const PHASE: Self = Self(0x40);
    /// The payload is encrypted; else, in a protected frame, it is only authenticated.
    pub const ENCRYPTED: Self = Self(0x20);
    /// The payload is data of the command, and OFF is its offset in that data.
    pub const DATA: Self = Self(0x10);
    /// In the last frame of Data-In: the command ended with GOOD status and transferred exactly the data that
    /// was sent.
    pub const GOOD: Self = Self(0x08);
    /// An acknowledgement stands in front of the rest of the payload.
    pub const ACKS: Self = Self(0x04);
    /// The rest of the payload has several parts: a block that describes the further parts stands in front of
    /// them.
    pub const PARTS: Self = Self(0x02);

    /// Returns whether all bits of `other` are set.
    pub const fn has(self, other: Self) -> bool {
        self.0 & other.0 == other.0
    }

    /// Returns the union of both sets of flags.
    #[must_use]
    pub const fn with(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }
}

/// TAG, L and FRAG: the first three bytes of the header, laid out as in the historical protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct FragmentPosition {
    pub(crate) tag: u16,
    pub(crate) last: bool,
    pub(crate) fragment: u16,
}

impl FragmentPosition {
    pub(crate) fn to_bytes(self) -> [u8; 3] {
        let word = (u32::from(self.tag & 0x1ff) << 11)
            | (u32::from(self.last) << 10)
            | u32::from(self.fragment & 0x3ff);
        let [_, bytes @ ..] = word.to_be_bytes();
        bytes
    }

    /// Decodes 24 bits; `None` if a reserved bit is set.
    pub(crate) fn from_word(word: u32) -> Option<Self> {
        let [.., tag_high, tag_low] = (word >> 11).to_be_bytes();
        let [.., fragment_high, fragment_low] = (word & 0x3ff).to_be_bytes();
        let position = Self {
            tag: u16::from_be_bytes([tag_high, tag_low]),
            last: word & 0x400 != 0,
            fragment: u16::from_be_bytes([fragment_high, fragment_low]),
        };
        (word >> 20 == 0).then_some(position)
    }
}

/// The fields of a frame's header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// The slot of the exchange, below [`TAGS`].
    pub tag: u16,
    /// Whether the payload is the last of the message that OFF counts in.
    pub last: bool,
    /// The number of this frame in that message, modulo 1024. Only for display, in packet captures.
    pub fragment: u16,
    /// Whether an authentication tag follows the payload, instead of a CRC.
    pub protected: bool,
    /// The command of the frame.
    pub cmd: Cmd,
    /// The flags.
    pub flags: Flags,
    /// The length of the payload, in bytes.
    pub len: u16,
    /// The receiver's name for the session.
    pub sid: u32,
    /// The packet number.
    pub pn: u64,
    /// The exchange; 0 for what concerns the session.
    pub xid: u32,
    /// The offset of the payload, in bytes.
    pub off: u32,
}

/// Why a frame is dropped before its payload is read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadFrame {
    /// The frame ends within the header, or before its payload and trailer end.
    #[error("the frame is truncated")]
    Short,
    /// The version is not [`VERSION`].
    #[error("the frame has another protocol version")]
    Version,
    /// The command is unknown.
    #[error("the frame has an unknown command")]
    Command,
    /// A reserved bit is set.
    #[error("a reserved bit is set")]
    Reserved,
}

impl From<UnexpectedEof> for BadFrame {
    fn from(_: UnexpectedEof) -> Self {
        Self::Short
    }
}

impl Header {
    /// Returns the protection level of the frame.
    pub const fn level(&self) -> Level {
        match (self.protected, self.flags.has(Flags::ENCRYPTED)) {
            (false, _) => Level::None,
            (true, false) => Level::Integrity,
            (true, true) => Level::Encrypt,
        }
    }

    /// Encodes the header.
    pub fn to_bytes(&self) -> [u8; HEADER_LEN] {
        let position = FragmentPosition { tag: self.tag, last: self.last, fragment: self.fragment };
        let [w0, w1, w2] = position.to_bytes();
        let mut out = [0; HEADER_LEN];
        let fixed = [w0, w1, w2, VERSION, (u8::from(self.protected) << 7) | self.cmd as u8, self.flags.0];
        let (head, rest) = out.split_at_mut(fixed.len());
        head.copy_from_slice(&fixed);
        let (len, rest) = rest.split_at_mut(2);
        len.copy_from_slice(&self.len.to_be_bytes());
        let (sid, rest) = rest.split_at_mut(4);
        sid.copy_from_slice(&self.sid.to_be_bytes());
        let (pn, rest) = rest.split_at_mut(8);
        pn.copy_from_slice(&self.pn.to_be_bytes());
        let (xid, off) = rest.split_at_mut(4);
        xid.copy_from_slice(&self.xid.to_be_bytes());
        off.copy_from_slice(&self.off.to_be_bytes());
        out
    }

    /// Parses the header of `frame` and checks that `frame` is as long as the header announces. Returns the
    /// header and the length of the frame without padding: header, payload, and tag or CRC.
    ///
    /// # Errors
    /// [`BadFrame`]
    pub fn parse(frame: &[u8]) -> Result<(Self, usize), BadFrame> {
        let mut reader = Reader::new(frame);
        let word = reader.u24()?;
        let (version, code, flags) = (reader.u8()?, reader.u8()?, reader.u8()?);
        if version != VERSION {
            return Err(BadFrame::Version);
        }
        let FragmentPosition { tag, last, fragment } =
            FragmentPosition::from_word(word).ok_or(BadFrame::Reserved)?;
        let keyed = Flags(flags & (Flags::PHASE.0 | Flags::ENCRYPTED.0));
        if flags & 0x01 != 0 || (code & 0x80 == 0 && keyed != Flags::default()) {
            return Err(BadFrame::Reserved);
        }
        let cmd = Cmd::from_code(code & 0x7f).ok_or(BadFrame::Command)?;
        //= hyperscsi#section-4.11
        //# A frame of any other CMD with PARTS MUST be dropped
        if Flags(flags).has(Flags::PARTS) && !cmd.has_parts() {
            return Err(BadFrame::Reserved);
        }
        let header = Self {
            tag,
            last,
            fragment,
            protected: code & 0x80 != 0,
            cmd,
            flags: Flags(flags),
            len: reader.u16()?,
            sid: reader.u32()?,
            pn: reader.u64()?,
            xid: reader.u32()?,
            off: reader.u32()?,
        };
        //= hyperscsi#section-3.1
        //# what stands behind the trailer is padding, and a receiver MUST pass over it
        let len = HEADER_LEN + usize::from(header.len) + if header.protected { TAG_LEN } else { CRC_LEN };
        if frame.len() < len {
            return Err(BadFrame::Short);
        }
        Ok((header, len))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample() -> Header {
        Header {
            tag: 0x1a5,
            last: true,
            fragment: 0x2c3,
            protected: true,
            cmd: Cmd::Reply,
            flags: Flags::ELICITS.with(Flags::DATA),
            len: 3,
            sid: 0x0102_0304,
            pn: 0x0506_0708_090a_0b0c,
            xid: 0x0d0e_0f10,
            off: 0x1112_1314,
        }
    }

    #[test]
    fn a_header_reads_back_as_it_was_written_and_padding_is_told_apart() {
        let mut frame = sample().to_bytes().to_vec();
        assert_eq!(frame[..8], [0x0d, 0x2e, 0xc3, 0x20, 0x81, 0x90, 0, 3]);
        frame.resize(60, 0);
        assert_eq!(Header::parse(&frame), Ok((sample(), 47)));
        assert_eq!(Header::parse(&frame[..46]), Err(BadFrame::Short));
    }

    #[test]
    fn what_is_not_of_this_version_is_refused() {
        let frame = |at: usize, value: u8| {
            let mut frame = sample().to_bytes().to_vec();
            frame.resize(60, 0);
            frame[at] = value;
            Header::parse(&frame)
        };
        assert_eq!(frame(3, 0x10), Err(BadFrame::Version));
        assert_eq!(frame(4, 0x30), Err(BadFrame::Command));
        assert_eq!(frame(5, 0x01), Err(BadFrame::Reserved));
        assert_eq!(frame(0, 0x1d), Err(BadFrame::Reserved));
        let parts = Header { flags: Flags::PARTS, ..sample() };
        assert_eq!(frame(5, 0x02), Ok((parts, 47)));
        assert_eq!(frame(4, 0x01), Ok((Header { protected: false, ..sample() }, 35)));
    }

    //= hyperscsi#section-4.11
    //= type=test
    //# A frame of any other CMD with PARTS MUST be dropped
    #[test]
    fn only_requests_and_replies_have_parts() {
        for code in 0..=0x7f {
            let Some(cmd) = Cmd::from_code(code) else { continue };
            let header = Header { cmd, flags: Flags::PARTS, ..sample() };
            let mut frame = header.to_bytes().to_vec();
            frame.resize(60, 0);
            let want = if code > 1 { Err(BadFrame::Reserved) } else { Ok((header, 47)) };
            assert_eq!(Header::parse(&frame), want);
        }
    }
}
