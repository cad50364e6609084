//! The bare limits of a path: the rate of TCP streams without iSCSI, and the rate at which a server that does
//! nothing else answers requests.

use std::convert::Infallible;
use std::io::{self, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::time::{Duration, Instant};

use super::namespace::system;
use super::{Bed, TARGET_ADDRESS, to_f64};
use crate::experiment::LabError;
use crate::machine::with_idle_percent;

/// The bytes of one send or receive call of a stream.
const CHUNK: usize = 256 << 10;

/// The time before a stream is measured, in which TCP finds its window.
const WARMUP: Duration = Duration::from_millis(300);

/// The bytes of a request: the basic header segment of a PDU.
const REQUEST_LEN: usize = 48;

/// How long one call may take before the measurement is given up.
const STALL_MAX: Duration = Duration::from_secs(10);

/// What the link carries without iSCSI.
#[derive(Clone, Copy, Debug)]
pub struct Calibration {
    /// The rate of a TCP stream to the target's host, payload bytes per second.
    pub to_target: f64,
    /// The rate of a TCP stream to the initiator's host, payload bytes per second.
    pub to_initiator: f64,
    /// What the rate must be by the framing, payload bytes per second; none for a link that is not shaped.
    pub expected: Option<f64>,
    /// How idle all processors of the machine were meanwhile, in percent: the less idle of the two streams. A
    /// busy machine keeps the shaper and the streams from their time.
    pub idle_percent: Option<f64>,
}

impl Calibration {
    /// Returns the deviation of the worse direction from the expected rate, in percent; none for a link that
    /// is not shaped.
    pub fn deviation_percent(&self) -> Option<f64> {
        let expected = self.expected?;
        let [a, b] = [self.to_target, self.to_initiator].map(|rate| (rate / expected - 1.0) * 100.0);
        Some(if a.abs() > b.abs() { a } else { b })
    }
}

/// The rate of a bare echo: requests of 48 bytes, answered with blocks.
#[derive(Clone, Copy, Debug)]
pub struct Echo {
    /// Answers per second.
    pub per_second: f64,
    /// The mean time from a request to its answer with this many requests under way, in microseconds.
    pub latency_us: f64,
}

pub(super) fn calibrate(bed: &Bed, seconds: f64) -> Result<Calibration, LabError> {
    let span = Duration::try_from_secs_f64(seconds).unwrap_or(Duration::from_secs(1));
    let (initiator, target) = connected(bed)?;
    let (to_target, idle_there) = with_idle_percent(|| stream_rate(initiator, target, span));
    let (initiator, target) = connected(bed)?;
    let (to_initiator, idle_back) = with_idle_percent(|| stream_rate(target, initiator, span));
    let idle_percent = idle_there.zip(idle_back).map(|(there, back)| there.min(back));
    let expected = bed.link.payload_rate();
    Ok(Calibration { to_target: to_target?, to_initiator: to_initiator?, expected, idle_percent })
}

/// Connects the hosts of a bed. A socket stays in the namespace in which it was made, whichever thread uses
/// it. Returns the initiator's end and the target's.
fn connected(bed: &Bed) -> Result<(TcpStream, TcpStream), LabError> {
    let bind = || TcpListener::bind((TARGET_ADDRESS, 0)).and_then(|made| Ok((made.local_addr()?, made)));
    let (address, listener) = bed.target.run(bind)?.map_err(|why| system("listen on a bed", why))?;
    let connect = || TcpStream::connect_timeout(&address, STALL_MAX);
    let initiator = bed.initiator.run(connect)?.map_err(|why| system("connect over a bed", why))?;
    let target = listener.accept().map_err(|why| system("accept a connection over a bed", why))?.0;
    for end in [&initiator, &target] {
        let limited =
            end.set_read_timeout(Some(STALL_MAX)).and_then(|()| end.set_write_timeout(Some(STALL_MAX)));
        limited.and_then(|()| end.set_nodelay(true)).map_err(|why| system("configure a socket", why))?;
    }
    Ok((initiator, target))
}

/// Measures at the receiver how many bytes of a stream arrive in a second.
fn stream_rate(mut sender: TcpStream, receiver: TcpStream, span: Duration) -> Result<f64, LabError> {
    let rate = std::thread::scope(|scope| {
        let sending = scope.spawn(move || {
            let chunk = vec![0x5a; CHUNK];
            // The receiver closes the connection at the end.
            while sender.write_all(&chunk).is_ok() {}
        });
        let rate = receive(receiver, span);
        let _ = sending.join();
        rate
    });
    rate.map_err(|why| system("measure a bare TCP stream", why))
}

fn receive(mut stream: TcpStream, span: Duration) -> io::Result<f64> {
    let mut buffer = vec![0; CHUNK];
    let warm = Instant::now() + WARMUP;
    while Instant::now() < warm {
        read_some(&mut stream, &mut buffer)?;
    }
    let (start, mut bytes) = (Instant::now(), 0);
    let mut elapsed = Duration::ZERO;
    while elapsed < span {
        bytes += read_some(&mut stream, &mut buffer)?;
        elapsed = start.elapsed();
    }
    Ok(to_f64(bytes) / elapsed.as_secs_f64())
}

/// Receives something; a signal of this process does not end the measurement.
fn read_some(stream: &mut TcpStream, buffer: &mut [u8]) -> io::Result<u64> {
    loop {
        match stream.read(buffer) {
            Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(len) => return Ok(u64::try_from(len).unwrap_or(u64::MAX)),
            Err(why) if why.kind() == io::ErrorKind::Interrupted => {}
            Err(why) => return Err(why),
        }
    }
}

/// Measures a bare echo between the hosts of a bed: the server answers each request of 48 bytes with a block,
/// as a target answers a read, and the client keeps `depth` requests under way.
///
/// # Errors
/// [`LabError::System`]
pub fn echo_rate(bed: &Bed, block: usize, depth: usize, span: Duration) -> Result<Echo, LabError> {
    echo_of(bed, Exchange { request: REQUEST_LEN, answer: block }, depth, span)
}

/// Measures a bare echo as [`echo_rate`] does, but each request brings a block and is answered with 48 bytes,
/// as a write is.
///
/// # Errors
/// [`LabError::System`]
pub fn write_echo_rate(bed: &Bed, block: usize, depth: usize, span: Duration) -> Result<Echo, LabError> {
    echo_of(bed, Exchange { request: REQUEST_LEN + block, answer: REQUEST_LEN }, depth, span)
}

/// The lengths of a request and of its answer, in bytes.
#[derive(Clone, Copy)]
struct Exchange {
    request: usize,
    answer: usize,
}

fn echo_of(bed: &Bed, exchange: Exchange, depth: usize, span: Duration) -> Result<Echo, LabError> {
    let (initiator, target) = connected(bed)?;
    let rate = std::thread::scope(|scope| {
        let serving = scope.spawn(move || answer_requests(target, exchange));
        let rate = request_answers(initiator, exchange, depth, span);
        let _ = serving.join();
        rate
    });
    let per_second = rate.map_err(|why| system("measure a bare echo", why))?;
    let in_flight = to_f64(u64::try_from(depth).unwrap_or(u64::MAX));
    Ok(Echo { per_second, latency_us: in_flight / per_second.max(f64::MIN_POSITIVE) * 1e6 })
}

fn answer_requests(mut stream: TcpStream, exchange: Exchange) -> io::Result<Infallible> {
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

/// Returns the answers per second. The client owns the stream: it closes when the measurement ends.
fn request_answers(
    mut stream: TcpStream,
    Exchange { request, answer }: Exchange,
    depth: usize,
    span: Duration,
) -> io::Result<f64> {
    // Short requests are sent many at a time.
    let at_once = (CHUNK / request).clamp(1, depth);
    let requests = vec![0; request * at_once];
    let send = |stream: &mut TcpStream, mut count: usize| {
        while count > 0 {
            let now = count.min(at_once);
            stream.write_all(requests.get(..request * now).unwrap_or(&requests))?;
            count -= now;
        }
        io::Result::Ok(())
    };
    send(&mut stream, depth)?;
    let mut buffer = vec![0; answer.max(CHUNK)];
    let (mut pending, mut answers, mut start) = (0, 0, None);
    let warm = Instant::now() + WARMUP.min(span);
    loop {
        pending += usize::try_from(read_some(&mut stream, &mut buffer)?).unwrap_or(0);
        let whole = pending / answer;
        pending %= answer;
        let now = Instant::now();
        match start {
            None => start = (now >= warm).then_some(now),
            Some(start) => {
                answers += u64::try_from(whole).unwrap_or(0);
                let elapsed = now - start;
                if elapsed >= span {
                    return Ok(to_f64(answers) / elapsed.as_secs_f64());
                }
            }
        }
        send(&mut stream, whole)?;
    }
}
