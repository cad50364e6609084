//! The thread of a device, and the store that gives it commands.

use std::collections::VecDeque;
use std::fs::File;
use std::sync::{Arc, Mutex, PoisonError, Weak};

use base::buffer::{Buf, DataList};
use drivers::files::{Errno, FileQueue};
use drivers::sg::{IN_FLIGHT_MAX, SgData, SgReply, SgRequest};
use drivers::waker::Waker;
use store::Store;
use store::api::{
    Capabilities, Completion, DeviceCommand, DeviceInfo, DeviceResponse, Failure, Fault, Op, OpAction, OpId,
    OpOutput, Transfer,
};

use super::{Device, MovedSg, OpenSg, SgError, SgSpec, check_same};
use crate::errno_map;
use crate::store::BUF_LEN_MAX;

/// The longest time limit, in seconds, that the driver can express.
const TIMEOUT_S_MAX: u32 = i32::MAX.cast_unsigned() / 1000;

/// A device, served on one reactor.
pub struct SgStore {
    shared: Arc<Shared>,
    info: DeviceInfo,
    names: Vec<Vec<u8>>,
    /// Whether it is a device of another process, which no file locks.
    is_process: bool,
    queue: FileQueue,
    /// Completions of operations that a device does not have.
    refused: VecDeque<Completion>,
}

/// What the reactor and the thread of the device share.
struct Shared {
    inbox: Mutex<Inbox>,
    done: Mutex<VecDeque<(Completion, Option<Errno>)>>,
    /// How attempts to open the device again have ended, and, of a device of another process, that its
    /// connection has ended.
    news: Mutex<VecDeque<Result<(), SgError>>>,
    /// The file by which the device is locked, as long as the thread has the device open.
    locked: Mutex<Weak<File>>,
    waker: Waker,
}

#[derive(Default)]
struct Inbox {
    requests: VecDeque<Request>,
    is_closed: bool,
}

enum Request {
    Command(SgRequest),
    Reset(OpId),
    /// Open the device again, if it was removed.
    Reopen(SgSpec),
    /// Give the device that was opened again commands: the reactor knows of its return.
    UseReturned,
}

impl std::fmt::Debug for SgStore {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "SgStore({:?})", self.info)
    }
}

impl SgStore {
    /// Starts the thread of a device. It calls `wake` when there are completions. The buffers are those of
    /// the pool of `queue`.
    ///
    /// # Errors
    /// The error of the system if the thread cannot be started.
    pub fn new(opened: OpenSg, queue: FileQueue, wake: impl Fn() + Send + 'static) -> std::io::Result<Self> {
        let OpenSg { device, info, names, .. } = opened;
        let is_process = matches!(device, Device::VhostUser(_));
        let shared = Arc::new(Shared {
            inbox: Mutex::default(),
            done: Mutex::default(),
            news: Mutex::default(),
            locked: Mutex::new(device.locked()),
            waker: Waker::new()?,
        });
        let (own, known) = (Arc::clone(&shared), names.clone());
        std::thread::Builder::new().name("targe-sg".to_owned()).spawn(move || {
            let (device, returned, waiting) = (Some(device), None, VecDeque::new());
            Server { device, returned, names: known, shared: own, waiting }.run(wake);
        })?;
        Ok(Self { shared, info, names, is_process, queue, refused: VecDeque::new() })
    }

    /// Returns the device for another process.
    ///
    /// # Errors
    /// The error of the system; the device was removed.
    pub fn moved(&self) -> std::io::Result<MovedSg> {
        let locked = match self.is_process {
            true => None,
            false => Some(self.shared.locked().upgrade().ok_or(std::io::ErrorKind::NotFound)?.try_clone()?),
        };
        Ok(MovedSg { info: self.info, names: self.names.clone(), locked })
    }

    /// Opens the device again if it was removed; [`Self::take_news`] tells the result. A device of
    /// another process opens itself. The device gets only commands that are submitted after
    /// [`Self::take_news`] has reported its return.
    pub fn reopen(&self, spec: SgSpec) {
        self.send(Request::Reopen(spec));
    }

    /// Returns whether the device is there again, or why not, each once.
    pub fn take_news(&self) -> Option<Result<(), SgError>> {
        let news = self.shared.news().pop_front();
        if matches!(news, Some(Ok(()))) && !self.is_process {
            self.send(Request::UseReturned);
        }
        news
    }

    /// Returns the next completion, and the error of the system behind a failure.
    pub fn poll_with_error(&mut self) -> Option<(Completion, Option<Errno>)> {
        if let Some(refused) = self.refused.pop_front() {
            return Some((refused, None));
        }
        self.shared.done().pop_front()
    }

    /// Returns the capabilities of every device: it carries out its own commands, and is no medium of bytes.
    pub const fn capabilities_of_devices() -> Capabilities {
        Capabilities {
            len: 0,
            logical_block_len: 1,
            preferred_block_len: 1,
            io_len_max: 0,
            atomic_len_max: 0,
            read_only: false,
            volatile_cache: false,
            thin: false,
            deallocated_reads_zero: false,
            zeroes_by_deallocating: false,
            deallocated_is_gone: false,
            rotational: false,
            crypto_erase: false,
        }
    }

    fn request(&self, id: OpId, command: DeviceCommand) -> SgRequest {
        let data = match command.transfer {
            Transfer::Nothing => SgData::Nothing,
            Transfer::In(len) => SgData::In { len, bufs: self.buffers(len) },
            Transfer::Out(data) => SgData::Out(data),
        };
        let timeout_ms = command.timeout_s.min(TIMEOUT_S_MAX).saturating_mul(1000);
        SgRequest { token: id.0, command: command.bytes, data, timeout_ms }
    }

    fn buffers(&self, len: usize) -> Vec<Buf> {
        let pieces = len.div_ceil(BUF_LEN_MAX);
        (0..pieces)
            .map(|piece| self.queue.pool().take((len - piece * BUF_LEN_MAX).min(BUF_LEN_MAX)))
            .collect()
    }

    fn send(&self, request: Request) {
        self.shared.inbox().requests.push_back(request);
        self.shared.waker.wake();
    }
}

impl Store for SgStore {
    fn capabilities(&self) -> Capabilities {
        Self::capabilities_of_devices()
    }

    fn device(&self) -> Option<DeviceInfo> {
        Some(self.info)
    }

    fn submit(&mut self, op: Op) {
        match op.action {
            OpAction::Command(command) => self.send(Request::Command(self.request(op.id, *command))),
            OpAction::Reset => self.send(Request::Reset(op.id)),
            _ => {
                let result = Err(Fault::Unsupported.into());
                self.refused.push_back(Completion { id: op.id, result });
            }
        }
    }

    fn poll(&mut self) -> Option<Completion> {
        self.poll_with_error().map(|(completion, _)| completion)
    }
}

impl Drop for SgStore {
    /// Lets the thread end when the device has ended its commands. Nobody waits for it: a device that hangs
    /// must not keep the process from ending.
    fn drop(&mut self) {
        self.shared.inbox().is_closed = true;
        self.shared.waker.wake();
    }
}

impl Shared {
    // No thread panics while it holds one of these locks.
    fn inbox(&self) -> std::sync::MutexGuard<'_, Inbox> {
        self.inbox.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn news(&self) -> std::sync::MutexGuard<'_, VecDeque<Result<(), SgError>>> {
        self.news.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn locked(&self) -> std::sync::MutexGuard<'_, Weak<File>> {
        self.locked.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn done(&self) -> std::sync::MutexGuard<'_, VecDeque<(Completion, Option<Errno>)>> {
        self.done.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The work of the thread.
struct Server {
    /// The device, unless it was removed.
    device: Option<Device>,
    /// The device that was opened again, until the reactor knows of it. Commands that were submitted before
    /// that fail: no host knows yet that the device has forgotten its mode parameters, for example.
    returned: Option<Device>,
    /// The names by which it is recognised when it returns.
    names: Vec<Vec<u8>>,
    shared: Arc<Shared>,
    /// Commands that wait until fewer than [`IN_FLIGHT_MAX`] are in flight. The task set of the unit bounds
    /// them.
    waiting: VecDeque<SgRequest>,
}

impl Server {
    fn run(mut self, wake: impl Fn()) {
        loop {
            self.shared.waker.clear();
            let is_closed = self.take_requests();
            let has_progress = self.submit_waiting() | self.collect();
            if self.has_news() {
                wake();
            }
            let in_flight = self.device.as_ref().map_or(0, Device::in_flight);
            if is_closed && self.waiting.is_empty() && in_flight == 0 {
                return;
            }
            if !has_progress {
                match &mut self.device {
                    Some(device) => device.wait(Some(&self.shared.waker)),
                    None => self.shared.waker.wait(),
                }
            }
        }
    }

    fn has_news(&self) -> bool {
        !self.shared.news().is_empty() || !self.shared.done().is_empty()
    }

    /// Takes what the reactor requests. Returns whether it requests nothing more.
    fn take_requests(&mut self) -> bool {
        let (requests, is_closed) = {
            let mut inbox = self.shared.inbox();
            (std::mem::take(&mut inbox.requests), inbox.is_closed)
        };
        for request in requests {
            match request {
                Request::Command(request) => self.waiting.push_back(request),
                Request::Reset(id) => self.reset(id),
                Request::Reopen(spec) => self.reopen(&spec),
                Request::UseReturned => self.use_returned(),
            }
        }
        is_closed
    }

    fn reset(&mut self, id: OpId) {
        for request in std::mem::take(&mut self.waiting) {
            self.complete(OpId(request.token), Err(Fault::Aborted.into()), None);
        }
        let result = match &self.device {
            Some(Device::Sg(device)) if device.reset().is_ok() => Ok(OpOutput::Done(DataList::new())),
            // Without the rights to reset the device, the commands in flight end by themselves.
            _ => Err(Fault::Unsupported.into()),
        };
        self.complete(id, result, None);
    }

    fn reopen(&mut self, spec: &SgSpec) {
        match &self.device {
            Some(Device::VhostUser(_)) => return,
            Some(Device::Sg(device)) if device.device_type().is_ok() => return,
            // Commands that the kernel ended when the device was removed did not close it.
            Some(Device::Sg(_)) => self.close(Errno::NODEV),
            // It holds the lock of the device.
            None => self.returned = None,
        }
        let opened = spec.open_quietly().and_then(|opened| {
            check_same(&spec.path, &self.names, &opened.names)?;
            Ok(opened.device)
        });
        let result = opened.map(|device| self.returned = Some(device));
        self.shared.news().push_back(result);
    }

    fn use_returned(&mut self) {
        // Commands that were submitted before the reactor knew of the return.
        self.submit_waiting();
        if let (None, Some(device)) = (&self.device, self.returned.take()) {
            *self.shared.locked() = device.locked();
            self.device = Some(device);
        }
    }

    /// Submits the commands that wait, as far as the device takes them. Returns whether there were any.
    fn submit_waiting(&mut self) -> bool {
        let mut is_any = false;
        while self.device.as_ref().is_none_or(|device| device.in_flight() < IN_FLIGHT_MAX)
            && let Some(request) = self.waiting.pop_front()
        {
            is_any = true;
            let submitted = match &mut self.device {
                Some(device) => device.submit(request),
                None => Err((request, Errno::NODEV)),
            };
            if let Err((request, errno)) = submitted {
                self.fail(&request, errno);
                self.check_presence(errno);
            }
        }
        is_any
    }

    /// Collects the replies that are there. Returns whether there were any.
    fn collect(&mut self) -> bool {
        let mut is_any = false;
        while let Some(device) = &mut self.device {
            match device.receive() {
                Ok(Some(reply)) => {
                    let (id, result) = (OpId(reply.token), result_of(reply));
                    self.complete(id, result, None);
                }
                Ok(None) => break,
                Err(errno) => self.close(errno),
            }
            is_any = true;
        }
        if let Some(Device::VhostUser(device)) = &mut self.device {
            self.shared.news().extend(std::iter::from_fn(|| device.take_news()));
        }
        is_any
    }

    /// Closes a device that was removed, so that it can be opened again when it is back.
    fn check_presence(&mut self, errno: Errno) {
        let is_gone = matches!(errno, Errno::NODEV | Errno::NXIO);
        if is_gone && self.device.as_ref().is_some_and(|device| device.in_flight() == 0) {
            self.device = None;
        }
    }

    /// Closes the device, and answers its commands in flight with `errno`.
    fn close(&mut self, errno: Errno) {
        let Some(Device::Sg(device)) = self.device.take() else { return };
        for request in device.abandon() {
            self.fail(&request, errno);
        }
    }

    fn fail(&self, request: &SgRequest, errno: Errno) {
        let fault = match errno {
            // The kernel may accept a command later that it has no memory or no room in its queue for now.
            Errno::NOMEM | Errno::BUSY | Errno::AGAIN | Errno::DOM => Fault::Busy,
            Errno::PERM | Errno::ACCESS => Fault::Forbidden,
            other => errno_map::fault_of(other),
        };
        self.complete(OpId(request.token), Err(fault.into()), Some(errno));
    }

    fn complete(&self, id: OpId, result: Result<OpOutput, Failure>, errno: Option<Errno>) {
        self.shared.done().push_back((Completion { id, result }, errno));
    }
}

/// What the kernel says of a command that a host adapter ended (`DID_*` of scsi/scsi_status.h).
pub(crate) mod did {
    pub(crate) const NO_CONNECT: u16 = 0x01;
    pub(crate) const BUS_BUSY: u16 = 0x02;
    pub(crate) const TIME_OUT: u16 = 0x03;
    pub(crate) const BAD_TARGET: u16 = 0x04;
    pub(crate) const ABORT: u16 = 0x05;
    pub(crate) const ERROR: u16 = 0x07;
    pub(crate) const RESET: u16 = 0x08;
    pub(crate) const SOFT_ERROR: u16 = 0x0b;
    pub(crate) const IMM_RETRY: u16 = 0x0c;
    pub(crate) const REQUEUE: u16 = 0x0d;
    pub(crate) const TRANSPORT_DISRUPTED: u16 = 0x0e;
    pub(crate) const TRANSPORT_FAILFAST: u16 = 0x0f;
}

/// Returns the result of a command: what the device answered, or why it did not.
fn result_of(reply: SgReply) -> Result<OpOutput, Failure> {
    let SgReply { status, host_status, sense, transferred, data, .. } = reply;
    // A status of the device counts, whatever the host adapter adds to it.
    if status == 0 && host_status != 0 {
        return Err(Failure::from(match host_status {
            did::NO_CONNECT | did::BAD_TARGET => Fault::Gone,
            did::BUS_BUSY | did::TIME_OUT => Fault::Busy,
            did::ABORT
            | did::RESET
            | did::SOFT_ERROR
            | did::IMM_RETRY
            | did::REQUEUE
            | did::TRANSPORT_DISRUPTED
            | did::TRANSPORT_FAILFAST => Fault::Aborted,
            _ => Fault::Hardware,
        }));
    }
    let data = match data {
        SgData::Nothing => DataList::new(),
        SgData::Out(data) => data,
        SgData::In { bufs, .. } => {
            let mut list = DataList::new();
            bufs.into_iter().filter(|buf| !buf.is_empty()).for_each(|buf| list.push(buf.freeze()));
            list
        }
    };
    Ok(OpOutput::Response(Box::new(DeviceResponse { status, sense, data, transferred })))
}

#[cfg(test)]
mod tests {
    use std::os::fd::OwnedFd;
    use std::os::unix::net::UnixStream;

    use drivers::sg::SgDevice;

    use super::*;

    fn reply(status: u8, host_status: u16) -> SgReply {
        SgReply { token: 1, status, host_status, sense: vec![0x70], transferred: 0, data: SgData::Nothing }
    }

    /// The thread of a device that is a socket in truth, with one command in flight, and the other end.
    fn server() -> (Server, UnixStream) {
        let (near, far) = UnixStream::pair().unwrap();
        near.set_nonblocking(true).unwrap();
        let device = SgDevice::new(File::from(OwnedFd::from(near))).unwrap();
        let shared = Arc::new(Shared {
            inbox: Mutex::default(),
            done: Mutex::default(),
            news: Mutex::default(),
            locked: Mutex::default(),
            waker: Waker::new().unwrap(),
        });
        let device = Device::Sg(device);
        *shared.locked() = device.locked();
        let device = Some(device);
        let mut server =
            Server { device, returned: None, names: Vec::new(), shared, waiting: VecDeque::new() };
        let command = vec![0; 6];
        server.waiting.push_back(SgRequest { token: 7, command, data: SgData::Nothing, timeout_ms: 1 });
        assert!(server.submit_waiting());
        assert_eq!(server.device.as_ref().map(Device::in_flight), Some(1));
        (server, far)
    }

    fn failures(server: &Server) -> Vec<(OpId, Fault)> {
        server.shared.done().drain(..).map(|(done, _)| (done.id, done.result.unwrap_err().fault)).collect()
    }

    #[test]
    fn a_device_that_cannot_be_read_is_closed() {
        let (mut server, far) = server();
        assert!(!server.collect(), "no reply yet");
        assert!(server.shared.locked().upgrade().is_some());
        drop(far);
        assert!(server.collect());
        assert!(server.shared.locked().upgrade().is_none(), "it cannot move any more");
        assert!(server.device.is_none(), "a later read would write to buffers that others use");
        assert_eq!(failures(&server), [(OpId(7), Fault::Medium)]);
    }

    #[test]
    fn a_device_that_was_removed_under_its_last_command_is_opened_again() {
        let (mut server, _far) = server();
        server.reopen(&SgSpec { path: "/dev/null".into(), shared_with_host: false });
        assert_eq!(failures(&server), [(OpId(7), Fault::Gone)]);
        let reopened = server.shared.news().pop_front();
        assert!(matches!(reopened, Some(Err(SgError::NotSg { .. }))), "{reopened:?}");
    }

    #[test]
    fn a_device_that_returns_gets_no_command_before_the_reactor_knows_of_it() {
        let (mut server, _far) = server();
        server.returned = server.device.take();
        let locked = server.returned.as_ref().map(Device::locked);
        *server.shared.locked() = Weak::new();
        let command = |token| {
            let (command, data) = (vec![0; 6], SgData::Nothing);
            Request::Command(SgRequest { token, command, data, timeout_ms: 1 })
        };
        server.shared.inbox().requests.extend([command(8), Request::UseReturned, command(9)]);
        assert!(!server.take_requests() && server.submit_waiting());
        assert_eq!(failures(&server), [(OpId(8), Fault::Gone)]);
        assert_eq!(server.device.as_ref().map(Device::in_flight), Some(2), "the one before, and 9");
        assert!(locked.is_some_and(|locked| locked.ptr_eq(&server.shared.locked())));
    }

    #[test]
    fn a_host_adapter_that_ends_a_command_says_why() {
        let table = [
            (did::NO_CONNECT, Fault::Gone),
            (did::TIME_OUT, Fault::Busy),
            (did::ABORT, Fault::Aborted),
            (did::RESET, Fault::Aborted),
            (did::ERROR, Fault::Hardware),
        ];
        for (host_status, fault) in table {
            let result = result_of(reply(0, host_status));
            assert_eq!(result.unwrap_err().fault, fault, "{host_status:#x}");
            // The device has answered: the host adapter adds nothing to that.
            assert!(matches!(result_of(reply(2, host_status)), Ok(OpOutput::Response(_))));
        }
        assert!(matches!(result_of(reply(0, 0)), Ok(OpOutput::Response(_))));
    }
}
