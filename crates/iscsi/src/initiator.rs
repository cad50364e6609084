//! The initiator role of iSCSI: one session as a machine without I/O (RFC 7143, RFC 7144).
//!
//! [`Session`] has the network side of a [`base::state_machine::StreamMachine`], for the connections of one session; it opens
//! none by itself but asks for them ([`contract::Event::Connect`]). [`contract`] is what it is told and what it tells.
//! After every call its owner polls [`Session::poll_event`] until there is none, then [`Session::poll_action`].
//!
//! ```
//! use base::buffer::{DataList, Pool};
//! use base::time::Instant;
//! use iscsi::initiator::Session;
//! use iscsi::initiator::contract::{Event, Portal, Purpose, Request, SessionPlan};
//! use iscsi::login::directory::TargetAddress;
//! use iscsi::name::Isid;
//! use iscsi::pdu::ahs::Cdb;
//!
//! let target = Purpose::Target("iqn.2026-01.com.example:disk".parse()?);
//! let portal = Portal { address: TargetAddress::Socket(([192, 0, 2, 1], 3260).into()), group: None };
//! let isid = Isid::random([0x12, 0x34, 0x56], 0);
//! let plan = SessionPlan::new("iqn.2026-01.com.example:host".parse()?, isid, target, vec![portal]);
//! let mut session = Session::new(Instant::ORIGIN, plan, Pool::new(16 << 20));
//!
//! // READ (10) of one block of 512 bytes. It waits until the session is up.
//! let cdb = Cdb::new([0x28, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0], None);
//! let task = session.submit(Instant::ORIGIN, Request { data_in_len: 512, ..Request::new(0, cdb) })?;
//!
//! while let Some(event) = session.poll_event() {
//!     match event {
//!         // Open a TCP connection, then call `session.connected(now, conn, slot, entropy)`.
//!         Event::Connect { slot, to } => println!("connect {slot:?} to {to}"),
//!         Event::Done { task: done, outcome } => println!("{:?}: {:?}", done == task, outcome.end),
//!         event => println!("{event:?}"),
//!     }
//! }
//! # assert_eq!(session.open(), 1);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # How it is made
//!
//! * `issue` takes requests, keeps to the command window, and spreads them over connections: each goes to the one
//!   whose tasks move the least bytes. `send` builds what leaves, when it leaves, so that CmdSNs run in the order in
//!   which commands go out.
//! * `dispatch` reads PDUs; `data` takes Data-In, R2T and SCSI Response; `tmf`, `text`, `control` the rest.
//! * `login` brings connections up; `session_recovery` decides what becomes of a lost one; `retransmission` asks again for lost PDUs, and
//!   `resegmentation` for data that is to be cut anew.
//! * [`protocol_error`] is every rule that a target can break.
//!
//! # Data
//!
//! Data-Out leaves by reference from the request's own buffers. Data-In lands in one buffer per task, taken from the
//! pool when its first piece comes; a large piece that comes in order is lent to the driver, so that the kernel puts it
//! there. Offset and length of every piece are checked against the task before a byte is read: nothing that a target
//! says writes outside. A GOOD status whose data is not all there, but for what the residual count admits, is a broken
//! rule, so a caller never reads a hole.
//!
//! # What happens when something is lost
//!
//! | | level 0 | level 1 | level 2 |
//! |---|---|---|---|
//! | a data segment is damaged | session lost | asked for again | asked for again |
//! | a header is damaged | session lost | PDU skipped if its length is certain ([`crate::framing`]), what it held asked for again; else session lost | the same; else connection lost |
//! | a connection is lost | session lost | session lost | its tasks move to another, or to its successor |
//! | the target breaks a rule | session lost | session lost | session lost |
//!
//! A lost session is built anew as long as [`contract::Retry`] allows. Tasks that never left wait for it. Those that
//! did end as [`contract::TaskResult::Lost`], because nobody knows whether they were carried out, unless their owner said that
//! they may be repeated ([`contract::Request::replay`]). Recovery *within* a session carries nothing out twice: a command is
//! sent again only under the number for which the target waits, and everything else is moved by TASK REASSIGN.
//!
//! Data is asked for by its numbers (SNACK). Only data that was cut for another MaxRecvDataSegmentLength, because a new
//! one was negotiated while it was on its way, is not: its connection is given up, and another one brings it anew.
//!
//! Whether a status may be acknowledged depends on its data: while data of a task is missing, ExpStatSN stays before
//! its status, because a target may forget the data of acknowledged statuses (RFC 7143 §11.16.3). Every request acknowledges; when
//! none leaves for [`contract::Limits::acknowledge_after`], a NOP-Out does, so that the target need keep nothing for a
//! session that rests.
//!
//! # What a new session may find
//!
//! Another device may be behind a LUN than in the session before. A unit that its owner guards ([`Session::require_identity_check`]) gets
//! nothing in a new session but the question which device it is ([`contract::Request::is_identity_check`]), until the owner vouches
//! for it or ends what waits.
//!
//! # Bounds
//!
//! Tasks by [`contract::Limits::tasks_max`], management requests by [`contract::MAX_TMFS`], one text conversation at a
//! time, lists by [`crate::discovery::MAX_TARGETS`], answers to pings that the target does not read, redirections,
//! repeated repairs, replays: each has its constant where it is enforced.

mod connection_slot;
pub mod contract;
mod control;
mod data;
mod dispatch;
mod identity_check;
mod issue;
mod login;
mod progress;
pub mod protocol_error;
mod resegmentation;
mod retransmission;
mod send;
mod session;
mod session_recovery;
mod task;
mod text;
mod tmf;

pub use session::Session;

#[cfg(test)]
mod tests;
