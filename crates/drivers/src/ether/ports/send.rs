//! Sends a batch from a port without the engine.

use base::buffer::Pool;
use base::ether::FrameMachine;

use super::super::REFUSALS_MAX;
use super::super::batch::TxBatch;
use super::{Port, REST};
use crate::clock::Clock;
use crate::files::Errno;
use crate::stats::Stats;

/// The result of an attempt to send a batch.
#[derive(PartialEq, Eq)]
enum Outcome {
    Gone,
    Rests,
    Down,
}

impl Port {
    /// Sends the rest of the batch. Returns whether the interface may have changed.
    pub(super) fn send(
        &mut self,
        outtake: &mut TxBatch,
        stats: &mut Stats,
        machine: &mut dyn FrameMachine,
        (clock, pool): (&Clock, &Pool),
    ) -> bool {
        let outcome = self.try_send(outtake, stats, machine, clock);
        if outcome != Outcome::Rests {
            self.forget(pool);
        }
        if outcome != Outcome::Gone {
            // If the interface is up after all, sending continues after the pause.
            let refusals = u32::from(self.refusals.saturating_sub(1));
            self.rest_until = Some(clock.now().after(REST * (1 << refusals)));
        }
        outcome == Outcome::Down
    }

    fn try_send(
        &mut self,
        outtake: &mut TxBatch,
        stats: &mut Stats,
        machine: &mut dyn FrameMachine,
        clock: &Clock,
    ) -> Outcome {
        let from = self.origin();
        let (mut too_long, mut outcome) = (0, Outcome::Gone);
        while self.done < self.batch.len() {
            let left = self.batch.frames().skip(self.done).map(|(to, _, pieces)| (Some(to), pieces));
            match outtake.send(&self.socket.socket, from, left) {
                Ok(count) => {
                    let sent = self.batch.frames().skip(self.done).take(count).map(|(_, len, _)| len).sum();
                    Stats::bump(&mut stats.frames_out, count);
                    Stats::bump(&mut stats.bytes_out, sent);
                    self.done += count.max(1);
                    self.refusals = 0;
                }
                Err(Errno::INTR) => {}
                Err(Errno::NOBUFS) if self.refusals >= REFUSALS_MAX => {
                    Stats::bump(&mut stats.frames_unsent, 1);
                    self.done += 1;
                    self.refusals = 0;
                }
                // The buffer of the socket is full, or the queue of the link, or the backlog of the receiver.
                Err(errno @ (Errno::AGAIN | Errno::NOBUFS)) => {
                    self.refusals += u8::from(errno == Errno::NOBUFS);
                    Stats::bump(&mut stats.frame_rests, 1);
                    outcome = Outcome::Rests;
                    break;
                }
                Err(Errno::MSGSIZE) => {
                    too_long += 1;
                    self.done += 1;
                }
                Err(Errno::NETDOWN | Errno::NODEV | Errno::NXIO) => {
                    outcome = Outcome::Down;
                    break;
                }
                Err(_) => {
                    Stats::bump(&mut stats.frames_unsent, 1);
                    self.done += 1;
                }
            }
        }
        if too_long > 0 {
            Stats::bump(&mut stats.frames_too_long, too_long);
            machine.frames_too_long(clock.now(), self.port, too_long);
        }
        outcome
    }
}
