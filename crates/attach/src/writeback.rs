//! A process that the kernel needs to write pages back must not wait for pages to be written back.

/// Lets this thread, and those it starts from now on, allocate memory without waiting for it: the pages that the
/// kernel would write back first may be those of the file system on the disk that we serve. Returns whether the
/// system allows it, which takes CAP_SYS_RESOURCE; without it, a host that is out of memory may hang.
#[allow(unsafe_code, reason = "no safe wrapper of this call exists")]
pub fn never_wait_for_own_pages() -> bool {
    // SAFETY: this call takes no pointer; it changes how the kernel serves allocations of the calling thread, and
    // nothing that Rust knows of.
    let result = unsafe { libc::prctl(PR_SET_IO_FLUSHER, 1, 0, 0, 0) };
    result == 0
}

/// The number of the call; our binding of the system's names has it for one system only.
const PR_SET_IO_FLUSHER: libc::c_int = 57;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn is_told_from_those_who_may_not() {
        // Of a thread of its own: the others of this process stay as they are.
        let may = rustix::process::geteuid().is_root();
        let done = std::thread::spawn(never_wait_for_own_pages).join().unwrap();
        // Root in a container may lack the capability; everybody else lacks it.
        assert!(may || !done);
    }
}
