//! The bugs that can be planted in a cartridge: the tests of crashes must find each.

use std::panic::catch_unwind;

use base::fault_injection::inject;

use super::interruption::what_was_synchronized_survives_every_interruption;
use crate::fault_injection::Bug;

#[test]
fn planted_bugs_are_found() {
    let finds = what_was_synchronized_survives_every_interruption;
    finds();
    for bug in Bug::ALL {
        inject(Some(bug.name()));
        let found = catch_unwind(finds).is_err();
        inject(None);
        assert!(found, "{bug:?} is not found");
    }
}
