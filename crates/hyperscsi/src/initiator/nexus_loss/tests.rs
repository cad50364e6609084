use base::buffer::{Bytes, Pool};
use base::ether::{EtherPort, FrameBatch, FrameMachine, Mac, PortState, ReceivedFrame};
use transport::command::{Cdb, TaskAttribute};
use transport::initiator::{InitiatorTransport as _, Request, Retry, TaskId, TmfParameters};
use transport::task_management::TmfFunction;

use super::*;
use crate::Role;
use crate::aead::{SessionKeys, put_crc};
use crate::connection::{Connection, ConnectionConfig, Message, PathAddress};
use crate::frame::{Cmd, Flags, HEADER_LEN, Header};
use crate::initiator::contract::{ProtocolError, SessionPlan};
use crate::login::HandshakeResult;
use crate::login::initiator::HandshakeError;
use crate::pdu::command::Request as Asked;
use crate::pdu::disconnect::Disconnect;
use crate::pdu::name::{GroupName, Name};
use crate::pdu::negotiate::{COOKIE_LEN, Negotiate, Negotiated, RefuseReason};
use crate::pdu::parameters::Parameters;
use crate::pdu::reply::{Reply, Response};
use security::Level;
use security::opaque::Password;

const PORT: EtherPort = EtherPort(0);
const OURS: PortState = PortState { mac: Mac([2, 0, 0, 0, 0, 1]), mtu: 1500, receive_slots: 512 };
const TARGETS: PortState = PortState { mac: Mac([2, 0, 0, 0, 0, 2]), ..OURS };
const BROKEN: LossReason = LossReason::Misbehaved(ProtocolError::DataInOutside);

/// An initiator whose target accepts its login and then violates the protocol, each time.
struct Rig {
    session: Session,
    now: Instant,
    keyed: bool,
    /// The SIDs of the session: the target's and the initiator's.
    sids: (u32, u32),
    /// Whether the initiator sent a handshake since the last login.
    seeks: bool,
    /// The handshake steps that the initiator sent.
    steps: Vec<Negotiate>,
    /// The parameters that the target chooses.
    parameters: Parameters,
}

impl Rig {
    fn new(keyed: bool, timeout: Duration) -> Self {
        let name = |text| Name::new(text).unwrap();
        let password = keyed.then(|| Password::new(b"sesame").unwrap());
        let group = GroupName::new("backup").unwrap();
        let mut plan = SessionPlan::new(name("iqn.a"), [1; 6], group, password, name("iqn.b"));
        plan.retry = Retry { timeout, first: true, ..Retry::default() };
        let now = Instant::ORIGIN.after(Duration::from_secs(1));
        let mut session = Session::new(now, plan, Pool::new(1 << 20));
        session.port_up(now, PORT, &OURS, [3; 32]);
        Self {
            session,
            now,
            keyed,
            sids: (7, 1000),
            seeks: false,
            steps: Vec::new(),
            parameters: Parameters::DEFAULT,
        }
    }

    /// Returns the frames of the session that the initiator sends.
    fn frames(&mut self) -> Vec<Vec<u8>> {
        let mut batch = FrameBatch::new();
        while self.session.poll_port().is_some() {
            self.session.transmit_frames(self.now, PORT, &mut batch);
        }
        let frames = batch.frames().map(|(.., pieces)| pieces.flatten().copied().collect());
        let own = self.sids.0;
        let is_ours = |frame: &Vec<u8>| Header::parse(frame).unwrap().0.sid == own;
        let (ours, others): (Vec<_>, Vec<_>) = frames.partition(is_ours);
        // Frames of older sessions are ignored. Discovery of further paths uses another command than a
        // handshake.
        for frame in &others {
            let header = Header::parse(frame).unwrap().0;
            if header.cmd == Cmd::Negotiate {
                self.seeks = true;
                self.steps.extend(Negotiate::parse(&frame[HEADER_LEN..HEADER_LEN + usize::from(header.len)]));
            }
        }
        ours
    }

    fn submit(&mut self) -> TaskId {
        let cdb = Cdb::new(&[0x28; 10]).unwrap();
        self.session
            .submit(self.now, Request { data_in_len: 512, replay: true, ..Request::new(0, cdb) })
            .unwrap()
    }

    /// Accepts the initiator's login.
    fn begin(&mut self) -> Connection {
        let keys = self.keyed.then(|| SessionKeys::from_secret(&[7; 64], &[9; 64]));
        self.sids = (self.sids.0 + 1, self.sids.1 + 1);
        let plan = &self.session.plan;
        let agreed = HandshakeResult {
            keys,
            sid_out: self.sids.0,
            sid_in: self.sids.1,
            token: [5; 16],
            parameters: self.parameters,
            frame_max: 1500,
            group: plan.group.clone(),
            target: plan.target.clone(),
            initiator: plan.initiator.clone(),
            isid: plan.isid,
            instance: [6; 16],
            port: PORT,
            peer: TARGETS.mac,
        };
        self.session.agreed(self.now, &agreed);
        let plan =
            ConnectionConfig::new(&Parameters::DEFAULT, &Parameters::DEFAULT, 100, agreed.token, [4; 8]);
        let address = PathAddress { port: PORT, mac: OURS.mac };
        let keys = agreed.keys.as_ref();
        Connection::new(Role::Target, &plan, self.now, keys, self.sids.1, self.sids.0, address, &TARGETS)
    }

    /// Violates the protocol in the session, in answer to a command. Returns the initiator's Disconnect
    /// messages.
    fn spoil(&mut self, target: &mut Connection) -> Vec<Disconnect> {
        let mut asked = None;
        self.carry(target, |header, _| asked = Some((header.xid, header.tag)));
        let (xid, tag) = asked.expect("a command comes");
        let level = if self.keyed { Level::Integrity } else { Level::None };
        // Data beyond the expected length.
        target.send(Message::data(Cmd::Reply, xid, tag, level, 512, Bytes::copied_from(&[1]).into()));
        self.deliver(target);
        let mut said = Vec::new();
        self.carry(target, |header, payload| {
            if header.cmd == Cmd::Disconnect {
                said.push(Disconnect::parse(payload).unwrap());
            }
        });
        said
    }

    /// Ends the session with a GOODBYE of the target.
    fn say_goodbye(&mut self, target: &mut Connection, reason: DisconnectReason) {
        self.carry(target, |_, _| {});
        target.send(Message::disconnect(Disconnect::Goodbye(reason), self.keyed));
        self.deliver(target);
    }

    /// Any station, which proves nothing, answers each HELLO with a COOKIE and each START with a refusal.
    fn refuse(&mut self, reason: RefuseReason) {
        self.frames();
        for step in core::mem::take(&mut self.steps) {
            let answer = match step {
                Negotiate::Hello(hello) => {
                    Negotiated::Cookie { handshake: hello.handshake, cookie: [7; COOKIE_LEN] }
                }
                Negotiate::Start(start) => {
                    Negotiated::Refuse { handshake: start.handshake, reason, retry_after_ms: 0 }
                }
                Negotiate::Illegal(..) | Negotiate::Finish(_) => continue,
            };
            let (mut payload, mut batch) = (Vec::new(), FrameBatch::new());
            answer.encode(&mut payload);
            let header = Header {
                tag: 0,
                last: true,
                fragment: 0,
                protected: false,
                cmd: Cmd::Negotiated,
                flags: Flags::default(),
                len: u16::try_from(payload.len()).unwrap(),
                sid: 0,
                pn: 0,
                xid: 0,
                off: 0,
            };
            batch.begin_frame(OURS.mac);
            batch.put(&header.to_bytes());
            batch.put(&payload);
            put_crc(&mut batch);
            batch.end_frame();
            self.hear(&batch);
        }
    }

    /// Refuses every handshake for a while, or until the session is down.
    fn refuse_for(&mut self, reason: RefuseReason, span: Duration) {
        let end = self.now.after(span);
        while !self.session.is_down() {
            self.refuse(reason);
            let Some(next) = self.session.poll_timeout().filter(|next| *next < end) else { break };
            self.now = next.max(self.now);
            self.session.handle_timeout(self.now);
        }
        self.now = if self.session.is_down() { self.now } else { end };
    }

    /// Carries the target's frames to the initiator.
    fn deliver(&mut self, target: &mut Connection) {
        let mut batch = FrameBatch::new();
        target.transmit(self.now, PORT, &mut batch);
        self.hear(&batch);
    }

    fn hear(&mut self, batch: &FrameBatch) {
        for (.., pieces) in batch.frames() {
            let mut payload: Vec<u8> = pieces.flatten().copied().collect();
            let source = TARGETS.mac;
            let frame = ReceivedFrame {
                port: PORT,
                source,
                group: false,
                age: Duration::ZERO,
                payload: &mut payload,
            };
            self.session.frame_received(self.now, frame);
        }
    }

    /// Carries the initiator's frames to the target.
    fn carry(&mut self, target: &mut Connection, mut hear: impl FnMut(&Header, &[u8])) {
        let address = PathAddress { port: PORT, mac: OURS.mac };
        for mut frame in self.frames() {
            let (header, len) = Header::parse(&frame).unwrap();
            target.frame_received(self.now, self.now, address, header, &mut frame[..len], &mut hear).unwrap();
        }
    }

    /// Waits until the initiator sends a handshake; returns how long that took.
    fn sought(&mut self) -> Duration {
        let from = self.now;
        self.frames();
        while !self.seeks {
            self.now = self.session.poll_timeout().unwrap().max(self.now);
            self.session.handle_timeout(self.now);
            self.frames();
        }
        self.seeks = false;
        self.now.since(from)
    }
}

#[test]
fn a_target_that_breaks_rules_is_told_and_gets_more_and_more_time() {
    for keyed in [false, true] {
        let mut rig = Rig::new(keyed, Duration::from_secs(8));
        rig.sought();
        let begun = rig.now;
        let mut target = rig.begin();
        let task = rig.submit();
        for pause in [0, 50, 100, 200, 400, 800, 1600, 2000, 2000] {
            let said = rig.spoil(&mut target);
            assert_eq!(said, [Disconnect::Goodbye(DisconnectReason::BROKEN)], "{keyed} {pause}");
            assert!(rig.session.phase == Phase::Connecting && rig.session.loss() == Some(BROKEN));
            if pause == 2000 && rig.session.stats().sessions_lost == 9 {
                // The task was repeated `MAX_REPLAYS` times, and no more.
                assert_eq!(rig.session.stats().replays, u64::from(MAX_REPLAYS));
                let ended = core::iter::from_fn(|| rig.session.poll_event());
                let ended: Vec<_> = ended
                    .filter_map(|event| match event {
                        Event::Done { task, outcome } => Some((task, outcome.end)),
                        _ => None,
                    })
                    .collect();
                assert_eq!(ended, [(task, TaskResult::Lost)]);
                rig.submit();
            }
            let took = rig.sought();
            let least = Duration::from_millis(pause);
            assert!(took >= least && took <= least + Duration::from_millis(10), "{took:?} for {pause} ms");
            target = rig.begin();
        }
        // All of that together takes longer than the owner's retry timeout.
        rig.spoil(&mut target);
        while !rig.session.is_down() {
            rig.now = rig.session.poll_timeout().unwrap();
            rig.session.handle_timeout(rig.now);
        }
        assert_eq!(rig.now.since(begun), Duration::from_secs(8));
        let down = core::iter::from_fn(|| rig.session.poll_event()).last();
        assert!(matches!(down, Some(Event::Down(SessionEnd::RetriesExhausted(BROKEN)))), "{down:?}");
    }
}

#[test]
fn a_session_that_lasts_makes_up_for_those_that_did_not() {
    for (lasts, pause) in [(9, 50), (10, 0)] {
        let mut rig = Rig::new(true, Duration::from_secs(60));
        rig.sought();
        let mut target = rig.begin();
        rig.submit();
        rig.spoil(&mut target);
        assert_eq!(rig.sought(), Duration::ZERO);
        let mut target = rig.begin();
        rig.now = rig.now.after(Duration::from_secs(lasts));
        rig.spoil(&mut target);
        let took = rig.sought();
        assert!(
            took >= Duration::from_millis(pause) && took <= Duration::from_millis(pause + 10),
            "{took:?}"
        );
    }
}

#[test]
fn a_target_that_ends_each_session_at_once_gets_more_and_more_time() {
    for reason in [DisconnectReason::CLOSED, DisconnectReason::SHUTDOWN, DisconnectReason::BROKEN] {
        let mut rig = Rig::new(true, Duration::from_secs(8));
        rig.sought();
        // It may take longer than the owner's retry timeout: the target was there each time.
        for pause in [0, 50, 100, 200, 400, 800, 1600, 2000, 2000, 2000, 2000] {
            let mut target = rig.begin();
            rig.say_goodbye(&mut target, reason);
            assert_eq!(rig.session.loss(), Some(LossReason::Ended(reason)));
            let (took, least) = (rig.sought(), Duration::from_millis(pause));
            assert!(took >= least && took <= least + Duration::from_millis(10), "{took:?} for {pause} ms");
        }
        assert!(!rig.session.is_down());
        // A session that lasts makes up for those that did not.
        let mut target = rig.begin();
        rig.now = rig.now.after(TRUSTED_AFTER);
        rig.say_goodbye(&mut target, reason);
        assert_eq!(rig.sought(), Duration::ZERO);
    }
}

/// The last event of a session that is down.
fn end_of(rig: &mut Rig) -> Option<SessionEnd> {
    match core::iter::from_fn(|| rig.session.poll_event()).last() {
        Some(Event::Down(end)) => Some(end),
        _ => None,
    }
}

#[test]
fn an_unproven_refusal_is_final_for_the_first_session_only() {
    let refused = |why| LossReason::Handshake(why);
    let reasons = [
        (RefuseReason::NOT_AUTHORIZED, refused(HandshakeError::WrongPassword)),
        (RefuseReason::PARAMETERS, refused(HandshakeError::ProtectionRefused(Level::Integrity))),
        (RefuseReason::PASSWORD_NEEDED, refused(HandshakeError::PasswordNeeded)),
        (RefuseReason::OPEN_GROUP, refused(HandshakeError::OpenGroup)),
        (RefuseReason(9), refused(HandshakeError::Refused(RefuseReason(9)))),
    ];
    let timeout = Duration::from_secs(60);
    for (reason, why) in reasons {
        let mut rig = Rig::new(true, timeout);
        rig.refuse_for(reason, Duration::from_secs(10));
        assert_eq!(end_of(&mut rig), Some(SessionEnd::Permanent(why)));

        // The target is away, and somebody else answers in its place.
        let mut rig = Rig::new(true, timeout);
        rig.sought();
        let mut target = rig.begin();
        rig.say_goodbye(&mut target, DisconnectReason::SHUTDOWN);
        rig.refuse_for(reason, Duration::from_secs(30));
        // The time between two handshakes grows, since each lets an impostor try passwords.
        let failed = rig.session.stats().logins_failed;
        assert!(!rig.session.is_down() && (3..8).contains(&failed), "{why:?}: {failed}");
        assert_eq!(rig.session.loss(), Some(why));
        // It is back.
        let mut target = rig.begin();
        assert!(rig.session.phase == Phase::Up);
        rig.say_goodbye(&mut target, DisconnectReason::SHUTDOWN);
        let lost = rig.now;
        rig.refuse_for(reason, 2 * timeout);
        assert_eq!(end_of(&mut rig), Some(SessionEnd::RetriesExhausted(why)));
        assert_eq!(rig.now.since(lost), timeout);
    }
}

/// Returns the requests that the initiator sends now, with their XIDs and tags.
fn requests(rig: &mut Rig, target: &mut Connection) -> Vec<(u32, u16, Asked)> {
    let mut sent = Vec::new();
    for _ in 0..20 {
        rig.carry(target, |header, payload| {
            if header.cmd == Cmd::Request {
                sent.push((header.xid, header.tag, Asked::parse(payload).unwrap().0));
            }
        });
        rig.deliver(target);
    }
    sent
}

fn reply(target: &mut Connection, (xid, tag): (u32, u16), level: Level, reply: &Reply<'_>) {
    let mut head = Vec::new();
    reply.encode(&mut head);
    target.send(Message::block(Cmd::Reply, xid, tag, level, head));
}

#[test]
fn commands_that_a_unit_refuses_together_for_their_level_are_sent_again_in_their_order() {
    let mut rig = Rig::new(true, Duration::from_secs(60));
    rig.sought();
    let mut target = rig.begin();
    for number in 0..4 {
        let cdb = Cdb::new(&[0x28, 0, number]).unwrap();
        let attribute = TaskAttribute::ORDERED;
        rig.session.submit(rig.now, Request { attribute, ..Request::new(0, cdb) }).unwrap();
    }
    let numbers = |sent: &[(u32, u16, Asked)]| {
        let number = |(.., asked): &(u32, u16, Asked)| match asked {
            Asked::Command(command) => command.cdb[2],
            Asked::Manage(_) => panic!("a function"),
        };
        sent.iter().map(number).collect::<Vec<_>>()
    };
    let sent = requests(&mut rig, &mut target);
    assert_eq!(numbers(&sent), [0, 1, 2, 3]);
    let mut sense = [0; 18];
    (sense[0], sense[2], sense[12], sense[13]) = (0x70, 5, 0x74, 0x71);
    let refusal = Reply::Response(Response { status: 2, data_in_len: 0, transferable: 0, sense: &sense });
    // Lost frames let the refusals come in any order.
    for at in [2, 0, 3, 1] {
        reply(&mut target, (sent[at].0, sent[at].1), Level::Integrity, &refusal);
    }
    rig.deliver(&mut target);
    assert_eq!(rig.session.stats().raised, 4);
    assert_eq!(numbers(&requests(&mut rig, &mut target)), [0, 1, 2, 3]);
}

#[test]
fn a_function_that_hangs_keeps_no_slot_from_a_wider_one() {
    for (exchanges, commands, aborts, checks) in [(1, 1, 0, 0), (2, 1, 1, 0), (8, 6, 1, 0), (128, 120, 4, 0)]
    {
        let mut rig = Rig::new(true, Duration::from_secs(60));
        rig.parameters.exchanges = exchanges;
        rig.sought();
        let mut target = rig.begin();
        let tasks: Vec<TaskId> = (0..2 * exchanges).map(|_| rig.submit()).collect();
        assert_eq!(requests(&mut rig, &mut target).len(), commands);
        // The target answers none of them.
        for task in tasks.iter().take(8.min(commands)) {
            rig.session.abort(rig.now, *task).unwrap();
        }
        assert_eq!(requests(&mut rig, &mut target).len(), aborts, "{exchanges}");
        let check = Request { is_identity_check: true, ..Request::new(1, Cdb::new(&[0; 6]).unwrap()) };
        rig.session.submit(rig.now, check).unwrap();
        assert_eq!(requests(&mut rig, &mut target).len(), checks, "{exchanges}");
        let reset = TmfParameters { function: TmfFunction::LOGICAL_UNIT_RESET, lun: 0, task: None };
        rig.session.submit_tmf(rig.now, reset).unwrap();
        let sent = requests(&mut rig, &mut target);
        assert_eq!(sent.len(), usize::from(exchanges > 2), "{exchanges}");
        let reset = |(.., asked): &(u32, u16, Asked)| matches!(asked, Asked::Manage(manage) if manage.function == TmfFunction::LOGICAL_UNIT_RESET);
        assert!(sent.iter().all(reset), "{sent:?}");
    }
}
