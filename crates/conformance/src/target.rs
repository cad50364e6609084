//! Tests of a target: this crate is the initiator.

mod changes;
mod conn;
mod device;
pub(crate) mod fixture;
pub(crate) mod kind;
mod login;
mod pages;
mod restore;
mod task;

mod chap;
mod connections;
mod digests;
mod erl1;
mod erl2;
mod login_phase;
mod logout;
mod management;
mod mmc;
mod numbering;
mod ping;
mod reject;
mod response;
mod rfc7144;
mod smc;
mod snack;
mod ssc;
mod text;
mod transfer;

use std::process::Stdio;
use std::rc::Rc;
use std::time::{Duration, Instant};

use iscsi::pdu::text_response::TextResponse;

use crate::cdb;
use crate::suite::{Case, CaseInfo, CaseResult, Selection};
use crate::text::Keys;
use crate::verdict::{Outcome, Stop};

use conn::Flow;
use fixture::{Fixture, Unit};

pub(crate) use conn::Conn;
pub use fixture::{INITIATOR, Options};
pub use kind::UnitKind;

/// The default time limit of one case.
pub const LIMIT: Duration = Duration::from_secs(20);
/// The default time to wait for an answer.
pub const PATIENCE: Duration = Duration::from_secs(3);

/// A case that tests a target.
type Test = Case<Fixture>;

/// The cases on disks: those on iSCSI, whatever is served.
const DISK_TABLES: &[&[Test]] = &[
    numbering::CASES,
    transfer::CASES,
    management::CASES,
    snack::CASES,
    logout::CASES,
    reject::CASES,
    ping::CASES,
    response::CASES,
    text::CASES,
    login_phase::CASES,
    chap::CASES,
    digests::CASES,
    connections::CASES,
    erl1::CASES,
    erl2::CASES,
    rfc7144::CASES,
];

/// Returns the cases on a type of unit.
fn cases_on(kind: UnitKind) -> impl Iterator<Item = &'static Test> {
    let tables = match kind {
        UnitKind::Disk => DISK_TABLES,
        UnitKind::Tape => ssc::TABLES,
        UnitKind::Changer => smc::TABLES,
        UnitKind::Disc => mmc::TABLES,
    };
    tables.iter().copied().flatten()
}

fn cases() -> impl Iterator<Item = &'static Test> {
    UnitKind::ALL.into_iter().flat_map(cases_on)
}

/// What a run did.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Run {
    /// The results of the cases on the type of the unit.
    pub results: Vec<CaseResult>,
    /// The type of the unit.
    pub kind: UnitKind,
    /// The other types of which cases were selected, and how many. These cases were not run.
    pub left_out: Vec<(UnitKind, usize)>,
}

impl Run {
    /// Returns which cases were not run because of the type of the unit, as a sentence without its full stop.
    pub fn left_out_words(&self) -> Option<String> {
        let each = |(kind, count): &(UnitKind, usize)| format!("{count} on {}", kind.words());
        let each: Vec<String> = self.left_out.iter().map(each).collect();
        let kind = self.kind.words();
        (!each.is_empty())
            .then(|| format!("The LUN is {kind}; cases on other types were skipped: {}", each.join(", ")))
    }
}

/// Lists the cases in the order in which they run.
pub fn list() -> Vec<CaseInfo> {
    cases().map(Case::entry).collect()
}

/// Runs the selected cases one after the other; calls `told` with the result of each when it ends.
///
/// # Errors
/// When the target cannot be reached, shows no usable unit, or one of a type that no selected case is for.
pub fn run(
    options: &Options,
    selection: &Selection,
    mut told: impl FnMut(&CaseResult),
) -> Result<Run, String> {
    let options = Rc::new(options.clone());
    let (name, unit) = look_around(&options).map_err(|stop| match stop {
        Stop::Fail(why) | Stop::Skip(why) => why,
    })?;
    let kind = unit.kind;
    let selected = |kind| cases_on(kind).filter(|case| selection.takes(case.id));
    let others = UnitKind::ALL.into_iter().filter(|other| *other != kind);
    let left_out = others.map(|other| (other, selected(other).count())).filter(|(_, count)| *count > 0);
    let left_out: Vec<(UnitKind, usize)> = left_out.collect();
    let mut results = Vec::new();
    let mut gone_since = None;
    let mut unit = unit;
    for case in selected(kind) {
        let mut fixture = Fixture::new(&options, &name, unit);
        let began = Instant::now();
        let mut outcome = if let Some(since) = gone_since {
            Err(Stop::Skip(format!("the target cannot be reached since {since}")))
        } else if case.writes && !options.write {
            Err(Stop::Skip(format!("it {}, and --write was not given", changes(kind))))
        } else {
            (case.run)(&mut fixture)
        };
        if gone_since.is_none() && is_gone(&fixture, &outcome) {
            let mut why = match outcome {
                Err(Stop::Fail(why)) => format!("{why}; the target cannot be reached any more"),
                Ok(()) | Err(Stop::Skip(_)) => "the target cannot be reached any more".to_owned(),
            };
            match revive(&options, &mut why) {
                Some((_, found)) => unit = found,
                None => gone_since = Some(case.id),
            }
            outcome = Err(Stop::Fail(why));
        }
        let note = if gone_since.is_none() { restore::restore(&mut fixture) } else { None };
        let mut result = CaseResult::of(case.entry(), outcome, &fixture.record, began);
        result.add_note(note);
        told(&result);
        results.push(result);
    }
    if results.is_empty() {
        return Err(format!("the LUN is {}, and no selected case is for that type", kind.words()));
    }
    Ok(Run { results, kind, left_out })
}

/// Returns what the cases that need `--write` do to a unit.
const fn changes(kind: UnitKind) -> &'static str {
    match kind {
        UnitKind::Disk => "overwrites blocks of the unit",
        UnitKind::Tape => "moves or overwrites the tape",
        UnitKind::Changer => "moves cartridges",
        UnitKind::Disc => "ejects the disc",
    }
}

/// How long to wait for a target that failed a case to crash because of it. A target with several threads
/// does not crash at once.
const LAST_BREATH: Duration = Duration::from_secs(1);

/// Returns whether the target has become unreachable after a case. If `options.revive` can restart it, this
/// is checked after every case, so that no case is blamed for the effect of an earlier one; otherwise only
/// after a failed case.
fn is_gone(fixture: &Fixture, outcome: &Outcome) -> bool {
    let failed = matches!(outcome, Err(Stop::Fail(_)));
    if !failed && fixture.options.revive.is_none() {
        return false;
    }
    if failed && fixture.options.revive.is_some() {
        std::thread::sleep(LAST_BREATH);
    }
    !fixture.is_reachable()
}

/// Restarts the target with `options.revive`, if given, and adds the first line of that command's output to
/// `why`. Returns `None` if the target stays unreachable.
fn revive(options: &Rc<Options>, why: &mut String) -> Option<(String, Unit)> {
    let command = options.revive.as_ref()?;
    let done = std::process::Command::new("sh").arg("-c").arg(command).stdin(Stdio::null()).output();
    let told = match &done {
        Ok(output) if output.status.success() => {
            let told = String::from_utf8_lossy(&output.stdout);
            told.lines().next().map(|line| line.trim().to_owned())
        }
        Ok(output) => Some(format!("what should bring it back ends with {}", output.status)),
        Err(error) => Some(format!("what should bring it back: {error}")),
    };
    if let Some(told) = told.filter(|told| !told.is_empty()) {
        why.push_str("; ");
        why.push_str(&told);
    }
    match done {
        Ok(output) if output.status.success() => match look_around(options) {
            Ok(found) => Some(found),
            Err(Stop::Fail(reason) | Stop::Skip(reason)) => {
                why.push_str("; brought back, it is of no use: ");
                why.push_str(&reason);
                None
            }
        },
        _ => None,
    }
}

/// Finds the name of the target and a unit to test with: a disk, or else a unit of another type that
/// there are cases for.
fn look_around(options: &Rc<Options>) -> Outcome<(String, Unit)> {
    let nowhere = Unit { lun: 0, kind: UnitKind::Disk, block: 512, blocks: 0 };
    let name = match &options.target {
        Some(name) => name.clone(),
        None => discover(&mut Fixture::new(options, "", nowhere))?,
    };
    let mut fixture = Fixture::new(options, &name, nowhere);
    let plan = login::LoginPlan::normal(&fixture);
    let mut conn = fixture.login(&plan)?;
    let luns = match options.lun {
        Some(number) => match scsi::lun::Lun::from_number(number) {
            Some(lun) => vec![lun.0],
            None => fail!("{number} is no LUN"),
        },
        None => report_luns(&mut conn)?,
    };
    let mut other = None;
    for lun in luns {
        match look_at(&mut conn, lun)? {
            Some(unit) if unit.kind == UnitKind::Disk => return Ok((name, unit)),
            found => other = other.or(found),
        }
    }
    match other {
        Some(unit) => Ok((name, unit)),
        None => fail!("{name} shows no disk, tape drive, medium changer or disc drive"),
    }
}

/// Returns the first target that a discovery session lists.
fn discover(fixture: &mut Fixture) -> Outcome<String> {
    let mut conn = fixture.discover()?;
    let request = conn.text(true);
    conn.send(&request, &Keys::of(&[("SendTargets", "All")]).to_bytes());
    let (_, pdu) = conn.expect::<TextResponse>(request.itt)?;
    match Keys::parse(&pdu.data)?.value("TargetName") {
        Some(name) => Ok(name.to_owned()),
        None => fail!("discovery shows no target; name one with --target"),
    }
}

fn report_luns(conn: &mut Conn) -> Outcome<Vec<u64>> {
    for _ in 0..3 {
        let done = conn.run(cdb::report_luns(4096), Flow::Read, 4096, &[])?;
        if done.is_good() {
            let list = done.data.get(8..).unwrap_or_default();
            let (luns, _) = list.as_chunks::<8>();
            return Ok(luns.iter().map(|lun| u64::from_be_bytes(*lun)).collect());
        }
    }
    fail!("REPORT LUNS does not succeed")
}

/// Returns the unit if there are cases for its type; a disk must be ready.
fn look_at(conn: &mut Conn, lun: u64) -> Outcome<Option<Unit>> {
    conn.unit.lun = lun;
    let inquiry = conn.run(cdb::inquiry(36), Flow::Read, 36, &[])?;
    let kind = inquiry.data.first().and_then(|first| UnitKind::of_inquiry(*first));
    let Some(kind) = kind.filter(|_| inquiry.is_good()) else { return Ok(None) };
    if kind != UnitKind::Disk {
        return Ok(Some(Unit { lun, kind, block: 0, blocks: 0 }));
    }
    for _ in 0..8 {
        let done = conn.run(cdb::read_capacity(), Flow::Read, 8, &[])?;
        if done.is_good() {
            let last = crate::wire::word(&done.data, 0);
            let block = crate::wire::word(&done.data, 4);
            let blocks = last.saturating_add(1);
            require!(
                block >= 512 && blocks >= 256,
                "the disk is too small: {blocks} blocks of {block} bytes"
            );
            return Ok(Some(Unit { lun, kind, block, blocks }));
        }
    }
    Ok(None)
}
