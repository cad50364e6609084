//! An emulated wire between two Ethernet interfaces (a network emulator in user space): it loses, duplicates,
//! delays, reorders and damages frames, and limits the rate.
//!
//! A [`netem::frame::FramePlan`] for each direction defines the faults; the simulator runs the same plans.
//! The wire serves kernels without a network emulator (netem), and tests that need the n-th frame of a
//! direction to get the same random faults from the same seed. Apart from these faults it forwards every
//! frame unchanged, whatever its destination address. It does not undo the offloads of the kernels at both
//! ends: turn off segmentation and checksum offload there
//! (`ethtool -K IFACE tx off tso off gso off gro off`).

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

/// The size of the kernel's receive buffer at each end: the frames of 10 ms at 25 Gbit/s, as the kernel
/// counts memory.
const RECEIVE_BYTES: usize = 64 << 20;

/// The most frames that wait for an interface whose queue is full; frames beyond that are lost and counted.
const WAITING_MAX: usize = 4096;

/// The time after which the wire tries again to send on an interface whose queue is full.
const REST: Duration = Duration::from_micros(100);

/// The longest time between checks of the stop flag.
const POLL_INTERVAL: Duration = Duration::from_millis(50);

/// The most receive calls on one end before the wire serves the other.
const RECEIVES_PER_TURN: usize = 4;

/// The most rounds through both directions before the wire sleeps or checks the stop flag.
const TURNS: usize = 64;

/// An emulated wire.
pub struct Wire {
    ends: [RawPort; 2],
    lanes: [Direction; 2],
    started: WallClock,
}

/// One direction of a wire.
struct Direction {
    link: FrameLink,
    /// Frames that have passed the link and wait to be sent on the other interface.
    waiting: VecDeque<Vec<u8>>,
    rest_until: Option<Instant>,
    bytes: u64,
    unheard: u64,
    overrun: u64,
    too_long: u64,
    failed: u64,
}

/// The counters of a wire.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct WireReport {
    /// How long the wire has run, in milliseconds.
    pub milliseconds: u64,
    /// The direction from the first interface to the second.
    pub a_to_b: DirectionReport,
    /// The direction from the second interface to the first.
    pub b_to_a: DirectionReport,
}

/// The counters of one direction, in frames unless another unit is given.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct DirectionReport {
    /// Frames received from the sender's interface.
    pub sent: u64,
    /// Frames forwarded, or about to be: copies included.
    pub arrived: u64,
    /// Bytes received, with Ethernet headers.
    pub bytes: u64,
    /// Frames lost at random, as planned.
    pub lost: u64,
    /// Frames lost because the planned queue was full.
    pub queue_full: u64,
    /// Frames lost because they were longer than planned.
    pub too_long: u64,
    /// Frames lost in a cut.
    pub cut: u64,
    /// Frames that were duplicated.
    pub duplicated: u64,
    /// Frames held back so that later ones overtook them.
    pub reordered: u64,
    /// Frames with flipped bits.
    pub corrupted: u64,
    /// Frames lost in the receive buffer because this wire was too slow: not planned.
    pub unheard: u64,
    /// Frames lost because the outgoing interface had a full queue, had too small an MTU or was down: not
    /// planned.
    pub unsent: u64,
}

impl Wire {
    /// Opens a wire between two interfaces, with a plan for each direction. It carries frames of
    /// `ether_type`, or all.
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

    /// Forwards frames until `ends` is set, or for `span`.
    ///
    /// # Errors
    /// The error of the system call that waits (`poll`).
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

    /// Receives and sends the frames that are ready. Returns whether there were any.
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

    /// Waits until a frame is received or due, for [`POLL_INTERVAL`] at most.
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

    /// Sends the frames that are due on the interface. Returns whether it tried to send any.
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
