//! Load for the benchmarks, the same for every target: it links nothing of ours, so that it judges all with
//! the same eyes. Prints one JSON object per run on stdout.
//!
//! * `echo-server` and `echo`: what this machine's TCP can do with the shapes of iSCSI (a 48-byte request, an
//!   answer of 48 bytes and a block, or the other way round). The bound that a target is measured against.
//! * `disk`: reads or writes of a minimal initiator. It does nothing a benchmark does not need, and leaves
//!   data digests of reads unchecked after the first ones, so that what is measured is the target.
//! * `sessions`: logs in many times and stays.
//! * `aoe`: reads or writes of an initiator of ATA over Ethernet, over the packet socket that is its standard
//!   input.

mod aoe;
mod arguments;
mod crc32c;
mod disk;
mod echo;
mod exchange;
mod session;
mod sessions;

use std::process::ExitCode;

use arguments::Arguments;

const USAGE: &str = "usage: load echo-server ADDR:PORT
       load echo ADDR:PORT --rw read|write --bs BYTES --depth N --seconds S
       load disk ADDR:PORT TARGET LUN --rw read|write --bs BYTES --depth N --seconds S [--random] [--digests]
       load sessions ADDR:PORT TARGET N
       load aoe MAC --shelf N --slot N --mtu BYTES --disk BYTES --rw read|write --bs BYTES --depth N --seconds S [--random] <SOCKET";

fn main() -> ExitCode {
    let mut arguments = Arguments::of_process();
    let outcome = match arguments.next_word().as_deref() {
        Some("echo-server") => echo::serve(arguments),
        Some("echo") => echo::run(arguments),
        Some("disk") => disk::run(arguments),
        Some("aoe") => aoe::run(arguments),
        Some("sessions") => sessions::run(arguments),
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
