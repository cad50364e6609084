//! A task, or a task management request, as the initiator sees it.

use alloc::collections::BTreeSet;
use alloc::vec::Vec;

use base::arena::Key;
use base::int_cast::{to_u32, to_usize};
use smallvec::SmallVec;
use transport::identity_check::IdentityChecks;
use transport::initiator::{CommandResponse, Request, TmfParameters};
use transport::task_management::{TmfFunction, TmfResult};

use crate::connection::MessageId;
use crate::exchange::reassembly::Reassembly;
use crate::exchange::xid::PnSpace;
use crate::fault_injection::{Bug, is_injected};
use security::Level;

/// A task: an exchange, or a request that waits to become one.
#[derive(Debug)]
pub(super) struct Task {
    pub(super) kind: TaskKind,
    /// Its tag and XID on the wire; `None` while it waits.
    pub(super) wire: Option<Wire>,
    /// Its place in the order in which all requests were sent, the last time that it was sent; 0 if it never
    /// was.
    pub(super) order: u64,
    pub(super) data_in: Reassembly,
    /// Its response and the announced length of its Data-In, while some of the data is missing.
    pub(super) response: Option<(CommandResponse, u32)>,
    /// The received Transfer Readies (requests for data): all below the number, and the others.
    ready: (u32, BTreeSet<u32>),
    /// Its messages that are not acknowledged.
    pub(super) messages: SmallVec<[MessageId; 2]>,
    /// The message that carries its request, until it is acknowledged; then `arrived` is set.
    pub(super) request: Option<MessageId>,
    pub(super) arrived: bool,
    /// How often it was repeated in a new session.
    pub(super) replays: u8,
}

/// The kind of a task.
#[derive(Debug)]
pub(super) enum TaskKind {
    Command(Request),
    Manage {
        wanted: TmfParameters,
        /// The exchange that it names; 0 for none.
        referenced: u32,
        /// The answer, while tasks that the function ended are not reported.
        result: Option<TmfResult>,
        fence: Vec<Key>,
    },
}

/// The names of an exchange on the wire, and its protection level.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Wire {
    pub(super) class: PnSpace,
    pub(super) tag: u16,
    pub(super) xid: u32,
    pub(super) level: Level,
}

/// How often a task is repeated in new sessions before it is given up.
pub(super) const MAX_REPLAYS: u8 = 8;

/// How far apart the numbers of Transfer Readies may lie, and how many answers to them may be under way.
pub(super) const MAX_READY: usize = 1024;

impl Task {
    pub(super) fn new(what: TaskKind) -> Self {
        let len = if let TaskKind::Command(request) = &what { request.data_in_len } else { 0 };
        Self {
            kind: what,
            wire: None,
            order: 0,
            data_in: Reassembly::new(0, len),
            response: None,
            ready: (0, BTreeSet::new()),
            messages: SmallVec::new(),
            request: None,
            arrived: false,
            replays: 0,
        }
    }

    /// Returns the LUN of the task.
    pub(super) const fn lun(&self) -> u64 {
        match &self.kind {
            TaskKind::Command(request) => request.lun,
            TaskKind::Manage { wanted, .. } => wanted.lun,
        }
    }

    pub(super) const fn is_command(&self) -> bool {
        matches!(self.kind, TaskKind::Command(_))
    }

    /// Returns whether the request passes the tasks that wait: task management, and tasks by which the owner
    /// finds out what became of a unit.
    pub(super) const fn is_urgent(&self) -> bool {
        match &self.kind {
            TaskKind::Command(request) => request.immediate || request.is_identity_check,
            TaskKind::Manage { .. } => true,
        }
    }

    /// Returns how many slots the request leaves free, of the `reserve` slots that are for urgent requests.
    /// An ABORT TASK or a check that hangs with its unit must not keep a reset from being sent.
    pub(super) fn leaves_free(&self, reserve: usize) -> usize {
        match &self.kind {
            TaskKind::Command(_) if !self.is_urgent() => reserve,
            TaskKind::Command(_) => reserve.div_ceil(2),
            TaskKind::Manage { wanted, .. } => match wanted.function {
                TmfFunction::ABORT_TASK | TmfFunction::QUERY_TASK => reserve / 2,
                _ => 0,
            },
        }
    }

    pub(super) fn awaits_identity_check(&self, checks: &IdentityChecks) -> bool {
        matches!(&self.kind, TaskKind::Command(request) if checks.holds_back(request))
    }

    pub(super) fn data_out_len(&self) -> u32 {
        if let TaskKind::Command(request) = &self.kind { to_u32(request.data_out.len()) } else { 0 }
    }

    /// Returns how many bytes the command expects to move: its Data-In, or else its Data-Out.
    pub(super) fn expected(&self) -> u32 {
        match &self.kind {
            TaskKind::Command(request) if request.data_in_len > 0 => request.data_in_len,
            _ => self.data_out_len(),
        }
    }

    /// Records a Transfer Ready (request for data). Returns whether it is a new one; `None` when its number
    /// is out of range.
    pub(super) fn take_ready(&mut self, number: u32) -> Option<bool> {
        let (low, beyond) = &mut self.ready;
        if number < *low || beyond.contains(&number) {
            return Some(false);
        }
        if to_usize(number - *low) > MAX_READY || number == u32::MAX {
            return None;
        }
        beyond.insert(number);
        while beyond.remove(low) {
            *low += 1;
        }
        Some(true)
    }

    /// Returns how many Transfer Readies were received without a gap.
    pub(super) const fn requests_for_data(&self) -> u32 {
        self.ready.0
    }

    /// Returns the place of the task in the order in which requests were sent, if it was sent.
    pub(super) fn send_order(&self) -> Option<u64> {
        self.wire.map(|_| self.order)
    }

    /// Resets the task to the state before it was sent.
    pub(super) fn reset_for_replay(&mut self, pool: &base::buffer::Pool) {
        self.data_in.clear(pool);
        (self.wire, self.response, self.request) = (None, None, None);
        if !is_injected(Bug::FramesReplayUnready) {
            self.ready = (0, BTreeSet::new());
        }
        (self.messages, self.arrived) = (SmallVec::new(), false);
    }
}
