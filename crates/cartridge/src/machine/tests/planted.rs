//! The bugs that can be planted in a cartridge: the tests of crashes must find each.

use std::panic::catch_unwind;

use base::fault_injection::inject;

use super::interruption::{SEEDS, run_histories};
use crate::fault_injection::Bug;

/// The histories in which a bug must be found.
const SEEDS_MAX: u64 = 600;

#[test]
fn planted_bugs_are_found() {
    run_histories(0..SEEDS);
    for bug in Bug::ALL {
        inject(Some(bug.name()));
        let found = catch_unwind(|| run_histories(0..SEEDS_MAX)).is_err();
        inject(None);
        assert!(found, "{bug:?} is not found");
    }
}
