//! A medium changer as an initiator observes it, through a whole logical unit.

mod commands;
mod elements;
mod fixture;
mod handover;
mod operators;

use fixture::*;
