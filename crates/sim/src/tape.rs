//! Worlds of a tape library: a medium changer with two drives and three cartridges, two initiators that use
//! them at the same time, and a judge.
//!
//! Initiators call the units directly ([`crate::transport::direct`]), or over iSCSI
//! ([`crate::transport::iscsi`]): tasks are aborted, units are reset, I_T nexuses are lost. The process of
//! the target is killed, or its power is cut, at any time. The judge (`judge`) knows every state that the
//! library can be in, and each answer excludes the states in which it would have been another one.

mod block_len;
mod command;
mod judge;
mod library;
mod model;
mod plan;
mod position;
mod shelf;
mod world;

pub use plan::TapePlan;
pub use world::run;
