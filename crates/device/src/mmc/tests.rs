//! A drive for discs as an initiator observes it, through a whole logical unit.

mod configuration;
mod durability;
mod fixture;
mod information;
mod media;
mod reading;
mod replacing;
mod rewritable;
mod sequential;
mod table;
mod verifying;

use fixture::*;
