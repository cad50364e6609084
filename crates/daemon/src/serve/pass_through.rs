//! A SCSI device of this host, or of another process, on its reactor. The logical unit and the daemon share
//! it. It counts and logs failures.

use std::cell::RefCell;
use std::path::PathBuf;
use std::rc::Rc;
use std::time::{Duration, Instant};

use backends::sg::{OpenSg, SgError, SgSpec, SgStore};
use drivers::files::{Errno, FileQueue};
use store::Store;
use store::api::{Capabilities, Completion, DeviceInfo, Failure, Fault, Op};

use crate::os_error;

/// The least time between two logged failures of one device.
const TELL_EVERY: Duration = Duration::from_secs(10);

/// A device. Clones share one state.
#[derive(Clone)]
pub(super) struct PassThrough(Rc<RefCell<Inner>>);

struct Inner {
    state: State,
    path: PathBuf,
    label: String,
    /// Whether it is a device of another process, which comes back by itself.
    is_process: bool,
    errors: u64,
    told: Option<Instant>,
    /// Whether the device was removed, and the log says so.
    is_gone: bool,
}

/// The device, before and after its thread was started.
enum State {
    Opened(Box<(OpenSg, FileQueue)>),
    Served(SgStore),
    /// Its thread could not be started.
    Failed,
}

impl PassThrough {
    /// Serves an opened device. The buffers are those of `queue`.
    pub(super) fn new(device: OpenSg, queue: FileQueue, label: &str) -> Self {
        let (path, is_process) = (device.path().to_owned(), device.identity().is_none());
        let state = State::Opened(Box::new((device, queue)));
        let label = label.to_owned();
        let (errors, told, is_gone) = (0, None, false);
        Self(Rc::new(RefCell::new(Inner { state, path, label, is_process, errors, told, is_gone })))
    }

    /// Starts the thread of the device, unless it runs. `wake` notifies the reactor from there that the
    /// device has results.
    pub(super) fn start(&self, wake: impl Fn() + Send + 'static) {
        let mut inner = self.0.borrow_mut();
        let state = std::mem::replace(&mut inner.state, State::Failed);
        inner.state = match state {
            State::Opened(opened) => {
                let (device, queue) = *opened;
                match SgStore::new(device, queue, wake) {
                    Ok(store) => State::Served(store),
                    Err(error) => {
                        let label = &inner.label;
                        crate::error!("{label}: cannot start its thread: {}", os_error(&error));
                        State::Failed
                    }
                }
            }
            other => other,
        };
    }

    /// Returns how many commands did not reach the device or were not answered by it.
    pub(super) fn errors(&self) -> u64 {
        self.0.borrow().errors
    }

    /// Returns why it executes no commands, if it does not.
    pub(super) fn not_ready(&self) -> Option<String> {
        let inner = self.0.borrow();
        let why = match inner.state {
            _ if inner.is_gone && inner.is_process => "its process does not answer",
            _ if inner.is_gone => {
                "the device was removed, or does not respond; reload the configuration when it is there again"
            }
            State::Failed => "its thread could not be started",
            State::Opened(_) | State::Served(_) => return None,
        };
        Some(format!("{}: {why}", inner.path.display()))
    }

    /// Opens the device again if it was removed. The log says how that ended.
    pub(super) fn reopen(&self, shared_with_host: bool) {
        let inner = self.0.borrow();
        if let (State::Served(store), true) = (&inner.state, inner.is_gone) {
            store.reopen(SgSpec { path: inner.path.clone(), shared_with_host });
        }
    }
}

impl Inner {
    fn reopened(&mut self, result: Result<(), SgError>) {
        let (label, path) = (&self.label, self.path.display());
        match result {
            Ok(()) => {
                crate::info!("{label}: {path} is served again");
                self.is_gone = false;
            }
            Err(error) => {
                let source = std::error::Error::source(&error).and_then(|source| source.downcast_ref());
                let why = source.map_or(String::new(), |source| format!(": {}", os_error(source)));
                crate::error!("{label}: {error}{why}");
            }
        }
    }

    /// Counts a failure, and logs it unless another one was logged less than [`TELL_EVERY`] ago.
    fn failed(&mut self, failure: Failure, error: Option<Errno>) {
        let what = match failure.fault {
            // The initiator aborted the command, or asked for something that the system does not support.
            Fault::Aborted | Fault::Unsupported => return,
            Fault::Gone if self.is_process => "its process does not answer; commands fail until it does",
            Fault::Gone => "the device was removed, or does not respond",
            Fault::Busy => "the device did not answer in time",
            Fault::Forbidden => "the system does not allow this process to use it",
            _ => "the host adapter failed",
        };
        self.errors = self.errors.saturating_add(1);
        let is_removal = failure.fault == Fault::Gone && !self.is_gone;
        self.is_gone |= is_removal;
        if !is_removal && self.told.is_some_and(|told| told.elapsed() < TELL_EVERY) {
            return;
        }
        self.told = Some(Instant::now());
        let error = error.map_or(String::new(), |errno| format!(": {}", os_error(&errno.into())));
        let advice = if is_removal && !self.is_process {
            "; reload the configuration when it is there again"
        } else {
            ""
        };
        crate::error!("{}: {}: {what}{error}{advice}", self.label, self.path.display());
    }
}

impl Store for PassThrough {
    fn capabilities(&self) -> Capabilities {
        SgStore::capabilities_of_devices()
    }

    fn device(&self) -> Option<DeviceInfo> {
        match &self.0.borrow().state {
            State::Served(store) => store.device(),
            State::Opened(_) | State::Failed => None,
        }
    }

    fn submit(&mut self, op: Op) {
        if let State::Served(store) = &mut self.0.borrow_mut().state {
            store.submit(op);
        }
    }

    fn poll(&mut self) -> Option<Completion> {
        let mut inner = self.0.borrow_mut();
        let State::Served(store) = &mut inner.state else { return None };
        let news: Vec<_> = std::iter::from_fn(|| store.take_news()).collect();
        let next = store.poll_with_error();
        news.into_iter().for_each(|news| inner.reopened(news));
        let (completion, error) = next?;
        if let Err(failure) = completion.result {
            inner.failed(failure, error);
        }
        Some(completion)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_device_that_was_removed_is_not_ready_until_it_is_open_again() {
        let path = PathBuf::from("/dev/sg9");
        let (state, label) = (State::Failed, "LUN 0".to_owned());
        let (errors, told, is_gone, is_process) = (0, None, false, false);
        let inner = Inner { state, path, label, is_process, errors, told, is_gone };
        let device = PassThrough(Rc::new(RefCell::new(inner)));
        let without_thread = "/dev/sg9: its thread could not be started";
        assert_eq!(device.not_ready().as_deref(), Some(without_thread));
        device.0.borrow_mut().failed(Fault::Busy.into(), None);
        assert_eq!(device.not_ready().as_deref(), Some(without_thread));
        device.0.borrow_mut().failed(Fault::Gone.into(), None);
        assert!(device.not_ready().unwrap().starts_with("/dev/sg9: the device was removed"));
        device.0.borrow_mut().reopened(Ok(()));
        assert_eq!(device.not_ready().as_deref(), Some(without_thread));
    }
}
