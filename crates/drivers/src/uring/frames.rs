//! Single frames of ports: the system call that waits also sends a frame before it waits, and receives one.
//!
//! Where frames are sent and received one by one, as with one command after another, that is one system call
//! for each turn instead of three. Where many frames arrive or are sent at once, the port transfers them
//! itself, many in a call: this module delivers the first frame, and the port then looks for more.
//!
//! A frame is sent without a completion on success, see [`super::no_cqe_send`]: it was sent or refused when
//! the submission returns.

#![allow(unsafe_code, reason = "promises about memory that the kernel is pointed to")]

use std::collections::{BTreeMap, VecDeque};
use std::mem::take;
use std::os::fd::{AsFd, AsRawFd};
use std::rc::Rc;

use base::ether::FrameBatch;

use super::ring::{Completion, Ring, Tag};
use super::sqe::MsgHdr;
use crate::engine::Event;
use crate::ether::RxFrame;
use crate::files::Errno;

#[derive(Default)]
pub(super) struct Frames {
    table: BTreeMap<u32, Port>,
    /// The ports whose next frame was not requested from the kernel.
    unarmed: Vec<u32>,
    /// The ports that sent a frame since the last wait.
    leaving: Vec<u32>,
}

struct Port {
    socket: Rc<dyn AsFd>,
    arrival: Box<MsgHdr>,
    room: Vec<u8>,
    /// The length that the receive buffer should have.
    room_wanted: usize,
    /// The kernel may write to the receive buffer.
    armed: bool,
    departure: Box<MsgHdr>,
    /// The frame that the kernel may read.
    leaving: Option<FrameBatch>,
    /// The port was closed; its events are not reported any more.
    closed: bool,
}

impl Frames {
    pub(super) fn add(&mut self, watch: u32, socket: Rc<dyn AsFd>) {
        let port = Port {
            socket,
            arrival: Box::default(),
            room: Vec::new(),
            room_wanted: 0,
            armed: false,
            departure: Box::default(),
            leaving: None,
            closed: false,
        };
        self.table.insert(watch, port);
    }

    /// Expects frames of up to `len` bytes. Nothing is received before the first call.
    pub(super) fn fit(&mut self, ring: &mut Ring, watch: u32, len: usize) {
        if let Some(port) = self.table.get_mut(&watch).filter(|port| port.room_wanted < len) {
            port.room_wanted = len;
            if port.armed {
                // The receive is requested again with a longer buffer.
                ring.cancel(Tag::Frame(watch));
            } else {
                self.unarmed.push(watch);
            }
        }
    }

    /// Forgets a port as soon as the kernel no longer uses its memory.
    pub(super) fn remove(&mut self, ring: &mut Ring, watch: u32) {
        if let Some(port) = self.table.get_mut(&watch) {
            port.closed = true;
            if port.armed {
                ring.cancel(Tag::Frame(watch));
            }
        }
        self.forget(watch);
    }

    /// Removes a port that is closed and that the kernel does not use.
    fn forget(&mut self, watch: u32) {
        let is_over = |port: &Port| port.closed && !port.armed && port.leaving.is_none();
        if self.table.get(&watch).is_some_and(is_over) {
            self.table.remove(&watch);
        }
    }

    /// Returns whether the next frame of every port was requested from the kernel.
    pub(super) fn are_armed(&self) -> bool {
        self.unarmed.is_empty()
    }

    /// Requests frames from the kernel.
    pub(super) fn arm(&mut self, ring: &mut Ring) {
        for watch in self.unarmed.drain(..) {
            let Some(port) = self.table.get_mut(&watch).filter(|port| !port.closed && !port.armed) else {
                continue;
            };
            if port.room.len() < port.room_wanted {
                port.room = vec![0; port.room_wanted];
            }
            port.armed = true;
            let socket = port.socket.as_fd().as_raw_fd();
            let entry = port.arrival.receive_frame_entry(socket, &mut port.room);
            // SAFETY: message, receive buffer and socket are in `table` until `came` takes the completion:
            // `forget` and `arm` do not touch a port that is armed.
            unsafe { ring.push(entry, Tag::Frame(watch)) };
        }
    }

    /// Handles the result of a receive.
    pub(super) fn came(&mut self, watch: u32, result: Result<usize, Errno>) -> Event<'_> {
        self.unarmed.push(watch);
        match self.table.get_mut(&watch) {
            Some(port) => port.armed = false,
            None => return Event::Nothing,
        }
        self.forget(watch);
        let Some(port) = self.table.get_mut(&watch).filter(|port| !port.closed) else {
            return Event::Nothing;
        };
        match result {
            Ok(len) => match (port.arrival.frame_source(), port.room.get_mut(..len)) {
                (Some((source, kind, age)), Some(bytes)) => {
                    Event::Frame { watch, taken: RxFrame { source, kind, age, bytes } }
                }
                // The frame was longer than the receive buffer.
                _ => Event::Readable { watch },
            },
            Err(Errno::INTR | Errno::AGAIN | Errno::CANCELED) => Event::Nothing,
            Err(_) => Event::FramesFailed,
        }
    }

    /// Sends the only frame of a batch with the next wait. Returns the batch as an error if it cannot.
    pub(super) fn send(
        &mut self,
        ring: &mut Ring,
        watch: u32,
        from: (i32, u16),
        batch: FrameBatch,
    ) -> Result<(), FrameBatch> {
        let able = ring.can_skip_cqes();
        let Some(port) = self.table.get_mut(&watch).filter(|port| able && port.leaving.is_none()) else {
            return Err(batch);
        };
        let socket = port.socket.as_fd().as_raw_fd();
        let Some(entry) = port.departure.send_frame_entry(socket, from, port.leaving.insert(batch)) else {
            return port.leaving.take().map_or(Ok(()), Err);
        };
        self.leaving.push(watch);
        // SAFETY: batch, message and socket are in `table` until `gone` takes the completion, or the
        // substitute for one: `forget` does not remove a port that has a frame leaving.
        unsafe { ring.push(entry, Tag::FrameSent(watch)) };
        Ok(())
    }

    /// Concludes the submitted sends: a frame without a completion was sent.
    pub(super) fn conclude(&mut self, ring: &mut Ring, completions: &mut VecDeque<Completion>) {
        for watch in self.leaving.drain(..) {
            let tag = Tag::FrameSent(watch);
            if !completions.iter().any(|completion| completion.tag == tag) {
                ring.completed_without_cqe(1);
                completions.push_back(Completion::of_silent(tag, 0));
            }
        }
    }

    /// Handles the result of a frame that was sent.
    pub(super) fn gone(&mut self, watch: u32, result: Result<usize, Errno>) -> Event<'static> {
        let batch = self.table.get_mut(&watch).and_then(|port| port.leaving.take());
        // The next frame of the port has no completion yet.
        self.leaving.retain(|it| *it != watch);
        self.forget(watch);
        match batch {
            Some(batch) => Event::FrameSent { watch, batch, result: result.map(|_| ()) },
            None => Event::Nothing,
        }
    }

    /// Returns the operations under way that have no completion if they succeed.
    pub(super) fn silent(&self) -> impl Iterator<Item = Tag> {
        self.leaving.iter().map(|watch| Tag::FrameSent(*watch))
    }

    /// Leaks the memory that the kernel may still use.
    pub(super) fn leak(&mut self) {
        std::mem::forget(take(&mut self.table));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_send_that_has_a_completion_is_not_concluded_once_more() {
        let mut frames = Frames::default();
        frames.leaving.extend([3, 4]);
        frames.gone(3, Err(Errno::NOBUFS));
        assert!(frames.silent().eq([Tag::FrameSent(4)]));
    }
}
