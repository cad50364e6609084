//! A task, or a task management request, as the initiator sees it.

use alloc::collections::BTreeSet;
use alloc::vec::Vec;

use base::arena::Key;
use smallvec::SmallVec;

use super::contract::{Ending, Management, Request};
use crate::association::MessageId;
use crate::exchange::landing::{Landing, to_u32, to_usize};
use crate::exchange::numbers::Class;
use crate::pdu::reply::ManageResult;
use crate::seal::Level;

/// An exchange, or what wants to be one.
#[derive(Debug)]
pub(super) struct Task {
    pub(super) what: What,
    /// Where it stands on the wire; `None` while it waits.
    pub(super) wire: Option<Wire>,
    /// When it was sent, among all requests.
    pub(super) order: u64,
    pub(super) inn: Landing,
    /// How it ended and how much data came with that, while some of it is missing.
    pub(super) ending: Option<(Ending, u32)>,
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
pub(super) enum What {
    Command(Request),
    Manage {
        wanted: Management,
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
    pub(super) class: Class,
    pub(super) tag: u16,
    pub(super) xid: u32,
    pub(super) level: Level,
}

/// How often a task is carried out again before it is given up.
pub(super) const MAX_REPLAYS: u8 = 8;

/// How far apart the numbers of requests for data may lie, and how many answers to them may be under way.
pub(super) const MAX_READY: usize = 1024;

impl Task {
    pub(super) fn new(what: What) -> Self {
        let len = if let What::Command(request) = &what { request.data_in_len } else { 0 };
        Self {
            what,
            wire: None,
            order: 0,
            inn: Landing::new(0, len),
            ending: None,
            ready: (0, BTreeSet::new()),
            messages: SmallVec::new(),
            request: None,
            arrived: false,
            replays: 0,
        }
    }

    /// Returns the logical unit that it concerns.
    pub(super) const fn lun(&self) -> u64 {
        match &self.what {
            What::Command(request) => request.lun,
            What::Manage { wanted, .. } => wanted.lun,
        }
    }

    pub(super) const fn is_command(&self) -> bool {
        matches!(self.what, What::Command(_))
    }

    pub(super) fn data_out_len(&self) -> u32 {
        if let What::Command(request) = &self.what { to_u32(request.data_out.len()) } else { 0 }
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
    pub(super) fn start_over(&mut self, pool: &base::buffer::Pool) {
        self.inn.clear(pool);
        (self.wire, self.ending, self.request) = (None, None, None);
        self.ready = (0, BTreeSet::new());
        (self.messages, self.arrived) = (SmallVec::new(), false);
    }
}
