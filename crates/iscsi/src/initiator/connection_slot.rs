//! A connection's place in its session, and the connection in it: where its stream stands, what it was agreed to be,
//! and what it has to send.

use alloc::boxed::Box;
use alloc::collections::VecDeque;
use alloc::vec::Vec;

use base::state_machine::ConnId;
use base::time::{Duration, Instant};

use super::contract::Slot;
use super::protocol_error::ProtocolError;
use crate::framing::{Framing, Receiver};
use crate::keys::DEFAULT_MAX_RECV_DATA_SEGMENT_LENGTH;
use crate::login::directory::TargetAddress;
use crate::login::initiator::InitiatorLogin;
use crate::negotiate::ConnectionParameters;
use crate::pdu::Itt;
use crate::pdu::login_request::LoginRequest;
use crate::pdu::logout_request::LogoutRequest;
use crate::pdu::nop_out::NopOut;
use crate::pdu::snack::Snack;
use crate::pdu::text_request::TextRequest;
use crate::pdu_writer::Digests;
use crate::serial::StatSn;
use crate::target::arena::Key;

/// A place.
#[derive(Debug, Default)]
pub(super) struct ConnectionSlot {
    pub(super) state: ConnectionState,
    pub(super) connection: Option<Box<Connection>>,
    pub(super) deadlines: Deadlines,
    /// Which portal is tried, and where the target sent us instead.
    pub(super) portal: usize,
    pub(super) redirected: Option<TargetAddress>,
    pub(super) redirects: u32,
    /// How many attempts in a row failed.
    pub(super) attempts: u32,
    /// How far the old connection of this place is cleaned up for its orphans.
    pub(super) recovery_logout: RecoveryLogout,
    /// Our logout of this place's own connection.
    pub(super) logout: Option<Itt>,
    pub(super) up_since: Instant,
    /// How long the target wants us to stay away after the next loss.
    pub(super) wait: Option<Duration>,
}

/// What happens at a place.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum ConnectionState {
    /// No connection is wanted.
    #[default]
    Idle,
    /// The next attempt waits for its time.
    Waiting,
    /// The owner opens a connection.
    Connecting,
    /// It is open and logs in.
    LoggingIn,
    /// It is in full feature phase.
    Up,
    /// It is in full feature phase, but gets no new tasks.
    Draining,
    /// A logout is on the way.
    LoggingOut,
}

/// How the orphans of a lost connection come free.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum RecoveryLogout {
    /// There are none, or nothing is done yet.
    #[default]
    None,
    /// A logout for recovery is on the way on another connection.
    Asked { by: Slot, itt: Itt },
    /// The target let go; Time2Wait passes.
    Time2Wait,
}

/// Everything at a place that takes time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Timer {
    /// The next attempt to connect.
    Retry,
    /// Connecting and login.
    Login,
    /// Silence: time to ping, or to give up.
    Silence,
    /// A logout of it.
    Logout,
    /// The time that the target left to log it out.
    Drain,
    /// Time2Wait before its orphans are moved.
    Reassign,
    /// A look at what is missing.
    Retransmit,
    /// Statuses that nothing acknowledges.
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

/// When each timer of a place runs out.
#[derive(Debug, Default)]
pub(super) struct Deadlines([Option<Instant>; TIMERS.len()]);

impl Deadlines {
    pub(super) fn set(&mut self, timer: Timer, at: Instant) {
        if let Some(slot) = self.0.get_mut(timer as usize) {
            *slot = Some(at);
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

    /// Clears the timer and returns true if it ran out.
    pub(super) fn expired(&mut self, timer: Timer, now: Instant) -> bool {
        self.0.get_mut(timer as usize).is_some_and(|slot| slot.take_if(|at| *at <= now).is_some())
    }
}

/// A connection.
#[derive(Debug)]
pub(super) struct Connection {
    pub(super) conn: ConnId,
    /// Whether the driver has ended it already.
    pub(super) gone: bool,
    /// Its reader; away while bytes are being read.
    pub(super) receiver: Option<Box<Receiver>>,
    pub(super) framing: Framing,
    pub(super) incoming: Incoming,
    /// Its login, until that is over.
    pub(super) login: Option<Box<InitiatorLogin>>,
    pub(super) parameters: ConnectionParameters,
    /// The next status number; runs of those ahead of it that came, in order, each with the number behind its last.
    pub(super) exp_stat_sn: StatSn,
    pub(super) ahead: Vec<(StatSn, StatSn)>,
    /// Statuses that came, but whose data is missing: to acknowledge them would be to acknowledge the data.
    pub(super) withheld_statuses: Vec<StatSn>,
    /// Up to where missing ones were asked for.
    pub(super) statuses_asked: StatSn,
    /// What was acknowledged last, and since when there is more to acknowledge.
    pub(super) acked_stat_sn: StatSn,
    pub(super) unacked_since: Option<Instant>,
    pub(super) out: VecDeque<QueuedPdu>,
    pub(super) controls: usize,
    /// Whether the driver knows that there is something to send.
    pub(super) transmit_requested: bool,
    /// Tasks that are allegiant to it, and what they weigh.
    pub(super) tasks: u32,
    pub(super) weight: u64,
    /// When the target last showed that it is there.
    pub(super) heard: Instant,
    /// The ping that is not answered, and when it went.
    pub(super) ping: Option<(Itt, Instant)>,
    /// Whatever was sent before this and is not acknowledged did not arrive.
    pub(super) last_answered_ping: Instant,
    /// Whether a PDU was lost since the last look, and how often the same was asked for in vain.
    pub(super) damaged: bool,
    pub(super) repairs: u32,
    /// Tasks to be moved here, and how many requests for that are open.
    pub(super) to_reassign: VecDeque<Key>,
    pub(super) open_reassigns: u32,
}

/// What becomes of the data segment that is coming.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Incoming {
    /// What its header says.
    Plain,
    /// It is data of this task.
    Data(Key),
    /// Nobody waits for it any more.
    Stray,
}

/// Something to send. What is sent late is built late: numbers and data are put in when it leaves.
#[derive(Debug)]
pub(super) enum QueuedPdu {
    /// A command with its immediate data.
    Command(Key),
    /// Data that follows a command unasked.
    Unsolicited(Key),
    /// The answer to an R2T, by the R2T's number.
    SolicitedData(Key, u32),
    /// A task management request.
    Tmf(Key),
    /// Anything else.
    Control(Box<(ControlPdu, Vec<u8>)>),
}

/// A small PDU without its counters.
#[derive(Clone, Copy, Debug)]
pub(super) enum ControlPdu {
    Nop(NopOut),
    Text(TextRequest),
    Logout(LogoutRequest),
    Login(LoginRequest),
    Snack(Snack),
}

/// How far ahead of the first that is missing a status may be, and between how many gaps: a window full of commands
/// and a Reject for each of their data PDUs.
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
            // RFC 7143 §13.12: what is declared holds from full feature phase on.
            data_len_max: DEFAULT_MAX_RECV_DATA_SEGMENT_LENGTH,
            resync: false,
        };
        Self {
            conn,
            gone: false,
            receiver: Some(Box::new(Receiver::new(framing))),
            framing,
            incoming: Incoming::Plain,
            login: Some(Box::new(login)),
            parameters: ConnectionParameters::default(),
            exp_stat_sn: StatSn(0),
            ahead: Vec::new(),
            withheld_statuses: Vec::new(),
            statuses_asked: StatSn(0),
            acked_stat_sn: StatSn(0),
            unacked_since: None,
            out: VecDeque::new(),
            controls: 0,
            transmit_requested: false,
            tasks: 0,
            weight: 0,
            heard: now,
            ping: None,
            last_answered_ping: Instant::ORIGIN,
            damaged: false,
            repairs: 0,
            to_reassign: VecDeque::new(),
            open_reassigns: 0,
        }
    }

    pub(super) fn digests(&self) -> Digests {
        if self.login.is_some() { Digests::NONE } else { Digests::of(&self.parameters) }
    }

    /// Returns the number that acknowledges all statuses before it, and the data of their commands.
    pub(super) fn acknowledged(&self) -> StatSn {
        let held = self.withheld_statuses.iter().copied();
        held.fold(self.exp_stat_sn, |first, sn| if sn.before(first) { sn } else { first })
    }

    /// Takes note that a PDU leaves which acknowledges all statuses before `sn`.
    pub(super) fn record_ack(&mut self, sn: StatSn) {
        self.acked_stat_sn = sn;
        if !self.holds_back() {
            self.unacked_since = None;
        }
    }

    /// Returns whether a status is here that cannot be acknowledged yet.
    pub(super) fn holds_back(&self) -> bool {
        !self.withheld_statuses.is_empty() || !self.ahead.is_empty()
    }

    /// Judges a status number and notes that it came. `false`: it came before.
    pub(super) fn take_status(&mut self, sn: StatSn, recovers: bool) -> Result<bool, ProtocolError> {
        if sn == self.exp_stat_sn {
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
        if !recovers {
            return Err(ProtocolError::StatSnOutOfOrder);
        }
        if sn.before(self.exp_stat_sn) || self.ahead.iter().any(|(from, to)| is_within(sn, *from, *to)) {
            return Ok(false);
        }
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

    /// Returns the first run of statuses that did not come although later ones did: first, and how many.
    pub(super) fn missing_statuses(&self, next: Option<StatSn>) -> Option<(StatSn, u32)> {
        let first = self.ahead.first().map(|(from, _)| *from);
        let end = first.or_else(|| next.filter(|next| next.after(self.exp_stat_sn)))?;
        Some((self.exp_stat_sn, self.exp_stat_sn.distance_to(end)))
    }
}

impl ConnectionSlot {
    /// Returns whether its connection can carry requests.
    pub(super) const fn is_up(&self) -> bool {
        matches!(self.state, ConnectionState::Up | ConnectionState::Draining)
    }
}
