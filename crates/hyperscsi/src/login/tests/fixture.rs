//! A fixture for the tests: one target, a few groups, one link with an attacker on it, a clock.

use alloc::boxed::Box;
use alloc::sync::Arc;
use alloc::vec;
use alloc::vec::Vec;

use base::ether::{EtherPort, FrameBatch, Mac, PortState};
use base::rng::Rng;
use base::time::{Duration, Instant};

use crate::frame::{BadFrame, Header};
use crate::login::HandshakeResult;
use crate::login::directory::{Export, GroupAccess, TargetAccess, TargetDirectory};
use crate::login::initiator::{HandshakeError, Login, LoginEvent, LoginPlan};
use crate::login::target::HandshakeServer;
use crate::pdu::name::{GroupName, Name};
use crate::pdu::parameters::{Levels, Parameters};
use security::Level;
use security::opaque::StretchCost;
use security::opaque::{Password, PasswordRecord};

pub(crate) const GROUP: &str = "backup";
pub(crate) const OPEN_GROUP: &str = "open";
/// A group whose target takes exchanges without protection only, though the group has a password.
pub(crate) const PLAIN_GROUP: &str = "plain";
pub(crate) const PASSWORD: &str = "correct horse";
pub(crate) const TARGET: &str = "iqn.2026-11.com.example:disk";
pub(crate) const INITIATOR: &str = "iqn.2026-11.com.example:host";
pub(crate) const PORT: EtherPort = EtherPort(1);
pub(crate) const OURS: Mac = Mac([2, 0, 0, 0, 0, 1]);
pub(crate) const THEIRS: Mac = Mac([2, 0, 0, 0, 0, 2]);
const CHEAP: StretchCost = StretchCost { memory_kib: 8, passes: 1, lanes: 1 };

pub(crate) struct TestDirectory {
    record: Arc<PasswordRecord>,
    pub(crate) instance: [u8; 16],
    pub(crate) exports: Vec<(EtherPort, &'static str, Export)>,
}

impl Default for TestDirectory {
    fn default() -> Self {
        let password = Password::new(PASSWORD.as_bytes()).unwrap();
        // One record serves both groups here.
        let record = PasswordRecord::make(&password, GROUP, CHEAP, [1; 32]).unwrap();
        Self { record: Arc::new(record), instance: [0xee; 16], exports: vec![] }
    }
}

impl TargetDirectory for TestDirectory {
    fn instance(&self) -> [u8; 16] {
        self.instance
    }

    fn target_access(&self, _: EtherPort, group: &GroupName, target: &Name) -> Option<TargetAccess> {
        if &**target != TARGET {
            return None;
        }
        let parameters = Parameters { frame_max: u16::MAX, ..Parameters::DEFAULT };
        let entrance = |access, levels| {
            Some(TargetAccess { access, parameters: Parameters { levels, ..parameters }, steering: 0x5a })
        };
        match &**group {
            GROUP => entrance(GroupAccess::Password(self.record.clone()), Levels::ALL),
            PLAIN_GROUP => entrance(GroupAccess::Password(self.record.clone()), Levels::OPEN),
            OPEN_GROUP => entrance(GroupAccess::Open, Levels::ALL),
            _ => None,
        }
    }

    fn export_behind(&self, port: EtherPort, group: &GroupName, after: Option<&Name>) -> Option<Export> {
        let here = self.exports.iter().filter(|(at, to, _)| *at == port && *to == &**group);
        here.map(|(_, _, export)| export)
            .filter(|export| after.is_none_or(|after| export.target > *after))
            .min_by(|a, b| a.target.cmp(&b.target))
            .cloned()
    }

    fn sid_taken(&self, _: u32) -> bool {
        false
    }
}

pub(crate) fn plan(group: &str, password: Option<&str>) -> LoginPlan {
    LoginPlan {
        group: GroupName::new(group).unwrap(),
        password: password.map(|text| Password::new(text.as_bytes()).unwrap()),
        target: Name::new(TARGET).unwrap(),
        initiator: Name::new(INITIATOR).unwrap(),
        isid: [0x80, 1, 2, 3, 4, 5],
        sid: 0x77,
        protection: Level::None,
        offer: Parameters { frame_max: u16::MAX, ..Parameters::DEFAULT },
        target_address: None,
        time_limit: Duration::from_secs(10),
    }
}

/// Receives each frame and whether it goes to the target; returns the frames that are delivered instead.
pub(crate) type Meddle = Box<dyn FnMut(bool, Vec<u8>) -> Vec<Vec<u8>>>;

pub(crate) struct Rig {
    pub(crate) now: Instant,
    pub(crate) directory: TestDirectory,
    pub(crate) handshakes: HandshakeServer,
    pub(crate) login: Login,
    pub(crate) agreed: Vec<HandshakeResult>,
    pub(crate) meddle: Meddle,
    pub(crate) target_mtu: usize,
    pub(crate) initiator_mtu: usize,
    /// Every frame as it was delivered, and whether it went to the target.
    pub(crate) log: Vec<(bool, Vec<u8>)>,
    pub(crate) restart_target_after: Option<usize>,
    pub(crate) change_port_after: Option<usize>,
    /// After how many delivered frames the target begins no further handshake.
    pub(crate) pause_after: Option<usize>,
    /// After how many delivered frames the target ends the sessions that it has.
    pub(crate) end_sessions_after: Option<usize>,
    rng: Rng,
}

impl Rig {
    pub(crate) fn new(plan: LoginPlan, seed: u64) -> Self {
        let mut rng = Rng::from_seed(seed);
        let now = Instant(1_000_000_000);
        Self {
            now,
            directory: TestDirectory::default(),
            handshakes: HandshakeServer::new(now),
            login: Login::new(now, plan, entropy(&mut rng)).unwrap(),
            agreed: vec![],
            meddle: Box::new(|_, frame| vec![frame]),
            target_mtu: 9000,
            initiator_mtu: 9000,
            log: vec![],
            restart_target_after: None,
            change_port_after: None,
            pause_after: None,
            end_sessions_after: None,
            rng,
        }
    }

    pub(crate) fn bring_up(&mut self) {
        self.bring_up_target();
        self.bring_up_initiator();
    }

    fn bring_up_target(&mut self) {
        let state = PortState { mac: THEIRS, mtu: self.target_mtu, receive_slots: 64 };
        self.handshakes.port_up(self.now, PORT, &state, entropy(&mut self.rng));
    }

    pub(crate) fn bring_up_initiator(&mut self) {
        let state = PortState { mac: OURS, mtu: self.initiator_mtu, receive_slots: 64 };
        self.login.port_up(self.now, PORT, &state, entropy(&mut self.rng));
    }

    /// Runs until the initiator reports its result.
    pub(crate) fn run(&mut self) -> Result<Box<HandshakeResult>, HandshakeError> {
        self.try_run().unwrap_or_else(|| panic!("no end after 10000 steps"))
    }

    fn try_run(&mut self) -> Option<Result<Box<HandshakeResult>, HandshakeError>> {
        for _ in 0..10_000 {
            if let Some(job) = self.login.poll_job() {
                self.login.job_done(self.now, job.run());
            }
            let moved = self.exchange();
            match self.login.poll_event() {
                Some(LoginEvent::Agreed(agreed)) => {
                    self.exchange();
                    return Some(Ok(agreed));
                }
                Some(LoginEvent::Failed(why)) => return Some(Err(why)),
                None => {}
            }
            if !moved {
                let wake = self.login.poll_timeout()?;
                self.now = self.now.max(wake);
                self.login.handle_timeout(self.now);
                self.handshakes.handle_timeout(self.now);
            }
        }
        None
    }

    /// Delivers what both ends have to send. Returns whether that was anything.
    fn exchange(&mut self) -> bool {
        let (mut to_target, mut to_initiator) = (FrameBatch::new(), FrameBatch::new());
        while let Some(port) = self.login.poll_port() {
            self.login.transmit(port, &mut to_target);
        }
        while let Some(port) = self.handshakes.poll_port() {
            self.handshakes.transmit(port, &mut to_initiator);
        }
        let (out, back) = (frames(&to_target), frames(&to_initiator));
        let moved = !out.is_empty() || !back.is_empty();
        for (to_target, frames) in [(true, out), (false, back)] {
            for (to, frame) in frames {
                let addressed = if to_target { to == THEIRS || to == Mac::BROADCAST } else { to == OURS };
                assert!(addressed, "to {to}");
                for frame in (self.meddle)(to_target, frame) {
                    self.events();
                    if to_target { self.target_hears(&frame) } else { self.initiator_hears(&frame) }
                }
            }
        }
        moved
    }

    fn events(&mut self) {
        if self.restart_target_after == Some(self.log.len()) {
            self.restart_target_after = None;
            self.handshakes = HandshakeServer::new(self.now);
            self.bring_up_target();
        }
        if self.change_port_after == Some(self.log.len()) {
            self.change_port_after = None;
            self.initiator_mtu = 1600;
            self.login.port_down(self.now, PORT);
            self.bring_up_initiator();
        }
        if self.pause_after == Some(self.log.len()) {
            self.handshakes.pause(true);
        }
        if self.end_sessions_after == Some(self.log.len()) {
            self.end_sessions_after = None;
            self.end_sessions();
        }
    }

    pub(crate) fn end_sessions(&mut self) {
        for agreed in &self.agreed {
            self.handshakes.session_ended(agreed.sid_in);
        }
    }

    pub(crate) fn target_hears(&mut self, frame: &[u8]) {
        self.target_hears_from(OURS, frame);
    }

    pub(crate) fn target_hears_from(&mut self, source: Mac, frame: &[u8]) {
        self.log.push((true, frame.to_vec()));
        let mut frame = frame.to_vec();
        match Header::parse(&frame) {
            Ok((header, _)) => {
                let agreed = self.handshakes.frame_received(
                    self.now,
                    &self.directory,
                    (PORT, source),
                    &header,
                    &mut frame,
                );
                self.agreed.extend(agreed.map(|agreed| *agreed));
            }
            Err(BadFrame::Version) => self.handshakes.other_version(self.now, PORT, source),
            Err(_) => {}
        }
    }

    pub(crate) fn initiator_hears(&mut self, frame: &[u8]) {
        self.log.push((false, frame.to_vec()));
        let mut frame = frame.to_vec();
        match Header::parse(&frame) {
            Ok((header, _)) => {
                self.login.frame_received(self.now, (PORT, THEIRS), &header, &mut frame);
            }
            Err(BadFrame::Version) => self.login.other_version(),
            Err(_) => {}
        }
    }
}

pub(crate) fn frames(batch: &FrameBatch) -> Vec<(Mac, Vec<u8>)> {
    batch.frames().map(|(to, _, pieces)| (to, pieces.flatten().copied().collect())).collect()
}

pub(crate) fn entropy(rng: &mut Rng) -> [u8; 32] {
    let mut entropy = [0; 32];
    rng.fill(&mut entropy);
    entropy
}
