//! The memory of idle connections. The test is a process of its own, since the memory of the process is
//! measured.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    dead_code,
    reason = "all of this is test code, where a panic is the verdict; the parrot can do more than is asked of it here"
)]

#[path = "reactor/parrot.rs"]
mod parrot;
#[path = "reactor/rig.rs"]
mod rig;

use std::io::Write;
use std::net::TcpStream;

use drivers::config::{Config, EngineChoice};
use rustix::process::{Resource, getrlimit};

use parrot::{BABBLE, ECHO};
use rig::{Rig, pattern, receive, send};

const COUNT: usize = 2000;

/// How many bytes the reactor, the parrot and the test itself may keep per connection that is open but idle.
/// One buffer each would be far more.
const EACH_MAX: usize = 2048;

#[test]
fn idle_connections_own_no_buffers() {
    if getrlimit(Resource::Nofile).current.is_some_and(|max| max < 3 * COUNT as u64) {
        eprintln!("skipped: too few descriptors are allowed");
        return;
    }
    for engine in [EngineChoice::Epoll, EngineChoice::Uring] {
        // The parrot returns buffers to the pool and takes none from it.
        let config = Config { engine, pool_bytes_max: 0, ..Config::default() };
        let Some(rig) = Rig::start_with(config) else { continue };
        // The buffers of the reactor itself are counted before the connections are opened.
        let mut first = rig.connect();
        send(&mut first, BABBLE, 2 << 20);
        receive(&mut first, 2 << 20);
        for _ in 0..200 {
            chat(&mut first, 3000);
        }
        let before = resident_bytes();
        let mut streams: Vec<_> = (0..COUNT).map(|_| rig.connect()).collect();
        // Each connection is busy once.
        streams.iter_mut().for_each(|stream| chat(stream, 3000));
        let each = resident_bytes().saturating_sub(before) / COUNT;
        eprintln!("{engine:?}: {each} bytes for each of {COUNT} idle connections");
        assert!(each <= EACH_MAX, "{engine:?}: {each} bytes for an idle connection");
        assert_eq!(rig.stats().connections, COUNT as u64 + 1);
    }
}

fn chat(stream: &mut TcpStream, len: usize) {
    send(stream, ECHO, len);
    stream.write_all(&pattern(1, len)).unwrap();
    assert_eq!(receive(stream, len), pattern(1, len));
}

fn resident_bytes() -> usize {
    let text = std::fs::read_to_string("/proc/self/statm").unwrap();
    text.split_whitespace().nth(1).unwrap().parse::<usize>().unwrap() * 4096
}
