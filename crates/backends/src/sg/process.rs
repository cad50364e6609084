//! A SCSI device of another process, over vhost-user.
//!
//! It behaves like a SCSI generic device of this host, and the thread of such a device drives it. When the
//! process dies, commands wait for it. Those that were under way go on exactly as the in-flight region of the
//! standard says, if the process has one: it executes what it had not ended, and nothing twice. Without one
//! they end, because nobody knows whether they were executed.
//!
//! A process that goes on with commands cannot be asked first which device it has. So it gets no other
//! command before these have ended and it was asked, over a connection of its own.
//!
//! A command that ends here while the process lives may still be executed there, and a later one must not
//! overtake it: the process has to close the connection first.

use std::collections::VecDeque;
use std::io;
use std::net::Shutdown;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use base::buffer::Buf;
use base::int_cast::to_usize;
use drivers::files::Errno;
use drivers::sg::{SgData, SgReply, SgRequest};
use drivers::signals;
use drivers::waker::Waker;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::{RecvFlags, recv};
use store::api::DeviceInfo;
use virtio::scsi::{COMMAND_LEN_MAX, DATA_LEN_MAX, ScsiData, ScsiQueue, ScsiReply, ScsiResponse};

use self::outage::Outage;
use self::start::{Fresh, Link, Region, open_link};
use super::{Device, MovedSg, OpenSg, SgError, block_len, check_same, did, has_blocks, names};
use crate::vhost_user::VhostUserError;

/// How long an attempt to connect and to negotiate may take.
const ATTEMPT_MAX: Duration = Duration::from_secs(10);

/// How long to wait before the next attempt: at first, and at most.
const RETRY_FIRST: Duration = Duration::from_millis(100);
const RETRY_MAX: Duration = Duration::from_secs(5);

/// How often a process may go on with a command: it may be the command that ends the process.
const RESUMPTIONS_MAX: u32 = 5;

/// A device to serve: logical unit 0 of target 0 of a process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ScsiSpec {
    /// The socket of the process.
    pub path: PathBuf,
    /// How long commands wait for the process; `None` for no limit.
    pub patience: Option<Duration>,
}

impl ScsiSpec {
    /// Connects to the process and asks the device what it is.
    ///
    /// # Errors
    /// [`SgError`]
    pub fn open(&self) -> Result<OpenSg, SgError> {
        let (device, names) = self.connect()?;
        let mut device = Device::VhostUser(Box::new(device));
        let kind = names.first().and_then(|inquiry| inquiry.first()).copied().unwrap_or_default();
        let block_len = match has_blocks(kind) {
            true => block_len(&mut device).map_err(|source| self.failed(&mut device, source))?,
            false => None,
        };
        let info = DeviceInfo { kind, block_len, transfer_max: device.transfer_max() };
        Ok(OpenSg { device, path: self.path.clone(), identity: None, info, names })
    }

    /// Opens a device that another process of targe serves, without connecting to it: the process of the
    /// device may accept one connection only. The thread of the device connects at once.
    ///
    /// # Errors
    /// [`SgError`]
    pub fn take(&self, moved: MovedSg) -> Result<OpenSg, SgError> {
        let MovedSg { info, names, .. } = moved;
        let failed = |source| VhostUserError::Setup { path: self.path.clone(), source };
        let queue = ScsiQueue::new(info.transfer_max.min(DATA_LEN_MAX)).map_err(failed)?;
        let now = Instant::now();
        let outage = Outage { is_told: false, ..Outage::new(now, now, now) };
        let device = self.device(queue, None, None);
        let device = ScsiDevice { names: names.clone(), outage: Some(outage), ..device };
        let device = Device::VhostUser(Box::new(device));
        Ok(OpenSg { device, path: self.path.clone(), identity: None, info, names })
    }

    /// Makes a device that executes no command.
    fn device(&self, queue: ScsiQueue, region: Option<Region>, link: Option<Link>) -> ScsiDevice {
        ScsiDevice {
            spec: self.clone(),
            names: Vec::new(),
            queue,
            region,
            link,
            unverified: false,
            leaving: None,
            commands: VecDeque::new(),
            replies: VecDeque::new(),
            outage: None,
            delay: RETRY_FIRST,
            news: VecDeque::new(),
        }
    }

    /// Connects to the process with an empty queue, and asks the device for its names.
    fn connect(&self) -> Result<(ScsiDevice, Vec<Vec<u8>>), SgError> {
        let no_device = || SgError::NoDevice { path: self.path.clone() };
        let (link, fresh) = open_link(&self.path, None)?;
        let (queue, region) = fresh.ok_or_else(no_device)?;
        let mut device = Device::VhostUser(Box::new(self.device(queue, region, Some(link))));
        let names = names(&mut device, ATTEMPT_MAX).map_err(|source| self.failed(&mut device, source))?;
        if let Device::VhostUser(device) = &mut device
            && let Some(Err(error)) = device.take_news()
        {
            return Err(error);
        }
        match device {
            Device::VhostUser(mut device) if names.first().is_some_and(|inquiry| is_there(inquiry)) => {
                device.names.clone_from(&names);
                Ok((*device, names))
            }
            _ => Err(no_device()),
        }
    }

    /// Returns why a command did not end: the connection may have ended.
    fn failed(&self, device: &mut Device, source: io::Error) -> SgError {
        let news = match device {
            Device::VhostUser(device) => device.take_news(),
            Device::Sg(_) => None,
        };
        match news {
            Some(Err(error)) => error,
            _ => SgError::Query { path: self.path.clone(), source },
        }
    }
}

struct Command {
    request: SgRequest,
    /// When it was sent, and how long the process was away since then.
    since: Instant,
    is_sent: bool,
    /// How often a process has gone on with it.
    resumptions: u32,
}

/// The device, and the commands that it executes.
pub(crate) struct ScsiDevice {
    spec: ScsiSpec,
    /// What the device says of itself: another one is not used.
    names: Vec<Vec<u8>>,
    queue: ScsiQueue,
    region: Option<Region>,
    link: Option<Link>,
    /// Whether the connection only goes on with commands: the process was not asked yet which device it has.
    unverified: bool,
    /// The connection to a process that may still execute commands which have ended here. There is no other
    /// one until the process closes it.
    leaving: Option<Link>,
    /// The commands that have not ended, in the order of their submission.
    commands: VecDeque<Command>,
    replies: VecDeque<SgReply>,
    /// The process is away, or is back and has not answered yet.
    outage: Option<Outage>,
    /// How long to wait before the next attempt. Each one doubles it, until the device answers a command.
    delay: Duration,
    news: VecDeque<Result<(), SgError>>,
}

impl std::fmt::Debug for ScsiDevice {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "ScsiDevice({})", self.spec.path.display())
    }
}

impl ScsiDevice {
    /// Returns the longest data of one command.
    pub(crate) const fn transfer_max(&self) -> u32 {
        self.queue.data_len_max()
    }

    /// Returns how many commands have not ended.
    pub(crate) fn in_flight(&self) -> usize {
        self.commands.len()
    }

    /// Returns the next change of the connection: it has ended, or is there again.
    pub(crate) fn take_news(&mut self) -> Option<Result<(), SgError>> {
        self.news.pop_front()
    }

    /// Submits a command. The caller has fewer than [`drivers::sg::IN_FLIGHT_MAX`] in flight.
    ///
    /// # Errors
    /// The command, if the queue has no room for its bytes.
    pub(crate) fn submit(&mut self, request: SgRequest) -> Result<(), (SgRequest, Errno)> {
        if request.command.len() > COMMAND_LEN_MAX {
            return Err((request, Errno::OPNOTSUPP));
        }
        let command = Command { request, since: Instant::now(), is_sent: false, resumptions: 0 };
        if self.outage.is_some_and(|outage| outage.given_up) {
            self.replies.push_back(failed(command.request, did::NO_CONNECT));
        } else {
            self.commands.push_back(command);
            self.send();
        }
        Ok(())
    }

    /// Returns the next command that has ended.
    pub(crate) fn receive(&mut self) -> Option<SgReply> {
        self.collect();
        self.pass_deadlines(Instant::now());
        self.replies.pop_front()
    }

    /// Returns whether there is a connection.
    pub(crate) const fn is_connected(&self) -> bool {
        self.link.is_some()
    }

    /// Waits until something happens, or `waker` is signalled.
    pub(crate) fn wait(&mut self, waker: Option<&Waker>) {
        let timeout = self.next_deadline().map(|at| at.saturating_duration_since(Instant::now()));
        // A millisecond more, so that the deadline has passed then.
        let timeout = timeout.map(|timeout| Timespec {
            tv_sec: i64::try_from(timeout.as_secs()).unwrap_or(i64::MAX),
            tv_nsec: i64::from(timeout.subsec_nanos()).saturating_add(1_000_000).min(999_999_999),
        });
        let mut fds = Vec::with_capacity(3);
        if let Some(link) = &self.link {
            fds.push(PollFd::new(&link.socket, PollFlags::IN));
            fds.push(PollFd::new(&link.call, PollFlags::IN));
        } else if let Some(link) = &self.leaving {
            // Only the end of the connection counts, which poll always reports.
            fds.push(PollFd::new(&link.socket, PollFlags::empty()));
        }
        fds.extend(waker.map(|waker| PollFd::new(waker, PollFlags::IN)));
        // A wait that fails ends early, and the caller looks again.
        let _ = poll(&mut fds, timeout.as_ref());
        let is_ready = |at: usize| fds.get(at).is_some_and(|fd| !fd.revents().is_empty());
        let (has_message, is_signalled) = (is_ready(0), is_ready(1));
        let Some(link) = &self.link else {
            if has_message {
                self.leaving = None;
            }
            return;
        };
        if is_signalled {
            signals::consume(&link.call);
        }
        if has_message {
            let mut byte = [0];
            match recv(&link.socket, &mut byte[..], RecvFlags::DONTWAIT) {
                Ok((_, 1..)) => self.broken(&"the process sent a message that nobody asked for", did::ERROR),
                Err(Errno::AGAIN | Errno::INTR) => {}
                _ => self.ended(),
            }
        }
    }

    fn next_deadline(&self) -> Option<Instant> {
        if self.link.is_some() {
            return self
                .commands
                .iter()
                .filter(|command| command.is_sent)
                .filter_map(Command::deadline)
                .min();
        }
        let Outage { since, retry_at, given_up, .. } = self.outage?;
        let limit = self.spec.patience.filter(|_| !given_up).and_then(|limit| since.checked_add(limit));
        let retry_at = self.leaving.is_none().then_some(retry_at);
        [limit, retry_at].into_iter().flatten().min()
    }

    fn pass_deadlines(&mut self, now: Instant) {
        if self.link.is_some() {
            if self
                .commands
                .iter()
                .filter(|command| command.is_sent)
                .filter_map(Command::deadline)
                .any(|at| at <= now)
            {
                // Nothing aborts a command: the connection does.
                self.broken(&"the process did not answer a command in time", did::TIME_OUT);
            }
            return;
        }
        if self.leaving.is_none() && self.outage.is_some_and(|outage| outage.retry_at <= now) {
            self.reconnect();
        }
        let patience = self.spec.patience;
        if self.link.is_none()
            && let Some(outage) = &mut self.outage
            && !outage.given_up
            && patience.is_some_and(|patience| now.saturating_duration_since(outage.since) >= patience)
        {
            outage.given_up = true;
            self.abandon(did::NO_CONNECT, |_| true);
        }
    }

    fn reconnect(&mut self) {
        // The process may have ended commands after an attempt that failed: what it has ended is where the
        // next one goes on.
        self.collect();
        if self.commands.iter().any(|command| command.resumptions >= RESUMPTIONS_MAX) {
            self.abandon(did::TRANSPORT_DISRUPTED, |command| command.is_sent);
        }
        if !self.commands.iter().any(|command| command.is_sent) {
            // There is nothing to go on with, and a new queue shows whether it is still the same device.
            self.region = None;
        }
        let result = match &self.region {
            Some(region) => self.resume(open_link(&self.spec.path, Some((&self.queue, region)))),
            None => self.begin_again(),
        };
        match result {
            Ok(()) if self.unverified => {}
            Ok(()) => {
                self.news.push_back(Ok(()));
                self.send();
            }
            Err(error) => {
                let retry_at = Instant::now() + self.next_delay();
                let Some(outage) = &mut self.outage else { return };
                outage.retry_at = retry_at;
                let is_known = outage.is_removal && matches!(error, SgError::NoDevice { .. });
                let is_unusable = error.is_unusable() && !is_known;
                if is_unusable && !outage.is_unusable || !outage.is_told {
                    self.news.push_back(Err(error));
                }
                (outage.is_unusable, outage.is_told) = (is_unusable, true);
            }
        }
    }

    /// Goes on with the commands that are under way, over a new connection.
    fn resume(&mut self, opened: Result<(Link, Option<Fresh>), VhostUserError>) -> Result<(), SgError> {
        let link = match opened {
            Ok((link, _)) => link,
            Err(error) => {
                if matches!(error, VhostUserError::Missing { .. }) {
                    // Another program listens there now, which cannot go on with what was under way.
                    self.abandon(did::TRANSPORT_DISRUPTED, |command| command.is_sent);
                }
                return Err(error.into());
            }
        };
        (self.link, self.unverified) = (Some(link), true);
        if let Some(outage) = &mut self.outage {
            outage.given_up = false;
            let away = outage.lost_at.elapsed();
            for command in self.commands.iter_mut().filter(|command| command.is_sent) {
                command.since += away;
                command.resumptions = command.resumptions.saturating_add(1);
            }
        }
        Ok(())
    }

    /// Begins with an empty queue, if it is still the same device.
    fn begin_again(&mut self) -> Result<(), SgError> {
        let (device, names) = self.spec.connect()?;
        // Another process of targe served it a moment ago, and has closed its connection only now.
        let is_handed_over = self.outage.is_some_and(|outage| !outage.is_told);
        if !is_handed_over || names != self.names {
            check_same(&self.spec.path, &self.names, &names)?;
        }
        (self.link, self.queue, self.region) = (device.link, device.queue, device.region);
        self.outage = None;
        Ok(())
    }

    fn next_delay(&mut self) -> Duration {
        let delay = self.delay;
        self.delay = delay.saturating_mul(2).min(RETRY_MAX);
        delay
    }

    /// Sends the commands that were not sent.
    fn send(&mut self) {
        let Some(link) = self.link.as_ref().filter(|_| !self.unverified) else { return };
        let len_max = to_usize(self.queue.data_len_max());
        if self.commands.iter().any(|command| command.len() > len_max) {
            // The process was replaced by one that takes less.
            let (long, rest) =
                self.commands.drain(..).partition::<Vec<_>, _>(|command| command.len() > len_max);
            self.replies.extend(long.into_iter().map(|command| failed(command.request, did::ERROR)));
            self.commands = rest.into();
        }
        let mut result = Ok(());
        for command in self.commands.iter_mut().filter(|command| !command.is_sent) {
            let SgRequest { token, command: bytes, data, .. } = &command.request;
            let data = match data {
                SgData::Nothing => ScsiData::Nothing,
                SgData::In { len, .. } => ScsiData::In(*len),
                SgData::Out(data) => ScsiData::Out(data),
            };
            result = result.and_then(|()| self.queue.submit(*token, bytes, data));
            (command.is_sent, command.since) = (true, Instant::now());
        }
        match result.and_then(|()| self.queue.tell()) {
            Ok(true) => link.kick.notify(),
            Ok(false) => {}
            Err(error) => self.broken(&error, did::ERROR),
        }
    }

    /// Takes what the process has ended.
    fn collect(&mut self) {
        let mut is_removed = false;
        if self.link.is_some() {
            match self.queue.take_events() {
                Ok(may_be_another) => is_removed = may_be_another && !self.names.is_empty(),
                Err(error) => self.broken(&error, did::TRANSPORT_DISRUPTED),
            }
        }
        // Without a region, nobody goes on with the queue of a connection that has ended.
        while self.link.is_some() || self.region.is_some() {
            match self.queue.next_reply() {
                Ok(None) if is_removed => self.removed(),
                Ok(None) => return self.verify(),
                Ok(Some(reply)) => is_removed |= self.take(&reply),
                Err(error) => self.broken(&error, did::TRANSPORT_DISRUPTED),
            }
        }
    }

    /// Ends a connection that has gone on with commands, when all of them have ended: the next one begins
    /// with the question which device the process has.
    fn verify(&mut self) {
        if self.unverified && !self.commands.iter().any(|command| command.is_sent) {
            if let Some(link) = self.lost() {
                self.leave(link);
            }
            // The process is here. It is asked as soon as it has closed the connection.
            if let Some(outage) = &mut self.outage {
                outage.retry_at = outage.lost_at;
            }
        }
    }

    /// Takes a command that has ended. Returns whether the process says that it has removed the device.
    fn take(&mut self, reply: &ScsiReply) -> bool {
        let is_its = |command: &Command| command.request.token == reply.token;
        let Some(at) = self.commands.iter().position(is_its) else { return false };
        let Some(Command { request, .. }) = self.commands.remove(at) else { return false };
        let is_inquiry = matches!(request.command[..], [0x12, ..]);
        let mut ended = failed(request, host_status(reply.response));
        if let SgData::In { bufs, .. } = &mut ended.data
            && self.queue.copy_to(reply, bufs).is_err()
        {
            ended.host_status = did::ERROR;
        }
        (ended.status, ended.transferred) = (reply.status, reply.transferred);
        ended.sense.clone_from(&reply.sense);
        if self.link.is_some() {
            (self.delay, self.outage) = (RETRY_FIRST, None);
        }
        // An INQUIRY that fails has no data.
        let is_absent = |bufs: &[Buf]| {
            bufs.first().is_some_and(|inquiry| !inquiry.is_empty() && !is_there(inquiry.filled()))
        };
        let is_removed = reply.is_without_unit()
            || matches!(&ended.data, SgData::In { bufs, .. } if is_inquiry && is_absent(bufs));
        // While the device is opened it has no names, and the caller looks at the answers itself.
        let is_removed = is_removed && !self.names.is_empty();
        if is_removed {
            ended.host_status = did::NO_CONNECT;
        }
        self.replies.push_back(ended);
        is_removed
    }

    /// Handles the end of the connection: the process has died, or has left.
    fn ended(&mut self) {
        self.collect();
        if self.region.is_none() {
            self.abandon(did::TRANSPORT_DISRUPTED, |command| command.is_sent);
        }
        if self.lost().is_some() {
            self.tell_lost("its process has ended");
        }
    }

    /// Handles that the process has removed the device. Another one may come in its place, and only a new
    /// connection asks which one it is.
    fn removed(&mut self) {
        self.abandon(did::NO_CONNECT, |command| command.is_sent);
        let Some(link) = self.lost() else { return };
        self.leave(link);
        if let Some(outage) = &mut self.outage {
            outage.is_removal = true;
        }
        self.tell_lost("its process has removed the device");
    }

    fn tell_lost(&mut self, why: &str) {
        let wait = self.spec.patience;
        let wait = wait.map_or("without a limit".to_owned(), |most| format!("up to {most:?}"));
        self.news.push_back(Err(SgError::Lost { path: self.spec.path.clone(), why: why.to_owned(), wait }));
    }

    fn leave(&mut self, link: Link) {
        // It fails if the connection has ended, which is what is wanted.
        let _ = link.socket.shutdown(Shutdown::Write);
        self.leaving = Some(link);
    }

    /// Handles that the process broke the protocol, or was too slow: nothing that it says counts any more. It
    /// may still execute what ends here, so commands fail until it has closed the connection.
    fn broken(&mut self, why: &dyn std::fmt::Display, host_status: u16) {
        self.abandon(host_status, |command| command.is_sent);
        let Some(link) = self.lost() else { return };
        self.abandon(did::NO_CONNECT, |_| true);
        if let Some(outage) = &mut self.outage {
            outage.given_up = true;
        }
        self.leave(link);
        self.news.push_back(Err(SgError::Left { path: self.spec.path.clone(), why: why.to_string() }));
    }

    fn lost(&mut self) -> Option<Link> {
        let link = self.link.take()?;
        self.unverified = false;
        let lost_at = Instant::now();
        let since = self.outage.map_or(lost_at, |outage| outage.since);
        let retry_at = lost_at + self.next_delay();
        self.outage = Some(Outage::new(since, lost_at, retry_at));
        Some(link)
    }

    /// Ends commands, and gives up the queue that they are in: the next connection gets a fresh one.
    fn abandon(&mut self, host_status: u16, is_meant: impl Fn(&Command) -> bool) {
        self.region = None;
        let commands = std::mem::take(&mut self.commands);
        let (ended, kept): (Vec<_>, Vec<_>) = commands.into_iter().partition(is_meant);
        self.replies.extend(ended.into_iter().map(|command| failed(command.request, host_status)));
        self.commands.extend(kept);
    }
}

impl Command {
    fn len(&self) -> usize {
        match &self.request.data {
            SgData::Nothing => 0,
            SgData::In { len, .. } => *len,
            SgData::Out(data) => data.len(),
        }
    }

    fn deadline(&self) -> Option<Instant> {
        self.since.checked_add(Duration::from_millis(u64::from(self.request.timeout_ms)))
    }
}

/// Returns whether INQUIRY data is that of a device: its peripheral qualifier says so.
fn is_there(inquiry: &[u8]) -> bool {
    inquiry.first().is_some_and(|first| *first >> 5 == 0)
}

/// Returns the end of a command that has no answer of the device.
fn failed(request: SgRequest, host_status: u16) -> SgReply {
    let SgRequest { token, data, .. } = request;
    SgReply { token, status: 0, host_status, sense: Vec::new(), transferred: 0, data }
}

/// Returns what a host adapter of this host would say.
const fn host_status(response: ScsiResponse) -> u16 {
    match response {
        ScsiResponse::OK => 0,
        ScsiResponse::ABORTED => did::ABORT,
        ScsiResponse::BAD_TARGET => did::NO_CONNECT,
        ScsiResponse::RESET => did::RESET,
        ScsiResponse::BUSY => did::BUS_BUSY,
        ScsiResponse::TRANSPORT_FAILURE => did::TRANSPORT_DISRUPTED,
        _ => did::ERROR,
    }
}

mod outage;
mod start;
#[cfg(test)]
mod tests;
