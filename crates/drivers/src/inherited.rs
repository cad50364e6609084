//! Descriptors that are known by their number: those that the program which started this process left open
//! for it, and those of libraries that know no other kind.

#![allow(unsafe_code, reason = "a descriptor is known by its number only")]

use std::io;
use std::os::fd::{FromRawFd, IntoRawFd, OwnedFd, RawFd};

/// Takes an inherited descriptor. From then on it is closed like any other, and no child process inherits it.
///
/// # Errors
/// The descriptor is not open, or this process opened it itself or has taken it already.
pub fn take(descriptor: RawFd) -> io::Result<OwnedFd> {
    // SAFETY: F_GETFD only reads a flag; it fails if the descriptor is not open.
    let flags = unsafe { libc::fcntl(descriptor, libc::F_GETFD) };
    if flags < 0 {
        return Err(io::Error::last_os_error());
    }
    if flags & libc::FD_CLOEXEC != 0 || descriptor < FIRST {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "not an inherited descriptor"));
    }
    // SAFETY: F_SETFD only sets a flag.
    if unsafe { libc::fcntl(descriptor, libc::F_SETFD, libc::FD_CLOEXEC) } < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the descriptor is open, and nothing else in this process owns it: it lacked FD_CLOEXEC, which
    // the standard library, rustix and this workspace set on each descriptor that they open, and which was
    // set here on each that was taken before.
    Ok(unsafe { OwnedFd::from_raw_fd(descriptor) })
}

/// Gives a descriptor to an owner of another type.
pub fn owner<T: FromRawFd>(descriptor: OwnedFd) -> T {
    // SAFETY: the descriptor is open, and its former owner gives it up.
    unsafe { T::from_raw_fd(descriptor.into_raw_fd()) }
}

/// The first descriptor that is not one of the standard streams.
const FIRST: RawFd = 3;

#[cfg(test)]
mod tests {
    use std::net::TcpListener;
    use std::os::fd::AsRawFd;

    use rustix::io::{FdFlags, fcntl_setfd};

    use super::*;

    #[test]
    fn a_descriptor_is_taken_once_and_only_if_it_was_inherited() {
        let socket = TcpListener::bind("127.0.0.1:0").unwrap();
        let descriptor = socket.as_raw_fd();
        assert!(take(descriptor).is_err(), "this process opened it");
        // As after an exec.
        fcntl_setfd(&socket, FdFlags::empty()).unwrap();
        let address = socket.local_addr().unwrap();
        std::mem::forget(socket);
        let taken = TcpListener::from(take(descriptor).unwrap());
        assert_eq!(taken.local_addr().unwrap(), address);
        assert!(take(descriptor).is_err(), "it was taken");
    }

    #[test]
    fn standard_streams_and_closed_descriptors_are_not_taken() {
        for descriptor in [-1, 0, 1, 2, 1_000_000] {
            assert!(take(descriptor).is_err(), "{descriptor}");
        }
    }
}
