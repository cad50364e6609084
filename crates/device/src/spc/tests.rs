//! The commands as an initiator observes them, through a whole logical unit. A test of a behaviour that
//! libiscsi's suite requires names the case.

mod access;
mod fixture;
mod identity;
mod media;
mod modes;
mod persistent;
#[cfg(feature = "planted")]
mod planted;
mod reports;
mod reserve;
mod robustness;
mod saving;
mod tables;
mod write_cache;

use fixture::*;
