//! Ethernet frames without a protocol: the bound of what a link carries, and other traffic beside storage.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use drivers::ether::PortError;
use drivers::ether::raw::RawPort;
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::calibration::{SLICES, STALL_MAX, median_rate};
use super::namespace::system;
use super::{Bed, ETHERNET_HEADER_LEN, LinkPlan, Namespace, WIRE_OVERHEAD, to_f64};
use crate::experiment::LabError;
use crate::machine::{ProcessorShares, with_processor_shares};

/// The EtherType for local experiments (IEEE 802).
const ETHER_TYPE: u16 = 0x88b5;

/// The interface of either host.
const INTERFACE: &str = "eth0";

/// The buffers of the kernel for frames that are received, in bytes.
const RECEIVE_BYTES: usize = 64 << 20;

/// The frames of one send call.
const BATCH: usize = 64;

/// The time that is not measured: a shaper's bucket is full at first.
const WARMUP: Duration = Duration::from_millis(200);

/// How long a full or empty interface is waited for.
const WAIT: Timespec = Timespec { tv_sec: 0, tv_nsec: 10_000_000 };

/// The length of the frames of other traffic in bytes, with their header and without preamble and FCS.
const OTHER_LEN: u64 = 512;

/// How often other traffic is sent.
const OTHER_INTERVAL: Duration = Duration::from_millis(1);

/// The result of [`frame_rate`].
#[derive(Clone, Copy, Debug)]
pub struct BareFrames {
    /// The Ethernet payload that arrived, in bytes per second.
    pub payload: f64,
    /// The deviation from the rate of the link, counted as a wire does, in percent; none for a link that is
    /// not shaped.
    pub deviation_percent: Option<f64>,
    /// How all processors of the machine spent the time meanwhile.
    pub processors: Option<ProcessorShares>,
}

/// Measures how much payload bare frames of the link's MTU carry to the initiator's host. The frames are
/// different ones, one after another out of so many bytes of memory, as those that carry a disk; with 0, one
/// frame is sent again and again, which stays in the sender's cache.
///
/// # Errors
/// [`LabError`]
pub fn frame_rate(bed: &Bed, memory: usize, span: Duration) -> Result<BareFrames, LabError> {
    let open = || RawPort::open(INTERFACE, Some(ETHER_TYPE), RECEIVE_BYTES);
    let stop = AtomicBool::new(false);
    let (rate, processors) = with_processor_shares(|| {
        std::thread::scope(|scope| {
            let sending = scope.spawn(|| bed.target().run(|| blast(&open()?, memory, &stop)));
            let received = bed.initiator().run(|| Ok(receive(&mut open()?, span)));
            stop.store(true, Ordering::Relaxed);
            let sent = sending.join();
            let received = received.and_then(|received| received.map_err(|why: PortError| refused(&why)));
            match sent {
                Ok(Ok(Err(why))) => Err(refused(&why)),
                _ => received,
            }
        })
    });
    let rate = rate?.ok_or_else(|| LabError::Target("no bare frame arrives".to_owned()))?;
    let LinkPlan { mtu, rate_bits } = bed.link();
    let (payload, overhead) = (f64::from(mtu), f64::from(WIRE_OVERHEAD));
    let bits = rate * (payload + overhead) * 8.0;
    let deviation_percent = rate_bits.map(|wanted| (bits / to_f64(wanted) - 1.0) * 100.0);
    Ok(BareFrames { payload: rate * payload, deviation_percent, processors })
}

fn refused(why: &PortError) -> LabError {
    LabError::Target(format!("cannot send bare frames: {why}"))
}

/// Sends full frames as fast as the interface takes them.
fn blast(opened: &RawPort, memory: usize, stop: &AtomicBool) -> Result<(), PortError> {
    let frame = frame(usize::from(ETHERNET_HEADER_LEN) + opened.mtu());
    let all = frame.repeat((memory / frame.len()).max(1));
    let mut next = all.chunks_exact(frame.len()).cycle();
    let mut port = RawPort::open(INTERFACE, Some(ETHER_TYPE), 1 << 20)?;
    while !stop.load(Ordering::Relaxed) {
        let done = port.send(next.clone().take(BATCH)).done;
        if let Some(last) = done.checked_sub(1) {
            next.nth(last);
        }
        if done < BATCH {
            let _ = poll(&mut [PollFd::new(&port, PollFlags::OUT)], Some(&WAIT));
        }
    }
    Ok(())
}

/// Returns the frames per second, from a moment after the first one, as the median of [`SLICES`]; none if no
/// frame arrives. A busy machine may take long until the sender has its frames. A slice begins and ends when
/// everything that has arrived is read, as in [`super::calibration`].
fn receive(port: &mut RawPort, span: Duration) -> Option<f64> {
    let (opened, mut first, mut start, mut frames) = (Instant::now(), None, None, 0_u64);
    let mut rates = Vec::new();
    loop {
        let (count, _) = port.receive(|_| frames += 1);
        let now = Instant::now();
        let at_least = |span: Duration| if count > 0 { span * 2 } else { span };
        match (first, start) {
            (None, _) if count > 0 => first = Some(now),
            (None, _) if now - opened >= STALL_MAX => return None,
            (Some(first), None) if now - first >= at_least(WARMUP) => (start, frames) = (Some(now), 0),
            (_, Some(begun)) if now - begun >= at_least(span / SLICES) => {
                rates.push(to_f64(frames) / (now - begun).as_secs_f64());
                (start, frames) = (Some(now), 0);
            }
            _ => {}
        }
        if u32::try_from(rates.len()) == Ok(SLICES) {
            return Some(median_rate(rates));
        }
        if count == 0 {
            let _ = poll(&mut [PollFd::new(port, PollFlags::IN)], Some(&WAIT));
        }
    }
}

/// Returns a frame to a station that does not exist.
fn frame(len: usize) -> Vec<u8> {
    let mut frame = vec![0x5a; len];
    let header = [[2, 0, 0, 0, 0, 8], [2, 0, 0, 0, 0, 9]].concat();
    let header = header.into_iter().chain(ETHER_TYPE.to_be_bytes());
    frame.iter_mut().zip(header).for_each(|(byte, own)| *byte = own);
    frame
}

/// Traffic of 512-byte frames at a constant rate, from one host. Dropping it ends it.
#[derive(Debug)]
pub struct OtherTraffic {
    stop: Arc<AtomicBool>,
    sent: Arc<AtomicU64>,
    thread: Option<JoinHandle<()>>,
    started: Instant,
    rate_bits: u64,
}

impl OtherTraffic {
    /// Starts to send `percent` of the link's rate from `host`, which is a host of `bed`.
    ///
    /// # Errors
    /// [`LabError::Plan`] if the link is not shaped, [`LabError::System`] if there can be no thread.
    pub fn start(bed: &Bed, host: &Namespace, percent: u32) -> Result<Self, LabError> {
        let Some(rate_bits) = bed.link().rate_bits else {
            return Err(LabError::Plan("other traffic needs a shaped link".to_owned()));
        };
        let on_wire = OTHER_LEN + u64::from(WIRE_OVERHEAD - ETHERNET_HEADER_LEN);
        let per_second = to_f64(rate_bits) / 8.0 / to_f64(on_wire) * f64::from(percent) / 100.0;
        let (stop, sent) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
        let (its_stop, its_sent) = (Arc::clone(&stop), Arc::clone(&sent));
        let work = move || pace(per_second, &its_stop, &its_sent);
        let thread = host.run(|| std::thread::Builder::new().name("traffic".to_owned()).spawn(work))?;
        let thread = Some(thread.map_err(|why| system("start other traffic", why))?);
        Ok(Self { stop, sent, thread, started: Instant::now(), rate_bits })
    }

    /// Returns the share of the link's rate that the frames took so far, in percent.
    pub fn percent(&self) -> f64 {
        let on_wire = OTHER_LEN + u64::from(WIRE_OVERHEAD - ETHERNET_HEADER_LEN);
        let bits = to_f64(self.sent.load(Ordering::Relaxed) * on_wire * 8);
        bits / self.started.elapsed().as_secs_f64() / to_f64(self.rate_bits) * 100.0
    }
}

impl Drop for OtherTraffic {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        let _ = self.thread.take().map(JoinHandle::join);
    }
}

/// Sends so many frames per second. A frame that the interface's queue has no room for is lost.
fn pace(per_second: f64, stop: &AtomicBool, sent: &AtomicU64) {
    let Ok(mut port) = RawPort::open(INTERFACE, Some(ETHER_TYPE), 1 << 20) else { return };
    let frame = frame(usize::try_from(OTHER_LEN).unwrap_or(0));
    let (start, mut planned) = (Instant::now(), 0.0);
    while !stop.load(Ordering::Relaxed) {
        let due = start.elapsed().as_secs_f64() * per_second;
        let count = (0..u32::MAX).take_while(|count| planned + f64::from(*count) < due).count();
        planned += to_f64(u64::try_from(count).unwrap_or(0));
        let done = port.send(std::iter::repeat_n(frame.as_slice(), count)).done;
        sent.fetch_add(u64::try_from(done).unwrap_or(0), Ordering::Relaxed);
        std::thread::sleep(OTHER_INTERVAL);
    }
}

/// Returns how many packets the link's interface of a host has sent.
///
/// # Errors
/// [`LabError::System`]
pub fn packets_sent(host: &Namespace) -> Result<u64, LabError> {
    let text = host.run(|| std::fs::read_to_string("/proc/thread-self/net/dev"))?;
    let text = text.map_err(|why| system("read the statistics of an interface", why))?;
    let line = text.lines().find_map(|line| line.trim_start().strip_prefix("eth0:"));
    let count = line.and_then(|line| line.split_ascii_whitespace().nth(9)).and_then(|word| word.parse().ok());
    count.ok_or_else(|| system("read the statistics of an interface", std::io::ErrorKind::InvalidData.into()))
}
