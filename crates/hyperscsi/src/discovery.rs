//! Discovery: which targets export logical units to a group?
//!
//! A [`DiscoveryClient`] broadcasts its question on each of its ports, several times, and collects the
//! answers until its deadline. A [`DiscoveryServer`] answers for those of its server's targets that export
//! something to the group, and ignores all other questions. Answers are not authenticated: an answer is a
//! hint where to begin a handshake.

use alloc::vec::Vec;

use base::ether::{EtherPort, FrameBatch, Mac, PortState};
use base::time::{Duration, Instant};

use crate::frame::{Cmd, Header};
use crate::login::control_queue::{self, ControlQueue};
use crate::login::directory::{Export, TargetDirectory};
use crate::login::rate_limit::TokenBucket;
use crate::pdu::discovery::{Answer, Discovery, ExportedLun, LUNS_MAX, MACS_MAX, NONCE_LEN, Question};
use crate::pdu::name::{GroupName, Name};
use crate::pdu::parameters::Parameters;
use security::random::HmacDrbg;

/// The target's side of discovery.
#[derive(Debug)]
pub struct DiscoveryServer {
    allowance: TokenBucket,
    /// The allowance for answers. A question can have many answers, and its sender may have forged its
    /// address.
    answers: TokenBucket,
    ports: Vec<(EtherPort, u16)>,
    control_queue: ControlQueue,
    answered: u64,
    ignored: u64,
}

impl DiscoveryServer {
    /// So many questions are answered at once, then one in each interval: enough for a rack of hosts that
    /// start together.
    const AT_ONCE: u32 = 64;
    const INTERVAL: Duration = Duration::from_millis(50);
    /// So many answers are sent at once, then one in each interval.
    const ANSWERS_AT_ONCE: u32 = 512;
    const ANSWERS_INTERVAL: Duration = Duration::from_millis(5);
    /// For how many targets a question is answered.
    const TARGETS_MAX: usize = 256;

    /// Makes a server without ports.
    pub fn new(now: Instant) -> Self {
        Self {
            allowance: TokenBucket::full(Self::AT_ONCE, now),
            answers: TokenBucket::full(Self::ANSWERS_AT_ONCE, now),
            ports: Vec::new(),
            control_queue: ControlQueue::default(),
            answered: 0,
            ignored: 0,
        }
    }

    /// Records that a port is up, or what changed about it.
    pub fn port_up(&mut self, port: EtherPort, state: &PortState) {
        self.ports.retain(|(known, _)| *known != port);
        self.ports.extend(usable(state).map(|frame_max| (port, frame_max)));
    }

    /// Records that a port is down.
    pub fn port_down(&mut self, port: EtherPort) {
        self.ports.retain(|(known, _)| *known != port);
        self.control_queue.port_down(port);
    }

    /// Handles a received Discovery frame, which begins with `header`.
    pub fn frame_received(
        &mut self,
        now: Instant,
        directory: &dyn TargetDirectory,
        (port, source): (EtherPort, Mac),
        header: &Header,
        frame: &mut [u8],
    ) {
        let frame_max = self.ports.iter().find(|(known, _)| *known == port).map(|(_, max)| *max);
        let question = match read(source, header, frame) {
            Some(Discovery::Question(question)) => Some(question),
            _ => None,
        };
        let (Some(frame_max), Some(question)) = (frame_max, question) else {
            self.ignored += 1;
            return;
        };
        // Only questions that have an answer use the allowance, so that questions for groups of other servers
        // cannot exhaust it.
        let mut next = directory.export_behind(port, &question.group, None);
        if next.is_none() || self.allowance.take(now, Self::INTERVAL).is_err() {
            self.ignored += 1;
            return;
        }
        self.answered += 1;
        for _ in 0..Self::TARGETS_MAX {
            let Some(export) = next else { return };
            let asked = question.target.as_ref().is_none_or(|target| *target == export.target);
            next = directory.export_behind(port, &question.group, Some(&export.target));
            if asked && self.answers.take(now, Self::ANSWERS_INTERVAL).is_ok() {
                let mut payload = Vec::new();
                let answer = answer(&question, directory.instance(), export, frame_max);
                Discovery::Answer(answer).encode(&mut payload);
                self.control_queue.send(port, source, Cmd::Discovery, payload);
            }
        }
    }

    /// Returns a port that has frames to send. Each port is returned once until `transmit` is called for it.
    pub fn poll_port(&mut self) -> Option<EtherPort> {
        self.control_queue.poll_port()
    }

    /// Appends the frames that are to be sent on the port.
    pub fn transmit(&mut self, port: EtherPort, out: &mut FrameBatch) {
        self.control_queue.transmit(port, out);
    }

    /// Returns how many questions were answered.
    pub const fn answered(&self) -> u64 {
        self.answered
    }

    /// Returns how many frames were ignored: for other groups, too many, or not a question at all.
    pub const fn ignored(&self) -> u64 {
        self.ignored
    }
}

fn answer(question: &Question, instance: [u8; 16], export: Export, frame_max: u16) -> Answer {
    Answer {
        nonce: question.nonce,
        instance,
        group: question.group.clone(),
        target: export.target,
        authenticates: export.authenticates,
        more: export.luns.len() > LUNS_MAX,
        luns: export.luns,
        macs: export.macs,
        frame_max,
    }
}

/// Returns the port's MTU if the port can be used: it must take what every Ethernet takes.
fn usable(state: &PortState) -> Option<u16> {
    let frame_max = u16::try_from(state.mtu).unwrap_or(u16::MAX);
    (frame_max >= Parameters::FRAME_MAX_LEAST).then_some(frame_max)
}

fn read(source: Mac, header: &Header, frame: &mut [u8]) -> Option<Discovery> {
    if header.cmd != Cmd::Discovery || source.is_group() {
        return None;
    }
    Discovery::parse(control_queue::payload(header, frame)?).ok()
}

/// A target that was discovered at one of its addresses.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DiscoveredTarget {
    /// Our port.
    pub port: EtherPort,
    /// The address that answered.
    pub mac: Mac,
    /// The identity of the server, whatever address answers.
    pub instance: [u8; 16],
    /// The target.
    pub target: Name,
    /// Whether a session needs a password.
    pub authenticates: bool,
    /// The logical units that the target exports to the group.
    pub luns: Vec<ExportedLun>,
    /// Whether the target exports more logical units than these.
    pub more: bool,
    /// The addresses that the server claims to have.
    pub macs: Vec<Mac>,
    /// The longest Ethernet payload that the answering port takes, in bytes.
    pub frame_max: u16,
}

/// The initiator's side of discovery: one question.
#[derive(Debug)]
pub struct DiscoveryClient {
    question: Question,
    random: HmacDrbg,
    ports: Vec<EtherPort>,
    found: Vec<DiscoveredTarget>,
    /// How many answers were dropped because there were too many.
    left_out: u64,
    deadline: Instant,
    repeat: Instant,
    wait: Duration,
    rounds: u32,
    control_queue: ControlQueue,
}

impl DiscoveryClient {
    /// After how long the question is first repeated. The interval then doubles each time.
    const REPEAT_FIRST: Duration = Duration::from_millis(100);
    const REPEAT_MAX: Duration = Duration::from_secs(2);
    /// How many discovered targets are kept, counting each target once per address.
    pub const FOUND_MAX: usize = 4096;
    /// How many of these one address may contribute, so that no address fills the whole list.
    const FOUND_OF_ONE_MAX: usize = 256;

    /// Begins to ask for the targets of `group`, or for one target, for at most `time_limit`. `entropy`
    /// must come fresh from the operating system's generator.
    pub fn new(
        now: Instant,
        group: GroupName,
        target: Option<Name>,
        time_limit: Duration,
        entropy: [u8; 32],
    ) -> Self {
        let mut random = HmacDrbg::new(entropy);
        let nonce: [u8; NONCE_LEN] = random.bytes();
        Self {
            question: Question { nonce, group, target },
            random,
            ports: Vec::new(),
            found: Vec::new(),
            left_out: 0,
            deadline: now.after(time_limit),
            repeat: now.after(Self::REPEAT_FIRST),
            wait: Self::REPEAT_FIRST,
            rounds: 0,
            control_queue: ControlQueue::default(),
        }
    }

    /// Records that a port is up, or what changed about it.
    pub fn port_up(&mut self, port: EtherPort, state: &PortState) {
        if usable(state).is_some() && !self.ports.contains(&port) {
            self.ports.push(port);
            // This port was asked once now, so one round is all that is certain of all ports.
            self.rounds = 1;
            self.ask(port);
        }
    }

    /// Records that a port is down.
    pub fn port_down(&mut self, port: EtherPort) {
        self.ports.retain(|known| *known != port);
        self.control_queue.port_down(port);
    }

    /// Handles a received Discovery frame, which begins with `header`. Returns whether it answers this
    /// question.
    pub fn frame_received(
        &mut self,
        (port, mac): (EtherPort, Mac),
        header: &Header,
        frame: &mut [u8],
    ) -> bool {
        let Some(Discovery::Answer(answer)) = read(mac, header, frame) else { return false };
        let Question { nonce, group, target } = &self.question;
        let wanted = target.as_ref().is_none_or(|target| *target == answer.target);
        if answer.nonce != *nonce || answer.group != *group || !wanted {
            return false;
        }
        let found = DiscoveredTarget {
            port,
            mac,
            instance: answer.instance,
            target: answer.target,
            authenticates: answer.authenticates,
            luns: answer.luns,
            more: answer.more,
            macs: answer.macs,
            frame_max: answer.frame_max,
        };
        let same = |known: &&mut DiscoveredTarget| known.key() == found.key();
        let from_here = self.found.iter().filter(|known| known.mac == mac).count();
        let room = self.found.len() < Self::FOUND_MAX && from_here < Self::FOUND_OF_ONE_MAX;
        match self.found.iter_mut().find(same) {
            // A newer answer replaces an older one.
            Some(known) => *known = found,
            None if room => self.found.push(found),
            None => self.left_out += 1,
        }
        true
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
    pub fn poll_timeout(&self) -> Instant {
        self.repeat.min(self.deadline)
    }

    /// Handles a deadline that passed.
    pub fn handle_timeout(&mut self, now: Instant) {
        if now < self.repeat || self.is_over(now) {
            return;
        }
        self.wait = (self.wait * 2).min(Self::REPEAT_MAX);
        // The interval is up to a quarter longer at random, so that hosts that start together do not ask
        // together.
        let [extra] = self.random.bytes();
        self.repeat = now.after(self.wait + self.wait * u32::from(extra) / 1024);
        self.rounds += u32::from(!self.ports.is_empty());
        for port in self.ports.clone() {
            self.ask(port);
        }
    }

    /// Returns whether discovery has ended: later answers are not awaited.
    pub fn is_over(&self, now: Instant) -> bool {
        now >= self.deadline
    }

    /// Returns the discovered targets, sorted by target, server and address.
    pub fn found(&self) -> Vec<DiscoveredTarget> {
        let mut found = self.found.clone();
        found.sort_by(|a, b| a.key().cmp(&b.key()));
        found
    }

    /// Returns how many targets were discovered so far, counting each target once per address.
    pub const fn found_count(&self) -> usize {
        self.found.len()
    }

    /// Returns how often all ports that are up were asked.
    pub const fn rounds(&self) -> u32 {
        self.rounds
    }

    /// Returns the targets that more than one server claims: it is unknown which of them is meant.
    pub fn disputed(&self) -> Vec<Name> {
        let found = self.found();
        let pairs = found.iter().zip(found.iter().skip(1));
        let mut disputed: Vec<_> = pairs
            .filter(|(a, b)| a.target == b.target && !a.is_of_server(b))
            .map(|(a, _)| a.target.clone())
            .collect();
        disputed.dedup();
        disputed
    }

    /// Returns how many answers were dropped because there were too many.
    pub const fn left_out(&self) -> u64 {
        self.left_out
    }

    fn ask(&mut self, port: EtherPort) {
        let mut payload = Vec::new();
        Discovery::Question(self.question.clone()).encode(&mut payload);
        self.control_queue.send(port, Mac::BROADCAST, Cmd::Discovery, payload);
    }
}

impl DiscoveredTarget {
    /// Returns whether both answers may come from one server: they have the same instance, and both list a
    /// common address as the server's own. A copy of a server, its instance included, has other addresses
    /// than the original.
    fn is_of_server(&self, other: &Self) -> bool {
        self.instance == other.instance
            && (self.may_be_at(&[other.mac]) || other.may_be_at(&[self.mac]) || self.may_be_at(&other.macs))
    }

    /// Returns whether the server that answered may have one of these addresses, according to the addresses
    /// that it lists.
    pub(crate) fn may_be_at(&self, macs: &[Mac]) -> bool {
        let lists_all = !self.macs.is_empty() && self.macs.len() < MACS_MAX;
        !lists_all || macs.iter().any(|mac| *mac == self.mac || self.macs.contains(mac))
    }

    fn key(&self) -> (&Name, [u8; 16], EtherPort, Mac) {
        (&self.target, self.instance, self.port, self.mac)
    }
}

#[cfg(test)]
mod tests;
