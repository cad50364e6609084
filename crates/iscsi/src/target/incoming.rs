//! A PDU between its header and its last byte. It is decoded once, when its header is complete, and kept here
//! with the decisions that its header allowed, until its data segment is received too.

use super::arena::Key;
use super::protocol_error::ProtocolError;
use crate::pdu::data_out::DataOut;
use crate::pdu::logout_request::LogoutRequest;
use crate::pdu::nop_out::NopOut;
use crate::pdu::scsi_command::ScsiCommand;
use crate::pdu::snack::Snack;
use crate::pdu::text_request::TextRequest;
use crate::pdu::tmf_request::TmfRequest;
use crate::pdu::{Bhs, Malformed, Opcode, PduHeader};

/// A PDU of the Full Feature Phase whose header is complete.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Incoming {
    /// A SCSI Command, or the rule that its header breaks by itself.
    Command(Result<IncomingCommand, Malformed>),
    /// A Data-Out, and how it fits into the sequences that are expected.
    DataOut(DataOut, DataOutCheck),
    /// A PDU of another kind, or the rule that its header breaks by itself.
    Control(Result<ControlPdu, ProtocolError>),
}

/// A SCSI Command, and the check of its unsolicited data.
#[derive(Clone, Copy, Debug)]
pub(crate) struct IncomingCommand {
    pub(crate) command: ScsiCommand,
    /// The length of its immediate data.
    pub(crate) immediate_len: u32,
    /// The maximum length of its unsolicited data, immediate data included.
    pub(crate) unsolicited_len: u32,
    /// The rule that its unsolicited data breaks.
    pub(crate) broken: Option<ProtocolError>,
}

/// How a Data-Out fits into the sequences that are expected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum DataOutCheck {
    /// It belongs to a sequence of this task.
    Accepted(Key),
    /// It belongs to a sequence of this task, but its data is discarded.
    Skipped(Key),
    /// It names this task and breaks a rule.
    Refused(Key, ProtocolError),
    /// No task expects it any more.
    Stale,
}

/// A PDU that is neither a command nor Data-Out.
#[derive(Clone, Copy, Debug)]
pub(crate) enum ControlPdu {
    NopOut(NopOut),
    Text(TextRequest),
    Logout(LogoutRequest),
    Tmf(TmfRequest),
    Snack(Snack),
}

impl ControlPdu {
    /// Decodes the header of a PDU that is neither a command nor Data-Out.
    pub(crate) fn decode(bhs: &Bhs) -> Result<Self, ProtocolError> {
        Ok(match bhs.opcode() {
            Opcode::NOP_OUT => Self::NopOut(NopOut::decode(bhs)?),
            Opcode::TEXT_REQUEST => Self::Text(TextRequest::decode(bhs)?),
            Opcode::LOGOUT_REQUEST => Self::Logout(LogoutRequest::decode(bhs)?),
            Opcode::TMF_REQUEST => Self::Tmf(TmfRequest::decode(bhs)?),
            Opcode::SNACK => Self::Snack(Snack::decode(bhs)?),
            //= rfc7143#section-4.2.4
            //# Login Requests and Responses MUST be used exclusively during login.
            //= rfc7143#section-4.2.4
            //# a subsequent Login Phase MUST NOT occur before tearing down the connection.
            Opcode::LOGIN_REQUEST => return Err(ProtocolError::LoginAfterLogin),
            Opcode(0x20..=0x3f) => return Err(ProtocolError::TargetPdu),
            _ => return Err(ProtocolError::UnknownOpcode),
        })
    }
}
