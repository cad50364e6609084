//! The session state machine against the target's engine, and against a target that a test scripts.

mod asked;
mod clauses;
mod handover;
mod hostile;
mod identity_check;
mod leave;
mod lost;
mod pair;
mod passwords;
mod portals;
mod progress;
mod reassignment;
mod recovery;
mod resegmentation;
mod scripted_target;
mod sealed;
mod text;
mod together;
mod waits;
