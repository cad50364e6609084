//! A connection: the state of its stream, its negotiated parameters, and its send queue.

use alloc::boxed::Box;
use alloc::collections::VecDeque;
use core::net::IpAddr;

use base::buffer::Pool;
use base::fairness::source;
use base::state_machine::{AcceptInfo, ConnId};
use base::time::Instant;

use super::arena::Key;
use super::contract::ConnectionView;
use super::guess_state::PasswordGuess;
use super::incoming::Incoming;
use super::output::Output;
use super::protection::Protection;
use super::protocol_error::ProtocolError;
use super::states::{self, ConnectionEvent};
use super::status_log::{AckPing, StatusLog};
use super::timer::Deadlines;
use crate::aead::{Decryptor, RecordKeys};
use crate::framing::{Framing, Receiver};
use crate::keys::{DEFAULT_MAX_RECV_DATA_SEGMENT_LENGTH, Role};
use crate::login::directory::ConnectionPath;
use crate::login::target::TargetLogin;
use crate::negotiate::ConnectionParameters;
use crate::negotiate::full_feature::TargetText;
use crate::negotiate::pdu_codec::PduCodec;
use crate::pdu::Ttt;
use crate::pdu_writer::PduWriter;
use crate::recovery::RecoveryLevel;
use crate::serial::{CmdSn, StatSn};

/// A connection.
#[derive(Debug)]
pub(crate) struct Connection {
    pub(crate) via: ConnectionPath,
    pub(crate) state: states::Connection,
    /// Its PDU receiver. It is taken out while received bytes are processed.
    pub(crate) receiver: Option<Box<Receiver>>,
    pub(crate) framing: Framing,
    /// What opens the PDUs after the last one of the login, until the receiver takes it.
    pub(crate) decryptor: Option<Box<Decryptor>>,
    pub(crate) writer: PduWriter,
    /// The PDU whose header is complete and whose data segment is being received, except in the login.
    pub(crate) incoming: Option<Incoming>,
    /// Bytes of the memory quota that are reserved for this data segment.
    pub(crate) reserved: usize,
    /// Its login, while that is under way.
    pub(crate) login: Option<Box<TargetLogin>>,
    /// The try of a password in its login, until that has succeeded or failed.
    pub(crate) guess: Option<Box<PasswordGuess>>,
    /// The next command number while there is no session.
    pub(crate) login_cmd_sn: CmdSn,
    pub(crate) session: Option<Key>,
    /// The session that its login is to join.
    pub(crate) joins: Option<Key>,
    /// The address under which it is counted until it has logged in.
    pub(crate) logs_in_from: Option<IpAddr>,
    pub(crate) cid: u16,
    pub(crate) parameters: ConnectionParameters,
    /// Its protection, once it has logged in.
    pub(crate) protection: Protection,
    /// The number of the next status.
    pub(crate) stat_sn: StatSn,
    /// The number of the first status that the initiator has not acknowledged.
    pub(crate) exp_stat_sn: StatSn,
    /// The ErrorRecoveryLevel of its session.
    pub(crate) level: RecoveryLevel,
    /// From level 1 on: its unacknowledged statuses; the ping that asks the initiator to acknowledge them;
    /// the first unacknowledged one at the last poll.
    pub(crate) status_log: StatusLog,
    pub(crate) ack_ping: Option<AckPing>,
    pub(crate) first_unacked_at_poll: Option<StatSn>,
    pub(crate) send_queue: VecDeque<Output>,
    /// How many control PDUs are queued, and how many bytes the queued and the retained ones take.
    pub(crate) control_queued: usize,
    pub(crate) control_bytes: usize,
    /// How many bytes of text it holds that continues in other PDUs.
    pub(crate) text_bytes: usize,
    /// Whether the driver was asked to transmit.
    pub(crate) transmit_requested: bool,
    /// Whether the connection is closing: nothing more is read.
    pub(crate) closing: bool,
    /// Whether a logout is pending whose response is not sent yet: nothing more is read.
    pub(crate) logging_out: bool,
    pub(crate) deadlines: Deadlines,
    /// When the peer was last heard from, and how many bytes it sent since.
    pub(crate) last_heard: Instant,
    pub(crate) bytes_since_heard: usize,
    /// How many bytes of Data-Out were received, in all and at the last poll at which the connection owed
    /// some.
    pub(crate) data_out_bytes: u64,
    pub(crate) data_out_bytes_at_poll: Option<u64>,
    /// At level 0: since when no Data-Out was received.
    pub(crate) data_idle_since: Option<Instant>,
    /// Whether a task failed because its Data-Out was not received in time, and no Data-Out was received
    /// since.
    pub(crate) data_timed_out: bool,
    /// Whether a command was received since then.
    pub(crate) command_since_timeout: bool,
    /// At how many polls in a row no Data-Out was received.
    pub(crate) data_idle_polls: u32,
    /// The ping that it has not answered.
    pub(crate) ping: Option<Ttt>,
    /// Whether the time to answer the ping has passed, and the connection is kept only because its session is
    /// idle.
    pub(crate) ping_overdue: bool,
    pub(crate) text: TargetText,
}

impl Connection {
    pub(crate) fn new(now: Instant, arrival: &AcceptInfo) -> Self {
        let framing = Framing {
            header_digest: false,
            data_digest: false,
            // RFC 7143 §13.12: the declared value applies from full feature phase on.
            data_len_max: DEFAULT_MAX_RECV_DATA_SEGMENT_LENGTH,
            //= rfc7143#section-7.1.4
            //# The use of within-connection and within-command recovery classes MUST NOT be attempted before
            //# the connection is in the Full Feature Phase.
            resync: false,
        };
        Self {
            via: ConnectionPath::from(arrival),
            state: states::Connection::TransportUp,
            receiver: Some(Box::new(Receiver::new(framing))),
            framing,
            decryptor: None,
            writer: PduWriter::default(),
            incoming: None,
            reserved: 0,
            login: Some(Box::new(TargetLogin::new(now, arrival))),
            guess: None,
            login_cmd_sn: CmdSn(0),
            session: None,
            joins: None,
            logs_in_from: Some(source(arrival.peer)),
            cid: 0,
            parameters: ConnectionParameters::default(),
            protection: Protection::None,
            stat_sn: StatSn(1),
            exp_stat_sn: StatSn(1),
            level: RecoveryLevel::SessionRecovery,
            status_log: StatusLog::new(StatSn(1)),
            ack_ping: None,
            first_unacked_at_poll: None,
            send_queue: VecDeque::new(),
            control_queued: 0,
            control_bytes: 0,
            text_bytes: 0,
            transmit_requested: false,
            closing: false,
            logging_out: false,
            deadlines: Deadlines::default(),
            last_heard: now,
            bytes_since_heard: 0,
            data_out_bytes: 0,
            data_out_bytes_at_poll: None,
            data_idle_since: None,
            data_timed_out: false,
            command_since_timeout: false,
            data_idle_polls: 0,
            ping: None,
            ping_overdue: false,
            text: TargetText::new(),
        }
    }

    /// Begins full feature phase with what was negotiated. `record_keys` are those of an AEAD digest. The
    /// last Login Response is still to be sent.
    ///
    /// # Errors
    /// `Bug`: an AEAD digest was negotiated and there are no keys. The connection must not go on in the
    /// clear.
    pub(crate) fn enter_full_feature(
        &mut self,
        parameters: ConnectionParameters,
        level: RecoveryLevel,
        record_keys: Option<RecordKeys>,
        pool: &Pool,
    ) -> Result<(), ProtocolError> {
        let codec = PduCodec::new(Role::Target, &parameters, level, record_keys, pool);
        let PduCodec { framing, decryptor, mut writer } = codec.ok_or_else(ProtocolError::impossible)?;
        writer.trace = self.writer.trace.take();
        (self.framing, self.decryptor, self.writer) = (framing, decryptor, writer);
        (self.parameters, self.level) = (parameters, level);
        self.exp_stat_sn = self.stat_sn;
        self.status_log = StatusLog::new(self.stat_sn);
        Ok(())
    }

    /// Returns whether received bytes are read.
    pub(crate) const fn is_reading(&self) -> bool {
        !self.closing && !self.logging_out
    }

    /// Moves to the state that `event` leads to. If there is none, the error is our own (`Bug`) and ends the
    /// connection.
    pub(crate) fn on(&mut self, event: ConnectionEvent) -> Result<(), ProtocolError> {
        self.state = self.state.on(event).ok_or_else(ProtocolError::impossible)?;
        Ok(())
    }

    /// Moves to the state that the loss of its transport, or its removal from its session, leads to. A
    /// connection that ended before, without its transport, is only cleaned up.
    pub(crate) fn handle_loss(&mut self) -> Result<(), ProtocolError> {
        match (self.session, self.state) {
            (Some(_), _) => self.on(ConnectionEvent::Lost),
            (None, states::Connection::Free) => Ok(()),
            (None, states::Connection::CleanupWait) => self.on(ConnectionEvent::CleanedUp),
            (None, _) => self.on(ConnectionEvent::LoginFailed),
        }
    }

    /// Returns the connection as monitoring sees it.
    pub(crate) fn view(&self) -> ConnectionView {
        ConnectionView {
            cid: self.cid,
            peer: self.via.peer,
            parameters: self.parameters,
            unacknowledged: self.status_log.len(),
        }
    }

    /// Returns the next status number and advances it.
    pub(crate) const fn use_stat_sn(&mut self) -> StatSn {
        let sn = self.stat_sn;
        self.stat_sn = sn.next();
        sn
    }
}

/// Returns the ConnId as an index.
pub(crate) fn index(conn: ConnId) -> usize {
    usize::try_from(conn.0).unwrap_or(usize::MAX)
}
