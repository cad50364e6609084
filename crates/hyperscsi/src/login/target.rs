//! The target's half of the handshake, for all initiators at once.
//!
//! # What the target stores, and for which initiators
//!
//! | the initiator | the target stores | bound |
//! |---|---|---|
//! | sent HELLO | nothing: the cookie holds everything | |
//! | sent a START with KE1 | the half-open handshake, with its ANSWER to repeat | 64, per address 4; 10 s |
//! | finished | the ACCEPT to repeat | 256; 30 s |
//! | finished without a password | that there was a session, even when it is over | all of 30 s |
//!
//! A handshake that is not finished counts as a wrong password: its initiator received enough to try one. The
//! number of tries is bounded per group and altogether. A FINISH that does not match is dropped and changes
//! nothing, so that an attacker cannot end a handshake of another initiator.
//!
//! No handshake makes two sessions: both would send with one SID, and count their frames from 1. With a
//! password the key exchange prevents this, since its secrets are erased with the session. Without a password
//! START is the only step, so the STARTs that made a session are remembered.

mod accepted_starts;
mod refusal;

use alloc::boxed::Box;
use alloc::collections::VecDeque;
use alloc::vec::Vec;

use base::ether::{EtherPort, FrameBatch, Mac, PortState};
use base::time::{Duration, Instant};
use sha2::{Digest, Sha512};
use zeroize::Zeroizing;

use super::control_queue::{self, ControlQueue};
use super::cookie::{CookieBinding, Cookies};
use super::directory::{GroupAccess, TargetAccess, TargetDirectory};
use super::rate_limit::{PasswordRateLimit, Permit, TokenBucket};
use super::{HandshakeResult, accept, choose, context};
use crate::aead::SessionKeys;
use crate::frame::{Cmd, Header};
use crate::pdu::negotiate::{
    Accept, Answer, COOKIE_LEN, Finish, HandshakeId, Hello, Negotiate, Negotiated, RefuseReason, Start,
    without_last,
};
use crate::pdu::parameters::Parameters;
use accepted_starts::AcceptedStarts;
pub use refusal::{HandshakeRefusal, RefusalCause};
use security::opaque::{KE1_LEN, KE2_LEN};
use security::opaque::{PasswordRecord, PendingServerLogin};
use security::random::HmacDrbg;

/// The target's half of all handshakes.
#[derive(Debug)]
pub struct HandshakeServer {
    random: HmacDrbg,
    cookies: Option<Cookies>,
    ports: Vec<(EtherPort, PortState)>,
    rate_limit: PasswordRateLimit,
    /// The allowances for answers to frames of another protocol version, and for sessions of groups without a
    /// password.
    strangers: TokenBucket,
    open: TokenBucket,
    halves: Vec<HalfOpen>,
    over: VecDeque<FinishedHandshake>,
    /// The STARTs that made sessions of groups without a password.
    spent: AcceptedStarts,
    control_queue: ControlQueue,
    /// Handshakes that were refused lately. Their initiators repeat START, since a refusal is not
    /// authenticated.
    refused: VecDeque<HandshakeId>,
    refusals: VecDeque<HandshakeRefusal>,
    /// The allowance for reports of refusals to the owner.
    reports: TokenBucket,
    /// Whether no handshake begins, because another process is about to serve the ports.
    is_paused: bool,
    stats: HandshakeStats,
}

/// Statistics of handshakes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct HandshakeStats {
    /// HELLOs that were answered.
    pub hellos: u64,
    /// Handshakes that ended with a session.
    pub agreed: u64,
    /// Half-open handshakes that were not finished.
    pub unfinished: u64,
    /// FINISHes that did not match.
    pub wrong: u64,
    /// STARTs that were refused as busy: no free slot, or too many guesses.
    pub put_off: u64,
    /// STARTs that were refused: illegal parameters, no protection level that the target takes, a password
    /// for a group without one, or no password for a group with one.
    pub refused: u64,
    /// Frames that were ignored: not part of a handshake, damaged, of a handshake whose session is over, or
    /// for a group or target that this server does not have.
    pub ignored: u64,
}

/// The port and address that a frame came from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct FrameSource {
    port: EtherPort,
    source: Mac,
}

/// Identifies a START. Its repetition must be byte for byte the same, except for the cookie.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct StartId {
    from: FrameSource,
    digest: [u8; 64],
}

#[derive(Debug)]
struct HalfOpen {
    begun: StartId,
    since: Instant,
    start: Box<Start>,
    sid: u32,
    choice: Parameters,
    frame_max: u16,
    context: [u8; 64],
    pending: PendingServerLogin,
    answer: Vec<u8>,
    permit: Permit,
}

#[derive(Debug)]
struct FinishedHandshake {
    begun: StartId,
    handshake: HandshakeId,
    sid: u32,
    since: Instant,
    accept: Vec<u8>,
}

impl HandshakeServer {
    /// How many handshakes can be half-open.
    pub const HALVES_MAX: usize = 64;
    /// How many of these are reserved for addresses that have proven the password before.
    pub(crate) const HALVES_KEPT: usize = 16;
    /// How many handshakes one address can have half-open: a host that begins as many sessions at once.
    pub const HALVES_OF_ONE_MAX: usize = 4;
    /// How long a handshake can be half-open: many times what Argon2 takes on a slow machine.
    pub const HALF_LIFETIME: Duration = Duration::from_secs(10);
    /// How many ACCEPTs are kept for repetitions, and how long: an initiator gives up earlier. It repeats
    /// START for some 6 s at most, so every cookie that it sends has expired by then.
    const OVER_MAX: usize = 256;
    const OVER_LIFETIME: Duration = Duration::from_secs(30);
    /// The allowances for answers to frames of another protocol version, and for sessions of groups without a
    /// password: so many at once, then one in each interval.
    const STRANGERS: (u32, Duration) = (8, Duration::from_millis(250));
    const OPEN: (u32, Duration) = (64, Duration::from_millis(20));
    /// When an initiator should try again if a session with keys exists for its port.
    const HELD_WAIT: Duration = Duration::from_secs(1);
    /// The allowance for reports of refusals to the owner: so many at once, then one in each interval. All
    /// refusals are counted.
    const REPORTS: (u32, Duration) = (16, Duration::from_secs(1));

    /// Makes a server that answers nothing before [`Self::add_entropy`] was called.
    pub fn new(now: Instant) -> Self {
        Self {
            random: HmacDrbg::empty(),
            cookies: None,
            ports: Vec::new(),
            rate_limit: PasswordRateLimit::new(now),
            strangers: TokenBucket::full(Self::STRANGERS.0, now),
            open: TokenBucket::full(Self::OPEN.0, now),
            halves: Vec::new(),
            over: VecDeque::new(),
            spent: AcceptedStarts::default(),
            control_queue: ControlQueue::default(),
            refused: VecDeque::new(),
            refusals: VecDeque::new(),
            reports: TokenBucket::full(Self::REPORTS.0, now),
            is_paused: false,
            stats: HandshakeStats::default(),
        }
    }

    /// Mixes a block of entropy in, fresh from the operating system's generator.
    pub fn add_entropy(&mut self, now: Instant, entropy: [u8; 32]) {
        self.random.reseed(entropy);
        if self.cookies.is_none() {
            self.cookies = Some(Cookies::new(now, &mut self.random));
        }
    }

    /// Records that a port is up, or what changed about it. A port that takes less than every Ethernet takes
    /// is not used.
    pub fn port_up(&mut self, now: Instant, port: EtherPort, state: &PortState, entropy: [u8; 32]) {
        self.add_entropy(now, entropy);
        self.ports.retain(|(known, _)| *known != port);
        if state.mtu >= usize::from(Parameters::FRAME_MAX_LEAST) {
            self.ports.push((port, *state));
        }
    }

    /// Records that a port is down.
    pub fn port_down(&mut self, port: EtherPort) {
        self.ports.retain(|(known, _)| *known != port);
        self.control_queue.port_down(port);
    }

    /// Handles a Negotiate frame with SID 0, which begins with `header`. Returns the result of the handshake
    /// if this was its last step.
    pub fn frame_received(
        &mut self,
        now: Instant,
        directory: &dyn TargetDirectory,
        (port, source): (EtherPort, Mac),
        header: &Header,
        frame: &mut [u8],
    ) -> Option<Box<HandshakeResult>> {
        self.handle_timeout(now);
        let from = FrameSource { port, source };
        let step = (header.cmd == Cmd::Negotiate && !source.is_group())
            .then(|| control_queue::payload(header, frame))
            .flatten()
            .and_then(|payload| Some((payload, Negotiate::parse(payload).ok()?)));
        let known = self.ports.iter().any(|(known, _)| *known == port);
        let Some((payload, step)) = step.filter(|_| known) else {
            self.stats.ignored += 1;
            return None;
        };
        match step {
            Negotiate::Hello(hello) => {
                self.hello(now, directory, from, &hello);
                None
            }
            Negotiate::Start(start) => self.start(now, directory, from, (start, true), payload),
            Negotiate::Illegal(start, _) => self.start(now, directory, from, (start, false), payload),
            Negotiate::Finish(finish) => self.finish(now, directory, from, &finish),
        }
    }

    /// Handles a Negotiate frame of another protocol version: answers with a REFUSE in ours.
    pub fn other_version(&mut self, now: Instant, port: EtherPort, source: Mac) {
        if !source.is_group() && self.strangers.take(now, Self::STRANGERS.1).is_ok() {
            let from = FrameSource { port, source };
            self.refuse(from, &HandshakeId::default(), RefuseReason::VERSION, Duration::ZERO);
        }
    }

    fn hello(&mut self, now: Instant, directory: &dyn TargetDirectory, from: FrameSource, hello: &Hello) {
        let here = directory.target_access(from.port, &hello.group, &hello.target).is_some();
        if here && self.is_paused {
            // The initiator repeats it after a second at most.
        } else if here {
            self.stats.hellos += 1;
            self.give_cookie(now, from, &hello.handshake, hello);
        } else {
            self.stats.ignored += 1;
        }
    }

    fn give_cookie(&mut self, now: Instant, from: FrameSource, handshake: &HandshakeId, hello: &Hello) {
        let Some(cookies) = &mut self.cookies else { return };
        let binding = CookieBinding {
            port: from.port,
            source: from.source,
            handshake,
            group: &hello.group,
            target: &hello.target,
        };
        let cookie = cookies.make(now, &mut self.random, &binding);
        self.say(from, &Negotiated::Cookie { handshake: *handshake, cookie });
    }

    fn start(
        &mut self,
        now: Instant,
        directory: &dyn TargetDirectory,
        from: FrameSource,
        (start, is_legal): (Box<Start>, bool),
        payload: &[u8],
    ) -> Option<Box<HandshakeResult>> {
        let Some(entrance) = directory.target_access(from.port, &start.group, &start.target) else {
            self.stats.ignored += 1;
            return None;
        };
        let binding = CookieBinding {
            port: from.port,
            source: from.source,
            handshake: &start.handshake,
            group: &start.group,
            target: &start.target,
        };
        if !self.cookies.as_ref().is_some_and(|cookies| cookies.knows(now, &start.cookie, &binding)) {
            let hello = Hello {
                handshake: start.handshake,
                group: start.group.clone(),
                target: start.target.clone(),
            };
            self.give_cookie(now, from, &start.handshake, &hello);
            return None;
        }
        if !directory.has_room(&start.group, &start.target, &start.initiator, &start.isid) {
            self.stats.ignored += 1;
            return None;
        }
        let said = without_last(payload, COOKIE_LEN).ok()?;
        let begun = StartId { from, digest: Sha512::digest(&said).into() };
        if let Some(said) = self.said_before(&begun) {
            self.control_queue.send(from.port, from.source, Cmd::Negotiated, said);
            return None;
        }
        //= hyperscsi#section-6.4
        //# A target MUST NOT make a second session of a
        //# START, not even when the first is over
        if self.spent.has(&begun) {
            self.stats.ignored += 1;
            return None;
        }
        let mut ours = entrance.parameters;
        ours.frame_max = ours.frame_max.min(self.frame_max(from.port));
        let choice = choose(&ours, &start.offer, matches!(entrance.access, GroupAccess::Password(_)));
        // An initiator with an illegal offer is refused, so that it does not wait for an answer until its
        // deadline.
        let choice = choice.filter(|_| is_legal);
        let refused = match (&entrance.access, &start.ke1, choice) {
            (GroupAccess::Open, Some(_), _) => Some(RefusalCause::OpenGroup),
            (GroupAccess::Password(_), None, _) => Some(RefusalCause::PasswordNeeded),
            (_, _, None) => Some(RefusalCause::Parameters),
            _ => None,
        };
        if let Some(why) = refused {
            self.refuse(from, &start.handshake, why.reason(), Duration::ZERO);
            if !self.refused.contains(&start.handshake) {
                self.stats.refused += 1;
                self.refused.push_front(start.handshake);
                self.refused.truncate(Self::HALVES_MAX);
                self.tell(now, from, &start, why);
            }
            return None;
        }
        let choice = choice?;
        let sid = self.new_sid(directory, &entrance)?;
        match (&entrance.access, start.ke1) {
            (GroupAccess::Password(record), Some(ke1)) => {
                let permit = match self.admit(now, &begun, &start) {
                    Ok(permit) => permit,
                    Err(wait) => {
                        self.put_off(from, &start.handshake, wait);
                        return None;
                    }
                };
                let half = self.half(now, record, (&ke1, payload), begun, start, (sid, choice, permit));
                if let Some(half) = half {
                    self.control_queue.send(from.port, from.source, Cmd::Negotiated, half.answer.clone());
                    self.halves.push(half);
                }
                None
            }
            _ => {
                if directory.is_held(&start.group, &start.target, &start.initiator, &start.isid) {
                    self.put_off(from, &start.handshake, Self::HELD_WAIT);
                    return None;
                }
                if let Err(wait) = self.open.take(now, Self::OPEN.1) {
                    self.put_off(from, &start.handshake, wait);
                    return None;
                }
                let frame_max = ours.frame_max;
                self.accept_handshake(now, directory, begun, &start, (sid, choice, frame_max), None)
            }
        }
    }

    /// Begins the key exchange. A malformed first message is ignored.
    fn half(
        &mut self,
        now: Instant,
        record: &PasswordRecord,
        (ke1, payload): (&[u8; KE1_LEN], &[u8]),
        begun: StartId,
        start: Box<Start>,
        (sid, choice, permit): (u32, Parameters, Permit),
    ) -> Option<HalfOpen> {
        let mut answer =
            Answer { handshake: start.handshake, sid, choice, stretch: record.cost(), ke2: [0; KE2_LEN] };
        let encode = |answer: &Answer| {
            let mut out = Vec::new();
            Negotiated::Answer(Box::new(answer.clone())).encode(&mut out);
            out
        };
        let context = context(payload, &encode(&answer)).ok()?;
        let made = record.answer(&start.group, ke1, &context, &mut self.random);
        let Ok((pending, ke2)) = made else {
            self.rate_limit.put_back(&start.group, permit);
            self.stats.ignored += 1;
            return None;
        };
        answer.ke2 = ke2;
        let (frame_max, answer) = (choice.frame_max, encode(&answer));
        Some(HalfOpen { begun, since: now, start, sid, choice, frame_max, context, pending, answer, permit })
    }

    fn finish(
        &mut self,
        now: Instant,
        directory: &dyn TargetDirectory,
        from: FrameSource,
        finish: &Finish,
    ) -> Option<Box<HandshakeResult>> {
        let same = |over: &&FinishedHandshake| {
            over.begun.from == from && over.handshake == finish.handshake && over.sid == finish.sid
        };
        if let Some(over) = self.over.iter().find(same) {
            self.control_queue.send(from.port, from.source, Cmd::Negotiated, over.accept.clone());
            return None;
        }
        let at = self.halves.iter().position(|half| {
            half.begun.from == from && half.start.handshake == finish.handshake && half.sid == finish.sid
        });
        let Some((at, secret)) =
            at.and_then(|at| Some((at, self.halves.get(at)?.pending.finish(&finish.ke3).ok()?)))
        else {
            self.stats.wrong += 1;
            return None;
        };
        let half = self.halves.swap_remove(at);
        self.rate_limit.right(now, &half.start.group, half.permit);
        let answered = (half.sid, half.choice, half.frame_max);
        self.accept_handshake(now, directory, half.begun, &half.start, answered, Some((secret, half.context)))
    }

    /// Ends a handshake with a session.
    fn accept_handshake(
        &mut self,
        now: Instant,
        directory: &dyn TargetDirectory,
        begun: StartId,
        start: &Start,
        (sid, choice, frame_max): (u32, Parameters, u16),
        secret: Option<(Zeroizing<[u8; 64]>, [u8; 64])>,
    ) -> Option<Box<HandshakeResult>> {
        let (token, instance) = (self.random.bytes(), directory.instance());
        let message = Accept { handshake: start.handshake, sid, choice, token, instance, proof: None };
        let known = secret.as_ref().map(|(secret, context)| (&**secret, context));
        let accept = accept(&message, known).ok()?;
        let from = begun.from;
        self.control_queue.send(from.port, from.source, Cmd::Negotiated, accept.clone());
        if self.over.len() >= Self::OVER_MAX {
            self.over.pop_front();
        }
        if secret.is_none() {
            self.spent.add(now, begun);
        }
        self.over.push_back(FinishedHandshake { begun, handshake: start.handshake, sid, since: now, accept });
        self.stats.agreed += 1;
        // The fields that each end states for itself hold the other end's values.
        let parameters = Parameters {
            frame_max: start.offer.frame_max,
            frames_initial: start.offer.frames_initial,
            ack_delay_max_us: start.offer.ack_delay_max_us,
            ..choice
        };
        Some(Box::new(HandshakeResult {
            keys: known.map(|(secret, context)| SessionKeys::from_secret(secret, context)),
            sid_out: start.sid,
            sid_in: sid,
            token,
            parameters,
            frame_max,
            group: start.group.clone(),
            target: start.target.clone(),
            initiator: start.initiator.clone(),
            isid: start.isid,
            instance,
            port: from.port,
            peer: from.source,
        }))
    }

    /// Admits a handshake with a password. If it may not begin now, returns how long to wait.
    fn admit(&mut self, now: Instant, begun: &StartId, start: &Start) -> Result<Permit, Duration> {
        let same = self.halves.iter().filter(|half| half.begun.from == begun.from).count();
        let source = (begun.from.port, begun.from.source);
        let kept = if self.rate_limit.is_member(&start.group, source) { 0 } else { Self::HALVES_KEPT };
        if self.halves.len() >= Self::HALVES_MAX - kept || same >= Self::HALVES_OF_ONE_MAX {
            return Err(Self::HALF_LIFETIME / 20);
        }
        self.rate_limit.begin(now, &start.group, source)
    }

    fn put_off(&mut self, from: FrameSource, handshake: &HandshakeId, wait: Duration) {
        self.stats.put_off += 1;
        self.refuse(from, handshake, RefuseReason::BUSY, wait);
    }

    /// Returns the earlier answer to the same START.
    fn said_before(&self, begun: &StartId) -> Option<Vec<u8>> {
        let half = self.halves.iter().find(|half| half.begun == *begun).map(|half| &half.answer);
        let over = self.over.iter().find(|over| over.begun == *begun).map(|over| &over.accept);
        half.or(over).cloned()
    }

    fn new_sid(&mut self, directory: &dyn TargetDirectory, entrance: &TargetAccess) -> Option<u32> {
        // There are 2^24 SIDs for each steering byte and far fewer sessions, so one try is nearly always
        // enough.
        (0..64).find_map(|_| {
            let [a, b, c] = self.random.bytes();
            let sid = u32::from_be_bytes([entrance.steering, a, b, c]);
            let own = self.halves.iter().any(|half| half.sid == sid)
                || self.over.iter().any(|over| over.sid == sid);
            (sid != 0 && !own && !directory.sid_taken(sid)).then_some(sid)
        })
    }

    fn frame_max(&self, port: EtherPort) -> u16 {
        let mtu = self.ports.iter().find(|(known, _)| *known == port).map_or(0, |(_, state)| state.mtu);
        u16::try_from(mtu).unwrap_or(u16::MAX)
    }

    fn refuse(&mut self, from: FrameSource, handshake: &HandshakeId, reason: RefuseReason, wait: Duration) {
        let retry_after_ms = u32::try_from(wait.as_millis()).unwrap_or(u32::MAX);
        self.say(from, &Negotiated::Refuse { handshake: *handshake, reason, retry_after_ms });
    }

    /// Reports a refusal to the owner.
    fn tell(&mut self, now: Instant, from: FrameSource, start: &Start, why: RefusalCause) {
        if self.reports.take(now, Self::REPORTS.1).is_ok() {
            let (initiator, group) = (start.initiator.clone(), start.group.clone());
            let refusal = HandshakeRefusal { port: from.port, peer: from.source, initiator, group, why };
            self.refusals.push_back(refusal);
            self.refusals.truncate(Self::HALVES_MAX);
        }
    }

    /// Returns a handshake that was refused or not finished, for the log.
    pub fn poll_refusal(&mut self) -> Option<HandshakeRefusal> {
        self.refusals.pop_front()
    }

    fn say(&mut self, from: FrameSource, step: &Negotiated) {
        let mut payload = Vec::new();
        step.encode(&mut payload);
        self.control_queue.send(from.port, from.source, Cmd::Negotiated, payload);
    }

    /// Returns a port that has frames to send. Each port is returned once until `transmit` is called for it.
    pub fn poll_port(&mut self) -> Option<EtherPort> {
        self.control_queue.poll_port()
    }

    /// Appends the frames that are to be sent on the port.
    pub fn transmit(&mut self, port: EtherPort, out: &mut FrameBatch) {
        self.control_queue.transmit(port, out);
    }

    /// Returns when `handle_timeout` must be called.
    pub fn poll_timeout(&self) -> Option<Instant> {
        let halves = self.halves.iter().map(|half| half.since.after(Self::HALF_LIFETIME)).min();
        let over = self.over.front().map(|over| over.since.after(Self::OVER_LIFETIME));
        halves.into_iter().chain(over).min()
    }

    /// Forgets expired handshakes and ACCEPTs.
    pub fn handle_timeout(&mut self, now: Instant) {
        let old = |half: &mut HalfOpen| now >= half.since.after(Self::HALF_LIFETIME);
        for half in self.halves.extract_if(.., old).collect::<Vec<_>>() {
            self.rate_limit.wrong(now, &half.start.group, half.permit);
            self.stats.unfinished += 1;
            self.tell(now, half.begun.from, &half.start, RefusalCause::Unfinished);
        }
        while self.over.front().is_some_and(|over| now >= over.since.after(Self::OVER_LIFETIME)) {
            self.over.pop_front();
        }
        self.spent.forget(now);
    }

    /// Records that a session ended: a repeated START or FINISH of it is no longer answered.
    pub fn session_ended(&mut self, sid: u32) {
        self.over.retain(|over| over.sid != sid);
    }

    /// Returns the statistics so far.
    pub const fn stats(&self) -> HandshakeStats {
        self.stats
    }

    /// Answers no HELLO from now on, or answers them again. Handshakes under way go on.
    pub const fn pause(&mut self, is_paused: bool) {
        self.is_paused = is_paused;
    }

    /// Returns how many handshakes are half-open.
    pub const fn half_open(&self) -> usize {
        self.halves.len()
    }
}
