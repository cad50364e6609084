//! Network namespaces that live as long as a value.

use std::fs::File;
use std::io;

use nix::sched::{CloneFlags, setns, unshare};

use super::netlink::RouteSocket;
use crate::experiment::LabError;

/// A network namespace without a name: the kernel removes it, with its interfaces, when this value is gone
/// and no process or socket is left in it. That happens however the process ends.
#[derive(Debug)]
pub struct Namespace {
    file: File,
    route: RouteSocket,
}

impl Namespace {
    /// Creates a namespace. Its only interface is a loopback interface that is down.
    ///
    /// # Errors
    /// [`LabError::System`], without `CAP_SYS_ADMIN` for instance.
    pub fn create() -> Result<Self, LabError> {
        let made = on_new_thread(|| -> io::Result<Self> {
            unshare(CloneFlags::CLONE_NEWNET)?;
            let file = File::open("/proc/thread-self/ns/net")?;
            let namespace = Self { file, route: RouteSocket::open()? };
            calm();
            Ok(namespace)
        });
        made.and_then(|made| made).map_err(|why| system("create a network namespace", why))
    }

    /// Runs `work` on a thread in this namespace, and waits for its end. The threads and processes that
    /// `work` starts are in this namespace too.
    ///
    /// # Errors
    /// [`LabError::System`] if there can be no such thread, or if it panics.
    pub fn run<T: Send>(&self, work: impl FnOnce() -> T + Send) -> Result<T, LabError> {
        let done = on_new_thread(|| -> io::Result<T> {
            setns(&self.file, CloneFlags::CLONE_NEWNET)?;
            Ok(work())
        });
        done.and_then(|done| done).map_err(|why| system("run a thread in a network namespace", why))
    }

    pub(super) const fn file(&self) -> &File {
        &self.file
    }

    pub(super) const fn route(&self) -> &RouteSocket {
        &self.route
    }
}

pub(super) fn on_new_thread<T: Send>(work: impl FnOnce() -> T + Send) -> io::Result<T> {
    std::thread::scope(|scope| {
        let thread = std::thread::Builder::new().name("bed".to_owned()).spawn_scoped(scope, work)?;
        thread.join().map_err(|_| io::Error::other("the thread panicked"))
    })
}

/// Keeps traffic and memory off the link that a measurement does not expect: IPv6 autoconfiguration, and what
/// TCP learned about the path before it was changed. Without these settings the link works too.
fn calm() {
    for (setting, value) in [
        ("ipv6/conf/all/disable_ipv6", "1"),
        ("ipv6/conf/default/disable_ipv6", "1"),
        ("ipv4/tcp_no_metrics_save", "1"),
    ] {
        let _ = std::fs::write(format!("/proc/sys/net/{setting}"), value);
    }
}

pub(super) fn system(what: &str, why: io::Error) -> LabError {
    LabError::System { what: what.to_owned(), why }
}
