//! I/O for state machines: sockets, timers, files, Ethernet interfaces and wake-ups.
//!
//! A [`reactor::Reactor`] is one thread with an event loop. It runs one
//! [`base::state_machine::StreamMachine`]: it accepts connections, passes received bytes to the state
//! machine, sends the bytes that the state machine puts into its batches, and carries out the file operations
//! of the media that the state machine works on. A state machine that is also a [`base::ether::FrameMachine`]
//! can be given Ethernet ports. Two engines do the system calls, io_uring and epoll. [`config::EngineChoice`]
//! selects one at start, and the reactor reports which one runs.
//!
//! Unsafe code is confined to the modules that allow it below: those that give the kernel pointers.
//!
//! **Invariant:** this crate knows no protocol and no medium; it moves bytes and time.
#![deny(unsafe_op_in_unsafe_fn)]

pub mod config;
pub mod ether;
pub mod fault_injection;
pub mod files;
pub mod inherited;
pub mod listener;
pub mod loop_device;
pub mod message_queue;
pub mod peer_credentials;
pub mod perf_counter;
pub mod reactor;
pub mod sg;
pub mod signals;
pub mod stats;
pub mod unreceived;
pub mod waker;

mod c_types;
mod candidate;
mod clock;
mod connecting;
mod connections;
mod engine;
mod epoll;
pub mod memory;
mod slab;
mod spin_policy;
mod tcp_acked;
mod threads;
mod uring;
