//! The hands of the machines: sockets, timers, files and wake-ups.
//!
//! A [`reactor::Reactor`] runs one [`base::state_machine::StreamMachine`] on one thread. It accepts connections, hands
//! received bytes over, sends what the machine puts into its batches, and carries file operations for the media
//! that the machine works on. A machine that is a [`base::ether::FrameMachine`] too is given Ethernet ports. Two engines do the system calls, io_uring and epoll; [`config::EngineChoice`] picks
//! one at start, and the reactor says which it became.
//!
//! Unsafe code is confined to the modules that say so below: those that give the kernel pointers.
//!
//! **Invariant:** this room knows no protocol and no medium; it moves bytes and time.
#![deny(unsafe_op_in_unsafe_fn)]

pub mod config;
pub mod ether;
pub mod files;
pub mod listener;
pub mod message_queue;
pub mod reactor;
pub mod stats;

mod clock;
mod connecting;
mod connections;
mod engine;
mod epoll;
mod memory;
mod slab;
mod spin_policy;
mod tcp_acked;
mod threads;
mod uring;
mod waker;
