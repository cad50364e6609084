//! An initiator of ATA over Ethernet, as far as reads and writes go: what Linux's `aoe` driver does with a
//! disk of that shelf and slot.
//!
//! As there, a request is cut into commands of as many sectors as a frame holds and the target takes, as many
//! are under way as the target has buffers for, and what is not answered in time is sent again under a new
//! tag. The socket is standard input: a packet socket, bound to the interface, with a receive timeout. So
//! this needs no right and no code of its own to make one.

use std::collections::{BTreeMap, VecDeque};
use std::fs::File;
use std::io::{ErrorKind, Read, Write};
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use crate::Failure;
use crate::arguments::{Arguments, Direction};

const ETHER_TYPE: [u8; 2] = [0x88, 0xa2];
const BROADCAST: [u8; 6] = [0xff; 6];
const ETHERNET_LEN: usize = 14;
/// Version and flags, error, shelf, slot, command, tag.
const AOE_LEN: usize = 10;
const ATA_LEN: usize = 12;
const SECTOR: usize = 512;

const VERSION: u8 = 0x10;
const RESPONSE: u8 = 0x08;
const ERROR: u8 = 0x04;

const COMMAND_ATA: u8 = 0;
const COMMAND_CONFIG: u8 = 1;

const ATA_EXTENDED: u8 = 0x40;
const ATA_WRITE: u8 = 0x01;
const READ_EXT: u8 = 0x24;
const WRITE_EXT: u8 = 0x34;
const ATA_ERRORS: u8 = 0x01 | 0x20;

/// The socket gives up a receive after a while; so many in a row, and the target is gone.
const SILENCES_MAX: u32 = 200;
/// A command that is not answered for so long is sent again. The target is on the same machine.
const PATIENCE: Duration = Duration::from_millis(20);

pub(crate) fn run(mut arguments: Arguments) -> Result<(), Failure> {
    let address = mac(&arguments.word("address")?)?;
    let place = Place { shelf: arguments.number("shelf")?, slot: arguments.number("slot")? };
    let socket = File::from(std::io::stdin().as_fd().try_clone_to_owned()?);
    let mut wire = Wire { socket, address, target: BROADCAST, place, received: vec![0; 1 << 16] };
    let known = wire.ask()?;
    let mtu: usize = arguments.number("mtu")?;
    let room = mtu.saturating_sub(AOE_LEN + ATA_LEN) / SECTOR;
    let sectors = room.min(known.sectors_max.max(2)).min(255);
    let load = Load {
        direction: arguments.direction()?,
        request_sectors: arguments.number::<usize>("bs")? / SECTOR,
        depth: arguments.number("depth")?,
        random: arguments.given("random"),
        disk_sectors: arguments.number::<u64>("disk")? / u64::try_from(SECTOR)?,
        span: Duration::from_secs_f64(arguments.number("seconds")?),
    };
    if load.request_sectors == 0 || load.requests() == 0 {
        return Err("--bs is no multiple of a sector, or larger than the disk".into());
    }
    let mut run = Run::new(wire, load, sectors, known.buffers.max(1));
    run.whole()?;
    run.print();
    Ok(())
}

#[derive(Clone, Copy)]
struct Place {
    shelf: u16,
    slot: u8,
}

struct Wire {
    socket: File,
    address: [u8; 6],
    target: [u8; 6],
    place: Place,
    received: Vec<u8>,
}

/// What the target says of itself.
struct Known {
    buffers: usize,
    sectors_max: usize,
}

/// A response's tag, and whether it says that the command went well.
struct Answer {
    tag: u32,
    good: bool,
    data_len: usize,
}

impl Wire {
    fn header(&self, command: u8, tag: u32, out: &mut Vec<u8>) {
        out.clear();
        out.extend_from_slice(&self.target);
        out.extend_from_slice(&self.address);
        out.extend_from_slice(&ETHER_TYPE);
        out.extend_from_slice(&[VERSION, 0]);
        out.extend_from_slice(&self.place.shelf.to_be_bytes());
        out.extend_from_slice(&[self.place.slot, command]);
        out.extend_from_slice(&tag.to_be_bytes());
    }

    /// Finds the target, by a broadcast, and what it can.
    fn ask(&mut self) -> Result<Known, Failure> {
        let mut question = Vec::new();
        for _ in 0..SILENCES_MAX {
            self.header(COMMAND_CONFIG, 1, &mut question);
            question.extend_from_slice(&[0; 8]);
            self.socket.write_all(&question)?;
            while let Some(frame) = self.receive()? {
                let payload = frame.get(ETHERNET_LEN..).unwrap_or_default();
                if payload.get(5) == Some(&COMMAND_CONFIG) {
                    let source = frame.get(6..12).unwrap_or_default().try_into()?;
                    let buffers =
                        payload.get(10..12).unwrap_or_default().try_into().map(u16::from_be_bytes)?;
                    let sectors_max = usize::from(payload.get(14).copied().unwrap_or_default());
                    self.target = source;
                    return Ok(Known { buffers: buffers.into(), sectors_max });
                }
            }
        }
        Err("no such shelf and slot answers".into())
    }

    /// The next response of our target; none when the time that the socket waits is over.
    fn receive(&mut self) -> Result<Option<&[u8]>, Failure> {
        loop {
            let len = match self.socket.read(&mut self.received) {
                Ok(len) => len,
                Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {
                    return Ok(None);
                }
                Err(error) if error.kind() == ErrorKind::Interrupted => continue,
                Err(error) => return Err(error.into()),
            };
            let frame = self.received.get(..len).unwrap_or_default();
            let shelf = self.place.shelf.to_be_bytes();
            let ours = frame.len() >= ETHERNET_LEN + AOE_LEN
                && frame.get(..6) == Some(&self.address)
                && frame.get(14).is_some_and(|flags| flags & RESPONSE != 0)
                && frame.get(16..18) == Some(&shelf)
                && frame.get(18) == Some(&self.place.slot);
            if ours {
                return Ok(self.received.get(..len));
            }
        }
    }

    fn answer(&mut self) -> Result<Option<Answer>, Failure> {
        let Some(frame) = self.receive()? else { return Ok(None) };
        let payload = frame.get(ETHERNET_LEN..).unwrap_or_default();
        let tag = payload.get(6..AOE_LEN).unwrap_or_default().try_into().map(u32::from_be_bytes)?;
        let failed = payload.first().is_some_and(|flags| flags & ERROR != 0)
            || payload.get(AOE_LEN + 3).is_none_or(|status| status & ATA_ERRORS != 0);
        let data_len = payload.len().saturating_sub(AOE_LEN + ATA_LEN);
        Ok(Some(Answer { tag, good: !failed, data_len }))
    }
}

struct Load {
    direction: Direction,
    request_sectors: usize,
    depth: usize,
    random: bool,
    disk_sectors: u64,
    span: Duration,
}

impl Load {
    fn requests(&self) -> u64 {
        self.disk_sectors.checked_div(u64::try_from(self.request_sectors).unwrap_or(1)).unwrap_or(0)
    }
}

/// A command: a part of a request that a frame holds.
#[derive(Clone, Copy)]
struct Part {
    request: u64,
    lba: u64,
    sectors: usize,
    sent: Option<Instant>,
}

struct Run {
    wire: Wire,
    load: Load,
    /// How many sectors one frame moves at most, and how many frames are under way.
    sectors: usize,
    buffers: usize,
    next_request: u64,
    next_tag: u32,
    seed: u64,
    /// Begun requests: when, and how many parts are missing.
    requests: BTreeMap<u64, (Instant, usize)>,
    waiting: VecDeque<Part>,
    under_way: BTreeMap<u32, Part>,
    latencies_ns: Vec<u64>,
    again: u64,
    elapsed: Duration,
    frame: Vec<u8>,
}

impl Run {
    fn new(wire: Wire, load: Load, sectors: usize, buffers: usize) -> Self {
        Self {
            wire,
            load,
            sectors,
            buffers,
            next_request: 0,
            next_tag: 2,
            seed: 0x9e37_79b9_7f4a_7c15,
            requests: BTreeMap::new(),
            waiting: VecDeque::new(),
            under_way: BTreeMap::new(),
            latencies_ns: Vec::new(),
            again: 0,
            elapsed: Duration::ZERO,
            frame: Vec::new(),
        }
    }

    fn whole(&mut self) -> Result<(), Failure> {
        let began = Instant::now();
        let mut silences = 0;
        loop {
            while began.elapsed() < self.load.span && self.requests.len() < self.load.depth {
                self.begin();
            }
            while self.under_way.len() < self.buffers {
                let Some(part) = self.waiting.pop_front() else { break };
                self.send(part)?;
            }
            if self.requests.is_empty() {
                self.elapsed = began.elapsed();
                return Ok(());
            }
            match self.wire.answer()? {
                Some(answer) => {
                    silences = 0;
                    self.take(&answer)?;
                }
                None => {
                    silences += 1;
                    if silences > SILENCES_MAX {
                        return Err("the target does not answer any more".into());
                    }
                    self.give_up_old();
                }
            }
        }
    }

    /// Begins a request.
    fn begin(&mut self) {
        let requests = self.load.requests().max(1);
        let place = if self.load.random {
            // xorshift64: any spread will do.
            self.seed ^= self.seed << 13;
            self.seed ^= self.seed >> 7;
            self.seed ^= self.seed << 17;
            self.seed.checked_rem(requests).unwrap_or(0)
        } else {
            self.next_request.checked_rem(requests).unwrap_or(0)
        };
        let request = self.next_request;
        self.next_request += 1;
        let mut lba = place.saturating_mul(u64::try_from(self.load.request_sectors).unwrap_or(0));
        let (mut left, mut parts) = (self.load.request_sectors, 0);
        while left > 0 {
            let sectors = left.min(self.sectors.max(1));
            self.waiting.push_back(Part { request, lba, sectors, sent: None });
            lba = lba.saturating_add(u64::try_from(sectors).unwrap_or(0));
            left -= sectors;
            parts += 1;
        }
        self.requests.insert(request, (Instant::now(), parts));
    }

    fn send(&mut self, part: Part) -> Result<(), Failure> {
        let tag = self.next_tag;
        // The highest bit marks messages that the target begins.
        self.next_tag = self.next_tag.wrapping_add(1) & 0x7fff_ffff;
        self.wire.header(COMMAND_ATA, tag, &mut self.frame);
        let (flags, command) = match self.load.direction {
            Direction::Read => (ATA_EXTENDED, READ_EXT),
            Direction::Write => (ATA_EXTENDED | ATA_WRITE, WRITE_EXT),
        };
        self.frame.extend_from_slice(&[flags, 0, u8::try_from(part.sectors)?, command]);
        self.frame.extend_from_slice(part.lba.to_le_bytes().get(..6).unwrap_or_default());
        self.frame.extend_from_slice(&[0, 0]);
        if self.load.direction == Direction::Write {
            self.frame.resize(self.frame.len().saturating_add(part.sectors.saturating_mul(SECTOR)), 0x5a);
        }
        self.wire.socket.write_all(&self.frame)?;
        self.under_way.insert(tag, Part { sent: Some(Instant::now()), ..part });
        Ok(())
    }

    fn take(&mut self, answer: &Answer) -> Result<(), Failure> {
        // One that was given up and sent again.
        let Some(part) = self.under_way.remove(&answer.tag) else { return Ok(()) };
        if !answer.good {
            return Err("a command fails".into());
        }
        if self.load.direction == Direction::Read && answer.data_len < part.sectors.saturating_mul(SECTOR) {
            return Err("an answer has too little data".into());
        }
        if let Some((began, missing)) = self.requests.get_mut(&part.request) {
            *missing = missing.saturating_sub(1);
            if *missing == 0 {
                self.latencies_ns.push(u64::try_from(began.elapsed().as_nanos()).unwrap_or(u64::MAX));
                self.requests.remove(&part.request);
            }
        }
        Ok(())
    }

    fn give_up_old(&mut self) {
        let old: Vec<u32> = self
            .under_way
            .iter()
            .filter(|(_, part)| part.sent.is_some_and(|sent| sent.elapsed() >= PATIENCE))
            .map(|(tag, _)| *tag)
            .collect();
        for part in old.into_iter().filter_map(|tag| self.under_way.remove(&tag)) {
            self.again += 1;
            self.waiting.push_front(part);
        }
    }

    fn print(&mut self) {
        self.latencies_ns.sort_unstable();
        let count = self.latencies_ns.len();
        let us = |percent: usize| {
            let ns = self.latencies_ns.get((count * percent / 100).min(count.saturating_sub(1))).copied();
            Duration::from_nanos(ns.unwrap_or(0)).as_secs_f64() * 1e6
        };
        println!(
            "{{\"completed\": {count}, \"seconds\": {:.6}, \"p50_us\": {:.1}, \"p99_us\": {:.1}, \"sent_again\": {}, \
             \"sectors_per_frame\": {}, \"buffers\": {}}}",
            self.elapsed.as_secs_f64(),
            us(50),
            us(99),
            self.again,
            self.sectors,
            self.buffers
        );
    }
}

fn mac(text: &str) -> Result<[u8; 6], Failure> {
    let bytes: Vec<u8> =
        text.split(':').map(|byte| u8::from_str_radix(byte, 16)).collect::<Result<_, _>>()?;
    bytes.try_into().map_err(|_| format!("{text} is no address").into())
}
