//! PDUs as bytes and as values (RFC 7143 §11), for both roles.
//!
//! Every PDU begins with a 48-byte basic header segment. [`Bhs`] holds that segment as received. Any 48 bytes
//! are a well-formed segment, which suffices to frame the PDU and to log it. Each kind of PDU has a file with
//! its layout and a value type; [`PduHeader::decode`] turns the segment into the value, of which every
//! instance is legal, and [`PduHeader::encode`] turns it back, writing every byte. A value does not hold the
//! length of its data segment: the code that frames the PDU sets it with [`Bhs::with_data_len`].
//!
//! The parts after the basic header are in other modules: additional header segments in [`ahs`], digests in
//! [`crate::digest`], the order of the parts in [`crate::framing`].

use core::fmt;
use transport::initiator::Residual;

use zerocopy::byteorder::big_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::serial::{CmdSn, StatSn};

/// Declares the layout of one kind of basic header segment.
macro_rules! layout {
    (struct $name:ident { $($field:ident: $type:ty,)* }) => {
        #[derive(
            Clone,
            Copy,
            zerocopy::FromBytes,
            zerocopy::IntoBytes,
            zerocopy::Immutable,
            zerocopy::KnownLayout,
            zerocopy::Unaligned,
        )]
        #[repr(C)]
        struct $name { $($field: $type,)* }
        const _: () = assert!(size_of::<$name>() == $crate::pdu::BHS_LEN);
    };
}

pub mod ahs;
pub mod async_message;
pub mod data_in;
pub mod data_out;
pub mod login_request;
pub mod login_response;
pub mod logout_request;
pub mod logout_response;
pub mod nop_in;
pub mod nop_out;
pub mod r2t;
pub mod reject;
pub mod scsi_command;
pub mod scsi_response;
pub mod snack;
pub mod text_request;
pub mod text_response;
pub mod tmf_request;
pub mod tmf_response;

/// The length of a basic header segment.
pub const BHS_LEN: usize = 48;

/// The longest data segment a header can announce (24 bits).
pub const MAX_DATA_SEGMENT: u32 = 0x00ff_ffff;

/// A basic header segment (§11.2.1), received or to be sent.
#[derive(Clone, Copy, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct Bhs {
    opcode: u8,
    flags: u8,
    specific: [u8; 2],
    total_ahs_length: u8,
    data_segment_length: [u8; 3],
    lun: U64,
    itt: U32,
    rest: [u8; 28],
}

const _: () = assert!(size_of::<Bhs>() == BHS_LEN);

impl Bhs {
    /// Makes a segment of 48 bytes, without checking them.
    pub fn from_bytes(bytes: [u8; BHS_LEN]) -> Self {
        zerocopy::transmute!(bytes)
    }

    /// Returns the 48 bytes.
    pub fn to_bytes(self) -> [u8; BHS_LEN] {
        zerocopy::transmute!(self)
    }

    /// Returns the 48 bytes in place.
    pub fn bytes(&self) -> &[u8; BHS_LEN] {
        zerocopy::transmute_ref!(self)
    }

    /// Returns the opcode, without the immediate bit.
    pub const fn opcode(&self) -> Opcode {
        Opcode(self.opcode & OPCODE_MASK)
    }

    /// Returns whether the request asks for immediate delivery (§4.2.2.1). The bit means nothing in a
    /// target's PDU.
    pub const fn is_immediate(&self) -> bool {
        self.opcode & IMMEDIATE != 0
    }

    /// Returns the second byte, whose first bit is F (or T, or R) in most PDUs.
    pub const fn flags(&self) -> u8 {
        self.flags
    }

    /// Returns the length of all additional header segments, in bytes: at most 1020.
    pub const fn ahs_len(&self) -> usize {
        self.total_ahs_length as usize * 4
    }

    /// Returns the length of the data segment without its padding.
    pub const fn data_len(&self) -> u32 {
        let [a, b, c] = self.data_segment_length;
        u32::from_be_bytes([0, a, b, c])
    }

    /// Returns bytes 8 to 15, which hold the LUN wherever a PDU has one.
    pub const fn lun(&self) -> u64 {
        self.lun.get()
    }

    /// Returns the initiator task tag, at the offset where every kind of PDU that has one carries it.
    pub const fn itt(&self) -> Itt {
        Itt(self.itt.get())
    }

    /// Returns ExpStatSN, which acknowledges statuses and which every PDU of an initiator carries at the same
    /// offset.
    pub const fn exp_stat_sn(&self) -> StatSn {
        let [_, _, _, _, _, _, _, _, a, b, c, d, ..] = self.rest;
        StatSn(u32::from_be_bytes([a, b, c, d]))
    }

    /// Announces `len` bytes of data. A length above [`MAX_DATA_SEGMENT`] is reduced to that.
    #[must_use]
    pub fn with_data_len(mut self, len: usize) -> Self {
        let len = u32::try_from(len).unwrap_or(MAX_DATA_SEGMENT).min(MAX_DATA_SEGMENT);
        let [_, a, b, c] = len.to_be_bytes();
        self.data_segment_length = [a, b, c];
        self
    }

    /// Announces `len` bytes of additional header segments, which must be a multiple of 4 and at most 1020.
    #[must_use]
    pub fn with_ahs_len(mut self, len: usize) -> Self {
        self.total_ahs_length = u8::try_from(len / 4).unwrap_or(u8::MAX);
        self
    }
}

impl fmt::Debug for Bhs {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{:?}{} flags {:02x} data {} ahs {} itt {:08x}",
            self.opcode(),
            if self.is_immediate() { "(immediate)" } else { "" },
            self.flags,
            self.data_len(),
            self.ahs_len(),
            self.itt.get()
        )
    }
}

/// A PDU as a value.
pub trait PduHeader: Sized {
    /// The opcode of this kind of PDU.
    const OPCODE: Opcode;

    /// Parses the value from a header with the right opcode. Reserved fields are ignored (§11).
    ///
    /// # Errors
    /// Returns the rule that the header breaks.
    //= rfc7143#section-11
    //# Any compliant receiver MUST ignore any bit not defined and all reserved fields unless specified
    //# otherwise.
    fn decode(bhs: &Bhs) -> Result<Self, Malformed>;

    /// Encodes the value, with reserved fields zero and no data segment announced.
    //= rfc7143#section-11
    //# Any compliant sender MUST set all bits not defined and all reserved fields to 0, unless specified
    //# otherwise.
    //= rfc7143#section-11.2.1.5
    //# The TotalAHSLength is only used in PDUs that have an AHS and MUST be 0 in all other PDUs.
    //= rfc7143#section-11.2.1.6
    //# The DataSegmentLength MUST be 0 whenever the PDU has no data segment.
    fn encode(&self) -> Bhs;
}

/// The opcode, which states the kind of a PDU (§11.2.1.2). Unknown values are kept.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Opcode(pub u8);

macro_rules! opcodes {
    ($($(#[$doc:meta])* $name:ident = $value:literal;)*) => {
        impl Opcode {
            $($(#[$doc])* pub const $name: Self = Self($value);)*
        }

        impl fmt::Debug for Opcode {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                match *self {
                    $(Self::$name => f.write_str(stringify!($name)),)*
                    Self(other) => write!(f, "opcode {other:#04x}"),
                }
            }
        }
    };
}

opcodes! {
    /// NOP-Out, from an initiator.
    NOP_OUT = 0x00;
    /// SCSI Command, from an initiator.
    SCSI_COMMAND = 0x01;
    /// Task Management Function Request, from an initiator.
    TMF_REQUEST = 0x02;
    /// Login Request, from an initiator.
    LOGIN_REQUEST = 0x03;
    /// Text Request, from an initiator.
    TEXT_REQUEST = 0x04;
    /// SCSI Data-Out, from an initiator.
    DATA_OUT = 0x05;
    /// Logout Request, from an initiator.
    LOGOUT_REQUEST = 0x06;
    /// SNACK Request, from an initiator.
    SNACK = 0x10;
    /// NOP-In, from a target.
    NOP_IN = 0x20;
    /// SCSI Response, from a target.
    SCSI_RESPONSE = 0x21;
    /// Task Management Function Response, from a target.
    TMF_RESPONSE = 0x22;
    /// Login Response, from a target.
    LOGIN_RESPONSE = 0x23;
    /// Text Response, from a target.
    TEXT_RESPONSE = 0x24;
    /// SCSI Data-In, from a target.
    DATA_IN = 0x25;
    /// Logout Response, from a target.
    LOGOUT_RESPONSE = 0x26;
    /// Ready To Transfer, from a target.
    R2T = 0x31;
    /// Asynchronous Message, from a target.
    ASYNC_MESSAGE = 0x32;
    /// Reject, from a target.
    REJECT = 0x3f;
}

/// An initiator task tag (ITT): names a task from its first PDU to its last (§4.2.2.1, §11.2.1.8).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Itt(pub u32);

impl Itt {
    /// The reserved tag that names no task.
    pub const NONE: Self = Self(u32::MAX);
}

/// A target transfer tag (TTT): the name that the target gives to an R2T, a ping, or a text negotiation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Ttt(pub u32);

impl Ttt {
    /// The reserved tag that names nothing.
    pub const NONE: Self = Self(u32::MAX);
}

/// The three sequence numbers that nearly every PDU of a target carries.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TargetSn {
    /// StatSN: the number of this status, or the next one if the PDU carries no status.
    pub stat_sn: StatSn,
    /// ExpCmdSN: the next command number that the target expects; all commands before it have arrived.
    pub exp_cmd_sn: CmdSn,
    /// MaxCmdSN: the last command number that the initiator may use now.
    pub max_cmd_sn: CmdSn,
}

/// Returns the value of a Residual Count field (§11.4.5).
pub(crate) const fn residual_count(residual: Residual) -> u32 {
    match residual {
        Residual::None => 0,
        Residual::Overflow(by) | Residual::Underflow(by) => by,
    }
}

/// Returns the flag of a residual count, where `overflow` and `underflow` are the flags of the PDU.
pub(crate) const fn residual_flags(residual: Residual, overflow: u8, underflow: u8) -> u8 {
    match residual {
        Residual::None => 0,
        Residual::Overflow(_) => overflow,
        Residual::Underflow(_) => underflow,
    }
}

/// Returns the residual count that the flags and the field of a PDU state.
pub(crate) const fn read_residual(
    flags: u8,
    overflow: u8,
    underflow: u8,
    count: u32,
) -> Result<Residual, Malformed> {
    match (flags & overflow != 0, flags & underflow != 0) {
        //= rfc7143#section-11.4.5.1
        //# If neither bit is set, the Residual Count field MUST be ignored on reception and SHOULD be set
        //# to 0 when sending.
        (false, false) => Ok(Residual::None),
        (true, false) => Ok(Residual::Overflow(count)),
        (false, true) => Ok(Residual::Underflow(count)),
        (true, true) => Err(Malformed::OverflowAndUnderflow),
    }
}

/// The rule that a header breaks by itself, whatever the state of its connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Malformed {
    /// The opcode is not the expected one.
    #[error("the opcode is not the expected one")]
    OtherOpcode,
    /// A login or text PDU is final (or requests transit) and also has the C bit set.
    #[error("the F or T bit and the C bit are both set")]
    FinalAndContinue,
    /// The task attribute is a reserved value.
    #[error("the task attribute is a reserved value")]
    ReservedAttribute,
    /// F is 0, so data would follow, but W is 0 too.
    #[error("the F bit announces unsolicited data, but the W bit is 0")]
    UnsolicitedWithoutWrite,
    /// The reason code of a logout is a reserved value.
    #[error("the reason of the logout is a reserved value")]
    ReservedLogoutReason,
    /// An R2T requests zero bytes.
    #[error("the R2T asks for no data")]
    EmptyR2t,
    /// Both residual bits are set.
    #[error("the residual overflow and underflow bits are both set")]
    OverflowAndUnderflow,
    /// A Data-In carries status but is not final.
    #[error("the S bit is set, but the F bit is not")]
    StatusBeforeFinal,
    /// The additional header segments are inconsistent.
    #[error("the additional header segments are inconsistent")]
    BadAhs,
}

/// The immediate-delivery bit of the first byte.
const IMMEDIATE: u8 = 0x40;
const OPCODE_MASK: u8 = 0x3f;
/// The final bit of the second byte.
const FINAL: u8 = 0x80;
/// The continue bit of the second byte of login and text PDUs.
const CONTINUE: u8 = 0x40;

const fn first_byte(opcode: Opcode, immediate: bool) -> u8 {
    opcode.0 | if immediate { IMMEDIATE } else { 0 }
}

const fn bit(on: bool, mask: u8) -> u8 {
    if on { mask } else { 0 }
}

fn expect(bhs: &Bhs, opcode: Opcode) -> Result<(), Malformed> {
    if bhs.opcode() == opcode { Ok(()) } else { Err(Malformed::OtherOpcode) }
}

#[cfg(test)]
mod tests;
