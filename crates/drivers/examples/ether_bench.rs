//! Compares the throughput of the Ethernet ports of a reactor with that of bare packet sockets: frames are
//! sent at full speed from one end of a veth pair to the other, by `sendmmsg` and `recvmmsg` alone, and by
//! state machines on reactors. The ratios matter, not the absolute numbers.
//!
//! ```text
//! unshare --map-root-user --net target/release/examples/ether_bench [SECONDS]
//! ```
#![allow(clippy::unwrap_used, clippy::panic, reason = "a measurement that cannot be made has nothing to say")]

use std::process::Command;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant as WallClock};

use base::buffer::Bytes;
use base::ether::{EtherPort, FrameBatch, FrameMachine, Mac, PortState, ReceivedFrame};
use base::state_machine::NoStreams;
use base::time::Instant;
use drivers::config::{Config, EngineChoice};
use drivers::ether::raw::RawPort;
use drivers::ether::{PortConfig, PortSocket};
use drivers::reactor::Reactor;

/// The EtherType for local experiments (IEEE 802).
const ETHER_TYPE: u16 = 0x88b5;

/// The lengths of what precedes and follows a payload, like the header and checksum of a protocol.
const HEAD: usize = 28;
const TAIL: usize = 4;

static STOP: AtomicBool = AtomicBool::new(false);
static RECEIVED: AtomicU64 = AtomicU64::new(0);

fn main() {
    let seconds = std::env::args().nth(1).map_or(1.0, |word| word.parse().unwrap());
    let span = Duration::from_secs_f64(seconds);
    println!(
        "{:>6} {:>12} {:>14} {:>14} {:>8} {:>8}",
        "MTU", "bare /s", "epoll /s", "io_uring /s", "epoll", "io_uring"
    );
    for mtu in [1500, 9000, 65_535] {
        lay(mtu);
        let mut best = [0.0_f64; 3];
        // The variants run in turns, so that other load on the machine affects all of them.
        for _ in 0..3 {
            let rates = [
                bare(mtu, span),
                reactors(EngineChoice::Epoll, mtu, span),
                reactors(EngineChoice::Uring, mtu, span),
            ];
            for (best, rate) in best.iter_mut().zip(rates) {
                *best = best.max(rate);
            }
        }
        let [bare, epoll, uring] = best;
        println!(
            "{mtu:>6} {bare:>12.0} {epoll:>14.0} {uring:>14.0} {:>8.2} {:>8.2}",
            epoll / bare,
            uring / bare
        );
        ip("link del alpha");
    }
}

fn ip(arguments: &str) {
    assert!(Command::new("ip").args(arguments.split(' ')).status().unwrap().success(), "ip {arguments}");
}

fn lay(mtu: usize) {
    ip(&format!("link add alpha mtu {mtu} type veth peer name beta mtu {mtu}"));
    ip("link set alpha up");
    ip("link set beta up");
    std::thread::sleep(Duration::from_millis(200));
}

/// Returns the frames received per second during `span`, once both ends run.
fn count(span: Duration) -> f64 {
    std::thread::sleep(span / 5);
    let (start, before) = (WallClock::now(), RECEIVED.load(Ordering::Relaxed));
    std::thread::sleep(span);
    let frames = RECEIVED.load(Ordering::Relaxed) - before;
    let rate = f64::from(u32::try_from(frames).unwrap()) / start.elapsed().as_secs_f64();
    STOP.store(true, Ordering::Relaxed);
    rate
}

fn bare(mtu: usize, span: Duration) -> f64 {
    STOP.store(false, Ordering::Relaxed);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut port = RawPort::open("beta", Some(ETHER_TYPE), 64 << 20).unwrap();
            while !STOP.load(Ordering::Relaxed) {
                let (count, _) = port.receive(|_| {});
                RECEIVED.fetch_add(u64::try_from(count).unwrap(), Ordering::Relaxed);
                if count == 0 {
                    let mut waiting = [rustix::event::PollFd::new(&port, rustix::event::PollFlags::IN)];
                    let _ = rustix::event::poll(
                        &mut waiting,
                        Some(&rustix::event::Timespec { tv_sec: 0, tv_nsec: 10_000_000 }),
                    );
                }
            }
        });
        scope.spawn(|| {
            let mut port = RawPort::open("alpha", Some(ETHER_TYPE), 1 << 20).unwrap();
            let mut frame = [Mac::BROADCAST.0, [2, 0, 0, 0, 0, 9]].concat();
            frame.extend(ETHER_TYPE.to_be_bytes());
            frame.resize(14 + mtu, 7);
            while !STOP.load(Ordering::Relaxed) {
                port.send(std::iter::repeat_n(frame.as_slice(), 64));
            }
        });
        count(span)
    })
}

fn reactors(engine: EngineChoice, mtu: usize, span: Duration) -> f64 {
    STOP.store(false, Ordering::Relaxed);
    std::thread::scope(|scope| {
        scope.spawn(move || run(engine, "beta", Blaster::default()));
        scope.spawn(move || {
            let payload = Bytes::copied_from(&vec![7; mtu - HEAD - TAIL]);
            run(engine, "alpha", Blaster { payload: Some(payload), ..Blaster::default() });
        });
        count(span)
    })
}

fn run(engine: EngineChoice, interface: &str, mut machine: Blaster) {
    let mut reactor = Reactor::new(&Config { engine, ..Config::default() }).unwrap();
    let port = PortSocket::open(PortConfig::new(interface, ETHER_TYPE)).unwrap();
    reactor.open_port(EtherPort(0), port).unwrap();
    while !STOP.load(Ordering::Relaxed) {
        reactor.run_once(&mut machine, Some(Duration::from_millis(10))).unwrap();
    }
}

/// Sends as many frames as possible, or counts received frames.
#[derive(Default)]
struct Blaster {
    payload: Option<Bytes>,
    up: bool,
    asked: bool,
}

impl FrameMachine for Blaster {
    fn port_up(&mut self, _: Instant, _: EtherPort, _: &PortState, _: [u8; 32]) {
        self.up = true;
    }

    fn frame_received(&mut self, _: Instant, frame: ReceivedFrame<'_>) {
        std::hint::black_box(frame.payload);
        RECEIVED.fetch_add(1, Ordering::Relaxed);
    }

    fn poll_port(&mut self) -> Option<EtherPort> {
        (self.up && self.payload.is_some() && !std::mem::replace(&mut self.asked, true))
            .then_some(EtherPort(0))
    }

    fn transmit_frames(&mut self, _: Instant, _: EtherPort, out: &mut FrameBatch) {
        self.asked = false;
        let Some(payload) = &self.payload else { return };
        while !out.is_full() {
            out.begin_frame(Mac::BROADCAST);
            out.put(&[1; HEAD]);
            out.put_shared(payload.clone());
            out.put(&[2; TAIL]);
            out.end_frame();
        }
    }
}

impl NoStreams for Blaster {}
