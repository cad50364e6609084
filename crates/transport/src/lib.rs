//! What every SCSI transport does: the transport protocol services of SAM-5 §5.4, §7.12, for both roles.
//!
//! A transport's target role reports [`target::Event`]s and implements [`target::TargetTransport`]. The layer
//! above it needs to know nothing else of a transport to execute commands and task management functions.
//!
//! All values are owned, or shares of reference-counted buffers: none borrows the state of a connection or
//! of a logical unit.
//!
//! **Invariant:** this crate knows no single transport, no device type, and no content of a CDB.
#![no_std]
#![forbid(unsafe_code)]

extern crate alloc;

pub mod command;
mod handle;
pub mod identity_check;
pub mod initiator;
pub mod lun_queues;
pub mod quota;
pub mod status;
pub mod target;
pub mod task_management;
