//! The slot of a connection in its session, and the connection in it: the state of its stream, its negotiated
//! parameters, and its queue of PDUs to send.

use alloc::boxed::Box;
use alloc::collections::VecDeque;
use alloc::vec::Vec;
use core::net::SocketAddr;

use base::buffer::Pool;
use base::state_machine::ConnId;
use base::time::{Duration, Instant};

use super::contract::Slot;
use super::host_addresses::HostAddresses;
use super::protocol_error::ProtocolError;
use super::text_exchange::TextExchange;
use crate::aead::{Decryptor, RecordKeys};
use crate::framing::{Framing, Receiver};
use crate::keys::{DEFAULT_MAX_RECV_DATA_SEGMENT_LENGTH, Role};
use crate::login::directory::TargetAddress;
use crate::login::initiator::InitiatorLogin;
use crate::negotiate::ConnectionParameters;
use crate::negotiate::pdu_codec::PduCodec;
use crate::pdu::Itt;
use crate::pdu::login_request::LoginRequest;
use crate::pdu::logout_request::LogoutRequest;
use crate::pdu::nop_out::NopOut;
use crate::pdu::snack::Snack;
use crate::pdu::text_request::TextRequest;
use crate::pdu_writer::PduWriter;
use crate::recovery::RecoveryLevel;
use crate::serial::StatSn;
use crate::target::arena::Key;

/// A slot for a connection.
#[derive(Debug, Default)]
pub(super) struct ConnectionSlot {
    pub(super) state: ConnectionState,
    pub(super) connection: Option<Box<Connection>>,
    pub(super) deadlines: Deadlines,
    /// The index of the portal to use, and the address to which the target redirected the initiator.
    pub(super) portal: usize,
    pub(super) redirected: Option<TargetAddress>,
    pub(super) redirects: u32,
    /// The addresses of the portal, and those of the place of the redirection.
    pub(super) portal_addresses: HostAddresses,
    pub(super) redirect_addresses: HostAddresses,
    /// When the time of the present attempt ends, over all its addresses.
    pub(super) attempt_end: Instant,
    /// How many attempts in a row failed.
    pub(super) attempts: u32,
    /// The state of the recovery logout of the slot's old connection, which its detached tasks need.
    pub(super) recovery_logout: RecoveryLogout,
    /// The tag of the logout of the slot's own connection, if one was sent.
    pub(super) logout: Option<Itt>,
    pub(super) up_since: Instant,
    /// How long the target wants the initiator to wait after the next loss (Time2Wait).
    pub(super) wait: Option<Duration>,
}

/// The state of a slot.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum ConnectionState {
    /// No connection is wanted.
    #[default]
    Idle,
    /// The next attempt waits for its time.
    Waiting,
    /// The owner is opening a connection.
    Connecting,
    /// The connection is open and logs in.
    LoggingIn,
    /// The connection is in full feature phase.
    Up,
    /// The connection is in full feature phase, but gets no new tasks.
    Draining,
    /// A Logout Request was sent, and no other request follows it.
    LoggingOut,
}

/// The state of the recovery logout of a lost connection, which makes its detached tasks reassignable.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum RecoveryLogout {
    /// There are no detached tasks, or no logout was sent yet.
    #[default]
    None,
    /// A logout for recovery was sent on another connection.
    Asked { by: Slot, itt: Itt },
    /// The target has ended the lost connection; Time2Wait passes.
    Time2Wait,
}

/// The timers of a slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Timer {
    /// The next attempt to connect.
    Retry,
    /// Connecting and login.
    Login,
    /// Silence: time to ping, or to give the connection up.
    Silence,
    /// The logout of the connection.
    Logout,
    /// Three quarters of the time within which the target requested a logout.
    Drain,
    /// Time2Wait before the detached tasks are reassigned.
    Reassign,
    /// The next check for missing PDUs.
    Retransmit,
    /// Statuses that no PDU acknowledged yet.
    Acknowledge,
}

/// Every timer, in the order of the table.
pub(super) const TIMERS: [Timer; 8] = [
    Timer::Retry,
    Timer::Login,
    Timer::Silence,
    Timer::Logout,
    Timer::Drain,
    Timer::Reassign,
    Timer::Retransmit,
    Timer::Acknowledge,
];

/// The deadline of each timer of a slot.
#[derive(Debug, Default)]
pub(super) struct Deadlines([Option<Instant>; TIMERS.len()]);

impl Deadlines {
    pub(super) fn set(&mut self, timer: Timer, at: Instant) {
        if let Some(slot) = self.0.get_mut(timer as usize) {
            *slot = Some(at);
        }
    }

    /// Sets the timer, unless it expires before.
    pub(super) fn set_earlier(&mut self, timer: Timer, at: Instant) {
        if let Some(slot) = self.0.get_mut(timer as usize) {
            *slot = Some(slot.map_or(at, |set| set.min(at)));
        }
    }

    pub(super) fn clear(&mut self, timer: Timer) {
        if let Some(slot) = self.0.get_mut(timer as usize) {
            *slot = None;
        }
    }

    pub(super) fn clear_all(&mut self) {
        *self = Self::default();
    }

    pub(super) fn is_set(&self, timer: Timer) -> bool {
        self.0.get(timer as usize).is_some_and(Option::is_some)
    }

    pub(super) fn next(&self) -> Option<Instant> {
        self.0.iter().flatten().min().copied()
    }

    /// Clears the timer and returns true if it expired.
    pub(super) fn expired(&mut self, timer: Timer, now: Instant) -> bool {
        self.0.get_mut(timer as usize).is_some_and(|slot| slot.take_if(|at| *at <= now).is_some())
    }
}

/// A connection.
#[derive(Debug)]
pub(super) struct Connection {
    pub(super) conn: ConnId,
    /// Whether the driver has already ended the connection.
    pub(super) gone: bool,
    /// The receiver of the connection; `None` while bytes are being read.
    pub(super) receiver: Option<Box<Receiver>>,
    pub(super) framing: Framing,
    /// What opens the PDUs after the last one of the login, until the receiver takes it.
    pub(super) decryptor: Option<Box<Decryptor>>,
    pub(super) writer: PduWriter,
    pub(super) incoming: Incoming,
    /// The login, until it is complete.
    pub(super) login: Option<Box<InitiatorLogin>>,
    pub(super) parameters: ConnectionParameters,
    /// The next expected StatSN; and the ranges of later StatSNs that were received, in order, each with the
    /// number after its last.
    pub(super) exp_stat_sn: StatSn,
    pub(super) ahead: Vec<(StatSn, StatSn)>,
    /// Received statuses whose data is missing: acknowledging them would acknowledge the data too.
    pub(super) withheld_statuses: Vec<StatSn>,
    /// The StatSN up to which missing statuses were requested.
    pub(super) statuses_asked: StatSn,
    /// The StatSN that was acknowledged last, and since when there is more to acknowledge.
    pub(super) acked_stat_sn: StatSn,
    pub(super) unacked_since: Option<Instant>,
    /// The text negotiation that runs on the connection and is not the owner's.
    pub(super) own_text: Option<Box<TextExchange>>,
    pub(super) out: VecDeque<QueuedPdu>,
    pub(super) controls: usize,
    /// Whether the driver was told that there is data to send.
    pub(super) transmit_requested: bool,
    /// The number of tasks with allegiance to the connection, and the sum of their
    /// [`weight`](super::task::Task::weight).
    pub(super) tasks: u32,
    pub(super) weight: u64,
    /// When the target last sent anything.
    pub(super) heard: Instant,
    /// The tag of the unanswered ping, and when it was sent.
    pub(super) ping: Option<(Itt, Instant)>,
    /// When the last answered ping was sent. A PDU that was sent before and is not acknowledged was lost.
    pub(super) last_answered_ping: Instant,
    /// Whether a PDU was lost since the last check.
    pub(super) damaged: bool,
    /// Whether data, or a status that was missing, arrived since the last check.
    pub(super) progressed: bool,
    /// How many checks in a row found PDUs missing and no progress.
    pub(super) repairs: u32,
    /// How many checks in a row left missing PDUs to arrive because there was progress.
    pub(super) unrequested: u32,
    /// Tasks to be reassigned to the connection, and how many TASK REASSIGN requests are open.
    pub(super) to_reassign: VecDeque<Key>,
    pub(super) open_reassigns: u32,
}

/// What is done with the data segment that is being received.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Incoming {
    /// Its header determines that.
    Plain,
    /// The segment is data of this task.
    Data(Key),
    /// No task waits for the segment any more.
    Stray,
}

/// A queue entry to send. The PDU is built when it is sent: its numbers and data are filled in then.
#[derive(Debug)]
pub(super) enum QueuedPdu {
    /// A command with its immediate data.
    Command(Key),
    /// Unsolicited data that follows a command.
    Unsolicited(Key),
    /// The answer to an R2T, by its R2TSN.
    SolicitedData(Key, u32),
    /// A task management request.
    Tmf(Key),
    /// Any other PDU.
    Control(Box<(ControlPdu, Vec<u8>)>),
}

/// A small PDU without its sequence numbers.
#[derive(Clone, Copy, Debug)]
//= rfc7143#section-11.2.1.2
//# Initiators MUST NOT use target Opcodes, and targets MUST NOT use initiator Opcodes.
pub(super) enum ControlPdu {
    Nop(NopOut),
    Text(TextRequest),
    Logout(LogoutRequest),
    Login(LoginRequest),
    Snack(Snack),
}

/// How far a received StatSN may be ahead of the first missing one, and the most gaps in between: enough for
/// a full command window and a Reject for each Data-Out PDU of it.
const MAX_STATUSES_AHEAD: u32 = 1 << 16;
const MAX_STATUS_GAPS: usize = 256;

/// Returns whether `sn` lies in `from..to`.
const fn is_within(sn: StatSn, from: StatSn, to: StatSn) -> bool {
    from.distance_to(sn) < from.distance_to(to)
}

impl Connection {
    pub(super) fn new(now: Instant, conn: ConnId, login: InitiatorLogin) -> Self {
        let framing = Framing {
            header_digest: false,
            data_digest: false,
            // RFC 7143 §13.12: a declared length holds from full feature phase on.
            data_len_max: DEFAULT_MAX_RECV_DATA_SEGMENT_LENGTH,
            //= rfc7143#section-7.1.4
            //# The use of within-connection and within-command recovery classes MUST NOT be attempted before
            //# the connection is in the Full Feature Phase.
            resync: false,
        };
        Self {
            conn,
            gone: false,
            receiver: Some(Box::new(Receiver::new(framing))),
            framing,
            decryptor: None,
            writer: PduWriter::default(),
            incoming: Incoming::Plain,
            login: Some(Box::new(login)),
            parameters: ConnectionParameters::default(),
            exp_stat_sn: StatSn(0),
            ahead: Vec::new(),
            withheld_statuses: Vec::new(),
            statuses_asked: StatSn(0),
            acked_stat_sn: StatSn(0),
            unacked_since: None,
            own_text: None,
            out: VecDeque::new(),
            controls: 0,
            transmit_requested: false,
            tasks: 0,
            weight: 0,
            heard: now,
            ping: None,
            last_answered_ping: Instant::ORIGIN,
            damaged: false,
            progressed: false,
            repairs: 0,
            unrequested: 0,
            to_reassign: VecDeque::new(),
            open_reassigns: 0,
        }
    }

    /// Begins full feature phase with what was negotiated. `record_keys` are those of an AEAD digest.
    ///
    /// # Errors
    /// `Bug`: an AEAD digest was negotiated and there are no keys. The connection must not go on in the
    /// clear.
    pub(super) fn enter_full_feature(
        &mut self,
        parameters: ConnectionParameters,
        level: RecoveryLevel,
        record_keys: Option<RecordKeys>,
        pool: &Pool,
    ) -> Result<(), ProtocolError> {
        let codec = PduCodec::new(Role::Initiator, &parameters, level, record_keys, pool);
        let PduCodec { framing, decryptor, writer } = codec.ok_or(ProtocolError::Bug)?;
        (self.framing, self.decryptor, self.writer) = (framing, decryptor, writer);
        (self.login, self.parameters) = (None, parameters);
        self.statuses_asked = self.exp_stat_sn;
        self.record_ack(self.exp_stat_sn);
        Ok(())
    }

    /// Returns the longest data segment that may be sent, in bytes.
    pub(super) fn segment_max(&self) -> u32 {
        u32::try_from(self.writer.segment_max()).unwrap_or(u32::MAX).min(self.parameters.target_max_recv)
    }

    /// Returns the ExpStatSN to send: it acknowledges all statuses before it, and the data of their commands.
    pub(super) fn acknowledged(&self) -> StatSn {
        //= rfc7143#section-7.9
        //# If the initiator wants to recover the missing data for a command, it MUST NOT acknowledge the
        //# received responses that start from the StatSN of the relevant command until it has completed
        //# receiving all the data PDUs of the command.
        //= rfc7143#section-11.16.1
        //# Data/R2T SNACK, Status SNACK, or R-Data SNACK for a command MUST precede status acknowledgment for
        //# the given command.
        let held = self.withheld_statuses.iter().copied();
        held.fold(self.exp_stat_sn, |first, sn| if sn.before(first) { sn } else { first })
    }

    /// Records that a PDU is sent which acknowledges all statuses before `sn`.
    pub(super) fn record_ack(&mut self, sn: StatSn) {
        self.acked_stat_sn = sn;
        if !self.holds_back() {
            self.unacked_since = None;
        }
    }

    /// Returns whether a status was received that cannot be acknowledged yet.
    pub(super) fn holds_back(&self) -> bool {
        !self.withheld_statuses.is_empty() || !self.ahead.is_empty()
    }

    /// Checks a StatSN and records that it was received. Returns `false` if it was received before. `on_gap`
    /// is the error if a StatSN other than the next is one.
    pub(super) fn take_status(
        &mut self,
        sn: StatSn,
        on_gap: Result<(), ProtocolError>,
    ) -> Result<bool, ProtocolError> {
        //= rfc7143#section-4.2.2.2
        //# Initiators and targets MUST support the response-numbering scheme.
        if sn == self.exp_stat_sn {
            self.progressed |= !self.ahead.is_empty();
            self.exp_stat_sn = sn.next();
            self.ahead.retain(|(from, to)| {
                if *from == self.exp_stat_sn {
                    self.exp_stat_sn = *to;
                    return false;
                }
                true
            });
            return Ok(true);
        }
        on_gap?;
        if sn.before(self.exp_stat_sn) || self.ahead.iter().any(|(from, to)| is_within(sn, *from, *to)) {
            return Ok(false);
        }
        //= rfc7143#section-4.2.2.2
        //# Initiators MUST undertake recovery actions if the difference is greater than an
        //# implementation-defined constant that MUST NOT exceed 2**31 - 1.
        if self.exp_stat_sn.distance_to(sn) > MAX_STATUSES_AHEAD || self.ahead.len() >= MAX_STATUS_GAPS {
            return Err(ProtocolError::StatSnFarAhead);
        }
        let base = self.exp_stat_sn;
        let at = self.ahead.partition_point(|(from, _)| base.distance_to(*from) < base.distance_to(sn));
        self.ahead.insert(at, (sn, sn.next()));
        self.ahead.dedup_by(|next, run| {
            let joins = run.1 == next.0;
            if joins {
                run.1 = next.1;
            }
            joins
        });
        Ok(true)
    }

    /// Returns the first range of statuses that are missing although later ones were received: the first
    /// StatSN and the count.
    pub(super) fn missing_statuses(&self, next: Option<StatSn>) -> Option<(StatSn, u32)> {
        let first = self.ahead.first().map(|(from, _)| *from);
        let end = first.or_else(|| next.filter(|next| next.after(self.exp_stat_sn)))?;
        Some((self.exp_stat_sn, self.exp_stat_sn.distance_to(end)))
    }
}

impl ConnectionSlot {
    /// Returns the addresses of the place where the slot connects now.
    pub(super) const fn addresses(&mut self) -> &mut HostAddresses {
        if self.redirected.is_some() { &mut self.redirect_addresses } else { &mut self.portal_addresses }
    }

    /// Chooses the next address of the present attempt, and the time until which it may take. The addresses
    /// share the time that is left. The addresses of a redirection come before the rest of the portal's.
    pub(super) fn next_address(&mut self, now: Instant) -> Option<(SocketAddr, Instant)> {
        if self.redirect_addresses.untried() == 0 && self.redirected.is_some() {
            self.redirected = None;
            self.redirects = 0;
        }
        let untried = self.redirect_addresses.untried() + self.portal_addresses.untried();
        let share = self.attempt_end.since(now) / u32::try_from(untried).unwrap_or(u32::MAX).max(1);
        Some((self.addresses().next()?, now.after(share)))
    }

    /// Ends the present attempt, whatever addresses are left.
    pub(super) fn stop_attempt(&mut self) {
        self.portal_addresses.stop();
        self.redirect_addresses.stop();
    }

    /// Returns whether the connection of the slot can carry requests.
    pub(super) const fn is_up(&self) -> bool {
        matches!(self.state, ConnectionState::Up | ConnectionState::Draining)
    }
}
