//! Listeners: the kernel reports once that connections wait; ordinary calls accept them, a limited number in
//! each turn.

#![allow(unsafe_code, reason = "a promise about descriptors that the kernel is told")]

use std::os::fd::{AsRawFd, OwnedFd};
use std::rc::Rc;

use super::ring::Tag;
use super::{UringEngine, sqe};
use crate::engine::{ACCEPTS_PER_TURN, Event};
use crate::listener::{self, Accepted};
use crate::slab::index;

pub(super) struct Listening {
    pub(super) socket: Rc<OwnedFd>,
    pub(super) armed: bool,
    pub(super) paused: bool,
    budget: usize,
}

impl Listening {
    pub(super) const fn new(socket: Rc<OwnedFd>) -> Self {
        Self { socket, armed: false, paused: false, budget: 0 }
    }
}

impl UringEngine {
    /// Requests an event when connections wait at a listener.
    pub(super) fn arm_listener(&mut self, number: u32) {
        if let Some(listening) = self.listeners.get_mut(index(number)).and_then(Option::as_mut)
            && !listening.armed
            && !listening.paused
        {
            listening.armed = true;
            // SAFETY: a poll refers to no memory; the listener is open until `retired` is cleared, after the
            // next wait.
            unsafe { self.ring.push(sqe::poll_entry(listening.socket.as_raw_fd()), Tag::Listener(number)) };
        }
    }

    pub(super) fn listener_ready(&mut self, number: u32) {
        if let Some(listening) = self.listeners.get_mut(index(number)).and_then(Option::as_mut) {
            listening.armed = false;
            if !listening.paused {
                listening.budget = ACCEPTS_PER_TURN;
                self.accepting.push_back(number);
            }
        }
    }

    pub(super) fn accept(&mut self, number: u32) -> Event<'static> {
        let Some(listening) = self.listeners.get_mut(index(number)).and_then(Option::as_mut) else {
            return Event::Nothing;
        };
        let accepted = listener::accept(&listening.socket);
        listening.budget -= 1;
        match accepted {
            Accepted::Failed => return Event::AcceptFailed { listener: number },
            Accepted::Connection(..) | Accepted::Void if listening.budget > 0 => {
                self.accepting.push_back(number);
            }
            _ => self.arm_listener(number),
        }
        match accepted {
            Accepted::Connection(socket, peer) => Event::Accepted { listener: number, socket, peer },
            _ => Event::Nothing,
        }
    }
}
