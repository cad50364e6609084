//! A session: its command window, its tasks by tag, and what waits for its turn (RFC 7143 §4.2, §4.3).

use alloc::boxed::Box;
use alloc::collections::VecDeque;
use alloc::vec::Vec;
use core::net::SocketAddr;

use base::buffer::Bytes;
use base::state_machine::ConnId;
use base::time::Instant;
use smallvec::SmallVec;

use super::allegiance::LostConnection;
use super::arena::{Arena, Key};
use super::contract::{Command, Repairs, SessionUp, Traffic};
use super::engine::SessionLimits;
use super::initiator_notes::Takeovers;
use super::logout::PendingLogout;
use super::memory_quota::QuotaShare;
use super::response_fence::{Fence, UnackedFence};
use super::states;
use super::task::Task;
use super::timer::Deadlines;
use super::window::Window;
use crate::login::SessionKind;
use crate::name::{IscsiName, Isid, Tsih};
use crate::negotiate::SessionParameters;
use crate::pdu::Itt;
use crate::pdu::logout_request::LogoutRequest;
use crate::pdu::nop_out::NopOut;
use crate::pdu::text_request::TextRequest;
use crate::pdu::tmf_request::TmfFunction;
use crate::serial::{CmdSn, DataSn};

/// A session.
#[derive(Debug)]
pub(crate) struct Session {
    pub(crate) kind: SessionKind,
    pub(crate) initiator: IscsiName,
    pub(crate) isid: Isid,
    pub(crate) tsih: Tsih,
    pub(crate) parameters: SessionParameters,
    pub(crate) limits: SessionLimits,
    pub(crate) state: states::Session,
    /// Its connections, the leading one first.
    pub(crate) conns: SmallVec<[ConnId; 1]>,
    /// Connections that are gone and whose tasks wait for another.
    pub(crate) lost: Vec<LostConnection>,
    /// Responses that wait until others are acknowledged, and the one whose acknowledgement others wait for.
    pub(crate) fences: Vec<Fence>,
    pub(crate) unacked_fence: Option<UnackedFence>,
    pub(crate) marks: u32,
    pub(crate) window: Window<Request>,
    tags: [Option<Key>; TAG_BUCKETS],
    /// How many tasks it has, and how many of them are answered and wait for that to be acknowledged.
    pub(crate) tasks: u32,
    pub(crate) unacked_tasks: u32,
    /// How many immediate commands and task management requests are open.
    pub(crate) immediate: u32,
    /// The task management requests that are open.
    pub(crate) tmfs: SmallVec<[Key; 1]>,
    /// What is in order but cannot be handed up yet.
    pub(crate) ready: VecDeque<Ready>,
    /// Whether a task management function waits for data of the tasks that it ends; no R2T leaves meanwhile.
    pub(crate) holds_r2ts: bool,
    /// What it holds of each budget; of that for answers, what commands under way may bring or what waits to be sent.
    pub(crate) unsolicited_share: QuotaShare,
    pub(crate) solicited_share: QuotaShare,
    pub(crate) data_in_share: QuotaShare,
    /// Its tasks that wait for room for the data that they ask for.
    pub(crate) quota_waiters: VecDeque<Key>,
    /// How many fetches lost what was set aside for them; until their data comes or they end, it gets no more.
    pub(crate) revoked: u32,
    /// By how many bytes it exceeds the budget for data that it was asked for, because that came when others had its memory.
    pub(crate) overdraft: usize,
    /// Until when others come first, since it did not finish what it began to send.
    pub(crate) deprioritized_until: Option<Instant>,
    pub(crate) traffic: Traffic,
    pub(crate) repairs: Repairs,
    /// How often a missing command number was looked for.
    pub(crate) gap_polls: u32,
    pub(crate) deadlines: Deadlines,
    /// When it began, and when it last asked something.
    pub(crate) began: Instant,
    pub(crate) last_text_request: Instant,
    /// Where its first connection came from, and what is known of hosts that took it from each other.
    pub(crate) first_peer: SocketAddr,
    pub(crate) takeovers: Option<Takeovers>,
    /// Since when its connections are gone.
    pub(crate) lost_since: Option<Instant>,
    /// The logouts that wait for tasks to end, at most one of each connection, and whether something happened to them.
    pub(crate) logouts: Vec<PendingLogout>,
    pub(crate) logouts_dirty: bool,
    /// Whether the layer above knows of it, and what it is told.
    pub(crate) pending_session_up: Option<Box<SessionUp>>,
    pub(crate) is_announced: bool,
}

/// A request that has a number, waiting for its turn.
#[derive(Debug)]
pub(crate) enum Request {
    Command(Command),
    Tmf(Key),
    Ping(ConnId, NopOut, Option<Bytes>),
    Text(ConnId, TextRequest, Option<Bytes>),
    Logout(ConnId, LogoutRequest),
    /// A command that was aborted before its turn; its number counts as received.
    AbortedSlot,
}

/// A request whose turn has come, waiting for the layer above.
#[derive(Debug)]
pub(crate) enum Ready {
    Command(Command),
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
    /// The task that it names, by tag and by number, and that task if the layer above has it.
    pub(crate) referenced: (Itt, CmdSn),
    pub(crate) task: Option<Key>,
    /// For TASK REASSIGN: the first Data-In that the initiator does not have.
    pub(crate) exp_data_sn: DataSn,
    pub(crate) immediate: bool,
    /// The commands before this number are affected.
    pub(crate) cmd_sn: CmdSn,
    /// Whether it waits for those commands.
    pub(crate) waits_for_commands: bool,
    /// Whether it has waited for data long enough.
    pub(crate) data_wait_expired: bool,
    /// Whether it came when as many were open as may be. It has a number, so that it is answered in its turn: a Reject would
    /// leave the number missing.
    pub(crate) is_too_many: bool,
}

/// Few enough that an idle session stays small, enough that a full one finds a task in a step or two.
const TAG_BUCKETS: usize = 64;

impl Session {
    pub(crate) fn new(
        now: Instant,
        kind: SessionKind,
        from: SocketAddr,
        (initiator, isid, tsih): (IscsiName, Isid, Tsih),
        parameters: SessionParameters,
        limits: SessionLimits,
        window: Window<Request>,
    ) -> Self {
        Self {
            kind,
            initiator,
            isid,
            tsih,
            parameters,
            limits,
            state: states::Session::Active,
            conns: SmallVec::new(),
            lost: Vec::new(),
            fences: Vec::new(),
            unacked_fence: None,
            marks: 0,
            window,
            tags: [None; TAG_BUCKETS],
            tasks: 0,
            unacked_tasks: 0,
            repairs: Repairs::default(),
            gap_polls: 0,
            immediate: 0,
            tmfs: SmallVec::new(),
            ready: VecDeque::new(),
            holds_r2ts: false,
            unsolicited_share: QuotaShare::default(),
            solicited_share: QuotaShare::default(),
            data_in_share: QuotaShare::default(),
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
            logouts: Vec::new(),
            logouts_dirty: false,
            pending_session_up: None,
            is_announced: false,
        }
    }

    pub(crate) const fn is_discovery(&self) -> bool {
        matches!(self.kind, SessionKind::Discovery)
    }

    /// Returns whether a logout ends it as soon as what was begun is finished: no further request gets its turn.
    pub(crate) fn is_logging_out(&self) -> bool {
        self.logouts.iter().any(PendingLogout::ends_session)
    }

    /// Enters a task under its tag.
    pub(crate) fn link_task(&mut self, tasks: &mut Arena<Task>, key: Key) {
        if let Some(task) = tasks.get_mut(key)
            && let Some(bucket) = self.tags.get_mut(bucket(task.itt))
        {
            task.next = bucket.replace(key);
            self.tasks += 1;
        }
    }

    /// Returns the task of a tag.
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

    /// Returns the task of a tag, if it is not answered yet.
    pub(crate) fn find_open(&self, tasks: &Arena<Task>, itt: Itt) -> Option<Key> {
        self.find(tasks, itt).filter(|key| tasks.get(*key).is_some_and(|task| task.sent_status.is_none()))
    }

    /// Takes a task's tag out.
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

    /// Returns whether it ends a task at this logical unit.
    pub(crate) const fn affects(&self, lun: u64) -> bool {
        self.is_multi_task() && (self.is_target_wide() || self.lun == lun)
    }
}

fn bucket(itt: Itt) -> usize {
    // Multiplicative hashing: initiators number tags upwards, or use slots of a table.
    usize::try_from(itt.0.wrapping_mul(0x9e37_79b1) >> 26).unwrap_or(0)
}

const _: () = assert!(TAG_BUCKETS == 1 << (32 - 26));
