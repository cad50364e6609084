//! Marks threads that the kernel needs for writing back pages, so that their allocations do not wait for
//! that.

/// Lets this thread, and those that it starts from now on, allocate memory without waiting for write-back
/// (PR_SET_IO_FLUSHER): the pages that the kernel would write back first may belong to the file system on the
/// disk that this process serves. Returns whether the system allows it, which takes CAP_SYS_RESOURCE. Without
/// it, a host that is out of memory may hang.
#[allow(unsafe_code, reason = "no safe wrapper of this call exists")]
pub fn set_io_flusher() -> bool {
    // The call takes any number of arguments of any types, and reads four of `unsigned long`. A narrower
    // argument would leave the upper half undefined, and the kernel refuses unused arguments that are not
    // zero.
    let (on, unused): (libc::c_ulong, libc::c_ulong) = (1, 0);
    // SAFETY: this function takes no pointer, and its arguments have the types that it reads. It changes how
    // the kernel serves allocations of the calling thread, and nothing that Rust knows of.
    let result = unsafe { libc::prctl(PR_SET_IO_FLUSHER, on, unused, unused, unused) };
    result == 0
}

/// The number of the call; `libc` defines it for only one system.
const PR_SET_IO_FLUSHER: libc::c_int = 57;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn is_told_from_those_who_may_not() {
        // A thread of its own makes the call, so that the other threads of this process stay as they are.
        let may = rustix::process::geteuid().is_root();
        let done = std::thread::spawn(set_io_flusher).join().unwrap();
        // Root in a container may lack the capability; every other user lacks it.
        assert!(may || !done);
    }
}
