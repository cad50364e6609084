//! A loss of writes that a medium knows of, and whether its record is durable.

use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};

use crate::mailbox::Sender;

/// Whether the record of a loss is durable. The medium and the state writer share it.
#[derive(Debug, Default)]
pub(in crate::serve) struct RecordProgress(AtomicU8);

impl RecordProgress {
    /// The record is being written.
    const PENDING: u8 = 0;
    const DURABLE: u8 = 1;
    /// The record could not be written. The state writer tries again.
    const FAILED: u8 = 2;
    /// The operator accepts a loss that is not recorded: nothing may be written until that has ended.
    const ACCEPTING: u8 = 3;
    /// The loss is accepted. Its record is not needed any more.
    const ACCEPTED: u8 = 4;

    /// Ends the write of the record.
    pub(in crate::serve) fn end(&self, is_durable: bool) {
        self.0.store(if is_durable { Self::DURABLE } else { Self::FAILED }, Ordering::Release);
    }

    /// Begins to write the record again. Returns whether that may be done now.
    pub(in crate::serve) fn begin_again(&self) -> bool {
        self.change(Self::FAILED, Self::PENDING)
    }

    /// Returns whether the operator has accepted the loss.
    pub(in crate::serve) fn is_accepted(&self) -> bool {
        self.0.load(Ordering::Acquire) == Self::ACCEPTED
    }

    fn is_pending(&self) -> bool {
        self.0.load(Ordering::Acquire) == Self::PENDING
    }

    fn is_durable(&self) -> bool {
        self.0.load(Ordering::Acquire) == Self::DURABLE
    }

    /// Begins to accept the loss. Returns whether that is possible: not while the record is being written.
    fn begin_acceptance(&self) -> bool {
        self.change(Self::FAILED, Self::ACCEPTING) || !self.is_pending()
    }

    fn end_acceptance(&self, is_accepted: bool) {
        if is_accepted {
            self.0.store(Self::ACCEPTED, Ordering::Release);
        } else {
            self.change(Self::ACCEPTING, Self::FAILED);
        }
    }

    fn change(&self, from: u8, to: u8) -> bool {
        self.0.compare_exchange(from, to, Ordering::AcqRel, Ordering::Acquire).is_ok()
    }
}

/// What is known of the writes that a medium has lost.
#[derive(Debug)]
pub(in crate::serve) struct Loss {
    why: String,
    progress: Arc<RecordProgress>,
}

impl Loss {
    /// Makes a loss of which a record is to be written.
    pub(in crate::serve) fn new(why: String) -> Self {
        Self { why, progress: Arc::default() }
    }

    /// Makes a loss that an earlier process has recorded.
    pub(in crate::serve) fn recorded(why: String) -> Self {
        let loss = Self::new(why);
        loss.progress.end(true);
        loss
    }

    /// Has the loss recorded.
    pub(in crate::serve) fn record(&self, record: Option<&RecordLoss>) {
        match record {
            Some(record) => record(&self.why, Arc::clone(&self.progress)),
            None => self.progress.end(false),
        }
    }

    /// Returns the reason.
    pub(in crate::serve) fn why(&self) -> &str {
        &self.why
    }

    /// Returns whether the record is being written.
    pub(in crate::serve) fn is_pending(&self) -> bool {
        self.progress.is_pending()
    }

    /// Begins to accept the loss.
    ///
    /// # Errors
    /// [`NotAccepted`]
    pub(in crate::serve) fn begin_acceptance(&self) -> Result<(), NotAccepted> {
        if self.progress.begin_acceptance() { Ok(()) } else { Err(NotAccepted::NotRecorded) }
    }

    /// Ends the acceptance.
    pub(in crate::serve) fn end_acceptance(&self, is_accepted: bool) {
        self.progress.end_acceptance(is_accepted);
    }

    /// Returns why another process would not learn of the loss, and whether that ends by itself soon.
    pub(in crate::serve) fn obstacle(&self) -> Option<(&'static str, bool)> {
        if self.is_pending() {
            Some(("writes to it were lost, and the record of that is being written", true))
        } else if self.progress.is_durable() {
            None
        } else {
            let why = "writes to it were lost, and the state directory cannot record that yet; targe lun accept-loss \
                       accepts the loss";
            Some((why, false))
        }
    }
}

/// Begins to make the record of a loss durable, with its reason.
pub(in crate::serve) type RecordLoss = Box<dyn Fn(&str, Arc<RecordProgress>)>;

/// Takes the result of a flush of the daemon.
pub(in crate::serve) type SyncSender = Sender<Result<(), String>>;

/// Why a loss cannot be accepted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::serve) enum NotAccepted {
    /// Nothing is lost.
    NothingLost,
    /// The record of the loss is being written, or could not be written.
    NotRecorded,
}
