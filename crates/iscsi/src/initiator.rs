//! The initiator role of iSCSI: one session as a state machine without I/O (RFC 7143, RFC 7144).
//!
//! [`Session`] has the network side of a [`base::state_machine::StreamMachine`], for the connections of one
//! session. It opens no connection and resolves no host name by itself, but requests that
//! ([`contract::Event::Connect`], [`contract::Event::Resolve`]). [`contract`] holds its requests and its
//! events. After every call the owner of the session polls [`Session::poll_event`]
//! until there is no event, then [`Session::poll_action`].
//!
//! ```
//! use base::buffer::{DataList, Pool};
//! use base::time::Instant;
//! use iscsi::initiator::Session;
//! use iscsi::initiator::contract::{Event, Portal, Purpose, SessionPlan};
//! use iscsi::login::directory::TargetAddress;
//! use iscsi::name::Isid;
//! use transport::command::Cdb;
//! use transport::initiator::{InitiatorTransport as _, Request};
//!
//! let target = Purpose::Target("iqn.2026-01.com.example:disk".parse()?);
//! let portal = Portal { address: TargetAddress::Socket(([192, 0, 2, 1], 3260).into()) };
//! let isid = Isid::random([0x12, 0x34, 0x56], 0);
//! let plan = SessionPlan::new("iqn.2026-01.com.example:host".parse()?, isid, target, vec![portal]);
//! let mut session = Session::new(Instant::ORIGIN, plan, Pool::new(16 << 20));
//!
//! // READ (10) of one block of 512 bytes. It waits until the session is up.
//! let cdb = Cdb::new(&[0x28, 0, 0, 0, 0, 0, 0, 0, 1, 0]).ok_or("no CDB")?;
//! let task = session.submit(Instant::ORIGIN, Request { data_in_len: 512, ..Request::new(0, cdb) })?;
//!
//! while let Some(event) = session.poll_event() {
//!     match event {
//!         // Open a TCP connection, then call `session.connected(now, conn, slot, entropy)`.
//!         Event::Connect { slot, to, .. } => println!("connect {slot:?} to {to}"),
//!         Event::Done { task: done, outcome } => println!("{:?}: {:?}", done == task, outcome.end),
//!         event => println!("{event:?}"),
//!     }
//! }
//! # assert_eq!(session.open_tasks(), 1);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # Modules
//!
//! * `services` is the interface to the layer above, [`transport::initiator::InitiatorTransport`]: it accepts
//!   requests, logouts and identity checks.
//! * `issue` observes the command window and spreads the requests over the connections: each request is sent
//!   on the connection with the least load (the bytes that its tasks transfer, and 4096 per task). `send`
//!   builds a PDU at the moment it is sent, so that CmdSNs rise in the order in which commands are sent.
//! * `dispatch` reads PDUs; `data` handles Data-In, R2T and SCSI Response; `tmf`, `text`, `logout`,
//!   `reject` and `control` handle the rest.
//! * `login` establishes connections; `session_recovery` decides what happens to a lost connection;
//!   `retransmission` requests lost PDUs again, and `resegmentation` requests data that must be cut again.
//! * `session` owns the state of a session; that of its parts is in `connection_slot`, `task`, `open_tmf` and
//!   `text_exchange`, which do not know the session.
//! * [`protocol_error`] lists every rule that a target can break; [`crate::recovery`] says what each costs.
//!
//! # Data
//!
//! Data-Out is sent by reference from the buffers of the request. Data-In is stored in one buffer per task,
//! taken from the pool when the first Data-In of the task arrives. The driver takes this buffer for a large
//! data segment that arrives in order, so that the kernel receives the bytes in place (zero copy). Offset and
//! length of every data segment are checked against the task before a byte is read: no field that a target
//! sends can cause a write outside the buffer. A GOOD status is a protocol error when data is missing that
//! the residual count does not account for, so a caller never reads a hole.
//!
//! # Error recovery levels
//!
//! | | level 0 | level 1 | level 2 |
//! |---|---|---|---|
//! | a data segment is damaged | session lost | asked for again | asked for again |
//! | a header is damaged | session lost | PDU skipped if its length is certain ([`crate::framing`]), what it held asked for again; else session lost | the same; else connection lost |
//! | a connection is lost | session lost | session lost | its tasks move to another, or to its successor |
//! | the target breaks a rule | session lost | session lost | session lost |
//!
//! A lost session is established again as long as [`transport::initiator::Retry`] allows. Tasks whose
//! commands were never sent wait for the new session. Tasks whose commands were sent end as
//! [`transport::initiator::TaskResult::Lost`], because the initiator cannot know whether the target executed
//! them, unless the caller marked them as repeatable ([`transport::initiator::Request::replay`]). Recovery
//! *within* a session executes no command twice: a command is sent again only under the CmdSN that the target
//! expects next, and every other task is moved by TASK REASSIGN.
//!
//! Lost data is requested by its numbers (SNACK). If another MaxRecvDataSegmentLength was negotiated after
//! the data was cut, the data is requested with new numbers (R-Data SNACK, `resegmentation`). The R2Ts of a
//! bidirectional command keep their numbers, so its data cannot be numbered again: the initiator gives up the
//! connection, and requests that data on another one.
//!
//! Whether a status may be acknowledged depends on the data of its task: while data is missing, ExpStatSN
//! stays below the StatSN of the status, because a target may discard the data of acknowledged statuses (RFC
//! 7143 §11.16.3). Every request acknowledges statuses. When no request is sent for
//! [`contract::Limits::acknowledge_after`], a NOP-Out acknowledges them, so that the target need keep no
//! statuses for an idle session.
//!
//! Another device may be behind a LUN than in the session before. A unit that its owner guards
//! ([`transport::identity_check`]) gets nothing in a new session but the commands of the check
//! ([`transport::initiator::Request::is_identity_check`]), until the owner confirms that it is the same
//! device, or ends the commands that wait.
//!
//! # Bounds
//!
//! Tasks by [`contract::Limits::tasks_max`], management requests by [`contract::MAX_TMFS`], one text
//! negotiation on each connection, lists by [`crate::discovery::MAX_TARGETS`], answers to pings that the
//! target does not read, redirections, repeated repairs, replays: each has its constant where it is enforced.

mod connection_slot;
pub mod contract;
mod control;
mod data;
mod dispatch;
mod host_addresses;
#[cfg(any(test, feature = "injected-keys"))]
mod injected_keys;
mod issue;
mod login;
mod logout;
mod open_tmf;
pub mod protocol_error;
mod reject;
mod resegmentation;
mod retransmission;
mod send;
mod services;
mod session;
mod session_recovery;
mod task;
mod text;
mod text_exchange;
mod tmf;

pub use session::Session;

#[cfg(test)]
mod tests;
