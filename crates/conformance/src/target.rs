//! Tests of a target: we are the initiator.

mod conn;
mod login;
pub(crate) mod station;
mod task;

mod chap;
mod connections;
mod digests;
mod erl1;
mod erl2;
mod login_phase;
mod logout;
mod management;
mod numbering;
mod ping;
mod reject;
mod response;
mod rfc7144;
mod snack;
mod text;
mod transfer;

use std::rc::Rc;
use std::time::{Duration, Instant};

use iscsi::pdu::text_response::TextResponse;

use crate::cdb;
use crate::suite::{Case, CaseResult, Entry, Selection};
use crate::text::Keys;
use crate::verdict::{Outcome, Stop};

use conn::{Conn, Flow};
use station::{Station, Unit};

pub use station::{INITIATOR, Options};

/// The longest that one case may take, unless told otherwise.
pub const LIMIT: Duration = Duration::from_secs(20);
/// How long an answer may take, unless told otherwise.
pub const PATIENCE: Duration = Duration::from_secs(3);

/// A case on a target.
type Test = Case<Station>;

fn cases() -> impl Iterator<Item = &'static Test> {
    let tables = [
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
    tables.into_iter().flatten()
}

/// Lists the cases in the order in which they run.
pub fn list() -> Vec<Entry> {
    cases().map(Case::entry).collect()
}

/// Runs the selected cases one after the other; `told` hears of each as it ends.
///
/// # Errors
/// The target or a disk of it cannot be reached at all, so that no case could mean anything.
pub fn run(
    options: &Options,
    selection: &Selection,
    mut told: impl FnMut(&CaseResult),
) -> Result<Vec<CaseResult>, String> {
    let options = Rc::new(options.clone());
    let (name, unit) = look_around(&options).map_err(|stop| match stop {
        Stop::Fail(why) | Stop::Skip(why) => why,
    })?;
    let mut results = Vec::new();
    let mut gone_since = None;
    for case in cases().filter(|case| selection.takes(case.id)) {
        let mut station = Station::new(&options, &name, unit);
        let began = Instant::now();
        let mut outcome = if let Some(since) = gone_since {
            Err(Stop::Skip(format!("the target cannot be reached since {since}")))
        } else if case.writes && !options.write {
            Err(Stop::Skip("it overwrites blocks of the unit, and --write was not given".to_owned()))
        } else {
            (case.run)(&mut station)
        };
        if let Err(Stop::Fail(why)) = &mut outcome
            && !station.is_reachable()
        {
            why.push_str("; the target cannot be reached any more");
            gone_since = Some(case.id);
        }
        let result = CaseResult::of(case.entry(), outcome, &station.record, began);
        told(&result);
        results.push(result);
    }
    Ok(results)
}

/// Finds the name of the target and a disk to work on.
fn look_around(options: &Rc<Options>) -> Outcome<(String, Unit)> {
    let nowhere = Unit { lun: 0, block: 512, blocks: 0 };
    let name = match &options.target {
        Some(name) => name.clone(),
        None => discover(&mut Station::new(options, "", nowhere))?,
    };
    let mut station = Station::new(options, &name, nowhere);
    let plan = login::Plan::normal(&station);
    let mut conn = station.login(&plan)?;
    let luns = match options.lun {
        Some(number) => match scsi::lun::Lun::from_number(number) {
            Some(lun) => vec![lun.0],
            None => fail!("{number} is no LUN"),
        },
        None => report_luns(&mut conn)?,
    };
    for lun in luns {
        if let Some(unit) = look_at(&mut conn, lun)? {
            return Ok((name, unit));
        }
    }
    fail!("{name} shows no disk")
}

/// Returns the first target that a discovery session shows.
fn discover(station: &mut Station) -> Outcome<String> {
    let mut conn = station.discover()?;
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

/// Returns the unit if it is a disk that is ready.
fn look_at(conn: &mut Conn, lun: u64) -> Outcome<Option<Unit>> {
    conn.unit.lun = lun;
    let inquiry = conn.run(cdb::inquiry(36), Flow::Read, 36, &[])?;
    if !inquiry.is_good() || inquiry.data.first() != Some(&0) {
        return Ok(None);
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
            return Ok(Some(Unit { lun, block, blocks }));
        }
    }
    Ok(None)
}
