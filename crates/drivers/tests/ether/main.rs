//! Tests of Ethernet ports at the two ends of a veth pair, in a network namespace of their own.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "all of this is test code, where a panic is the verdict"
)]

mod rig;

use std::time::Duration;

use base::ether::Mac;
use drivers::config::{EngineChoice, SpinMode};
use drivers::ether::raw::RawPort;
use drivers::ether::{PortConfig, PortError, PortSocket, RxMode, Steering};
use rustix::thread::{CapabilitySet, capabilities, set_capabilities};

use rig::{Cable, ETHER_TYPE, Event, Station, Way, ip, pattern};

const WAYS: [(RxMode, SpinMode); 4] = [
    (RxMode::Ring, SpinMode::Adaptive),
    (RxMode::Queue, SpinMode::Adaptive),
    (RxMode::Ring, SpinMode::Always),
    (RxMode::Queue, SpinMode::Always),
];

/// Runs each test in a namespace, for each engine, for each way to receive frames (ring or queue), and for
/// both spin modes.
macro_rules! on_a_cable {
    ($($name:ident($cable:ident, $engine:ident) $body:block)*) => {$(
        #[test]
        fn $name() {
            if rig::inside_a_namespace(stringify!($name)) {
                for engine in [EngineChoice::Epoll, EngineChoice::Uring] {
                    for (inlet, look) in WAYS {
                        let ($cable, $engine) = (Cable::lay(), Way { engine, inlet, look });
                        $body
                    }
                }
            }
        }
    )*};
}

on_a_cable! {
    frames_of_all_lengths_arrive_whole_and_in_order(cable, engine) {
        ip("link set alpha mtu 9000");
        ip("link set beta mtu 9000");
        let Some(mut a) = Station::start(engine, &[PortConfig::new("alpha", ETHER_TYPE)]) else { continue };
        let mut b = Station::start(engine, &[PortConfig::new("beta", ETHER_TYPE)]).unwrap();
        a.until(&mut b, |a, b| a.state(0).is_some() && b.state(0).is_some());
        assert_eq!(a.state(0).unwrap().mac, cable.alpha);
        assert_eq!(b.state(0).unwrap().mtu, 9000);
        let frames: Vec<_> = (0..1000_u64).map(|seed| pattern(seed, 46 + usize::try_from(seed).unwrap() * 8)).collect();
        for (number, frame) in frames.iter().enumerate() {
            let to = if number % 10 == 0 { Mac::BROADCAST } else { cable.beta };
            a.send(0, to, frame);
        }
        a.until(&mut b, |_, b| b.frames() >= 1000);
        for (number, (got, frame)) in b.take_frames().into_iter().zip(&frames).enumerate() {
            assert_eq!(got.source, cable.alpha);
            assert_eq!(got.group, number % 10 == 0);
            assert!(got.payload == *frame, "frame {number}");
        }
        assert_eq!((a.stats().frames_out, b.stats().frames_in, b.stats().frames_dropped), (1000, 1000, 0));
        assert_eq!(a.frames(), 0, "nobody hears himself");
    }

    what_is_sent_after_an_answer_does_not_pass_it(cable, engine) {
        let Some(mut a) = Station::start(engine, &[PortConfig::new("alpha", ETHER_TYPE)]) else { continue };
        let mut b = Station::start(engine, &[PortConfig::new("beta", ETHER_TYPE)]).unwrap();
        a.until(&mut b, |a, b| a.state(0).is_some() && b.state(0).is_some());
        a.machine.echoes = true;
        for number in 0..20 {
            b.send(0, cable.alpha, &[number; 46]);
            a.until(&mut b, |a, _| a.frames() == usize::from(number) + 1);
            // The answer is a single frame, which is held until the next turn; these frames are queued before
            // that.
            a.send(0, cable.beta, &[100 + number; 46]);
            a.send(0, cable.beta, &[200 + number; 46]);
            a.until(&mut b, |_, b| b.frames() >= 3);
            let marks: Vec<_> = b.take_frames().iter().map(|frame| frame.payload[0]).collect();
            assert_eq!(marks, [number, 100 + number, 200 + number]);
        }
        // A reactor that is dropped has sent what it held.
        b.send(0, cable.alpha, &[99; 46]);
        a.until(&mut b, |a, _| a.frames() == 21);
        drop(a);
        b.alone_until(|b| b.frames() > 0);
        assert_eq!(b.take_frames()[0].payload[0], 99);
    }

    a_parked_reactor_hears_and_sends_nothing(cable, engine) {
        let Some(mut a) = Station::start(engine, &[PortConfig::new("alpha", ETHER_TYPE)]) else { continue };
        let mut b = Station::start(engine, &[PortConfig::new("beta", ETHER_TYPE)]).unwrap();
        a.until(&mut b, |a, b| a.state(0).is_some() && b.state(0).is_some());
        a.park();
        for number in 0..20 {
            a.send(0, cable.beta, &[100 + number; 46]);
            b.send(0, cable.alpha, &[number; 46]);
            a.rest(&mut b);
        }
        assert_eq!((a.frames(), b.frames()), (0, 0));
        // A frame wakes the reactor at most a few times.
        let before = a.stats().wakeups;
        for number in 0..5 {
            b.send(0, cable.alpha, &[number; 46]);
            b.turn();
        }
        let turns = a.turns_in(Duration::from_millis(100));
        assert!(turns <= 25, "{turns} turns, {} wakeups", a.stats().wakeups - before);
        a.unpark();
        a.until(&mut b, |_, b| b.frames() == 20);
        assert_eq!(b.take_frames()[0].payload[0], 100);
        b.send(0, cable.alpha, &[99; 46]);
        a.until(&mut b, |a, _| a.machine.heard.iter().any(|frame| frame.payload[0] == 99));
    }

    what_is_not_for_us_is_not_heard(cable, engine) {
        let Some(mut a) = Station::start(engine, &[PortConfig::new("alpha", ETHER_TYPE)]) else { continue };
        let mut b = Station::start(engine, &[]).unwrap();
        a.until(&mut b, |a, _| a.state(0).is_some());
        let mut beta = RawPort::open("beta", None, 1 << 20).unwrap();
        let frame = |to: Mac, middle: &[u8], payload: &[u8]| {
            let mut frame = [to.0, cable.beta.0].concat();
            frame.extend(middle);
            frame.extend(payload);
            frame.resize(60.max(frame.len()), 0);
            frame
        };
        let [high, low] = ETHER_TYPE.to_be_bytes();
        let (plain, good) = ([high, low], [1, 2, 3, 0x20]);
        let frames = [
            frame(Mac([2, 9, 9, 9, 9, 9]), &plain, &good),
            frame(cable.alpha, &[0x81, 0x00, 0x00, 0x07, high, low], &good),
            frame(cable.alpha, &[0x88, 0xa8, 0x00, 0x07, high, low], &good),
            frame(cable.alpha, &[0x88, 0xa2], &good),
            frame(cable.alpha, &plain, &[1, 2, 3, 0x20, 5]),
            frame(Mac::BROADCAST, &plain, &[1, 2, 3, 0x20, 6]),
        ];
        let sent = beta.send(frames.iter().map(Vec::as_slice));
        assert_eq!((sent.done, sent.too_long, sent.failed), (6, 0, 0));
        a.until(&mut b, |a, _| a.frames() >= 2);
        a.rest(&mut b);
        let marks: Vec<_> = a.take_frames().iter().map(|frame| (frame.payload[4], frame.group)).collect();
        assert_eq!(marks, [(5, false), (6, true)]);
    }

    how_long_a_frame_waited_is_told(cable, engine) {
        let Some(mut a) = Station::start(engine, &[PortConfig::new("alpha", ETHER_TYPE)]) else { continue };
        let mut b = Station::start(engine, &[PortConfig::new("beta", ETHER_TYPE)]).unwrap();
        a.until(&mut b, |a, b| a.state(0).is_some() && b.state(0).is_some());
        let mut beta = RawPort::open("beta", None, 1 << 20).unwrap();
        let [high, low] = ETHER_TYPE.to_be_bytes();
        let mut frame = [cable.alpha.0, cable.beta.0].concat();
        frame.extend([high, low, 1, 2, 3, 0x20]);
        frame.resize(60, 0);
        // A single frame, and several frames, which take different code paths.
        for count in [1, 5] {
            let began = std::time::Instant::now();
            let sent = beta.send(std::iter::repeat_n(frame.as_slice(), count));
            assert_eq!(sent.done, count);
            let wait = Duration::from_millis(20);
            std::thread::sleep(wait);
            a.until(&mut b, |a, _| a.frames() == count);
            // A frame is no older than the time since it was sent; the clocks may differ a little.
            let most = began.elapsed() + Duration::from_millis(500);
            for heard in a.take_frames() {
                assert!((wait..most).contains(&heard.age), "{engine:?}: {:?}, {most:?}", heard.age);
            }
        }
    }

    an_mtu_that_changes_is_told_and_longer_frames_are(cable, engine) {
        let Some(mut a) = Station::start(engine, &[PortConfig::new("alpha", ETHER_TYPE)]) else { continue };
        let mut b = Station::start(engine, &[PortConfig::new("beta", ETHER_TYPE)]).unwrap();
        a.until(&mut b, |a, b| a.state(0).is_some() && b.state(0).is_some());
        let short = a.state(0).unwrap();
        assert_eq!(short.mtu, 1500);
        ip("link set beta mtu 65535");
        ip("link set alpha mtu 65535");
        a.until(&mut b, |a, b| a.state(0).unwrap().mtu == 65_535 && b.state(0).unwrap().mtu == 65_535);
        assert!((1..short.receive_slots).contains(&a.state(0).unwrap().receive_slots));
        let long = pattern(7, 65_535);
        a.send(0, cable.beta, &long);
        a.until(&mut b, |_, b| b.frames() == 1);
        assert!(b.take_frames()[0].payload == long);
        let slots = b.state(0).unwrap().receive_slots;
        for seed in 0..3 * u64::try_from(slots).unwrap() {
            b.send(0, cable.alpha, &pattern(seed, 46));
            if seed % 100 == 99 {
                a.until(&mut b, |a, _| a.frames() == 100);
                let wrong = (seed - 99..).zip(a.take_frames()).find(|(seed, it)| it.payload != pattern(*seed, 46));
                assert!(wrong.is_none(), "{engine:?}: more than once around what was made anew");
            }
        }
        ip("link set alpha mtu 1500");
        a.send(0, cable.beta, &long);
        a.send(0, cable.beta, &long[..1500]);
        a.until(&mut b, |a, b| a.machine.events.contains(&Event::TooLong(1)) && b.frames() == 1);
        a.until(&mut b, |a, _| a.state(0).unwrap().mtu == 1500);
        assert_eq!(a.stats().frames_too_long, 1);
    }

    what_the_other_end_does_not_take_is_lost_and_holds_nothing_up(cable, engine) {
        let Some(mut a) = Station::start(engine, &[PortConfig::new("alpha", ETHER_TYPE)]) else { continue };
        let mut b = Station::start(engine, &[PortConfig::new("beta", ETHER_TYPE)]).unwrap();
        ip("link set alpha mtu 9000");
        a.until(&mut b, |a, b| a.state(0).is_some_and(|state| state.mtu == 9000) && b.state(0).is_some());
        a.send(0, cable.beta, &[1; 9000]);
        a.send(0, cable.beta, &[2; 1500]);
        a.until(&mut b, |_, b| b.frames() == 1);
        assert_eq!(b.take_frames()[0].payload, [2; 1500]);
        assert_eq!(a.stats().frames_unsent, 1);
        // The same for a single frame, which takes another code path.
        a.send(0, cable.beta, &[3; 9000]);
        a.alone_until(|a| a.stats().frames_unsent == 2);
        a.send(0, cable.beta, &[4; 1500]);
        a.until(&mut b, |_, b| b.frames() == 1);
        assert_eq!(b.take_frames()[0].payload, [4; 1500]);
    }

    frames_that_come_one_by_one_and_then_many_at_once_are_all_heard(cable, engine) {
        let Some(mut a) = Station::start(engine, &[PortConfig::new("alpha", ETHER_TYPE)]) else { continue };
        let mut b = Station::start(engine, &[PortConfig::new("beta", ETHER_TYPE)]).unwrap();
        b.machine.echoes = true;
        a.until(&mut b, |a, b| a.state(0).is_some() && b.state(0).is_some());
        let mut sent = Vec::new();
        // Single frames until neither end looks for more after each frame, then bursts, then both again.
        for (round, count) in [(0, 1); 50].into_iter().chain([(1, 200)]).chain([(2, 1); 50]).chain([(3, 3); 20]) {
            for _ in 0..count {
                let frame = pattern(sent.len() as u64, 46 + (sent.len() + round) % 1400);
                a.send(0, cable.beta, &frame);
                sent.push(frame);
            }
            a.until(&mut b, |a, _| a.frames() == sent.len());
        }
        for heard in [b.take_frames(), a.take_frames()] {
            assert!(heard.iter().map(|frame| &frame.payload).eq(&sent), "each came once, in order");
        }
        let all = sent.len() as u64;
        let bytes = sent.iter().map(|frame| frame.len() as u64).sum();
        for stats in [a.stats(), b.stats()] {
            assert_eq!((stats.frames_in, stats.frames_out, stats.bytes_in, stats.bytes_out), (all, all, bytes, bytes));
        }
    }

    a_port_that_closes_or_a_reactor_that_ends_with_a_frame_on_its_way_lets_go_of_the_interface(cable, engine) {
        for closes in [true, false] {
            let Some(mut a) = Station::start(engine, &[PortConfig::new("alpha", ETHER_TYPE)]) else { continue };
            let mut b = Station::start(engine, &[PortConfig::new("beta", ETHER_TYPE)]).unwrap();
            b.machine.echoes = true;
            a.until(&mut b, |a, b| a.state(0).is_some() && b.state(0).is_some());
            let here = rig::packet_sockets();
            a.send(0, cable.beta, &[7; 100]);
            a.turn();
            // `b` receives the frame and has its answer ready, which is sent in the next turn.
            while b.frames() == 0 {
                b.turn();
            }
            if closes {
                b.close(0);
                b.rest(&mut a);
                assert_eq!(rig::packet_sockets(), here - 1);
            }
            drop(b);
            assert_eq!(rig::packet_sockets(), here - 1, "{engine:?}");
        }
    }

    a_cable_that_is_pulled_and_an_interface_that_vanishes_come_back(cable, engine) {
        let Some(mut a) = Station::start(engine, &[PortConfig::new("alpha", ETHER_TYPE)]) else { continue };
        let mut b = Station::start(engine, &[PortConfig::new("beta", ETHER_TYPE)]).unwrap();
        a.until(&mut b, |a, b| a.state(0).is_some() && b.state(0).is_some());
        ip("link set beta down");
        a.until(&mut b, |a, b| a.state(0).is_none() && b.state(0).is_none());
        let turns = [&mut a, &mut b].map(|station| station.turns_in(Duration::from_millis(50)));
        assert!(turns.iter().all(|turns| *turns < 20), "{engine:?}: {turns:?} turns for what was told");
        a.send(0, cable.beta, &[1; 46]);
        a.until(&mut b, |a, _| a.machine.out.is_empty());
        ip("link set beta up");
        a.until(&mut b, |a, b| a.state(0).is_some() && b.state(0).is_some());
        a.send(0, cable.beta, &[2; 46]);
        a.until(&mut b, |_, b| b.frames() == 1);
        assert_eq!(b.take_frames()[0].payload, [2; 46], "what was for a port that was down is lost");
        drop(cable);
        a.until(&mut b, |a, b| a.state(0).is_none() && b.state(0).is_none());
        let cable = Cable::lay();
        a.until(&mut b, |a, b| a.state(0).is_some() && b.state(0).is_some());
        assert_eq!(a.state(0).unwrap().mac, cable.alpha);
        a.send(0, cable.beta, &[3; 46]);
        b.send(0, cable.alpha, &[4; 46]);
        a.until(&mut b, |a, b| a.frames() == 1 && b.frames() == 1);
        assert_eq!((a.take_frames()[0].payload[0], b.take_frames()[0].payload[0]), (4, 3));
    }

    reactors_that_share_an_interface_hear_their_own_sessions(cable, engine) {
        let steered = |mine| PortConfig {
            steering: Some(Steering { at: 0, mine }),
            ..PortConfig::new("alpha", ETHER_TYPE)
        };
        let Some(mut low) = Station::start(engine, &[steered(0..=127)]) else { continue };
        let mut high = Station::start(engine, &[steered(128..=255)]).unwrap();
        let mut b = Station::start(engine, &[PortConfig::new("beta", ETHER_TYPE)]).unwrap();
        low.until(&mut b, |low, b| low.state(0).is_some() && b.state(0).is_some());
        high.until(&mut b, |high, _| high.state(0).is_some());
        for first in [0, 1, 127, 128, 255] {
            b.send(0, cable.alpha, &[first, 0, 0, u8::from(first == 1), 9]);
        }
        high.until(&mut b, |high, _| high.frames() >= 3);
        low.until(&mut b, |low, _| low.frames() >= 3);
        low.rest(&mut high);
        let firsts = |station: &mut Station| -> Vec<u8> { station.take_frames().iter().map(|it| it.payload[0]).collect() };
        assert_eq!((firsts(&mut low), firsts(&mut high)), (vec![0, 1, 127], vec![0, 128, 255]));
    }

    a_machine_is_given_entropy_and_a_port_that_is_closed_is_down(cable, engine) {
        let Some(mut a) = Station::start(engine, &[PortConfig::new("alpha", ETHER_TYPE)]) else { continue };
        let mut b = Station::start(engine, &[PortConfig::new("beta", ETHER_TYPE)]).unwrap();
        a.until(&mut b, |a, _| a.state(0).is_some());
        a.machine.thirst = 3;
        a.until(&mut b, |a, _| a.machine.thirst == 0);
        assert_eq!(a.machine.blocks.len(), 4);
        a.machine.blocks.sort_unstable();
        a.machine.blocks.dedup();
        assert_eq!(a.machine.blocks.len(), 4, "no block comes twice");
        a.close(0);
        assert!(a.state(0).is_none());
        b.send(0, cable.alpha, &[1; 46]);
        a.rest(&mut b);
        assert_eq!(a.frames(), 0);
    }

    what_a_full_link_does_not_take_at_once_is_sent_later(cable, engine) {
        // 8 Mbit/s: a frame of 1000 bytes takes a millisecond, and the queue holds eight of them.
        ip_traffic("qdisc add dev alpha root tbf rate 8mbit burst 2kb limit 8kb");
        let Some(mut a) = Station::start(engine, &[PortConfig::new("alpha", ETHER_TYPE)]) else { continue };
        let mut b = Station::start(engine, &[PortConfig::new("beta", ETHER_TYPE)]).unwrap();
        a.until(&mut b, |a, b| a.state(0).is_some() && b.state(0).is_some());
        for seed in 0..200 {
            a.send(0, cable.beta, &pattern(seed, 986));
        }
        a.until(&mut b, |_, b| b.frames() >= 200);
        // Several processors deliver frames to the other end, so frames may overtake each other.
        let mut got: Vec<_> = b.take_frames().into_iter().map(|frame| frame.payload).collect();
        let mut sent: Vec<_> = (0..200).map(|seed| pattern(seed, 986)).collect();
        got.sort_unstable();
        sent.sort_unstable();
        assert!(got == sent);
        assert!(a.stats().frame_rests > 0 && a.stats().frames_unsent == 0, "{:?}", a.stats());
    }

    what_nobody_read_in_time_is_told_to_the_machine(cable, engine) {
        let Some(mut a) = Station::start(engine, &[PortConfig::new("alpha", ETHER_TYPE)]) else { continue };
        let narrow = PortConfig { receive_bytes: 16 << 10, ..PortConfig::new("beta", ETHER_TYPE) };
        let mut b = Station::start(engine, &[narrow]).unwrap();
        a.until(&mut b, |a, b| a.state(0).is_some() && b.state(0).is_some());
        // More frames than fit into the buffer while `b` does not run.
        for seed in 0..400 {
            a.send(0, cable.beta, &pattern(seed, 900));
        }
        a.alone_until(|a| a.stats().frames_out == 400);
        a.until(&mut b, |_, b| b.frames() + b.overruns() >= 400);
        assert!(b.frames() > 0 && b.overruns() > 200, "{} came, {} lost", b.frames(), b.overruns());
        assert_eq!(b.frames() + b.overruns(), 400, "every frame came or is told");
        assert_eq!(b.stats().frames_dropped, b.overruns() as u64);
    }
}

fn ip_traffic(arguments: &str) {
    rig::run("tc", arguments);
}

#[test]
fn what_cannot_be_opened_says_why() {
    if !rig::inside_a_namespace("what_cannot_be_opened_says_why") {
        return;
    }
    let refused =
        |interface: &str| PortSocket::open(PortConfig::new(interface, ETHER_TYPE)).unwrap_err().to_string();
    assert_eq!(refused("absent0"), "there is no interface `absent0`");
    ip("tuntap add dev tunnel mode tun");
    assert_eq!(refused("tunnel"), "interface `tunnel` is not an Ethernet interface");
    let cable = Cable::lay();
    assert!(PortSocket::open(PortConfig::new("alpha", ETHER_TYPE)).unwrap().state().is_some());
    let mut sets = capabilities(None).unwrap();
    sets.effective.remove(CapabilitySet::NET_ADMIN);
    set_capabilities(None, sets).unwrap();
    let port = PortSocket::open(PortConfig::new("alpha", ETHER_TYPE)).unwrap();
    let room = port.state().unwrap().receive_slots * 1500;
    assert!(room > 28 << 20, "{room} bytes: the limit of socket buffers is not that of what is suited");
    sets.effective.remove(CapabilitySet::NET_RAW);
    set_capabilities(None, sets).unwrap();
    let error = PortSocket::open(PortConfig::new("alpha", ETHER_TYPE)).unwrap_err();
    assert!(matches!(error, PortError::NotAllowed { .. }), "{error}");
    assert!(error.to_string().contains("sudo setcap cap_net_raw+ep /"), "{error}");
    drop(cable);
}
