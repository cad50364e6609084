//! A task, or a task management request, as the initiator sees it.

use alloc::collections::BTreeSet;
use alloc::vec::Vec;

use base::arena::Key;
use smallvec::SmallVec;

use super::contract::{CommandResponse, Request, TmfRequest};
use crate::aead::Level;
use crate::connection::MessageId;
use crate::exchange::reassembly::{Reassembly, to_u32, to_usize};
use crate::exchange::xid::PnSpace;
use crate::pdu::reply::ManageResult;

/// An exchange, or what wants to be one.
#[derive(Debug)]
pub(super) struct Task {
    pub(super) kind: TaskKind,
    /// Where it stands on the wire; `None` while it waits.
    pub(super) wire: Option<Wire>,
    /// When it was sent, among all requests.
    pub(super) order: u64,
    pub(super) data_in: Reassembly,
    /// How it ended and how much data came with that, while some of it is missing.
    pub(super) response: Option<(CommandResponse, u32)>,
    /// The requests for data that came: all below the number, and the others.
    ready: (u32, BTreeSet<u32>),
    /// What is under way.
    pub(super) messages: SmallVec<[MessageId; 2]>,
    /// The message that carries its request, until it was acknowledged; then it `arrived`.
    pub(super) request: Option<MessageId>,
    pub(super) arrived: bool,
    /// How often it was carried out again.
    pub(super) replays: u8,
}

/// What a task is about.
#[derive(Debug)]
pub(super) enum TaskKind {
    Command(Request),
    Manage {
        wanted: TmfRequest,
        /// The exchange that it names; 0 for none.
        referenced: u32,
        /// The answer, while tasks that it ended have not been reported.
        result: Option<ManageResult>,
        fence: Vec<Key>,
    },
}

/// An exchange's names on the wire, and its protection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Wire {
    pub(super) class: PnSpace,
    pub(super) tag: u16,
    pub(super) xid: u32,
    pub(super) level: Level,
}

/// How often a task is carried out again before it is given up.
pub(super) const MAX_REPLAYS: u8 = 8;

/// How far apart the numbers of requests for data may lie, and how many answers to them may be under way.
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

    /// Returns the logical unit that it concerns.
    pub(super) const fn lun(&self) -> u64 {
        match &self.kind {
            TaskKind::Command(request) => request.lun,
            TaskKind::Manage { wanted, .. } => wanted.lun,
        }
    }

    pub(super) const fn is_command(&self) -> bool {
        matches!(self.kind, TaskKind::Command(_))
    }

    pub(super) fn data_out_len(&self) -> u32 {
        if let TaskKind::Command(request) = &self.kind { to_u32(request.data_out.len()) } else { 0 }
    }

    /// Takes note of a request for data. Returns whether it is a new one; `None` when its number is out of all order.
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

    /// Returns how many requests for data came without a gap.
    pub(super) const fn requests_for_data(&self) -> u32 {
        self.ready.0
    }

    /// Forgets everything that happened to it on the wire.
    pub(super) fn reset_for_replay(&mut self, pool: &base::buffer::Pool) {
        self.data_in.clear(pool);
        (self.wire, self.response, self.request) = (None, None, None);
        self.ready = (0, BTreeSet::new());
        (self.messages, self.arrived) = (SmallVec::new(), false);
    }
}
