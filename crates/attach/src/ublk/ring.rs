//! An io_uring whose entries hold a command (128 bytes).
#![allow(unsafe_code, reason = "what stands in the submission queue may point to memory")]

use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};

use io_uring::types::Fd;
use io_uring::{IoUring, cqueue, opcode, squeue};
use zerocopy::{FromBytes, Immutable, IntoBytes};

use super::wire::{ControlCommand, ControlOp, IoCommand, IoOp};
use base::int_cast::to_u64;

/// The user data of the poll for a wake-up; no tag has this number.
pub(super) const WOKEN: u64 = u64::MAX;
/// The user data of a command to the control device.
const CONTROL: u64 = 0;

pub(super) struct Ring {
    ring: IoUring<squeue::Entry128, cqueue::Entry>,
    /// The descriptors that entries refer to. An entry holds a number, which the kernel looks up when it
    /// takes the entry. If the descriptor were closed by then, the number could refer to another file. So the
    /// ring owns duplicates, as long as it lives.
    held: Vec<OwnedFd>,
}

/// The index of a descriptor that a ring owns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Held(usize);

impl Ring {
    /// Makes a ring for the calling thread alone.
    pub(super) fn new(entries: u32) -> io::Result<Self> {
        let mut builder = IoUring::<squeue::Entry128, cqueue::Entry>::builder();
        // Every kernel with the ublk features that this crate needs has these flags (6.0).
        builder.setup_single_issuer().setup_coop_taskrun();
        Ok(Self { ring: builder.build(entries)?, held: Vec::new() })
    }

    /// Duplicates a descriptor for entries to refer to.
    pub(super) fn hold(&mut self, file: impl AsFd) -> io::Result<Held> {
        self.held.push(file.as_fd().try_clone_to_owned()?);
        Ok(Held(self.held.len() - 1))
    }

    fn descriptor(&self, held: Held) -> io::Result<Fd> {
        let file = self.held.get(held.0).ok_or(io::ErrorKind::NotFound)?;
        Ok(Fd(file.as_raw_fd()))
    }

    /// Queues a tag's command, which waits in the kernel from the next [`Self::wait`] on.
    pub(super) fn command(&mut self, device: Held, op: IoOp, command: IoCommand) -> io::Result<()> {
        let name = command.tag.into();
        let entry = opcode::UringCmd80::new(self.descriptor(device)?, op.0).cmd(room(&command)).build();
        // SAFETY: the command holds no address: payloads are copied through the device. The ring owns the
        // descriptor.
        unsafe { self.push(entry.user_data(name)) }
    }

    /// Queues a poll that completes once, when `event` is readable. It starts with the next [`Self::wait`].
    pub(super) fn watch(&mut self, event: Held) -> io::Result<()> {
        let readable = u32::try_from(libc::POLLIN).unwrap_or_default();
        let entry = opcode::PollAdd::new(self.descriptor(event)?, readable).build();
        // SAFETY: the entry points to no memory, and the ring owns the descriptor.
        unsafe { self.push(squeue::Entry128::from(entry).user_data(WOKEN)) }
    }

    /// Submits the queued entries, and waits until one is completed.
    pub(super) fn wait(&mut self) -> io::Result<()> {
        match self.ring.submit_and_wait(1) {
            Ok(_) => Ok(()),
            Err(error) => match error.raw_os_error() {
                Some(libc::EINTR | libc::EAGAIN | libc::EBUSY) => Ok(()),
                _ => Err(error),
            },
        }
    }

    /// Returns a completion: its user data and its result.
    pub(super) fn completed(&mut self) -> Option<(u64, i32)> {
        self.ring.completion().next().map(|entry| (entry.user_data(), entry.result()))
    }

    /// Executes a command on the control device. The kernel reads and writes `value`. Nothing else may be
    /// under way in this ring.
    pub(super) fn control<T: IntoBytes + FromBytes + Immutable>(
        &mut self,
        control: Held,
        op: ControlOp,
        command: ControlCommand,
        value: T,
    ) -> io::Result<T> {
        let mut value = Box::new(value);
        let bytes = (*value).as_mut_bytes();
        let len = u16::try_from(bytes.len()).unwrap_or_default();
        let addr = if len == 0 { 0 } else { to_u64(bytes.as_mut_ptr().expose_provenance()) };
        let command = ControlCommand { len, addr, ..command };
        let entry = opcode::UringCmd80::new(self.descriptor(control)?, op.0).cmd(room(&command)).build();
        // SAFETY: the ring owns the descriptor. The command points into a box of its own, which is neither
        // touched nor freed until the command has completed: see below.
        unsafe { self.push(entry.user_data(CONTROL)) }?;
        let result = loop {
            if let Err(error) = self.wait() {
                // The kernel may have the command, and may still write to `value`.
                std::mem::forget(value);
                return Err(error);
            }
            if let Some((_, result)) = self.completed() {
                break result;
            }
        };
        if result < 0 {
            return Err(io::Error::from_raw_os_error(-result));
        }
        Ok(*value)
    }

    /// Puts an entry into the submission queue.
    ///
    /// # Safety
    /// Memory that the entry points to must stay where it is, untouched, until the entry's completion was
    /// taken. Descriptors in the entry must stay open until the kernel has taken the entry.
    unsafe fn push(&mut self, entry: squeue::Entry128) -> io::Result<()> {
        // SAFETY: the caller ensures it.
        while unsafe { self.ring.submission().push(&entry) }.is_err() {
            self.ring.submit()?;
        }
        Ok(())
    }
}

/// Returns the command in the space behind an entry's fixed part.
fn room(command: &(impl IntoBytes + Immutable)) -> [u8; 80] {
    let mut room = [0; 80];
    for (to, from) in room.iter_mut().zip(command.as_bytes()) {
        *to = *from;
    }
    room
}

#[cfg(test)]
mod tests {
    use std::os::fd::{AsRawFd, OwnedFd};

    use rustix::event::{EventfdFlags, eventfd};

    use super::*;

    fn event(count: u32) -> OwnedFd {
        eventfd(count, EventfdFlags::CLOEXEC).unwrap()
    }

    #[test]
    fn an_entry_names_the_file_it_was_made_for_even_if_its_owner_closed_it() {
        let Ok(mut ring) = Ring::new(4) else {
            eprintln!("SKIP io_uring is not to be had here");
            return;
        };
        let watched = event(0);
        let ours = watched.try_clone().unwrap();
        let held = ring.hold(&watched).unwrap();
        ring.watch(held).unwrap();
        // Another file gets the number before the kernel takes the entry. The tests of this process open
        // files meanwhile, so that may take more than one attempt.
        let number = watched.as_raw_fd();
        drop(watched);
        let others: Vec<OwnedFd> = (0..16).map(|_| event(1)).collect();
        assert!(others.iter().any(|other| other.as_raw_fd() >= number));
        ring.ring.submit().unwrap();
        assert_eq!(ring.completed(), None, "the entry named a file that is readable");
        rustix::io::write(&ours, &1_u64.to_ne_bytes()).unwrap();
        ring.wait().unwrap();
        assert_eq!(ring.completed().map(|(name, _)| name), Some(WOKEN));
    }
}
