//! Sequences of commands with parameter lists (MODE SELECT, PERSISTENT RESERVE OUT, UNMAP, WRITE BUFFER,
//! copies, SANITIZE and the like), of commands that report, and of what happens between them, against a unit
//! of each configuration.
#![no_main]

use ground::unit::torment_with_lists;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|input: &[u8]| torment_with_lists(input));
