//! The session machine against the target's engine, and against targets that a test plays by hand.

mod asked;
mod hostile;
mod identity_check;
mod leave;
mod lost;
mod pair;
mod progress;
mod recovery;
mod resegmentation;
mod scripted_target;
mod together;
