//! Parked reactors, and connections that move from one reactor to another, as in a live upgrade: no byte of a
//! stream is lost, received twice or reordered.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use base::rng::Rng;
use base::state_machine::{ConnId, MediumId, PortalId};
use drivers::config::{Config, EngineChoice, Limits};
use drivers::message_queue::{Adoption, Handle};
use drivers::reactor::{Reactor, ReactorError};
use rustix::event::{EventfdFlags, eventfd};

use crate::parrot::{Conn, ECHO, Parrot, frame};
use crate::rig::{HANG, LOOK, PORTAL, Rig, pattern, receive, send};

/// How often a test parks.
const CYCLES: usize = 300;

/// The sizes of the echoes: some are received into receive buffers, and some need more than one receive.
const SIZES: [usize; 9] = [0, 1, 7, 1023, 1024, 5000, 65_536, 200_000, 3];

/// A peer that sends echo requests without a pause, and checks each echo.
struct Load {
    ending: Arc<AtomicBool>,
    threads: Vec<thread::JoinHandle<()>>,
}

impl Load {
    fn start(mut stream: TcpStream, seed: u64) -> Self {
        let ending = Arc::new(AtomicBool::new(false));
        let mut reader = stream.try_clone().unwrap();
        let (sent, expected) = mpsc::sync_channel(64);
        let flag = Arc::clone(&ending);
        let writer = thread::spawn(move || {
            let mut rng = Rng::from_seed(seed);
            for number in seed.. {
                if flag.load(Ordering::Relaxed) {
                    return;
                }
                let size = SIZES[usize::try_from(rng.below(SIZES.len() as u64)).unwrap()];
                sent.send((number, size)).unwrap();
                send(&mut stream, ECHO, size);
                stream.write_all(&pattern(number, size)).unwrap();
            }
        });
        let checker = thread::spawn(move || {
            for (number, size) in expected {
                assert!(receive(&mut reader, size) == pattern(number, size), "echo {number} of {size} bytes");
            }
        });
        Self { ending, threads: vec![writer, checker] }
    }

    fn end(self) {
        self.ending.store(true, Ordering::Relaxed);
        self.threads.into_iter().for_each(|thread| thread.join().unwrap());
    }
}

/// Parks, and returns what `look` finds then.
fn park<T: Send + 'static>(
    handle: &Handle<Parrot>,
    look: impl FnOnce(&mut Parrot) -> T + Send + 'static,
) -> T {
    let (answer, answers) = mpsc::channel();
    handle.park(move |parrot, _| answer.send(look(parrot)).unwrap()).unwrap();
    answers.recv_timeout(HANG).unwrap()
}

pub(crate) fn loses_no_byte_when_it_parks(engine: EngineChoice) {
    let Some(rig) = Rig::start(engine) else { return };
    let loads: Vec<Load> = (0..4).map(|seed| Load::start(rig.connect(), seed * 1_000_000)).collect();
    let calls = |parrot: &mut Parrot| (parrot.received_calls, parrot.loaned_bytes);
    let mut rng = Rng::from_seed(1);
    for _ in 0..CYCLES {
        let parked = park(&rig.handle, calls);
        thread::sleep(Duration::from_micros(rng.below(300)));
        assert_eq!(rig.ask(calls), parked, "something was received while the reactor was parked");
        rig.handle.unpark().unwrap();
        thread::sleep(Duration::from_micros(rng.below(2000)));
    }
    loads.into_iter().for_each(Load::end);
    let parrot = rig.stop(HANG);
    assert!(parrot.loaned_bytes > 0);
}

pub(crate) fn goes_on_when_parking_is_ended_before_it_is_complete(engine: EngineChoice) {
    let Some(rig) = Rig::start(engine) else { return };
    let load = Load::start(rig.connect(), 7);
    for _ in 0..CYCLES {
        let (answer, answers) = mpsc::channel();
        rig.handle.park(move |_, _| answer.send(()).unwrap()).unwrap();
        rig.handle.unpark().unwrap();
        // The job ran, or was dropped.
        let _ = answers.recv_timeout(HANG);
    }
    load.end();
}

pub(crate) fn accepts_no_connection_while_it_is_parked(engine: EngineChoice) {
    let Some(rig) = Rig::start(engine) else { return };
    let mut before = rig.connect();
    rig.await_that("the first connection", |parrot| parrot.conns.len() == 1);
    park(&rig.handle, |_| ());
    let mut stream = rig.connect();
    for stream in [&mut before, &mut stream] {
        send(stream, ECHO, 3);
        stream.write_all(b"abc").unwrap();
    }
    for _ in 0..20 {
        assert_eq!(rig.ask(|parrot| (parrot.conns.len(), parrot.received_calls)), (1, 0));
        thread::sleep(Duration::from_millis(1));
    }
    rig.handle.unpark().unwrap();
    assert_eq!((receive(&mut stream, 3), receive(&mut before, 3)), (b"abc".to_vec(), b"abc".to_vec()));
}

pub(crate) fn accepts_no_connection_until_it_is_told_to(engine: EngineChoice) {
    let Some(rig) = Rig::start(engine) else { return };
    let mut before = rig.connect();
    rig.await_that("the first connection", |parrot| parrot.conns.len() == 1);
    rig.handle.accept(false).unwrap();
    rig.ask(|_| ());
    // Parking does not end it.
    park(&rig.handle, |_| ());
    rig.handle.unpark().unwrap();
    let mut stream = rig.connect();
    for stream in [&mut before, &mut stream] {
        send(stream, ECHO, 3);
        stream.write_all(b"abc").unwrap();
    }
    assert_eq!(receive(&mut before, 3), b"abc", "what is connected is served");
    for _ in 0..20 {
        assert_eq!(rig.ask(|parrot| parrot.conns.len()), 1);
        thread::sleep(Duration::from_millis(1));
    }
    rig.handle.accept(true).unwrap();
    assert_eq!(receive(&mut stream, 3), b"abc");
}

pub(crate) fn stops_in_order_while_it_is_parked(engine: EngineChoice) {
    let Some(rig) = Rig::start(engine) else { return };
    let _stream = rig.connect();
    rig.await_that("the connection", |parrot| parrot.conns.len() == 1);
    park(&rig.handle, |_| ());
    let parrot = rig.stop(Duration::ZERO);
    assert_eq!(parrot.gone.len(), 1);
}

/// A reactor whose owner drops it without ending its connections.
struct Successor {
    handle: Handle<Parrot>,
    leaves: Arc<AtomicBool>,
    thread: thread::JoinHandle<()>,
}

impl Successor {
    fn start(engine: EngineChoice, limits: Option<Limits>) -> Option<Self> {
        let mut config = Config { engine, spin_mode: LOOK.get(), ..Config::default() };
        if let Some(limits) = limits {
            config.connections_max = limits.connections_max;
        }
        let leaves = Arc::new(AtomicBool::new(false));
        let flag = Arc::clone(&leaves);
        let (report, started) = mpsc::channel();
        let thread = thread::spawn(move || {
            let mut reactor = match Reactor::new(&config) {
                Ok(reactor) => reactor,
                Err(why) => return report.send(Err(why)).unwrap(),
            };
            reactor.begin_parked();
            report.send(Ok(reactor.handle())).unwrap();
            let mut parrot = Parrot::default();
            while !flag.load(Ordering::Acquire) {
                reactor.run_once(&mut parrot, Some(HANG)).unwrap();
            }
        });
        match started.recv_timeout(HANG).unwrap() {
            Ok(handle) => Some(Self { handle, leaves, thread }),
            Err(ReactorError::NoUring(why)) => {
                eprintln!("skipped: no io_uring here: {why}");
                None
            }
            Err(why) => panic!("{why}"),
        }
    }

    /// Drops the reactor and its connections.
    fn leave(self) {
        self.leaves.store(true, Ordering::Release);
        // It wakes the thread.
        self.handle.post(|_, _| ()).unwrap();
        self.thread.join().unwrap();
    }
}

/// Parks a reactor and moves all of its connections, with what the state machine knows of them.
fn hand_over(from: &Handle<Parrot>, to: &Handle<Parrot>, (local, peer): (SocketAddr, SocketAddr)) {
    let states = park(from, |parrot| std::mem::take(&mut parrot.conns));
    let (numbers, states): (Vec<u32>, Vec<Conn>) = states.into_iter().unzip();
    let (reply, sockets) = mpsc::channel();
    let conns = numbers.into_iter().map(ConnId).collect();
    from.sockets(conns, move |sockets| reply.send(sockets).unwrap()).unwrap();
    let sockets = sockets.recv_timeout(HANG).unwrap().unwrap();
    let adopt = |socket| Adoption { socket, portal: PORTAL, local, peer, bytes: Vec::new() };
    let (reply, taken) = mpsc::channel();
    let job = move |parrot: &mut Parrot, _, conns: std::io::Result<Vec<ConnId>>| {
        for (conn, state) in conns.unwrap().into_iter().zip(states) {
            assert!(parrot.conns.insert(conn.0, state).is_some());
        }
        reply.send(parrot.received_calls).unwrap();
    };
    to.take_over(sockets.into_iter().map(adopt).collect(), job).unwrap();
    assert_eq!(taken.recv_timeout(HANG).unwrap(), 0, "something was received before the state was there");
}

pub(crate) fn hands_connections_over_without_losing_a_byte(engine: EngineChoice) {
    let Some(first) = Successor::start(engine, None) else { return };
    let listener = drivers::listener::open("127.0.0.1:0".parse().unwrap()).unwrap();
    let local = listener.local_addr().unwrap();
    let mut peer = local;
    first.handle.unpark().unwrap();
    let mut loads = Vec::new();
    for seed in 0..4 {
        let stream = TcpStream::connect(local).unwrap();
        stream.set_read_timeout(Some(HANG)).unwrap();
        let (socket, from) = listener.accept().unwrap();
        peer = from;
        let adoption = Adoption { socket: socket.into(), portal: PORTAL, local, peer, bytes: Vec::new() };
        first.handle.adopt(adoption).unwrap();
        loads.push(Load::start(stream, seed * 1_000_000));
    }
    let mut rng = Rng::from_seed(2);
    let mut serving = first;
    for _ in 0..CYCLES {
        thread::sleep(Duration::from_micros(rng.below(3000)));
        let next = Successor::start(engine, None).unwrap();
        hand_over(&serving.handle, &next.handle, (local, peer));
        // The order in which the two go on and leave does not matter.
        if rng.below(2) == 0 {
            next.handle.unpark().unwrap();
            serving.leave();
        } else {
            serving.leave();
            next.handle.unpark().unwrap();
        }
        serving = next;
    }
    loads.into_iter().for_each(Load::end);
    serving.leave();
}

pub(crate) fn takes_over_more_connections_than_a_limit_allows_and_counts_them(engine: EngineChoice) {
    let limits = Limits { connections_max: 1, connections_per_peer_max: 1, stall: None };
    let Some(successor) = Successor::start(engine, Some(limits)) else { return };
    let pair = || {
        let (ours, theirs) = std::os::unix::net::UnixStream::pair().unwrap();
        let address = "127.0.0.1:1".parse().unwrap();
        (
            ours,
            Adoption {
                socket: theirs.into(),
                portal: PortalId(1),
                local: address,
                peer: address,
                bytes: Vec::new(),
            },
        )
    };
    let ((_one, first), (_two, second)) = (pair(), pair());
    let (reply, taken) = mpsc::channel();
    let job = move |_: &mut Parrot, _, conns: std::io::Result<Vec<ConnId>>| {
        reply.send(conns.unwrap().len()).unwrap();
    };
    successor.handle.take_over(vec![first, second], job).unwrap();
    assert_eq!(taken.recv_timeout(HANG).unwrap(), 2);
    successor.handle.unpark().unwrap();
    successor.handle.adopt(pair().1).unwrap();
    let (answer, answers) = mpsc::channel();
    successor.handle.post(move |parrot, _| answer.send(parrot.conns.len()).unwrap()).unwrap();
    assert_eq!(answers.recv_timeout(HANG).unwrap(), 2, "a further connection is over the limit");
    successor.leave();
}

pub(crate) fn a_signal_that_comes_while_it_is_parked_is_told_when_it_goes_on(engine: EngineChoice) {
    let config = Config { engine, spin_mode: LOOK.get(), ..Config::default() };
    let mut reactor = match Reactor::new(&config) {
        Ok(reactor) => reactor,
        Err(ReactorError::NoUring(_)) => return,
        Err(why) => panic!("{why}"),
    };
    let (mut parrot, handle) = (Parrot::default(), reactor.handle());
    let medium = MediumId(1 << 31);
    let event = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).unwrap();
    handle.watch(medium, event.try_clone().unwrap()).unwrap();
    let mut run = |parrot: &mut Parrot, wait| reactor.run_once(parrot, Some(wait)).unwrap();
    let (short, none) = (Duration::from_millis(20), Duration::ZERO);
    run(&mut parrot, short);
    assert_eq!(parrot.media_ready, [medium], "it may have been signalled before");
    handle.park(|_, _| {}).unwrap();
    for _ in 0..3 {
        run(&mut parrot, short);
    }
    rustix::io::write(&event, &1_u64.to_ne_bytes()).unwrap();
    for _ in 0..3 {
        run(&mut parrot, short);
    }
    assert_eq!(parrot.media_ready, [medium]);
    handle.unpark().unwrap();
    run(&mut parrot, none);
    assert_eq!(parrot.media_ready, [medium; 2]);
}

pub(crate) fn goes_on_after_an_attempt_that_failed(engine: EngineChoice) {
    let Some(rig) = Rig::start(engine) else { return };
    let loads: Vec<Load> = (0..4).map(|seed| Load::start(rig.connect(), seed * 1_000_000)).collect();
    let (local, peer) = (rig.address, "127.0.0.1:1".parse().unwrap());
    for _ in 0..CYCLES / 10 {
        let next = Successor::start(engine, None).unwrap();
        let conns: Vec<ConnId> =
            park(&rig.handle, |parrot| parrot.conns.keys().map(|number| ConnId(*number)).collect());
        let (reply, sockets) = mpsc::channel();
        rig.handle.sockets(conns, move |sockets| reply.send(sockets).unwrap()).unwrap();
        let sockets = sockets.recv_timeout(HANG).unwrap().unwrap();
        let adopt = |socket| Adoption { socket, portal: PORTAL, local, peer, bytes: Vec::new() };
        let (reply, taken) = mpsc::channel();
        let job = move |_: &mut Parrot, _, conns: std::io::Result<Vec<ConnId>>| {
            reply.send(conns.unwrap().len()).unwrap();
        };
        next.handle.take_over(sockets.into_iter().map(adopt).collect(), job).unwrap();
        taken.recv_timeout(HANG).unwrap();
        for _ in 0..3 {
            thread::sleep(Duration::from_millis(1));
            let (reply, received) = mpsc::channel();
            let count = move |parrot: &mut Parrot, _| {
                reply.send((parrot.received_calls, parrot.loaned_bytes)).unwrap();
            };
            next.handle.post(count).unwrap();
            assert_eq!(
                received.recv_timeout(HANG).unwrap(),
                (0, 0),
                "something was received before the commit"
            );
        }
        next.leave();
        rig.handle.unpark().unwrap();
    }
    loads.into_iter().for_each(Load::end);
}

pub(crate) fn passes_the_sockets_in_the_order_of_the_connections(engine: EngineChoice) {
    let Some(rig) = Rig::start(engine) else { return };
    let streams: Vec<TcpStream> = (0..3).map(|_| rig.connect()).collect();
    rig.await_that("the connections", |parrot| parrot.conns.len() == 3);
    let mut numbers = park(&rig.handle, |parrot| {
        parrot.conns.keys().copied().zip(parrot.arrivals.clone()).collect::<Vec<_>>()
    });
    numbers.rotate_left(1);
    let (conns, peers): (Vec<_>, Vec<_>) =
        numbers.into_iter().map(|(number, (_, peer, _))| (ConnId(number), peer)).unzip();
    let (reply, sockets) = mpsc::channel();
    rig.handle.sockets(conns, move |sockets| reply.send(sockets).unwrap()).unwrap();
    let sockets = sockets.recv_timeout(HANG).unwrap().unwrap();
    let of: Vec<_> = sockets.into_iter().map(|it| TcpStream::from(it).peer_addr().unwrap()).collect();
    assert_eq!(of, peers);
    let (reply, sockets) = mpsc::channel();
    rig.handle.sockets(vec![ConnId(99)], move |sockets| reply.send(sockets).unwrap()).unwrap();
    assert!(sockets.recv_timeout(HANG).unwrap().is_err(), "a socket of a connection that does not exist");
    drop(streams);
}

pub(crate) fn sends_nothing_and_calls_nothing_while_it_is_parked(engine: EngineChoice) {
    let Some(rig) = Rig::start(engine) else { return };
    let mut stream = rig.connect();
    rig.await_that("the connection", |parrot| parrot.conns.len() == 1);
    park(&rig.handle, |_| ());
    rig.ask(|parrot| parrot.babble(ConnId(0), 3));
    let (answer, answers) = mpsc::channel();
    let alarm = move |parrot: &mut Parrot, now| {
        parrot.ring_in(now, Duration::from_micros(1));
        answer.send(()).unwrap();
    };
    rig.handle.post(alarm).unwrap();
    answers.recv_timeout(HANG).unwrap();
    stream.set_nonblocking(true).unwrap();
    for _ in 0..20 {
        assert_eq!(rig.ask(|parrot| parrot.conns[&0].transmitted), 0, "bytes were sent");
        assert_eq!(rig.ask(|parrot| parrot.rung.len()), 0, "time passed");
        assert_eq!(stream.peek(&mut [0]).unwrap_err().kind(), std::io::ErrorKind::WouldBlock);
        thread::sleep(Duration::from_millis(1));
    }
    stream.set_nonblocking(false).unwrap();
    rig.handle.unpark().unwrap();
    assert_eq!(receive(&mut stream, 3).len(), 3);
    rig.await_that("the alarm", |parrot| parrot.rung.len() == 1);
}

pub(crate) fn keeps_what_it_is_given_while_it_is_parked(engine: EngineChoice) {
    let Some(rig) = Rig::start(engine) else { return };
    park(&rig.handle, |_| ());
    let listener = drivers::listener::open("127.0.0.1:0".parse().unwrap()).unwrap();
    let address = listener.local_addr().unwrap();
    rig.handle.listen(listener, PORTAL).unwrap();
    let mut accepted = TcpStream::connect(address).unwrap();
    let (mut adopted, theirs) = std::os::unix::net::UnixStream::pair().unwrap();
    adopted.set_read_timeout(Some(HANG)).unwrap();
    accepted.set_read_timeout(Some(HANG)).unwrap();
    let bytes = frame(ECHO, 3).to_vec();
    let adoption = Adoption { socket: theirs.into(), portal: PORTAL, local: address, peer: address, bytes };
    rig.handle.adopt(adoption).unwrap();
    for _ in 0..20 {
        assert_eq!(rig.ask(|parrot| parrot.conns.len()), 0);
        thread::sleep(Duration::from_millis(1));
    }
    rig.handle.unpark().unwrap();
    adopted.write_all(b"abc").unwrap();
    let mut echo = [0; 3];
    adopted.read_exact(&mut echo).unwrap();
    assert_eq!(&echo, b"abc");
    send(&mut accepted, ECHO, 3);
    accepted.write_all(b"def").unwrap();
    assert_eq!(receive(&mut accepted, 3), b"def");
}

pub(crate) fn passes_on_what_arrives_as_it_begins_to_park(engine: EngineChoice) {
    // Received into the buffers of the engine, and into a receive buffer of the state machine.
    for size in [3, 5000] {
        let Some(rig) = Rig::start(engine) else { return };
        let mut stream = rig.connect();
        let bytes = pattern(1, size);
        send(&mut stream, ECHO, size);
        rig.await_that("the request", |parrot| parrot.received_calls == 1);
        let (release, released) = mpsc::channel();
        rig.handle.post(move |_, _| released.recv_timeout(HANG).unwrap()).unwrap();
        // The reactor handles both messages in one turn, with no event in between.
        let (mut writer, written) = (stream.try_clone().unwrap(), bytes.clone());
        rig.handle.post(move |_, _| writer.write_all(&written).unwrap()).unwrap();
        let (answer, parked) = mpsc::channel();
        rig.handle.park(move |_, _| answer.send(()).unwrap()).unwrap();
        release.send(()).unwrap();
        parked.recv_timeout(HANG).unwrap();
        rig.handle.unpark().unwrap();
        assert!(receive(&mut stream, size) == bytes, "{size} bytes");
    }
}

pub(crate) fn awaits_the_end_of_sends_before_it_is_parked(engine: EngineChoice) {
    const STEP: usize = 65_536;
    let Some(rig) = Rig::start(engine) else { return };
    let mut stream = rig.connect();
    rig.await_that("the connection", |parrot| parrot.conns.len() == 1);
    let mut total = 0;
    // The peer reads nothing, so at some step a send does not end. The socket buffers hold less than this.
    let parked = loop {
        assert!(total < 64 << 20, "the reactor parks while sends are under way");
        rig.ask(|parrot| parrot.babble(ConnId(0), STEP));
        total += STEP;
        let (answer, parked) = mpsc::channel();
        let job = move |parrot: &mut Parrot, _| answer.send(parrot.conns[&0].transmitted).unwrap();
        rig.handle.park(job).unwrap();
        // The buffers hold the first step, so that it ends, however busy the machine is.
        let within = if total == STEP { HANG } else { Duration::from_secs(1) };
        match parked.recv_timeout(within) {
            Ok(transmitted) => {
                // The kernel has everything when the reactor is parked.
                assert_eq!((transmitted, rig.stats().bytes_out), (total, total.try_into().unwrap()));
            }
            Err(_) => break parked,
        }
        rig.handle.unpark().unwrap();
    };
    assert!(total > STEP, "the reactor does not park although the first send has ended");
    assert_eq!(receive(&mut stream, total).len(), total);
    assert_eq!(parked.recv_timeout(HANG).unwrap(), total);
}

pub(crate) fn does_not_wait_long_for_connections_that_are_closing(engine: EngineChoice) {
    // The socket buffers hold less than this.
    const LEN: usize = 64 << 20;
    for is_parking in [false, true] {
        let config = Config { engine, linger: 2 * HANG, ..Config::default() };
        let Some(rig) = Rig::start_with(config) else { return };
        // Its peer reads nothing.
        let _stream = rig.connect();
        rig.await_that("the connection", |parrot| parrot.conns.len() == 1);
        rig.ask(|parrot| parrot.babble(ConnId(0), LEN));
        let close = |parrot: &mut Parrot| parrot.close(ConnId(0));
        if !is_parking {
            rig.ask(close);
        }
        let (answer, parked) = mpsc::channel();
        rig.handle.park(move |parrot, _| answer.send(parrot.conns.len()).unwrap()).unwrap();
        if is_parking {
            rig.ask(close);
        }
        assert_eq!(parked.recv_timeout(HANG), Ok(0));
    }
}
