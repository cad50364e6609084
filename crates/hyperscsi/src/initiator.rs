//! The initiator role: one session with one target, over one or more paths.
//!
//! * [`session`] is the value that the owner holds; [`contract`] holds the types of its interface.
//! * `connect` discovers the target and performs the handshake, and does both again after a loss, within
//!   [`transport::initiator::Retry`].
//! * `services` is the interface to the layer above, [`transport::initiator::InitiatorTransport`]: it accepts
//!   commands and task management requests, logouts and identity checks.
//! * `issue` numbers and sends requests, `reply` processes the target's replies, `task_management` is task
//!   management.
//! * `nexus_loss` decides which requests are repeated after an I_T nexus loss; `closing` exchanges the
//!   Disconnect messages at the end of a session.
//!
//! A request is sent once under its XID, and the transport below retransmits lost frames: within a session no
//! request is executed twice. When the session itself is lost (the target restarted, or every path was dead
//! for too long), the initiator cannot know whether a request was executed. Then it repeats only the requests
//! that their owner marked as safe to repeat.
//!
//! **Invariant:** this module does not interpret CDBs.

mod closing;
mod connect;
pub mod contract;
mod issue;
mod nexus_loss;
mod reply;
mod services;
pub mod session;
mod task;
mod task_management;
