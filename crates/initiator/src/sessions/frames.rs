//! Connects HyperSCSI sessions to interfaces and frames, and runs the slow step of their handshakes on other
//! threads.

use std::collections::BTreeMap;
use std::num::NonZeroU8;

use base::ether::{EtherPort, FrameBatch, FrameMachine, Mac, PortState, ReceivedFrame};
use base::time::Instant;
use hyperscsi::connection::PathView;
use hyperscsi::frame::Header;
use hyperscsi::initiator::contract::{Event as Asked, LossReason, SessionEnd};
use rustix::rand::{GetRandomFlags, getrandom};
use scsi::status::Status;
use security::opaque::{StretchJob, StretchResult};
use smallvec::SmallVec;
use transport::initiator::{CommandResponse, InitiatorTransport as _, TaskResult};
use transport::task_management::TmfResult;

use super::{DriverEvent, DriverRequest, Event, Path, PathError, SessionId, SessionUp, Sessions, index};
use crate::protocol::HyperScsiSession;
use crate::session_error::{ProtocolEndReason, SessionError};

/// The ends of some paths: our interface and the address of the target.
type Ends<'a> = SmallVec<[(&'a str, Mac); 8]>;

/// The interfaces that are in use.
#[derive(Default)]
pub(super) struct Ports {
    /// The names of the interfaces, by port number.
    names: Vec<String>,
    up: BTreeMap<EtherPort, PortState>,
    /// The ports to open.
    wanted: Vec<EtherPort>,
    /// The position of the session that transmits first, so that no session fills every batch.
    turn: usize,
}

impl Ports {
    fn number(&mut self, name: &str) -> EtherPort {
        if let Some(at) = self.names.iter().position(|known| known == name) {
            return port(at);
        }
        // The numbers of interfaces that could not be opened are reused.
        let at = self.names.iter().position(String::is_empty).unwrap_or_else(|| {
            self.names.push(String::new());
            self.names.len() - 1
        });
        if let Some(free) = self.names.get_mut(at) {
            name.clone_into(free);
        }
        self.wanted.push(port(at));
        port(at)
    }

    fn name(&self, port: EtherPort) -> Option<&str> {
        self.names.get(index(port.0)).map(String::as_str)
    }
}

fn port(at: usize) -> EtherPort {
    EtherPort(u32::try_from(at).unwrap_or(u32::MAX))
}

/// Returns a byte that other programs are not likely to choose.
pub(super) fn random_byte() -> NonZeroU8 {
    // Without random bytes, frames of other programs may be received too; the sessions drop them.
    entropy().and_then(|[byte, ..]| NonZeroU8::new(byte)).unwrap_or(NonZeroU8::MAX)
}

impl Sessions {
    /// Connects a new session to its interfaces.
    pub(super) fn plug_in(&mut self, now: Instant, id: SessionId) {
        let Some(ether) = self.entries.get_mut(&id) else { return };
        let Some(ether) = ether.session.ether() else { return };
        // With random bytes, the session searches for its target, and gives up in time, even if no interface
        // is up.
        if let Some(entropy) = entropy() {
            ether.session.add_entropy(entropy);
        }
        for interface in ether.interfaces.clone() {
            let port = self.ports.number(&interface);
            if let Some(state) = self.ports.up.get(&port) {
                bring_up(ether, now, port, state);
            }
        }
        self.share_rings();
    }

    fn share_rings(&mut self) {
        for port in self.ports.up.keys().copied().collect::<Vec<_>>() {
            self.share_ring(port);
        }
    }

    /// Divides the receive ring of a port among the sessions that use it (ring quota). Sessions that ended
    /// get nothing.
    fn share_ring(&mut self, port: EtherPort) {
        let Some(share) = self.share_at(port) else { return };
        for ether in self.on_port(port) {
            ether.session.set_receive_slots(port, share);
        }
    }

    fn share_at(&mut self, port: EtherPort) -> Option<usize> {
        let slots = self.ports.up.get(&port)?.receive_slots;
        let alive = self.on_port(port).filter(|ether| !ether.session.is_down()).count();
        Some((slots / alive.max(1)).max(1))
    }

    /// Adds requests for interfaces, and for the slow steps of password logins, to `errands`. Returns whether
    /// there was anything to do.
    pub(super) fn ether_errands(&mut self, now: Instant, errands: &mut Vec<DriverRequest>) -> bool {
        let before = errands.len();
        for port in core::mem::take(&mut self.ports.wanted) {
            let name = self.ports.name(port).unwrap_or_default().to_owned();
            errands.push(DriverRequest::OpenPort(port, name));
        }
        let mut any = errands.len() > before;
        while let Some((id, done)) = self.stretched.pop_front() {
            if let Some(entry) = self.entry(id) {
                entry.session.job_done(now, done);
                any = true;
            }
        }
        for (id, entry) in &mut self.entries {
            while let Some(job) = entry.session.poll_job() {
                errands.push(DriverRequest::Stretch(*id, Box::new(job)));
                any = true;
            }
        }
        any
    }

    /// Records that an interface cannot be used. Sessions that have no other interface end.
    pub(crate) fn port_failed(&mut self, now: Instant, port: EtherPort, why: &str) {
        let Some(name) = self.ports.name(port).map(ToOwned::to_owned) else { return };
        // A later session may try to open it again.
        if let Some(known) = self.ports.names.get_mut(index(port.0)) {
            known.clear();
        }
        for entry in self.entries.values_mut() {
            let Some(ether) = entry.session.ether() else { continue };
            let before = ether.interfaces.len();
            ether.interfaces.retain(|interface| *interface != name);
            if ether.interfaces.len() < before {
                let none_left = ether.interfaces.is_empty();
                entry.system = Some(why.to_owned());
                if none_left {
                    entry.session.services_mut().close(now);
                }
            }
        }
    }

    /// Records the result of the slow step of a password login.
    pub(crate) fn job_done(&mut self, id: SessionId, done: StretchResult) {
        self.stretched.push_back((id, done));
    }

    pub(super) fn handle_hyperscsi_event(&mut self, now: Instant, id: SessionId, asked: Asked) {
        let path =
            |ports: &Ports, port, peer| Path::of_ports(ports.name(port).unwrap_or_default().to_owned(), peer);
        let news = match asked {
            Asked::Done { task, outcome } => {
                let Some(entry) = self.entries.get_mut(&id) else { return };
                let mut outcome = outcome;
                if outcome.end == TaskResult::Aborted && !entry.wants_ended(task) {
                    // Another initiator ended the task: iSCSI has a status for that.
                    outcome.end = TaskResult::Status(CommandResponse {
                        status: Status::TASK_ABORTED.0,
                        ..CommandResponse::default()
                    });
                }
                return entry.done(now, id, task, outcome, &mut self.events);
            }
            Asked::TmfDone { id: manage, result } => {
                let Some(entry) = self.entries.get_mut(&id) else { return };
                // The responses have the same numbers in both protocols.
                let result = result.map(|result| TmfResult(result.0));
                return entry.tmf_done(now, id, manage, result, &mut self.events);
            }
            Asked::Up(up) => {
                if let Some(entry) = self.entries.get_mut(&id) {
                    entry.system = None;
                    if up.rebuilt {
                        entry.check_identities(now, id, &mut self.events);
                    }
                }
                Event::Up(Box::new(SessionUp::HyperScsi(*up)))
            }
            Asked::PathUp { port, peer } => return self.path_up(id, path(&self.ports, port, peer)),
            Asked::PathDown { port, peer } => {
                return self.path_down(id, path(&self.ports, port, peer), PathError::Silent);
            }
            Asked::OtherServer { port, peer } => Event::OtherServer { path: path(&self.ports, port, peer) },
            Asked::PathMtuStatus { port, peer, status } => {
                Event::PathMtu { path: path(&self.ports, port, peer), status }
            }
            Asked::Recovering(_) => Event::Recovering,
            Asked::Down(why) => {
                let Some(entry) = self.entries.get_mut(&id) else { return };
                let silent = || not_up(&self.ports, entry.session.ether()?);
                let no_port = matches!(
                    why,
                    SessionEnd::RetriesExhausted(LossReason::NoPort)
                        | SessionEnd::Permanent(LossReason::NoPort)
                );
                let system = entry.system.take().or_else(|| no_port.then(silent).flatten());
                let down = SessionError { why: ProtocolEndReason::HyperScsi(why), system };
                entry.down = Some(down.clone());
                // The ends of waiting commands are reported before the end of the session.
                entry.submit_waiting(now, id, &mut self.events);
                self.share_rings();
                Event::Down(down)
            }
        };
        self.report(id, news);
    }

    /// Reports the paths of a HyperSCSI session that came up or went down. The session itself reports neither
    /// that the path of its handshake is up, nor that a path ended with one of its ports. Returns whether
    /// there was anything to report.
    pub(super) fn follow_paths(&mut self, id: SessionId) -> bool {
        let Some(entry) = self.entries.get_mut(&id).filter(|entry| entry.down.is_none()) else {
            return false;
        };
        let Some(session) = entry.session.ether().map(|ether| &ether.session) else { return false };
        if !session.is_up() {
            return false;
        }
        let ends =
            |path: &PathView| (self.ports.name(path.address.port).unwrap_or_default(), path.address.mac);
        let (mut up, mut silent) = (Ends::new(), Ends::new());
        for path in session.paths() {
            if path.is_up { &mut up } else { &mut silent }.push(ends(&path));
        }
        let has = |list: &Ends<'_>, path: &Path| list.iter().any(|(name, mac)| path.is_between(name, *mac));
        let mut events = Vec::new();
        for path in entry.paths_up.list_unless(|path| has(&up, path)) {
            let why = if has(&silent, &path) { PathError::Silent } else { PathError::PortGone };
            events.extend(entry.paths_up.remove(path, why));
        }
        for (name, mac) in up {
            if !entry.paths_up.has(|path| path.is_between(name, mac)) {
                events.extend(entry.paths_up.add(Path::of_ports(name.to_owned(), mac)));
            }
        }
        let any = !events.is_empty();
        self.events.extend(events.into_iter().map(|event| DriverEvent::Session { session: id, event }));
        any
    }

    /// Returns the sessions that use a port.
    fn on_port(&mut self, port: EtherPort) -> impl Iterator<Item = &mut HyperScsiSession> {
        let name = self.ports.name(port).unwrap_or_default();
        let sessions = self.entries.values_mut().filter_map(|entry| entry.session.ether());
        sessions.filter(move |ether| ether.interfaces.iter().any(|interface| interface == name))
    }
}

impl FrameMachine for Sessions {
    fn port_up(&mut self, now: Instant, port: EtherPort, state: &PortState, _: [u8; 32]) {
        self.ports.up.insert(port, *state);
        for ether in self.on_port(port) {
            bring_up(ether, now, port, state);
        }
        self.share_ring(port);
    }

    fn port_down(&mut self, now: Instant, port: EtherPort) {
        self.ports.up.remove(&port);
        for ether in self.on_port(port) {
            ether.session.port_down(now, port);
        }
    }

    fn frame_received(&mut self, now: Instant, frame: ReceivedFrame<'_>) {
        let ReceivedFrame { port, source, group, age, payload } = frame;
        let sid = Header::parse(payload).map_or(0, |(header, _)| header.sid);
        for ether in self.on_port(port) {
            // The session identifier shows which session a frame belongs to. A frame without one goes to
            // every session.
            if sid == 0 || ether.session.owns_sid(sid) {
                ether
                    .session
                    .frame_received(now, ReceivedFrame { port, source, group, age, payload: &mut *payload });
                if sid != 0 {
                    return;
                }
            }
        }
    }

    fn poll_port(&mut self) -> Option<EtherPort> {
        let mut sessions = self.entries.values_mut().filter_map(|entry| entry.session.ether());
        sessions.find_map(|ether| ether.session.poll_port())
    }

    fn transmit_frames(&mut self, now: Instant, port: EtherPort, out: &mut FrameBatch) {
        let count = self.on_port(port).count();
        if count == 0 {
            return;
        }
        self.ports.turn = (self.ports.turn + 1) % count;
        let first = self.ports.turn;
        // The sessions starting with the first one, then those before it.
        for pass in [first..count, 0..first] {
            for ether in self.on_port(port).skip(pass.start).take(pass.len()) {
                if out.is_full() {
                    return;
                }
                ether.session.transmit_frames(now, port, out);
            }
        }
    }

    fn frames_too_long(&mut self, now: Instant, port: EtherPort, count: usize) {
        for ether in self.on_port(port) {
            ether.session.frames_too_long(now, port, count);
        }
    }

    fn frames_overrun(&mut self, now: Instant, port: EtherPort, count: u32) {
        for ether in self.on_port(port) {
            ether.session.frames_overrun(now, port, count);
        }
    }
}

/// Returns the text that names the interfaces that a session waits for.
fn not_up(ports: &Ports, ether: &HyperScsiSession) -> Option<String> {
    let up = |name: &&String| {
        let at = ports.names.iter().position(|known| known == *name);
        at.is_some_and(|at| ports.up.contains_key(&port(at)))
    };
    let names: Vec<&str> = ether.interfaces.iter().filter(|name| !up(name)).map(String::as_str).collect();
    match names.as_slice() {
        [] => None,
        [name] => Some(format!("interface {name} is not up")),
        names => Some(format!("interfaces {} are not up", names.join(", "))),
    }
}

/// Reports a port to a session. Each session gets its own random bytes.
fn bring_up(ether: &mut HyperScsiSession, now: Instant, port: EtherPort, state: &PortState) {
    // Linux has `getrandom` since 3.17. Without random bytes a session can have no secrets, and the port is
    // not reported to it.
    if let Some(entropy) = entropy() {
        ether.session.port_up(now, port, state, entropy);
    }
}

/// Returns random bytes of the operating system.
fn entropy() -> Option<[u8; 32]> {
    let mut bytes = [0; 32];
    let mut at = 0;
    while let Some(rest) = bytes.get_mut(at..).filter(|rest| !rest.is_empty()) {
        match getrandom(rest, GetRandomFlags::empty()) {
            Ok(got) => at += got,
            Err(rustix::io::Errno::INTR) => {}
            Err(_) => return None,
        }
    }
    Some(bytes)
}

/// Runs the slow step of a password login on a thread of its own.
pub(crate) fn stretch(reactor: drivers::message_queue::Handle<Sessions>, id: SessionId, job: StretchJob) {
    let work = move || {
        let done = job.run();
        // If the reactor has ended, no session needs the result.
        let _ = reactor.post(move |sessions, _| sessions.job_done(id, done));
    };
    // If no thread can be created, the login starts again after its timeout.
    let _ = std::thread::Builder::new().name("targe-handshake".to_owned()).spawn(work);
}

#[cfg(test)]
mod tests {
    use base::buffer::Pool;
    use base::time::Duration;

    use super::*;
    use crate::login::plan;
    use crate::url::{EnvSecrets, Url};

    const URL: &str =
        "hyperscsi://backup@eth0/iqn.2026-11.com.example:disk/0?initiator=iqn.2026-11.com.example:host";

    fn open(sessions: &mut Sessions, now: Instant) -> SessionId {
        sessions.open(now, plan(&Url::parse(URL).unwrap(), &EnvSecrets).unwrap())
    }

    fn end(sessions: &mut Sessions, now: Instant, id: SessionId) {
        sessions.session(id).unwrap().services_mut().close(now);
        let errands = &mut Vec::new();
        while sessions.process_pending(now, errands) {}
        sessions.forget(id);
        assert!(!sessions.ids().contains(&id));
    }

    #[test]
    fn who_has_ended_leaves_its_share_of_a_ring_to_the_others_and_its_name_to_nobody() {
        let now = Instant::ORIGIN;
        let mut sessions = Sessions::new(Pool::new(4096));
        let first = open(&mut sessions, now);
        let eth0 = EtherPort(0);
        let state = PortState { mac: Mac([2, 0, 0, 0, 0, 1]), mtu: 9000, receive_slots: 600 };
        sessions.port_up(now, eth0, &state, [1; 32]);
        assert_eq!(sessions.share_at(eth0), Some(600));
        let others = [open(&mut sessions, now), open(&mut sessions, now)];
        assert_eq!(sessions.share_at(eth0), Some(200));
        for (id, share) in others.into_iter().zip([300, 600]) {
            end(&mut sessions, now.after(Duration::from_secs(1)), id);
            assert_eq!(sessions.share_at(eth0), Some(share));
        }
        let next = open(&mut sessions, now);
        assert!(![first].iter().chain(&others).any(|id| *id == next), "{next:?}");
        assert_eq!(sessions.entries.len(), 2);
    }

    #[test]
    fn a_pair_of_ports_has_the_events_of_a_connection() {
        let now = Instant::ORIGIN;
        let mut sessions = Sessions::new(Pool::new(4096));
        let id = open(&mut sessions, now);
        let (port, peer) = (EtherPort(0), Mac([2, 0, 0, 0, 0, 7]));
        for asked in [
            Asked::PathUp { port, peer },
            Asked::PathUp { port, peer },
            Asked::PathDown { port, peer },
            Asked::PathDown { port, peer },
            Asked::PathUp { port, peer },
            // The session reports no end of the paths that it still has.
            Asked::Recovering(LossReason::PathLost),
            Asked::PathUp { port, peer },
            Asked::Down(SessionEnd::LoggedOut),
        ] {
            sessions.handle_hyperscsi_event(now, id, asked);
        }
        let told: Vec<String> = sessions
            .events
            .drain(..)
            .map(|event| match event {
                DriverEvent::Session { event: Event::PathUp { path }, .. } => format!("{path} is up"),
                DriverEvent::Session { event: Event::PathDown { path, why }, .. } => format!("{path}: {why}"),
                DriverEvent::Session { event: Event::Recovering, .. } => "recovering".to_owned(),
                DriverEvent::Session { event: Event::Down(_), .. } => "down".to_owned(),
                other => panic!("{other:?}"),
            })
            .collect();
        let up = "eth0 to 02:00:00:00:00:07 is up";
        let [silent, ended] = ["the path carries no frames", "the session ended"]
            .map(|why| format!("eth0 to 02:00:00:00:00:07: {why}"));
        assert_eq!(told, [up, &silent, up, &ended, "recovering", up, &ended, "down"]);
    }

    #[test]
    fn an_interface_that_could_not_be_had_leaves_no_number_behind() {
        let now = Instant::ORIGIN;
        let mut sessions = Sessions::new(Pool::new(4096));
        for _ in 0..3 {
            let id = open(&mut sessions, now);
            let errands = &mut Vec::new();
            sessions.process_pending(now, errands);
            let [DriverRequest::OpenPort(port, name)] = &errands[..] else { panic!("{errands:?}") };
            assert_eq!((*port, name.as_str()), (EtherPort(0), "eth0"));
            sessions.port_failed(now, *port, "no such interface");
            end(&mut sessions, now, id);
        }
    }
}
