//! Finding the target and shaking hands, for the first time and again.
//!
//! A hint that the target does not know our session is nothing but a reason to ask the session for a sign of life. Only when
//! none comes, a new handshake begins beside it; a sign of life ends that again. So who forges hints gets a few frames.

use base::ether::{EtherPort, FrameBatch, Mac, PortState, Received};
use base::time::{Duration, Instant};

use super::contract::{Down, Lost};
use super::session::{Phase, Session};
use crate::Role;
use crate::association::{Association, PathAddress, Plan};
use crate::frame::{Cmd, Header};
use crate::login::initiator::{Event, Login, Plan as LoginPlan, Why};
use crate::login::post;
use crate::login::{Agreed, Done, Job};
use crate::pdu::disconnect::Disconnect;
use crate::pdu::parameters::{Levels, Parameters};
use crate::random::Random;

/// What looks for the target.
pub(super) struct Finder {
    login: Option<Login>,
    random: Random,
    /// Whether a handshake is to begin as soon as there is entropy.
    wanted: bool,
    /// When to try again.
    again: Option<Instant>,
    /// Until when the session has to show a sign of life.
    suspicion: Option<Instant>,
    /// When hints were last listened to.
    hinted: Option<Instant>,
}

/// How long a session that the target seems not to know may take to show that it does.
const SIGN_WITHIN: Duration = Duration::from_millis(200);

/// How often hints are listened to.
const HINTS_EVERY: Duration = Duration::from_secs(1);

/// How much of a port's receive ring a session may fill, in percent.
const SHARED_PERCENT: usize = 80;

impl Finder {
    pub(super) fn new() -> Self {
        Self {
            login: None,
            random: Random::empty(),
            wanted: false,
            again: None,
            suspicion: None,
            hinted: None,
        }
    }

    pub(super) fn poll_port(&mut self) -> Option<EtherPort> {
        self.login.as_mut()?.poll_port()
    }

    pub(super) fn transmit(&mut self, port: EtherPort, out: &mut FrameBatch) {
        if let Some(login) = &mut self.login {
            login.transmit(port, out);
        }
    }

    pub(super) fn poll_timeout(&self) -> Option<Instant> {
        let login = self.login.as_ref().and_then(Login::poll_timeout);
        [login, self.again, self.suspicion].into_iter().flatten().min()
    }

    pub(super) fn stir(&mut self, entropy: [u8; 32]) {
        self.random.stir(entropy);
    }

    /// Looks no more.
    pub(super) fn stop(&mut self) {
        (self.login, self.wanted, self.again, self.suspicion) = (None, false, None, None);
    }

    /// Takes note that the session is alive.
    pub(super) fn sign_of_life(&mut self) {
        (self.suspicion, self.login) = (None, None);
    }

    /// Returns whether a handshake is under way.
    pub(super) const fn is_at_it(&self) -> bool {
        self.login.is_some()
    }
}

impl Session {
    /// Returns the slow step of a handshake when there is one to be done. Whoever takes it runs it, where it disturbs
    /// nobody, and hands over what came of it.
    pub fn poll_job(&mut self) -> Option<Job> {
        self.finder.login.as_mut()?.poll_job()
    }

    /// Takes what came of the slow step.
    pub fn job_done(&mut self, now: Instant, done: Done) {
        if let Some(login) = &mut self.finder.login {
            login.job_done(now, done);
        }
        self.hear_login(now);
        self.drive(now);
    }

    /// Begins to look for the target, as soon as that is possible.
    pub(super) fn seek(&mut self, now: Instant) {
        if self.finder.login.is_some() || self.phase == Phase::Down {
            return;
        }
        self.finder.again = None;
        self.finder.wanted = !self.finder.random.is_ready();
        if self.finder.wanted {
            return;
        }
        let offer = self.offer();
        let random = &mut self.finder.random;
        let sid = u32::from_be_bytes(random.bytes()).max(1);
        let plan = LoginPlan {
            group: self.plan.group.clone(),
            password: self.plan.password.clone(),
            target: self.plan.target.clone(),
            initiator: self.plan.initiator.clone(),
            isid: self.plan.isid,
            sid,
            protection: self.plan.level,
            offer,
            place: self.plan.place,
            patience: self.plan.limits.login_within,
        };
        match Login::new(now, plan, random.bytes()) {
            Ok(mut login) => {
                for (port, state) in &self.ports {
                    login.port_up(now, *port, state, self.finder.random.bytes());
                }
                self.finder.login = Some(login);
            }
            Err(why) => self.end(Down::Hopeless(Lost::Handshake(why))),
        }
    }

    fn offer(&self) -> Parameters {
        Parameters { levels: Levels::from(self.plan.level), ..self.plan.parameters }
    }

    pub(super) fn finder_port_up(
        &mut self,
        now: Instant,
        port: EtherPort,
        state: &PortState,
        entropy: [u8; 32],
    ) {
        self.finder.random.stir(entropy);
        if let Some(login) = &mut self.finder.login {
            login.port_up(now, port, state, self.finder.random.bytes());
        }
        if self.finder.wanted {
            self.seek(now);
        }
        self.hear_login(now);
    }

    pub(super) fn finder_port_down(&mut self, now: Instant, port: EtherPort) {
        if let Some(login) = &mut self.finder.login {
            login.port_down(now, port);
        }
    }

    pub(super) fn finder_timeout(&mut self, now: Instant) {
        if let Some(login) = &mut self.finder.login {
            login.handle_timeout(now);
        }
        self.hear_login(now);
        let due = |at: &mut Option<Instant>| at.take_if(|at| *at <= now).is_some();
        if due(&mut self.finder.again) || due(&mut self.finder.suspicion) {
            self.seek(now);
        }
    }

    /// Takes a frame of no session.
    pub(super) fn outsider(&mut self, now: Instant, header: &Header, frame: Received<'_>) {
        let Some(bytes) = frame.payload.get_mut(..) else { return };
        match header.cmd {
            Cmd::Negotiated => {
                let from: (EtherPort, Mac) = (frame.port, frame.source);
                if let Some(login) = &mut self.finder.login {
                    login.frame(now, from, header, bytes);
                }
                self.hear_login(now);
            }
            Cmd::Disconnect => {
                let said = post::payload(header, bytes).and_then(|payload| Disconnect::parse(payload).ok());
                if let Some(Disconnect::Unknown { sid }) = said {
                    self.hinted(now, sid);
                }
            }
            _ => self.stats.strays += 1,
        }
    }

    fn hinted(&mut self, now: Instant, sid: u32) {
        let ours = self.link.as_ref().is_some_and(|link| link.sids.0 == sid);
        let lately = self.finder.hinted.is_some_and(|at| now.since(at) < HINTS_EVERY);
        if !ours || lately || self.finder.login.is_some() {
            return;
        }
        self.stats.hints += 1;
        self.finder.hinted = Some(now);
        self.finder.suspicion = Some(now.after(SIGN_WITHIN));
        if let Some(transport) = self.transport() {
            transport.ping();
        }
    }

    /// Takes what a handshake came to.
    fn hear_login(&mut self, now: Instant) {
        let Some(event) = self.finder.login.as_mut().and_then(Login::poll_event) else { return };
        self.finder.login = None;
        match event {
            Event::Agreed(agreed) => self.agreed(now, &agreed),
            Event::Failed(why) => self.login_failed(now, why),
        }
    }

    fn agreed(&mut self, now: Instant, agreed: &Agreed) {
        let Some(port) = self.ports.get(&agreed.port).copied() else {
            return self.login_failed(now, Why::NoPort);
        };
        let share =
            u64::try_from(port.receive_slots.saturating_mul(SHARED_PERCENT) / 100).unwrap_or(u64::MAX);
        let entropy = self.finder.random.bytes();
        let plan = Plan::new(&self.offer(), &agreed.parameters, share, agreed.token, entropy);
        let address = PathAddress { port: agreed.port, mac: agreed.peer };
        let (sid_out, sid_in) = (agreed.sid_out, agreed.sid_in);
        let keys = agreed.keys.as_ref();
        let transport = Association::new(Role::Initiator, &plan, now, keys, sid_out, sid_in, address, &port);
        self.finder.stop();
        self.begin(now, agreed, transport);
    }

    fn login_failed(&mut self, now: Instant, why: Why) {
        self.stats.logins_failed += 1;
        if self.link.is_some() {
            // It was only tried beside the session, which ends or goes on by its own signs of life.
            return;
        }
        let lost = match why {
            Why::NoAnswer | Why::NoPort => Lost::NotFound,
            why => Lost::Handshake(why),
        };
        self.last = lost;
        if !why.may_pass() {
            return self.end(Down::Hopeless(lost));
        }
        self.failures += 1;
        let retry = self.plan.retry;
        let given_up = retry.attempts > 0 && self.failures >= retry.attempts;
        if given_up || (!self.was_up && !retry.first) {
            return self.end(Down::NoPath(lost));
        }
        let wait = retry.backoff.saturating_mul(1 << (self.failures - 1).min(16)).min(retry.backoff_max);
        self.finder.again = Some(now.after(wait));
    }
}
