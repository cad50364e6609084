//! Finding the target and shaking hands, for the first time and again.
//!
//! A hint that the target does not know our session is nothing but a reason to ask the session for a sign of life. Only when
//! none comes, a new handshake begins beside it; a sign of life ends that again. So who forges hints gets a few frames.
//!
//! Once the handshake said its last step the target may have put a new session in the place of ours, and what still comes of
//! the old one says nothing: then it goes on to its end. That a session is replaced by what became of a handshake of ours is
//! no reason to give up, even if that handshake is over.

use alloc::vec::Vec;

use base::ether::{EtherPort, FrameBatch, Mac, PortState, ReceivedFrame};
use base::time::{Duration, Instant};

use super::contract::{LossReason, SessionEnd};
use super::session::{Nexus, Phase, Session};
use crate::Role;
use crate::connection::{Connection, ConnectionConfig, PathAddress};
use crate::discovery::{DiscoveredTarget, DiscoveryClient as Scout};
use crate::frame::{Cmd, Header};
use crate::login::control_queue;
use crate::login::cookie::Cookies;
use crate::login::initiator::{HandshakeError, Login, LoginEvent, LoginPlan};
use crate::login::target::HandshakeServer;
use crate::login::{HandshakeResult, StretchJob, StretchResult};
use crate::path::credit::SHARED_PERCENT;
use crate::pdu::disconnect::Disconnect;
use crate::pdu::parameters::{Levels, Parameters};
use crate::random::HmacDrbg;

/// What looks for the target.
pub(super) struct Connector {
    login: Option<Login>,
    /// When a handshake that came to nothing last told the target what it may make a session of.
    claimed: Option<Instant>,
    /// What looks for more ways to the target of the session, and the server that it is on.
    scout: Option<(Scout, [u8; 16])>,
    random: HmacDrbg,
    /// Whether a handshake took random bytes since the last block of entropy came.
    thirsty: bool,
    /// Whether a handshake is to begin as soon as there is entropy.
    wanted: bool,
    /// When to try again.
    again: Option<Instant>,
    /// Until when the session has to show a sign of life.
    suspicion: Option<Instant>,
    /// When hints were last listened to.
    hinted: Option<Instant>,
    /// When to look for other ways, since one was given up, and how long after that again.
    look_at: Option<Instant>,
    look_after: Duration,
}

/// How long a session that the target seems not to know may take to show that it does.
const SIGN_WITHIN: Duration = Duration::from_millis(200);

/// For how long something may become of a handshake that is over: a target forgets a half-open one, and a cookie is no good
/// any more, after 10 s; it tells the session that was replaced for 1 s.
const CLAIM: Duration = Duration::from_secs(15);
const _: () = assert!(CLAIM.as_millis() > HandshakeServer::HALF_LIFETIME.as_millis());
const _: () = assert!(CLAIM.as_millis() > Cookies::LIFETIME.as_millis());

/// How long more ways to the target are looked for.
const LOOK_AROUND: Duration = Duration::from_secs(5);

/// How long after that again, while a way does not carry anything: at first, and at most.
const LOOK_AGAIN: (Duration, Duration) = (Duration::from_secs(60), Duration::from_secs(3600));

/// How often hints are listened to.
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

    /// Returns how many blocks of entropy are wanted: one behind each handshake that took secrets from the last.
    pub(super) fn entropy_wanted(&self) -> usize {
        usize::from(self.thirsty)
    }

    pub(super) fn add_entropy(&mut self, entropy: [u8; 32]) {
        self.thirsty = false;
        self.random.reseed(entropy);
    }

    /// Takes note that somebody speaks another version: perhaps the target, which is then why it does not answer.
    pub(super) fn other_version(&mut self) {
        if let Some(login) = &mut self.login {
            login.other_version();
        }
    }

    /// Looks no more.
    pub(super) fn stop(&mut self) {
        (self.login, self.scout, self.wanted) = (None, None, false);
        (self.claimed, self.again, self.suspicion) = (None, None, None);
        self.look_at = None;
    }

    /// Takes note that the session is alive.
    pub(super) fn sign_of_life(&mut self) {
        self.suspicion = None;
        if !self.login.as_ref().is_some_and(Login::awaits_accept) {
            self.drop_login();
        }
    }

    /// Takes note that a way to the target was given up: its port may have been replaced by another.
    pub(super) const fn way_lost(&mut self, now: Instant) {
        (self.look_at, self.look_after) = (Some(now), LOOK_AGAIN.0);
    }

    /// Returns whether a session of ours may be what took the place of the one that there is. What explains that once does
    /// not do so again: two initiators of one name do not oust each other for ever.
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
    /// Returns the slow step of a handshake when there is one to be done. Whoever takes it runs it, where it disturbs
    /// nobody, and hands over what came of it.
    pub fn poll_job(&mut self) -> Option<StretchJob> {
        self.connector.login.as_mut()?.poll_job()
    }

    /// Takes what came of the slow step.
    pub fn job_done(&mut self, now: Instant, done: StretchResult) {
        if let Some(login) = &mut self.connector.login {
            login.job_done(now, done);
        }
        self.hear_login(now);
        self.process_pending(now);
    }

    /// Begins to look for the target, as soon as that is possible.
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
            patience: self.plan.limits.login_within,
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

    /// Begins to look for the target then, and not before.
    pub(super) const fn seek_at(&mut self, at: Instant) {
        (self.connector.again, self.connector.suspicion) = (Some(at), None);
    }

    /// Begins to look for the target if only entropy was missing for that.
    pub(super) fn seek_if_wanted(&mut self, now: Instant) {
        if self.connector.wanted && self.connector.random.is_ready() {
            self.start_login(now);
        }
    }

    fn offer(&self) -> Parameters {
        // Frames may come in two spaces before the target hears of credit.
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
        // A port that is new, or back, may be one more way.
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

    /// Looks for more ways to the server of the session while one of those that there are carries nothing.
    fn rediscover_paths(&mut self, now: Instant) {
        let Some(instance) = self.nexus.as_ref().map(|nexus| nexus.instance) else { return };
        if self.paths().all(|path| path.is_up) {
            return;
        }
        self.discover_paths(now, instance);
        self.connector.look_at = Some(now.after(self.connector.look_after));
        self.connector.look_after = (self.connector.look_after * 2).min(LOOK_AGAIN.1);
    }

    /// Takes a frame of no session.
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

    /// Looks for more ways to the server of the session.
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

    /// Takes an answer of somebody who says that he is a way to the target. Whether he is, the session finds out.
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
            let told = self.nexus.as_deref_mut().map(|nexus| core::mem::replace(&mut nexus.twin_told, true));
            if told == Some(false) {
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

    /// Takes what a handshake came to.
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
            // It was only tried beside the session, which ends or goes on by its own signs of life.
            return;
        }
        let lost = match why {
            HandshakeError::NoAnswer => LossReason::NotFound,
            HandshakeError::NoPort => LossReason::NoPort,
            why => LossReason::Handshake(why),
        };
        self.last = lost;
        self.loss = self.loss.map(|_| lost);
        if !why.may_pass() {
            return self.end_session(SessionEnd::Permanent(lost));
        }
        self.failures += 1;
        let retry = self.plan.retry;
        let given_up = retry.attempts > 0 && self.failures >= retry.attempts;
        if given_up || (!self.was_up && !retry.first) {
            return self.end_session(SessionEnd::RetriesExhausted(lost));
        }
        let wait = retry.backoff.saturating_mul(1 << (self.failures - 1).min(16)).min(retry.backoff_max);
        self.seek_at(now.after(wait));
    }
}

/// Returns how much of a port's receive ring a session may fill.
pub(super) fn share_of(port: &PortState) -> u64 {
    u64::try_from(port.receive_slots.saturating_mul(SHARED_PERCENT) / 100).unwrap_or(u64::MAX)
}

pub(super) fn transport_path(nexus: &Nexus, id: u8) -> Option<PathAddress> {
    let transport = nexus.transport.as_ref()?;
    transport.paths().find(|path| path.id == id).map(|path| path.address)
}
