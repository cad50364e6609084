//! Load for the comparison of HyperSCSI with ATA over Ethernet. Prints one JSON object per run on stdout.
//!
//! * `aoe`: reads or writes of an initiator of ATA over Ethernet, over the packet socket that is its standard
//!   input.

mod aoe;
mod arguments;

use std::process::ExitCode;

use arguments::Arguments;

const USAGE: &str = "usage: load aoe MAC --shelf N --slot N --mtu BYTES --disk BYTES --rw read|write --bs BYTES --depth N \
     --seconds S [--random] <SOCKET";

fn main() -> ExitCode {
    let mut arguments = Arguments::of_process();
    let outcome = match arguments.next_word().as_deref() {
        Some("aoe") => aoe::run(arguments),
        _ => Err(USAGE.into()),
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(why) => {
            eprintln!("load: {why}");
            ExitCode::FAILURE
        }
    }
}

/// What can go wrong ends the run with a message.
type Failure = Box<dyn std::error::Error>;
