//! Streams records to or from one unit of any target, by raw commands, for `bench/tape`:
//! `stream tape|disk|disc read|write URL RECORDS DEPTH`.
//!
//! A record has 256 KiB. A tape is rewound first; then come READ(6) or WRITE(6) commands of one
//! variable-length block each, or READ(10) or WRITE(10) commands of a disk with blocks of 512 bytes, or
//! READ(10) commands of a disc. DEPTH commands are under way; a target has to execute those for a tape in
//! order. What was written is made durable by WRITE FILEMARKS(6) without IMMED, or SYNCHRONIZE CACHE(10). The
//! clock runs from the first record to the response of that command. Each record begins with its number,
//! which is checked when it is read.
//!
//! The output is one JSON object: `bytes`, `seconds`, `streamed_s` (until the response to the last record)
//! and `cpu_s`, the processor time of this process meanwhile.
#![allow(clippy::print_stdout, reason = "an example")]

use std::error::Error;
use std::time::{Duration, Instant};

use base::buffer::{Buf, Bytes, DataList};
use base::rng::Rng;
use drivers::config::{Config, SpinMode};
use initiator::driver::{Driver, DriverEvent, SessionId, plan};
use initiator::{Command, CommandError, EnvSecrets, Event, Lun, Reply, Url};
use rustix::time::{ClockId, clock_gettime};
use scsi::block::{read_10, write_10};
use scsi::cdb::Cdb;
use scsi::opcode;

const RECORD_LEN: u32 = 256 << 10;

/// How long any one event may take. A filemark waits for the disk of the target.
const EVENT_MAX: Duration = Duration::from_secs(120);

/// The token of commands that are no records.
const CONTROL: u64 = u64::MAX;

#[derive(Clone, Copy, PartialEq, Eq)]
enum Device {
    Tape,
    Disk,
    Disc,
}

struct Stream {
    driver: Driver,
    session: SessionId,
    lun: Lun,
    device: Device,
    is_write: bool,
    /// The bytes of a record behind its number.
    body: Bytes,
}

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [device, direction, url, records, depth] = arguments.as_slice() else {
        return Err("usage: stream tape|disk|disc read|write URL RECORDS DEPTH".into());
    };
    let (records, depth): (u64, u64) = (records.parse()?, depth.parse()?);
    if records == 0 || depth == 0 {
        return Err("RECORDS and DEPTH are at least 1".into());
    }
    let mut stream = Stream::log_in(device, direction, url, depth)?;
    stream.prepare()?;
    let (start, cpu_start) = (Instant::now(), cpu_time());
    stream.records(records, depth)?;
    let streamed = start.elapsed();
    stream.synchronize()?;
    let (elapsed, spent) = (start.elapsed(), cpu_time().saturating_sub(cpu_start));
    stream.log_out()?;
    println!(
        "{{\"bytes\": {}, \"seconds\": {}, \"streamed_s\": {}, \"cpu_s\": {}}}",
        records * u64::from(RECORD_LEN),
        elapsed.as_secs_f64(),
        streamed.as_secs_f64(),
        spent.as_secs_f64()
    );
    Ok(())
}

impl Stream {
    fn log_in(device: &str, direction: &str, url: &str, depth: u64) -> Result<Self, Box<dyn Error>> {
        let (device, is_write) = match (device, direction) {
            ("tape", "read" | "write") => (Device::Tape, direction == "write"),
            ("disk", "read" | "write") => (Device::Disk, direction == "write"),
            ("disc", "read") => (Device::Disc, false),
            _ => return Err(format!("a {device} cannot be the device of a {direction}").into()),
        };
        let url: Url = url.parse()?;
        let lun = Lun::from_number(url.lun).ok_or("no such LUN")?;
        // Processor time spent on polling would hide what is measured.
        let mut driver = Driver::with_config(&Config { spin_mode: SpinMode::Never, ..Config::default() })?;
        let mut session = plan(&url, &EnvSecrets)?;
        session.want_tasks(usize::try_from(depth)?);
        let session = driver.open(session);
        // No drive can compress it.
        let mut body = Buf::with_capacity(usize::try_from(RECORD_LEN)? - 8);
        let len = usize::try_from(RECORD_LEN)? - 8;
        Rng::from_seed(1).fill(body.spare_mut().get_mut(..len).unwrap_or_default());
        body.advance(len);
        Ok(Self { driver, session, lun, device, is_write, body: body.freeze() })
    }

    /// Waits until the session is up and the unit ready, and rewinds a tape.
    fn prepare(&mut self) -> Result<(), Box<dyn Error>> {
        self.control([opcode::TEST_UNIT_READY, 0, 0, 0, 0, 0, 0, 0, 0, 0])?;
        if self.device == Device::Tape {
            self.control([opcode::REWIND, 0, 0, 0, 0, 0, 0, 0, 0, 0])?;
        }
        Ok(())
    }

    fn records(&mut self, records: u64, depth: u64) -> Result<(), Box<dyn Error>> {
        let mut started = 0;
        while started < records.min(depth) {
            self.start(started)?;
            started += 1;
        }
        for _ in 0..records {
            let (number, result) = self.finished()?;
            self.check(number, result?)?;
            if started < records {
                self.start(started)?;
                started += 1;
            }
        }
        Ok(())
    }

    fn start(&mut self, number: u64) -> Result<(), Box<dyn Error>> {
        let [_, a, b, c] = RECORD_LEN.to_be_bytes();
        let block_len = if self.device == Device::Disc { 2048 } else { 512 };
        let blocks = RECORD_LEN / block_len;
        let lba = || u32::try_from(number * u64::from(blocks));
        let cdb = match (self.device, self.is_write) {
            (Device::Tape, true) => six([opcode::WRITE_6, 0, a, b, c, 0]),
            (Device::Tape, false) => six([opcode::READ_6, 0, a, b, c, 0]),
            (_, true) => write_10(lba()?, u16::try_from(blocks)?, false),
            (_, false) => read_10(lba()?, u16::try_from(blocks)?, false),
        };
        let command = Command::new(self.lun, cdb);
        let command = if self.is_write {
            let mut data = DataList::from(Bytes::copied_from(&number.to_be_bytes()));
            data.push(self.body.clone());
            command.writing(data)
        } else {
            command.reading(RECORD_LEN)
        };
        self.driver.submit(self.session, number, command);
        Ok(())
    }

    fn check(&mut self, number: u64, reply: Reply) -> Result<(), Box<dyn Error>> {
        if self.is_write {
            return Ok(());
        }
        let found = reply.bytes().first_chunk().map(|bytes| u64::from_be_bytes(*bytes));
        if reply.bytes().len() != usize::try_from(RECORD_LEN)? || found != Some(number) {
            let len = reply.bytes().len();
            return Err(format!("record {number} has {len} bytes and the number {found:?}").into());
        }
        if let Some(data) = reply.data {
            self.driver.recycle(data);
        }
        Ok(())
    }

    /// Makes durable what was written.
    fn synchronize(&mut self) -> Result<(), Box<dyn Error>> {
        match (self.is_write, self.device) {
            (false, _) => Ok(()),
            (true, Device::Tape) => self.control([opcode::WRITE_FILEMARKS_6, 0, 0, 0, 1, 0, 0, 0, 0, 0]),
            (true, _) => self.control([opcode::SYNCHRONIZE_CACHE_10, 0, 0, 0, 0, 0, 0, 0, 0, 0]),
        }
    }

    fn control(&mut self, cdb: [u8; 10]) -> Result<(), Box<dyn Error>> {
        let cdb = Cdb::from_bytes(&cdb).ok_or("no CDB")?;
        self.driver.submit(self.session, CONTROL, Command::new(self.lun, cdb).answered_within(EVENT_MAX));
        let (_, result) = self.finished()?;
        result?;
        Ok(())
    }

    fn finished(&mut self) -> Result<(u64, Result<Reply, CommandError>), Box<dyn Error>> {
        loop {
            match self.driver.poll_event() {
                Some(DriverEvent::Finished { token, result, .. }) => return Ok((token, result)),
                Some(DriverEvent::Session { event: Event::Down(why), .. }) => return Err(why.into()),
                Some(_) => {}
                None => self.driver.run_once(Some(EVENT_MAX))?,
            }
        }
    }

    fn log_out(&mut self) -> Result<(), Box<dyn Error>> {
        self.driver.log_out(self.session);
        while !self.driver.all_down() {
            self.driver.run_once(Some(EVENT_MAX))?;
        }
        Ok(())
    }
}

fn six(bytes: [u8; 6]) -> Cdb {
    let [a, b, c, d, e, f] = bytes;
    Cdb::from_16([a, b, c, d, e, f, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0])
}

fn cpu_time() -> Duration {
    let spent = clock_gettime(ClockId::ProcessCPUTime);
    Duration::new(u64::try_from(spent.tv_sec).unwrap_or(0), u32::try_from(spent.tv_nsec).unwrap_or(0))
}
