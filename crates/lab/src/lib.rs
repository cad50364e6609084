//! Tools that test and measure any SCSI target from outside: targe and others alike.
//!
//! * [`mod@bench`] loads logical units and measures rates and latencies.
//! * [`verify`] writes signed blocks, reads them back and reports those that are lost, stale, torn or
//!   damaged.
//! * [`wire`] forwards frames between two Ethernet interfaces and loses, duplicates, reorders and damages
//!   them.
//! * [`proxy`] relays TCP connections between an initiator and a target and injects faults into the iSCSI
//!   PDUs, which TCP checksums cannot detect.
//! * [`digests`] measures what iSCSI digests cost.
//! * [`hyperscsi`] measures HyperSCSI beside iSCSI.
//! * [`bed`] makes two hosts, a link between them and a target, on this machine.
//! * [`signature`](mod@signature) finds out whether a disk holds a file system or a partition table.
//! * [`corrupter`] damages exactly one PDU at a time and knows what it did.
//! * [`risk`] measures what becomes of damaged PDUs with and without digests.
//! * [`security`](mod@security) measures what encryption costs, in several layers.
//! * [`targets`] compares targets side by side.
//! * [`target_process`] starts a target as a child process, measures it, and ends it.
//! * [`experiment`] is what experiments have in common, [`plan`] what their plans can name, and [`report`]
//!   what they result in; [`machine`] describes where they ran.
//!
//! **Invariant:** this crate never links a target, so that it tests every target in the same way.
#![forbid(unsafe_code)]

pub mod bed;
pub mod bench;
mod client_load;
pub mod corrupter;
pub mod digests;
pub mod experiment;
pub mod hyperscsi;
pub mod machine;
pub mod plan;
pub mod proxy;
pub mod report;
pub mod risk;
mod rounds;
pub mod security;
pub mod signature;
pub mod statistics;
mod system_calls;
pub mod target_process;
pub mod targets;
mod text;
pub mod verify;
pub mod wire;
