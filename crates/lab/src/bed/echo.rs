//! The bare echo: the rate at which a server that does nothing else answers requests.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::io::{self, Read, Write};
use std::time::{Duration, Instant};

use super::calibration::{CHUNK, WARMUP, connected_at, read_some};
use super::namespace::system;
use super::{Bed, TARGET_ADDRESS, to_f64};
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
    pub(crate) exchange: Exchange,
    /// The requests under way.
    pub(crate) depth: usize,
    pub(crate) warmup: Duration,
    pub(crate) span: Duration,
}

/// What an echo over any stream measured.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct EchoReport {
    /// The bytes of answers that were received in the measurement.
    pub(crate) bytes: u64,
    /// The bytes that were received in all, warm-up included.
    pub(crate) bytes_in_all: u64,
    /// The duration of the measurement.
    pub(crate) seconds: f64,
}

/// The lengths of a request and of its answer, in bytes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Exchange {
    request: usize,
    answer: usize,
}

impl Exchange {
    /// A short request that is answered with a block, as a read is.
    pub(crate) const fn read(block: usize) -> Self {
        Self { request: REQUEST_LEN, answer: block }
    }

    /// A request that brings a block and has a short answer, as a write is.
    const fn write(block: usize) -> Self {
        Self { request: REQUEST_LEN + block, answer: REQUEST_LEN }
    }
}

/// Measures a bare echo between the hosts of a bed: the server answers each request of 48 bytes with a block,
/// as a target answers a read, and the client keeps `depth` requests under way.
///
/// # Errors
/// [`LabError::System`]
pub fn echo_rate(bed: &Bed, block: usize, depth: usize, span: Duration) -> Result<Echo, LabError> {
    echo_of(bed, Exchange::read(block), depth, span)
}

/// Measures a bare echo as [`echo_rate`] does, but each request brings a block and is answered with 48 bytes,
/// as a write is.
///
/// # Errors
/// [`LabError::System`]
pub fn write_echo_rate(bed: &Bed, block: usize, depth: usize, span: Duration) -> Result<Echo, LabError> {
    echo_of(bed, Exchange::write(block), depth, span)
}

fn echo_of(bed: &Bed, exchange: Exchange, depth: usize, span: Duration) -> Result<Echo, LabError> {
    let (initiator, target) = connected_at(bed, TARGET_ADDRESS)?;
    let plan = EchoPlan { exchange, depth, warmup: WARMUP.min(span), span };
    let report = echo(initiator, target, plan, |_| ()).map_err(|why| system("measure a bare echo", why))?;
    let answers = to_f64(report.bytes) / to_f64(u64::try_from(exchange.answer).unwrap_or(u64::MAX));
    let per_second = answers / report.seconds;
    let in_flight = to_f64(u64::try_from(depth).unwrap_or(u64::MAX));
    Ok(Echo { per_second, latency_us: in_flight / per_second.max(f64::MIN_POSITIVE) * 1e6 })
}

/// Measures an echo between the two ends of a stream. Both ends are closed at the end. `answered` receives
/// the time from each request to its whole answer, for the answers that end in the measurement.
pub(crate) fn echo<S: Read + Write + Send>(
    client: S,
    server: S,
    plan: EchoPlan,
    answered: impl FnMut(Duration),
) -> io::Result<EchoReport> {
    std::thread::scope(|scope| {
        let serving = scope.spawn(move || answer_requests(server, plan.exchange));
        let report = request_answers(client, plan, answered);
        let _ = serving.join();
        report
    })
}

fn answer_requests(mut stream: impl Read + Write, exchange: Exchange) -> io::Result<Infallible> {
    let answer = vec![0x5a; exchange.answer];
    let (mut requests, mut partial) = (vec![0; CHUNK], 0);
    loop {
        // The client closes the connection at the end.
        partial += usize::try_from(read_some(&mut stream, &mut requests)?).unwrap_or(0);
        for _ in 0..partial / exchange.request {
            stream.write_all(&answer)?;
        }
        partial %= exchange.request;
    }
}

/// The client owns the stream: it closes when the measurement ends.
fn request_answers(
    mut stream: impl Read + Write,
    plan: EchoPlan,
    mut answered: impl FnMut(Duration),
) -> io::Result<EchoReport> {
    let EchoPlan { exchange: Exchange { request, answer }, depth, warmup, span } = plan;
    // Short requests are sent many at a time.
    let at_once = (CHUNK / request).clamp(1, depth.max(1));
    let requests = vec![0; request * at_once];
    let send = |stream: &mut dyn Write, mut count: usize| {
        while count > 0 {
            let now = count.min(at_once);
            stream.write_all(requests.get(..request * now).unwrap_or(&requests))?;
            count -= now;
        }
        io::Result::Ok(())
    };
    let mut sent: VecDeque<Instant> = std::iter::repeat_n(Instant::now(), depth).collect();
    send(&mut stream, depth)?;
    let mut buffer = vec![0; answer.max(CHUNK)];
    let (mut pending, mut start, mut report) = (0, None, EchoReport::default());
    let warm = Instant::now() + warmup;
    loop {
        let received = read_some(&mut stream, &mut buffer)?;
        pending += usize::try_from(received).unwrap_or(0);
        let whole = pending / answer;
        pending %= answer;
        let now = Instant::now();
        report.bytes_in_all += received;
        let begins = sent.drain(..whole.min(sent.len()));
        match start {
            None => {
                drop(begins);
                start = (now >= warm).then_some(now);
            }
            Some(start) => {
                report.bytes += received;
                begins.for_each(|begin| answered(now - begin));
                let elapsed = now - start;
                if elapsed >= span {
                    report.seconds = elapsed.as_secs_f64();
                    return Ok(report);
                }
            }
        }
        sent.extend(std::iter::repeat_n(now, whole));
        send(&mut stream, whole)?;
    }
}
