//! The admin protocol: one JSON object per line over a Unix socket that only its owner can open.
//!
//! [`api`] has every type that travels, [`document`] writes `docs/admin-api.json` from them, [`server`] and [`client`]
//! are the two ends. What the daemon answers with comes from whoever implements [`server::RequestHandler`].
//!
//! **Invariant:** nothing here touches a session; questions are posted to the reactors, and waiting is bounded.

pub mod api;
pub mod client;
pub mod document;
pub mod server;
mod socket_dir;

#[cfg(test)]
mod tests;
