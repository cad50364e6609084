//! The initiator's half of a handshake: one state machine for one session.
//!
//! The state machine repeats its last step until it receives the next one, to each server that answers to the
//! target's name. When no next step arrives, it begins again. An unproven message against a session (a
//! refusal, an answer that does not decrypt) counts only if nothing better arrives within [`Login::GRACE`].

mod error;
mod plan;
mod state;

use alloc::boxed::Box;
use alloc::vec::Vec;

use base::ether::{EtherPort, FrameBatch, Mac, PortState};
use base::time::{Duration, Instant};
use sha2::{Digest, Sha512};
use subtle::ConstantTimeEq;
use zeroize::Zeroizing;

use super::control_queue::{self, ControlQueue};
use super::{HandshakeResult, context, is_within, proof};
use crate::aead::SessionKeys;
use crate::frame::{Cmd, Header};
use crate::pdu::negotiate::{
    Accept, Answer, Finish, HandshakeId, Hello, Negotiate, Negotiated, RefuseReason, Start,
};
use crate::pdu::parameters::Parameters;
pub use error::HandshakeError;
pub use plan::LoginPlan;
use security::opaque::KE1_LEN;
use security::opaque::{PendingClientLogin, StretchJob, StretchResult, is_bearable};
use security::random::HmacDrbg;
use state::{Candidate, Finishing, Opening, State};

/// The result of a login. A login returns exactly one.
#[derive(Debug)]
pub enum LoginEvent {
    /// There is a session.
    Agreed(Box<HandshakeResult>),
    /// There is no session.
    Failed(HandshakeError),
}

/// The initiator's half of one handshake.
#[derive(Debug)]
pub struct Login {
    plan: LoginPlan,
    random: HmacDrbg,
    ports: Vec<(EtherPort, PortState)>,
    state: State,
    /// The handshake's identifier and the first message of its key exchange. Both are new when the handshake
    /// begins again.
    handshake: HandshakeId,
    attempt: Option<(PendingClientLogin, [u8; KE1_LEN])>,
    /// The servers that answered to the target's name.
    candidates: Vec<Candidate>,
    /// The digests of the answers that did not decrypt.
    failed: Vec<[u8; 64]>,
    job: Option<StretchJob>,
    /// Why there will be no session, unless something better arrives until then.
    doubt: Option<(Instant, HandshakeError)>,
    /// The error to report at the deadline instead of a missing answer.
    hint: Option<HandshakeError>,
    deadline: Instant,
    /// When to begin again unless there is a session by then: the target does not accept our cookie any more.
    renewal: Option<Instant>,
    /// When the last step was last sent, in this handshake or in an earlier one of this login.
    claimed: Option<Instant>,
    /// When the state began, when to repeat its step, and how often it was repeated.
    since: Instant,
    repeat: Instant,
    repeats: u32,
    control_queue: ControlQueue,
    event: Option<LoginEvent>,
    ignored: u64,
}

impl Login {
    /// How long the initiator waits for something better after an unproven message against a session.
    pub const GRACE: Duration = Duration::from_secs(1);
    /// After how long a step is first repeated. The interval then doubles each time.
    const REPEAT_FIRST: Duration = Duration::from_millis(50);
    const REPEAT_MAX: Duration = Duration::from_secs(1);
    /// After how long without a next step the handshake begins again: the target may have lost its state.
    const ANEW: Duration = Duration::from_secs(4);
    /// How many servers are tried at once.
    const CANDIDATES_MAX: usize = 4;
    /// How many answers the initiator tries to decrypt: each lets its sender test one password against us.
    const FAILED_MAX: usize = 4;

    /// Begins a login. `entropy` must come fresh from the operating system's generator. Nothing is sent
    /// before a port is up.
    ///
    /// # Errors
    /// [`HandshakeError`], if the plan is contradictory.
    pub fn new(now: Instant, plan: LoginPlan, entropy: [u8; 32]) -> Result<Self, HandshakeError> {
        plan.check()?;
        let mut login = Self {
            deadline: now.after(plan.time_limit),
            plan,
            random: HmacDrbg::new(entropy),
            ports: Vec::new(),
            state: State::Asking,
            handshake: HandshakeId::default(),
            attempt: None,
            candidates: Vec::new(),
            failed: Vec::new(),
            job: None,
            doubt: None,
            hint: None,
            renewal: None,
            claimed: None,
            since: now,
            repeat: now,
            repeats: 0,
            control_queue: ControlQueue::default(),
            event: None,
            ignored: 0,
        };
        login.restart(now);
        Ok(login)
    }

    /// Records that a port is up, or what changed about it.
    pub fn port_up(&mut self, now: Instant, port: EtherPort, state: &PortState, entropy: [u8; 32]) {
        self.random.reseed(entropy);
        let before = self.ports.iter().find(|(known, _)| *known == port).map(|(_, state)| state.mtu);
        self.ports.retain(|(known, _)| *known != port);
        if state.mtu < usize::from(Parameters::FRAME_MAX_LEAST) {
            self.hint.get_or_insert(HandshakeError::PortTooNarrow(state.mtu));
            return;
        }
        self.ports.push((port, *state));
        match (&self.state, before) {
            (State::Over, _) => {}
            // The offer made on this port is no longer valid.
            (_, Some(mtu)) if mtu != state.mtu => self.restart(now),
            (State::Asking | State::Starting, None) => self.hello(port),
            _ => {}
        }
    }

    /// Records that a port is down.
    pub fn port_down(&mut self, now: Instant, port: EtherPort) {
        self.ports.retain(|(known, _)| *known != port);
        self.control_queue.port_down(port);
        self.candidates.retain(|candidate| candidate.port != port);
        let lost = match &self.state {
            State::Finishing(finishing) => finishing.opening.port == port,
            State::Starting => self.candidates.is_empty(),
            _ => false,
        };
        if lost {
            self.restart(now);
        }
    }

    /// Handles a Negotiated frame with SID 0, which begins with `header`. Returns whether it belongs to this
    /// handshake.
    pub fn frame_received(
        &mut self,
        now: Instant,
        (port, source): (EtherPort, Mac),
        header: &Header,
        frame: &mut [u8],
    ) -> bool {
        let payload = (header.cmd == Cmd::Negotiated && !source.is_group())
            .then(|| control_queue::payload(header, frame))
            .flatten();
        let Some((payload, step)) =
            payload.and_then(|payload| Some((payload, Negotiated::parse(payload).ok()?)))
        else {
            self.ignored += 1;
            return false;
        };
        let handshake = match &step {
            Negotiated::Cookie { handshake, .. } | Negotiated::Refuse { handshake, .. } => handshake,
            Negotiated::Answer(answer) => &answer.handshake,
            Negotiated::Accept(accept) => &accept.handshake,
        };
        if matches!(step, Negotiated::Refuse { reason: RefuseReason::VERSION, .. }) {
            self.hint = Some(HandshakeError::OtherVersion);
            return false;
        }
        if *handshake != self.handshake {
            return false;
        }
        match step {
            Negotiated::Cookie { cookie, .. } => self.cookie(now, Candidate { port, mac: source, cookie }),
            Negotiated::Answer(answer) => self.answer(now, (port, source), &answer, payload),
            Negotiated::Accept(accept) => self.accept(now, (port, source), &accept, payload),
            Negotiated::Refuse { reason, retry_after_ms, .. } => {
                self.refused(now, (port, source), reason, retry_after_ms);
            }
        }
        true
    }

    /// Records that a frame of another protocol version was received, perhaps from the target.
    pub fn other_version(&mut self) {
        self.hint.get_or_insert(HandshakeError::OtherVersion);
    }

    /// Returns the slow step, stretching the password, when it must run. The caller runs the job and passes
    /// its result to [`Self::job_done`].
    pub fn poll_job(&mut self) -> Option<StretchJob> {
        self.job.take()
    }

    /// Handles the result of the slow step.
    pub fn job_done(&mut self, now: Instant, done: StretchResult) {
        // In any other state the handshake began again meanwhile, or ended.
        let State::Stretching(opening) = &mut self.state else { return };
        if opening.digest != done.digest {
            return;
        }
        let State::Stretching(opening) = core::mem::replace(&mut self.state, State::Starting) else { return };
        match done.result {
            Ok(proof) => {
                let finish = Finish { handshake: self.handshake, sid: opening.sid, ke3: proof.ke3 };
                let mut payload = Vec::new();
                Negotiate::Finish(finish).encode(&mut payload);
                let finishing = Finishing { opening: *opening, secret: proof.secret, finish: payload };
                self.state = State::Finishing(Box::new(finishing));
            }
            Err(_) => {
                self.failed.push(opening.digest);
                self.doubt(now, HandshakeError::WrongPassword);
            }
        }
        self.speak_up(now);
    }

    /// Returns a port that has frames to send. Each port is returned once until `transmit` is called for it.
    pub fn poll_port(&mut self) -> Option<EtherPort> {
        self.control_queue.poll_port()
    }

    /// Appends the frames that are to be sent on the port.
    pub fn transmit(&mut self, port: EtherPort, out: &mut FrameBatch) {
        self.control_queue.transmit(port, out);
    }

    /// Returns the result of the login, once.
    pub fn poll_event(&mut self) -> Option<LoginEvent> {
        self.event.take()
    }

    /// Returns when `handle_timeout` must be called.
    pub fn poll_timeout(&self) -> Option<Instant> {
        let doubt = self.doubt.as_ref().map(|(until, _)| *until);
        match &self.state {
            State::Over => None,
            // While an answer is being decrypted, an earlier doubt does not end the login.
            State::Stretching(_) => Some(self.deadline),
            State::Asking if self.ports.is_empty() => Some(self.deadline),
            _ => doubt.into_iter().chain(self.renewal).chain([self.repeat, self.deadline]).min(),
        }
    }

    /// Handles a deadline that passed.
    pub fn handle_timeout(&mut self, now: Instant) {
        if matches!(self.state, State::Over) {
            return;
        }
        if now >= self.deadline {
            let finishing = matches!(self.state, State::Finishing(_));
            let doubt = self.doubt.take().filter(|_| !finishing).map(|(_, why)| why);
            let cause = if self.ports.is_empty() { HandshakeError::NoPort } else { HandshakeError::NoAnswer };
            let why = doubt.or(self.hint.take()).unwrap_or(cause);
            self.fail(why);
            return;
        }
        if matches!(self.state, State::Stretching(_)) {
            return;
        }
        let finishing = matches!(self.state, State::Finishing(_));
        if let Some((until, why)) = self.doubt
            && now >= until
            && !finishing
        {
            self.fail(why);
            return;
        }
        if self.renewal.is_some_and(|at| now >= at) {
            self.restart(now);
            return;
        }
        if now < self.repeat {
            return;
        }
        if !matches!(self.state, State::Asking) && now.since(self.since) >= Self::ANEW {
            self.restart(now);
            return;
        }
        self.repeats = self.repeats.saturating_add(1);
        self.speak(now);
    }

    /// Returns whether the last step was sent and only ACCEPT is missing: the target may have made a session.
    pub fn awaits_accept(&self) -> bool {
        self.state.is_last(self.plan.password.is_some())
    }

    /// Returns when the last step, of which the target may make a session, was last sent.
    pub const fn claimed(&self) -> Option<Instant> {
        self.claimed
    }

    /// Returns how many received frames belonged to no handshake.
    pub const fn ignored(&self) -> u64 {
        self.ignored
    }

    #[cfg(test)]
    pub(crate) fn state_name(&self) -> &'static str {
        match (&self.state, &self.event) {
            (State::Asking, _) => "asking",
            (State::Starting, _) if self.doubt.is_some() => "starting, in doubt",
            (State::Starting, _) => "starting",
            (State::Stretching(_), _) => "stretching",
            (State::Finishing(_), _) => "finishing",
            (State::Over, Some(LoginEvent::Agreed(_))) => "agreed",
            (State::Over, Some(LoginEvent::Failed(_))) => "failed",
            (State::Over, None) => "over",
        }
    }

    /// Begins the handshake, for the first time or again: with other random bytes and other keys.
    fn restart(&mut self, now: Instant) {
        if self.handshake != HandshakeId::default() {
            // A session that came of the earlier handshake has another SID, so its frames do not reach the
            // new session.
            self.plan.rename(self.random.bytes());
        }
        self.handshake = self.random.bytes();
        self.attempt = None;
        self.candidates.clear();
        self.job = None;
        self.renewal = None;
        self.control_queue.clear();
        self.state = State::Asking;
        self.speak_up(now);
    }

    /// Sends the step of the present state for the first time.
    fn speak_up(&mut self, now: Instant) {
        (self.since, self.repeats) = (now, 0);
        self.speak(now);
    }

    fn speak(&mut self, now: Instant) {
        let wait = (Self::REPEAT_FIRST * (1 << self.repeats.min(8))).min(Self::REPEAT_MAX);
        // The interval is up to a quarter longer at random, so that initiators that lost a target together
        // return one by one.
        let [extra] = self.random.bytes();
        self.repeat = now.after(wait + wait * u32::from(extra) / 1024);
        if self.awaits_accept() {
            self.claimed = Some(now);
        }
        match &self.state {
            State::Asking => self.hello_all(),
            State::Starting => {
                for candidate in self.candidates.clone() {
                    self.start(&candidate);
                }
                // The real target may not have answered yet. Without a password only the first server is
                // asked.
                if self.repeats % 4 == 3 && self.plan.password.is_some() {
                    self.hello_all();
                }
            }
            State::Finishing(finishing) => {
                let (to, finish) = (&finishing.opening, finishing.finish.clone());
                self.control_queue.send(to.port, to.mac, Cmd::Negotiate, finish);
            }
            State::Stretching(_) | State::Over => {}
        }
    }

    fn hello_all(&mut self) {
        let ports: Vec<_> = self.ports.iter().map(|(port, _)| *port).collect();
        ports.into_iter().for_each(|port| self.hello(port));
    }

    fn hello(&mut self, port: EtherPort) {
        let to = match self.plan.target_address {
            Some((target_port, mac)) if target_port == port => mac,
            Some(_) => return,
            None => Mac::BROADCAST,
        };
        let (handshake, group, target) = (self.handshake, self.plan.group.clone(), self.plan.target.clone());
        let mut payload = Vec::new();
        Negotiate::Hello(Hello { handshake, group, target }).encode(&mut payload);
        self.control_queue.send(port, to, Cmd::Negotiate, payload);
    }

    fn cookie(&mut self, now: Instant, candidate: Candidate) {
        if !matches!(self.state, State::Asking | State::Starting) {
            return;
        }
        if self.plan.target_address.is_some_and(|address| address != (candidate.port, candidate.mac)) {
            return;
        }
        let same = |known: &&mut Candidate| (known.port, known.mac) == (candidate.port, candidate.mac);
        // Without a password START is the last step. Every answered START makes a session, and the newest
        // session ends the others. So only one server is asked, and with one cookie.
        let most = if self.plan.password.is_some() { Self::CANDIDATES_MAX } else { 1 };
        let room = self.candidates.len() < most;
        match self.candidates.iter_mut().find(same) {
            // This server answered before: it answers a repeated HELLO, or it did not accept our cookie.
            Some(known) if known.cookie == candidate.cookie => return,
            //= hyperscsi#section-6.4
            //# An initiator MUST NOT send a START with two cookies
            Some(_) if self.plan.password.is_none() => {
                self.renewal.get_or_insert(now.after(Self::GRACE));
                return;
            }
            Some(known) => *known = candidate,
            None if room => {
                self.candidates.push(candidate);
                //= hyperscsi#section-6.1
                //# Others have their turn with the first repetition of START, if there is no ANSWER until then: each that is
                //# answered and not finished counts as a guess.
                if self.candidates.len() > 1 {
                    return;
                }
            }
            None => return,
        }
        if self.attempt.is_none()
            && let Some(password) = &self.plan.password
        {
            self.attempt = PendingClientLogin::start(password, &mut self.random).ok();
        }
        if matches!(self.state, State::Asking) {
            self.state = State::Starting;
            self.speak_up(now);
        } else {
            self.start(&candidate);
        }
    }

    /// Returns the parameters that are offered on a port.
    fn offer(&self, port: EtherPort) -> Option<Parameters> {
        self.ports.iter().find(|(known, _)| *known == port).map(|(_, state)| self.plan.offer_over(state.mtu))
    }

    /// Returns the START for a candidate. Except for the cookie its bytes are the same each time. Without a
    /// password the cookie is the same, too.
    fn start_bytes(&self, candidate: &Candidate) -> Option<Vec<u8>> {
        let start = Start {
            handshake: self.handshake,
            cookie: candidate.cookie,
            group: self.plan.group.clone(),
            target: self.plan.target.clone(),
            initiator: self.plan.initiator.clone(),
            isid: self.plan.isid,
            sid: self.plan.sid,
            offer: self.offer(candidate.port)?,
            ke1: self.attempt.as_ref().map(|(_, ke1)| *ke1),
        };
        let mut payload = Vec::new();
        Negotiate::Start(Box::new(start)).encode(&mut payload);
        Some(payload)
    }

    fn start(&mut self, candidate: &Candidate) {
        if let Some(payload) = self.start_bytes(candidate) {
            self.control_queue.send(candidate.port, candidate.mac, Cmd::Negotiate, payload);
        }
    }

    fn candidate(&self, from: (EtherPort, Mac)) -> Option<&Candidate> {
        self.candidates.iter().find(|candidate| (candidate.port, candidate.mac) == from)
    }

    fn answer(&mut self, now: Instant, from: (EtherPort, Mac), answer: &Answer, payload: &[u8]) {
        let State::Starting = self.state else { return };
        let Some(candidate) = self.candidate(from) else { return };
        let digest: [u8; 64] = Sha512::digest(payload).into();
        let offered = self.offer(candidate.port).zip(self.start_bytes(candidate));
        let (Some((attempt, _)), Some(password), Some((offer, start))) =
            (&self.attempt, &self.plan.password, offered)
        else {
            return;
        };
        //= hyperscsi#section-6.1
        //# It opens at most 4 different ANSWERs
        if self.failed.contains(&digest) || self.failed.len() >= Self::FAILED_MAX {
            return;
        }
        if !is_bearable(&answer.stretch) || !is_within(&answer.choice, &offer, true) {
            self.doubt(now, HandshakeError::BadChoice);
            return;
        }
        let Ok(context) = context(&start, payload) else { return };
        self.job = Some(StretchJob {
            attempt: attempt.clone(),
            password: password.clone(),
            user: self.plan.group.as_bytes().to_vec(),
            cost: answer.stretch,
            ke2: answer.ke2,
            context,
            entropy: Zeroizing::new(self.random.bytes()),
            digest,
        });
        let (port, mac) = from;
        let (sid, choice) = (answer.sid, answer.choice);
        self.state = State::Stretching(Box::new(Opening { port, mac, sid, choice, context, digest }));
    }

    fn accept(&mut self, now: Instant, from: (EtherPort, Mac), accept: &Accept, payload: &[u8]) {
        match &self.state {
            State::Finishing(finishing) => {
                let opening = &finishing.opening;
                //= hyperscsi#section-6.3
                //# An initiator whose START held KE1 MUST NOT take an ACCEPT without PROOF.
                let said = accept.proof.zip(proof(&finishing.secret, &opening.context, payload).ok());
                let proven = said.is_some_and(|(said, ours)| said.ct_eq(&ours).into());
                let same = accept.sid == opening.sid && accept.choice == opening.choice;
                if proven && same && from == (opening.port, opening.mac) {
                    let keys = SessionKeys::from_secret(&*finishing.secret, &opening.context);
                    self.agree(from, accept, Some(keys));
                }
            }
            State::Starting if self.candidate(from).is_some() => {
                //= hyperscsi#section-5
                //# An initiator that has a password MUST NOT fall back to a session
                //# without because an answer says so.
                if accept.proof.is_some() {
                    // The ACCEPT is for a session with keys, and there are no keys yet.
                } else if self.plan.password.is_some() {
                    self.doubt(now, HandshakeError::OpenGroup);
                } else if !self.offer(from.0).is_some_and(|offer| is_within(&accept.choice, &offer, false)) {
                    self.doubt(now, HandshakeError::BadChoice);
                } else {
                    self.agree(from, accept, None);
                }
            }
            _ => {}
        }
    }

    fn agree(&mut self, (port, peer): (EtherPort, Mac), accept: &Accept, keys: Option<SessionKeys>) {
        let frame_max = self.offer(port).map_or(Parameters::FRAME_MAX_LEAST, |offer| offer.frame_max);
        let agreed = HandshakeResult {
            keys,
            sid_out: accept.sid,
            sid_in: self.plan.sid,
            token: accept.token,
            parameters: accept.choice,
            frame_max,
            group: self.plan.group.clone(),
            target: self.plan.target.clone(),
            initiator: self.plan.initiator.clone(),
            isid: self.plan.isid,
            instance: accept.instance,
            port,
            peer,
        };
        self.end(LoginEvent::Agreed(Box::new(agreed)));
    }

    fn refused(&mut self, now: Instant, from: (EtherPort, Mac), reason: RefuseReason, retry_after_ms: u32) {
        if !matches!(self.state, State::Starting) || self.candidate(from).is_none() {
            return;
        }
        match reason {
            RefuseReason::BUSY => {
                // The sender of this refusal knew the cookie, so the cookie is accepted.
                self.renewal = None;
                self.hint = Some(HandshakeError::Busy);
                let wait = Duration::from_millis(retry_after_ms.into());
                self.repeat = self.repeat.max(now.after(wait.min(2 * Self::REPEAT_MAX)));
            }
            RefuseReason::PARAMETERS => {
                self.doubt(now, HandshakeError::ProtectionRefused(self.plan.protection))
            }
            RefuseReason::PASSWORD_NEEDED => self.doubt(now, HandshakeError::PasswordNeeded),
            RefuseReason::OPEN_GROUP => self.doubt(now, HandshakeError::OpenGroup),
            RefuseReason::SHUTDOWN => self.hint = Some(HandshakeError::ShuttingDown),
            RefuseReason::NOT_AUTHORIZED => self.doubt(now, HandshakeError::WrongPassword),
            other => self.doubt(now, HandshakeError::Refused(other)),
        }
    }

    /// Records an unproven message against a session. The first one counts, since the first sender is seldom
    /// a forger.
    fn doubt(&mut self, now: Instant, why: HandshakeError) {
        if self.doubt.is_none() {
            self.doubt = Some((now.after(Self::GRACE).min(self.deadline), why));
        }
    }

    fn fail(&mut self, why: HandshakeError) {
        self.end(LoginEvent::Failed(why));
    }

    fn end(&mut self, event: LoginEvent) {
        self.state = State::Over;
        self.attempt = None;
        self.job = None;
        self.candidates.clear();
        self.control_queue.clear();
        self.event = Some(event);
    }
}
