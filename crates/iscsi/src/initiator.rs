//! The initiator role of iSCSI: one session as a machine without I/O.

pub mod contract;
pub mod why;
