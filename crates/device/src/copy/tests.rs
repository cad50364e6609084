//! Tests of copies among units that a router connects.

mod abort;
mod abuse;
mod extended;
mod faults;
mod models;
mod results;
mod rod;
mod units;
mod world;
