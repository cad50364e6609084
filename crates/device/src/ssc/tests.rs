//! A tape drive as an initiator observes it, through a whole logical unit.

mod deferred;
mod faults;
mod fixture;
mod library;
mod media;
mod modes;
mod motion;
mod reading;
mod reports;
mod table;
mod tasks;
mod writing;

use fixture::*;
