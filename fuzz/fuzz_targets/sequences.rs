//! Sequences of PDUs, raw bytes, time and lost connections, from several initiators to a whole target.
#![no_main]

use ground::whole::torment;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|input: &[u8]| torment(input));
