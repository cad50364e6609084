//! Sends without a completion on success (`IOSQE_CQE_SKIP_SUCCESS`). They end within the system call that
//! submits them.
//!
//! A send that does not wait (`MSG_DONTWAIT`) has ended when the system call that submits it returns,
//! whatever its result. So a send that succeeded needs no completion: the system call continues to wait for
//! the next real event instead of returning for the send. This halves the system calls of a request and its
//! answer. A send that the socket did not accept, or only partly, completes as usual and is started again,
//! this time with waiting.
//!
//! This is how the kernel behaves, but it is not documented explicitly. So it is tried on a pair of sockets
//! before it is used.
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

/// The result of the trial.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ProbeResult {
    /// The kernel behaves as this module describes.
    Works,
    /// The kernel behaves differently.
    Differs,
    /// The ring may still contain a send of the trial, whose memory is leaked. The ring must not be used any
    /// more: it would execute that send, and the completion would be mistaken for that of another send.
    Unclear,
}

/// A send that the kernel may still execute.
struct Unclear;

/// Tries sends without a completion on success.
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
    // Two pieces that fit: no completion, and the data has arrived.
    let mut small = Transmit::new();
    small.put(b"head");
    small.put_shared(Bytes::copied_from(b"body"));
    let len = small.len();
    if !send(ring, &ours, small)?.0.is_empty() || received(&theirs) != len {
        return Ok(false);
    }
    // More than fits: the completion has the number of bytes accepted. Then nothing fits: an error. The
    // accepted bytes have arrived.
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

/// Sends without a completion on success. Returns the completions of the kernel, and the batch.
fn send(ring: &mut Ring, socket: &OwnedFd, batch: Transmit) -> Result<(Vec<Completion>, Transmit), Unclear> {
    let mut message = Box::<MsgHdr>::default();
    let entry = message.send_entry(socket.as_raw_fd(), &batch, true);
    // SAFETY: message and batch live until the kernel has taken the entry and with it ended the send, which
    // neither waits nor is passed to another thread; otherwise they are leaked below. The socket is open
    // until then, or the ring is dropped without having submitted the entry ([`ProbeResult::Unclear`]).
    unsafe { ring.push(entry, Tag::Send(0)) };
    let mut ended = VecDeque::new();
    // A signal may interrupt the call.
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

/// How many times the submission is tried.
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

    /// The kernel may read the memory of a send long after the trial: then it is not freed, and the ring is
    /// not used.
    #[test]
    fn what_the_kernel_may_still_have_is_not_freed() {
        let Ok(mut ring) = Ring::new() else {
            eprintln!("SKIP io_uring is not to be had here");
            return;
        };
        let (ours, _theirs) =
            socketpair(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None).unwrap();
        // Nothing can be submitted any more: the descriptor of the ring now refers to another file.
        let null = std::fs::File::open("/dev/null").unwrap();
        // SAFETY: the descriptor still belongs to the ring, which closes it; this second owner is forgotten.
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
