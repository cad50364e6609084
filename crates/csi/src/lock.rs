//! Locks that keep a second driver away.

use std::fs::File;
use std::io;
use std::path::Path;
use std::thread::sleep;
use std::time::{Duration, Instant};

use rustix::fs::{FlockOperation, flock};

use crate::link_free;

/// How long the lock of a process that has died may last: a child that it was starting has it until it runs
/// its own program.
const LEFT_OVER_MAX: Duration = Duration::from_secs(2);
const LOOK_AGAIN: Duration = Duration::from_millis(20);

/// Locks a file, until the result is dropped. `None` if another process has locked it.
pub(crate) fn take(path: &Path) -> io::Result<Option<File>> {
    let file = link_free::open_or_create(path)?;
    let began = Instant::now();
    loop {
        match flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => return Ok(Some(file)),
            Err(rustix::io::Errno::WOULDBLOCK) if began.elapsed() < LEFT_OVER_MAX => sleep(LOOK_AGAIN),
            Err(rustix::io::Errno::WOULDBLOCK) => return Ok(None),
            Err(error) => return Err(error.into()),
        }
    }
}
