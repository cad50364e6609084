//! Device servers and the SAM object model: logical units with their task sets, unit attentions and
//! reservations.
//!
//! The transport passes in a [`contract::Command`] and polls for [`contract::UnitEvent`]s. Data moves in
//! reference-counted buffers. A logical unit is a plain value on one thread. One reactor serves every nexus
//! that reaches the unit, so this crate needs no lock.
//!
//! **Invariant:** this crate knows no transport: neither how commands arrive, nor how data is fetched or
//! delivered.
#![no_std]
#![forbid(unsafe_code)]

extern crate alloc;
#[cfg(test)]
extern crate std;

mod alua;
mod changer;
pub mod contract;
mod copy;
mod copy_manager;
mod data_buffer;
mod device_server;
pub mod disc_record;
mod document;
pub mod drain;
#[cfg(test)]
mod drained_commands;
pub mod fault_injection;
mod flush;
pub mod handover;
mod identifying_info;
mod inquiry;
pub mod library;
mod log;
mod medium;
mod medium_error;
mod medium_partition;
mod medium_removal;
mod mmc;
mod mode;
mod nexus;
pub mod no_lun;
mod orw_generation;
mod pass_through;
mod passed_device;
pub mod persistent_state;
mod pr;
mod range_lock;
pub mod rate_limit;
mod recorder;
pub mod removal_obstacle;
mod report_luns;
mod sanitizer;
mod save_queue;
mod sbc;
mod self_test;
mod settings;
pub mod slow_command;
mod smc;
pub mod space_threshold;
mod spc;
mod spc2_reserve;
mod spc_state;
mod ssc;
pub mod state_decode_error;
pub mod stats;
mod tape_drive;
pub mod tape_identity;
mod task;
mod task_set;
mod task_timing;
#[cfg(test)]
mod testing;
mod third_party;
mod throttle;
mod timestamp;
mod tmf;
pub mod unit;
mod unit_attention;
mod write_parameters;
