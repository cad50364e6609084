//! Measures how many frames bare packet sockets transfer between two interfaces, which may be in different
//! namespaces: the upper bound for a protocol on Ethernet frames. It transfers whole frames by `sendmmsg` and
//! `recvmmsg` and does nothing else, except that the receiver reads every byte. Only the receiver counts:
//! frames that are sent faster than it receives are lost and not counted.
//!
//! ```text
//! ether_blast receive IFACE SECONDS         prints {"frames": N, "bytes": N, "seconds": S}, counted
//!                                           from 0.2 s after the first frame on
//! ether_blast send IFACE MAC SECONDS BYTES  frames as long as the interface's MTU, one after another
//!                                           out of BYTES bytes of memory, like the data of a disk;
//!                                           0 sends one frame again and again
//! ```
#![allow(clippy::unwrap_used, clippy::panic, reason = "a measurement that cannot be made has nothing to say")]

use std::time::{Duration, Instant};

use drivers::ether::raw::RawPort;
use rustix::event::{PollFd, PollFlags, Timespec, poll};

/// The EtherType for local experiments (IEEE 802).
const ETHER_TYPE: u16 = 0x88b5;

/// The size of the receive buffer in the kernel, in bytes.
const RECEIVE_BYTES: usize = 64 << 20;

/// The time that is not measured: the first frames find cold caches, and a traffic shaper whose bucket is
/// full.
const WARM_UP: Duration = Duration::from_millis(200);

/// How long the receiver waits for the first frame.
const PATIENCE: Duration = Duration::from_secs(10);

fn main() {
    let words: Vec<String> = std::env::args().skip(1).collect();
    match words.iter().map(String::as_str).collect::<Vec<_>>().as_slice() {
        ["receive", interface, seconds] => receive(interface, span(seconds)),
        ["send", interface, mac, seconds, bytes] => {
            send(interface, mac, span(seconds), bytes.parse().unwrap())
        }
        _ => panic!("ether_blast receive IFACE SECONDS | ether_blast send IFACE MAC SECONDS BYTES"),
    }
}

fn span(text: &str) -> Duration {
    Duration::from_secs_f64(text.parse().unwrap())
}

fn receive(interface: &str, span: Duration) {
    let mut port = RawPort::open(interface, Some(ETHER_TYPE), RECEIVE_BYTES).unwrap();
    println!("ready");
    let opened = Instant::now();
    let (mut began, mut frames, mut bytes, mut sum) = (None, 0_u64, 0_u64, 0_u64);
    loop {
        let (count, _) = port.receive(|frame| {
            frames += 1;
            bytes += u64::try_from(frame.len()).unwrap();
            sum = sum.wrapping_add(touch(frame));
        });
        let now = Instant::now();
        match began {
            None if frames > 0 => began = Some((now + WARM_UP, false)),
            None => assert!(now - opened < PATIENCE, "nothing comes"),
            Some((at, false)) if now >= at => {
                (frames, bytes) = (0, 0);
                began = Some((now, true));
            }
            Some((at, true)) if now - at >= span => {
                let seconds = (now - at).as_secs_f64();
                std::hint::black_box(sum);
                println!("{{\"frames\": {frames}, \"bytes\": {bytes}, \"seconds\": {seconds:.6}}}");
                return;
            }
            Some(_) => {}
        }
        if count == 0 {
            wait(&port, PollFlags::IN);
        }
    }
}

/// Reads every byte, as cheaply as possible.
fn touch(frame: &[u8]) -> u64 {
    frame
        .chunks_exact(8)
        .fold(0, |sum: u64, word| sum.wrapping_add(u64::from_ne_bytes(word.try_into().unwrap_or_default())))
}

fn send(interface: &str, mac: &str, span: Duration, bytes: usize) {
    let mut port = RawPort::open(interface, Some(ETHER_TYPE), 1 << 20).unwrap();
    let mut header: Vec<u8> = mac.split(':').map(|byte| u8::from_str_radix(byte, 16).unwrap()).collect();
    assert_eq!(header.len(), 6, "{mac} is no address");
    header.extend([2, 0, 0, 0, 0, 9]);
    header.extend(ETHER_TYPE.to_be_bytes());
    let len = header.len() + port.mtu();
    let count = (bytes / len).max(1);
    let mut frames = vec![7; count * len];
    for frame in frames.chunks_exact_mut(len) {
        frame.iter_mut().zip(&header).for_each(|(byte, own)| *byte = *own);
    }
    let mut next = 0;
    let began = Instant::now();
    while began.elapsed() < span {
        // Skipping frames one by one would take longer than sending some.
        let turn = (next..next + 64).map(|number| number % count * len);
        let sent = port.send(turn.map(|at| frames.get(at..at + len).unwrap_or_default()));
        assert_eq!((sent.too_long, sent.failed), (0, 0), "frames do not go");
        next = (next + sent.done) % count;
        if sent.done < 64 {
            wait(&port, PollFlags::OUT);
        }
    }
}

fn wait(port: &RawPort, what: PollFlags) {
    let span = Timespec { tv_sec: 0, tv_nsec: 10_000_000 };
    let _ = poll(&mut [PollFd::new(port, what)], Some(&span));
}
