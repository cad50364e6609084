//! The loop under every load: keep `depth` requests in flight on one connection until the time is up, with as
//! few system calls as the answers allow. What a request and an answer are is the [`Exchange`]'s to know.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use crate::Failure;

/// As much as one receive takes.
const RECEIVE_LEN: usize = 256 << 10;

/// One side of a conversation of requests and answers.
pub(crate) trait Exchange {
    /// Appends the next request to `out`; false when the peer lets no more in now.
    fn request(&mut self, out: &mut Vec<u8>) -> bool;

    /// Takes what it can from the front of `bytes`, and may append an answer of its own to `out`. A request
    /// is complete when its last byte has been taken.
    fn take(&mut self, bytes: &[u8], out: &mut Vec<u8>) -> Result<Taken, Failure>;
}

/// What [`Exchange::take`] did. Taking nothing asks for more bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Taken {
    pub(crate) bytes: usize,
    pub(crate) completed: bool,
}

pub(crate) struct Outcome {
    completed: u64,
    elapsed: Duration,
}

impl Outcome {
    pub(crate) fn print(&self) {
        let seconds = self.elapsed.as_secs_f64();
        println!("{{\"completed\": {}, \"seconds\": {seconds:.6}}}", self.completed);
    }
}

pub(crate) fn run(
    stream: &mut TcpStream,
    exchange: &mut impl Exchange,
    depth: usize,
    duration: Duration,
) -> Result<Outcome, Failure> {
    let mut out = Vec::new();
    let mut received = vec![0_u8; RECEIVE_LEN];
    let (mut filled, mut in_flight, mut completed) = (0_usize, 0_usize, 0_u64);
    let began = Instant::now();
    let mut on_time = true;
    loop {
        while on_time && in_flight < depth && exchange.request(&mut out) {
            in_flight = in_flight.saturating_add(1);
        }
        if !out.is_empty() {
            stream.write_all(&out)?;
            out.clear();
        }
        if in_flight == 0 {
            return Ok(Outcome { completed, elapsed: began.elapsed() });
        }
        let room = received.get_mut(filled..).unwrap_or_default();
        match stream.read(room)? {
            0 => return Err("the peer closed the connection".into()),
            more => filled = filled.saturating_add(more),
        }
        let mut used = 0_usize;
        loop {
            let taken = exchange.take(received.get(used..filled).unwrap_or_default(), &mut out)?;
            used = used.saturating_add(taken.bytes);
            if taken.completed {
                completed = completed.saturating_add(1);
                in_flight = in_flight.saturating_sub(1);
            }
            if taken.bytes == 0 {
                break;
            }
        }
        received.copy_within(used..filled, 0);
        filled = filled.saturating_sub(used);
        on_time = began.elapsed() < duration;
    }
}
