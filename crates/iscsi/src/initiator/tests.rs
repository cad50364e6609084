//! The session machine against the target's engine, and against targets that a test plays by hand.

mod anew;
mod asked;
mod guard;
mod hostile;
mod leave;
mod lost;
mod pair;
mod progress;
mod raw;
mod recovery;
mod together;
