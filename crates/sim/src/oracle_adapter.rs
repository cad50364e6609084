//! Reports to the oracle every command that is sent to the units and its outcome, and collects the oracle's
//! findings.

use std::collections::BTreeMap;
use std::iter;

use base::time::Instant;
use base::units::Lba;
use oracle::block_header::DeviceId;
use oracle::history::{
    Change, ChangeResult, Content, Finding, FlushId, History, InitialContent, OpId, Planned, ReadId,
};
use oracle::order::TaskPosition;

use crate::compare;
use crate::property::{Property, PropertyViolation};
use oracle::reservations::Attentions;

use crate::reservations::{ReservationJudge, Signature};
use crate::transport::{CommandOutcome, ScsiCommand, Ticket};

/// The effect that a command has on blocks.
#[derive(Clone, Debug)]
pub enum Effect {
    /// The command reads blocks.
    Read {
        /// The unit.
        unit: u16,
        /// The first block.
        lba: Lba,
        /// How many blocks.
        blocks: u64,
    },
    /// The command changes blocks.
    Change(Vec<Change>),
    /// The command changes blocks if they hold these contents.
    CompareAndWrite(Change, Vec<Content>),
    /// The command compares blocks with expected contents.
    Verify {
        /// The unit.
        unit: u16,
        /// The first block.
        lba: Lba,
        /// The contents that the blocks should have.
        expected: Vec<Content>,
    },
    /// The command makes every earlier write durable.
    Flush(u16),
    /// The command has no effect on blocks.
    Nothing,
}

/// The oracle's open operations that belong to one command.
#[derive(Debug)]
enum OpenOp {
    Read(ReadId, u64),
    Change(Vec<OpId>),
    /// A change that its initiator may repeat in a new session.
    Repeatable(Vec<OpId>),
    CompareAndWrite(OpId, ReadId, Lba, Vec<Content>),
    Verify(ReadId, Lba, Vec<Content>),
    Flush(FlushId),
    Nothing,
}

/// How often events happened that the oracle judges.
#[derive(Clone, Copy, Debug)]
struct Counts {
    swapped: u64,
    miscompared: u64,
    ordered: u64,
}

/// The adapter between a world and the oracle.
#[derive(Debug)]
pub struct OracleAdapter {
    history: History,
    devices: Vec<DeviceId>,
    block_len: usize,
    jobs: BTreeMap<Ticket, OpenOp>,
    /// Changes whose outcome is unknown, by initiator.
    lost: BTreeMap<usize, Vec<OpId>>,
    /// The oracle's findings.
    findings: Vec<Finding>,
    broken: Vec<PropertyViolation>,
    /// Whether media corrupt data: a corrupted block may differ from another at any byte.
    expects_corruption: bool,
    /// The judge of reservations, in worlds where reservations may stop commands.
    reservations: Option<ReservationJudge>,
    counts: Counts,
    /// How the commands ended: done, failed, refused, unknown.
    ends: [u64; 4],
    judged: u64,
}

impl OracleAdapter {
    /// Makes an adapter for units that hold zeros.
    pub const fn new(devices: Vec<DeviceId>, block_len: usize, tears: bool) -> Self {
        Self {
            history: History::new(InitialContent::Zero, tears),
            devices,
            block_len,
            jobs: BTreeMap::new(),
            lost: BTreeMap::new(),
            findings: Vec::new(),
            broken: Vec::new(),
            expects_corruption: false,
            reservations: None,
            counts: Counts { swapped: 0, miscompared: 0, ordered: 0 },
            ends: [0; 4],
            judged: 0,
        }
    }

    /// Returns the oracle's identifier of a unit.
    pub fn device(&self, unit: u16) -> DeviceId {
        self.devices[usize::from(unit)]
    }

    /// Returns the oracle.
    pub const fn history(&self) -> &History {
        &self.history
    }

    /// From now on also judges which commands reservations stop.
    pub fn watch_reservations(&mut self) {
        self.reservations = Some(ReservationJudge::new(self.devices.len()));
    }

    /// From now on does not judge the byte at which blocks differ, because media corrupt data.
    pub const fn expect_corruption(&mut self) {
        self.expects_corruption = true;
    }

    /// Returns the judge of reservations. May be called only in worlds with reservations.
    pub fn reservations(&self) -> &ReservationJudge {
        self.reservations.as_ref().expect("reservations are watched where there are any")
    }

    /// Sets the time.
    pub fn at(&mut self, now: Instant) {
        if let Some(judge) = &mut self.reservations {
            judge.at(now);
        }
    }

    /// Records that a signed write takes effect on a medium.
    pub fn took_effect(&mut self, signature: Signature) {
        if let Some(judge) = &mut self.reservations {
            judge.took_effect(signature);
        }
    }

    /// Records that a command is about to be submitted; `place` is its position in its task set, if that is
    /// known.
    pub fn submitted(
        &mut self,
        initiator: usize,
        ticket: Ticket,
        order: &ScsiCommand,
        meaning: Effect,
        place: Option<TaskPosition>,
    ) {
        if let Some(judge) = &mut self.reservations {
            judge.submitted(initiator, ticket, order, signature_of(&meaning));
        }
        let simple = |place: TaskPosition| place.attribute == oracle::order::Attribute::Simple;
        self.counts.ordered += u64::from(place.is_some_and(|place| !simple(place)) && !self.jobs.is_empty());
        let job = match meaning {
            Effect::Read { unit, lba, blocks } => {
                OpenOp::Read(self.history.read_begin_ordered(self.device(unit), lba, blocks, place), blocks)
            }
            Effect::Change(changes) => {
                // A command that its initiator may repeat in a new session takes effect once or twice, and
                // something else may take effect in between: each execution is a change.
                let executions = if order.replay { 2 } else { 1 };
                let changes = changes.into_iter().flat_map(|change| iter::repeat_n(change, executions));
                let ops = changes.map(|change| self.history.submit_ordered(change, place)).collect();
                if order.replay { OpenOp::Repeatable(ops) } else { OpenOp::Change(ops) }
            }
            Effect::CompareAndWrite(change, expected) => {
                let read = self.history.read_begin_ordered(change.device, change.lba, change.blocks, place);
                OpenOp::CompareAndWrite(
                    self.history.submit_ordered(change, place),
                    read,
                    change.lba,
                    expected,
                )
            }
            Effect::Verify { unit, lba, expected } => {
                let blocks = u64::try_from(expected.len()).unwrap_or(0);
                OpenOp::Verify(
                    self.history.read_begin_ordered(self.device(unit), lba, blocks, place),
                    lba,
                    expected,
                )
            }
            Effect::Flush(unit) => OpenOp::Flush(self.history.flush_begin(self.device(unit))),
            Effect::Nothing => OpenOp::Nothing,
        };
        self.jobs.insert(ticket, job);
    }

    /// Records how a command ended.
    pub fn ended(&mut self, initiator: usize, ticket: Ticket, ended: &CommandOutcome) {
        let end = end_of(ended);
        self.ends[end as usize] += 1;
        let excluded = self.reservations.as_mut().is_some_and(|judge| judge.ended(ticket, ended));
        // The status does not say what became of the command, but a reservation stopped it all the time.
        let end = if excluded && end == ChangeResult::Failed { ChangeResult::Refused } else { end };
        let Some(job) = self.jobs.remove(&ticket) else { return };
        match job {
            OpenOp::Read(read, blocks) => match ended {
                CommandOutcome::Status { status: GOOD, data, .. } => self.read(read, blocks, data),
                _ => self.history.read_failed(read),
            },
            OpenOp::Change(ops) => {
                // WRITE AND VERIFY has written before its comparison finds a difference.
                let written = sense_key(ended) == Some(MISCOMPARE);
                let end = if written { ChangeResult::Failed } else { end };
                for op in ops {
                    self.end(initiator, op, end);
                }
            }
            OpenOp::Repeatable(ops) => {
                // The last execution was refused, but an earlier one may have taken effect.
                let end = if end == ChangeResult::Refused { ChangeResult::Failed } else { end };
                for op in ops {
                    self.end(initiator, op, end);
                }
            }
            OpenOp::CompareAndWrite(op, read, lba, expected) => {
                if end == ChangeResult::Done {
                    self.counts.swapped += 1;
                    self.swapped(op, read, lba, &expected);
                } else {
                    self.miscompared(read, lba, &expected, ended, Some(op));
                }
                self.history.read_failed(read);
                if sense_key(ended) == Some(MISCOMPARE) {
                    self.counts.miscompared += 1;
                    self.history.end_miscompared(op);
                } else {
                    self.end(initiator, op, end);
                }
            }
            OpenOp::Verify(read, lba, expected) => {
                if end == ChangeResult::Done {
                    self.matched(read, lba, &expected);
                } else {
                    self.miscompared(read, lba, &expected, ended, None);
                }
                self.history.read_failed(read);
            }
            OpenOp::Flush(flush) if end == ChangeResult::Done => self.history.flush_end(flush),
            OpenOp::Flush(_) | OpenOp::Nothing => {}
        }
    }

    /// Takes the unit attentions that commands have certainly established by changing reservations, with the
    /// command and the unit.
    pub fn take_attentions(&mut self) -> Vec<(Ticket, u16, Attentions)> {
        self.reservations.as_mut().map(ReservationJudge::take_attentions).unwrap_or_default()
    }

    /// Records that no lost command of an initiator can be executed any more.
    pub fn lost_cannot_run(&mut self, initiator: usize) {
        if let Some(judge) = &mut self.reservations {
            judge.lost_cannot_run(initiator);
        }
        for op in self.lost.remove(&initiator).unwrap_or_default() {
            self.history.conclude_unknown(op);
        }
    }

    /// Records that the target and its media lost power.
    pub fn crashed(&mut self) {
        if let Some(judge) = &mut self.reservations {
            judge.crashed();
        }
        for device in self.devices.clone() {
            self.history.crash(device);
        }
    }

    /// Judges blocks that were read directly from a medium, not by a command.
    pub fn inspect(&mut self, unit: u16, lba: Lba, data: &[u8]) {
        let blocks = u64::try_from(data.len() / self.block_len).unwrap_or(0);
        let read = self.history.read_begin(self.device(unit), lba, blocks);
        self.read(read, blocks, data);
    }

    /// Returns the unit with the oracle's identifier.
    pub fn unit_of(&self, device: DeviceId) -> u16 {
        let at = self.devices.iter().position(|known| *known == device).expect("a device of this world");
        u16::try_from(at).unwrap()
    }

    /// Takes the oracle's findings since the last call.
    pub fn take_findings(&mut self) -> Vec<Finding> {
        std::mem::take(&mut self.findings)
    }

    /// Takes the other broken properties that were found since the last call.
    pub fn take_violations(&mut self) -> Vec<PropertyViolation> {
        let mut broken = std::mem::take(&mut self.broken);
        broken.extend(self.reservations.iter_mut().flat_map(ReservationJudge::take_violations));
        broken
    }

    /// Returns how often each event happened that is judged here; zeros included.
    pub fn counts(&self) -> Vec<(&'static str, u64)> {
        let idle = ReservationJudge::new(0);
        let reservations = self.reservations.as_ref().unwrap_or(&idle).counts();
        let own = [
            ("COMPARE AND WRITEs that wrote", self.counts.swapped),
            ("COMPARE AND WRITEs that found something else", self.counts.miscompared),
            ("ORDERED or HEAD OF QUEUE commands beside others", self.counts.ordered),
        ];
        own.into_iter().chain(reservations).collect()
    }

    /// Returns how many commands are open.
    pub fn open(&self) -> usize {
        self.jobs.len()
    }

    /// Returns how commands ended (done, failed, refused, unknown), and how many blocks were judged.
    pub const fn totals(&self) -> ([u64; 4], u64) {
        (self.ends, self.judged)
    }

    fn read(&mut self, read: ReadId, blocks: u64, data: &[u8]) {
        assert_eq!(
            data.len(),
            usize::try_from(blocks).unwrap() * self.block_len,
            "a read gave less than it said"
        );
        self.judged += blocks;
        for finding in self.history.read_end(read, self.block_len, data) {
            self.found(finding);
        }
    }

    fn found(&mut self, finding: Finding) {
        self.findings.push(finding);
    }

    /// A COMPARE AND WRITE ended with GOOD: all blocks held the expected contents at one instant, and no
    /// write took effect between the comparison and its own write.
    fn swapped(&mut self, op: OpId, read: ReadId, first: Lba, expected: &[Content]) {
        for (lba, content) in (first.0..).zip(expected) {
            if let Some(finding) = self.history.judge_compare_and_write(op, read, Lba(lba), *content) {
                self.found(finding);
            }
            self.judged += 1;
        }
    }

    /// All these blocks held the expected contents.
    fn matched(&mut self, read: ReadId, first: Lba, expected: &[Content]) {
        for (lba, content) in (first.0..).zip(expected) {
            self.held(read, Lba(lba), *content, true, None);
        }
    }

    /// A MISCOMPARE reports that one block did not hold the expected content, and that the blocks before it
    /// did.
    fn miscompared(
        &mut self,
        read: ReadId,
        first: Lba,
        expected: &[Content],
        ended: &CommandOutcome,
        except: Option<OpId>,
    ) {
        let CommandOutcome::Status { sense, .. } = ended else { return };
        if sense_key(ended) != Some(MISCOMPARE) {
            return;
        }
        let differs = match compare::first_difference(sense, expected, self.block_len) {
            Ok(Some(at)) => at,
            // The sense data contains no offset: only a single block can be judged.
            Ok(None) if expected.len() == 1 => 0,
            Ok(None) => return,
            Err(_) if self.expects_corruption => return,
            Err(how) => {
                let how = format!("a comparison from {first} on {how}");
                return self.broken.push(PropertyViolation::new(Property::MiscompareOffset, how));
            }
        };
        for (at, content) in expected.iter().enumerate().take(differs + 1) {
            let lba = Lba(first.0 + u64::try_from(at).unwrap());
            self.held(read, lba, *content, at < differs, except);
        }
    }

    fn held(&mut self, read: ReadId, lba: Lba, content: Content, matched: bool, except: Option<OpId>) {
        if let Some(finding) = self.history.judge_compare(read, lba, content, matched, except) {
            self.found(finding);
        }
        self.judged += 1;
    }

    fn end(&mut self, initiator: usize, op: OpId, end: ChangeResult) {
        self.history.end_change(op, end);
        if end == ChangeResult::Unknown {
            self.lost.entry(initiator).or_default().push(op);
        }
    }
}

pub(crate) const GOOD: u8 = 0x00;
const CHECK_CONDITION: u8 = 0x02;
pub(crate) const BUSY: u8 = 0x08;
pub(crate) const RESERVATION_CONFLICT: u8 = 0x18;
pub(crate) const TASK_SET_FULL: u8 = 0x28;
pub(crate) const TASK_ABORTED: u8 = 0x40;

const NOT_READY: u8 = 0x2;
const MEDIUM_ERROR: u8 = 0x3;
const ILLEGAL_REQUEST: u8 = 0x5;
const UNIT_ATTENTION: u8 = 0x6;
const DATA_PROTECT: u8 = 0x7;
const MISCOMPARE: u8 = 0xe;

/// LOGICAL UNIT NOT SUPPORTED.
const NO_LUN: u16 = 0x2500;

/// Returns what the end of a command implies for its blocks.
fn end_of(ended: &CommandOutcome) -> ChangeResult {
    match ended {
        CommandOutcome::Status { status: GOOD, .. } => ChangeResult::Done,
        CommandOutcome::Status { status: BUSY | RESERVATION_CONFLICT | TASK_SET_FULL, .. }
        | CommandOutcome::Refused => ChangeResult::Refused,
        CommandOutcome::Status { status: CHECK_CONDITION, .. } => match sense_key(ended) {
            // A command that had begun may also end with this sense code, if its LUN is removed.
            Some(ILLEGAL_REQUEST) if sense_code(ended) == Some((ILLEGAL_REQUEST, NO_LUN)) => {
                ChangeResult::Failed
            }
            // The target finds these conditions before it executes anything.
            Some(NOT_READY | ILLEGAL_REQUEST | UNIT_ATTENTION | DATA_PROTECT | MISCOMPARE) => {
                ChangeResult::Refused
            }
            _ => ChangeResult::Failed,
        },
        CommandOutcome::Status { .. } | CommandOutcome::Failed | CommandOutcome::Aborted => {
            ChangeResult::Failed
        }
        CommandOutcome::Lost => ChangeResult::Unknown,
    }
}

/// Returns whether a command ended with ILLEGAL REQUEST.
pub(crate) fn is_illegal(ended: &CommandOutcome) -> bool {
    sense_key(ended) == Some(ILLEGAL_REQUEST)
}

/// Returns whether a command was refused before any of it was executed.
pub(crate) fn is_refusal(ended: &CommandOutcome) -> bool {
    end_of(ended) == ChangeResult::Refused
}

/// Returns whether a command was executed, at least in part.
pub(crate) fn was_carried_out(ended: &CommandOutcome) -> bool {
    matches!(sense_key(ended), Some(MISCOMPARE | MEDIUM_ERROR))
}

/// Returns the signature of the blocks that a command writes, if it signs them.
pub(crate) fn signature_of(meaning: &Effect) -> Option<Signature> {
    let change = match meaning {
        Effect::Change(changes) => changes.first()?,
        Effect::CompareAndWrite(change, _) => change,
        _ => return None,
    };
    match change.content {
        Planned::Signed(writer, sequence) => Some((writer.0, sequence.0)),
        Planned::Same(mark) => Some((mark.writer.0, mark.sequence.0)),
        _ => None,
    }
}

/// Returns whether a command ended with CHECK CONDITION.
pub(crate) const fn is_check_condition(ended: &CommandOutcome) -> bool {
    matches!(ended, CommandOutcome::Status { status: CHECK_CONDITION, .. })
}

fn sense_key(ended: &CommandOutcome) -> Option<u8> {
    match ended {
        CommandOutcome::Status { status: CHECK_CONDITION, sense, .. } => match sense.first()? & 0x7f {
            0x70 | 0x71 => sense.get(2).map(|byte| byte & 0xf),
            _ => sense.get(1).map(|byte| byte & 0xf),
        },
        _ => None,
    }
}

/// Returns the sense key and the additional sense code of a CHECK CONDITION.
pub(crate) fn sense_code(ended: &CommandOutcome) -> Option<(u8, u16)> {
    let CommandOutcome::Status { status: CHECK_CONDITION, sense, .. } = ended else { return None };
    let at = if matches!(sense.first()? & 0x7f, 0x70 | 0x71) { 12 } else { 2 };
    Some((sense_key(ended)?, u16::from_be_bytes([*sense.get(at)?, *sense.get(at + 1)?])))
}
