//! The daemon: from a configuration to a running target. This crate reads the configuration file and the
//! flags, serves the admin socket, reloads, and starts and stops the reactors.
//!
//! **Invariant:** this crate knows no syntax of the command line beyond the flags that build a configuration,
//! and touches no session itself: it posts to the reactor that owns the session.
#![forbid(unsafe_code)]

pub mod admin;
mod answers;
pub mod config;
pub mod config_file;
pub mod disc_image;
pub mod fault_injection;
pub mod http;
pub mod library;
pub mod log;
pub mod luks;
mod mailbox;
pub mod passwords;
mod random;
pub mod serve;

mod file_attributes;
#[cfg(test)]
mod scratch;

/// Returns whether an error of the system says that a medium, or the way to it, fails: nothing that the
/// configuration could change.
pub(crate) fn is_medium_fault(error: &std::io::Error) -> bool {
    use rustix::io::Errno;
    matches!(
        Errno::from_io_error(error),
        Some(
            Errno::IO
                | Errno::NXIO
                | Errno::NODEV
                | Errno::NOMEDIUM
                | Errno::STALE
                | Errno::TIMEDOUT
                | Errno::REMOTEIO
                | Errno::NODATA
                | Errno::BADMSG
                | Errno::UCLEAN
                | Errno::NOLINK
                | Errno::NOTCONN
                | Errno::SHUTDOWN
                | Errno::HOSTDOWN
                | Errno::HOSTUNREACH
                | Errno::NETDOWN
                | Errno::NETUNREACH
                | Errno::CONNREFUSED
                | Errno::CONNRESET
                | Errno::CONNABORTED
        )
    )
}

/// Returns the message of an operating system error in lower case, without Rust's `(os error 2)`.
pub(crate) fn os_error(error: &std::io::Error) -> String {
    let text = error.to_string();
    text.split(" (os error").next().unwrap_or_default().to_lowercase()
}
