//! Maps the faults of a medium to the error numbers that local programs see.

use store::api::Fault;

/// Returns the error number by which the kernel and its programs know a fault.
pub(crate) const fn of_fault(fault: Fault) -> i32 {
    match fault {
        Fault::Medium | Fault::Hardware | Fault::Gone | Fault::Bug => libc::EIO,
        Fault::NoSpace | Fault::OutOfRange => libc::ENOSPC,
        Fault::ReadOnly => libc::EROFS,
        Fault::Unsupported => libc::EOPNOTSUPP,
        // The kernel's own initiators report this error.
        Fault::Reserved => libc::EBADE,
        Fault::Forbidden => libc::EACCES,
        Fault::Busy => libc::EBUSY,
        Fault::Aborted | Fault::NotSubmitted => libc::ECANCELED,
    }
}
