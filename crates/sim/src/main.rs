//! Runs seeds. `SEEDS=n` runs so many, from `FIRST` (0) on; `SEED=n` runs one and prints all that happens.

use std::env;
use std::process::ExitCode;
use std::time::Instant;

use sim::scenario::Scenario;
use sim::trace::Trace;
use sim::world;

fn main() -> ExitCode {
    match env::var("SEED") {
        Ok(seed) => match seed.parse() {
            Ok(seed) => one(seed),
            Err(_) => usage("SEED"),
        },
        Err(_) => match (number("SEEDS", 200), number("FIRST", 0)) {
            (Some(seeds), Some(first)) => many(first, seeds),
            _ => usage("SEEDS or FIRST"),
        },
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
            ExitCode::SUCCESS
        }
        Err(failure) => {
            println!("{failure}");
            ExitCode::FAILURE
        }
    }
}

fn many(first: u64, seeds: u64) -> ExitCode {
    let began = Instant::now();
    let mut failed = Vec::new();
    let (mut ends, mut judged) = ([0; 4], 0);
    for seed in first..first.saturating_add(seeds) {
        let scenario = Scenario::of(seed);
        match world::run(&scenario, &Trace::new(12, false)) {
            Ok(report) => {
                judged += report.judged;
                for (sum, count) in ends.iter_mut().zip(report.ends) {
                    *sum += count;
                }
            }
            Err(failure) => {
                println!("FAIL seed {seed}\n{failure}");
                failed.push(seed);
            }
        }
    }
    let [done, refused, unknown, broken] = [ends[0], ends[3], ends[2], ends[1]];
    println!(
        "{seeds} seeds from {first} in {:.1} s: {done} orders done, {broken} failed, {refused} refused, {unknown} lost; \
         {judged} blocks judged; {} seeds failed {failed:?}",
        began.elapsed().as_secs_f64(),
        failed.len(),
    );
    if failed.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
