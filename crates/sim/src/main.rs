//! Runs seeds. `SEEDS=n` runs so many, from `FIRST` (0) on; `SEED=n` runs one and prints all that happens. In a build with
//! `--cfg targe_planted`, each planted bug must be found within so many seeds.

use std::env;
use std::panic;
use std::process::ExitCode;
use std::time::Instant;

use sim::scenario::Scenario;
use sim::trace::Trace;
use sim::world::{self, Report};

fn main() -> ExitCode {
    let (Some(seeds), Some(first)) = (number("SEEDS", 2000), number("FIRST", 0)) else {
        return usage("SEEDS or FIRST");
    };
    #[cfg(targe_planted)]
    if env::var_os("SEED").is_none() {
        return planted(first, seeds);
    }
    match env::var("SEED").map(|seed| seed.parse()) {
        Ok(Ok(seed)) => one(seed),
        Ok(Err(_)) => usage("SEED"),
        Err(_) => many(first, seeds),
    }
}

fn usage(what: &str) -> ExitCode {
    eprintln!("{what} is not a number");
    ExitCode::from(2)
}

fn number(name: &str, default: u64) -> Option<u64> {
    env::var(name).map_or(Some(default), |value| value.parse().ok())
}

fn one(seed: u64) -> ExitCode {
    let scenario = Scenario::of(seed);
    println!("{scenario}");
    match world::run(&scenario, &Trace::new(0, true)) {
        Ok(report) => {
            println!("{report:?}");
            println!("PASS seed {seed}");
            ExitCode::SUCCESS
        }
        Err(failure) => {
            println!("{failure}");
            println!("FAIL seed {seed}");
            ExitCode::FAILURE
        }
    }
}

/// Runs one seed quietly. A panic is a failure like others.
fn quietly(seed: u64, kept: usize) -> Result<Report, String> {
    let trace = Trace::new(kept, false);
    let run = || world::run(&Scenario::of(seed), &trace);
    match panic::catch_unwind(panic::AssertUnwindSafe(run)) {
        Ok(Ok(report)) => Ok(report),
        Ok(Err(failure)) => Err(failure.to_string()),
        Err(cause) => {
            let text = cause.downcast_ref::<String>().map(String::as_str);
            let text = text.or_else(|| cause.downcast_ref::<&str>().copied()).unwrap_or("no text");
            Err(format!("{trace}panicked: {text}"))
        }
    }
}

#[cfg(not(targe_planted))]
fn many(first: u64, seeds: u64) -> ExitCode {
    let began = Instant::now();
    let mut failed = Vec::new();
    let (mut ends, mut judged) = ([0; 4], 0);
    for seed in first..first.saturating_add(seeds) {
        match quietly(seed, 12) {
            Ok(report) => {
                judged += report.judged;
                for (sum, count) in ends.iter_mut().zip(report.ends) {
                    *sum += count;
                }
                // A run that cannot be repeated is of little use: some of them are.
                if seed % 40 == 0 && quietly(seed, 0).map(|again| again.hash) != Ok(report.hash) {
                    println!("FAIL seed {seed}: another run of it went otherwise");
                    failed.push(seed);
                }
            }
            Err(what) => {
                println!("{what}\nFAIL seed {seed}: SEED={seed} make sim prints all of it");
                failed.push(seed);
            }
        }
    }
    let [done, broken, unknown, refused] = ends;
    println!(
        "{seeds} seeds from {first} in {:.1} s: {done} orders done, {broken} failed, {refused} refused, {unknown} lost; \
         {judged} blocks judged; {} seeds failed {failed:?}",
        began.elapsed().as_secs_f64(),
        failed.len(),
    );
    if failed.is_empty() {
        println!("PASS {seeds} seeds from {first}");
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    }
}

#[cfg(targe_planted)]
fn many(_first: u64, _seeds: u64) -> ExitCode {
    ExitCode::FAILURE
}

/// Plants one bug after the other and looks for it.
#[cfg(targe_planted)]
fn planted(first: u64, seeds: u64) -> ExitCode {
    use base::planted::{Bug, plant};
    panic::set_hook(Box::new(|_| {}));
    let mut missed = 0;
    for bug in Bug::ALL {
        let began = Instant::now();
        plant(Some(bug));
        let found = (first..first.saturating_add(seeds))
            .find_map(|seed| quietly(seed, 0).err().map(|what| (seed, what)));
        plant(None);
        let took = began.elapsed().as_secs_f64();
        match found {
            Some((seed, what)) => {
                // Without the bug the same seed must be quiet, or it was not the bug that was found.
                let line = what.lines().last().unwrap_or_default().trim();
                match quietly(seed, 0) {
                    Ok(_) => {
                        println!("PASS planted {bug:?}: found by seed {seed} in {took:.1} s: {line:.160}")
                    }
                    Err(_) => {
                        missed += 1;
                        println!("FAIL planted {bug:?}: seed {seed} fails without it, too");
                    }
                }
            }
            None => {
                missed += 1;
                println!("FAIL planted {bug:?}: not found in {seeds} seeds");
            }
        }
    }
    if missed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
