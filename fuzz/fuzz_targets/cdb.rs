//! Commands with any CDB and any parameter list, task management, resets and time, against a unit of each
//! configuration.
#![no_main]

use ground::unit::torment;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|input: &[u8]| torment(input));
