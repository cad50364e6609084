//! Tells the oracle what is asked of the units and what they answer, and collects what it finds wrong.

use std::collections::BTreeMap;

use base::units::Lba;
use oracle::history::{Change, Content, End, Finding, FlushId, History, Initially, OpId, ReadId};
use oracle::stamp::DeviceId;

use crate::fabric::{Ended, Ticket};

/// What an order means to the blocks.
#[derive(Clone, Debug)]
pub enum Meaning {
    /// It reads blocks.
    Read {
        /// The unit.
        unit: u16,
        /// The first block.
        lba: Lba,
        /// How many.
        blocks: u64,
    },
    /// It changes blocks.
    Change(Vec<Change>),
    /// It changes blocks if they hold this.
    CompareAndWrite(Change, Vec<Content>),
    /// It compares blocks with this.
    Verify {
        /// The unit.
        unit: u16,
        /// The first block.
        lba: Lba,
        /// What they are to hold.
        expected: Vec<Content>,
    },
    /// It makes every earlier write durable.
    Flush(u16),
    /// Nothing.
    Nothing,
}

/// What is open at the oracle for one order.
#[derive(Debug)]
enum Job {
    Read(ReadId, u64),
    Change(Vec<OpId>),
    CompareAndWrite(OpId, ReadId, Lba, Vec<Content>),
    Verify(ReadId, Lba, Vec<Content>),
    Flush(FlushId),
    Nothing,
}

/// The desk.
#[derive(Debug)]
pub struct Desk {
    history: History,
    devices: Vec<DeviceId>,
    block_len: usize,
    jobs: BTreeMap<Ticket, Job>,
    /// Changes whose end nobody knows, by initiator.
    lost: BTreeMap<usize, Vec<OpId>>,
    findings: Vec<Finding>,
    /// How the orders ended: done, failed, refused, unknown.
    ends: [u64; 4],
    judged: u64,
}

impl Desk {
    /// Opens a desk for units of zeros.
    pub const fn new(devices: Vec<DeviceId>, block_len: usize, tears: bool) -> Self {
        Self {
            history: History::new(Initially::Zero, tears),
            devices,
            block_len,
            jobs: BTreeMap::new(),
            lost: BTreeMap::new(),
            findings: Vec::new(),
            ends: [0; 4],
            judged: 0,
        }
    }

    /// Returns the oracle's name of a unit.
    pub fn device(&self, unit: u16) -> DeviceId {
        self.devices[usize::from(unit)]
    }

    /// Returns the oracle.
    pub const fn history(&self) -> &History {
        &self.history
    }

    /// Takes note that an order is about to be submitted.
    pub fn submitted(&mut self, ticket: Ticket, meaning: Meaning) {
        let job = match meaning {
            Meaning::Read { unit, lba, blocks } => {
                Job::Read(self.history.read_begin(self.device(unit), lba, blocks), blocks)
            }
            Meaning::Change(changes) => {
                Job::Change(changes.into_iter().map(|change| self.history.submit(change)).collect())
            }
            Meaning::CompareAndWrite(change, expected) => {
                let read = self.history.read_begin(change.device, change.lba, change.blocks);
                Job::CompareAndWrite(self.history.submit(change), read, change.lba, expected)
            }
            Meaning::Verify { unit, lba, expected } => {
                let blocks = u64::try_from(expected.len()).unwrap_or(0);
                Job::Verify(self.history.read_begin(self.device(unit), lba, blocks), lba, expected)
            }
            Meaning::Flush(unit) => Job::Flush(self.history.flush_begin(self.device(unit))),
            Meaning::Nothing => Job::Nothing,
        };
        self.jobs.insert(ticket, job);
    }

    /// Takes note of how an order ended.
    pub fn ended(&mut self, initiator: usize, ticket: Ticket, ended: &Ended) {
        let end = end_of(ended);
        self.ends[end as usize] += 1;
        let Some(job) = self.jobs.remove(&ticket) else { return };
        match job {
            Job::Read(read, blocks) => match ended {
                Ended::Status { status: GOOD, data, .. } => self.read(read, blocks, data),
                _ => self.history.read_failed(read),
            },
            Job::Change(ops) => {
                // A write that is verified was written before it was found to differ.
                let written = sense_key(ended) == Some(MISCOMPARE);
                let end = if written { End::Failed } else { end };
                for op in ops {
                    self.end(initiator, op, end);
                }
            }
            Job::CompareAndWrite(op, read, lba, expected) => {
                self.compared(read, lba, &expected, ended, Some(op));
                self.end(initiator, op, end);
            }
            Job::Verify(read, lba, expected) => self.compared(read, lba, &expected, ended, None),
            Job::Flush(flush) if end == End::Done => self.history.flush_end(flush),
            Job::Flush(_) | Job::Nothing => {}
        }
    }

    /// Takes note that nothing that an initiator lost can be carried out any more.
    pub fn lost_is_gone(&mut self, initiator: usize) {
        for op in self.lost.remove(&initiator).unwrap_or_default() {
            self.history.gone(op);
        }
    }

    /// Takes note that the target and its media lost power.
    pub fn crashed(&mut self) {
        for device in self.devices.clone() {
            self.history.crash(device);
        }
    }

    /// Judges blocks that were read past everything else.
    pub fn inspect(&mut self, unit: u16, lba: Lba, data: &[u8]) {
        let blocks = u64::try_from(data.len() / self.block_len).unwrap_or(0);
        let read = self.history.read_begin(self.device(unit), lba, blocks);
        self.read(read, blocks, data);
    }

    /// Takes what was found wrong.
    pub fn take_findings(&mut self) -> Vec<Finding> {
        std::mem::take(&mut self.findings)
    }

    /// Returns how many orders are open.
    pub fn open(&self) -> usize {
        self.jobs.len()
    }

    /// Returns how orders ended (done, failed, refused, unknown), and how many blocks were judged.
    pub const fn tally(&self) -> ([u64; 4], u64) {
        (self.ends, self.judged)
    }

    fn read(&mut self, read: ReadId, blocks: u64, data: &[u8]) {
        assert_eq!(
            data.len(),
            usize::try_from(blocks).unwrap() * self.block_len,
            "a read gave less than it said"
        );
        self.judged += blocks;
        let findings = self.history.read_end(read, self.block_len, data);
        self.findings.extend(findings);
    }

    /// GOOD says that all blocks held what was expected; MISCOMPARE says little, since it tells of the first byte only.
    fn compared(
        &mut self,
        read: ReadId,
        first: Lba,
        expected: &[Content],
        ended: &Ended,
        except: Option<OpId>,
    ) {
        let matched = end_of(ended) == End::Done;
        let miscompared = matches!(sense_key(ended), Some(MISCOMPARE));
        if matched || (miscompared && expected.len() == 1) {
            for (lba, content) in (first.0..).zip(expected) {
                let finding = self.history.compared(read, Lba(lba), *content, matched, except);
                self.findings.extend(finding);
                self.judged += 1;
            }
        }
        self.history.read_failed(read);
    }

    fn end(&mut self, initiator: usize, op: OpId, end: End) {
        self.history.end(op, end);
        if end == End::Unknown {
            self.lost.entry(initiator).or_default().push(op);
        }
    }
}

const GOOD: u8 = 0x00;
const CHECK_CONDITION: u8 = 0x02;
const BUSY: u8 = 0x08;
const RESERVATION_CONFLICT: u8 = 0x18;
const TASK_SET_FULL: u8 = 0x28;

const NOT_READY: u8 = 0x2;
const ILLEGAL_REQUEST: u8 = 0x5;
const UNIT_ATTENTION: u8 = 0x6;
const DATA_PROTECT: u8 = 0x7;
const MISCOMPARE: u8 = 0xe;

/// Returns what an end says of the blocks.
fn end_of(ended: &Ended) -> End {
    match ended {
        Ended::Status { status: GOOD, .. } => End::Done,
        Ended::Status { status: BUSY | RESERVATION_CONFLICT | TASK_SET_FULL, .. } | Ended::Refused => {
            End::Refused
        }
        Ended::Status { status: CHECK_CONDITION, .. } => match sense_key(ended) {
            // Conditions that are found before anything is done.
            Some(NOT_READY | ILLEGAL_REQUEST | UNIT_ATTENTION | DATA_PROTECT | MISCOMPARE) => End::Refused,
            _ => End::Failed,
        },
        Ended::Status { .. } | Ended::Failed | Ended::Aborted => End::Failed,
        Ended::Lost => End::Unknown,
    }
}

fn sense_key(ended: &Ended) -> Option<u8> {
    match ended {
        Ended::Status { status: CHECK_CONDITION, sense, .. } => match sense.first()? & 0x7f {
            0x70 | 0x71 => sense.get(2).map(|byte| byte & 0xf),
            _ => sense.get(1).map(|byte| byte & 0xf),
        },
        _ => None,
    }
}
