//! SCSI as bytes and nouns, for both roles: what a CDB, a sense, a LUN is, and how it stands on the wire.
//!
//! **Invariant:** no state and no transport: every function here maps bytes to values or values to bytes.
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
