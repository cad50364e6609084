//! Tests of outgoing connections, and of reactors in an event loop that their owner runs.

use std::io::ErrorKind;
use std::net::{TcpListener, TcpStream};
use std::time::{Duration, Instant};

use base::state_machine::PortalId;
use drivers::config::{Config, EngineChoice};
use drivers::reactor::{Reactor, ReactorError};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::parrot::{ECHO, Parrot};
use crate::rig::{HANG, pattern, receive, send};

mod epoll {
    use drivers::config::EngineChoice::Epoll;

    #[test]
    fn connects_to_a_peer_that_listens() {
        super::connects_to_a_peer_that_listens(Epoll);
    }

    #[test]
    fn tells_what_came_to_nothing_and_why() {
        super::tells_what_came_to_nothing_and_why(Epoll);
    }

    #[test]
    fn serves_in_a_loop_of_its_owner() {
        super::serves_in_a_loop_of_its_owner(Epoll);
    }
}

mod uring {
    use drivers::config::EngineChoice::Uring;

    #[test]
    fn connects_to_a_peer_that_listens() {
        super::connects_to_a_peer_that_listens(Uring);
    }

    #[test]
    fn tells_what_came_to_nothing_and_why() {
        super::tells_what_came_to_nothing_and_why(Uring);
    }

    #[test]
    fn serves_in_a_loop_of_its_owner() {
        super::serves_in_a_loop_of_its_owner(Uring);
    }
}

fn reactor(engine: EngineChoice) -> Option<Reactor<Parrot>> {
    match Reactor::new(&Config { engine, ..Config::default() }) {
        Ok(reactor) => Some(reactor),
        Err(ReactorError::NoUring(why)) => {
            eprintln!("skipped: no io_uring here: {why}");
            None
        }
        Err(why) => panic!("{why}"),
    }
}

/// Runs turns of the reactor until `done` returns true.
fn turn_until(
    reactor: &mut Reactor<Parrot>,
    parrot: &mut Parrot,
    mut done: impl FnMut(&mut Reactor<Parrot>, &Parrot) -> bool,
) {
    let start = Instant::now();
    while !done(reactor, parrot) {
        assert!(start.elapsed() < HANG, "it hangs");
        reactor.run_once(parrot, Some(Duration::from_secs(1))).unwrap();
    }
}

fn connects_to_a_peer_that_listens(engine: EngineChoice) {
    let Some(mut reactor) = reactor(engine) else { return };
    let mut parrot = Parrot::default();
    for address in ["127.0.0.1:0", "[::1]:0"] {
        let Ok(listener) = TcpListener::bind(address) else {
            eprintln!("skipped: no {address} here");
            continue;
        };
        let before = parrot.arrivals.len();
        reactor.connect(listener.local_addr().unwrap(), PortalId(5), HANG);
        turn_until(&mut reactor, &mut parrot, |_, parrot| parrot.arrivals.len() > before);
        let (portal, peer, entropy) = parrot.arrivals[before];
        assert_eq!((portal, peer), (PortalId(5), listener.local_addr().unwrap()));
        assert_ne!(entropy, [0; 32]);
        // The connection works like any other.
        let (mut stream, _) = listener.accept().unwrap();
        stream.set_read_timeout(Some(HANG)).unwrap();
        send(&mut stream, ECHO, 5000);
        std::io::Write::write_all(&mut stream, &pattern(1, 5000)).unwrap();
        let echoed = std::thread::spawn(move || receive(&mut stream, 5000));
        turn_until(&mut reactor, &mut parrot, |_, _| echoed.is_finished());
        assert_eq!(echoed.join().unwrap(), pattern(1, 5000));
        assert!(reactor.next_failure().is_none());
    }
}

fn tells_what_came_to_nothing_and_why(engine: EngineChoice) {
    let Some(mut reactor) = reactor(engine) else { return };
    let mut parrot = Parrot::default();
    let nobody = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    reactor.connect(nobody, PortalId(1), HANG);
    let mut failures = Vec::new();
    turn_until(&mut reactor, &mut parrot, |reactor, _| {
        failures.extend(reactor.next_failure().map(|(portal, why)| (portal, why.kind())));
        !failures.is_empty()
    });
    assert_eq!(failures, [(PortalId(1), ErrorKind::ConnectionRefused)]);

    // A listener whose queue is full does not answer.
    let deaf = TcpListener::bind("127.0.0.1:0").unwrap();
    rustix::net::listen(&deaf, 0).unwrap();
    let address = deaf.local_addr().unwrap();
    let short = Duration::from_millis(100);
    let waiting: Vec<_> =
        std::iter::from_fn(|| TcpStream::connect_timeout(&address, short).ok()).take(64).collect();
    reactor.connect(address, PortalId(2), short);
    failures.clear();
    turn_until(&mut reactor, &mut parrot, |reactor, _| {
        failures.extend(reactor.next_failure().map(|(portal, why)| (portal, why.kind())));
        !failures.is_empty()
    });
    assert_eq!(failures, [(PortalId(2), ErrorKind::TimedOut)]);
    assert!(parrot.arrivals.is_empty());
    drop(waiting);

    // A connection attempt that is under way does not delay the end of the reactor.
    reactor.connect(address, PortalId(3), HANG);
    reactor.handle().stop(HANG).unwrap();
    reactor.run(&mut parrot).unwrap();
    assert!(reactor.next_failure().is_none());
}

fn serves_in_a_loop_of_its_owner(engine: EngineChoice) {
    let Some(mut reactor) = reactor(engine) else { return };
    let handle = reactor.handle();
    let mut parrot = Parrot::default();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    reactor.connect(listener.local_addr().unwrap(), PortalId(0), HANG);
    let (mut stream, _) = listener.accept().unwrap();
    stream.set_read_timeout(Some(HANG)).unwrap();
    let peer = std::thread::spawn(move || {
        for len in [1, 70_000, 300, 1 << 20] {
            send(&mut stream, ECHO, len);
            std::io::Write::write_all(&mut stream, &pattern(7, len)).unwrap();
            assert_eq!(receive(&mut stream, len), pattern(7, len));
        }
    });
    let mut sleep_until = |what: &str, parrot: &mut Parrot, done: fn(&Parrot) -> bool| {
        let start = Instant::now();
        loop {
            let sleep = reactor.run_ready(parrot).unwrap();
            if done(parrot) {
                return;
            }
            assert!(start.elapsed() < HANG, "never: {what}");
            // Without a deadline, only the descriptor can end the sleep.
            let limit = sleep.unwrap_or(HANG).min(HANG);
            let (tv_sec, tv_nsec) = (limit.as_secs().try_into().unwrap(), limit.subsec_nanos().into());
            poll(&mut [PollFd::new(&reactor, PollFlags::IN)], Some(&Timespec { tv_sec, tv_nsec })).unwrap();
        }
    };
    sleep_until("the end of the connection", &mut parrot, |parrot| !parrot.gone.is_empty());
    peer.join().unwrap();
    let poster = std::thread::spawn(move || {
        std::thread::sleep(Duration::from_millis(20));
        handle.post(|parrot, now| parrot.ring_in(now, Duration::ZERO)).unwrap();
    });
    sleep_until("a letter", &mut parrot, |parrot| !parrot.rung.is_empty());
    poster.join().unwrap();
}
