//! The last close of a file.
//!
//! A close can wait for the disk: NFS writes back what is in the page cache, and a local file system gives
//! back storage. So the thread of a reactor has its files closed by another thread, and so has every thread
//! that asks for it.

use std::cell::Cell;
use std::fs::File;
use std::mem::ManuallyDrop;
use std::ops::Deref;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

thread_local! {
    static CLOSES_ELSEWHERE: Cell<bool> = const { Cell::new(false) };
}

/// How many files are being closed by threads of their own.
static CLOSING: Mutex<usize> = Mutex::new(0);
static CLOSED: Condvar = Condvar::new();

/// Has the files that this thread drops from now on closed by another thread.
pub fn close_elsewhere() {
    CLOSES_ELSEWHERE.set(true);
}

/// A file that [`release`] closes when it is dropped.
#[derive(Debug)]
pub struct ReleasedFile(ManuallyDrop<File>);

impl From<File> for ReleasedFile {
    fn from(file: File) -> Self {
        Self(ManuallyDrop::new(file))
    }
}

impl Deref for ReleasedFile {
    type Target = File;

    fn deref(&self) -> &File {
        &self.0
    }
}

impl AsFd for ReleasedFile {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

impl Drop for ReleasedFile {
    #[allow(unsafe_code, reason = "the file moves to the thread that closes it")]
    fn drop(&mut self) {
        // SAFETY: this is the only place that takes the file, and nothing uses it after that.
        release(unsafe { ManuallyDrop::take(&mut self.0) });
    }
}

/// Closes `file`, on another thread if this one has asked for that ([`close_elsewhere`]).
pub fn release(file: File) {
    // A file that is dropped when the thread ends is closed there.
    if CLOSES_ELSEWHERE.try_with(Cell::get).unwrap_or(false) {
        close(file);
    }
}

/// Waits until the files that other threads close are closed, but at most for `patience`. Their
/// locks and claims last until then.
pub fn await_closes(patience: Duration) {
    // A panic of another thread leaves the number as it was, and the wait ends in time.
    drop(CLOSED.wait_timeout_while(count(), patience, |closing| *closing > 0));
}

/// Closes `file` without making the caller wait.
fn close(file: File) {
    /// Counts the file until it is closed.
    struct Closing(Option<File>);

    impl Drop for Closing {
        fn drop(&mut self) {
            drop(self.0.take());
            *count() -= 1;
            CLOSED.notify_all();
        }
    }

    *count() += 1;
    let closing = Closing(Some(file));
    let thread = std::thread::Builder::new().name("targe-close".to_owned());
    // Without a thread the closure, and with it the file, is dropped here.
    let _ = thread.spawn(move || drop(closing));
}

fn count() -> MutexGuard<'static, usize> {
    CLOSING.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use std::io::{ErrorKind, Write as _};
    use std::net::{TcpListener, TcpStream};
    use std::os::fd::OwnedFd;
    use std::time::Instant;

    use super::*;

    const LINGER: Duration = Duration::from_secs(6);

    /// Returns a file whose close waits: a socket with data that its peer does not read.
    fn slow_to_close(listener: &TcpListener) -> (File, TcpStream) {
        let mut sender = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let peer = listener.accept().unwrap().0;
        sender.set_nonblocking(true).unwrap();
        loop {
            match sender.write(&[0; 1 << 16]) {
                Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                written => assert!(written.unwrap() > 0),
            }
        }
        sender.set_nonblocking(false).unwrap();
        rustix::net::sockopt::set_socket_linger(&sender, Some(LINGER)).unwrap();
        (File::from(OwnedFd::from(sender)), peer)
    }

    #[test]
    fn a_thread_waits_for_no_close_where_it_has_asked_for_that() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        for elsewhere in [true, false] {
            let (file, _peer) = slow_to_close(&listener);
            let took = std::thread::spawn(move || {
                if elsewhere {
                    close_elsewhere();
                }
                let began = Instant::now();
                drop(ReleasedFile::from(file));
                began.elapsed()
            });
            assert_eq!(took.join().unwrap() < LINGER / 2, elsewhere);
        }
        await_closes(2 * LINGER);
    }
}
