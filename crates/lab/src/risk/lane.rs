//! One session that runs trials one after the other: it arms the corrupter, executes one command, and judges
//! what became of it over a path without a corrupter.

use std::ops::Range;
use std::sync::mpsc::channel;
use std::time::Duration;

use base::buffer::Bytes;
use base::rng::Rng;
use base::units::Lba;
use initiator::driver::ProtocolPlan;
use initiator::{
    Cdb, Client, Command, CommandError, Disk, EnvSecrets, Lun, Reply, Residual, Session, SessionStats,
    SessionUp, Url, block_on,
};
use iscsi::initiator::contract::Portal;
use iscsi::login::directory::TargetAddress;
use iscsi::name::Isid;
use iscsi::negotiate::DigestPolicy;
use oracle::block_check::BlockCheck;

use super::outcome::{Facts, Outcome, is_detected};
use super::plan::{Fault, RiskPlan};
use super::region::Region;
use crate::bench::Negotiated;
use crate::corrupter::fault::{Confinement, Fault as ArmedFault, PduClass, Place};
use crate::corrupter::{Corrupter, Passage};
use crate::experiment::LabError;
use crate::plan::Digests;

/// What all sessions of a run share.
pub(super) struct Bench<'a> {
    pub(super) plan: &'a RiskPlan,
    pub(super) client: &'a Client,
    pub(super) url: &'a Url,
    /// The disk over a path without a corrupter.
    pub(super) clean: &'a Disk,
}

/// The combination of digests and ErrorRecoveryLevel of a cell of the matrix.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Combination {
    pub(super) digests: Digests,
    pub(super) erl: u8,
}

/// A session with its own corrupter and its own blocks.
pub(super) struct Lane<'a> {
    bench: &'a Bench<'a>,
    corrupter: Corrupter,
    session: Option<Session>,
    /// What the last login negotiated.
    negotiated: Negotiated,
    region: Region,
    rng: Rng,
    isid: [u8; 6],
    /// Whether the data of a WRITE travels in the command PDU.
    pub(super) immediate: bool,
}

/// A trial that is over.
#[derive(Clone, Debug)]
pub(super) struct Trial {
    /// The fault; `None` for a trial without one.
    pub(super) fault: Option<&'static Fault>,
    pub(super) is_write: bool,
    /// The blocks that the command was to read or write.
    pub(super) blocks: Range<u64>,
    pub(super) passage: Passage,
    pub(super) facts: Facts,
    /// Whether a connection was closed or the session ended.
    pub(super) dropped: bool,
    /// Whether the command, or the probe after it, had no response in time.
    pub(super) timed_out: bool,
    /// How the command ended, in words.
    pub(super) result: String,
    /// Wrong blocks of which nobody was told, and what they contain.
    pub(super) wrong: Vec<(u64, String)>,
}

impl Trial {
    /// Returns the outcome, if there was a fault and it was injected.
    pub(super) fn outcome(&self) -> Option<Outcome> {
        self.passage.injection.as_ref().map(|_| self.facts.outcome())
    }
}

/// How long the target may take to accept a login, and how much longer for each session. istgt sleeps for a
/// second at each login and for another one to drop the connection before it, and serves no other login
/// meanwhile. All sessions may log in at the same time, each with a login that it gave up before.
const LOGIN_MAX: Duration = Duration::from_secs(5);
const LOGIN_TURN: Duration = Duration::from_secs(4);
/// How long the target may take to end a logout.
const LOGOUT_MAX: Duration = Duration::from_secs(1);
/// How long a due PDU may be missing at ErrorRecoveryLevel 1 and 2 before it is requested again.
const REPAIR_AFTER: Duration = Duration::from_millis(100);
/// The longest Data-In PDU, so that long reads consist of several.
const DATA_IN_MAX: u32 = 8192;
/// How often a login is tried, since a target may need time to end the session before.
const LOGINS_MAX: u32 = 5;
/// The most bytes of one command over the clean path.
const CLEAN_LEN: u64 = 1 << 20;
/// How many wrong blocks of a trial are described.
const DESCRIBED_MAX: usize = 4;

impl<'a> Lane<'a> {
    /// Creates a lane over `blocks`, and writes all of them.
    pub(super) fn new(
        bench: &'a Bench<'a>,
        number: usize,
        corrupter: Corrupter,
        region: Region,
    ) -> Result<Self, LabError> {
        let number_byte = u8::try_from(number).unwrap_or(u8::MAX);
        let mut rng = Rng::from_seed(bench.plan.seed.wrapping_add(u64::from(number_byte)));
        let [a, b, c, d, ..] = rng.next_u64().to_be_bytes();
        let lane = Self {
            bench,
            corrupter,
            session: None,
            negotiated: Negotiated::default(),
            region,
            rng,
            // Type 10b: random.
            isid: [0x80, a, b, c, d, number_byte],
            immediate: number % 2 == 1,
        };
        let blocks = lane.region.blocks();
        lane.rewrite(&blocks)?;
        Ok(lane)
    }

    /// Logs out. The next trial logs in again.
    pub(super) fn log_out(&mut self) {
        if let Some(session) = self.session.take() {
            let _ = session.log_out().wait();
        }
    }

    /// Logs in with these digests and this level. Returns why the target does not offer them.
    pub(super) fn log_in(&mut self, combination: Combination) -> Result<Option<String>, LabError> {
        self.log_out();
        let mut failure = String::new();
        for attempt in 0..LOGINS_MAX {
            std::thread::sleep(Duration::from_millis(20) * attempt * attempt);
            match self.bench.client.log_in_planned(self.session_plan(combination)?).wait() {
                Ok(session) => {
                    let refusal = refusal(&session, combination);
                    // The target reports a unit attention to the first command of a session instead of
                    // executing it. A trial must not be that command.
                    let _ = run(&session, self.probe(), LOGIN_MAX);
                    let connections = session.connections().wait().unwrap_or_default();
                    self.negotiated = Negotiated::of(session.up(), connections.first());
                    self.session = Some(session);
                    return Ok(refusal);
                }
                Err(error) => failure = error.to_string(),
            }
            // Some targets wait too long for the end of the session that the login replaces. A session with
            // another ISID replaces none.
            let [.., count, _] = &mut self.isid;
            *count = count.wrapping_add(1);
        }
        Ok(Some(failure))
    }

    /// Returns what the last login negotiated.
    pub(super) const fn negotiated(&self) -> &Negotiated {
        &self.negotiated
    }

    /// Returns the session, which is logged in again if it ended.
    fn session(&mut self, combination: Combination) -> Result<Session, LabError> {
        if let Some(session) = &self.session {
            return Ok(session.clone());
        }
        let refusal = self.log_in(combination)?;
        match (&self.session, refusal) {
            (Some(session), None) => Ok(session.clone()),
            (_, why) => Err(LabError::Target(format!(
                "the target no longer accepts logins: {}",
                why.unwrap_or_default()
            ))),
        }
    }

    fn session_plan(&self, combination: Combination) -> Result<ProtocolPlan, LabError> {
        let mut plan = initiator::driver::plan(self.bench.url, &EnvSecrets)
            .map_err(|error| LabError::Plan(error.to_string()))?;
        plan.set_isid(Isid(self.isid));
        let ProtocolPlan::Iscsi(iscsi) = &mut plan else {
            return Err(LabError::Plan("the experiment damages iSCSI PDUs; give an iscsi:// URL".to_owned()));
        };
        if iscsi.tls.is_some() {
            return Err(LabError::Plan(
                "the experiment cannot see PDUs within TLS; give a URL without tls".to_owned(),
            ));
        }
        let session = &mut iscsi.session;
        let address = TargetAddress::Socket(self.corrupter.address());
        session.portals = vec![Portal { address }];
        let required = |on| if on { DigestPolicy::RequireCrc32c } else { DigestPolicy::RequireNone };
        session.keys.header_digest = required(combination.digests.header());
        session.keys.data_digest = required(combination.digests.data());
        session.keys.error_recovery_level = combination.erl;
        session.keys.default_time2wait = 0;
        session.keys.immediate_data = self.immediate;
        session.keys.max_recv_data_segment_length = DATA_IN_MAX;
        session.connections = 1;
        session.retry.timeout = self.bench.plan.timeout(combination.digests, combination.erl);
        session.retry.backoff = Duration::from_millis(20);
        let sessions = u32::try_from(self.bench.plan.sessions).unwrap_or(u32::MAX);
        session.limits.login_within = LOGIN_MAX + LOGIN_TURN.saturating_mul(sessions);
        session.limits.logout_within = LOGOUT_MAX;
        session.limits.repair_after = REPAIR_AFTER;
        Ok(plan)
    }

    /// Runs one trial, and leaves all blocks right.
    pub(super) fn trial(
        &mut self,
        combination: Combination,
        fault: Option<&'static Fault>,
        len: u32,
    ) -> Result<Trial, LabError> {
        let session = self.session(combination)?;
        let is_write = fault.map_or_else(|| self.rng.chance(1, 2), |fault| fault.is_write);
        let blocks = self.pick_blocks(len);
        let command = self.command(is_write, &blocks);
        let before = counters(&session);
        let armed = fault.map(|fault| self.armed(fault, len));
        self.corrupter.arm(armed);
        let timeout = self.bench.plan.timeout(combination.digests, combination.erl);
        let result = run(&session, command, timeout);
        // Effects that follow the status, such as a second status, belong to this trial: both ends process
        // this command after them.
        let probed = match &result {
            Err(error) if error.is_timeout() => None,
            _ => Some(run(&session, self.probe(), timeout)),
        };
        let timed_out = probed.as_ref().is_none_or(|probed| probed.as_ref().is_err_and(RunError::is_timeout));
        let is_up = probed.is_some_and(|probed| probed.is_ok());
        // What the end of the session causes is no reaction to an error.
        let after = counters(&session);
        let passage = self.corrupter.disarm();
        if !is_up {
            session.close();
            self.session = None;
            // The login ends what the lost session left behind in the target.
            self.session(combination)?;
        }
        let seen = &passage.seen;
        let is_complete = self.is_complete(&result, is_write, &blocks);
        // Without a fault, a late probe does not excuse wrong data of the command.
        let is_owed = is_complete && (is_up || fault.is_none() && timed_out);
        let mut trial = Trial {
            fault,
            is_write,
            facts: Facts {
                is_good: is_up && is_complete,
                is_detected: is_detected(&before, &after, seen),
                is_wrong: false,
            },
            // The end of a connection may be seen late, unlike the beginning of the next one.
            dropped: !is_up || seen.closed_by_initiator + seen.closed_by_target + seen.opened > 0,
            timed_out,
            result: describe(&result, is_up),
            blocks,
            passage,
            wrong: Vec::new(),
        };
        self.judge(&mut trial, is_owed, result.as_ref().map_or(&[], Reply::bytes))?;
        Ok(trial)
    }

    /// Returns whether a command did all that it was asked to do, as far as its initiator can tell.
    fn is_complete(&self, result: &Result<Reply, RunError>, is_write: bool, blocks: &Range<u64>) -> bool {
        let Ok(reply) = result else { return false };
        let wanted = if is_write { 0 } else { self.byte_len(blocks) };
        reply.residual == Residual::None && reply.bytes().len() == wanted
    }

    /// Finds the wrong blocks of which nobody was told, and rewrites them. With `is_owed`, the blocks of the
    /// command must be right.
    fn judge(&mut self, trial: &mut Trial, is_owed: bool, data: &[u8]) -> Result<(), LabError> {
        let described = |lane: &Self, first: u64, wrong: &[u64], bytes: &[u8]| -> Vec<(u64, String)> {
            let describe = |lba: &u64| (*lba, lane.describe_block(first, *lba, bytes));
            wrong.iter().take(DESCRIBED_MAX).map(describe).collect()
        };
        if !trial.is_write && is_owed {
            let wrong = self.region.wrong_blocks(trial.blocks.start, data);
            trial.facts.is_wrong |= !wrong.is_empty();
            trial.wrong.extend(described(self, trial.blocks.start, &wrong, data));
        }
        let victims = trial.passage.injection.as_ref().and_then(|injection| injection.misdirected.clone());
        let touched = trial.is_write.then(|| trial.blocks.clone());
        for (range, is_victim) in [(touched, false), (victims, true)] {
            let Some(range) = range.filter(|range| !range.is_empty()) else { continue };
            let bytes = self.read_clean(&range)?;
            let mut wrong = self.region.wrong_blocks(range.start, &bytes);
            if is_victim {
                wrong.retain(|lba| !(trial.is_write && trial.blocks.contains(lba)));
            }
            for lba in &wrong {
                self.rewrite(&(*lba..lba + 1))?;
            }
            // The owner of a command that failed knows that its blocks may contain anything.
            if is_victim || is_owed {
                trial.facts.is_wrong |= !wrong.is_empty();
                trial.wrong.extend(described(self, range.start, &wrong, &bytes));
            }
        }
        Ok(())
    }

    /// Reads all blocks over the clean path and rewrites those that are wrong. Returns how many those are.
    pub(super) fn verify(&mut self) -> Result<u64, LabError> {
        let blocks = self.region.blocks();
        let step = (CLEAN_LEN / self.block_len()).max(1);
        let (mut at, mut found) = (blocks.start, 0);
        while at < blocks.end {
            let part = at..blocks.end.min(at + step);
            at = part.end;
            let bytes = self.read_clean(&part)?;
            for lba in self.region.wrong_blocks(part.start, &bytes) {
                found += 1;
                self.rewrite(&(lba..lba + 1))?;
            }
        }
        Ok(found)
    }

    fn pick_blocks(&mut self, len: u32) -> Range<u64> {
        let blocks = self.region.blocks();
        let count = (u64::from(len) / self.block_len()).max(1).min(blocks.end - blocks.start);
        let first = blocks.start + self.rng.below(blocks.end - blocks.start - count + 1);
        first..first + count
    }

    fn command(&mut self, is_write: bool, blocks: &Range<u64>) -> Command {
        let geometry = self.bench.clean.geometry();
        let (first, count) = (Lba(blocks.start), u32::try_from(blocks.end - blocks.start).unwrap_or(0));
        if is_write {
            self.region.renew(blocks);
            let data = Bytes::copied_from(&self.region.content(blocks));
            geometry.write(self.lun(), (first, count), data.into(), false)
        } else {
            geometry.read(self.lun(), first, count)
        }
    }

    fn armed(&mut self, fault: &Fault, len: u32) -> ArmedFault {
        let in_command = self.immediate && fault.class == PduClass::DataOut && fault.place == Place::Data;
        let pdus = match fault.class {
            PduClass::DataIn => u64::from(len.div_ceil(DATA_IN_MAX)),
            _ => 1,
        };
        ArmedFault {
            class: if in_command { PduClass::Command } else { fault.class },
            place: fault.place,
            damage: fault.damage,
            skip: u32::try_from(self.rng.below(pdus)).unwrap_or(0),
            seed: self.rng.next_u64(),
            confinement: Confinement {
                blocks: self.region.blocks(),
                capacity: self.bench.clean.size() / self.block_len(),
            },
            reseal: self.bench.plan.reseal,
        }
    }

    /// Returns TEST UNIT READY.
    fn probe(&self) -> Command {
        Command::new(self.lun(), Cdb::from_16([0; 16])).repeatable()
    }

    fn lun(&self) -> Lun {
        Lun::from_number(self.bench.url.lun).unwrap_or(Lun(0))
    }

    fn block_len(&self) -> u64 {
        u64::try_from(self.region.block_len()).unwrap_or(512)
    }

    fn byte_len(&self, blocks: &Range<u64>) -> usize {
        usize::try_from(blocks.end - blocks.start).unwrap_or(0) * self.region.block_len()
    }

    fn describe_block(&self, first: u64, lba: u64, bytes: &[u8]) -> String {
        let at = usize::try_from(lba - first).unwrap_or(0) * self.region.block_len();
        let block = bytes.get(at..).and_then(|rest| rest.get(..self.region.block_len()));
        block.map_or_else(|| "nothing".to_owned(), |block| BlockCheck::of(block).to_string())
    }

    fn read_clean(&self, blocks: &Range<u64>) -> Result<Vec<u8>, LabError> {
        let mut bytes = vec![0; self.byte_len(blocks)];
        block_on(self.bench.clean.read_at(blocks.start * self.block_len(), &mut bytes))
            .map_err(clean_failed)?;
        Ok(bytes)
    }

    /// Writes what some blocks must contain, over the clean path.
    fn rewrite(&self, blocks: &Range<u64>) -> Result<(), LabError> {
        let step = (CLEAN_LEN / self.block_len()).max(1);
        let mut at = blocks.start;
        while at < blocks.end {
            let part = at..blocks.end.min(at + step);
            let content = self.region.content(&part);
            block_on(self.bench.clean.write_at(at * self.block_len(), &content)).map_err(clean_failed)?;
            at = part.end;
        }
        Ok(())
    }
}

/// Why a command has no good result.
#[derive(Debug)]
enum RunError {
    Command(CommandError),
    Timeout,
}

impl RunError {
    const fn is_timeout(&self) -> bool {
        matches!(self, Self::Timeout | Self::Command(CommandError::Silence))
    }
}

fn run(session: &Session, command: Command, timeout: Duration) -> Result<Reply, RunError> {
    let (done, ended) = channel();
    session.submit(command, move |result| {
        // After a timeout nobody waits any more.
        let _ = done.send(result);
    });
    match ended.recv_timeout(timeout) {
        Ok(result) => result.map_err(RunError::Command),
        Err(_) => Err(RunError::Timeout),
    }
}

fn counters(session: &Session) -> SessionStats {
    session.stats().wait().unwrap_or_default()
}

fn describe(result: &Result<Reply, RunError>, is_up: bool) -> String {
    match result {
        Ok(_) if !is_up => "GOOD, and then the session failed".to_owned(),
        Ok(reply) => match reply.residual {
            Residual::None => "GOOD".to_owned(),
            Residual::Overflow(bytes) => format!("GOOD with a residual overflow of {bytes} bytes"),
            Residual::Underflow(bytes) => format!("GOOD with a residual underflow of {bytes} bytes"),
        },
        Err(RunError::Command(error)) => error.to_string(),
        Err(RunError::Timeout) => "no response within the timeout".to_owned(),
    }
}

/// Returns why a session is not what was asked for.
fn refusal(session: &Session, combination: Combination) -> Option<String> {
    let SessionUp::Iscsi(up) = session.up() else { return Some("no iSCSI session".to_owned()) };
    let granted = up.parameters.error_recovery_level.number();
    (granted < combination.erl).then(|| format!("the target grants ErrorRecoveryLevel {granted}"))
}

fn clean_failed(error: initiator::Error) -> LabError {
    LabError::Target(format!("the target fails on the path without faults: {}", error.report()))
}
