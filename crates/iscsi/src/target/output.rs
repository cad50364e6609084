//! What a connection sends: the entries of its send queue, and control PDUs.

use alloc::boxed::Box;
use alloc::vec::Vec;

use base::buffer::Bytes;

use super::arena::Key;
use crate::pdu::async_message::AsyncMessage;
use crate::pdu::login_response::LoginResponse;
use crate::pdu::logout_response::LogoutResponse;
use crate::pdu::nop_in::NopIn;
use crate::pdu::reject::Reject;
use crate::pdu::text_response::TextResponse;
use crate::pdu::tmf_response::TmfResponse;
use crate::pdu::{Bhs, Itt, PduHeader, TargetSn, Ttt};

/// An entry of the send queue. PDUs are built when they are sent: sequence numbers and data are filled in
/// then.
#[derive(Debug)]
pub(crate) enum Output {
    /// The Data-In and the status of a task, as far as they are available.
    Task(Key),
    /// An R2T of a task.
    R2t(Key, Ttt),
    /// The Data-In and R2T PDUs of a task that were asked for again.
    ResendData(Key),
    /// The statuses that were asked for again.
    ResendStatus,
    /// A mark that sends nothing: when it reaches the front, all output queued before it was sent.
    FenceMark(u32),
    /// A control PDU.
    Control(Box<(Control, Body)>),
}

/// A PDU that has little or no data, without its counters.
#[derive(Clone, Copy, Debug)]
//= rfc7143#section-11.2.1.2
//# Initiators MUST NOT use target Opcodes, and targets MUST NOT use initiator Opcodes.
pub(crate) enum Control {
    NopIn(NopIn),
    Tmf(TmfResponse),
    Text(TextResponse),
    Logout(LogoutResponse),
    Async(AsyncMessage),
    Reject(Reject),
    Login(LoginResponse),
}

/// The data of a control PDU.
#[derive(Debug)]
pub(crate) enum Body {
    Empty,
    Text(Vec<u8>),
    Echo(Bytes),
}

/// How many bytes the queued control PDUs of one connection may take: a few pings of the longest kind.
pub(crate) const MAX_CONTROL_BYTES: usize = 4 << 20;

impl Body {
    /// Returns a copy. Shared bytes are not copied.
    pub(crate) fn again(&self) -> Self {
        match self {
            Self::Empty => Self::Empty,
            Self::Text(text) => Self::Text(text.clone()),
            Self::Echo(bytes) => Self::Echo(bytes.clone()),
        }
    }

    /// Returns how many bytes of memory it takes.
    pub(crate) fn held(&self) -> usize {
        match self {
            Self::Empty => 0,
            Self::Text(text) => text.len(),
            Self::Echo(bytes) => bytes.block_len(),
        }
    }

    pub(crate) fn bytes(&self) -> &[u8] {
        match self {
            Self::Empty => &[],
            Self::Text(text) => text,
            Self::Echo(bytes) => bytes,
        }
    }
}

impl Control {
    /// Fills in the counters. Returns the header, and whether the PDU takes a status number.
    pub(crate) fn encode(self, sn: TargetSn) -> (Bhs, bool) {
        match self {
            // §11.19.2: a ping of ours, or a bare update of counters, takes no status number.
            Self::NopIn(pdu) => (NopIn { sn, ..pdu }.encode(), pdu.itt != Itt::NONE),
            Self::Tmf(pdu) => (TmfResponse { sn, ..pdu }.encode(), true),
            Self::Text(pdu) => (TextResponse { sn, ..pdu }.encode(), true),
            Self::Logout(pdu) => (LogoutResponse { sn, ..pdu }.encode(), true),
            Self::Async(pdu) => (AsyncMessage { sn, ..pdu }.encode(), true),
            Self::Reject(pdu) => (Reject { sn, ..pdu }.encode(), true),
            Self::Login(pdu) => (LoginResponse { sn, ..pdu }.encode(), true),
        }
    }
}
