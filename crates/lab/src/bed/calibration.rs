//! The rate of TCP streams without iSCSI.

use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::time::{Duration, Instant};

use super::namespace::system;
use super::{Bed, TARGET_ADDRESS, to_f64};
use crate::experiment::LabError;
use crate::machine::{ProcessorShares, with_processor_shares};
use crate::statistics::median;

/// The bytes of one send or receive call of a stream.
pub(super) const CHUNK: usize = 256 << 10;

/// The time before a stream is measured, in which TCP finds its window.
pub(super) const WARMUP: Duration = Duration::from_millis(300);

/// A rate is the median of those of so many parts of the measurement. The shaper loses time for good when it
/// wakes up late, and a hypervisor that wakes up an idle processor late counts that as idle time: a few such
/// moments say nothing about the link.
pub(super) const SLICES: u32 = 15;

/// How long one call may take before the measurement is given up.
pub(super) const STALL_MAX: Duration = Duration::from_secs(10);

/// What the link carries without iSCSI.
#[derive(Clone, Copy, Debug)]
pub struct Calibration {
    /// The rate of a TCP stream to the target's host, payload bytes per second.
    pub to_target: f64,
    /// The rate of a TCP stream to the initiator's host, payload bytes per second.
    pub to_initiator: f64,
    /// What the rate must be by the framing, payload bytes per second; none for a link that is not shaped.
    pub expected: Option<f64>,
    /// How all processors of the machine spent the time meanwhile: the worse of the two streams. A busy
    /// machine and a busy hypervisor keep the shaper and the streams from their time.
    pub processors: Option<ProcessorShares>,
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

pub(super) fn calibrate(bed: &Bed, seconds: f64) -> Result<Calibration, LabError> {
    let span = Duration::try_from_secs_f64(seconds).unwrap_or(Duration::from_secs(1));
    let (initiator, target) = connected(bed)?;
    let (to_target, there) = with_processor_shares(|| stream_rate(initiator, target, span));
    let (initiator, target) = connected(bed)?;
    let (to_initiator, back) = with_processor_shares(|| stream_rate(target, initiator, span));
    let processors = there.zip(back).map(|(there, back)| there.worse(back));
    let expected = bed.link.payload_rate();
    Ok(Calibration { to_target: to_target?, to_initiator: to_initiator?, expected, processors })
}

fn connected(bed: &Bed) -> Result<(TcpStream, TcpStream), LabError> {
    connected_at(bed, TARGET_ADDRESS)
}

/// Connects the initiator's host to an address of the target's. A socket stays in the namespace in which it
/// was made, whichever thread uses it. Returns the initiator's end and the target's.
pub(super) fn connected_at(bed: &Bed, address: Ipv4Addr) -> Result<(TcpStream, TcpStream), LabError> {
    let bind = || TcpListener::bind((address, 0)).and_then(|made| Ok((made.local_addr()?, made)));
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

/// Measures at the receiver how many bytes of a stream arrive in a second, as the median of [`SLICES`].
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
    receive_for(&mut stream, &mut buffer, WARMUP)?;
    let slices = (0..SLICES).map(|_| {
        let (bytes, elapsed) = receive_for(&mut stream, &mut buffer, span / SLICES)?;
        Ok(to_f64(bytes) / elapsed.as_secs_f64())
    });
    Ok(median_rate(slices.collect::<io::Result<_>>()?))
}

pub(super) fn median_rate(mut of_slices: Vec<f64>) -> f64 {
    of_slices.sort_by(f64::total_cmp);
    median(&of_slices)
}

/// Receives at least so long, until everything that has arrived is read: what waits in the kernel because
/// this thread came late is part of the rate. A stream without a limit may always have more, so it ends at
/// twice the span.
fn receive_for(stream: &mut TcpStream, buffer: &mut [u8], span: Duration) -> io::Result<(u64, Duration)> {
    let (start, mut bytes) = (Instant::now(), 0);
    loop {
        let len = read_some(stream, buffer)?;
        bytes += len;
        let elapsed = start.elapsed();
        let has_more = usize::try_from(len).is_ok_and(|len| len == buffer.len());
        if elapsed >= span * if has_more { 2 } else { 1 } {
            return Ok((bytes, elapsed));
        }
    }
}

/// Receives something; a signal of this process does not end the measurement.
pub(super) fn read_some(stream: &mut impl Read, buffer: &mut [u8]) -> io::Result<u64> {
    loop {
        match stream.read(buffer) {
            Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(len) => return Ok(u64::try_from(len).unwrap_or(u64::MAX)),
            Err(why) if why.kind() == io::ErrorKind::Interrupted => {}
            Err(why) => return Err(why),
        }
    }
}
