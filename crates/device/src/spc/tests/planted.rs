//! The bugs that can be planted in a logical unit, which only `device` can enable for its tests.

extern crate std;

use std::panic::catch_unwind;

use base::fault_injection::inject;

use super::saving::{
    a_preemption_that_is_aborted_while_it_is_saved_aborts_all_the_same,
    a_reservation_that_cannot_be_saved_changes_nothing, mode_parameters_that_cannot_be_saved_change_nothing,
    two_changes_at_once_are_both_saved,
};
use crate::fault_injection::Bug;

/// For each planted bug, the test that looks for it must fail.
#[test]
fn planted_bugs_are_found() {
    for bug in Bug::OF_SAVING.iter().copied() {
        let finds: fn() = match bug {
            Bug::ReserveUnsaved => a_reservation_that_cannot_be_saved_changes_nothing,
            Bug::SettingsUnsaved => mode_parameters_that_cannot_be_saved_change_nothing,
            Bug::SpareVictims => a_preemption_that_is_aborted_while_it_is_saved_aborts_all_the_same,
            Bug::SaveTogether => two_changes_at_once_are_both_saved,
            other => panic!("no test looks for {other:?}"),
        };
        finds();
        inject(Some(bug.name()));
        let found = catch_unwind(finds).is_err();
        inject(None);
        assert!(found, "{bug:?} is not found");
    }
}
