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

use super::message::Message;
use super::ring::{Completion, Ring, Tag};
use crate::files::Errno;

/// Returns whether silent sends behave as this module says.
pub(super) fn works(ring: &mut Ring) -> bool {
    let flags = SocketFlags::CLOEXEC;
    let Ok((ours, theirs)) = socketpair(AddressFamily::UNIX, SocketType::STREAM, flags, None) else {
        return false;
    };
    if set_socket_send_buffer_size(&ours, 16 << 10).is_err() {
        return false;
    }
    // Two pieces that fit: not a word, and they are there.
    let mut small = Transmit::new();
    small.put(b"head");
    small.share(Bytes::copied_from(b"body"));
    if send(ring, &ours, &small).is_none_or(|ended| !ended.is_empty()) || received(&theirs) != small.len() {
        return false;
    }
    // More than fits: how much was taken. Then nothing fits: an error. And what was taken is there.
    let mut large = Transmit::new();
    large.share(Bytes::copied_from(&[1; 256 << 10]));
    let Some(Ok(taken)) = send(ring, &ours, &large).and_then(|ended| only_result(&ended)) else {
        return false;
    };
    if taken == 0 || taken >= large.len() {
        return false;
    }
    large.sent(taken, &Pool::new(0));
    let refused = send(ring, &ours, &large).and_then(|ended| only_result(&ended));
    refused == Some(Err(Errno::AGAIN)) && received(&theirs) == taken
}

/// Sends silently and returns what the kernel says of it.
fn send(ring: &mut Ring, socket: &OwnedFd, batch: &Transmit) -> Option<Vec<Completion>> {
    let mut message = Box::<Message>::default();
    let entry = message.send_entry(socket.as_raw_fd(), batch, true);
    // SAFETY: message and batch outlive the wait below, within which the send ends: it neither waits nor is it
    // handed to another thread. The batch's bytes were copied by then.
    unsafe { ring.push(entry, Tag::Send(0)) };
    let mut ended = VecDeque::new();
    let submitted = ring.submit_and_wait(Some(Duration::ZERO));
    if !matches!(submitted, Ok(true)) || ring.completed(&mut ended).is_err() {
        std::mem::forget(message);
        return None;
    }
    if ended.is_empty() {
        ring.settled(1);
    }
    Some(ended.into())
}

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
