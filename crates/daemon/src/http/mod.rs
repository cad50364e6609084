//! The HTTP server: connections, limits, and who may ask.
//!
//! [`server`] accepts connections on a thread of its own and bounds what a client can hold: memory, time and
//! connections. [`access`] decides which requests reach the routes, and how fast a client can try tokens.
//! [`shared_text`] has the bodies of responses, which clients share. What the routes answer is made by their
//! owner.
//!
//! **Invariant:** this module touches no session and knows no route.

pub mod access;
pub mod server;
pub mod shared_text;

#[cfg(test)]
mod tests;
