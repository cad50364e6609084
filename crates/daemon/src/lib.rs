//! From a configuration to a running target: the configuration file and flags, the admin socket, reload and the
//! daemon's life.
//!
//! **Invariant:** this room knows no wording of the command line beyond the flags that build a configuration, and
//! touches no session itself: it posts to the reactor that owns it.
#![forbid(unsafe_code)]

pub mod admin;
pub mod config;
pub mod log;
pub mod serve;

#[cfg(test)]
mod scratch;

/// Returns the words of an operating system's error, without Rust's `(os error 2)`.
pub(crate) fn os_error(error: &std::io::Error) -> String {
    let text = error.to_string();
    text.split(" (os error").next().unwrap_or_default().to_lowercase()
}
