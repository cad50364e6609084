//! The block status that a client receives: which parts of the disk have storage.

use store::api::{Extent, ExtentState};

use ::nbd::wire::{STATE_HOLE, STATE_ZERO};
use base::int_cast::to_u32;

/// Returns the descriptors of a block status: at least one, together no longer than the queried range.
pub(super) fn descriptors(at: u64, len: u32, extents: &[Extent]) -> Vec<u8> {
    let mut runs: Vec<(u64, u32)> = Vec::new();
    let mut left = u64::from(len);
    let mut expected = at;
    for extent in extents {
        // An extent that is out of order ends the list, because it does not describe the next range.
        if extent.at != expected || left == 0 {
            break;
        }
        let run = extent.len.min(left);
        let state = match extent.state {
            ExtentState::Mapped => 0,
            ExtentState::Hole => STATE_HOLE | STATE_ZERO,
            ExtentState::Anchored => STATE_ZERO,
        };
        match runs.last_mut() {
            Some((len, last)) if *last == state => *len += run,
            _ if run > 0 => runs.push((run, state)),
            _ => {}
        }
        left -= run;
        expected = expected.saturating_add(run);
    }
    if runs.is_empty() {
        runs.push((len.into(), 0));
    }
    runs.iter().flat_map(|(len, state)| [to_u32(*len).to_be_bytes(), state.to_be_bytes()]).flatten().collect()
}
