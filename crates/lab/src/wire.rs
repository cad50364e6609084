//! A wire between two Ethernet interfaces that is as bad as wanted: frames get lost, come twice, late, swapped or damaged,
//! and no faster than a rate.
//!
//! What happens is a [`netem::frame::FramePlan`] for each direction; the simulator runs the same plans. For kernels without a
//! network emulator, and for all in that a seed throws the same dice for the n-th frame of a direction. Frames go through
//! as they are, to whomever they are sent. What the kernels at both ends do beforehand is not undone: TCP has to be told
//! to segment and to sum by itself (`ethtool -K IFACE tx off tso off gso off gro off`).

use std::collections::VecDeque;
use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant as WallClock};

use base::rng::Rng;
use base::time::Instant;
use drivers::ether::PortError;
use drivers::ether::raw::RawPort;
use netem::frame::{FrameLink, FramePlan, FrameStats};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use serde::Serialize;

/// How many bytes wait in the kernel for us, at either end: what comes in 10 ms at 25 Gbit/s, as the kernel counts.
const RECEIVE_BYTES: usize = 64 << 20;

/// How many frames wait to be put onto an interface that takes no more; others are lost and counted.
const WAITING_MAX: usize = 4096;

/// How long an interface rests that takes no more.
const REST: Duration = Duration::from_micros(100);

/// How often the end is looked for.
const POLL_INTERVAL: Duration = Duration::from_millis(50);

/// How often one end receives before the other has its turn.
const RECEIVES_PER_TURN: usize = 4;

/// How often both directions are pushed through, at most, before the wire sleeps or looks for its end.
const TURNS: usize = 64;

/// A wire that was laid.
pub struct Wire {
    ends: [RawPort; 2],
    lanes: [Direction; 2],
    started: WallClock,
}

/// One direction.
struct Direction {
    link: FrameLink,
    /// Frames that have arrived and are to be put onto the other interface.
    waiting: VecDeque<Vec<u8>>,
    rest_until: Option<Instant>,
    bytes: u64,
    unheard: u64,
    overrun: u64,
    too_long: u64,
    failed: u64,
}

/// What a wire did.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct WireReport {
    /// How long it lay there.
    pub milliseconds: u64,
    /// From the first interface to the second.
    pub a_to_b: DirectionReport,
    /// And back.
    pub b_to_a: DirectionReport,
}

/// What happened in one direction, in frames.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct DirectionReport {
    /// That came in.
    pub sent: u64,
    /// That went out, or will: copies included.
    pub arrived: u64,
    /// Bytes that came in, with Ethernet headers.
    pub bytes: u64,
    /// Lost by the dice.
    pub lost: u64,
    /// Lost because the planned queue was full.
    pub queue_full: u64,
    /// Lost because they were longer than planned.
    pub too_long: u64,
    /// Lost in a cut.
    pub cut: u64,
    /// That arrived twice.
    pub duplicated: u64,
    /// Held back so that others overtook them.
    pub reordered: u64,
    /// With flipped bits.
    pub corrupted: u64,
    /// Lost because this wire was too slow for its receiver's buffer: not planned.
    pub unheard: u64,
    /// Lost because the interface they were to leave by took no more, was too small for them or down: not planned.
    pub unsent: u64,
}

impl Wire {
    /// Lays a wire between two interfaces, with a plan for each direction; for frames of one type, or all.
    ///
    /// # Errors
    /// When an interface cannot be opened.
    pub fn open(
        interfaces: [&str; 2],
        ether_type: Option<u16>,
        plans: [FramePlan; 2],
        seed: u64,
    ) -> Result<Self, PortError> {
        let [a, b] = interfaces;
        let [there, back] = plans;
        let mut seeds = Rng::from_seed(seed);
        let lanes = [there, back].map(|plan| Direction::new(FrameLink::new(plan, seeds.next_u64())));
        let open = |name| RawPort::open(name, ether_type, RECEIVE_BYTES);
        Ok(Self { ends: [open(a)?, open(b)?], lanes, started: WallClock::now() })
    }

    /// Carries frames until `ends` is set, or for `span`.
    ///
    /// # Errors
    /// What the system says of waiting.
    pub fn run(&mut self, ends: &AtomicBool, span: Option<Duration>) -> io::Result<()> {
        self.started = WallClock::now();
        let mut looked = self.started;
        while !ends.load(Ordering::Relaxed) && span.is_none_or(|span| self.started.elapsed() < span) {
            for _ in 0..TURNS {
                if !self.poll_once() {
                    break;
                }
            }
            if looked.elapsed() >= POLL_INTERVAL {
                looked = WallClock::now();
                self.ends.iter_mut().for_each(RawPort::look);
            }
            self.sleep()?;
        }
        Ok(())
    }

    /// Returns what happened so far.
    pub fn report(&mut self) -> WireReport {
        let [a, b] = &self.ends;
        let [there, back] = &mut self.lanes;
        there.unheard += a.take_drops();
        back.unheard += b.take_drops();
        WireReport {
            milliseconds: u64::try_from(self.started.elapsed().as_millis()).unwrap_or(u64::MAX),
            a_to_b: there.report(),
            b_to_a: back.report(),
        }
    }

    fn now(&self) -> Instant {
        Instant(u64::try_from(self.started.elapsed().as_nanos()).unwrap_or(u64::MAX))
    }

    /// Takes in and puts out what there is. Returns whether there was anything.
    fn poll_once(&mut self) -> bool {
        let mut any = false;
        for way in 0..2 {
            for _ in 0..RECEIVES_PER_TURN {
                let now = self.now();
                let (Some(end), Some(lane)) = (self.ends.get_mut(way), self.lanes.get_mut(way)) else {
                    continue;
                };
                let (count, more) = end.receive(|frame| lane.take(now, frame));
                any |= count > 0;
                if !more {
                    break;
                }
            }
            let now = self.now();
            if let (Some(end), Some(lane)) = (self.ends.get_mut(1 - way), self.lanes.get_mut(way)) {
                any |= lane.put(now, end);
            }
        }
        any
    }

    /// Waits until a frame comes or is due, but not long.
    fn sleep(&self) -> io::Result<()> {
        let now = self.now();
        let due = self.lanes.iter().filter_map(Direction::next_deadline).min();
        let span = due.map_or(POLL_INTERVAL, |due| due.since(now).min(POLL_INTERVAL));
        let span = Timespec {
            tv_sec: i64::try_from(span.as_secs()).unwrap_or(i64::MAX),
            tv_nsec: span.subsec_nanos().into(),
        };
        let [a, b] = &self.ends;
        match poll(&mut [PollFd::new(a, PollFlags::IN), PollFd::new(b, PollFlags::IN)], Some(&span)) {
            Ok(_) | Err(rustix::io::Errno::INTR) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }
}

impl Direction {
    const fn new(link: FrameLink) -> Self {
        Self {
            link,
            waiting: VecDeque::new(),
            rest_until: None,
            bytes: 0,
            unheard: 0,
            overrun: 0,
            too_long: 0,
            failed: 0,
        }
    }

    fn take(&mut self, now: Instant, frame: &[u8]) {
        self.bytes = self.bytes.saturating_add(u64::try_from(frame.len()).unwrap_or(u64::MAX));
        self.link.push(now, frame);
    }

    /// Puts what has arrived onto the interface. Returns whether there was anything.
    fn put(&mut self, now: Instant, end: &mut RawPort) -> bool {
        while let Some(frame) = self.link.poll(now) {
            if self.waiting.len() < WAITING_MAX {
                self.waiting.push_back(frame);
            } else {
                self.overrun += 1;
            }
        }
        if self.waiting.is_empty() || self.rest_until.is_some_and(|until| now < until) {
            return false;
        }
        let sent = end.send(self.waiting.iter().map(Vec::as_slice));
        self.waiting.drain(..sent.done.min(self.waiting.len()));
        self.too_long += u64::try_from(sent.too_long).unwrap_or(0);
        self.failed += u64::try_from(sent.failed).unwrap_or(0);
        self.rest_until = (!self.waiting.is_empty()).then(|| now.after(REST));
        true
    }

    fn next_deadline(&self) -> Option<Instant> {
        [self.link.poll_timeout(), self.rest_until].into_iter().flatten().min()
    }

    const fn report(&self) -> DirectionReport {
        let FrameStats { sent, arrived, lost, queue_full, too_long, cut, duplicated, reordered, corrupted } =
            self.link.stats();
        let unsent = self.overrun + self.too_long + self.failed;
        let (bytes, unheard) = (self.bytes, self.unheard);
        DirectionReport {
            sent,
            arrived,
            bytes,
            lost,
            queue_full,
            too_long,
            cut,
            duplicated,
            reordered,
            corrupted,
            unheard,
            unsent,
        }
    }
}
