//! What a failed operation is called where local programs look.

use store::api::Fault;

/// Returns the error number that the kernel and its programs know for a fault.
pub(crate) const fn of_fault(fault: Fault) -> i32 {
    match fault {
        Fault::Medium | Fault::Hardware | Fault::Gone | Fault::Bug => libc::EIO,
        Fault::NoSpace | Fault::OutOfRange => libc::ENOSPC,
        Fault::ReadOnly => libc::EROFS,
        Fault::Unsupported => libc::EOPNOTSUPP,
        // What the kernel's own initiators say.
        Fault::Reserved => libc::EBADE,
        Fault::Forbidden => libc::EACCES,
        Fault::Busy => libc::EBUSY,
        Fault::Aborted | Fault::NotSubmitted => libc::ECANCELED,
    }
}
