//! A reactor whose process runs out of descriptors. The test is a process of its own, since the limit applies
//! to a process.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "all of this is test code, where a panic is the verdict"
)]

use std::io::Read;
use std::net::TcpStream;
use std::time::Duration;

use base::ether::FrameMachine;
use base::state_machine::{
    AcceptInfo, Action, ConnId, DisconnectReason, MediumId, PortalId, RxBuffer, StreamMachine,
};
use base::time::Instant;
use base::transmit::Transmit;
use drivers::config::{Config, EngineChoice};
use drivers::listener;
use drivers::reactor::Reactor;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// Aborts every connection.
#[derive(Default)]
struct Doorman {
    actions: Vec<Action>,
    seen: usize,
}

impl FrameMachine for Doorman {}

impl StreamMachine for Doorman {
    fn connected(&mut self, _: Instant, conn: ConnId, _: &AcceptInfo) {
        self.seen += 1;
        self.actions.push(Action::Abort(conn));
    }
    fn received(&mut self, _: Instant, _: ConnId, _: &[u8]) {}
    fn take_rx_buffer(&mut self, _: ConnId) -> Option<RxBuffer> {
        None
    }
    fn return_rx_buffer(&mut self, _: Instant, _: ConnId, _: RxBuffer) {}
    fn transmit(&mut self, _: Instant, _: ConnId, _: &mut Transmit) {}
    fn disconnected(&mut self, _: Instant, _: ConnId, _: DisconnectReason) {}
    fn medium_ready(&mut self, _: Instant, _: MediumId) {}
    fn poll_action(&mut self) -> Option<Action> {
        self.actions.pop()
    }
    fn poll_timeout(&self) -> Option<Instant> {
        None
    }
    fn handle_timeout(&mut self, _: Instant) {}
}

#[test]
fn waits_for_a_descriptor_without_spinning_and_goes_on_when_there_is_one() {
    for engine in [EngineChoice::Epoll, EngineChoice::Uring] {
        let mut reactor = match Reactor::new(&Config { engine, ..Config::default() }) {
            Ok(reactor) => reactor,
            Err(why) => {
                eprintln!("skipped: {why}");
                continue;
            }
        };
        let listening = listener::open("127.0.0.1:0".parse().unwrap()).unwrap();
        let address = listening.local_addr().unwrap();
        reactor.listen(listening, PortalId(0)).unwrap();
        let mut doorman = Doorman::default();
        let mut peer = TcpStream::connect(address).unwrap();
        peer.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
        let limit = getrlimit(Resource::Nofile);
        setrlimit(Resource::Nofile, Rlimit { current: Some(0), maximum: limit.maximum }).unwrap();
        let start = std::time::Instant::now();
        while start.elapsed() < Duration::from_secs(1) || reactor.stats().accept_failures == 0 {
            assert!(start.elapsed() < Duration::from_secs(60), "it tries nothing");
            reactor.run_once(&mut doorman, Some(Duration::from_millis(100))).unwrap();
        }
        setrlimit(Resource::Nofile, limit).unwrap();
        let stats = reactor.stats();
        assert!((1..=20).contains(&stats.accept_failures), "{} tries in a second", stats.accept_failures);
        assert!(stats.enters < 100, "{} waits in a second", stats.enters);
        assert_eq!(doorman.seen, 0);
        while doorman.seen == 0 {
            assert!(start.elapsed() < Duration::from_secs(60), "it never goes on");
            reactor.run_once(&mut doorman, Some(Duration::from_millis(100))).unwrap();
        }
        reactor.run_once(&mut doorman, Some(Duration::from_millis(100))).unwrap();
        assert!(peer.read(&mut [0]).is_err(), "the doorman resets");
    }
}
