//! Runs seeds. `SEEDS=n` runs n seeds, from `FIRST` (default 0) on; `SEED=n` runs one seed and prints every
//! event. `FABRIC=iscsi` or `FABRIC=hyperscsi` runs the worlds of one transport, `FABRIC=tape` those of a
//! tape library, `FABRIC=tape-iscsi` those of a tape library over iSCSI; otherwise all run, one after the
//! other.
//! `FRESH=n` runs n more seeds that follow from the commit, so that each commit tries worlds that no earlier
//! commit tried. `SPECIAL=1` makes a share of the worlds special (reloads, short memory, harmful media),
//! `SPECIAL=0` none. With `PLANTED=1`, in a build with the feature `planted`, each planted bug must be found
//! within the given number of seeds; `BUG=name` looks for one bug only. Without it, no bug is planted, in any
//! build.

use std::collections::BTreeMap;
use std::env;
use std::panic;
use std::process::{Command, ExitCode};
use std::time::Instant;

use sim::property::Property;
use sim::scenario::{SPECIAL, Scenario};
use sim::tape::{self, TapePlan};
use sim::trace::Trace;
use sim::world::{self, Failure, Report};

/// The worlds of a run.
#[derive(Clone, Copy, Debug)]
enum WorldKind {
    /// Disks over iSCSI, or direct calls without a transport.
    Iscsi,
    HyperScsi,
    /// A tape library, without a transport.
    Tape,
    /// A tape library over iSCSI.
    TapeIscsi,
}

impl WorldKind {
    const ALL: &[Self] = &[Self::Iscsi, Self::HyperScsi, Self::Tape, Self::TapeIscsi];

    const fn name(self) -> &'static str {
        match self {
            Self::Iscsi => "iscsi",
            Self::HyperScsi => "hyperscsi",
            Self::Tape => "tape",
            Self::TapeIscsi => "tape-iscsi",
        }
    }

    /// Runs the world of a seed.
    fn run(self, seed: u64, trace: &Trace) -> Result<Report, Failure> {
        match self {
            Self::Iscsi => world::run(&Scenario::of(seed, special()), trace),
            Self::HyperScsi => world::run(&Scenario::hyperscsi(seed, special()), trace),
            Self::Tape => tape::run(&TapePlan::of(seed), trace),
            Self::TapeIscsi => tape::run(&TapePlan::iscsi(seed), trace),
        }
    }

    /// Returns how many of so many seeds are run. A world of tapes takes several times as long as one of
    /// disks: each load of a cartridge reads a chunk of 1 MiB.
    const fn share(self, seeds: u64) -> u64 {
        match self {
            Self::Iscsi | Self::HyperScsi => seeds,
            Self::Tape => seeds.div_ceil(8),
            Self::TapeIscsi => seeds.div_ceil(4),
        }
    }

    /// Returns the parameters of the world of a seed.
    fn describe(self, seed: u64) -> String {
        match self {
            Self::Iscsi => Scenario::of(seed, special()).to_string(),
            Self::HyperScsi => Scenario::hyperscsi(seed, special()).to_string(),
            Self::Tape => format!("{:?}", TapePlan::of(seed)),
            Self::TapeIscsi => format!("{:?}", TapePlan::iscsi(seed)),
        }
    }
}

/// Returns whether bugs are planted on purpose.
fn is_planting() -> bool {
    env::var("PLANTED").is_ok_and(|text| !text.is_empty())
}

/// Returns whether a share of the worlds is special: as `SPECIAL` says; always when bugs are planted.
fn special() -> bool {
    match env::var("SPECIAL").as_deref() {
        _ if is_planting() => true,
        Err(_) | Ok("") => SPECIAL,
        Ok(text) => text != "0",
    }
}

fn main() -> ExitCode {
    let (Some(seeds), Some(first), Some(fresh)) =
        (number("SEEDS", 2000), number("FIRST", 0), number("FRESH", 0))
    else {
        return usage("SEEDS, FIRST or FRESH");
    };
    let carriers = match env::var("FABRIC").as_deref() {
        Err(_) | Ok("") => WorldKind::ALL,
        Ok("iscsi") => &[WorldKind::Iscsi],
        Ok("hyperscsi") => &[WorldKind::HyperScsi],
        Ok("tape") => &[WorldKind::Tape],
        Ok("tape-iscsi") => &[WorldKind::TapeIscsi],
        Ok(_) => {
            eprintln!("FABRIC is neither iscsi nor hyperscsi nor tape nor tape-iscsi");
            return ExitCode::from(2);
        }
    };
    if is_planting() && env::var_os("SEED").is_none() {
        return planted(first, seeds);
    }
    match env::var("SEED").map(|seed| seed.parse()) {
        Ok(Ok(seed)) => all(carriers, |carrier| one(carrier, seed)),
        Ok(Err(_)) => usage("SEED"),
        Err(_) => {
            let mut ranges = vec![(first, seeds)];
            if fresh > 0 {
                let commit = commit();
                let (Some(commit), Some(first)) = (&commit, commit.as_deref().and_then(first_of)) else {
                    eprintln!("FRESH needs a commit: run in the repository, or set COMMIT");
                    return ExitCode::from(2);
                };
                println!("{fresh} seeds from {first} follow from commit {commit}");
                ranges.push((first, fresh));
            }
            all(carriers, |carrier| {
                // Every range is run, even if an earlier one failed.
                let failed =
                    ranges.iter().filter(|(first, seeds)| !run_seeds(carrier, *first, *seeds)).count();
                failed == 0
            })
        }
    }
}

/// Returns the commit under test: `COMMIT`, or else the commit that is checked out.
fn commit() -> Option<String> {
    if let Ok(commit) = env::var("COMMIT") {
        return Some(commit);
    }
    let shown = Command::new("git").args(["rev-parse", "HEAD"]).output().ok()?;
    let text = String::from_utf8(shown.stdout).ok().filter(|_| shown.status.success())?;
    Some(text.trim().to_owned())
}

/// Returns the first of the seeds that follow from a commit: the number that its first ten hexadecimal digits
/// make. This number is far from the seeds that every run uses, and short enough to type.
fn first_of(commit: &str) -> Option<u64> {
    u64::from_str_radix(commit.get(..10)?, 16).ok()
}

/// Calls `run` with each transport. Succeeds if all of them pass.
fn all(carriers: &[WorldKind], run: impl Fn(WorldKind) -> bool) -> ExitCode {
    let failed = carriers.iter().filter(|carrier| !run(**carrier)).count();
    if failed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn usage(what: &str) -> ExitCode {
    eprintln!("{what} is not a number");
    ExitCode::from(2)
}

fn number(name: &str, default: u64) -> Option<u64> {
    env::var(name).map_or(Some(default), |value| value.parse().ok())
}

fn one(carrier: WorldKind, seed: u64) -> bool {
    println!("{}", carrier.describe(seed));
    match carrier.run(seed, &Trace::new(0, true)) {
        Ok(report) => {
            println!("{report:?}");
            println!("PASS {} seed {seed}", carrier.name());
            true
        }
        Err(failure) => {
            println!("{failure}");
            println!("FAIL {} seed {seed}", carrier.name());
            false
        }
    }
}

/// How a seed failed.
#[derive(Debug, PartialEq, Eq)]
struct Failed {
    /// The properties that are broken; none when something panicked.
    properties: Vec<Property>,
    what: String,
}

/// Runs one seed without printing. A panic counts as a failure.
fn quietly(carrier: WorldKind, seed: u64, kept: usize) -> Result<Report, Failed> {
    let trace = Trace::new(kept, false);
    let run = || carrier.run(seed, &trace);
    match panic::catch_unwind(panic::AssertUnwindSafe(run)) {
        Ok(Ok(report)) => Ok(report),
        Ok(Err(failure)) => {
            let properties = failure.what.iter().map(|broken| broken.property).collect();
            Err(Failed { properties, what: failure.to_string() })
        }
        Err(cause) => {
            let text = cause.downcast_ref::<String>().map(String::as_str);
            let text = text.or_else(|| cause.downcast_ref::<&str>().copied()).unwrap_or("no text");
            Err(Failed { properties: Vec::new(), what: format!("{trace}panicked: {text}") })
        }
    }
}

fn run_seeds(carrier: WorldKind, first: u64, seeds: u64) -> bool {
    let (began, name, seeds) = (Instant::now(), carrier.name(), carrier.share(seeds));
    let mut failed = Vec::new();
    let (mut ends, mut judged) = ([0; 4], 0);
    // For each event: in how many worlds it happened, and how often in all of them together.
    let mut counts: BTreeMap<&'static str, (u64, u64)> = BTreeMap::new();
    for seed in first..first.saturating_add(seeds) {
        match quietly(carrier, seed, 12) {
            Ok(report) => {
                judged += report.judged;
                for (name, count) in &report.counts {
                    let (worlds, sum) = counts.entry(name).or_default();
                    (*worlds, *sum) = (*worlds + u64::from(*count > 0), *sum + count);
                }
                for (sum, count) in ends.iter_mut().zip(report.ends) {
                    *sum += count;
                }
                // A run that cannot be repeated is of little use, so one seed in 40 is run twice.
                if seed % 40 == 0 && quietly(carrier, seed, 0).map(|again| again.hash) != Ok(report.hash) {
                    println!("FAIL {name} seed {seed}: another run of it went otherwise");
                    failed.push(seed);
                }
            }
            Err(Failed { what, .. }) => {
                println!(
                    "{what}\nFAIL {name} seed {seed}: FABRIC={name} SEED={seed} make sim prints all of it"
                );
                failed.push(seed);
            }
        }
    }
    let [done, broken, unknown, refused] = ends;
    println!(
        "{name}: {seeds} seeds from {first} in {:.1} s: {done} orders done, {broken} failed, {refused} refused, {unknown} lost; \
         {judged} blocks judged; {} seeds failed {failed:?}",
        began.elapsed().as_secs_f64(),
        failed.len(),
    );
    for (what, (worlds, sum)) in &counts {
        println!("{sum:>12} {what}, in {worlds} worlds");
    }
    // With this many worlds, an event that happened in none of them cannot happen. Some events happen only in
    // special worlds.
    let many = match carrier {
        WorldKind::Tape | WorldKind::TapeIscsi => TAPE_WORLDS_MANY,
        WorldKind::Iscsi | WorldKind::HyperScsi => WORLDS_MANY,
    };
    let is_whole = seeds >= many && special();
    let never = counts.iter().filter(|(_, (worlds, _))| is_whole && *worlds == 0);
    let never: Vec<_> = never.map(|(what, _)| what).collect();
    if !never.is_empty() {
        println!("FAIL {name}: no world had any {never:?}");
    } else if failed.is_empty() {
        println!("PASS {name}: {seeds} seeds from {first}");
    }
    failed.is_empty() && never.is_empty()
}

/// In this many worlds every counted event must happen at least once.
const WORLDS_MANY: u64 = 1000;

/// The same for worlds of tapes, in which few kinds of events are counted.
const TAPE_WORLDS_MANY: u64 = 100;

#[cfg(not(feature = "planted"))]
fn planted(_first: u64, _seeds: u64) -> ExitCode {
    eprintln!("PLANTED needs a build with the feature planted: make sim-planted");
    ExitCode::from(2)
}

/// Plants one bug after the other and checks that it is found.
#[cfg(feature = "planted")]
fn planted(first: u64, seeds: u64) -> ExitCode {
    use sim::planted_bug::PlantedBug;
    panic::set_hook(Box::new(|_| {}));
    let only = env::var("BUG").ok();
    let (mut tried, mut missed) = (0, 0);
    for bug in PlantedBug::all() {
        if only.as_ref().is_some_and(|only| *only != format!("{bug:?}")) {
            continue;
        }
        let kinds: &[WorldKind] = match bug {
            PlantedBug::HyperScsi(_) => &[WorldKind::HyperScsi],
            PlantedBug::Iscsi(iscsi::fault_injection::Bug::ReplayWrites) => {
                &[WorldKind::Iscsi, WorldKind::TapeIscsi]
            }
            PlantedBug::Unit(device::fault_injection::Bug::ReadLengthUntold) => &[WorldKind::TapeIscsi],
            PlantedBug::Cartridge(_) => &[WorldKind::Tape],
            PlantedBug::Unit(bug) if bug.is_of_tapes() => &[WorldKind::Tape],
            PlantedBug::Unit(
                device::fault_injection::Bug::WritesFailUncaused
                | device::fault_injection::Bug::WritesAbortedUncaused
                | device::fault_injection::Bug::WritesBusyUncaused
                | device::fault_injection::Bug::WritesFullUncaused
                | device::fault_injection::Bug::WritesConflictUncaused
                | device::fault_injection::Bug::AttentionsToldAgain
                | device::fault_injection::Bug::ResetsUntold
                | device::fault_injection::Bug::PreemptionsUntold
                | device::fault_injection::Bug::ReleasesUntold
                | device::fault_injection::Bug::MergedResetsToldTwice
                | device::fault_injection::Bug::ResetsUntoldToAborted,
            ) => &[WorldKind::Iscsi, WorldKind::HyperScsi],
            _ => &[WorldKind::Iscsi],
        };
        tried += kinds.len();
        missed += kinds.iter().filter(|kind| !find(bug, **kind, first, seeds)).count();
    }
    if missed == 0 && tried > 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// Plants a bug. Returns whether worlds of a kind show it.
#[cfg(feature = "planted")]
fn find(bug: sim::planted_bug::PlantedBug, carrier: WorldKind, first: u64, seeds: u64) -> bool {
    use base::fault_injection::inject;
    let (name, began) = (carrier.name(), Instant::now());
    inject(Some(bug.name()));
    let wanted = Property::broken_by(bug);
    let (mut found, mut others) = (None, 0_u64);
    for seed in first..first.saturating_add(seeds) {
        let Err(failed) = quietly(carrier, seed, 0) else { continue };
        if wanted.is_empty() || failed.properties.iter().any(|broken| wanted.contains(broken)) {
            found = Some((seed, failed.what));
            break;
        }
        others += 1;
    }
    inject(None);
    let took = began.elapsed().as_secs_f64();
    let names: Vec<_> = wanted.iter().map(|property| property.name()).collect();
    match found {
        Some((seed, what)) => {
            // The same seed must pass without the bug, or the failure was not caused by the bug.
            let line = what.lines().find(|line| wanted.iter().any(|one| line.contains(one.name())));
            let line = line.or_else(|| what.lines().last()).unwrap_or_default().trim();
            match quietly(carrier, seed, 0) {
                Ok(_) => {
                    println!(
                        "PASS planted {bug:?}: found by {name} seed {seed} in {took:.1} s, {others} other findings before: {line:.200}"
                    );
                    true
                }
                Err(_) => {
                    println!("FAIL planted {bug:?}: {name} seed {seed} fails without it, too");
                    false
                }
            }
        }
        None => {
            println!(
                "FAIL planted {bug:?}: {seeds} seeds of {name} do not show that it breaks {names:?}; {others} fail otherwise"
            );
            false
        }
    }
}
