//! Damages `PDUS` PDUs (default 1 000 000) between an initiator and a target in memory whose session has both
//! digests, a third of them at each ErrorRecoveryLevel, and a tenth as many for each of the other settings of
//! the digests. `SEED` (default 1) decides all random choices. Fails if both digests missed one, if the
//! counts are not exact, or if nothing is silent without digests.

use std::process::ExitCode;
use std::time::Instant;

use lab::plan::Digests;
use sim::risk::{Cell, Tally, run, violation};

fn main() -> ExitCode {
    let (Some(pdus), Some(seed)) = (number("PDUS", 1_000_000), number("SEED", 1)) else {
        eprintln!("PDUS or SEED is not a number");
        return ExitCode::from(2);
    };
    let mut failed = false;
    for digests in [Digests::Both, Digests::None, Digests::Header, Digests::Data] {
        let all = if digests == Digests::Both { pdus } else { pdus / 10 };
        let (began, mut sum) = (Instant::now(), Tally::default());
        for erl in 0..3_u8 {
            let cell = Cell { digests, erl, pdus: (all + u64::from(erl)) / 3, seed };
            let tally = run(cell);
            match violation(&cell, &tally) {
                None => println!("PASS {cell}, seed {seed}: {tally}"),
                Some(why) => println!("FAIL {cell}, seed {seed}: {why}: {tally}"),
            }
            failed |= violation(&cell, &tally).is_some();
            sum.add(tally);
        }
        println!("digests {}: {sum}, in {:.1} s", digests.name(), began.elapsed().as_secs_f64());
    }
    if failed { ExitCode::FAILURE } else { ExitCode::SUCCESS }
}

fn number(name: &str, default: u64) -> Option<u64> {
    std::env::var(name).map_or(Some(default), |value| value.parse().ok())
}
