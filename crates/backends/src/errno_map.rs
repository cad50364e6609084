//! Maps system errors to faults of a medium.

use drivers::files::{Errno, NOT_BEGUN};
use store::api::Fault;

/// Returns the kind of failure that a device server can report for a system error.
pub fn fault_of(errno: Errno) -> Fault {
    match errno {
        // A file at the size limit of its file system, or of its owner's quota, has no space either.
        Errno::NOSPC | Errno::DQUOT | Errno::FBIG => Fault::NoSpace,
        Errno::ROFS | Errno::PERM | Errno::ACCESS | Errno::BADF | Errno::TXTBSY => Fault::ReadOnly,
        Errno::NODEV | Errno::NXIO | Errno::NOMEDIUM | Errno::STALE | Errno::SHUTDOWN | Errno::NOTCONN => {
            Fault::Gone
        }
        Errno::OPNOTSUPP | Errno::NOSYS | Errno::NOTTY => Fault::Unsupported,
        NOT_BEGUN => Fault::NotSubmitted,
        // The kernel rejects the arguments of the call, which are our responsibility.
        Errno::INVAL | Errno::FAULT => Fault::Bug,
        _ => Fault::Medium,
    }
}

/// Returns the kind of failure for the error of a sync, or of a stable write. Every file that is served
/// supports these, so an error that says otherwise is that of a write-back.
pub(crate) fn sync_fault_of(errno: Errno) -> Fault {
    match fault_of(errno) {
        Fault::Unsupported => Fault::Medium,
        fault => fault,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_error_has_its_fault() {
        let table = [
            (Errno::IO, Fault::Medium),
            (Errno::NOSPC, Fault::NoSpace),
            (Errno::DQUOT, Fault::NoSpace),
            (Errno::FBIG, Fault::NoSpace),
            (Errno::ROFS, Fault::ReadOnly),
            (Errno::PERM, Fault::ReadOnly),
            (Errno::BADF, Fault::ReadOnly),
            (Errno::NODEV, Fault::Gone),
            (Errno::NXIO, Fault::Gone),
            (Errno::STALE, Fault::Gone),
            (Errno::OPNOTSUPP, Fault::Unsupported),
            (Errno::INVAL, Fault::Bug),
            (Errno::ILSEQ, Fault::Medium),
            (Errno::TIMEDOUT, Fault::Medium),
            (NOT_BEGUN, Fault::NotSubmitted),
        ];
        for (errno, fault) in table {
            assert_eq!(fault_of(errno), fault, "{errno}");
        }
    }

    #[test]
    fn no_error_is_without_a_fault() {
        for number in 1..=133 {
            let fault = fault_of(Errno::from_raw_os_error(number));
            assert_ne!(fault, Fault::OutOfRange, "error {number} says nothing of ranges");
        }
    }
}
