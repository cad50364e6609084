//! A SCSI device of this host, or of another process, on its reactor. The logical unit and the daemon share
//! it. It counts and logs failures.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::path::PathBuf;
use std::rc::Rc;

use backends::open::FileIdentity;
use backends::sg::process::ScsiSpec;
use backends::sg::{OpenSg, SgError, SgSpec, SgStore};
use drivers::files::{Errno, FileQueue};
use store::Store;
use store::api::{Capabilities, Completion, DeviceInfo, DeviceReturn, Failure, Fault, Op, OpId, OpOutput};

use crate::config::{Medium, Unit};
use crate::os_error;
use crate::serve::media::MediaError;
use crate::serve::media::error::describe_error;
use crate::serve::media::handed_over::{MovingMedium, Obstacle, SessionMedia};
use crate::serve::media::log_throttle::LogThrottle;
use crate::serve::media::opened::{OpenedMedium, Place, nothing};
use crate::serve::media::served::{MediumHealth, ServedMedium, Wake};

/// A device before it is on its reactor.
#[derive(Debug)]
pub(in crate::serve) enum OpenDevice {
    /// A device of this host or of another process.
    Open(Box<OpenSg>),
    /// A device of this host whose lock comes with the sessions of another process. What it reports to a
    /// command could be meant for a host.
    AwaitedSg(SgSpec),
    /// A device of another process whose description comes with the sessions.
    AwaitedScsi(ScsiSpec),
}

impl OpenDevice {
    /// Takes the device that another process gives.
    fn take(&self, unit: &Unit, media: &mut SessionMedia) -> Result<Option<OpenSg>, String> {
        let missing = match self {
            Self::Open(_) => return Ok(None),
            Self::AwaitedSg(_) => "the lock of the device is missing",
            Self::AwaitedScsi(_) => "the device is missing",
        };
        let moved = media.devices.remove(&unit.identity.naa.to_string()).ok_or(missing)?;
        let device = match self {
            Self::Open(_) => return Ok(None),
            Self::AwaitedSg(spec) => spec.take(moved),
            Self::AwaitedScsi(spec) => spec.take(moved),
        };
        device.map(Some).map_err(|error| describe_error(&error))
    }
}

impl OpenedMedium for OpenDevice {
    fn identity(&self) -> Option<FileIdentity> {
        match self {
            Self::Open(device) => device.identity(),
            Self::AwaitedSg(_) | Self::AwaitedScsi(_) => None,
        }
    }

    fn receive(&mut self, unit: &Unit, media: &mut SessionMedia) -> Result<(), MediaError> {
        let device = self.take(unit, media).map_err(|why| MediaError::new(unit, why))?;
        if let Some(device) = device {
            *self = Self::Open(Box::new(device));
        }
        Ok(())
    }

    fn place(self: Box<Self>, place: Place<'_>) -> Box<dyn ServedMedium> {
        match *self {
            Self::Open(device) => {
                Box::new(PassThrough::new(*device, place.files.queue(place.id), place.label))
            }
            Self::AwaitedSg(_) | Self::AwaitedScsi(_) => nothing(),
        }
    }
}

/// A device. Clones share one state.
#[derive(Clone)]
pub(in crate::serve) struct PassThrough(Rc<RefCell<Inner>>);

struct Inner {
    state: State,
    path: PathBuf,
    label: String,
    /// Whether it is a device of another process, which comes back by itself.
    is_process: bool,
    presence: Presence,
    errors: u64,
    throttle: LogThrottle,
    /// How often the log says that its process went away, and that another device is there.
    away_throttles: [LogThrottle; 2],
    /// Whether that is the last thing which the log says of the process.
    says_away: bool,
    /// Whether the device was removed, and the log says so.
    is_gone: bool,
    /// How the device is there again, until the unit has taken it.
    back: Option<DeviceReturn>,
    /// The commands that have not ended, apart from those below. The task set of the unit bounds them.
    in_flight: Vec<OpId>,
    /// The commands that were submitted before the device returned, and have not ended.
    in_flight_before: Vec<OpId>,
    /// Completions of commands that had no device to go to.
    refused: VecDeque<Completion>,
}

/// The device, before and after its thread was started.
enum State {
    Opened(Box<(OpenSg, FileQueue)>),
    Served(SgStore),
    /// Its thread could not be started, or was ended.
    Failed,
}

/// What is known of the process of a device, also if no command waits for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Presence {
    Connected,
    /// This process has taken the device over, and connects for the first time.
    Connecting,
    Away,
}

impl PassThrough {
    /// Serves an opened device. The buffers are those of `queue`.
    pub(in crate::serve) fn new(device: OpenSg, queue: FileQueue, label: &str) -> Self {
        let (path, is_process) = (device.path().to_owned(), device.identity().is_none());
        let is_connected = device.is_connected();
        let state = State::Opened(Box::new((device, queue)));
        let label = label.to_owned();
        let presence = if is_connected { Presence::Connected } else { Presence::Connecting };
        Self(Rc::new(RefCell::new(Inner { presence, ..Inner::new(state, path, label, is_process) })))
    }

    /// Returns why it executes no commands, if it does not.
    fn not_ready(&self) -> Option<String> {
        self.not_ready_as_known(|inner| inner.is_gone || inner.presence == Presence::Away)
    }

    /// Returns why it executes no commands, as far as `is_gone` says so of a device.
    fn not_ready_as_known(&self, is_gone: impl Fn(&Inner) -> bool) -> Option<String> {
        let inner = self.0.borrow();
        let why = match inner.state {
            _ if inner.is_process && is_gone(&inner) => "its process does not answer",
            _ if inner.is_gone => {
                "the device was removed, or does not respond; reload the configuration when it is there again"
            }
            State::Failed => "its thread could not be started",
            State::Opened(_) | State::Served(_) => return None,
        };
        Some(format!("{}: {why}", inner.path.display()))
    }
}

impl ServedMedium for PassThrough {
    fn store(&self) -> Box<dyn Store> {
        Box::new(self.clone())
    }

    /// Starts the thread of the device, unless it runs.
    fn start(&self, wake: Wake) {
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

    fn configure(&self, unit: &Unit) {
        unit.label.clone_into(&mut self.0.borrow_mut().label);
    }

    fn health(&self) -> MediumHealth {
        // The commands that did not reach the device or were not answered by it.
        let errors = self.0.borrow().errors;
        MediumHealth { errors, withheld: self.not_ready(), ..MediumHealth::default() }
    }

    fn export(&self, unit: &str) -> Result<Option<MovingMedium>, String> {
        let inner = self.0.borrow();
        let State::Served(store) = &inner.state else {
            return Err(self.obstacle().map_or_else(String::new, |obstacle| obstacle.sentence));
        };
        let failed = |error| format!("{}: cannot pass the device on: {}", inner.label, os_error(&error));
        let moved = store.moved().map_err(failed)?;
        Ok(Some(MovingMedium::Device(unit.to_owned(), moved)))
    }

    fn obstacle(&self) -> Option<Obstacle> {
        // An upgrade waits for a process that is away.
        let why = self.not_ready_as_known(|inner| inner.is_gone)?;
        Some(Obstacle::lasting(format!("{}: {why}", self.0.borrow().label)))
    }

    fn away(&self) -> Option<String> {
        let inner = self.0.borrow();
        let is_away = inner.is_process && inner.presence == Presence::Away;
        is_away.then(|| format!("{}: {}: its process does not answer", inner.label, inner.path.display()))
    }

    fn busy(&self) -> Option<Obstacle> {
        let inner = self.0.borrow();
        let is_connecting = inner.presence == Presence::Connecting;
        let sentence = || format!("{}: {} is being connected to", inner.label, inner.path.display());
        is_connecting.then(|| sentence().into())
    }

    /// Ends the connection to the process of the device, because another process serves it.
    fn leave_process(&self) {
        let mut inner = self.0.borrow_mut();
        if inner.is_process {
            // Without its store the thread ends, and closes the connection.
            inner.state = State::Failed;
        }
    }

    /// Opens the device again if it was removed. Its thread does so, and the log says how that ended.
    fn reopen(&self, unit: &Unit) -> bool {
        let inner = self.0.borrow();
        // A device of another process opens itself.
        if let (State::Served(store), true, Medium::Sg { shared_with_host, .. }) =
            (&inner.state, inner.is_gone, &unit.medium)
        {
            store.reopen(SgSpec { path: inner.path.clone(), shared_with_host: *shared_with_host });
        }
        false
    }
}

impl Inner {
    fn new(state: State, path: PathBuf, label: String, is_process: bool) -> Self {
        let (presence, throttle) = (Presence::Connected, LogThrottle::default());
        let (errors, says_away, is_gone) = (0, false, false);
        let (in_flight, in_flight_before) = (Vec::new(), Vec::new());
        let (back, refused) = (None, VecDeque::new());
        Self {
            state,
            path,
            label,
            is_process,
            presence,
            errors,
            throttle,
            away_throttles: [throttle; 2],
            says_away,
            is_gone,
            back,
            in_flight,
            in_flight_before,
            refused,
        }
    }

    /// Handles that the device is there again, or why not. Returns whether the log says so: of a process that
    /// comes and goes it says so now and then.
    fn reopened(&mut self, result: Result<(), SgError>) -> bool {
        let (label, path) = (&self.label, self.path.display());
        let presence = if result.is_ok() { Presence::Connected } else { Presence::Away };
        let is_return = std::mem::replace(&mut self.presence, presence) != Presence::Connecting;
        match result {
            Ok(()) => {
                self.is_gone = false;
                self.in_flight_before.append(&mut self.in_flight);
                self.back = is_return.then_some(match self.is_process {
                    true => DeviceReturn::Reconnected,
                    false => DeviceReturn::Restarted,
                });
                if self.is_process && !std::mem::take(&mut self.says_away) {
                    return false;
                }
                crate::info!("{label}: {path} is served again");
            }
            Err(error) => {
                if self.is_process {
                    let [away, unusable] = &mut self.away_throttles;
                    let throttle = if error.is_unusable() { unusable } else { away };
                    if throttle.may_log().is_none() {
                        return false;
                    }
                    self.says_away = true;
                }
                let source = std::error::Error::source(&error).and_then(|source| source.downcast_ref());
                let why = source.map_or(String::new(), |source| format!(": {}", os_error(source)));
                crate::error!("{label}: {error}{why}");
            }
        }
        true
    }

    /// Handles the end of a command.
    fn ended(&mut self, id: OpId, result: &Result<OpOutput, Failure>, error: Option<Errno>) {
        let is_of_before = remove(&mut self.in_flight_before, id);
        if !is_of_before {
            remove(&mut self.in_flight, id);
        }
        match result {
            // The device that returned was not given the command. A process can be away again.
            Err(failure) if failure.fault == Fault::Gone && is_of_before && !self.is_process => {
                self.errors = self.errors.saturating_add(1);
            }
            Err(failure) => _ = self.failed(*failure, error),
            // It answers again. A process reports that by itself.
            Ok(_) if !self.is_process => self.is_gone = false,
            Ok(_) => {}
        }
    }

    /// Counts a failure, and logs it unless one was logged shortly before. Returns whether it is logged.
    fn failed(&mut self, failure: Failure, error: Option<Errno>) -> bool {
        let what = match failure.fault {
            // The initiator aborted the command, or asked for something that the system does not support.
            Fault::Aborted | Fault::Unsupported => return false,
            Fault::Gone if self.is_process => "its process does not answer; commands fail until it does",
            Fault::Gone => "the device was removed, or does not respond",
            Fault::Busy => "the device did not answer in time",
            Fault::Forbidden => "the system does not allow this process to use it",
            _ => "the host adapter failed",
        };
        self.errors = self.errors.saturating_add(1);
        let is_gone = failure.fault == Fault::Gone;
        // A process may come and go often.
        let is_removal = is_gone && !self.is_gone && !self.is_process;
        // A command of a process can have failed just before that was back.
        self.is_gone |= is_gone && !(self.is_process && self.presence == Presence::Connected);
        let more = if is_removal { Some(self.throttle.log()) } else { self.throttle.may_log() };
        let Some(more) = more else { return false };
        self.says_away |= is_gone;
        let error = error.map_or(String::new(), |errno| format!(": {}", os_error(&errno.into())));
        let advice = if is_removal { "; reload the configuration when it is there again" } else { "" };
        crate::error!("{}: {}: {what}{error}{advice}{more}", self.label, self.path.display());
        true
    }
}

/// Removes a command from a list. Returns whether it was there.
fn remove(commands: &mut Vec<OpId>, id: OpId) -> bool {
    let at = commands.iter().position(|command| *command == id);
    at.map(|at| commands.swap_remove(at)).is_some()
}

impl Store for PassThrough {
    fn capabilities(&self) -> Capabilities {
        SgStore::capabilities_of_devices()
    }

    fn device(&self) -> Option<DeviceInfo> {
        match &self.0.borrow().state {
            State::Opened(opened) => Some(opened.0.info()),
            State::Served(store) => store.device(),
            State::Failed => None,
        }
    }

    /// A device of this host answers by itself whether it is there. A process that is away would let the
    /// command wait.
    fn is_away(&self) -> bool {
        let inner = self.0.borrow();
        matches!(inner.state, State::Failed)
            || inner.is_process && (inner.is_gone || inner.presence == Presence::Away)
    }

    fn take_return(&mut self) -> Option<DeviceReturn> {
        self.0.borrow_mut().back.take()
    }

    fn submit(&mut self, op: Op) {
        let inner = &mut *self.0.borrow_mut();
        match &mut inner.state {
            State::Served(store) => {
                inner.in_flight.push(op.id);
                store.submit(op);
            }
            State::Opened(_) | State::Failed => {
                inner.refused.push_back(Completion { id: op.id, result: Err(Fault::Gone.into()) });
            }
        }
    }

    fn poll(&mut self) -> Option<Completion> {
        let mut inner = self.0.borrow_mut();
        if let Some(refused) = inner.refused.pop_front() {
            return Some(refused);
        }
        let State::Served(store) = &mut inner.state else { return None };
        let news: Vec<_> = std::iter::from_fn(|| store.take_news()).collect();
        let next = store.poll_with_error();
        for news in news {
            inner.reopened(news);
        }
        let (completion, error) = next?;
        inner.ended(completion.id, &completion.result, error);
        Some(completion)
    }
}

#[cfg(test)]
mod tests {
    use base::buffer::DataList;

    use super::*;

    #[test]
    fn a_device_that_was_removed_is_not_ready_until_it_is_open_again() {
        let path = PathBuf::from("/dev/sg9");
        let inner = Inner::new(State::Failed, path, "LUN 0".to_owned(), false);
        let device = PassThrough(Rc::new(RefCell::new(inner)));
        let without_thread = "/dev/sg9: its thread could not be started";
        assert_eq!(device.not_ready().as_deref(), Some(without_thread));
        device.0.borrow_mut().failed(Fault::Busy.into(), None);
        assert_eq!(device.not_ready().as_deref(), Some(without_thread));
        device.0.borrow_mut().failed(Fault::Gone.into(), None);
        assert!(device.not_ready().unwrap().starts_with("/dev/sg9: the device was removed"));
        device.0.borrow_mut().reopened(Ok(()));
        assert_eq!(device.not_ready().as_deref(), Some(without_thread));
        let mut device = device;
        assert_eq!(device.take_return(), Some(DeviceReturn::Restarted));
        assert_eq!(device.take_return(), None);
    }

    #[test]
    fn a_command_that_was_submitted_before_the_device_returned_does_not_report_it_as_removed() {
        let mut inner = Inner::new(State::Failed, PathBuf::from("/dev/sg9"), "LUN 0".to_owned(), false);
        let gone = Err(Fault::Gone.into());
        inner.in_flight.extend([1, 2, 3].map(OpId));
        inner.ended(OpId(1), &gone, None);
        assert!(inner.is_gone);
        assert!(inner.reopened(Ok(())));
        inner.in_flight.push(OpId(4));
        for id in [3, 2] {
            inner.ended(OpId(id), &gone, None);
            assert!(!inner.is_gone, "command {id}");
        }
        assert_eq!(inner.errors, 3);
        // The identifier can be used again.
        inner.in_flight.push(OpId(2));
        inner.ended(OpId(4), &gone, None);
        assert!(inner.is_gone, "it was removed again");
        inner.ended(OpId(2), &Ok(OpOutput::Done(DataList::new())), None);
        assert!(!inner.is_gone && inner.in_flight.is_empty() && inner.in_flight_before.is_empty());
    }

    #[test]
    fn a_command_for_a_device_without_a_thread_ends() {
        let inner = Inner::new(State::Failed, PathBuf::from("/dev/sg9"), "LUN 0".to_owned(), false);
        let mut device = PassThrough(Rc::new(RefCell::new(inner)));
        assert!(device.is_away() && device.not_ready().is_some());
        device.submit(Op { id: OpId(4), action: store::api::OpAction::Reset });
        let Some(Completion { id, result: Err(failure) }) = device.poll() else { panic!("it never ends") };
        assert_eq!((id.0, failure.fault), (4, Fault::Gone));
        assert!(device.poll().is_none());
    }

    #[test]
    fn a_process_that_is_away_is_known_although_no_command_fails() {
        let path = PathBuf::from("/run/scsi.sock");
        let inner = Inner::new(State::Failed, path.clone(), "LUN 0".to_owned(), true);
        let device = PassThrough(Rc::new(RefCell::new(Inner { presence: Presence::Connecting, ..inner })));
        let busy = device.busy().map(|obstacle| obstacle.sentence);
        assert_eq!(busy.as_deref(), Some("LUN 0: /run/scsi.sock is being connected to"));
        for (result, away) in [
            (Ok(()), None),
            (
                Err(SgError::AnotherDevice { path }),
                Some("LUN 0: /run/scsi.sock: its process does not answer".to_owned()),
            ),
            (Ok(()), None),
        ] {
            device.0.borrow_mut().reopened(result);
            let is_not_ready = device.not_ready().is_some_and(|why| why.ends_with("does not answer"));
            assert_eq!(is_not_ready, away.is_some());
            assert_eq!((device.busy(), device.away()), (None, away));
        }
        device.0.borrow_mut().failed(Fault::Gone.into(), None);
        assert!(!device.0.borrow().is_gone, "the command failed before the process was back");
    }

    #[test]
    fn a_process_that_comes_and_goes_does_not_fill_the_log() {
        let path = PathBuf::from("/run/scsi.sock");
        let mut inner = Inner::new(State::Failed, path.clone(), "LUN 0".to_owned(), true);
        let (why, wait) = ("its process has ended".to_owned(), "up to 1s".to_owned());
        let away = || Err(SgError::Lost { path: path.clone(), why: why.clone(), wait: wait.clone() });
        let mut told = 0;
        let mut round = |inner: &mut Inner| {
            told += u32::from(inner.reopened(away()));
            assert!(!inner.is_gone);
            told += u32::from(inner.failed(Fault::Gone.into(), None));
            assert!(inner.is_gone);
            told += u32::from(inner.reopened(Ok(())));
            told
        };
        assert_eq!(round(&mut inner), 3);
        let other = || Err(SgError::AnotherDevice { path: path.clone() });
        assert!(inner.reopened(other()) && !inner.reopened(other()) && inner.reopened(Ok(())));
        for _ in 0..100 {
            // The clock may pass the time after which the log speaks again.
            inner.throttle.log();
            inner.away_throttles.iter_mut().for_each(|throttle| drop(throttle.log()));
            assert_eq!(round(&mut inner), 3);
        }
        inner.throttle.expire();
        inner.away_throttles.iter_mut().for_each(LogThrottle::expire);
        assert_eq!(round(&mut inner), 6);
        // A device of this host is opened again when the configuration is reloaded, and the log says each
        // time how that ended.
        inner.is_process = false;
        assert!(inner.reopened(away()) && inner.reopened(away()) && inner.reopened(Ok(())));
    }
}
