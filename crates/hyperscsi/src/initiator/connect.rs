//! Discovers the target and performs the handshake, for the first session and after each loss.
//!
//! A hint that the target does not know our session is not authenticated, so it only makes the initiator ping
//! the target over the session. A new handshake begins only if no frame of the session is received in time,
//! and runs beside the session. A frame of the session (in a keyed session a protected one) ends that
//! handshake again. So an attacker who forges hints causes a few frames only.
//!
//! Once the initiator has sent the last step of a handshake, the target may have replaced the session. Frames
//! of the old session that still arrive then prove nothing, so the handshake continues to its end. A session
//! that is replaced because of the initiator's own handshake is no reason to give up, even if that handshake
//! is over.

use alloc::vec::Vec;

use base::ether::{EtherPort, FrameBatch, Mac, PortState, ReceivedFrame};
use base::time::{Duration, Instant};

use super::contract::{LossReason, SessionEnd};
use super::session::{Nexus, Phase, Session};
use crate::Role;
use crate::connection::{Connection, ConnectionConfig, PathAddress};
use crate::discovery::{DiscoveredTarget, DiscoveryClient as Scout};
use crate::frame::{Cmd, Header};
use crate::login::HandshakeResult;
use crate::login::control_queue;
use crate::login::cookie::Cookies;
use crate::login::initiator::{HandshakeError, Login, LoginEvent, LoginPlan};
use crate::login::target::HandshakeServer;
use crate::path::credit::SHARED_PERCENT;
use crate::pdu::disconnect::Disconnect;
use crate::pdu::parameters::{Levels, Parameters};
use security::opaque::{StretchJob, StretchResult};
use security::random::HmacDrbg;

/// Connects to the target: discovery, handshake, and the search for further paths.
pub(super) struct Connector {
    login: Option<Login>,
    /// When a failed handshake last sent the step that lets the target open a session.
    claimed: Option<Instant>,
    /// The discovery of further paths to the target of the session, and the instance that serves the session.
    scout: Option<(Scout, [u8; 16])>,
    random: HmacDrbg,
    /// Whether a handshake used random bytes since the last block of entropy was added.
    thirsty: bool,
    /// Whether a handshake is to begin as soon as there is entropy.
    wanted: bool,
    /// When to begin the next handshake.
    again: Option<Instant>,
    /// When a handshake begins, unless a frame proves before that the session is alive.
    suspicion: Option<Instant>,
    /// When a hint was last acted on.
    hinted: Option<Instant>,
    /// When to discover paths again after one was lost, and the interval after which to do so again.
    look_at: Option<Instant>,
    look_after: Duration,
}

/// How long a session may be silent after a hint that the target does not know it.
const SIGN_WITHIN: Duration = Duration::from_millis(200);

/// How long a handshake that failed may still make the target open a session. The target drops a half-open
/// handshake after 10 s, and a cookie expires after 10 s; the target sends the Disconnect to the replaced
/// session for 1 s.
const CLAIM: Duration = Duration::from_secs(15);
const _: () = assert!(CLAIM.as_millis() > HandshakeServer::HALF_LIFETIME.as_millis());
const _: () = assert!(CLAIM.as_millis() > Cookies::LIFETIME.as_millis());

/// How long one discovery of further paths lasts.
const LOOK_AROUND: Duration = Duration::from_secs(5);

/// The interval between such discoveries while a path carries nothing: the first one, and the longest.
const LOOK_AGAIN: (Duration, Duration) = (Duration::from_secs(60), Duration::from_secs(3600));

/// How long a session that was lost waits after the first handshake with a reason that cannot pass; each
/// further one doubles the time, six times at most. An impostor can test four passwords in each handshake.
const REFUSED_BACKOFF: Duration = Duration::from_secs(1);

/// The shortest interval between two hints that are acted on.
const HINTS_EVERY: Duration = Duration::from_secs(1);

impl Connector {
    pub(super) fn new() -> Self {
        Self {
            login: None,
            claimed: None,
            scout: None,
            random: HmacDrbg::empty(),
            thirsty: false,
            wanted: false,
            again: None,
            suspicion: None,
            hinted: None,
            look_at: None,
            look_after: LOOK_AGAIN.0,
        }
    }

    pub(super) fn poll_port(&mut self) -> Option<EtherPort> {
        let login = self.login.as_mut().and_then(Login::poll_port);
        login.or_else(|| self.scout.as_mut()?.0.poll_port())
    }

    pub(super) fn transmit(&mut self, port: EtherPort, out: &mut FrameBatch) {
        if let Some(login) = &mut self.login {
            login.transmit(port, out);
        }
        if let Some((scout, _)) = &mut self.scout {
            scout.transmit(port, out);
        }
    }

    pub(super) fn poll_timeout(&self) -> Option<Instant> {
        let login = self.login.as_ref().and_then(Login::poll_timeout);
        let scout = self.scout.as_ref().map(|(scout, _)| scout.poll_timeout());
        [login, scout, self.again, self.suspicion, self.look_at].into_iter().flatten().min()
    }

    /// Returns how many blocks of entropy are wanted: one after a handshake drew secrets from the last one.
    pub(super) fn entropy_wanted(&self) -> usize {
        usize::from(self.thirsty)
    }

    pub(super) fn add_entropy(&mut self, entropy: [u8; 32]) {
        self.thirsty = false;
        self.random.reseed(entropy);
    }

    /// Records that a frame of another version was received: if the target sent it, the version explains why
    /// the target does not answer.
    pub(super) fn other_version(&mut self) {
        if let Some(login) = &mut self.login {
            login.other_version();
        }
    }

    /// Stops the handshake, the discovery and their timers.
    pub(super) fn stop(&mut self) {
        (self.login, self.scout, self.wanted) = (None, None, false);
        (self.claimed, self.again, self.suspicion) = (None, None, None);
        self.look_at = None;
    }

    /// Records that the session is alive.
    pub(super) fn sign_of_life(&mut self) {
        self.suspicion = None;
        if !self.login.as_ref().is_some_and(Login::awaits_accept) {
            self.drop_login();
        }
    }

    /// Records that a path to the target was lost: the target's port may have been replaced by another one.
    pub(super) const fn way_lost(&mut self, now: Instant) {
        (self.look_at, self.look_after) = (Some(now), LOOK_AGAIN.0);
    }

    /// Records that a path is gone: the target has left it, or another path took its place. A target can
    /// leave a path as soon as it is there, so a discovery under way goes on and no other begins.
    pub(super) fn path_gone(&mut self, now: Instant) {
        if self.scout.is_none() {
            self.way_lost(now);
        } else if self.look_at.is_none() {
            (self.look_at, self.look_after) = (Some(now.after(LOOK_AGAIN.0)), LOOK_AGAIN.0);
        }
    }

    /// Returns whether a handshake of this initiator may be the reason that the target replaced the session.
    /// Each handshake counts as the reason only once, so that two initiators of one name do not replace each
    /// other's sessions for ever.
    pub(super) fn explains_replaced(&mut self, now: Instant) -> bool {
        let claimed = self.claimed.take().is_some_and(|at| now.since(at) < CLAIM);
        claimed || self.login.is_some()
    }

    fn drop_login(&mut self) {
        if let Some(login) = self.login.take() {
            self.claimed = login.claimed().or(self.claimed);
        }
    }
}

impl Session {
    /// Returns the slow step of a handshake (password stretching) when one is due. The caller runs it where
    /// it delays no other work, and passes the result to [`Self::job_done`].
    pub fn poll_job(&mut self) -> Option<StretchJob> {
        self.connector.login.as_mut()?.poll_job()
    }

    /// Accepts the result of the slow step.
    pub fn job_done(&mut self, now: Instant, done: StretchResult) {
        if let Some(login) = &mut self.connector.login {
            login.job_done(now, done);
        }
        self.hear_login(now);
        self.process_pending(now);
    }

    /// Begins a handshake, as soon as there is entropy for it.
    pub(super) fn start_login(&mut self, now: Instant) {
        if self.connector.login.is_some() || self.phase == Phase::Down {
            return;
        }
        self.connector.again = None;
        self.connector.wanted = !self.connector.random.is_ready();
        if self.connector.wanted {
            return;
        }
        let offer = self.offer();
        self.connector.thirsty = true;
        let random = &mut self.connector.random;
        let mut sid = random.bytes();
        if let (Some(first), Some(wanted)) = (sid.first_mut(), self.plan.sid_first) {
            *first = wanted.get();
        }
        let sid = u32::from_be_bytes(sid).max(1);
        let plan = LoginPlan {
            group: self.plan.group.clone(),
            password: self.plan.password.clone(),
            target: self.plan.target.clone(),
            initiator: self.plan.initiator.clone(),
            isid: self.plan.isid,
            sid,
            protection: self.plan.level,
            offer,
            target_address: self.plan.target_address,
            time_limit: self.plan.limits.login_within,
        };
        match Login::new(now, plan, random.bytes()) {
            Ok(mut login) => {
                for (port, state) in &self.ports {
                    login.port_up(now, *port, state, self.connector.random.bytes());
                }
                self.connector.login = Some(login);
            }
            Err(why) => self.end_session(SessionEnd::Permanent(LossReason::Handshake(why))),
        }
    }

    /// Schedules a handshake at `at`, and not before.
    pub(super) const fn seek_at(&mut self, at: Instant) {
        (self.connector.again, self.connector.suspicion) = (Some(at), None);
    }

    /// Begins a handshake if it waited only for entropy.
    pub(super) fn seek_if_wanted(&mut self, now: Instant) {
        if self.connector.wanted && self.connector.random.is_ready() {
            self.start_login(now);
        }
    }

    fn offer(&self) -> Parameters {
        // Frames may arrive in two packet number spaces before the target receives credit.
        let share = self.ports.values().map(|port| share_of(port) / 2).min();
        let share = share.map_or(u32::MAX, |share| u32::try_from(share).unwrap_or(u32::MAX).max(1));
        Parameters {
            levels: Levels::from(self.plan.level),
            frames_initial: self.plan.parameters.frames_initial.min(share),
            ..self.plan.parameters
        }
    }

    pub(super) fn finder_port_up(
        &mut self,
        now: Instant,
        port: EtherPort,
        state: &PortState,
        entropy: [u8; 32],
    ) {
        self.connector.random.reseed(entropy);
        if let Some(login) = &mut self.connector.login {
            login.port_up(now, port, state, self.connector.random.bytes());
        }
        self.seek_if_wanted(now);
        self.hear_login(now);
        if let Some(transport) = self.transport() {
            transport.set_ring_quota(port, share_of(state));
        }
        // A port that is new, or up again, may provide a further path.
        if let Some(instance) = self.nexus.as_ref().map(|nexus| nexus.instance) {
            self.discover_paths(now, instance);
        }
    }

    pub(super) fn finder_port_down(&mut self, now: Instant, port: EtherPort) {
        if let Some(login) = &mut self.connector.login {
            login.port_down(now, port);
        }
        if let Some((scout, _)) = &mut self.connector.scout {
            scout.port_down(port);
        }
    }

    pub(super) fn finder_timeout(&mut self, now: Instant) {
        if let Some(login) = &mut self.connector.login {
            login.handle_timeout(now);
        }
        if let Some((scout, _)) = &mut self.connector.scout {
            scout.handle_timeout(now);
            if scout.is_over(now) {
                self.connector.scout = None;
            }
        }
        self.hear_login(now);
        let due = |at: &mut Option<Instant>| at.take_if(|at| *at <= now).is_some();
        if due(&mut self.connector.again) || due(&mut self.connector.suspicion) {
            self.start_login(now);
        }
        if due(&mut self.connector.look_at) {
            self.rediscover_paths(now);
        }
    }

    /// Discovers further paths to the server of the session while it lacks one.
    fn rediscover_paths(&mut self, now: Instant) {
        let Some(nexus) = self.nexus.as_ref().filter(|nexus| nexus.lacks_path()) else { return };
        self.discover_paths(now, nexus.instance);
        self.connector.look_at = Some(now.after(self.connector.look_after));
        self.connector.look_after = (self.connector.look_after * 2).min(LOOK_AGAIN.1);
    }

    /// Processes a frame that belongs to no session.
    pub(super) fn handle_sessionless_frame(
        &mut self,
        now: Instant,
        header: &Header,
        frame: ReceivedFrame<'_>,
    ) {
        let Some(bytes) = frame.payload.get_mut(..) else { return };
        match header.cmd {
            Cmd::Negotiated => {
                let from: (EtherPort, Mac) = (frame.port, frame.source);
                if let Some(login) = &mut self.connector.login {
                    login.frame_received(now, from, header, bytes);
                }
                self.hear_login(now);
            }
            Cmd::Disconnect => {
                let said =
                    control_queue::payload(header, bytes).and_then(|payload| Disconnect::parse(payload).ok());
                if let Some(Disconnect::Unknown { sid }) = said {
                    self.hinted(now, sid);
                }
            }
            Cmd::Discovery => self.found(now, (frame.port, frame.source), header, bytes),
            _ => self.stats.strays += 1,
        }
    }

    /// Discovers further paths to the server of the session.
    fn discover_paths(&mut self, now: Instant, instance: [u8; 16]) {
        let most = self.nexus.as_ref().map_or(1, |nexus| nexus.parameters.paths);
        if self.plan.target_address.is_some() || most <= 1 {
            return;
        }
        let (group, target) = (self.plan.group.clone(), Some(self.plan.target.clone()));
        let mut scout = Scout::new(now, group, target, LOOK_AROUND, self.connector.random.bytes());
        for (port, state) in &self.ports {
            scout.port_up(*port, state);
        }
        self.connector.scout = Some((scout, instance));
    }

    /// Processes the answer of a port that claims to lead to the target. The session verifies the claim by
    /// probing the path.
    fn found(&mut self, now: Instant, from: (EtherPort, Mac), header: &Header, bytes: &mut [u8]) {
        let Some((scout, instance)) = &mut self.connector.scout else { return };
        if !scout.frame_received(from, header, bytes) {
            return;
        }
        let (instance, found) = (*instance, scout.found());
        let paths =
            self.nexus.iter().flat_map(|nexus| &nexus.transport).flat_map(|transport| transport.paths());
        let known: Vec<Mac> = paths.map(|path| path.address.mac).collect();
        let here = |found: &&DiscoveredTarget| (found.port, found.mac) == from;
        let ours = |found: &DiscoveredTarget| found.instance == instance && found.may_be_at(&known);
        //= hyperscsi#section-5
        //# An initiator MUST NOT use both as paths of one session, and SHOULD say so to its user.
        if !found.iter().filter(here).any(ours) {
            let was_reported =
                self.nexus.as_deref_mut().map(|nexus| core::mem::replace(&mut nexus.twin_reported, true));
            if was_reported == Some(false) {
                self.events.push_back(super::contract::Event::OtherServer { port: from.0, peer: from.1 });
            }
            return;
        }
        let Some(state) = self.ports.get(&from.0).copied() else { return };
        if let Some(transport) = self.transport() {
            transport.add_path(now, PathAddress { port: from.0, mac: from.1 }, &state);
        }
    }

    fn hinted(&mut self, now: Instant, sid: u32) {
        let ours = self.nexus.as_ref().is_some_and(|nexus| nexus.sids.0 == sid);
        let lately = self.connector.hinted.is_some_and(|at| now.since(at) < HINTS_EVERY);
        if !ours || lately || self.connector.login.is_some() {
            return;
        }
        self.stats.hints += 1;
        self.connector.hinted = Some(now);
        self.connector.suspicion = Some(now.after(SIGN_WITHIN));
        if let Some(transport) = self.transport() {
            transport.ping();
        }
    }

    /// Handles the result of a handshake.
    fn hear_login(&mut self, now: Instant) {
        let Some(event) = self.connector.login.as_mut().and_then(Login::poll_event) else { return };
        self.connector.drop_login();
        match event {
            LoginEvent::Agreed(agreed) => self.agreed(now, &agreed),
            LoginEvent::Failed(why) => self.login_failed(now, why),
        }
    }

    pub(super) fn agreed(&mut self, now: Instant, agreed: &HandshakeResult) {
        let Some(port) = self.ports.get(&agreed.port).copied() else {
            return self.login_failed(now, HandshakeError::NoPort);
        };
        let share = share_of(&port);
        let entropy = self.connector.random.bytes();
        let plan = ConnectionConfig {
            key_limits: self.plan.limits.key_limits,
            ..ConnectionConfig::new(&self.offer(), &agreed.parameters, share, agreed.token, entropy)
        };
        let address = PathAddress { port: agreed.port, mac: agreed.peer };
        let (sid_out, sid_in) = (agreed.sid_out, agreed.sid_in);
        let keys = agreed.keys.as_ref();
        let mut transport =
            Connection::new(Role::Initiator, &plan, now, keys, sid_out, sid_in, address, &port);
        for (port, state) in &self.ports {
            transport.set_ring_quota(*port, share_of(state));
            transport.port_up(now, *port, state);
        }
        self.connector.stop();
        self.open_nexus(now, agreed, transport);
        self.discover_paths(now, agreed.instance);
    }

    fn login_failed(&mut self, now: Instant, why: HandshakeError) {
        self.stats.logins_failed += 1;
        if self.nexus.is_some() {
            // This handshake was tried beside the session, which lives or ends by its own frames.
            return;
        }
        let lost = match why {
            HandshakeError::NoAnswer => LossReason::NotFound,
            HandshakeError::NoPort => LossReason::NoPort,
            why => LossReason::Handshake(why),
        };
        self.last = lost;
        self.loss = self.loss.map(|_| lost);
        // An attacker can forge the reason, and another server can give it. An initiator that had a session
        // has shown that its password and parameters were right, so the target may accept them again.
        if !self.was_up && !why.may_pass() {
            return self.end_session(SessionEnd::Permanent(lost));
        }
        self.failures += 1;
        let retry = self.plan.retry;
        let given_up = retry.attempts > 0 && self.failures >= retry.attempts;
        if given_up || (!self.was_up && !retry.first) {
            return self.end_session(SessionEnd::RetriesExhausted(lost));
        }
        let mut wait = retry.backoff.saturating_mul(1 << (self.failures - 1).min(16)).min(retry.backoff_max);
        if !why.may_pass() {
            wait = wait.max(REFUSED_BACKOFF.saturating_mul(1 << self.refusals.min(6)));
            self.refusals = self.refusals.saturating_add(1);
        }
        self.seek_at(now.after(wait));
    }
}

/// Returns how many slots of a port's receive ring a session may fill.
pub(super) fn share_of(port: &PortState) -> u64 {
    u64::try_from(port.receive_slots.saturating_mul(SHARED_PERCENT) / 100).unwrap_or(u64::MAX)
}

pub(super) fn transport_path(nexus: &Nexus, id: u8) -> Option<PathAddress> {
    let transport = nexus.transport.as_ref()?;
    transport.paths().find(|path| path.id == id).map(|path| path.address)
}
