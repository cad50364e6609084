//! Mount namespaces that live as long as a value.

use std::fs::File;
use std::io;

use nix::sched::{CloneFlags, setns, unshare};
use rustix::mount::{MountPropagationFlags, mount_change};

use super::namespace::{on_new_thread, system};
use crate::experiment::LabError;

/// A mount namespace without a name: nobody else sees what is mounted in it. The kernel unmounts that when
/// this value is gone and no process is left in the namespace, however this process ends.
#[derive(Debug)]
pub(crate) struct MountNamespace(File);

impl MountNamespace {
    /// Creates a namespace that has the mounts of this process.
    ///
    /// # Errors
    /// [`LabError::System`], without `CAP_SYS_ADMIN` for instance.
    pub(crate) fn create() -> Result<Self, LabError> {
        let made = on_new_thread(|| -> io::Result<Self> {
            unshare(CloneFlags::CLONE_NEWNS)?;
            // Otherwise a mount here would also appear where the others come from.
            mount_change("/", MountPropagationFlags::PRIVATE | MountPropagationFlags::REC)?;
            Ok(Self(File::open("/proc/thread-self/ns/mnt")?))
        });
        made.and_then(|made| made).map_err(|why| system("create a mount namespace", why))
    }

    /// Runs `work` on a thread in this namespace, and waits for its end. The threads and processes that
    /// `work` starts are in this namespace too, and in the network namespace of the caller.
    ///
    /// # Errors
    /// [`LabError::System`] if there can be no such thread, or if it panics.
    pub(crate) fn run<T: Send>(&self, work: impl FnOnce() -> T + Send) -> Result<T, LabError> {
        let done = on_new_thread(|| -> io::Result<T> {
            // Threads share their working directory, and such a thread cannot change its mounts.
            unshare(CloneFlags::CLONE_FS)?;
            setns(&self.0, CloneFlags::CLONE_NEWNS)?;
            Ok(work())
        });
        done.and_then(|done| done).map_err(|why| system("run a thread in a mount namespace", why))
    }
}
