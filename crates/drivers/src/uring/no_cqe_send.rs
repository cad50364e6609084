//! Sends that end within their submission, of which the kernel speaks only if they fail.
//!
//! A send that does not wait (`MSG_DONTWAIT`) is over when the system call that submits it returns, whatever came of
//! it. So one that succeeded needs no completion: the system call goes on waiting for the next real event instead
//! of returning for it, which halves the calls of a request and its answer. A send that the socket did not take, or
//! not whole, completes as usual and is started again, this time to wait.
//!
//! That is how the kernel behaves, not what it promises in so many words. So it is tried on a pair of sockets before
//! it is relied on.
#![allow(unsafe_code, reason = "promises about memory that the kernel is pointed to")]

use std::collections::VecDeque;
use std::os::fd::{AsRawFd, OwnedFd};
use std::time::Duration;

use base::buffer::{Bytes, Pool};
use base::transmit::Transmit;
use rustix::net::{
    AddressFamily, RecvFlags, SocketFlags, SocketType, recv, socketpair, sockopt::set_socket_send_buffer_size,
};

use super::ring::{Completion, Ring, Tag};
use super::sqe::MsgHdr;
use crate::files::Errno;

/// What trying silent sends came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ProbeResult {
    /// They behave as this module says.
    Works,
    /// They do not.
    Differs,
    /// The ring may still have a send of the trial, whose memory is leaked. It must not be used any more: it would carry that
    /// send out, and its end would pass for that of another.
    Unclear,
}

/// A send that the kernel may still have.
struct Unclear;

/// Tries silent sends.
pub(super) fn try_out(ring: &mut Ring) -> ProbeResult {
    match works(ring) {
        Ok(true) => ProbeResult::Works,
        Ok(false) => ProbeResult::Differs,
        Err(Unclear) => ProbeResult::Unclear,
    }
}

fn works(ring: &mut Ring) -> Result<bool, Unclear> {
    let flags = SocketFlags::CLOEXEC;
    let Ok((ours, theirs)) = socketpair(AddressFamily::UNIX, SocketType::STREAM, flags, None) else {
        return Ok(false);
    };
    if set_socket_send_buffer_size(&ours, 16 << 10).is_err() {
        return Ok(false);
    }
    // Two pieces that fit: not a word, and they are there.
    let mut small = Transmit::new();
    small.put(b"head");
    small.put_shared(Bytes::copied_from(b"body"));
    let len = small.len();
    if !send(ring, &ours, small)?.0.is_empty() || received(&theirs) != len {
        return Ok(false);
    }
    // More than fits: how much was taken. Then nothing fits: an error. And what was taken is there.
    let mut large = Transmit::new();
    large.put_shared(Bytes::copied_from(&[1; 256 << 10]));
    let (ended, mut large) = send(ring, &ours, large)?;
    let taken = match only_result(&ended) {
        Some(Ok(taken)) if taken > 0 && taken < large.len() => taken,
        _ => return Ok(false),
    };
    large.sent(taken, &Pool::new(0));
    let (refused, _) = send(ring, &ours, large)?;
    Ok(only_result(&refused) == Some(Err(Errno::AGAIN)) && received(&theirs) == taken)
}

/// Sends silently. Returns what the kernel says of it, and what was to be sent.
fn send(ring: &mut Ring, socket: &OwnedFd, batch: Transmit) -> Result<(Vec<Completion>, Transmit), Unclear> {
    let mut message = Box::<MsgHdr>::default();
    let entry = message.send_entry(socket.as_raw_fd(), &batch, true);
    // SAFETY: message and batch live until the kernel has taken the entry and with it ended the send, which neither waits nor
    // is handed to another thread: else they are leaked below. The socket is open until then, or the ring is dropped without
    // having submitted the entry ([`ProbeResult::Unclear`]).
    unsafe { ring.push(entry, Tag::Send(0)) };
    let mut ended = VecDeque::new();
    // A signal may come in between.
    let taken = (0..SUBMITS_MAX).any(|_| matches!(ring.submit_and_wait(Some(Duration::ZERO)), Ok(true)));
    if !taken || ring.completed(&mut ended).is_err() {
        std::mem::forget((message, batch));
        return Err(Unclear);
    }
    if ended.is_empty() {
        ring.completed_without_cqe(1);
    }
    Ok((ended.into(), batch))
}

/// How often a submission is tried.
const SUBMITS_MAX: usize = 8;

fn only_result(ended: &[Completion]) -> Option<Result<usize, Errno>> {
    match ended {
        [only] => Some(only.result),
        _ => None,
    }
}

/// Returns how many bytes wait at `socket`.
fn received(socket: &OwnedFd) -> usize {
    let mut count = 0;
    let mut bytes = [0_u8; 4096];
    while let Ok((more @ 1.., _)) = recv(socket, &mut bytes, RecvFlags::DONTWAIT) {
        count += more;
    }
    count
}

#[cfg(test)]
mod tests {
    use std::os::fd::FromRawFd;

    use super::*;

    /// The kernel may read what it was pointed to long after the trial: then nobody frees it, and the ring is of no use.
    #[test]
    fn what_the_kernel_may_still_have_is_not_freed() {
        let Ok(mut ring) = Ring::new() else {
            eprintln!("SKIP io_uring is not to be had here");
            return;
        };
        let (ours, _theirs) =
            socketpair(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None).unwrap();
        // Nothing can be submitted any more: another file has the ring's number.
        let null = std::fs::File::open("/dev/null").unwrap();
        // SAFETY: the descriptor stays the ring's, which closes it; this owner is forgotten.
        let mut number = unsafe { OwnedFd::from_raw_fd(ring.number()) };
        rustix::io::dup2(&null, &mut number).unwrap();
        std::mem::forget(number);

        let bytes = Bytes::copied_from(b"body");
        let mut batch = Transmit::new();
        batch.put_shared(bytes.clone());
        assert!(send(&mut ring, &ours, batch).is_err());
        assert!(bytes.try_into_buf().is_err(), "the bytes were let go while the ring may send them");
        assert_eq!(try_out(&mut ring), ProbeResult::Unclear);
    }
}
