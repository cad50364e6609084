//! An initiator of ATA over Ethernet, as far as reads and writes go, and Debian's target for it, `vblade`.
//!
//! The initiator does what Linux's driver `aoe` does: it cuts a command of the workload into ATA commands of
//! as many sectors as a frame holds and the target takes, keeps as many under way as the target has buffers
//! for, and sends a command without an answer again under a new tag. It sends and receives many frames with
//! one system call, so that `vblade`, which makes one for each frame, is the limit.

use std::collections::{BTreeMap, VecDeque};
use std::io::Write;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use base::rng::Rng;
use drivers::ether::PortError;
use drivers::ether::raw::RawPort;
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::plan::Workload;
use crate::bed::{Namespace, to_f64};
use crate::bench::{BenchReport, DirectionStats};
use crate::experiment::LabError;
use crate::target_process::supervisor::Supervised;
use crate::target_process::{PrivateDirectory, TargetProcess, processor_time};
use crate::targets::search_path;

/// The program that serves a disk.
pub(super) const PROGRAM: &str = "vblade";
/// The address of the disk.
const SHELF: u16 = 7;
const SLOT: u8 = 1;
/// The ATA commands for which the target says that it has room. Its default, 16, is fewer than the workloads
/// have under way.
const BUFFERS: u16 = 64;

const INTERFACE: &str = "eth0";
const ETHER_TYPE: u16 = 0x88a2;
const RECEIVE_BYTES: usize = 16 << 20;
/// The address of this initiator. The link has two ends, so that its frames arrive whatever the address is.
const ADDRESS: [u8; 6] = [2, 0, 0, 0, 0, 0x0a];
const BROADCAST: [u8; 6] = [0xff; 6];

const ETHERNET_LEN: usize = 14;
/// Version and flags, error, shelf, slot, command, tag.
const AOE_LEN: usize = 10;
const ATA_LEN: usize = 12;
const SECTOR: usize = 512;
/// A frame counts its sectors in a byte.
const SECTORS_MAX: usize = 255;

const VERSION: u8 = 0x10;
const RESPONSE: u8 = 0x08;
const ERROR: u8 = 0x04;
const COMMAND_ATA: u8 = 0;
const COMMAND_CONFIG: u8 = 1;
const ATA_EXTENDED: u8 = 0x40;
const ATA_WRITE: u8 = 0x01;
const READ_EXT: u8 = 0x24;
const WRITE_EXT: u8 = 0x34;
/// ERR and DF of the status register.
const ATA_ERRORS: u8 = 0x01 | 0x20;
/// The highest bit of a tag marks messages that the target begins.
const TAG_MASK: u32 = 0x7fff_ffff;

/// How long an answer is waited for before the state is looked at again.
const WAIT: Timespec = Timespec { tv_sec: 0, tv_nsec: 10_000_000 };
/// A command without an answer is sent again after this time and that in which the link carries all of them.
const PATIENCE: Duration = Duration::from_millis(20);
/// A target that sends nothing for so long is gone.
const SILENCE_MAX: Duration = Duration::from_secs(5);

/// Starts a target with a disk of `len` bytes, written full, in a directory in `parent`.
pub(super) fn serve(host: &Namespace, parent: &Path, len: u64) -> Result<TargetProcess, LabError> {
    let system = |why| LabError::System { what: format!("write the disk of {PROGRAM}"), why };
    let directory = PrivateDirectory::create_in(parent).map_err(system)?;
    let mut file = std::fs::File::create(directory.path().join("disk")).map_err(system)?;
    let chunk = vec![0x5a; 1 << 20];
    for _ in 0..len >> 20 {
        file.write_all(&chunk).map_err(system)?;
    }
    let supervised = Supervised {
        serve: format!("exec {PROGRAM} -b {BUFFERS} {SHELF} {SLOT} {INTERFACE} disk"),
        variables: vec![("PATH".to_owned(), search_path())],
        ..Supervised::default()
    };
    supervised.start(Some(host), directory)
}

/// A workload and its durations.
pub(super) struct AoeLoad {
    pub(super) workload: Workload,
    /// The length of the disk in bytes.
    pub(super) disk: u64,
    pub(super) warmup: Duration,
    pub(super) time: Duration,
    pub(super) seed: u64,
    /// The time in which the link carries the data of all commands under way.
    pub(super) filled: Duration,
}

/// Loads the disk until the measurement is over or `stop` is set.
pub(super) fn run(load: &AoeLoad, stop: &AtomicBool) -> Result<BenchReport, LabError> {
    let failed = |why: PortError| LabError::Target(format!("cannot speak ATA over Ethernet: {why}"));
    let mut port = RawPort::open(INTERFACE, Some(ETHER_TYPE), RECEIVE_BYTES).map_err(failed)?;
    let known = find_target(&mut port, stop)?;
    Run::new(load, port, &known).load(stop)
}

/// What the target says of itself.
struct Known {
    address: [u8; 6],
    buffers: usize,
    sectors_max: usize,
}

/// Finds the target by a broadcast.
fn find_target(port: &mut RawPort, stop: &AtomicBool) -> Result<Known, LabError> {
    let mut question = Vec::new();
    write_header(&BROADCAST, COMMAND_CONFIG, 1, &mut question);
    question.extend_from_slice(&[0; 8]);
    let deadline = Instant::now() + SILENCE_MAX;
    while Instant::now() < deadline && !stop.load(Ordering::Relaxed) {
        port.send(std::iter::once(question.as_slice()));
        let _ = poll(&mut [PollFd::new(port, PollFlags::IN)], Some(&WAIT));
        let mut known = None;
        port.receive(|frame| known = known.take().or_else(|| known_from(frame)));
        if let Some(known) = known {
            return Ok(known);
        }
    }
    Err(LabError::Target(format!("{PROGRAM} answers no query")))
}

fn known_from(frame: &[u8]) -> Option<Known> {
    let payload = response(frame).filter(|payload| payload.get(5) == Some(&COMMAND_CONFIG))?;
    let buffers = u16::from_be_bytes(payload.get(10..12)?.try_into().ok()?);
    let sectors = usize::from(*payload.get(14)?);
    Some(Known {
        address: frame.get(6..12)?.try_into().ok()?,
        buffers: usize::from(buffers).max(1),
        sectors_max: sectors.max(2),
    })
}

/// Returns what follows the Ethernet header of a response of our target.
fn response(frame: &[u8]) -> Option<&[u8]> {
    let payload = frame.get(ETHERNET_LEN..).filter(|payload| payload.len() >= AOE_LEN)?;
    let ours = payload.first().is_some_and(|flags| flags & RESPONSE != 0)
        && payload.get(2..4) == Some(&SHELF.to_be_bytes())
        && payload.get(4) == Some(&SLOT);
    ours.then_some(payload)
}

fn write_header(target: &[u8; 6], command: u8, tag: u32, out: &mut Vec<u8>) {
    out.clear();
    out.extend_from_slice(target);
    out.extend_from_slice(&ADDRESS);
    out.extend_from_slice(&ETHER_TYPE.to_be_bytes());
    out.extend_from_slice(&[VERSION, 0]);
    out.extend_from_slice(&SHELF.to_be_bytes());
    out.extend_from_slice(&[SLOT, command]);
    out.extend_from_slice(&tag.to_be_bytes());
}

/// The answer to an ATA command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Answer {
    tag: u32,
    good: bool,
    data_len: usize,
}

/// Reads an answer, and copies its data as an initiator must.
fn answer_from(frame: &[u8], data: &mut [u8]) -> Option<Answer> {
    let payload = response(frame).filter(|payload| payload.get(5) == Some(&COMMAND_ATA))?;
    let tag = u32::from_be_bytes(payload.get(6..AOE_LEN)?.try_into().ok()?);
    let status = payload.get(AOE_LEN + 3)?;
    let good = payload.first().is_some_and(|flags| flags & ERROR == 0) && status & ATA_ERRORS == 0;
    let received = payload.get(AOE_LEN + ATA_LEN..).unwrap_or_default();
    let len = received.len().min(data.len());
    if let (Some(to), Some(from)) = (data.get_mut(..len), received.get(..len)) {
        to.copy_from_slice(from);
    }
    Some(Answer { tag, good, data_len: received.len() })
}

/// A part of a command of the workload: what a frame holds.
#[derive(Clone, Copy)]
struct Part {
    command: u64,
    lba: u64,
    sectors: usize,
    sent: Instant,
}

struct Run<'a> {
    load: &'a AoeLoad,
    port: RawPort,
    target: [u8; 6],
    /// The sectors of a frame, and the frames under way.
    sectors: usize,
    buffers: usize,
    rng: Rng,
    next_command: u64,
    next_tag: u32,
    /// Commands under way: their start, and how many parts are missing.
    commands: BTreeMap<u64, (Instant, usize)>,
    waiting: VecDeque<Part>,
    under_way: BTreeMap<u32, Part>,
    frames: Vec<Vec<u8>>,
    data: Vec<u8>,
    /// The start and the end of the measurement.
    window: (Instant, Instant),
    stats: DirectionStats,
    bytes_moved: f64,
}

impl<'a> Run<'a> {
    fn new(load: &'a AoeLoad, port: RawPort, known: &Known) -> Self {
        let room = port.mtu().saturating_sub(AOE_LEN + ATA_LEN) / SECTOR;
        let sectors = room.min(known.sectors_max).clamp(1, SECTORS_MAX);
        let start = Instant::now() + load.warmup;
        Self {
            load,
            port,
            target: known.address,
            sectors,
            buffers: known.buffers,
            rng: Rng::from_seed(load.seed),
            next_command: 0,
            next_tag: 2,
            commands: BTreeMap::new(),
            waiting: VecDeque::new(),
            under_way: BTreeMap::new(),
            frames: vec![Vec::new(); known.buffers],
            data: vec![0x5a; sectors * SECTOR],
            window: (start, start + load.time),
            stats: DirectionStats::default(),
            bytes_moved: 0.0,
        }
    }

    fn load(mut self, stop: &AtomicBool) -> Result<BenchReport, LabError> {
        let clock = || processor_time(std::process::id()).unwrap_or_default();
        let depth = usize::try_from(self.load.workload.depth).unwrap_or(1);
        let (start, end) = self.window;
        let (mut cpu_start, mut cpu_end, mut heard) = (None, None, Instant::now());
        while !stop.load(Ordering::Relaxed) {
            let now = Instant::now();
            cpu_start = cpu_start.or_else(|| (now >= start).then(clock));
            cpu_end = cpu_end.or_else(|| (now >= end).then(clock));
            while now < end && self.commands.len() < depth {
                self.begin(now);
            }
            self.send_waiting(now);
            // The commands that are under way at the end count by the part that lies before it.
            if self.commands.is_empty() {
                break;
            }
            if self.receive()? > 0 {
                heard = Instant::now();
            } else {
                let _ = poll(&mut [PollFd::new(&self.port, PollFlags::IN)], Some(&WAIT));
                self.send_again(now);
                if now.duration_since(heard) > SILENCE_MAX {
                    return Err(LabError::Target(format!("{PROGRAM} answers no longer")));
                }
            }
        }
        let cpu = cpu_end.zip(cpu_start).map_or(Duration::ZERO, |(end, start)| end.saturating_sub(start));
        let mut report = BenchReport {
            seconds: self.load.time.as_secs_f64(),
            bytes_moved: self.bytes_moved,
            cpu_s: cpu.as_secs_f64(),
            commands: self.next_command,
            ..BenchReport::default()
        };
        if self.load.workload.access.read {
            report.reads = self.stats
        } else {
            report.writes = self.stats
        }
        Ok(report)
    }

    /// Begins a command.
    fn begin(&mut self, now: Instant) {
        let bytes = u64::from(self.load.workload.block).max(1);
        let places = (self.load.disk / bytes).max(1);
        let place = if self.load.workload.access.random {
            self.rng.below(places)
        } else {
            self.next_command % places
        };
        let command = self.next_command;
        self.next_command += 1;
        let first = place * bytes / SECTOR_BYTES;
        let mut left = usize::try_from(bytes).unwrap_or(SECTOR) / SECTOR;
        let (mut lba, mut parts) = (first, 0);
        while left > 0 {
            let sectors = left.min(self.sectors);
            self.waiting.push_back(Part { command, lba, sectors, sent: now });
            lba += u64::try_from(sectors).unwrap_or(0);
            left -= sectors;
            parts += 1;
        }
        self.commands.insert(command, (now, parts));
    }

    /// Sends as many parts as the target has buffers for and the interface takes.
    fn send_waiting(&mut self, now: Instant) {
        let room = self.buffers.saturating_sub(self.under_way.len()).min(self.waiting.len());
        let parts: Vec<Part> = self.waiting.drain(..room).collect();
        let mut tagged = Vec::with_capacity(parts.len());
        for (part, frame) in parts.into_iter().zip(&mut self.frames) {
            let tag = self.next_tag;
            self.next_tag = self.next_tag.wrapping_add(1) & TAG_MASK;
            write_header(&self.target, COMMAND_ATA, tag, frame);
            let (flags, command) = match self.load.workload.access.read {
                true => (ATA_EXTENDED, READ_EXT),
                false => (ATA_EXTENDED | ATA_WRITE, WRITE_EXT),
            };
            frame.extend_from_slice(&[flags, 0, u8::try_from(part.sectors).unwrap_or(u8::MAX), command]);
            frame.extend_from_slice(part.lba.to_le_bytes().get(..6).unwrap_or_default());
            frame.extend_from_slice(&[0, 0]);
            if !self.load.workload.access.read {
                frame.extend_from_slice(self.data.get(..part.sectors * SECTOR).unwrap_or_default());
            }
            tagged.push((tag, Part { sent: now, ..part }));
        }
        let frames = self.frames.iter().take(tagged.len()).map(Vec::as_slice);
        let done = self.port.send(frames).done;
        for (tag, part) in tagged.iter().take(done) {
            self.under_way.insert(*tag, *part);
        }
        for (_, part) in tagged.iter().skip(done).rev() {
            self.waiting.push_front(*part);
        }
    }

    /// Takes the answers that have arrived, and returns how many frames there were.
    fn receive(&mut self) -> Result<usize, LabError> {
        let (mut answers, data) = (Vec::new(), &mut self.data);
        let (count, _) = self.port.receive(|frame| answers.extend(answer_from(frame, data)));
        for answer in answers {
            self.complete(answer)?;
        }
        Ok(count)
    }

    fn complete(&mut self, answer: Answer) -> Result<(), LabError> {
        // The answer to a part that was sent again is late.
        let Some(part) = self.under_way.remove(&answer.tag) else { return Ok(()) };
        let is_short = self.load.workload.access.read && answer.data_len < part.sectors * SECTOR;
        if !answer.good || is_short {
            return Err(LabError::Target(format!("{PROGRAM} fails a command")));
        }
        let Some((begun, missing)) = self.commands.get_mut(&part.command) else { return Ok(()) };
        *missing = missing.saturating_sub(1);
        if *missing > 0 {
            return Ok(());
        }
        let (begun, now, bytes) = (*begun, Instant::now(), self.load.workload.block);
        self.commands.remove(&part.command);
        self.bytes_moved += f64::from(bytes) * share_within((begun, now), self.window);
        if (self.window.0..=self.window.1).contains(&now) {
            self.stats.count += 1;
            self.stats.bytes += u64::from(bytes);
            self.stats.latency.record(now - begun);
        }
        Ok(())
    }

    /// Lets parts without an answer be sent again.
    fn send_again(&mut self, now: Instant) {
        let patience = PATIENCE + self.load.filled;
        let late = self.under_way.iter().filter(|(_, part)| now.duration_since(part.sent) >= patience);
        let late: Vec<u32> = late.map(|(tag, _)| *tag).collect();
        for part in late.into_iter().filter_map(|tag| self.under_way.remove(&tag)) {
            self.waiting.push_front(part);
        }
    }
}

const SECTOR_BYTES: u64 = 512;

/// Returns which share of the first span lies within the second one.
fn share_within((begun, ended): (Instant, Instant), (start, end): (Instant, Instant)) -> f64 {
    let whole = ended.duration_since(begun).as_secs_f64();
    let part = ended.min(end).saturating_duration_since(begun.max(start)).as_secs_f64();
    if whole > 0.0 { part / whole } else { 0.0 }
}

/// Returns the time in which a link of this rate carries the data of all commands under way.
pub(super) fn filled(workload: Workload, rate_bits: Option<u64>) -> Duration {
    let bits = to_f64((u64::from(workload.depth) * u64::from(workload.block)) << 3);
    rate_bits.map_or(Duration::ZERO, |rate| Duration::from_secs_f64(bits / to_f64(rate)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn frame(flags: u8, shelf: u16, command: u8, rest: &[u8]) -> Vec<u8> {
        let mut frame = Vec::new();
        write_header(&ADDRESS, command, 77, &mut frame);
        frame[ETHERNET_LEN] = flags;
        frame[ETHERNET_LEN + 2..ETHERNET_LEN + 4].copy_from_slice(&shelf.to_be_bytes());
        frame.extend_from_slice(rest);
        frame
    }

    #[test]
    fn answers_of_our_disk_are_read_and_no_others() {
        let ata = [&[0, 0, 0, 0x40][..], &[0; 8], &[7; 512]].concat();
        let good = frame(VERSION | RESPONSE, SHELF, COMMAND_ATA, &ata);
        let mut data = vec![0; SECTOR];
        let answer = Answer { tag: 77, good: true, data_len: SECTOR };
        assert_eq!(answer_from(&good, &mut data), Some(answer));
        assert_eq!(data, [7; SECTOR]);
        let failed = frame(VERSION | RESPONSE | ERROR, SHELF, COMMAND_ATA, &ata);
        assert!(!answer_from(&failed, &mut data).unwrap().good);
        let status = frame(VERSION | RESPONSE, SHELF, COMMAND_ATA, &[0, 4, 0, 0x41]);
        assert_eq!(answer_from(&status, &mut data), Some(Answer { tag: 77, good: false, data_len: 0 }));
        for other in [
            frame(VERSION, SHELF, COMMAND_ATA, &ata),
            frame(VERSION | RESPONSE, 8, COMMAND_ATA, &ata),
            frame(VERSION | RESPONSE, SHELF, COMMAND_CONFIG, &ata),
        ] {
            assert_eq!(answer_from(&other, &mut data), None);
        }
        for len in 0..ETHERNET_LEN + AOE_LEN + 4 {
            assert_eq!(answer_from(&good[..len], &mut data), None, "{len}");
        }
    }

    #[test]
    fn the_target_tells_its_buffers_and_sectors() {
        let query = frame(VERSION | RESPONSE, SHELF, COMMAND_CONFIG, &[0, 64, 0x40, 0x14, 16, 0x10, 0, 0]);
        let known = known_from(&query).unwrap();
        assert_eq!((known.buffers, known.sectors_max, known.address), (64, 16, ADDRESS));
        assert!(known_from(&query[..ETHERNET_LEN + AOE_LEN + 2]).is_none());
    }

    #[test]
    fn a_command_counts_by_its_part_in_the_measurement() {
        let zero = Instant::now();
        let at = |ms| zero + Duration::from_millis(ms);
        for (span, share) in
            [((0, 5), 0.0), ((5, 15), 0.5), ((12, 18), 1.0), ((0, 40), 0.25), ((20, 30), 0.0)]
        {
            let found = share_within((at(span.0), at(span.1)), (at(10), at(20)));
            assert!((found - share).abs() < 1e-9, "{span:?}: {found}");
        }
    }
}
