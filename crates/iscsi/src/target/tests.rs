//! The engine, tested against raw initiators.

mod admission;
mod alive;
mod chaos;
mod clauses;
mod commands;
mod control_memory;
mod data_out;
mod early_data;
mod erl1;
mod erl2;
mod handover;
mod happy;
mod logout_cause;
mod logout_orders;
mod management;
mod mcs;
mod memory_waiters;
mod notes;
mod numbering;
mod passwords;
mod sessions;
mod stall;
mod stream;
mod text;
mod tracing;
mod world;
