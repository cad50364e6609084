//! Runs cases against the true peer and its mutants, many at a time, and collects the verdicts that are
//! wrong.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{Ipv4Addr, TcpListener};
use std::sync::Mutex;
use std::thread;
use std::time::Duration;

use conformance::{CaseResult, Selection, Verdict, initiator, target};

use crate::devices::Kind;
use crate::mutant::Mutant;
use crate::relay::Relay;
use crate::{driven, found, served, unbroken};

/// How often a verdict may be of a machine that was too busy: cases wait for what a peer should not send, and
/// for what it should.
const ATTEMPTS: u32 = 3;
/// One verdict in so many may take more than one attempt.
const LATE_PART: usize = 10;
/// How long a case waits for an answer at its first attempt. A mutant may never send it.
const PATIENCE: Duration = Duration::from_millis(1500);
/// The time limit of a case.
const LIMIT: Duration = Duration::from_secs(60);

/// Runs a case with a mutant in between, or none, on a lane, and waits for answers for this long.
pub(crate) type Judge = fn(&str, Option<&Mutant>, usize, Duration) -> Result<CaseResult, String>;

/// Judges the target of a lane.
pub(crate) fn judge_target(
    case: &str,
    mutant: Option<&Mutant>,
    lane: usize,
    patience: Duration,
) -> Result<CaseResult, String> {
    let kind = Kind::of_case(case);
    let with_chap = kind == Kind::DiskWithChap;
    let (user, mutual) = served::credentials();
    let before = found::state(lane, kind)?;
    // The first connection finds the unit for the case.
    let relay = Relay::start(served::address(), 1, mutant.map(|mutant| mutant.breaks));
    let options = target::Options {
        portals: vec![relay.address],
        target: Some(served::name(lane, kind)),
        lun: Some(0),
        initiator: target::INITIATOR.to_owned(),
        user: with_chap.then_some(user),
        mutual: with_chap.then_some(mutual),
        write: true,
        limit: LIMIT,
        patience,
        revive: None,
    };
    let result = target::run(&options, &Selection::new(&[case.to_owned()]), |_| ())?.results.remove(0);
    let after = found::state(lane, kind).map_err(|why| format!("after {}: {why}", result.line()))?;
    if before != after {
        return Err(format!("{}\nfound: {before}\nleft: {after}", result.line()));
    }
    Ok(result)
}

/// Judges an initiator, which is started for the case.
pub(crate) fn judge_initiator(
    case: &str,
    mutant: Option<&Mutant>,
    _lane: usize,
    patience: Duration,
) -> Result<CaseResult, String> {
    let free = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).map_err(|error| error.to_string())?;
    let listen = free.local_addr().map_err(|error| error.to_string())?;
    drop(free);
    let relay = Relay::start(listen, 0, mutant.map(|mutant| mutant.breaks));
    let portal = format!("iscsi://{}", relay.address);
    let options = initiator::Options {
        listen,
        exec: Some(driven::command(&format!("{portal}/{}/0", initiator::TARGET))),
        discover: Some(driven::command(&portal)),
        limit: LIMIT,
        patience,
    };
    Ok(initiator::run(&options, &Selection::new(&[case.to_owned()]), |_| ())?.remove(0))
}

/// Repeats a judgement while it is not as it should be, with more patience each time. Returns the number of
/// attempts, or what is wrong.
fn repeated(
    what: &str,
    wanted: impl Fn(&CaseResult) -> bool,
    judge: impl Fn(Duration) -> Result<CaseResult, String>,
) -> Result<u32, String> {
    let mut told = String::new();
    for attempt in 1..=ATTEMPTS {
        told = match judge(PATIENCE * attempt * attempt) {
            Ok(result) if wanted(&result) => return Ok(attempt),
            Ok(result) => format!("{what}: {}\n{}", result.line(), result.record.join("\n")),
            Err(why) => format!("{what}: {why}"),
        };
    }
    Err(told)
}

/// A case alone, or with a mutant.
type Job<'a> = (&'a str, Option<&'a Mutant>);

/// Fails unless each case passes alone, and fails with each of its mutants for the reason in its row. The
/// variable CASES selects cases, as `--only` does.
pub(crate) fn expect_all(judge: Judge, mutants: Vec<&Mutant>) {
    let only = std::env::var("CASES").ok().map(|patterns| Selection::new(&[patterns]));
    let selected = |mutant: &&Mutant| only.as_ref().is_none_or(|only| only.takes(mutant.case));
    let mutants: Vec<&Mutant> = mutants.into_iter().filter(selected).collect();
    let cases: BTreeSet<&str> = mutants.iter().map(|mutant| mutant.case).collect();
    let alone = cases.into_iter().filter(|case| !unbroken::SLOW.contains(case)).map(|case| (case, None));
    let mut jobs: Vec<Job<'_>> = alone.collect();
    jobs.extend(mutants.into_iter().map(|mutant| (mutant.case, Some(mutant))));
    let count = jobs.len();
    let (jobs, faults) = (Mutex::new(jobs), Mutex::new(BTreeMap::new()));
    // The verdicts that took more than one attempt.
    let late = Mutex::new(BTreeMap::new());
    thread::scope(|scope| {
        for lane in 0..served::LANES {
            let (jobs, faults, late) = (&jobs, &faults, &late);
            scope.spawn(move || {
                loop {
                    let Some((case, mutant)) = jobs.lock().unwrap().pop() else { return };
                    let key = (case, mutant.and_then(|mutant| mutant.why));
                    match expect_one(judge, case, mutant, lane) {
                        Ok(1) => {}
                        Ok(attempts) => {
                            late.lock().unwrap().insert(key, attempts);
                        }
                        Err(fault) => {
                            faults.lock().unwrap().insert(key, fault);
                        }
                    }
                }
            });
        }
    });
    let late = late.into_inner().unwrap();
    println!("{} of {count} verdicts took more than one attempt", late.len());
    for ((case, why), attempts) in &late {
        println!("{attempts} attempts: {case} {}", why.unwrap_or("passes"));
    }
    let faults: Vec<String> = faults.into_inner().unwrap().into_values().collect();
    // The daemon reports panics in its log, which a process that ends may lose.
    println!("{}", faults.join("\n\n"));
    assert!(faults.is_empty(), "{} verdicts are wrong", faults.len());
    // A machine that is busy makes a few late. More of them are cases that depend on chance.
    assert!(late.len() <= count.div_ceil(LATE_PART), "{} of {count} verdicts were late", late.len());
}

fn expect_one(judge: Judge, case: &str, mutant: Option<&Mutant>, lane: usize) -> Result<u32, String> {
    let judge = |patience| judge(case, mutant, lane, patience);
    match mutant.map(|mutant| mutant.why) {
        None => repeated(&format!("{case} must pass"), |result| result.verdict == Verdict::Pass, judge),
        Some(None) => {
            let what = format!("{case} must pass with a peer that breaks no rule");
            repeated(&what, |result| result.verdict == Verdict::Pass, judge)
        }
        Some(Some(why)) => repeated(
            &format!("{case} must fail with \"{why}\""),
            |result| result.verdict == Verdict::Fail && result.why.contains(why),
            judge,
        ),
    }
}
