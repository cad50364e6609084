//! The record layer of TLS 1.3 after a handshake (RFC 8446 §5): protects and opens records, changes keys, and
//! handles alerts and the messages that may follow a handshake. It does no I/O.
//!
//! Bounds: a record is as long as the standard allows, a handshake message that arrives in parts has
//! [`HANDSHAKE_LEN_MAX`] bytes, and [`FRUITLESS_MAX`] records without application data may follow each other.

#[cfg(test)]
mod tests;

use zeroize::Zeroizing;

use crate::alert;
use crate::keys::{
    ALERT, APPLICATION_DATA, Direction, HANDSHAKE, HEADER_LEN, PLAIN_LEN_MAX, SEALED_LEN_MAX, SEQUENCE_MAX,
    Suite,
};

/// The longest handshake message that is put together from records.
const HANDSHAKE_LEN_MAX: usize = 1 << 16;

/// How many records without application data may follow each other: key updates, tickets, and empty records.
const FRUITLESS_MAX: u8 = 32;

/// The types of handshake messages that may follow a handshake (RFC 8446 §B.3).
const NEW_SESSION_TICKET: u8 = 4;
const KEY_UPDATE: u8 = 24;

/// A handshake message has its type and its length before its body.
const MESSAGE_HEADER_LEN: usize = 4;

/// The header of a KeyUpdate: its type and its length, which is always the same.
const KEY_UPDATE_HEADER: [u8; MESSAGE_HEADER_LEN] = [KEY_UPDATE, 0, 0, 1];

/// The alerts that are sent or have a meaning of their own (RFC 8446 §B.2).
const CLOSE_NOTIFY: u8 = 0;
const USER_CANCELED: u8 = 90;
const WARNING: u8 = 1;
const FATAL: u8 = 2;

/// Which end of the connection this is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Role {
    Client,
    Server,
}

/// What a record contained.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Received<'a> {
    /// Application data.
    Data(&'a [u8]),
    /// Nothing for the application.
    Nothing,
    /// The other end sends nothing more.
    Closed,
}

/// What ends a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Violation {
    #[error("a record is not authentic")]
    BadRecordMac,
    #[error("a record is too long")]
    RecordOverflow,
    #[error("a record or a message is not allowed here")]
    UnexpectedMessage,
    #[error("a message is malformed")]
    DecodeError,
    #[error("a field has a value that is not allowed")]
    IllegalParameter,
    #[error("too many records without data follow each other")]
    TooManyFruitless,
    #[error("the keys cannot be used; this is a bug in targe")]
    InternalError,
    #[error("the other end sent the alert {}", alert::describe(*.0))]
    AlertReceived(u8),
}

impl Violation {
    /// Returns the alert that answers it; an alert is not answered.
    const fn alert(self) -> Option<u8> {
        match self {
            Self::UnexpectedMessage | Self::TooManyFruitless => Some(10),
            Self::BadRecordMac => Some(20),
            Self::RecordOverflow => Some(22),
            Self::IllegalParameter => Some(47),
            Self::DecodeError => Some(50),
            Self::InternalError => Some(80),
            Self::AlertReceived(_) => None,
        }
    }
}

/// Returns the length of the first record, with its header, if all of it is there.
pub(crate) fn first_record(bytes: &[u8]) -> Result<Option<usize>, Violation> {
    let Some((header, rest)) = bytes.split_first_chunk::<HEADER_LEN>() else { return Ok(None) };
    let [_, _, _, high, low] = *header;
    let len = usize::from(u16::from_be_bytes([high, low]));
    if len > SEALED_LEN_MAX {
        return Err(Violation::RecordOverflow);
    }
    Ok((rest.len() >= len).then_some(HEADER_LEN + len))
}

/// Both directions of a connection.
pub(crate) struct RecordLayer {
    role: Role,
    send: Direction,
    receive: Direction,
    /// The beginning of a handshake message whose rest is missing.
    handshake: Vec<u8>,
    /// Whether the other end has asked for new keys of this end, which have not changed since.
    owes_key_update: bool,
    /// How many records without application data were received since one with.
    fruitless: u8,
}

/// The state of a record layer, as it moves to another process.
#[derive(Clone, PartialEq, Eq)]
pub struct RecordState {
    /// The number of the cipher suite in TLS.
    pub suite: u16,
    /// What this end sends.
    pub send: DirectionState,
    /// What this end receives.
    pub receive: DirectionState,
    /// The beginning of a handshake message whose rest is missing.
    pub handshake: Vec<u8>,
    /// Whether the other end has asked for new keys of this end, which have not changed since.
    pub owes_key_update: bool,
    /// How many records without application data were received since one with.
    pub fruitless: u8,
}

/// The state of one direction.
#[derive(Clone, PartialEq, Eq)]
pub struct DirectionState {
    /// The traffic secret of the present generation.
    pub secret: Zeroizing<Vec<u8>>,
    /// The number of the next record.
    pub sequence: u64,
}

impl RecordLayer {
    pub(crate) const fn new(role: Role, send: Direction, receive: Direction) -> Self {
        Self { role, send, receive, handshake: Vec::new(), owes_key_update: false, fruitless: 0 }
    }

    /// Handles a record, whose end [`first_record`] found. It is decrypted in place.
    pub(crate) fn receive<'a>(&mut self, record: &'a mut [u8]) -> Result<Received<'a>, Violation> {
        let Some((header, sealed)) = record.split_first_chunk_mut::<HEADER_LEN>() else {
            return Err(Violation::DecodeError);
        };
        let [outer, ..] = *header;
        // A record in the clear, also one of change_cipher_spec, has no place after a handshake.
        if outer != APPLICATION_DATA {
            return Err(Violation::UnexpectedMessage);
        }
        let inner: &'a [u8] = self.receive.open(sealed).ok_or(Violation::BadRecordMac)?;
        if inner.len() > PLAIN_LEN_MAX + 1 {
            return Err(Violation::RecordOverflow);
        }
        let last = inner.iter().rposition(|byte| *byte != 0).ok_or(Violation::UnexpectedMessage)?;
        let (content, padded) = inner.split_at_checked(last).ok_or(Violation::InternalError)?;
        let kind = padded.first().copied().ok_or(Violation::InternalError)?;
        if !self.handshake.is_empty() && kind != HANDSHAKE {
            return Err(Violation::UnexpectedMessage);
        }
        match kind {
            APPLICATION_DATA if content.is_empty() => self.count_fruitless(),
            APPLICATION_DATA => {
                self.fruitless = 0;
                Ok(Received::Data(content))
            }
            HANDSHAKE => {
                self.receive_handshake(content)?;
                self.count_fruitless()
            }
            ALERT => match content {
                // RFC 8446 §5.4: an alert without content ends the connection with unexpected_message.
                [] => Err(Violation::UnexpectedMessage),
                [_, CLOSE_NOTIFY] => Ok(Received::Closed),
                // The alert that ends the connection follows it.
                [_, USER_CANCELED] => self.count_fruitless(),
                [_, alert] => Err(Violation::AlertReceived(*alert)),
                _ => Err(Violation::DecodeError),
            },
            _ => Err(Violation::UnexpectedMessage),
        }
    }

    const fn count_fruitless<'a>(&mut self) -> Result<Received<'a>, Violation> {
        if self.fruitless >= FRUITLESS_MAX {
            return Err(Violation::TooManyFruitless);
        }
        self.fruitless += 1;
        Ok(Received::Nothing)
    }

    fn receive_handshake(&mut self, content: &[u8]) -> Result<(), Violation> {
        if content.is_empty() {
            return Err(Violation::UnexpectedMessage);
        }
        if self.handshake.len() + content.len() > HANDSHAKE_LEN_MAX {
            return Err(Violation::RecordOverflow);
        }
        self.handshake.extend_from_slice(content);
        while let Some(kind) = self.handshake.first().copied() {
            let is_allowed = kind == KEY_UPDATE || kind == NEW_SESSION_TICKET && self.role == Role::Client;
            if !is_allowed {
                return Err(Violation::UnexpectedMessage);
            }
            let header = self.handshake.get(..MESSAGE_HEADER_LEN).unwrap_or(&self.handshake);
            // A part that another process would refuse in an upgrade is refused at once.
            if kind == KEY_UPDATE && !KEY_UPDATE_HEADER.starts_with(header) {
                return Err(Violation::DecodeError);
            }
            let Some([_, a, b, c]) = self.handshake.first_chunk::<MESSAGE_HEADER_LEN>().copied() else {
                return Ok(());
            };
            let len = usize::try_from(u32::from_be_bytes([0, a, b, c])).unwrap_or(usize::MAX);
            if len > HANDSHAKE_LEN_MAX {
                return Err(Violation::DecodeError);
            }
            let end = MESSAGE_HEADER_LEN + len;
            if self.handshake.len() < end {
                return Ok(());
            }
            if kind == KEY_UPDATE {
                return self.receive_key_update();
            }
            // Sessions are not resumed, so a ticket is of no use.
            self.handshake.drain(..end);
        }
        Ok(())
    }

    /// Handles a KeyUpdate, after which the record must end: what follows has other keys.
    fn receive_key_update(&mut self) -> Result<(), Violation> {
        match self.handshake.get(MESSAGE_HEADER_LEN..) {
            Some([0]) => {}
            Some([1]) => self.owes_key_update = true,
            Some([_]) => return Err(Violation::IllegalParameter),
            _ => return Err(Violation::UnexpectedMessage),
        }
        self.handshake.clear();
        self.receive.change_keys().ok_or(Violation::InternalError)
    }

    /// Returns whether the other end waits for new keys of this end.
    pub(crate) const fn owes_key_update(&self) -> bool {
        self.owes_key_update
    }

    /// Appends records with application data to `out`.
    pub(crate) fn seal_data(&mut self, bytes: &[u8], out: &mut Vec<u8>) -> Result<(), Violation> {
        for content in bytes.chunks(PLAIN_LEN_MAX) {
            if self.send.is_worn() {
                self.seal_key_update(out)?;
            }
            self.send.seal(APPLICATION_DATA, content, out).ok_or(Violation::InternalError)?;
        }
        Ok(())
    }

    /// Appends a KeyUpdate to `out`, and changes the keys of this end.
    pub(crate) fn seal_key_update(&mut self, out: &mut Vec<u8>) -> Result<(), Violation> {
        self.owes_key_update = false;
        let message = [KEY_UPDATE, 0, 0, 1, 0];
        self.send.seal(HANDSHAKE, &message, out).ok_or(Violation::InternalError)?;
        self.send.change_keys().ok_or(Violation::InternalError)
    }

    /// Appends to `out` that nothing more is sent.
    pub(crate) fn seal_close_notify(&mut self, out: &mut Vec<u8>) -> Result<(), Violation> {
        self.send.seal(ALERT, &[WARNING, CLOSE_NOTIFY], out).ok_or(Violation::InternalError)
    }

    /// Appends the alert for a violation to `out`, if it has one.
    pub(crate) fn seal_alert(&mut self, why: Violation, out: &mut Vec<u8>) {
        if let Some(alert) = why.alert() {
            // Without the alert the connection ends all the same.
            let _ = self.send.seal(ALERT, &[FATAL, alert], out);
        }
    }

    /// Returns the state. Nothing may be sealed after that if another process goes on with the state.
    pub(crate) fn state(&self) -> RecordState {
        let of = |direction: &Direction| DirectionState {
            secret: direction.secret().clone(),
            sequence: direction.sequence(),
        };
        RecordState {
            suite: self.send.suite().code(),
            send: of(&self.send),
            receive: of(&self.receive),
            handshake: self.handshake.clone(),
            owes_key_update: self.owes_key_update,
            fruitless: self.fruitless,
        }
    }

    /// Returns the record layer of a server with this state. Returns `None` if it is none that
    /// [`Self::state`] can return.
    pub(crate) fn of_server(state: RecordState) -> Option<Self> {
        let RecordState { suite, send, receive, handshake, owes_key_update, fruitless } = state;
        let suite = Suite::by_code(suite)?;
        // The only message that can be there in part is a KeyUpdate.
        let is_legal = send.sequence <= suite.records_max().saturating_add(1)
            && receive.sequence <= SEQUENCE_MAX
            && KEY_UPDATE_HEADER.starts_with(&handshake)
            && fruitless <= FRUITLESS_MAX;
        is_legal.then_some(())?;
        let send = Direction::new(suite, send.secret, send.sequence)?;
        let receive = Direction::new(suite, receive.secret, receive.sequence)?;
        Some(Self { role: Role::Server, send, receive, handshake, owes_key_update, fruitless })
    }
}
