//! File operations, one entry of the ring each.

#![allow(unsafe_code, reason = "promises about memory that the kernel is pointed to")]

use super::UringEngine;
use super::ring::Tag;
use super::sqe::MsgHdr;
use crate::files::{Errno, PendingOp};

/// A file operation that the kernel works on.
pub(super) struct FileWork {
    work: PendingOp,
    message: Box<MsgHdr>,
}

impl UringEngine {
    /// Starts the operations that were submitted to the file queues.
    pub(super) fn start_file_work(&mut self) {
        if let Some(count) = self.files.new_ring_limit() {
            self.ring.allow_workers(count);
        }
        while let Some(work) = self.files.take_work() {
            self.start_work(work);
        }
    }

    fn start_work(&mut self, work: PendingOp) {
        let mut message = self.messages.pop().unwrap_or_default();
        let mut work = work;
        let entry = message.file_entry(&mut work);
        let number = self.works.insert(FileWork { work, message });
        // SAFETY: buffers and message are in `works` until `finish_work` takes the completion, and so is the
        // open file.
        unsafe { self.ring.push(entry, Tag::File(number)) };
    }

    pub(super) fn finish_work(&mut self, number: u32, result: Result<usize, Errno>) {
        let Some(FileWork { work, message }) = self.works.remove(number) else { return };
        self.keep(message);
        if let Some(work) = self.files.ring_finished(work, result) {
            self.start_work(work);
        }
    }
}
