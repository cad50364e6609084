//! Damages PDUs between an initiator and a target in memory, one at a time, and counts what the digests
//! detect.
//!
//! A trial is one READ or WRITE of signed blocks with exactly one damaged PDU. The faults are those of the
//! experiment `targe lab risk`. Here both ends can be seen from inside, so that nothing has to be guessed:
//! the wire counts the PDUs that it damaged, and each trial whose PDU was damaged is either detected or
//! silent. Blocks are judged by comparing all that a trial could have touched with what it must contain.
//!
//! Duplicates are left out: a PDU that arrives twice is not corrupted, and its digests are right.

mod pair;
#[cfg(test)]
mod tests;

use std::fmt;
use std::ops::Range;

use base::buffer::{Bytes, DataList};
use base::rng::Rng;
use base::time::Instant;
use base::units::BlockSize;
use iscsi::initiator::contract::SessionStats;
use iscsi::target::engine::EngineStats;
use lab::corrupter::fault::{Confinement, Damage, Fault as ArmedFault, Injection, PduClass, Place};
use lab::plan::Digests;
use lab::risk::plan::{FAULTS, Fault};
use lab::risk::region::Region;
use oracle::block_header::DeviceId;
use transport::command::Cdb;
use transport::initiator::{Outcome, Request, Residual, TaskResult};

use crate::scenario::Scenario;
use pair::{DATA_IN_MAX, Ended, Medium, Pair, PairPlan};

/// The number of damaged PDUs of each kind of trial that one cell counts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tally {
    /// PDUs that the wire damaged.
    pub injected: u64,
    /// Trials with a damaged PDU in which an end reacted to an error, or the command failed.
    pub detected: u64,
    /// Detected trials in which a digest was wrong.
    pub by_digest: u64,
    /// Detected trials without a wrong digest in which the PDU claimed a longer header than it had
    /// (TotalAHSLength): the receiver waited for the rest and for the digest behind it, until a timeout.
    pub by_timeout: u64,
    /// Detected trials that ended with GOOD and the right data all the same.
    pub recovered: u64,
    /// Trials with a damaged PDU in which no end noticed anything, and the command ended with GOOD.
    pub silent: u64,
    /// Trials after which data that was read, or a block on the medium, was wrong, and nobody was told.
    pub wrong: u64,
    /// Wrong blocks at the end that no trial explains.
    pub unexplained: u64,
    /// Internal errors of the state machines.
    pub bugs: u64,
}

/// A combination of digests and ErrorRecoveryLevel, and how many PDUs are damaged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cell {
    /// The digests of the session.
    pub digests: Digests,
    /// The ErrorRecoveryLevel.
    pub erl: u8,
    /// The number of PDUs to damage.
    pub pdus: u64,
    /// The seed of all random choices.
    pub seed: u64,
}

/// Damages as many PDUs as the cell asks for.
pub fn run(cell: Cell) -> Tally {
    let mut tally = Tally::default();
    // Half of the trials of a WRITE send its data in the command PDU, and half in Data-Out PDUs.
    for immediate in [true, false] {
        let pdus = if immediate { cell.pdus / 2 } else { cell.pdus - cell.pdus / 2 };
        let mut bench = Bench::new(cell, immediate);
        bench.run(pdus);
        tally.add(bench.end());
    }
    tally
}

/// Returns why the counts of a cell are not what digests promise.
pub fn violation(cell: &Cell, tally: &Tally) -> Option<String> {
    if tally.injected != cell.pdus || tally.injected != tally.detected + tally.silent {
        return Some("the injected faults are not exactly those that were detected or silent".to_owned());
    }
    if tally.bugs > 0 {
        return Some("a state machine found an internal error".to_owned());
    }
    let is_whole = tally.silent + tally.wrong + tally.unexplained == 0;
    match cell.digests {
        Digests::Both if !is_whole => Some("both digests missed something".to_owned()),
        Digests::Both if tally.by_digest + tally.by_timeout != tally.injected => {
            Some("a fault was detected without a digest error, and not because of a header length".to_owned())
        }
        Digests::None if tally.silent == 0 || tally.wrong == 0 => {
            Some("without digests nothing was silent: the faults damage nothing".to_owned())
        }
        Digests::None if tally.by_digest > 0 => Some("a digest error without digests".to_owned()),
        _ => None,
    }
}

/// The length of a logical block, and of the medium, in bytes.
const BLOCK_SIZE: BlockSize = BlockSize::B512;
const MEDIUM_LEN: u64 = 1 << 20;

/// The lengths of commands, in blocks.
const LENGTHS: [u64; 3] = [1, 3, 8];

/// How often a command is repeated that ends with a unit attention.
const ATTEMPTS_MAX: u32 = 4;

/// After this many trials without a PDU that fits, the faults and the commands do not go together.
const MISSES_MAX: u32 = 1000;

struct Bench {
    plan: PairPlan,
    scenario: Scenario,
    medium: Medium,
    region: Region,
    faults: Vec<&'static Fault>,
    rng: Rng,
    pair: Pair,
    tally: Tally,
}

/// The counters of both ends.
#[derive(Clone, Copy)]
struct Counters {
    session: SessionStats,
    target: EngineStats,
}

impl Bench {
    fn new(cell: Cell, immediate: bool) -> Self {
        let plan = PairPlan { digests: cell.digests, erl: cell.erl, immediate };
        let mut rng = Rng::from_seed(cell.seed ^ u64::from(immediate));
        let scenario = Scenario { block_size: BLOCK_SIZE, ..Scenario::of(0, false) };
        let medium = Medium::new(MEDIUM_LEN);
        let block_len = usize::try_from(BLOCK_SIZE.bytes()).unwrap();
        let blocks = 0..MEDIUM_LEN / u64::from(BLOCK_SIZE.bytes());
        let region = Region::new(DeviceId(rng.next_u64()), block_len, &blocks);
        medium.write(0, &region.content(&blocks));
        let pair = Pair::new(plan, &medium, &scenario, Instant::ORIGIN);
        let fits =
            |fault: &&Fault| fault.damage != Damage::Duplicate && !(immediate && fault.needs_data_out());
        let faults = FAULTS.iter().filter(fits).collect();
        let mut bench = Self { plan, scenario, medium, region, faults, rng, pair, tally: Tally::default() };
        bench.probe();
        bench
    }

    fn run(&mut self, pdus: u64) {
        let (mut number, mut misses) = (0, 0);
        while self.tally.injected < pdus {
            let fault = self.faults[number % self.faults.len()];
            number += 1;
            if self.trial(fault) {
                misses = 0;
            } else {
                misses += 1;
                assert!(misses < MISSES_MAX, "no PDU fits {}", fault.name);
            }
        }
    }

    /// Compares the whole medium with what it must contain, and returns the counts.
    fn end(mut self) -> Tally {
        let whole = self.medium.contents(0, usize::try_from(MEDIUM_LEN).unwrap());
        self.tally.unexplained += u64::try_from(self.region.wrong_blocks(0, &whole).len()).unwrap();
        self.count_bugs();
        self.tally
    }

    /// Runs one trial, and leaves all blocks right. Returns whether a PDU was damaged.
    fn trial(&mut self, fault: &Fault) -> bool {
        let count = LENGTHS[usize::try_from(self.rng.below(3)).unwrap()];
        let end = self.region.blocks().end;
        let first = self.rng.below(end - count + 1);
        let blocks = first..first + count;
        if fault.is_write {
            self.region.renew(&blocks);
        }
        let before = self.counters();
        let armed = self.armed(fault, count);
        let damaged_before = self.pair.wire.damaged;
        self.pair.wire.arm(armed);
        let result = self.command(fault.is_write, &blocks);
        // Effects that follow the status belong to this trial: both ends process this command after them.
        let is_up = result.is_some() && self.probe();
        let injection = self.pair.wire.disarm();
        let after = self.counters();
        let injected = self.pair.wire.damaged - damaged_before;
        if !is_up {
            self.replace_pair();
        }
        let Some(injection) = injection else {
            assert_eq!(injected, 0, "the wire damaged a PDU and does not say how");
            // A WRITE that had no fault must have worked.
            assert!(is_up, "a command without a fault failed: {}", fault.name);
            return false;
        };
        let data = result.flatten();
        let is_good = is_up && data.is_some();
        let is_wrong = self.judge(fault.is_write, &blocks, data.as_deref().filter(|_| is_up), &injection);
        let (by_digest, reacted) = (after.digest_errors(&before), after.reactions(&before));
        self.tally.injected += injected;
        self.tally.by_digest += u64::from(by_digest);
        self.tally.by_timeout += u64::from(!by_digest && grows_header(&injection));
        self.tally.wrong += u64::from(is_wrong);
        if is_good && !by_digest && !reacted {
            self.tally.silent += 1;
        } else {
            self.tally.detected += 1;
            self.tally.recovered += u64::from(is_good && !is_wrong);
        }
        true
    }

    /// Executes a READ or WRITE. Returns what was read, empty for a WRITE; an inner `None` if the command
    /// failed, and an outer one if the session did.
    fn command(&mut self, is_write: bool, blocks: &Range<u64>) -> Option<Option<Vec<u8>>> {
        let count = blocks.end - blocks.start;
        let len = usize::try_from(count * u64::from(BLOCK_SIZE.bytes())).unwrap();
        let mut cdb = [0; 16];
        cdb[0] = if is_write { WRITE_16 } else { READ_16 };
        cdb[2..10].copy_from_slice(&blocks.start.to_be_bytes());
        cdb[10..14].copy_from_slice(&u32::try_from(count).unwrap().to_be_bytes());
        let mut request = Request::new(0, Cdb::from_16(cdb));
        // As the initiator library does with reads and writes.
        request.replay = true;
        if is_write {
            let mut data = DataList::new();
            data.push(Bytes::copied_from(&self.region.content(blocks)));
            request.data_out = data;
        } else {
            request.data_in_len = u32::try_from(len).unwrap();
        }
        let Outcome { end, data_in, .. } = self.repeated(&request)?;
        let data = self.taken(data_in);
        let TaskResult::Status(response) = end else { return Some(None) };
        let wanted = if is_write { 0 } else { len };
        let is_complete = response.status == transport::status::GOOD
            && response.residual == Residual::None
            && data.len() == wanted;
        Some(is_complete.then_some(data))
    }

    /// Executes a command, and again if it ends with a unit attention, as a SCSI layer does.
    fn repeated(&mut self, request: &Request) -> Option<Outcome> {
        for _ in 1..ATTEMPTS_MAX {
            let Ended::Outcome(outcome) = self.pair.run(request.clone()) else { return None };
            if !is_unit_attention(&outcome) {
                return Some(outcome);
            }
            self.taken(outcome.data_in);
        }
        match self.pair.run(request.clone()) {
            Ended::Outcome(outcome) => Some(outcome),
            Ended::Timeout => None,
        }
    }

    /// Copies what a command returned, and gives its buffer back.
    fn taken(&self, data_in: Option<Bytes>) -> Vec<u8> {
        let data = data_in.as_ref().map(|data| data.to_vec()).unwrap_or_default();
        data_in.into_iter().for_each(|buffer| self.pair.recycle(buffer));
        data
    }

    /// Executes TEST UNIT READY. Returns whether it ended with GOOD.
    fn probe(&mut self) -> bool {
        let mut request = Request::new(0, Cdb::from_16([0; 16]));
        request.replay = true;
        self.repeated(&request).is_some_and(|outcome| outcome.end.is_good())
    }

    /// Finds wrong blocks of which nobody was told, and makes all blocks right that the trial could have
    /// touched. `data` is what the command returned, if it ended well.
    fn judge(&self, is_write: bool, blocks: &Range<u64>, data: Option<&[u8]>, injection: &Injection) -> bool {
        let mut is_wrong = false;
        if let Some(data) = data.filter(|_| !is_write) {
            is_wrong |= !self.region.wrong_blocks(blocks.start, data).is_empty();
        }
        if is_write {
            // The owner of a command that failed knows that its blocks may contain anything.
            is_wrong |= self.repaired(blocks) > 0 && data.is_some();
        }
        if let Some(victims) = injection.misdirected.as_ref().filter(|victims| !victims.is_empty()) {
            let outside =
                [victims.start..victims.end.min(blocks.start), victims.start.max(blocks.end)..victims.end];
            let parts = if is_write { outside.to_vec() } else { vec![victims.clone()] };
            for part in parts.iter().filter(|part| part.start < part.end) {
                is_wrong |= self.repaired(part) > 0;
            }
        }
        is_wrong
    }

    /// Makes blocks of the medium right. Returns how many were wrong.
    fn repaired(&self, blocks: &Range<u64>) -> usize {
        let block_len = u64::from(BLOCK_SIZE.bytes());
        let len = usize::try_from((blocks.end - blocks.start) * block_len).unwrap();
        let wrong =
            self.region.wrong_blocks(blocks.start, &self.medium.contents(blocks.start * block_len, len));
        for lba in &wrong {
            self.medium.write(lba * block_len, &self.region.content(&(*lba..lba + 1)));
        }
        wrong.len()
    }

    fn armed(&mut self, fault: &Fault, count: u64) -> ArmedFault {
        let in_command =
            self.plan.immediate && fault.class == PduClass::DataOut && fault.place == Place::Data;
        let pdus = match fault.class {
            PduClass::DataIn => (count * u64::from(BLOCK_SIZE.bytes())).div_ceil(DATA_IN_MAX.into()),
            _ => 1,
        };
        ArmedFault {
            class: if in_command { PduClass::Command } else { fault.class },
            place: fault.place,
            damage: fault.damage,
            skip: u32::try_from(self.rng.below(pdus)).unwrap(),
            seed: self.rng.next_u64(),
            confinement: Confinement { blocks: self.region.blocks(), capacity: self.region.blocks().end },
            reseal: false,
        }
    }

    /// Ends a session that no longer works, and its target, and begins with new ones on the same medium.
    fn replace_pair(&mut self) {
        self.count_bugs();
        let now = self.pair.now();
        self.pair = Pair::new(self.plan, &self.medium, &self.scenario, now);
        assert!(self.probe(), "a new session does not work");
    }

    fn counters(&self) -> Counters {
        Counters { session: self.pair.session_stats(), target: self.pair.target_stats() }
    }

    fn count_bugs(&mut self) {
        let Counters { session, target } = self.counters();
        self.tally.bugs += session.bugs + target.bugs;
    }
}

impl Counters {
    /// Returns whether an end found a wrong digest since `before`.
    const fn digest_errors(&self, before: &Self) -> bool {
        const fn sum(counters: &Counters) -> u64 {
            let (session, target) = (&counters.session, &counters.target);
            session.header_digest_errors
                + session.data_digest_errors
                + target.header_digest_errors
                + target.data_digest_errors
        }
        sum(self) > sum(before)
    }

    /// Returns whether an end reacted to any other error since `before`.
    const fn reactions(&self, before: &Self) -> bool {
        const fn sum(counters: &Counters) -> u64 {
            let (session, target) = (&counters.session, &counters.target);
            session.data_snacks
                + session.status_snacks
                + session.retries
                + session.rejects
                + session.reassigns
                + session.replays
                + session.connections_lost
                + session.sessions_rebuilt
                + session.sessions_continued
                + target.rejects
                + target.ignored
                + target.snacks
                + target.recovery_r2ts
                + target.data_late
                + target.dropped
        }
        sum(self) > sum(before)
    }
}

impl Tally {
    /// Adds the counts of other trials.
    pub const fn add(&mut self, other: Self) {
        self.injected += other.injected;
        self.detected += other.detected;
        self.by_digest += other.by_digest;
        self.by_timeout += other.by_timeout;
        self.recovered += other.recovered;
        self.silent += other.silent;
        self.wrong += other.wrong;
        self.unexplained += other.unexplained;
        self.bugs += other.bugs;
    }
}

impl fmt::Display for Tally {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} PDUs damaged = {} detected ({} by a digest, {} by waiting for a header, {} recovered) + {} silent; {} \
             wrong and nobody was told, {} blocks wrong at the end",
            self.injected,
            self.detected,
            self.by_digest,
            self.by_timeout,
            self.recovered,
            self.silent,
            self.wrong,
            self.unexplained
        )
    }
}

impl fmt::Display for Cell {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "digests {}, ErrorRecoveryLevel {}", self.digests.name(), self.erl)
    }
}

/// Returns whether a fault made TotalAHSLength larger.
fn grows_header(injection: &Injection) -> bool {
    let byte =
        |bytes: &[u8]| TOTAL_AHS_LENGTH.checked_sub(injection.offset).and_then(|at| bytes.get(at).copied());
    byte(&injection.after) > byte(&injection.before)
}

/// The offset of TotalAHSLength in a PDU (RFC 7143 §11.2.1.5).
const TOTAL_AHS_LENGTH: usize = 4;

const READ_16: u8 = 0x88;
const WRITE_16: u8 = 0x8a;
const CHECK_CONDITION: u8 = 0x02;
const UNIT_ATTENTION: u8 = 0x06;

fn is_unit_attention(outcome: &Outcome) -> bool {
    let TaskResult::Status(response) = &outcome.end else { return false };
    let key = response.sense.as_deref().and_then(|sense| match sense.first()? & 0x7f {
        0x70 | 0x71 => sense.get(2),
        _ => sense.get(1),
    });
    response.status == CHECK_CONDITION && key.is_some_and(|key| key & 0x0f == UNIT_ATTENTION)
}
