//! An iSCSI initiator as a library: discover targets, log in, and use their logical units.
//!
//! The protocol is [`iscsi`]'s machine, sockets and timers are [`drivers`]' reactor; this room joins the two and adds
//! what a user of disks wants: URLs, block I/O and any CDB, attentions handled, large I/O cut into what the device
//! takes, lost sessions built anew within limits that the caller sets.
//!
//! **Invariant:** knows nothing of the kernel's block layer, of command lines, and of how to print.
#![forbid(unsafe_code)]

pub mod answer;
pub mod client;
pub mod command;
pub mod discover;
pub mod disk;
pub mod down;
pub mod driver;
pub mod login;
pub mod open;
pub mod sessions;
pub mod unit;
pub mod url;

mod care;
