//! Tests of reactors over real loopback sockets, with either engine.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "all of this is test code, where a panic is the verdict"
)]

mod dials;
mod disks;
mod parking;
mod parrot;
mod rig;

use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::time::Duration;

use base::state_machine::{ConnId, DisconnectReason, MediumId, PortalId};
use base::time::Instant;
use drivers::config::{Config, EngineChoice, Limits, SpinMode};
use drivers::message_queue::{Adoption, Stopped};
use rustix::event::{EventfdFlags, eventfd};

use disks::{
    a_disk_that_hangs_takes_no_workers_of_another, leaves_every_call_that_can_wait_to_others,
    reads_at_once_only_what_is_in_memory, stops_although_a_disk_hangs, writes_a_burst_completely,
};
use parking::{
    a_signal_that_comes_while_it_is_parked_is_told_when_it_goes_on,
    accepts_no_connection_until_it_is_told_to, accepts_no_connection_while_it_is_parked,
    awaits_the_end_of_sends_before_it_is_parked, does_not_wait_long_for_connections_that_are_closing,
    goes_on_after_an_attempt_that_failed, goes_on_when_parking_is_ended_before_it_is_complete,
    hands_connections_over_without_losing_a_byte, keeps_what_it_is_given_while_it_is_parked,
    loses_no_byte_when_it_parks, passes_on_what_arrives_as_it_begins_to_park,
    passes_the_sockets_in_the_order_of_the_connections, sends_nothing_and_calls_nothing_while_it_is_parked,
    stops_in_order_while_it_is_parked, takes_over_more_connections_than_a_limit_allows_and_counts_them,
};
use parrot::{ABORT, BABBLE, CLOSE, ECHO, Parrot, babble_byte, frame};
use rig::{HANG, PORTAL, Rig, pattern, receive, send};

/// Makes a test of each function for each engine, and for io_uring with busy polling before each sleep.
macro_rules! with_both_engines {
    ($($name:ident,)*) => {
        mod epoll {
            $(#[test] fn $name() { super::$name(super::EngineChoice::Epoll); })*
        }
        mod uring {
            $(#[test] fn $name() { super::$name(super::EngineChoice::Uring); })*
        }
        mod uring_awake {
            $(#[test] fn $name() {
                super::rig::LOOK.set(super::SpinMode::Always);
                super::$name(super::EngineChoice::Uring);
            })*
        }
    };
}

with_both_engines! {
    echoes_in_order_whatever_the_sizes,
    answers_bytes_that_trickle_in,
    sends_what_is_pending_before_it_closes,
    answers_a_peer_that_closed_its_side,
    stays_with_a_peer_that_closed_its_side_until_the_machine_is_done,
    aborts_at_once,
    survives_a_reset,
    holds_two_batches_for_a_peer_that_does_not_read,
    holds_one_small_batch_for_each_when_many_do_not_read,
    ends_a_peer_that_takes_nothing,
    keeps_a_peer_that_takes_little,
    keeps_a_peer_of_a_local_socket_that_takes_little,
    keeps_each_connection_apart,
    runs_what_is_posted,
    tells_a_medium_whenever_its_eventfd_is_signalled,
    a_signal_that_comes_while_it_is_parked_is_told_when_it_goes_on,
    adopts_a_connection_with_its_bytes,
    adopts_a_local_socket_with_the_addresses_of_its_relay,
    calls_the_machine_when_its_time_comes,
    calls_the_machine_when_its_time_comes_however_often_that_moves,
    takes_in_what_arrived_while_it_stood_still_before_a_deadline_passes,
    turns_away_what_is_over_a_limit,
    keeps_to_a_limit_that_changes,
    applies_no_limit_to_connections_of_its_owner,
    ends_a_connection_of_its_owner_whose_host_is_gone,
    ends_a_peer_that_takes_nothing_when_that_is_forbidden_later,
    stops_listening_to_a_portal,
    stops_when_the_last_connection_is_gone,
    ends_what_is_left_when_the_drain_is_over,
    refuses_letters_after_its_end,
    gives_every_arrival_its_own_entropy,
    serves_more_connections_at_once_than_it_has_buffers,
    answers_a_request_with_few_system_calls,
    finishes_file_work_before_it_stops,
    a_disk_that_hangs_takes_no_workers_of_another,
    leaves_every_call_that_can_wait_to_others,
    reads_at_once_only_what_is_in_memory,
    stops_although_a_disk_hangs,
    writes_a_burst_completely,
    passes_on_what_nobody_waits_for,
    spins_when_asked_to,
    loses_no_byte_when_it_parks,
    goes_on_when_parking_is_ended_before_it_is_complete,
    accepts_no_connection_while_it_is_parked,
    accepts_no_connection_until_it_is_told_to,
    stops_in_order_while_it_is_parked,
    hands_connections_over_without_losing_a_byte,
    takes_over_more_connections_than_a_limit_allows_and_counts_them,
    goes_on_after_an_attempt_that_failed,
    passes_the_sockets_in_the_order_of_the_connections,
    sends_nothing_and_calls_nothing_while_it_is_parked,
    keeps_what_it_is_given_while_it_is_parked,
    passes_on_what_arrives_as_it_begins_to_park,
    awaits_the_end_of_sends_before_it_is_parked,
    does_not_wait_long_for_connections_that_are_closing,
}

fn echoes_in_order_whatever_the_sizes(engine: EngineChoice) {
    let Some(rig) = Rig::start(engine) else { return };
    let mut stream = rig.connect();
    let sizes = [0, 1, 7, 1023, 1024, 1025, 4096, 65_536, 300_000, 1 << 20, 3];
    let mut writer = stream.try_clone().unwrap();
    let sender = std::thread::spawn(move || {
        for (seed, size) in (0..).zip(sizes) {
            send(&mut writer, ECHO, size);
            writer.write_all(&pattern(seed, size)).unwrap();
        }
    });
    for (seed, size) in (0..).zip(sizes) {
        assert_eq!(receive(&mut stream, size), pattern(seed, size), "echo of {size} bytes");
    }
    sender.join().unwrap();
    drop(stream);
    let parrot = rig.stop(HANG);
    assert!(parrot.loaned_bytes > 500_000, "{} bytes came through loans", parrot.loaned_bytes);
    assert_eq!(parrot.gone, [(ConnId(0), DisconnectReason::Closed)]);
}

fn answers_bytes_that_trickle_in(engine: EngineChoice) {
    let Some(rig) = Rig::start(engine) else { return };
    let mut stream = rig.connect();
    let mut bytes = frame(ECHO, 1500).to_vec();
    bytes.extend(pattern(1, 1500));
    for byte in &bytes {
        stream.write_all(&[*byte]).unwrap();
    }
    assert_eq!(receive(&mut stream, 1500), pattern(1, 1500));
}

fn sends_what_is_pending_before_it_closes(engine: EngineChoice) {
    let Some(rig) = Rig::start(engine) else { return };
    let mut stream = rig.connect();
    send(&mut stream, BABBLE, 3 << 20);
    send(&mut stream, CLOSE, 0);
    // Data that the peer sends after the close is discarded; that must not reset the data that the peer has
    // still to read.
    let mut writer = stream.try_clone().unwrap();
    let ignored = std::thread::spawn(move || {
        let _ = writer.write_all(&[0; 100_000]);
    });
    let mut all = Vec::new();
    std::thread::sleep(Duration::from_millis(20));
    stream.read_to_end(&mut all).unwrap();
    assert_eq!(all.len(), 3 << 20);
    assert!(all.iter().enumerate().all(|(at, byte)| *byte == babble_byte(at)));
    ignored.join().unwrap();
    drop(stream);
    let parrot = rig.stop(HANG);
    assert_eq!(parrot.gone, [(ConnId(0), DisconnectReason::Closed)]);
}

fn answers_a_peer_that_closed_its_side(engine: EngineChoice) {
    let Some(rig) = Rig::start(engine) else { return };
    let mut stream = rig.connect();
    send(&mut stream, BABBLE, 2 << 20);
    stream.shutdown(Shutdown::Write).unwrap();
    let mut all = Vec::new();
    stream.read_to_end(&mut all).unwrap();
    assert_eq!(all.len(), 2 << 20);
    rig.await_that("the end of the connection", |parrot| {
        parrot.gone == [(ConnId(0), DisconnectReason::Closed)]
    });
}

fn stays_with_a_peer_that_closed_its_side_until_the_machine_is_done(engine: EngineChoice) {
    let Some(rig) = Rig::start(engine) else { return };
    rig.ask(|parrot| parrot.stays = true);
    let mut stream = rig.connect();
    send(&mut stream, BABBLE, 100);
    stream.shutdown(Shutdown::Write).unwrap();
    rig.await_that("the end of what it says", |parrot| parrot.ended == [ConnId(0)]);
    assert_eq!(receive(&mut stream, 100).len(), 100);
    rig.ask(|parrot| parrot.babble(ConnId(0), 3 << 20));
    assert_eq!(receive(&mut stream, 3 << 20).len(), 3 << 20);
    assert!(rig.ask(|parrot| parrot.gone.is_empty()));
    rig.ask(|parrot| {
        parrot.babble(ConnId(0), 50);
        parrot.close(ConnId(0));
    });
    let mut all = Vec::new();
    stream.read_to_end(&mut all).unwrap();
    assert_eq!(all.len(), 50);
    rig.await_that("the end of the connection", |parrot| {
        parrot.gone == [(ConnId(0), DisconnectReason::Closed)]
    });
    assert_eq!(rig.stop(HANG).ended, [ConnId(0)]);
}

fn aborts_at_once(engine: EngineChoice) {
    let Some(rig) = Rig::start(engine) else { return };
    let mut stream = rig.connect();
    // A receive buffer is in use, and more data is pending than the socket accepts, when the abort is
    // requested from another thread.
    send(&mut stream, BABBLE, 32 << 20);
    send(&mut stream, ECHO, 1 << 20);
    rig.await_that("a start", |parrot| parrot.conns.values().any(|conn| conn.transmitted > 0));
    rig.ask(|parrot| parrot.abort(ConnId(0)));
    let mut all = Vec::new();
    let why = stream.read_to_end(&mut all).unwrap_err();
    assert_eq!(why.kind(), ErrorKind::ConnectionReset);
    assert!(all.len() < 32 << 20);
    rig.await_that("the end of the connection", |parrot| {
        parrot.gone == [(ConnId(0), DisconnectReason::Closed)]
    });
    let mut stream = rig.connect();
    send(&mut stream, ABORT, 0);
    assert_eq!(stream.read(&mut [0]).unwrap_err().kind(), ErrorKind::ConnectionReset);
}

fn survives_a_reset(engine: EngineChoice) {
    let Some(rig) = Rig::start(engine) else { return };
    let mut stream = rig.connect();
    send(&mut stream, BABBLE, 32 << 20);
    let _ = receive(&mut stream, 1000);
    // Unread bytes turn the close into a reset.
    drop(stream);
    rig.await_that("the end of the connection", |parrot| {
        parrot.gone == [(ConnId(0), DisconnectReason::Reset)]
    });
    let mut other = rig.connect();
    send(&mut other, BABBLE, 10);
    assert_eq!(receive(&mut other, 10).len(), 10);
}

fn holds_two_batches_for_a_peer_that_does_not_read(engine: EngineChoice) {
    let Some(rig) = Rig::start(engine) else { return };
    let mut stream = rig.connect();
    send(&mut stream, BABBLE, 32 << 20);
    let (last, sent) = settled(&rig);
    // The count of sent bytes lags: a send that blocks has not yet reported what the kernel took.
    let held = last - sent;
    let most = 2 * (base::transmit::Transmit::BATCH_BYTES + 8192);
    assert!(held <= most, "{held} bytes are held for a peer that does not read");
    assert!(last < 24 << 20, "the kernel took {last} bytes");
    let mut other = rig.connect();
    send(&mut other, BABBLE, 10);
    assert_eq!(receive(&mut other, 10).len(), 10);
    let all = receive(&mut stream, 32 << 20);
    assert!(all.iter().enumerate().all(|(at, byte)| *byte == babble_byte(at)));
}

/// Waits until the connections send nothing more, and returns how much the machine gave for them and how
/// much of that was sent. On a busy machine, a single look after which nothing has changed says little.
fn settled(rig: &Rig) -> (usize, usize) {
    let look = || {
        let given = rig.ask(|parrot| parrot.conns.values().map(|conn| conn.transmitted).sum::<usize>());
        (given, usize::try_from(rig.stats().bytes_out).unwrap())
    };
    let (mut last, mut same) = (look(), 0);
    while same < 5 || last.0 == 0 {
        std::thread::sleep(Duration::from_millis(50));
        let now = look();
        same = if now == last { same + 1 } else { 0 };
        last = now;
    }
    last
}

fn holds_one_small_batch_for_each_when_many_do_not_read(engine: EngineChoice) {
    const PEERS: usize = 8;
    const LEN: usize = 16 << 20;
    const UNSENT_MAX: usize = 2 << 20;
    let config = Config { engine, unsent_bytes_max: UNSENT_MAX, ..Config::default() };
    let Some(rig) = Rig::start_with(config) else { return };
    let mut streams: Vec<_> = (0..PEERS).map(|_| rig.connect()).collect();
    for stream in &mut streams {
        rustix::net::sockopt::set_socket_recv_buffer_size(&*stream, 64 << 10).unwrap();
        send(stream, BABBLE, LEN);
    }
    let (last, sent) = settled(&rig);
    let held = last - sent;
    // The first connections have batches of the full size; together these are no more than the limit.
    let most = UNSENT_MAX + PEERS * (base::transmit::Transmit::NARROW_BYTES + 8192);
    assert!(held <= most, "{held} bytes are held for {PEERS} peers that do not read");
    for stream in &mut streams {
        let all = receive(stream, LEN);
        assert!(all.iter().enumerate().step_by(997).all(|(at, byte)| *byte == babble_byte(at)));
    }
    // When memory is available again, throughput is as before.
    send(&mut streams[0], BABBLE, LEN);
    assert_eq!(receive(&mut streams[0], LEN).len(), LEN);
}

fn ends_a_peer_that_takes_nothing(engine: EngineChoice) {
    let config = Config { engine, stall: Some(Duration::from_millis(200)), ..Config::default() };
    let Some(rig) = Rig::start_with(config) else { return };
    let mut idle = rig.connect();
    send(&mut idle, BABBLE, 10);
    assert_eq!(receive(&mut idle, 10).len(), 10);
    let mut deaf = rig.connect();
    send(&mut deaf, BABBLE, 32 << 20);
    rig.await_that("the end of who takes nothing", |parrot| {
        parrot.gone == [(ConnId(1), DisconnectReason::Stalled)]
    });
    send(&mut idle, BABBLE, 10);
    assert_eq!(receive(&mut idle, 10).len(), 10);
}

/// Between two progress checks this peer reads too little for another send to complete. It reads far more
/// often than the limit demands, so that it does that on a busy machine too.
fn keeps_a_peer_that_takes_little(engine: EngineChoice) {
    let config = Config { engine, stall: Some(Duration::from_secs(4)), ..Config::default() };
    let Some(rig) = Rig::start_with(config) else { return };
    let mut slow = rig.connect();
    rustix::net::sockopt::set_socket_recv_buffer_size(&slow, 16 << 10).unwrap();
    send(&mut slow, BABBLE, 32 << 20);
    for round in 0..100 {
        let all = receive(&mut slow, 16 << 10);
        assert!(all.iter().enumerate().all(|(at, byte)| *byte == babble_byte(round * (16 << 10) + at)));
        std::thread::sleep(Duration::from_millis(90));
    }
    assert!(rig.ask(|parrot| parrot.gone.is_empty()));
}

/// The kernel does not tell how much of a send a local socket has taken.
fn keeps_a_peer_of_a_local_socket_that_takes_little(engine: EngineChoice) {
    const PIECE: usize = 16 << 10;
    let config = Config { engine, stall: Some(Duration::from_secs(4)), ..Config::default() };
    let Some(rig) = Rig::start_with(config) else { return };
    let (mut slow, theirs) = UnixStream::pair().unwrap();
    slow.set_read_timeout(Some(HANG)).unwrap();
    let address = "192.0.2.1:3260".parse().unwrap();
    let socket = theirs.into();
    let adoption = Adoption { socket, portal: PORTAL, local: address, peer: address, bytes: Vec::new() };
    rig.handle.adopt(adoption).unwrap();
    slow.write_all(&frame(BABBLE, 32 << 20)).unwrap();
    for round in 0..50 {
        let mut bytes = vec![0; PIECE];
        slow.read_exact(&mut bytes).unwrap();
        assert!(bytes.iter().enumerate().all(|(at, byte)| *byte == babble_byte(round * PIECE + at)));
        std::thread::sleep(Duration::from_millis(180));
    }
    assert!(rig.ask(|parrot| parrot.gone.is_empty()));
}

fn keeps_each_connection_apart(engine: EngineChoice) {
    let Some(rig) = Rig::start(engine) else { return };
    let workers: Vec<_> = (0..24)
        .map(|worker| {
            let mut stream = rig.connect();
            std::thread::spawn(move || {
                for round in 0..20 {
                    let seed = worker * 1000 + round;
                    let size = usize::try_from(seed * 7919 % 70_000).unwrap();
                    let words = pattern(seed, size);
                    send(&mut stream, ECHO, size);
                    stream.write_all(&words).unwrap();
                    assert_eq!(receive(&mut stream, size), words, "worker {worker}, round {round}");
                }
            })
        })
        .collect();
    for worker in workers {
        worker.join().unwrap();
    }
    let parrot = rig.stop(HANG);
    assert_eq!(parrot.gone.len(), 24);
}

fn runs_what_is_posted(engine: EngineChoice) {
    let Some(rig) = Rig::start(engine) else { return };
    let mut stream = rig.connect();
    send(&mut stream, BABBLE, 1);
    receive(&mut stream, 1);
    assert_eq!(rig.ask(|parrot| parrot.conns.len()), 1);
    // What a job makes the state machine request is done without another event.
    rig.ask(|parrot| parrot.babble(ConnId(0), 500));
    assert_eq!(receive(&mut stream, 500).len(), 500);
}

fn tells_a_medium_whenever_its_eventfd_is_signalled(engine: EngineChoice) {
    let Some(rig) = Rig::start(engine) else { return };
    let medium = MediumId(1 << 31);
    let event = || eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).unwrap();
    let told = |count: usize| {
        let deadline = std::time::Instant::now() + HANG;
        while rig.ask(|parrot| parrot.media_ready.len()) < count {
            assert!(std::time::Instant::now() < deadline, "the medium was not told {count} times");
            std::thread::yield_now();
        }
        assert_eq!(rig.ask(|parrot| parrot.media_ready.clone()), vec![medium; count]);
    };
    let (first, second) = (event(), event());
    let signal = |event: &OwnedFd| _ = rustix::io::write(event, &1_u64.to_ne_bytes()).unwrap();
    rig.handle.watch(medium, first.try_clone().unwrap()).unwrap();
    // Once, because it may have been signalled before.
    told(1);
    for count in 2..5 {
        signal(&first);
        told(count);
    }
    rig.handle.watch(medium, second.try_clone().unwrap()).unwrap();
    told(5);
    signal(&first);
    signal(&second);
    told(6);
    // A process can make the descriptor a blocking one.
    rustix::io::ioctl_fionbio(&second, false).unwrap();
    signal(&second);
    told(7);
    rig.handle.unwatch(medium).unwrap();
    // The reactor has closed the descriptor when it answers.
    told(7);
    signal(&second);
    told(7);
}

fn adopts_a_connection_with_its_bytes(engine: EngineChoice) {
    let Some(rig) = Rig::start(engine) else { return };
    let side_door = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let mut stream = TcpStream::connect(side_door.local_addr().unwrap()).unwrap();
    stream.set_read_timeout(Some(HANG)).unwrap();
    let (accepted, peer) = side_door.accept().unwrap();
    accepted.set_nonblocking(true).unwrap();
    let mut bytes = frame(ECHO, 3000).to_vec();
    bytes.extend(&pattern(4, 3000)[..10]);
    let local = side_door.local_addr().unwrap();
    rig.handle.adopt(Adoption { socket: accepted.into(), portal: PortalId(9), local, peer, bytes }).unwrap();
    stream.write_all(&pattern(4, 3000)[10..]).unwrap();
    assert_eq!(receive(&mut stream, 3000), pattern(4, 3000));
    let (portal, address) = rig.ask(|parrot| (parrot.arrivals[0].0, parrot.arrivals[0].1));
    assert_eq!((portal, address), (PortalId(9), stream.local_addr().unwrap()));
}

fn adopts_a_local_socket_with_the_addresses_of_its_relay(engine: EngineChoice) {
    let Some(rig) = Rig::start(engine) else { return };
    let (mut ours, theirs) = UnixStream::pair().unwrap();
    ours.set_read_timeout(Some(HANG)).unwrap();
    let (local, peer) = ("192.0.2.1:3260".parse().unwrap(), "192.0.2.9:40000".parse().unwrap());
    let adoption = Adoption { socket: theirs.into(), portal: PortalId(9), local, peer, bytes: Vec::new() };
    rig.handle.adopt(adoption).unwrap();
    // More than the buffers of the pair hold.
    let len = 600_000;
    let words = pattern(5, len);
    ours.write_all(&frame(ECHO, len)).unwrap();
    let sender = std::thread::spawn({
        let (mut ours, words) = (ours.try_clone().unwrap(), words.clone());
        move || ours.write_all(&words).unwrap()
    });
    let mut got = vec![0; len];
    ours.read_exact(&mut got).unwrap();
    sender.join().unwrap();
    assert!(got == words);
    assert_eq!(rig.ask(|parrot| (parrot.arrivals[0].0, parrot.arrivals[0].1)), (PortalId(9), peer));
    drop(ours);
    let gone = rig.stop(HANG).gone;
    assert_eq!(gone.len(), 1);
}

fn calls_the_machine_when_its_time_comes(engine: EngineChoice) {
    let Some(rig) = Rig::start(engine) else { return };
    let span = Duration::from_millis(30);
    let (ask, asked) = std::sync::mpsc::channel();
    rig.handle
        .post(move |parrot, now: Instant| {
            parrot.ring_in(now, span);
            parrot.ring_in(now, span * 2);
            ask.send(now).unwrap();
        })
        .unwrap();
    let start = asked.recv_timeout(HANG).unwrap();
    rig.await_that("two alarms", |parrot| parrot.rung.len() == 2);
    let rung = rig.ask(|parrot| parrot.rung.clone());
    assert!(rung[0].since(start) >= span && rung[1].since(start) >= span * 2, "{rung:?} after {start:?}");
}

fn calls_the_machine_when_its_time_comes_however_often_that_moves(engine: EngineChoice) {
    let Some(rig) = Rig::start(engine) else { return };
    for seed in 0..10 {
        let mut rng = base::rng::Rng::from_seed(seed);
        for _ in 0..40 {
            // Earlier than it was, later, or not at all.
            let span = (rng.below(5) > 0).then(|| Duration::from_micros(rng.below(3000)));
            let set = move |parrot: &mut Parrot, now: Instant| {
                parrot.alarms.clear();
                span.into_iter().for_each(|span| parrot.ring_in(now, span));
            };
            rig.handle.post(set).unwrap();
            std::thread::sleep(Duration::from_micros(rng.below(800)));
        }
        let (ask, asked) = std::sync::mpsc::channel();
        let span = Duration::from_micros(500 + rng.below(5000));
        rig.handle
            .post(move |parrot, now: Instant| {
                parrot.alarms.clear();
                parrot.rung.clear();
                parrot.ring_in(now, span);
                ask.send(now).unwrap();
            })
            .unwrap();
        let start = asked.recv_timeout(HANG).unwrap();
        rig.await_that("the alarm", |parrot| !parrot.rung.is_empty());
        let rung = rig.ask(|parrot| parrot.rung.clone());
        assert!(
            rung.len() == 1 && rung[0].since(start) >= span,
            "seed {seed}: {rung:?} after {start:?} + {span:?}"
        );
    }
}

fn turns_away_what_is_over_a_limit(engine: EngineChoice) {
    let Some(rig) = Rig::start_with(Config { engine, connections_per_peer_max: 2, ..Config::default() })
    else {
        return;
    };
    let mut inside = [rig.connect(), rig.connect()];
    for stream in &mut inside {
        send(stream, BABBLE, 1);
        receive(stream, 1);
    }
    let mut outside = rig.connect();
    let answer = outside.read(&mut [0]);
    assert!(answer.as_ref().is_err_and(|why| why.kind() == ErrorKind::ConnectionReset), "{answer:?}");
    let stats = rig.stats();
    assert_eq!((stats.accepts, stats.refused, stats.connections), (2, 1, 2));
    let [first, _second] = inside;
    drop(first);
    rig.await_that("a free place", |parrot| parrot.conns.len() == 1);
    let mut late = rig.connect();
    send(&mut late, BABBLE, 1);
    receive(&mut late, 1);
}

fn stops_listening_to_a_portal(engine: EngineChoice) {
    let Some(rig) = Rig::start(engine) else { return };
    let mut stream = rig.connect();
    send(&mut stream, BABBLE, 1);
    receive(&mut stream, 1);
    rig.handle.unlisten(PORTAL).unwrap();
    rig.ask(|_| ());
    // With io_uring the listener closes when its poll was cancelled.
    let start = std::time::Instant::now();
    while TcpStream::connect(rig.address).is_ok() {
        assert!(start.elapsed() < HANG, "still listening");
    }
    send(&mut stream, BABBLE, 1);
    receive(&mut stream, 1);
}

fn stops_when_the_last_connection_is_gone(engine: EngineChoice) {
    let Some(rig) = Rig::start(engine) else { return };
    let mut stream = rig.connect();
    send(&mut stream, BABBLE, 1);
    receive(&mut stream, 1);
    rig.handle.stop(HANG).unwrap();
    // The reactor still serves connections that are open.
    send(&mut stream, BABBLE, 1);
    receive(&mut stream, 1);
    drop(stream);
    let parrot = rig.stop(HANG);
    assert_eq!(parrot.gone, [(ConnId(0), DisconnectReason::Closed)]);
}

fn ends_what_is_left_when_the_drain_is_over(engine: EngineChoice) {
    let Some(rig) = Rig::start(engine) else { return };
    let mut idle = rig.connect();
    let mut stuck = rig.connect();
    let mut lent = rig.connect();
    send(&mut idle, BABBLE, 1);
    receive(&mut idle, 1);
    send(&mut stuck, BABBLE, 32 << 20);
    receive(&mut stuck, 1);
    send(&mut lent, ECHO, 1 << 20);
    rig.await_that("three connections", |parrot| parrot.conns.len() == 3);
    let parrot = rig.stop(Duration::from_millis(10));
    assert_eq!(parrot.gone.len(), 3);
    assert!(parrot.gone.iter().all(|(_, why)| *why == DisconnectReason::Shutdown), "{:?}", parrot.gone);
}

fn refuses_letters_after_its_end(engine: EngineChoice) {
    let Some(rig) = Rig::start(engine) else { return };
    let handle = rig.handle.clone();
    rig.stop(HANG);
    assert_eq!(handle.post(|_, _| ()), Err(Stopped));
}

fn gives_every_arrival_its_own_entropy(engine: EngineChoice) {
    let Some(rig) = Rig::start(engine) else { return };
    let streams = [rig.connect(), rig.connect()];
    rig.await_that("two arrivals", |parrot| parrot.arrivals.len() == 2);
    let entropy = rig.ask(|parrot| [parrot.arrivals[0].2, parrot.arrivals[1].2]);
    assert_ne!(entropy[0], entropy[1]);
    assert_ne!(entropy[0], [0; 32]);
    drop(streams);
}

fn serves_more_connections_at_once_than_it_has_buffers(engine: EngineChoice) {
    let Some(rig) = Rig::start(engine) else { return };
    let mut streams: Vec<_> = (0..300).map(|_| rig.connect()).collect();
    rig.await_that("everybody", |parrot| parrot.conns.len() == 300);
    // While the reactor is blocked, every connection sends a request.
    let (go_on, held) = std::sync::mpsc::channel::<()>();
    rig.handle.post(move |_, _| held.recv_timeout(HANG).unwrap()).unwrap();
    for (seed, stream) in (0..).zip(&mut streams) {
        send(stream, ECHO, 900);
        stream.write_all(&pattern(seed, 900)).unwrap();
    }
    go_on.send(()).unwrap();
    for (seed, stream) in (0..).zip(&mut streams) {
        assert_eq!(receive(stream, 900), pattern(seed, 900), "connection {seed}");
    }
}

fn answers_a_request_with_few_system_calls(engine: EngineChoice) {
    let Some(rig) = Rig::start(engine) else { return };
    let mut stream = rig.connect();
    send(&mut stream, BABBLE, 1);
    receive(&mut stream, 1);
    let before = rig.stats();
    for _ in 0..1000 {
        send(&mut stream, BABBLE, 4096);
        receive(&mut stream, 4096);
    }
    let after = rig.stats();
    let waits = after.enters - before.enters;
    // A request of two segments may wake the reactor twice now and then, and the queries for the counters do.
    // A reactor that busy-polls submits the answer before it polls, in a call of its own.
    let most = if rig::LOOK.get() == SpinMode::Always { 2200 } else { 1200 };
    assert!(waits < most, "{waits} waits for 1000 requests");
    assert!(after.sends - before.sends >= 999, "{} sends for 1000 requests", after.sends - before.sends);
}

fn spins_when_asked_to(engine: EngineChoice) {
    let Some(rig) = Rig::start_with(Config { engine, busy_poll: true, ..Config::default() }) else { return };
    let mut stream = rig.connect();
    send(&mut stream, BABBLE, 100_000);
    assert_eq!(receive(&mut stream, 100_000).len(), 100_000);
    // A reactor that sleeps wakes for the questions alone.
    let (before, start) = (rig.stats().enters, std::time::Instant::now());
    for questions in 1.. {
        std::thread::sleep(Duration::from_millis(50));
        if rig.stats().enters > before + 20 * questions {
            break;
        }
        assert!(start.elapsed() < HANG, "it sleeps");
    }
}

fn finishes_file_work_before_it_stops(engine: EngineChoice) {
    use drivers::files::{FileOp, FileOpKind, FileOutcome, IoFile};
    let path = std::path::Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("work-{engine:?}"));
    let file = IoFile::new(std::fs::File::create(&path).unwrap(), false);
    let config = Config { engine, ..Config::default() };
    let mut reactor = match drivers::reactor::Reactor::new(&config) {
        Ok(reactor) => reactor,
        Err(why) => return eprintln!("skipped: {why}"),
    };
    let queue = reactor.files().queue(MediumId(0));
    // More operations than a submission queue holds, and of a kind that waits.
    for token in 0..700 {
        let bytes = pattern(token, 4096);
        let data = base::buffer::Bytes::copied_from(&bytes).into();
        let kind = FileOpKind::Write { at: token * 4096, data, stable: true };
        queue.submit(FileOp { token, file: file.clone(), kind });
    }
    reactor.handle().stop(HANG).unwrap();
    reactor.run(&mut Parrot::default()).unwrap();
    let mut tokens = Vec::new();
    while let Some(done) = queue.poll() {
        assert!(matches!(done.result, Ok(FileOutcome::Wrote(_))), "{:?}", done.result);
        tokens.push(done.token);
    }
    tokens.sort_unstable();
    assert_eq!(tokens, (0..700).collect::<Vec<_>>());
    let all = std::fs::read(&path).unwrap();
    assert!((0..).zip(all.chunks(4096)).all(|(token, bytes)| bytes == pattern(token, 4096)));
    std::fs::remove_file(path).unwrap();
}

/// Of a sequential file in memory, a large read is passed on and a large write is done at once. Of any other
/// file it is the other way round.
fn passes_on_what_nobody_waits_for(engine: EngineChoice) {
    use drivers::files::{FileOp, FileOpKind, FileOutcome, IoFile, ReadBufs};
    const LEN: usize = 1 << 20;
    let (thread, process) = (std::thread::current(), std::process::id());
    let path = format!("/dev/shm/targe-{process}-{}", thread.name().unwrap());
    for is_sequential in [true, false] {
        let mut reactor = match drivers::reactor::Reactor::new(&Config { engine, ..Config::default() }) {
            Ok(reactor) => reactor,
            Err(why) => return eprintln!("skipped: {why}"),
        };
        let queue = reactor.files().queue(MediumId(0));
        let file = std::fs::File::options().read(true).write(true).create(true).truncate(true).open(&path);
        std::fs::write(&path, pattern(1, LEN)).unwrap();
        let file =
            if is_sequential { IoFile::sequential(file.unwrap()) } else { IoFile::new(file.unwrap(), false) };
        let bufs = ReadBufs::from_iter([base::buffer::Buf::with_capacity(LEN)]);
        queue.submit(FileOp {
            token: 0,
            file: file.clone(),
            kind: FileOpKind::Read { at: 0, len: LEN, bufs },
        });
        let read_at_once = queue.poll();
        assert_eq!(read_at_once.is_none(), is_sequential, "a read is ahead");
        let data = base::buffer::Bytes::copied_from(&pattern(2, LEN)).into();
        let kind = FileOpKind::Write { at: LEN as u64, data, stable: false };
        queue.submit(FileOp { token: 1, file, kind });
        let written_at_once = queue.poll();
        assert_eq!(written_at_once.is_some(), is_sequential, "the next command waits for a write");
        reactor.handle().stop(HANG).unwrap();
        reactor.run(&mut Parrot::default()).unwrap();
        let done = read_at_once.into_iter().chain(written_at_once).chain(std::iter::from_fn(|| queue.poll()));
        let mut read = None;
        for done in done {
            match done.result.unwrap() {
                FileOutcome::Read(bufs) => read = Some(bufs),
                other => assert!(matches!(other, FileOutcome::Wrote(_)), "{other:?}"),
            }
        }
        assert!(read.is_some_and(|bufs| bufs.len() == 1 && bufs[0].filled() == pattern(1, LEN)));
        assert!(std::fs::read(&path).unwrap() == [pattern(1, LEN), pattern(2, LEN)].concat());
        std::fs::remove_file(&path).unwrap();
    }
}

fn keeps_to_a_limit_that_changes(engine: EngineChoice) {
    let Some(rig) = Rig::start_with(Config { engine, connections_max: 1, ..Config::default() }) else {
        return;
    };
    let limits = |connections_max| Limits { connections_max, connections_per_peer_max: 8, stall: None };
    let refused = |mut stream: TcpStream| {
        let answer = stream.read(&mut [0]);
        assert!(answer.as_ref().is_err_and(|why| why.kind() == ErrorKind::ConnectionReset), "{answer:?}");
    };
    let serves = |stream: &mut TcpStream| {
        send(stream, BABBLE, 1);
        receive(stream, 1);
    };
    let mut first = rig.connect();
    serves(&mut first);
    refused(rig.connect());
    rig.handle.limit(limits(2)).unwrap();
    rig.ask(|_| ());
    let mut second = rig.connect();
    serves(&mut second);
    // A lower limit: open connections stay open.
    rig.handle.limit(limits(1)).unwrap();
    rig.ask(|_| ());
    refused(rig.connect());
    serves(&mut first);
    serves(&mut second);
}

fn applies_no_limit_to_connections_of_its_owner(engine: EngineChoice) {
    let stall = Some(Duration::from_millis(200));
    let config =
        Config { engine, stall, connections_max: 1, connections_per_peer_max: 1, ..Config::default() };
    let Some(rig) = Rig::start_with(config) else { return };
    let mut stranger = rig.connect();
    send(&mut stranger, BABBLE, 10);
    receive(&mut stranger, 10);
    let address = "0.0.0.0:0".parse().unwrap();
    let [mut deaf, mut idle] = [1, 2].map(|number| {
        let (ours, theirs) = UnixStream::pair().unwrap();
        ours.set_read_timeout(Some(HANG)).unwrap();
        let portal = PortalId(PortalId::OWN_BIT | number);
        let (socket, bytes) = (theirs.into(), Vec::new());
        rig.handle.adopt(Adoption { socket, portal, local: address, peer: address, bytes }).unwrap();
        ours
    });
    deaf.write_all(&frame(BABBLE, 32 << 20)).unwrap();
    rig.await_that("the owner's connections", |parrot| parrot.conns.len() == 3);
    send(&mut stranger, BABBLE, 32 << 20);
    rig.await_that("the end of who takes nothing", |parrot| {
        parrot.gone == [(ConnId(0), DisconnectReason::Stalled)]
    });
    for stream in [&mut deaf, &mut idle] {
        stream.write_all(&frame(BABBLE, 10)).unwrap();
        stream.read_exact(&mut [0; 10]).unwrap();
    }
}

fn ends_a_connection_of_its_owner_whose_host_is_gone(engine: EngineChoice) {
    let host_silence_max = Duration::from_millis(400);
    let Some(rig) = Rig::start_with(Config { engine, host_silence_max, ..Config::default() }) else { return };
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let [gone, busy] = [1, 2].map(|number| {
        let theirs = TcpStream::connect(address).unwrap();
        let socket = listener.accept().unwrap().0.into();
        let portal = PortalId(PortalId::OWN_BIT | number);
        rig.handle
            .adopt(Adoption { socket, portal, local: address, peer: address, bytes: Vec::new() })
            .unwrap();
        theirs
    });
    rig.await_that("the owner's connections", |parrot| parrot.conns.len() == 2);
    receive_nothing(&gone);
    // The program at the other end reads nothing, but its host answers.
    rig.ask(|parrot| {
        parrot.babble(ConnId(0), 10);
        parrot.babble(ConnId(1), 32 << 20);
    });
    rig.await_that("the end of the connection", |parrot| {
        parrot.gone == [(ConnId(0), DisconnectReason::TimedOut)]
    });
    std::thread::sleep(3 * host_silence_max);
    assert_eq!(rig.ask(|parrot| parrot.gone.len()), 1);
    drop(busy);
}

/// Makes a socket receive nothing and acknowledge nothing, as if its host had vanished.
#[allow(unsafe_code, reason = "no library has a safe function for the option")]
fn receive_nothing(socket: &TcpStream) {
    use std::os::fd::AsRawFd;
    let drop_all = libc::sock_filter { code: 0x06, jt: 0, jf: 0, k: 0 };
    let program = libc::sock_fprog { len: 1, filter: (&raw const drop_all).cast_mut() };
    let len = libc::socklen_t::try_from(size_of_val(&program)).unwrap();
    let (level, name) = (libc::SOL_SOCKET, libc::SO_ATTACH_FILTER);
    // SAFETY: `program` and its one instruction are alive during the call, which copies them.
    let result =
        unsafe { libc::setsockopt(socket.as_raw_fd(), level, name, (&raw const program).cast(), len) };
    assert_eq!(result, 0, "{}", std::io::Error::last_os_error());
}

fn takes_in_what_arrived_while_it_stood_still_before_a_deadline_passes(engine: EngineChoice) {
    const LEN: usize = 400_000;
    let Some(rig) = Rig::start(engine) else { return };
    let mut stream = rig.connect();
    send(&mut stream, BABBLE, 1);
    receive(&mut stream, 1);
    let begun = std::time::Instant::now();
    rig.handle.post(|parrot, now| parrot.ring_in(now, Duration::from_secs(4))).unwrap();
    let before = rig.ask(|parrot| parrot.heard);
    // The thread of the reactor runs nothing, like that of a process that is stopped.
    let (go_on, stopped) = std::sync::mpsc::channel();
    rig.handle.post(move |_, _| stopped.recv_timeout(HANG).unwrap()).unwrap();
    send(&mut stream, ECHO, LEN);
    stream.write_all(&pattern(1, LEN)).unwrap();
    std::thread::sleep(Duration::from_secs(6).saturating_sub(begun.elapsed()));
    go_on.send(()).unwrap();
    rig.await_that("the alarm", |parrot| !parrot.rung.is_empty());
    assert_eq!(rig.ask(|parrot| parrot.heard_at_alarms.clone()), [before + 8 + LEN]);
}

fn ends_a_peer_that_takes_nothing_when_that_is_forbidden_later(engine: EngineChoice) {
    let Some(rig) = Rig::start_with(Config { engine, stall: None, ..Config::default() }) else { return };
    let mut deaf = rig.connect();
    send(&mut deaf, BABBLE, 32 << 20);
    rig.ask(|_| ());
    let (connections_max, connections_per_peer_max) = (8, 8);
    let stall = Some(Duration::from_millis(200));
    rig.handle.limit(Limits { connections_max, connections_per_peer_max, stall }).unwrap();
    rig.await_that("the end of who takes nothing", |parrot| {
        parrot.gone == [(ConnId(0), DisconnectReason::Stalled)]
    });
}
