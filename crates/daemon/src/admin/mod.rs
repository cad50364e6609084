//! The admin protocol: one JSON object per line over a Unix socket that only its owner can open.
//!
//! [`api`], [`change_api`], [`counters_api`], [`event_api`], [`lun_api`], [`trace_api`] and [`upgrade_api`]
//! define every type of the protocol. From these types [`document`] generates `docs/admin-api.json` and
//! [`open_api`] `docs/http-api.json`. [`server`] and [`client`] are the two ends. The results that the daemon
//! returns are made by the implementation of [`server::RequestHandler`].
//!
//! **Invariant:** this module touches no session; requests are posted to the reactors, and every wait is
//! bounded.

pub mod api;
pub mod change;
pub mod change_api;
pub mod client;
pub mod counters_api;
pub mod document;
pub mod event_api;
pub mod lun_api;
pub mod open_api;
pub mod server;
pub mod shape;
mod socket_dir;
pub mod trace_api;
pub mod upgrade_api;

#[cfg(test)]
mod tests;
