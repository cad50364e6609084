//! A tape drive as an initiator observes it, through a whole logical unit.

mod alerts;
mod append_only;
mod copying;
mod deferred;
mod encryption;
mod faults;
mod fixture;
mod format;
mod handover;
mod library;
mod media;
mod modes;
mod motion;
mod nexus_settings;
mod protection;
mod reading;
mod reports;
mod table;
mod tasks;
mod writing;

use fixture::*;
