//! Runs a parrot on a reactor in a thread of its own, and guards against hangs.

use std::cell::Cell;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use base::state_machine::PortalId;
use drivers::config::{Config, EngineChoice, SpinMode};
use drivers::listener;
use drivers::message_queue::Handle;
use drivers::reactor::{Reactor, ReactorError};
use drivers::stats::Stats;

use crate::parrot::{Parrot, frame};

/// No step of these tests takes a second; a step that takes this long hangs.
pub(crate) const HANG: Duration = Duration::from_secs(60);

thread_local! {
    /// Whether the reactors that a test starts busy-poll before they sleep.
    pub(crate) static LOOK: Cell<SpinMode> = const { Cell::new(SpinMode::Adaptive) };
}

pub(crate) const PORTAL: PortalId = PortalId(7);

pub(crate) struct Rig {
    pub(crate) address: SocketAddr,
    pub(crate) handle: Handle<Parrot>,
    thread: Option<thread::JoinHandle<Parrot>>,
}

impl Rig {
    /// Starts a reactor. Returns `None` and prints the reason if the engine is not available here.
    pub(crate) fn start(engine: EngineChoice) -> Option<Self> {
        Self::start_with(Config { engine, ..Config::default() })
    }

    pub(crate) fn start_with(config: Config) -> Option<Self> {
        let listening = listener::open("127.0.0.1:0".parse().unwrap()).unwrap();
        let address = listening.local_addr().unwrap();
        let (report, started) = mpsc::channel();
        let config = Config { spin_mode: LOOK.get(), ..config };
        let thread = thread::spawn(move || {
            let mut parrot = Parrot::default();
            let mut reactor = match Reactor::new(&config) {
                Ok(reactor) => reactor,
                Err(why) => {
                    report.send(Err(why)).unwrap();
                    return parrot;
                }
            };
            reactor.listen(listening, PORTAL).unwrap();
            report.send(Ok(reactor.handle())).unwrap();
            reactor.run(&mut parrot).unwrap();
            parrot
        });
        match started.recv_timeout(HANG).unwrap() {
            Ok(handle) => Some(Self { address, handle, thread: Some(thread) }),
            Err(ReactorError::NoUring(why)) => {
                eprintln!("skipped: no io_uring here: {why}");
                None
            }
            Err(why) => panic!("{why}"),
        }
    }

    pub(crate) fn connect(&self) -> TcpStream {
        let stream = TcpStream::connect(self.address).unwrap();
        stream.set_read_timeout(Some(HANG)).unwrap();
        stream.set_write_timeout(Some(HANG)).unwrap();
        stream.set_nodelay(true).unwrap();
        stream
    }

    /// Runs `question` on the state machine and returns its answer.
    pub(crate) fn ask<T: Send + 'static>(
        &self,
        question: impl FnOnce(&mut Parrot) -> T + Send + 'static,
    ) -> T {
        let (answer, answers) = mpsc::channel();
        self.handle.post(move |parrot, _| answer.send(question(parrot)).unwrap()).unwrap();
        answers.recv_timeout(HANG).unwrap()
    }

    /// Waits until `condition` holds for the state machine.
    pub(crate) fn await_that(
        &self,
        what: &str,
        condition: impl Fn(&mut Parrot) -> bool + Send + Clone + 'static,
    ) {
        let start = std::time::Instant::now();
        while !self.ask(condition.clone()) {
            assert!(start.elapsed() < HANG, "never: {what}");
            thread::sleep(Duration::from_millis(1));
        }
    }

    /// Returns the present counters. A turn publishes them at its end, so two questions ensure that they are
    /// up to date.
    pub(crate) fn stats(&self) -> Stats {
        self.ask(|_| ());
        self.ask(|_| ());
        self.handle.stats()
    }

    /// Stops the reactor and returns the state machine in its final state.
    pub(crate) fn stop(mut self, drain: Duration) -> Parrot {
        // A reactor that was stopped before may have ended already.
        let _ = self.handle.stop(drain);
        self.thread.take().unwrap().join().unwrap()
    }
}

pub(crate) fn send(stream: &mut TcpStream, kind: u8, len: usize) {
    stream.write_all(&frame(kind, len)).unwrap();
}

pub(crate) fn receive(stream: &mut TcpStream, len: usize) -> Vec<u8> {
    let mut bytes = vec![0; len];
    stream.read_exact(&mut bytes).unwrap();
    bytes
}

/// Returns bytes that differ from each other and from those of another seed.
pub(crate) fn pattern(seed: u64, len: usize) -> Vec<u8> {
    let mut bytes = vec![0; len];
    base::rng::Rng::from_seed(seed).fill(&mut bytes);
    bytes
}
