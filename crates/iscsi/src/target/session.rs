//! A session: its command window, its tasks by tag, and the requests that wait for execution (RFC 7143 §4.2,
//! §4.3).

use alloc::boxed::Box;
use alloc::collections::VecDeque;
use alloc::string::String;
use alloc::vec::Vec;
use core::net::SocketAddr;

use base::buffer::Bytes;
use base::state_machine::ConnId;
use base::time::Instant;
use smallvec::SmallVec;
use transport::command::{Cdb, TaskAttribute};
use transport::lun_queues::LunQueues;
use transport::quota::DataShares;
use transport::task_management::TmfFunction;

use super::allegiance::LostConnections;
use super::arena::{Arena, Key};
use super::contract::{ConnectionLoss, Repairs, SessionLimits, SessionUp, Traffic};
use super::initiator_notes::Takeovers;
use super::logout_cause::LogoutCause;
use super::pending_logout::PendingLogout;
use super::protection::Protection;
use super::protocol_error::ProtocolError;
use super::response_fence::ResponseFence;
use super::states::{self, SessionEvent};
use super::task::Task;
use super::timer::Deadlines;
use super::window::Window;
use crate::login::{PasswordLogin, SessionKind};
use crate::name::{IscsiName, Isid, Tsih};
use crate::negotiate::SessionParameters;
use crate::pdu::Itt;
use crate::pdu::logout_request::LogoutRequest;
use crate::pdu::nop_out::NopOut;
use crate::pdu::text_request::TextRequest;
use crate::serial::{CmdSn, DataSn};

/// A session.
#[derive(Debug)]
pub(crate) struct Session {
    pub(crate) kind: SessionKind,
    pub(crate) initiator: IscsiName,
    pub(crate) isid: Isid,
    pub(crate) tsih: Tsih,
    pub(crate) parameters: SessionParameters,
    /// The user name that the initiator authenticated with, and its alias, for display.
    pub(crate) user: Option<String>,
    pub(crate) initiator_alias: Option<String>,
    /// The password login of its first connection, if it was one.
    pub(crate) password_login: Option<PasswordLogin>,
    /// The protection of its first connection. No connection has a lower level.
    pub(crate) protection: Protection,
    pub(crate) limits: SessionLimits,
    pub(crate) state: states::Session,
    /// Its connections, the leading one first.
    pub(crate) conns: SmallVec<[ConnId; 1]>,
    /// Lost connections whose tasks wait for allegiance reassignment.
    pub(crate) lost: LostConnections,
    pub(crate) response_fence: ResponseFence,
    pub(crate) window: Window<Request>,
    pub(super) tags: [Option<Key>; TAG_BUCKETS],
    /// How many tasks it has, and how many of them are answered and wait for the acknowledgement of the
    /// response.
    pub(crate) tasks: u32,
    pub(crate) unacked_tasks: u32,
    /// How many immediate commands and task management requests are open.
    pub(crate) immediate: u32,
    /// The task management requests that are open.
    pub(crate) tmfs: SmallVec<[Key; 1]>,
    /// A task management request whose CmdSN is in order and that waits for data of the tasks that it ends,
    /// and the requests behind it.
    pub(crate) ready: VecDeque<Ready>,
    /// Commands whose CmdSN is in order and that wait for memory for their Data-In.
    pub(crate) memory_waiters: LunQueues<PendingCommand>,
    /// Whether a task management function waits for data of the tasks that it ends. No R2T is sent meanwhile.
    pub(crate) holds_r2ts: bool,
    /// The session's share of each memory quota. The Data-In share covers reservations of commands under way
    /// and data that waits to be sent or acknowledged.
    pub(crate) shares: DataShares,
    /// Its tasks that wait for memory for the data that they fetch.
    pub(crate) quota_waiters: VecDeque<Key>,
    /// How many fetches lost their reserved memory. Until their data is received or they end, the session
    /// gets no more memory.
    pub(crate) revoked: u32,
    /// By how many bytes it exceeds the quota for solicited data, because data was received whose memory had
    /// been given to other sessions.
    pub(crate) overdraft: usize,
    /// Until when other sessions get memory first, because this one did not finish a data sequence.
    pub(crate) deprioritized_until: Option<Instant>,
    pub(crate) traffic: Traffic,
    pub(crate) repairs: Repairs,
    /// How many times the gap timer expired while a command number was missing and the session had a
    /// connection.
    pub(crate) gap_polls: u32,
    pub(crate) deadlines: Deadlines,
    /// When it began, and when it last sent a Text Request.
    pub(crate) began: Instant,
    pub(crate) last_text_request: Instant,
    /// The address that its first connection came from, and the record of hosts that took the session over
    /// from each other.
    pub(crate) first_peer: SocketAddr,
    pub(crate) takeovers: Option<Takeovers>,
    /// Since when it has no connection.
    pub(crate) lost_since: Option<Instant>,
    /// Why it lost the connection that it lost last.
    pub(crate) last_loss: ConnectionLoss,
    /// The logouts that wait for tasks to end, at most one per connection.
    pub(crate) logouts: Vec<PendingLogout>,
    /// What decides whose decision a logout of the session is.
    pub(crate) logout_cause: LogoutCause,
    /// Whether its logouts and its command window must be looked at again.
    pub(crate) is_dirty: bool,
    /// The pending [`Event::SessionUp`](super::contract::Event::SessionUp), and whether it was reported to
    /// the layer above.
    pub(crate) pending_session_up: Option<Box<SessionUp>>,
    pub(crate) is_announced: bool,
}

/// A command that is not delivered to the layer above yet: what its task does not hold.
#[derive(Debug)]
pub(crate) struct PendingCommand {
    pub(crate) task: Key,
    pub(crate) attribute: TaskAttribute,
    pub(crate) priority: u8,
    pub(crate) cdb: Cdb,
}

/// A numbered request that waits for its turn in the order of the CmdSNs.
#[derive(Debug)]
pub(crate) enum Request {
    Command(PendingCommand),
    Tmf(Key),
    Ping(ConnId, NopOut, ControlData),
    Text(ConnId, TextRequest, ControlData),
    Logout(ConnId, LogoutRequest),
    /// A command that was aborted before its turn. Its number counts as received.
    AbortedSlot,
}

/// The data segment of a request, and the memory that stays reserved for it until the request is executed or
/// dropped. [`Engine::release_control_data`](super::engine::Engine::release_control_data) gives it back.
#[derive(Debug)]
pub(crate) struct ControlData {
    pub(crate) bytes: Option<Bytes>,
    /// Bytes of the quota for unsolicited data.
    pub(crate) reserved: usize,
}

/// A request whose turn has come, and which waits to be passed to the layer above.
#[derive(Debug)]
pub(crate) enum Ready {
    Command(PendingCommand),
    Tmf(Key),
}

/// A task management request.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Tmf {
    pub(crate) session: Key,
    pub(crate) conn: ConnId,
    pub(crate) itt: Itt,
    pub(crate) function: TmfFunction,
    pub(crate) lun: u64,
    /// The tag and CmdSN of the task that it refers to, and that task if the layer above owns it.
    pub(crate) referenced: (Itt, CmdSn),
    pub(crate) task: Option<Key>,
    /// For TASK REASSIGN: the number of the first Data-In that the initiator does not have.
    pub(crate) exp_data_sn: DataSn,
    pub(crate) immediate: bool,
    /// The function affects the commands before this number.
    pub(crate) cmd_sn: CmdSn,
    /// Whether it waits until those commands are received.
    pub(crate) waits_for_commands: bool,
    /// Whether the time to wait for data has passed.
    pub(crate) data_wait_expired: bool,
    /// Whether it exceeded the number of requests that may be open. It has a CmdSN, so it is answered in its
    /// turn: a Reject would leave a gap in the CmdSNs.
    pub(crate) is_too_many: bool,
}

/// Few enough that an idle session stays small, and enough that a full one finds a task in one or two steps.
const TAG_BUCKETS: usize = 64;

impl Session {
    pub(crate) fn new(
        now: Instant,
        kind: SessionKind,
        from: SocketAddr,
        (initiator, isid, tsih): (IscsiName, Isid, Tsih),
        (parameters, protection): (SessionParameters, Protection),
        limits: SessionLimits,
        window: Window<Request>,
    ) -> Self {
        Self {
            kind,
            initiator,
            isid,
            tsih,
            parameters,
            user: None,
            initiator_alias: None,
            password_login: None,
            protection,
            limits,
            state: states::Session::Active,
            conns: SmallVec::new(),
            lost: LostConnections::default(),
            response_fence: ResponseFence::default(),
            window,
            tags: [None; TAG_BUCKETS],
            tasks: 0,
            unacked_tasks: 0,
            repairs: Repairs::default(),
            gap_polls: 0,
            immediate: 0,
            tmfs: SmallVec::new(),
            ready: VecDeque::new(),
            memory_waiters: LunQueues::default(),
            holds_r2ts: false,
            shares: DataShares::default(),
            quota_waiters: VecDeque::new(),
            revoked: 0,
            overdraft: 0,
            deprioritized_until: None,
            traffic: Traffic::default(),
            deadlines: Deadlines::default(),
            began: now,
            last_text_request: now,
            first_peer: from,
            takeovers: None,
            lost_since: None,
            last_loss: ConnectionLoss::Failed,
            logouts: Vec::new(),
            logout_cause: LogoutCause::default(),
            is_dirty: false,
            pending_session_up: None,
            is_announced: false,
        }
    }

    /// Moves to the state that `event` leads to. If there is none, the error is our own (`Bug`).
    pub(crate) fn on(&mut self, event: SessionEvent) -> Result<(), ProtocolError> {
        self.state = self.state.on(event).ok_or_else(ProtocolError::impossible)?;
        Ok(())
    }

    /// Returns whether its initiator port has this name and this ISID: only that port may join or replace it.
    pub(crate) fn is_of_port(&self, initiator: &IscsiName, isid: Isid) -> bool {
        self.isid == isid && self.initiator == *initiator
    }

    pub(crate) const fn is_discovery(&self) -> bool {
        matches!(self.kind, SessionKind::Discovery { .. })
    }

    /// Returns whether a logout ends the session once the tasks under way are finished. No further request is
    /// executed.
    pub(crate) fn is_logging_out(&self) -> bool {
        self.logouts.iter().any(PendingLogout::ends_session)
    }

    /// Returns whether a request whose CmdSN is in order waits to be passed to the layer above.
    pub(crate) fn has_undelivered(&self) -> bool {
        !self.ready.is_empty() || !self.memory_waiters.is_empty()
    }

    /// Removes a command that waits to be passed to the layer above.
    pub(crate) fn remove_undelivered(&mut self, lun: u64, task: Key) {
        if self.has_undelivered() {
            self.ready.retain(|request| !matches!(request, Ready::Command(command) if command.task == task));
            self.memory_waiters.remove(lun, |command| command.task == task);
        }
    }

    /// Adds a task to the tag table.
    pub(crate) fn link_task(&mut self, tasks: &mut Arena<Task>, key: Key) {
        if let Some(task) = tasks.get_mut(key)
            && let Some(bucket) = self.tags.get_mut(bucket(task.itt))
        {
            task.next = bucket.replace(key);
            self.tasks += 1;
        }
    }

    /// Returns the task with a tag.
    pub(crate) fn find(&self, tasks: &Arena<Task>, itt: Itt) -> Option<Key> {
        let mut at = *self.tags.get(bucket(itt))?;
        while let Some(key) = at {
            let task = tasks.get(key)?;
            if task.itt == itt {
                return Some(key);
            }
            at = task.next;
        }
        None
    }

    /// Returns the task with a tag, if it is not answered yet.
    pub(crate) fn find_open(&self, tasks: &Arena<Task>, itt: Itt) -> Option<Key> {
        self.find(tasks, itt).filter(|key| tasks.get(*key).is_some_and(|task| task.sent_status.is_none()))
    }

    /// Returns whether a connection may open another immediate command, if `most` immediate commands and task
    /// management requests of the session may be open. Each connection may always have one.
    pub(crate) fn may_open_immediate(&self, tasks: &Arena<Task>, conn: ConnId, most: u32) -> bool {
        //= rfc7143#section-4.2.2.1
        //# An iSCSI target MUST be able to handle at least one immediate task management command
        //# and one immediate non-task-management iSCSI command per connection at any time.
        self.immediate < most || !self.tasks(tasks).any(|(_, task)| task.immediate && task.is_on(conn))
    }

    /// As [`Self::may_open_immediate`], for a task management request. Each connection may always have one of
    /// those too. A request is open until its response has passed the response fences before it.
    pub(crate) fn may_open_tmf(&self, tmfs: &Arena<Tmf>, conn: ConnId, most: u32) -> bool {
        let is_own = |key: &Key| tmfs.get(*key).is_some_and(|tmf| tmf.conn == conn);
        let waiting = || self.response_fence.waiting_tmfs();
        let open = self.immediate.saturating_add(u32::try_from(waiting().count()).unwrap_or(u32::MAX));
        open < most || !(self.tmfs.iter().any(is_own) || waiting().any(|of| of == conn))
    }

    /// Removes a task from the tag table.
    pub(crate) fn unlink_task(&mut self, tasks: &mut Arena<Task>, key: Key) {
        let Some((itt, next)) = tasks.get(key).map(|task| (task.itt, task.next)) else { return };
        let Some(head) = self.tags.get_mut(bucket(itt)) else { return };
        if *head == Some(key) {
            *head = next;
            self.tasks = self.tasks.saturating_sub(1);
            return;
        }
        let mut at = *head;
        while let Some(before) = at.and_then(|key| tasks.get_mut(key)) {
            if before.next == Some(key) {
                before.next = next;
                self.tasks = self.tasks.saturating_sub(1);
                return;
            }
            at = before.next;
        }
    }

    /// Returns its tasks.
    pub(crate) fn tasks<'a>(&'a self, tasks: &'a Arena<Task>) -> impl Iterator<Item = (Key, &'a Task)> {
        self.tags.iter().flat_map(|head| {
            core::iter::successors(head.and_then(|key| Some((key, tasks.get(key)?))), |(_, task)| {
                task.next.and_then(|key| Some((key, tasks.get(key)?)))
            })
        })
    }
}

impl Tmf {
    /// Returns whether it ends, or may end, tasks of many commands (§4.2.3.2).
    pub(crate) const fn is_multi_task(&self) -> bool {
        matches!(
            self.function,
            TmfFunction::ABORT_TASK_SET
                | TmfFunction::CLEAR_TASK_SET
                | TmfFunction::LOGICAL_UNIT_RESET
                | TmfFunction::TARGET_WARM_RESET
                | TmfFunction::TARGET_COLD_RESET
                | TmfFunction::I_T_NEXUS_RESET
        )
    }

    /// Returns whether it concerns every logical unit.
    pub(crate) const fn is_target_wide(&self) -> bool {
        matches!(
            self.function,
            TmfFunction::TARGET_WARM_RESET | TmfFunction::TARGET_COLD_RESET | TmfFunction::I_T_NEXUS_RESET
        )
    }

    /// Returns whether the function ends the tasks of this logical unit.
    pub(crate) const fn affects(&self, lun: u64) -> bool {
        self.is_multi_task() && (self.is_target_wide() || self.lun == lun)
    }
}

fn bucket(itt: Itt) -> usize {
    // Multiplicative hashing: initiators number tags upwards, or use slots of a table.
    usize::try_from(itt.0.wrapping_mul(0x9e37_79b1) >> 26).unwrap_or(0)
}

const _: () = assert!(TAG_BUCKETS == 1 << (32 - 26));
