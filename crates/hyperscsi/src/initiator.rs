//! The initiator role: one session with one target, over as many paths as there are.
//!
//! * [`session`] is the value that the owner holds; [`contract`] is what it tells and is told.
//! * `connect` looks for the target, shakes hands, and does both again after a loss, within [`contract::Retry`].
//! * `issue` numbers requests and sends them, `reply` takes what the target says, `task_management` is task management.
//! * `identity_check` holds back what is meant for a unit that may be another one in a new session.
//! * `nexus_loss` decides what becomes of requests when the nexus is lost; `closing` says and hears the last words of a session.
//!
//! A request leaves under its number once, and the transport below repeats what is lost on the way: within a session nothing
//! runs twice. When the session itself is lost (the target restarted, or every path was dead for too long), nobody can know
//! whether a request ran, and only those are carried out again whose owner said that this does no harm.
//!
//! **Invariant:** nothing here knows what a CDB means.

mod closing;
mod connect;
pub mod contract;
mod identity_check;
mod issue;
mod nexus_loss;
mod progress;
mod reply;
pub mod session;
mod task;
mod task_management;
