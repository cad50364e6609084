//! The daemon: from a configuration to a running target. This crate reads the configuration file and the
//! flags, serves the admin socket, reloads, and starts and stops the reactors.
//!
//! **Invariant:** this crate knows no syntax of the command line beyond the flags that build a configuration,
//! and touches no session itself: it posts to the reactor that owns the session.
#![forbid(unsafe_code)]

pub mod admin;
pub mod config;
pub mod config_file;
pub mod disc_image;
pub mod fault_injection;
pub mod http;
pub mod library;
pub mod log;
pub mod luks;
pub mod passwords;
pub mod serve;

#[cfg(test)]
mod scratch;

/// Returns the message of an operating system error in lower case, without Rust's `(os error 2)`.
pub(crate) fn os_error(error: &std::io::Error) -> String {
    let text = error.to_string();
    text.split(" (os error").next().unwrap_or_default().to_lowercase()
}
