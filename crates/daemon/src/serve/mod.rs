//! The daemon's life: from a configuration to reactors that serve, reload, and the end.

#[allow(dead_code, reason = "the daemon that uses it comes with the target's machine")]
mod blueprint;
#[allow(dead_code, reason = "the daemon that uses it comes with the target's machine")]
mod first_login;
#[allow(dead_code, reason = "the daemon that uses it comes with the target's machine")]
mod portals;
#[allow(dead_code, reason = "the daemon that uses it comes with the target's machine")]
mod router;
#[allow(dead_code, reason = "the daemon that uses it comes with the target's machine")]
mod spread;
pub mod state;
