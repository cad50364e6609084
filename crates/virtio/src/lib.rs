//! The driver half of virtio, as a front end of vhost-user needs it: memory that two processes share
//! ([`memory`]), a split virtqueue in it ([`ring`]), and the requests of block devices ([`blk`])
//! and of SCSI devices ([`scsi`]).
//!
//! The standard is VIRTIO 1.2. The other half is a process that somebody else wrote. It can write anything
//! into the shared memory at any time. So this half keeps its own state in memory of its own, reads back
//! nothing that it wrote, and checks every value that it reads.
//!
//! **Invariant:** knows no socket, no message of vhost-user and no clock.
#![forbid(unsafe_code)]

pub mod blk;
pub mod memory;
pub mod ring;
pub mod scsi;
