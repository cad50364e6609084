//! The engine, tested against raw initiators.

mod admission;
mod alive;
mod chaos;
mod clauses;
mod commands;
mod data_out;
mod erl1;
mod erl2;
mod handover;
mod happy;
mod management;
mod mcs;
mod memory_waiters;
mod notes;
mod passwords;
mod sessions;
mod stall;
mod stream;
mod text;
mod tracing;
mod world;
