//! Descriptors other than connections that are polled for being readable.
//!
//! The kernel is asked about each of them once, and again after it was reported. A descriptor that becomes
//! readable while the reactor is awake causes no interruption.

#![allow(unsafe_code, reason = "a promise about descriptors that the kernel is told")]

use std::collections::BTreeMap;
use std::os::fd::{AsFd, AsRawFd};
use std::rc::Rc;

use super::ring::{Ring, Tag};
use super::sqe;
use crate::engine::Event;

#[derive(Default)]
pub(super) struct Polls {
    table: BTreeMap<u32, Rc<dyn AsFd>>,
    /// The descriptors that the kernel was not asked about since they were last reported.
    unarmed: Vec<u32>,
}

impl Polls {
    pub(super) fn add(&mut self, watch: u32, what: Rc<dyn AsFd>) {
        self.table.insert(watch, what);
        self.unarmed.push(watch);
    }

    /// Forgets a descriptor. Returns it, to be closed after the next wait.
    pub(super) fn remove(&mut self, ring: &mut Ring, watch: u32) -> Option<Rc<dyn AsFd>> {
        let what = self.table.remove(&watch)?;
        ring.cancel(Tag::Watch(watch));
        Some(what)
    }

    /// Returns whether the kernel was asked about all descriptors.
    pub(super) fn are_armed(&self) -> bool {
        self.unarmed.is_empty()
    }

    /// Asks the kernel about the descriptors that it was not asked about.
    pub(super) fn arm(&mut self, ring: &mut Ring) {
        for watch in self.unarmed.drain(..) {
            if let Some(what) = self.table.get(&watch) {
                let entry = sqe::poll_entry(what.as_fd().as_raw_fd());
                // SAFETY: a poll refers to no memory; the descriptor is open in `table`, or in the engine
                // until after the wait that submits this.
                unsafe { ring.push(entry, Tag::Watch(watch)) };
            }
        }
    }

    /// Handles a report of the kernel about a descriptor.
    pub(super) fn reported(&mut self, watch: u32) -> Event<'static> {
        if !self.table.contains_key(&watch) {
            return Event::Nothing;
        }
        self.unarmed.push(watch);
        Event::Readable { watch }
    }
}
