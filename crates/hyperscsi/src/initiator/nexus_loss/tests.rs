use base::buffer::{Bytes, Pool};
use base::ether::{EtherPort, FrameBatch, FrameMachine, Mac, PortState, ReceivedFrame};
use transport::command::Cdb;
use transport::initiator::{InitiatorTransport as _, Request, Retry, TaskId};

use super::*;
use crate::Role;
use crate::aead::SessionKeys;
use crate::connection::{Connection, ConnectionConfig, Message, PathAddress};
use crate::frame::{Cmd, Header};
use crate::initiator::contract::{ProtocolError, SessionPlan};
use crate::login::HandshakeResult;
use crate::pdu::disconnect::Disconnect;
use crate::pdu::name::{GroupName, Name};
use crate::pdu::parameters::Parameters;
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
        Self { session, now, keyed, sids: (7, 1000), seeks: false }
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
        self.seeks |= others.iter().any(|frame| Header::parse(frame).unwrap().0.cmd == Cmd::Negotiate);
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
            parameters: Parameters::DEFAULT,
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

    /// Carries the target's frames to the initiator.
    fn deliver(&mut self, target: &mut Connection) {
        let mut batch = FrameBatch::new();
        target.transmit(self.now, PORT, &mut batch);
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
