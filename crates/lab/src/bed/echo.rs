//! The bare echo: the rate at which a server that does nothing else answers requests.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::io::{self, Read, Write};
use std::time::{Duration, Instant};

use super::calibration::{CHUNK, WARMUP, connected_at, read_some};
use super::namespace::system;
use super::{Bed, TARGET_ADDRESS, to_f64};
use crate::bench::Histogram;
use crate::experiment::LabError;

/// The bytes of a request: the basic header segment of a PDU.
const REQUEST_LEN: usize = 48;

/// The rate of a bare echo: requests of 48 bytes, answered with blocks.
#[derive(Clone, Copy, Debug)]
pub struct Echo {
    /// Answers per second.
    pub per_second: f64,
    /// The mean time from a request to its answer with this many requests under way, in microseconds.
    pub latency_us: f64,
}

/// An echo over any stream.
#[derive(Clone, Copy, Debug)]
pub(crate) struct EchoPlan {
    /// The bytes of an answer.
    pub(crate) block: usize,
    /// The requests under way.
    pub(crate) depth: usize,
    pub(crate) warmup: Duration,
    pub(crate) span: Duration,
}

/// What an echo over any stream measured.
#[derive(Clone, Debug, Default)]
pub(crate) struct EchoReport {
    /// The bytes of answers that were received in the measurement.
    pub(crate) bytes: u64,
    /// The bytes that were received in all, warm-up included.
    pub(crate) bytes_in_all: u64,
    /// The duration of the measurement.
    pub(crate) seconds: f64,
    /// From each request to its whole answer, for the answers that ended in the measurement.
    pub(crate) latency: Histogram,
    /// How many there were.
    pub(crate) answers: u64,
}

/// Measures a bare echo between the hosts of a bed: the server answers each request of 48 bytes with a block,
/// as a target answers a read, and the client keeps `depth` requests under way.
///
/// # Errors
/// [`LabError::System`]
pub fn echo_rate(bed: &Bed, block: usize, depth: usize, span: Duration) -> Result<Echo, LabError> {
    let (initiator, target) = connected_at(bed, TARGET_ADDRESS)?;
    let plan = EchoPlan { block, depth, warmup: WARMUP.min(span), span };
    let report = echo(initiator, target, plan).map_err(|why| system("measure a bare echo", why))?;
    let answers = to_f64(report.bytes) / to_f64(u64::try_from(block).unwrap_or(u64::MAX));
    let per_second = answers / report.seconds;
    let in_flight = to_f64(u64::try_from(depth).unwrap_or(u64::MAX));
    Ok(Echo { per_second, latency_us: in_flight / per_second.max(f64::MIN_POSITIVE) * 1e6 })
}

/// Measures an echo between the two ends of a stream. Both ends are closed at the end.
pub(crate) fn echo<S: Read + Write + Send>(client: S, server: S, plan: EchoPlan) -> io::Result<EchoReport> {
    std::thread::scope(|scope| {
        let serving = scope.spawn(move || answer_requests(server, plan.block));
        let report = request_blocks(client, plan);
        let _ = serving.join();
        report
    })
}

fn answer_requests(mut stream: impl Read + Write, block: usize) -> io::Result<Infallible> {
    let answer = vec![0x5a; block];
    let (mut requests, mut partial) = (vec![0; CHUNK], 0);
    loop {
        // The client closes the connection at the end.
        partial += usize::try_from(read_some(&mut stream, &mut requests)?).unwrap_or(0);
        for _ in 0..partial / REQUEST_LEN {
            stream.write_all(&answer)?;
        }
        partial %= REQUEST_LEN;
    }
}

/// The client owns the stream: it closes when the measurement ends.
fn request_blocks(mut stream: impl Read + Write, plan: EchoPlan) -> io::Result<EchoReport> {
    let EchoPlan { block, depth, warmup, span } = plan;
    let requests = vec![0; REQUEST_LEN * depth];
    let mut sent: VecDeque<Instant> = std::iter::repeat_n(Instant::now(), depth).collect();
    stream.write_all(&requests)?;
    let mut buffer = vec![0; block.max(CHUNK)];
    let (mut pending, mut start, mut report) = (0, None, EchoReport::default());
    let warm = Instant::now() + warmup;
    loop {
        let received = read_some(&mut stream, &mut buffer)?;
        pending += usize::try_from(received).unwrap_or(0);
        let whole = pending / block;
        pending %= block;
        let now = Instant::now();
        report.bytes_in_all += received;
        let answered: Vec<Instant> = sent.drain(..whole.min(sent.len())).collect();
        match start {
            None => start = (now >= warm).then_some(now),
            Some(start) => {
                report.bytes += received;
                answered.iter().for_each(|begin| report.latency.record(now - *begin));
                report.answers += u64::try_from(answered.len()).unwrap_or(0);
                let elapsed = now - start;
                if elapsed >= span {
                    report.seconds = elapsed.as_secs_f64();
                    return Ok(report);
                }
            }
        }
        sent.extend(std::iter::repeat_n(now, whole));
        stream.write_all(requests.get(..REQUEST_LEN * whole).unwrap_or(&requests))?;
    }
}
