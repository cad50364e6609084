//! Retransmission after a loss: the content of a lost frame is queued again, and congestion window, path MTU
//! and statistics record the loss.

use alloc::vec::Vec;

use base::int_cast::to_usize;
use base::time::{Duration, Instant};

use super::Path;
use super::congestion::Congestion;
use super::pmtu::Pmtu;
use super::pn_space::{FrameContent, Further, Sent};
use super::stats::PathStats;
use crate::fault_injection::{Bug, is_injected};
use crate::send_queue::{Chunk, SendQueue};

impl Path {
    /// Gives up all frames that are under way.
    pub(super) fn abandon(&mut self, now: Instant, send_queue: &mut SendQueue) {
        let span = self.probe_timeout();
        let mut lost = LossHandler {
            now,
            span,
            changed: false,
            pmtu: &mut self.pmtu,
            congestion: &mut self.congestion,
            stats: &mut self.stats,
            step_wanted: &mut self.step_wanted,
            receives_wanted: &mut self.receives_wanted,
            leaves: &mut self.leaves,
            send_queue,
        };
        for space in &mut self.spaces {
            space.outgoing.abandon(|sent, further| lost.again(sent, further));
        }
        self.loss_at = None;
    }

    /// Queues everything that is under way for other paths.
    pub(crate) fn requeue_in_flight(&mut self, send_queue: &mut SendQueue) {
        for space in &mut self.spaces {
            space.outgoing.repeat(usize::MAX, |carried, further| match carried {
                FrameContent::Chunk(chunk) => again(send_queue, &chunk, further),
                FrameContent::Leave(id) => self.leaves.push(id),
                FrameContent::Nothing
                | FrameContent::Mtu(_)
                | FrameContent::PathStep
                | FrameContent::Receives => {}
            });
        }
    }
}

/// The parts of a path that a loss changes.
pub(super) struct LossHandler<'a> {
    pub(super) now: Instant,
    pub(super) span: Duration,
    pub(super) changed: bool,
    pub(super) pmtu: &'a mut Pmtu,
    pub(super) congestion: &'a mut Congestion,
    pub(super) stats: &'a mut PathStats,
    pub(super) step_wanted: &'a mut bool,
    pub(super) receives_wanted: &'a mut bool,
    pub(super) leaves: &'a mut Vec<u8>,
    pub(super) send_queue: &'a mut SendQueue,
}

impl LossHandler<'_> {
    pub(super) fn lost(&mut self, sent: &Sent, further: Further<'_>) {
        self.stats.frames_lost += 1;
        if let FrameContent::Mtu(len) = sent.carried {
            self.congestion.forgotten(u64::from(sent.len));
            return self.pmtu.probe_lost(self.now, usize::from(len));
        }
        self.congestion.lost(u64::from(sent.len));
        if self.pmtu.lost(self.now, to_usize(sent.len), sent.at, self.span) {
            self.changed = true;
            self.congestion.set_frame_len(self.pmtu.current() as u64);
        }
        self.repeat(sent, further);
    }

    /// Treats a frame that may have arrived as lost.
    pub(super) fn again(&mut self, sent: &Sent, further: Further<'_>) {
        self.congestion.forgotten(u64::from(sent.len));
        match sent.carried {
            FrameContent::Mtu(len) => self.pmtu.probe_lost(self.now, usize::from(len)),
            _ => self.repeat(sent, further),
        }
    }

    fn repeat(&mut self, sent: &Sent, further: Further<'_>) {
        match sent.carried {
            FrameContent::Chunk(chunk) if is_injected(Bug::FramesForgetRange) && chunk.from > 0 => {}
            FrameContent::Chunk(chunk) if !sent.repeated => again(self.send_queue, &chunk, further),
            FrameContent::PathStep => *self.step_wanted = true,
            FrameContent::Receives => *self.receives_wanted = true,
            FrameContent::Leave(id) if !sent.repeated => self.leaves.push(id),
            FrameContent::Leave(_)
            | FrameContent::Chunk(_)
            | FrameContent::Mtu(_)
            | FrameContent::Nothing => {}
        }
    }
}

/// Makes the send queue send the content of a frame again.
pub(super) fn again(send_queue: &mut SendQueue, first: &Chunk, further: Further<'_>) {
    send_queue.lost(first);
    if !is_injected(Bug::FramesForgetParts) {
        further.for_each(|chunk| _ = send_queue.lost(chunk));
    }
}
