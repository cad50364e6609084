//! The receive rings, in which frames wait while their host stands still.

use std::collections::{BTreeMap, VecDeque};

use base::ether::EtherPort;
use base::time::Instant;

use super::net::{ArrivedFrame, Node};

/// The receive rings of all ports.
pub(super) struct Rings {
    /// How many frames each ring holds.
    slots: usize,
    asleep: BTreeMap<Node, Instant>,
    waiting: BTreeMap<(Node, EtherPort), Ring>,
}

#[derive(Default)]
struct Ring {
    frames: VecDeque<ArrivedFrame>,
    lost: u32,
}

impl Rings {
    pub(super) const fn new(slots: usize) -> Self {
        Self { slots, asleep: BTreeMap::new(), waiting: BTreeMap::new() }
    }

    pub(super) fn sleep(&mut self, who: Node, until: Instant) {
        let known = self.asleep.entry(who).or_insert(until);
        *known = until.max(*known);
    }

    pub(super) fn is_asleep(&self, who: Node) -> bool {
        self.asleep.contains_key(&who)
    }

    /// Stores a frame for a host that stands still. If the ring is full, the frame is lost.
    pub(super) fn keep(&mut self, come: ArrivedFrame) {
        let ring = self.waiting.entry((come.to, come.port)).or_default();
        if ring.frames.len() < self.slots {
            ring.frames.push_back(come);
        } else {
            ring.lost += 1;
        }
    }

    /// Wakes a host if it is due. Returns the frames that waited, and how many frames each of its ports lost.
    pub(super) fn wake(&mut self, now: Instant, who: Node) -> (Vec<ArrivedFrame>, Vec<(EtherPort, u32)>) {
        if self.asleep.get(&who).is_none_or(|until| *until > now) {
            return (Vec::new(), Vec::new());
        }
        self.asleep.remove(&who);
        self.empty(who)
    }

    /// Drops the rings of a host that crashed, with all frames that it did not read.
    pub(super) fn forget(&mut self, who: Node) {
        self.asleep.remove(&who);
        self.empty(who);
    }

    fn empty(&mut self, who: Node) -> (Vec<ArrivedFrame>, Vec<(EtherPort, u32)>) {
        let (mut frames, mut lost) = (Vec::new(), Vec::new());
        self.waiting.retain(|(whose, port), ring| {
            if *whose == who {
                frames.extend(ring.frames.drain(..));
                if ring.lost > 0 {
                    lost.push((*port, ring.lost));
                }
            }
            *whose != who
        });
        (frames, lost)
    }
}
