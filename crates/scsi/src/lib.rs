//! SCSI data structures for initiators and targets, such as CDBs, sense data, LUNs and pages: their values
//! and their bytes on the wire.
//!
//! **Invariant:** this crate has no state and no transport: every function maps bytes to values or values to
//! bytes.
#![no_std]
#![forbid(unsafe_code)]

extern crate alloc;

pub mod block;
pub mod cdb;
pub mod copy;
pub mod inquiry;
pub mod log;
pub mod lun;
pub mod mode;
pub mod opcode;
pub mod pr;
pub mod sense;
pub mod status;
pub mod supported;
pub mod target_port_groups;
pub mod transport_id;
pub mod vpd;
