//! Veth pairs between interfaces, and state machines at their ends.

use std::collections::VecDeque;
use std::process::Command;
use std::time::{Duration, Instant as WallClock};

use base::ether::{EtherPort, FrameBatch, FrameMachine, Mac, PortState, ReceivedFrame};
use base::state_machine::NoStreams;
use base::time::Instant;
use drivers::config::{Config, EngineChoice, SpinMode};
use drivers::ether::{PortConfig, PortSocket, RxMode};
use drivers::reactor::{Reactor, ReactorError};
use drivers::stats::Stats;

/// No step of these tests takes a second; a step that takes this long hangs.
pub(crate) const HANG: Duration = Duration::from_secs(60);

/// The EtherType for local experiments (IEEE 802).
pub(crate) const ETHER_TYPE: u16 = 0x88b5;

const INSIDE: &str = "TARGE_TEST_INSIDE_NAMESPACE";

/// Returns whether this is the process in the namespace, which must run the test. The process outside starts
/// it and passes on its result; where namespaces are not allowed it prints so.
pub(crate) fn inside_a_namespace(test: &str) -> bool {
    if std::env::var_os(INSIDE).is_some() {
        return true;
    }
    let unshare = |arguments: &[&std::ffi::OsStr]| {
        Command::new("unshare")
            .args(["--map-root-user", "--net", "--"])
            .args(arguments)
            .env(INSIDE, "1")
            .output()
    };
    let probe = unshare(&[
        "ip".as_ref(),
        "link".as_ref(),
        "add".as_ref(),
        "probe".as_ref(),
        "type".as_ref(),
        "veth".as_ref(),
    ]);
    match probe {
        Ok(output) if output.status.success() => {}
        Ok(output) => {
            eprintln!(
                "skipped: no namespace with virtual cables: {}",
                String::from_utf8_lossy(&output.stderr)
            );
            return false;
        }
        Err(why) => {
            eprintln!("skipped: unshare: {why}");
            return false;
        }
    }
    let program = std::env::current_exe().unwrap();
    let arguments = [program.as_os_str(), "--exact".as_ref(), test.as_ref(), "--nocapture".as_ref()];
    let output = unshare(&arguments).unwrap();
    let said = [output.stdout, output.stderr].concat();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&said));
    false
}

pub(crate) fn ip(arguments: &str) {
    run("ip", arguments);
}

pub(crate) fn run(program: &str, arguments: &str) {
    let output = Command::new(program).args(arguments.split(' ')).output().unwrap();
    assert!(output.status.success(), "{program} {arguments}: {}", String::from_utf8_lossy(&output.stderr));
}

/// Returns how many packet sockets there are in the namespace.
pub(crate) fn packet_sockets() -> usize {
    std::fs::read_to_string("/proc/self/net/packet").unwrap().lines().count() - 1
}

/// A veth pair with the ends alpha and beta.
pub(crate) struct Cable {
    pub(crate) alpha: Mac,
    pub(crate) beta: Mac,
}

impl Cable {
    pub(crate) fn lay() -> Self {
        // No frames but those of the tests shall be on the link.
        run("sysctl", "-qw net.ipv6.conf.default.disable_ipv6=1");
        ip("link add alpha type veth peer name beta");
        ip("link set alpha up");
        ip("link set beta up");
        let mac = |name| {
            let end = PortSocket::open(PortConfig::new(name, ETHER_TYPE)).unwrap();
            let start = WallClock::now();
            loop {
                // The kernel detects the link a little later.
                if let Some(state) = end.state() {
                    return state.mac;
                }
                assert!(start.elapsed() < HANG, "{name} never comes up");
                std::thread::sleep(Duration::from_millis(1));
            }
        };
        Self { alpha: mac("alpha"), beta: mac("beta") }
    }
}

impl Drop for Cable {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            ip("link del alpha");
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Event {
    Up(EtherPort, PortState),
    Down(EtherPort),
    TooLong(usize),
    Overrun(EtherPort, u32),
}

pub(crate) struct Heard {
    pub(crate) source: Mac,
    pub(crate) group: bool,
    pub(crate) age: Duration,
    pub(crate) payload: Vec<u8>,
}

/// Records received frames and sends the frames that the test queues.
#[derive(Default)]
pub(crate) struct Machine {
    pub(crate) events: Vec<Event>,
    pub(crate) heard: Vec<Heard>,
    pub(crate) out: VecDeque<(EtherPort, Mac, Vec<u8>)>,
    pub(crate) blocks: Vec<[u8; 32]>,
    pub(crate) thirst: usize,
    /// Whether it sends back the frames that it receives.
    pub(crate) echoes: bool,
    asked: bool,
}

impl FrameMachine for Machine {
    fn port_up(&mut self, _: Instant, port: EtherPort, state: &PortState, entropy: [u8; 32]) {
        self.events.push(Event::Up(port, *state));
        self.blocks.push(entropy);
    }

    fn port_down(&mut self, _: Instant, port: EtherPort) {
        self.events.push(Event::Down(port));
    }

    fn frame_received(&mut self, _: Instant, frame: ReceivedFrame<'_>) {
        let payload = frame.payload.to_vec();
        if self.echoes {
            self.out.push_back((frame.port, frame.source, payload.clone()));
        }
        self.heard.push(Heard { source: frame.source, group: frame.group, age: frame.age, payload });
    }

    fn poll_port(&mut self) -> Option<EtherPort> {
        if self.asked {
            return None;
        }
        let port = self.out.front()?.0;
        self.asked = true;
        Some(port)
    }

    fn transmit_frames(&mut self, _: Instant, port: EtherPort, out: &mut FrameBatch) {
        let before = out.len();
        while !out.is_full() && self.out.front().is_some_and(|(to, ..)| *to == port) {
            let (_, to, frame) = self.out.pop_front().unwrap();
            out.begin_frame(to);
            let (head, rest) = frame.split_at(frame.len() / 3);
            out.put(head);
            out.put_shared(base::buffer::Bytes::copied_from(rest));
            out.end_frame();
        }
        // The driver calls again until no frame is added.
        self.asked = out.len() > before;
    }

    fn frames_too_long(&mut self, _: Instant, _: EtherPort, count: usize) {
        self.events.push(Event::TooLong(count));
    }

    fn frames_overrun(&mut self, _: Instant, port: EtherPort, count: u32) {
        self.events.push(Event::Overrun(port, count));
    }

    fn entropy_wanted(&self) -> usize {
        self.thirst
    }

    fn add_entropy(&mut self, entropy: [u8; 32]) {
        self.thirst = self.thirst.saturating_sub(1);
        self.blocks.push(entropy);
    }
}

impl NoStreams for Machine {}

/// The engine, the way to receive frames, and the spin mode of a test.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Way {
    pub(crate) engine: EngineChoice,
    pub(crate) inlet: RxMode,
    pub(crate) look: SpinMode,
}

/// A state machine on a reactor.
pub(crate) struct Station {
    pub(crate) machine: Machine,
    reactor: Reactor<Machine>,
}

impl Station {
    /// Starts a reactor with these ports, numbered from zero. Returns `None` and prints the reason if the
    /// engine is not available here.
    pub(crate) fn start(Way { engine, inlet, look }: Way, ports: &[PortConfig]) -> Option<Self> {
        let mut reactor = match Reactor::new(&Config { engine, spin_mode: look, ..Config::default() }) {
            Ok(reactor) => reactor,
            Err(ReactorError::NoUring(why)) => {
                eprintln!("skipped: no io_uring here: {why}");
                return None;
            }
            Err(why) => panic!("{why}"),
        };
        for (number, config) in (0..).zip(ports) {
            let config = PortConfig { rx_mode: inlet, ..config.clone() };
            reactor.open_port(EtherPort(number), PortSocket::open(config).unwrap()).unwrap();
        }
        Some(Self { machine: Machine::default(), reactor })
    }

    /// Runs both stations until `done` returns true.
    pub(crate) fn until(&mut self, other: &mut Self, done: impl Fn(&Self, &Self) -> bool) {
        let start = WallClock::now();
        while !done(self, other) {
            for station in [&mut *self, &mut *other] {
                station.reactor.run_once(&mut station.machine, Some(Duration::from_millis(1))).unwrap();
            }
            assert!(start.elapsed() < HANG, "never: {:?} {:?}", self.machine.events, other.machine.events);
        }
    }

    /// Runs only this station until `done` returns true.
    pub(crate) fn alone_until(&mut self, done: impl Fn(&mut Self) -> bool) {
        let start = WallClock::now();
        while !done(self) {
            self.reactor.run_once(&mut self.machine, Some(Duration::from_millis(1))).unwrap();
            assert!(start.elapsed() < HANG, "never: {:?}", self.machine.events);
        }
    }

    /// Returns how many times this station woke up during `span`.
    pub(crate) fn turns_in(&mut self, span: Duration) -> usize {
        let start = WallClock::now();
        let mut turns = 0;
        while let Some(left) = span.checked_sub(start.elapsed()) {
            self.reactor.run_once(&mut self.machine, Some(left)).unwrap();
            turns += 1;
        }
        turns
    }

    /// Returns how many lost frames were reported to this station because the buffer of its port was full.
    pub(crate) fn overruns(&self) -> usize {
        let counts = self.machine.events.iter().filter_map(|event| match event {
            Event::Overrun(EtherPort(0), count) => usize::try_from(*count).ok(),
            _ => None,
        });
        counts.sum()
    }

    /// Runs both stations long enough for all frames to arrive.
    pub(crate) fn rest(&mut self, other: &mut Self) {
        for _ in 0..30 {
            for station in [&mut *self, &mut *other] {
                station.reactor.run_once(&mut station.machine, Some(Duration::from_millis(1))).unwrap();
            }
        }
    }

    /// Runs one turn of this station.
    pub(crate) fn turn(&mut self) {
        self.reactor.run_once(&mut self.machine, Some(Duration::from_millis(1))).unwrap();
    }

    pub(crate) fn send(&mut self, port: u32, to: Mac, frame: &[u8]) {
        self.machine.out.push_back((EtherPort(port), to, frame.to_vec()));
    }

    /// Parks the reactor.
    pub(crate) fn park(&mut self) {
        let (answer, parked) = std::sync::mpsc::channel();
        self.reactor.handle().park(move |_, _| answer.send(()).unwrap()).unwrap();
        self.alone_until(|_| parked.try_recv().is_ok());
    }

    pub(crate) fn unpark(&mut self) {
        self.reactor.handle().unpark().unwrap();
    }

    pub(crate) fn close(&mut self, port: u32) {
        self.reactor.close_port(&mut self.machine, EtherPort(port));
    }

    /// Returns the state of the port, as the state machine was told.
    pub(crate) fn state(&self, port: u32) -> Option<PortState> {
        self.machine.events.iter().rev().find_map(|event| match event {
            Event::Up(name, state) if name.0 == port => Some(Some(*state)),
            Event::Down(name) if name.0 == port => Some(None),
            _ => None,
        })?
    }

    pub(crate) fn frames(&self) -> usize {
        self.machine.heard.len()
    }

    pub(crate) fn take_frames(&mut self) -> Vec<Heard> {
        std::mem::take(&mut self.machine.heard)
    }

    pub(crate) fn stats(&mut self) -> Stats {
        self.reactor.stats()
    }
}

/// Returns bytes that differ from each other and from those of another seed.
pub(crate) fn pattern(seed: u64, len: usize) -> Vec<u8> {
    let mut bytes = vec![0; len];
    base::rng::Rng::from_seed(seed).fill(&mut bytes);
    bytes
}
