//! A process that the kernel needs to write pages back must not wait for pages to be written back.

/// Lets this thread, and those it starts from now on, allocate memory without waiting for it: the pages that the
/// kernel would write back first may be those of the file system on the disk that we serve. Returns whether the
/// system allows it, which takes CAP_SYS_RESOURCE; without it, a host that is out of memory may hang.
#[allow(unsafe_code, reason = "no safe wrapper of this call exists")]
pub fn set_io_flusher() -> bool {
    // The call takes any number of arguments of any types, and reads four of `unsigned long`: what else is passed leaves the
    // upper half of each to chance, and the kernel refuses unused ones that are not zero.
    let (on, unused): (libc::c_ulong, libc::c_ulong) = (1, 0);
    // SAFETY: this function takes no pointer, and its arguments have the types that it reads; it changes how the kernel serves
    // allocations of the calling thread, and nothing that Rust knows of.
    let result = unsafe { libc::prctl(PR_SET_IO_FLUSHER, on, unused, unused, unused) };
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
        let done = std::thread::spawn(set_io_flusher).join().unwrap();
        // Root in a container may lack the capability; everybody else lacks it.
        assert!(may || !done);
    }
}
