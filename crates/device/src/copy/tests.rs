//! Units joined by a router, copying among each other.

mod abort;
mod abuse;
mod extended;
mod faults;
mod models;
mod results;
mod rod;
mod world;
