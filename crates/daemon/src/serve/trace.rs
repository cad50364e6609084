//! Traces sessions for clients of the admin socket: `targe trace`.
//!
//! A reactor puts what it receives and sends into a [`Recorder`]. The thread of the client takes it from
//! there and writes it to the client. A slow client loses PDUs from its capture and delays no session.

use crate::mailbox::channel;
use std::io::{ErrorKind as IoErrorKind, Write};
use std::os::unix::net::UnixStream;
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::{Duration, Instant};

use drivers::message_queue::Handle;
use iscsi::trace::PduTrace as _;
use rustix::net::RecvFlags;
use security::Level;

use super::audit::{AuditEntry, AuditLog};
use super::changes::failure;
use super::reactor_shard::ReactorShard;
use super::reactors::{REACTOR_REPLY_TIMEOUT, ReactorInfo};
use super::recorder::{Counts, Recorder, Selection, Settings};
use super::session_drop::parse_isid;
use crate::admin::api::{ErrorKind, Failure};
use crate::admin::change::{Client, Continuation, Peer};
use crate::admin::trace_api::{TraceEnd, TraceRequest, TraceStarted};

/// The most traces at a time.
const TRACES_MAX: usize = 4;

/// The memory of a trace if the client does not say, and the most, in MiB.
const BUFFER_DEFAULT_MIB: u32 = 16;
const BUFFER_MAX_MIB: u32 = 1024;

/// How long the thread of a client sleeps at most while little is recorded.
const WAIT_MAX: Duration = Duration::from_millis(50);

/// How often the reactors look for HyperSCSI sessions that began or ended.
const REFRESH: Duration = Duration::from_secs(1);

type Reactors = Vec<(Handle<ReactorShard>, ReactorInfo)>;

/// The traces that are on, of all clients.
static RUNNING: Mutex<Vec<Weak<Recorder>>> = Mutex::new(Vec::new());

/// Starts a trace. The capture follows the answer.
pub(super) fn start(
    reactors: &Reactors,
    audit: &Arc<AuditLog>,
    request: Option<TraceRequest>,
    client: &mut Client,
) -> Result<TraceStarted, Failure> {
    let request = request.ok_or_else(|| failure(ErrorKind::Malformed, "the request has no \"trace\""))?;
    let settings = settings(&request)?;
    let subject = describe(&settings);
    let begun = begin(reactors, settings);
    let message = match &begun {
        Ok((sessions, ..)) => format!("{sessions} sessions are traced"),
        Err(failure) => failure.message.clone(),
    };
    let result = if begun.is_ok() { "done" } else { "refused" };
    record(audit, &client.peer, "trace", (result, &subject, &message));
    let (sessions, recorder, spare) = begun?;
    let trace = Trace {
        recorder,
        spare,
        reactors: reactors.clone(),
        deadline: request.seconds.and_then(|after| Instant::now().checked_add(Duration::from_secs(after))),
        audit: Arc::clone(audit),
        peer: client.peer.clone(),
        subject,
        reason: "the client is gone or does not read",
    };
    client.continuation = Some(Continuation(Box::new(move |stream| trace.run(stream))));
    Ok(TraceStarted { sessions: u32::try_from(sessions).unwrap_or(u32::MAX) })
}

fn record(audit: &AuditLog, peer: &Peer, action: &str, (result, subject, message): (&str, &str, &str)) {
    audit.record(&AuditEntry {
        peer: Some(peer),
        action,
        changes: &[subject.to_owned()],
        result,
        message,
        ..AuditEntry::default()
    });
}

/// Checks what a client requests.
fn settings(request: &TraceRequest) -> Result<Settings, Failure> {
    let malformed = |message: &str| failure(ErrorKind::Malformed, message);
    let buffer_mib = request.buffer_mib.unwrap_or(BUFFER_DEFAULT_MIB);
    if !(1..=BUFFER_MAX_MIB).contains(&buffer_mib) {
        return Err(malformed(&format!("the buffer of a trace has 1 to {BUFFER_MAX_MIB} MiB")));
    }
    if request.count == Some(0) || request.seconds == Some(0) {
        return Err(malformed("a trace that ends before it begins records nothing"));
    }
    let mib = usize::try_from(buffer_mib).unwrap_or(usize::MAX);
    Ok(Settings {
        selection: Selection {
            initiator: request.sessions.initiator.clone(),
            target: request.sessions.target.clone(),
            isid: request.sessions.isid.as_deref().map(parse_isid).transpose()?,
        },
        takes_protected: request.plain,
        follows: request.follow,
        snap: request.snap.map_or(usize::MAX, |snap| usize::try_from(snap).unwrap_or(usize::MAX)),
        count_max: request.count.unwrap_or(u64::MAX),
        // While one half is filled, the other is sent.
        waiting_max: mib.saturating_mul(1 << 19),
    })
}

/// Returns what is traced on one line, for the audit log.
fn describe(settings: &Settings) -> String {
    let Selection { initiator, target, isid } = &settings.selection;
    let target = target.as_ref().map(|target| format!(" with {target}")).unwrap_or_default();
    let isid = isid.map(|isid| isid.iter().map(|byte| format!("{byte:02x}")).collect::<String>());
    let isid = isid.map(|isid| format!(", ISID {isid}")).unwrap_or_default();
    let plain = if settings.takes_protected { ", what is protected in plain" } else { "" };
    format!("sessions of {initiator}{target}{isid}{plain}")
}

/// Starts a trace on every reactor. Returns the number of its sessions, and a second buffer for the capture.
fn begin(reactors: &Reactors, settings: Settings) -> Result<(usize, Arc<Recorder>, Vec<u8>), Failure> {
    let (waiting, spare) = (buffer(&settings)?, buffer(&settings)?);
    let recorder = Arc::new(Recorder::new(settings, waiting));
    {
        let mut running = RUNNING.lock().unwrap_or_else(PoisonError::into_inner);
        running.retain(|trace| trace.upgrade().is_some_and(|trace| !trace.has_ended()));
        if running.len() >= TRACES_MAX {
            return Err(failure(ErrorKind::Busy, format!("{TRACES_MAX} traces are on already")));
        }
        running.push(Arc::downgrade(&recorder));
    }
    let found = start_on(reactors, &recorder).and_then(|(sessions, protected)| {
        let Selection { initiator, .. } = &recorder.settings.selection;
        if protected > 0 && !recorder.settings.takes_protected {
            let message = format!(
                "{protected} sessions of {initiator} are protected on the network: use --plain to record what they \
                 carry without protection"
            );
            return Err(failure(ErrorKind::Refused, message));
        }
        if sessions == 0 && !recorder.settings.follows {
            let message =
                format!("{initiator} has no such session: use --follow to wait for its logins");
            return Err(failure(ErrorKind::Refused, message));
        }
        Ok(sessions)
    });
    match found {
        Ok(sessions) => Ok((sessions, recorder, spare)),
        Err(failure) => {
            recorder.end();
            refresh(reactors);
            Err(failure)
        }
    }
}

/// Returns one of the two buffers of a trace.
fn buffer(settings: &Settings) -> Result<Vec<u8>, Failure> {
    let mut buffer = Vec::new();
    // The system gives this memory when it is used first. A limit of the process is enforced here.
    buffer.try_reserve_exact(settings.waiting_max).map_err(|_| {
        let mib = settings.waiting_max >> 19;
        failure(ErrorKind::Busy, format!("there is no memory for a buffer of {mib} MiB"))
    })?;
    Ok(buffer)
}

/// Starts a trace on every reactor. Returns how many sessions it records, and how many of the sessions that
/// it selects are protected iSCSI sessions.
fn start_on(reactors: &Reactors, recorder: &Arc<Recorder>) -> Result<(usize, usize), Failure> {
    let (sender, receiver) = channel();
    for (handle, _) in reactors {
        let (sender, recorder) = (sender.clone(), Arc::clone(recorder));
        let posted = handle.post(move |member: &mut ReactorShard, _| {
            let selection = recorder.selection();
            let is_selected = |report: &shard::admin::SessionReport| {
                report.protection.level() != Level::None
                    && selection.has(&report.initiator, report.target.as_deref(), report.isid)
            };
            let protected = member.sessions().iter().filter(|report| is_selected(report)).count();
            let _ = sender.send((member.start_trace(Arc::clone(&recorder)), protected));
        });
        posted.map_err(|_| failure(ErrorKind::Unavailable, "targe is stopping"))?;
    }
    let deadline = Instant::now() + REACTOR_REPLY_TIMEOUT;
    let (mut sessions, mut protected) = (0, 0);
    for _ in reactors {
        let found = receiver.recv_timeout(deadline.saturating_duration_since(Instant::now()));
        let found = found.map_err(|_| failure(ErrorKind::Unavailable, "a reactor does not answer"))?;
        sessions += found.0;
        protected += found.1;
    }
    Ok((sessions, protected))
}

/// Makes every reactor drop the traces that have ended. Returns whether the daemon still runs.
fn refresh(reactors: &Reactors) -> bool {
    reactors
        .iter()
        .all(|(handle, _)| handle.post(|member: &mut ReactorShard, _| member.refresh_traces()).is_ok())
}

/// A trace that is on. Dropping it ends the trace: no thread runs it if its client cannot be answered.
struct Trace {
    recorder: Arc<Recorder>,
    /// The buffer that the recorder does not fill.
    spare: Vec<u8>,
    reactors: Reactors,
    deadline: Option<Instant>,
    audit: Arc<AuditLog>,
    peer: Peer,
    /// What is traced, for the audit log.
    subject: String,
    /// Why the trace ends.
    reason: &'static str,
}

impl Trace {
    /// Writes the capture to the client until the trace ends.
    fn run(mut self, mut stream: &UnixStream) {
        // A client that could not be written to may have a part of a piece, which nothing may follow.
        let Ok(reason) = self.send_capture(stream) else { return };
        self.reason = reason;
        self.end();
        let Counts { recorded, dropped } = self.recorder.counts();
        let end = TraceEnd { recorded, dropped, reason: reason.to_owned() };
        // A client that is gone gets no more.
        let _ = send_piece(stream, &self.recorder.statistics(reason)).and_then(|()| {
            let mut line = 0_u32.to_be_bytes().to_vec();
            line.extend(serde_json::to_vec(&end)?);
            line.push(b'\n');
            stream.write_all(&line)
        });
    }

    /// Writes what is recorded to the client. Returns why the trace ends.
    fn send_capture(&mut self, stream: &UnixStream) -> std::io::Result<&'static str> {
        let mut spare = std::mem::take(&mut self.spare);
        let (mut refreshed, mut reason) = (Instant::now(), None);
        loop {
            // The reason is found before the last part is taken, so that nothing is left behind.
            let ends = reason.take();
            let mut piece = self.recorder.take(spare, WAIT_MAX);
            if !piece.is_empty() {
                send_piece(stream, &piece)?;
            }
            piece.clear();
            spare = piece;
            if let Some(reason) = ends {
                return Ok(reason);
            }
            if refreshed.elapsed() >= REFRESH {
                refreshed = Instant::now();
                if !refresh(&self.reactors) {
                    self.recorder.end();
                    reason = Some("targe is stopping");
                    continue;
                }
            }
            reason = self.ends(stream);
            if reason.is_some() {
                self.recorder.end();
            }
        }
    }

    /// Ends the recording on every reactor.
    fn end(&self) {
        self.recorder.end();
        refresh(&self.reactors);
    }

    /// Returns why the trace ends, if it does.
    fn ends(&self, stream: &UnixStream) -> Option<&'static str> {
        if self.recorder.has_ended() {
            return Some("the limit of the count is reached");
        }
        if self.deadline.is_some_and(|deadline| deadline <= Instant::now()) {
            return Some("the limit of the time is reached");
        }
        if !self.recorder.settings.follows && self.recorder.is_idle() {
            return Some("no session is left");
        }
        match rustix::net::recv(stream, &mut [0; 64], RecvFlags::DONTWAIT) {
            Ok((0, _)) => Some("the client ended it"),
            Ok(_) => None,
            Err(error) if matches!(error.kind(), IoErrorKind::WouldBlock | IoErrorKind::Interrupted) => None,
            Err(_) => Some("the client is gone"),
        }
    }
}

impl Drop for Trace {
    fn drop(&mut self) {
        self.end();
        let Counts { recorded, dropped } = self.recorder.counts();
        let message = format!("{recorded} PDUs and frames were recorded, {dropped} dropped: {}", self.reason);
        record(&self.audit, &self.peer, "trace end", ("done", &self.subject, &message));
    }
}

/// Writes a part of the capture, with its length before it.
fn send_piece(mut stream: &UnixStream, piece: &[u8]) -> std::io::Result<()> {
    let len = u32::try_from(piece.len()).map_err(|_| IoErrorKind::InvalidInput)?;
    stream.write_all(&len.to_be_bytes())?;
    stream.write_all(piece)
}

#[cfg(test)]
mod tests;
