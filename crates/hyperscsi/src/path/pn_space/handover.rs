//! A packet number space that moves to another process.

use alloc::vec::Vec;

use base::time::Instant;
use serde::{Deserialize, Serialize};

use super::{FrameContent, Incoming, Outgoing, RUNS_MAX, SentState};
use crate::fault_injection::{Bug, is_injected};
use crate::path::credit::{BEYOND_MAX, Grant};
use crate::path::ranges::Ranges;
use crate::pdu::ack::PN_COUNT_MASK;

/// A packet number space of a path. Packet numbers are counts, without the path.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SpaceState {
    /// The last packet number that was used; 0 if none was.
    pub sent: u64,
    /// The largest packet number that the peer allows.
    pub allowed: u64,
    /// The largest packet number that was received; 0 if none was.
    pub received: u64,
    /// The received packet numbers that acknowledgements name: the first and the last of each range, in
    /// ascending order.
    pub acknowledge: Vec<(u64, u64)>,
    /// The largest packet number that the peer may use.
    pub granted: u64,
}

/// How many packet numbers a resumed sender leaves out.
const LEFT_OUT: u64 = 1024;
// The peer takes numbers up to `BEYOND_MAX` beyond its limit. The other half is for probes and bare
// acknowledgements.
const _: () = assert!(LEFT_OUT == BEYOND_MAX / 2);

/// No packet number of a state is larger: behind it are enough numbers for every limit. A peer can allow
/// more, which counts as this.
pub(crate) const COUNT_MAX: u64 = PN_COUNT_MASK - (1 << 20);

impl Outgoing {
    /// Returns what the frames under way hold, which must arrive and is part of no message.
    pub(crate) fn under_way(&self) -> impl Iterator<Item = FrameContent> {
        let waiting = self.ring.iter().filter(|sent| sent.state == SentState::UnderWay);
        waiting.map(|sent| sent.carried)
    }

    /// Goes on behind the numbers that another process used.
    ///
    /// [`LEFT_OUT`] numbers behind the last one stay unused, so that none is used twice even if that process
    /// sent something after all. The gap ends at as many numbers beyond the peer's limit, so that the peer
    /// takes the next number however often the session moves while the peer is silent. A space in which no
    /// frame was sent, and which carries nothing about the session itself, begins as always.
    pub(crate) fn resume(state: &SpaceState, carries_acks: bool, seed: u64) -> Self {
        if state.sent == 0 && !carries_acks {
            return Self { limit: state.allowed, ..Self::new(0, 0, seed) };
        }
        let far = state.allowed.saturating_add(LEFT_OUT).max(state.sent);
        let last = if is_injected(Bug::FramesMoveBack) {
            state.sent.saturating_sub(1)
        } else {
            state.sent.saturating_add(LEFT_OUT).min(far)
        };
        Self { limit: state.allowed, ..Self::new(last, 0, seed) }
    }
}

impl Incoming {
    /// Returns whether an acknowledgement is due, now or soon.
    pub(crate) const fn owes_ack(&self) -> bool {
        self.has_ack_to_send()
    }

    /// Returns the ranges of received packet numbers that acknowledgements name, as first and last number.
    pub(crate) fn came(&self) -> impl Iterator<Item = (u64, u64)> {
        self.came.runs().iter().map(|(from, to)| (*from, to - 1))
    }

    /// Goes on behind the numbers that another process received.
    ///
    /// Every number up to the largest one counts as received, whether it was or not, so that no frame is
    /// taken twice. Acknowledgements name only what was received: the peer sends the rest again, under new
    /// numbers.
    pub(crate) fn resume(now: Instant, state: &SpaceState, share: u64) -> Self {
        let mut grant = Grant::new(now, state.received, 0, share);
        grant.resume(state.granted);
        let mut came = Ranges::new();
        for (from, last) in &state.acknowledge {
            came.insert(*from, last + 1);
        }
        Self { came, grant, ..Self::new(now, state.received, 0, share) }
    }
}

impl SpaceState {
    /// Returns whether the numbers can be those of a packet number space.
    pub(crate) fn is_possible(&self) -> bool {
        let numbers = [self.sent, self.allowed, self.received, self.granted];
        let mut next = 1;
        let ascend = self.acknowledge.iter().all(|(from, last)| {
            let fits = *from >= next && last >= from && *last <= self.received;
            // Two ranges that touch would be one.
            next = last.saturating_add(2);
            fits
        });
        numbers.iter().all(|number| *number <= COUNT_MAX) && ascend && self.acknowledge.len() <= RUNS_MAX
    }
}

/// Returns whether a packet number can be one of a path that was left.
pub(crate) const fn is_possible(number: u64) -> bool {
    number <= COUNT_MAX
}
