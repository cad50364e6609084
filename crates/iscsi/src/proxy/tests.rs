use alloc::string::{String, ToString as _};
use alloc::vec;
use alloc::vec::Vec;

use base::time::Instant;

use super::*;
use crate::login::directory::TargetLookup;
use crate::login::target::TargetLogin;
use crate::login::test_site::{
    INITIATOR, ISID, PASSWORD, TARGET, TestSite, USER, arrival, entropy, password,
};
use crate::login::test_site::{spaced, zeroed};
use crate::login::{LoginOutcome, LoginRequest, LoginStep, SessionKind, Stage, Status};
use crate::name::Tsih;
use crate::pdu::login_request::LoginRequest as RequestHeader;
use crate::pdu::login_response::LoginResponse as ResponseHeader;
use crate::pdu::text_response::TextResponse;
use crate::pdu::{Itt, Ttt};
use crate::serial::CmdSn;

const OWN: &str = "127.0.0.1:3260";
const PEER: &str = "192.0.2.7:3260";
const TSIH: u16 = 0x55;
const NAMES: &str = "InitiatorName=iqn.2026-11.com.example:host TargetName=iqn.2026-11.com.example:disk";

/// A Login Request of the first stage.
const REQUEST: RequestHeader = RequestHeader {
    transit: false,
    continues: false,
    csg: 0,
    nsg: 0,
    version_max: 0,
    version_min: 0,
    isid: ISID.0,
    tsih: 0,
    itt: Itt(5),
    cid: 1,
    cmd_sn: CmdSn(77),
    exp_stat_sn: StatSn(0),
};

/// An initiator whose PDUs the test writes, the proxy, and a target that requires the password login.
struct World {
    proxy: ProxyConnection,
    pool: Pool,
    initiator: Leg,
    tsih: u16,
    target: Leg,
    site: TestSite,
    login: TargetLogin,
    outcome: Option<Box<LoginOutcome>>,
    target_stat_sn: u32,
    /// The PDUs that each end received.
    at_initiator: Vec<(Bhs, Vec<u8>)>,
    at_target: Vec<(Bhs, Vec<u8>)>,
    /// Every byte between proxy and target.
    wire: Vec<u8>,
    /// Where the proxy connected to.
    connects: Vec<Option<TargetAddress>>,
    /// How many of these connections `site.instead` answers.
    redirects: usize,
    closed: Option<ProxyError>,
}

fn plan(secret: &str) -> ProxyPlan {
    ProxyPlan {
        user: USER.into(),
        password: password(secret),
        aead_digests: &AeadDigest::ALL,
        min_protection: Level::Encrypt,
    }
}

fn pdus(leg: &mut Leg, pool: &Pool, mut bytes: &[u8]) -> Vec<(Bhs, Vec<u8>)> {
    let mut all = Vec::new();
    loop {
        match leg.receiver.advance(&mut bytes).unwrap() {
            FramingEvent::NeedMoreBytes => return all,
            FramingEvent::Header(bhs) => {
                let room = bhs.data_len().next_multiple_of(4).try_into().unwrap();
                leg.receiver.set_sink(DataSink::Append(pool.take(room)));
            }
            FramingEvent::Pdu(pdu) => {
                assert!(pdu.digest_ok);
                let DataSink::Append(buf) = pdu.sink else { panic!() };
                all.push((pdu.bhs, buf.filled().to_vec()));
            }
            FramingEvent::Damaged => panic!(),
        }
    }
}

fn taken(transmit: &mut Transmit, pool: &Pool) -> Vec<u8> {
    let bytes = transmit.pieces().collect::<Vec<_>>().concat();
    transmit.clear(pool);
    bytes
}

impl World {
    fn new(secret: &str) -> Self {
        let pool = Pool::new(1 << 20);
        Self {
            proxy: ProxyConnection::new(plan(secret), OWN.parse().unwrap(), pool.clone()),
            pool,
            initiator: Leg::new(),
            tsih: 0,
            target: Leg::new(),
            site: TestSite::by_password(),
            login: TargetLogin::new(Instant::ORIGIN, &arrival(1)),
            outcome: None,
            target_stat_sn: 900,
            at_initiator: vec![],
            at_target: vec![],
            wire: vec![],
            connects: vec![],
            redirects: 0,
            closed: None,
        }
    }

    fn request(&mut self, csg: u8, nsg: Option<u8>, text: &str) -> (ResponseHeader, String) {
        self.send_request(csg, nsg, false, &zeroed(text));
        self.response()
    }

    fn send_request(&mut self, csg: u8, nsg: Option<u8>, continues: bool, text: &[u8]) {
        let header = RequestHeader {
            transit: nsg.is_some(),
            continues,
            csg,
            nsg: nsg.unwrap_or(0),
            tsih: self.tsih,
            ..REQUEST
        };
        self.initiator.send(header.encode(), text);
        self.run();
    }

    fn response(&mut self) -> (ResponseHeader, String) {
        assert_eq!(self.at_initiator.len(), 1, "{:?}", self.closed);
        let (bhs, data) = self.at_initiator.remove(0);
        (ResponseHeader::decode(&bhs).unwrap(), spaced(&data))
    }

    /// Moves bytes until nothing is left to do.
    fn run(&mut self) {
        loop {
            self.process_events();
            let up = taken(&mut self.initiator.transmit, &self.pool);
            let down = taken(&mut self.target.transmit, &self.pool);
            self.wire.extend_from_slice(&down);
            let sent = self.pass(Side::Local, &up) + self.pass(Side::Remote, &down) + self.deliver();
            if up.is_empty() && down.is_empty() && sent == 0 {
                return;
            }
        }
    }

    fn process_events(&mut self) {
        while let Some(event) = self.proxy.poll_event() {
            match event {
                ProxyEvent::Connect(to) => {
                    self.connects.push(to);
                    if self.connects.len() > self.redirects {
                        self.site.instead = None;
                    }
                    self.target = Leg::new();
                    self.login = TargetLogin::new(Instant::ORIGIN, &arrival(1));
                    self.proxy.connected(PEER.parse().unwrap(), entropy(3));
                }
                ProxyEvent::Stretch(job) => self.proxy.stretched(job.run()),
                ProxyEvent::Close(why) => self.closed = Some(why),
            }
        }
    }

    /// Passes bytes of one side to the proxy, as far as the proxy takes them. Returns how many bytes the
    /// proxy sent.
    fn pass(&mut self, side: Side, mut bytes: &[u8]) -> usize {
        let mut sent = 0;
        while !bytes.is_empty() && self.proxy.can_receive(side) {
            self.proxy.handle_bytes(side, &mut bytes);
            sent += self.deliver();
        }
        sent
    }

    /// Delivers what the proxy sends. Returns how many bytes that was.
    fn deliver(&mut self) -> usize {
        let to_initiator = taken(self.proxy.transmit(Side::Local), &self.pool);
        self.at_initiator.extend(pdus(&mut self.initiator, &self.pool, &to_initiator));
        let to_target = taken(self.proxy.transmit(Side::Remote), &self.pool);
        self.wire.extend_from_slice(&to_target);
        for (bhs, data) in pdus(&mut self.target, &self.pool, &to_target) {
            if self.outcome.is_some() {
                self.at_target.push((bhs, data));
            } else {
                self.answer(&bhs, &data);
            }
        }
        to_initiator.len() + to_target.len()
    }

    /// Answers a Login Request at the target.
    fn answer(&mut self, bhs: &Bhs, data: &[u8]) {
        let pdu = RequestHeader::decode(bhs).unwrap();
        let request = LoginRequest {
            transit: pdu.transit,
            cont: pdu.continues,
            csg: Stage(pdu.csg),
            nsg: Stage(pdu.nsg),
            version_max: pdu.version_max,
            version_min: pdu.version_min,
            isid: pdu.isid,
            tsih: pdu.tsih,
            itt: pdu.itt.0,
            cid: pdu.cid,
            cmd_sn: pdu.cmd_sn.0,
            exp_stat_sn: pdu.exp_stat_sn.0,
            data,
        };
        let mut outcome = None;
        let response = match self.login.handle(Instant::ORIGIN, &request, &self.site) {
            LoginStep::Continue(response)
            | LoginStep::PermitGuess { response, .. }
            | LoginStep::Fail { response, .. } => response,
            LoginStep::Complete { mut response, outcome: done } => {
                response.tsih = TSIH;
                outcome = Some(done);
                response
            }
            LoginStep::Drop(why) => panic!("{why}"),
        };
        let header = ResponseHeader {
            transit: response.transit,
            continues: response.cont,
            csg: response.csg.0,
            nsg: response.nsg.0,
            version_max: 0,
            version_active: 0,
            isid: response.isid,
            tsih: response.tsih,
            itt: Itt(response.itt),
            sn: TargetSn {
                stat_sn: StatSn(self.target_stat_sn),
                exp_cmd_sn: CmdSn(77),
                max_cmd_sn: CmdSn(99),
            },
            status: response.status().0,
        };
        self.target_stat_sn += 1;
        self.target.send(header.encode(), &response.data);
        if let Some(mut outcome) = outcome {
            let keys = outcome.record_keys.take().map(|seed| seed.derive(Role::Target, Tsih(TSIH)));
            let parameters = outcome.negotiated.connection;
            let level = RecoveryLevel::SessionRecovery;
            let codec = PduCodec::new(Role::Target, &parameters, level, keys, &self.pool).unwrap();
            self.target.enter_full_feature(codec);
            self.outcome = Some(outcome);
        }
    }

    /// Makes the initiator use these digests from now on.
    fn use_digests(
        &mut self,
        header_digest: crate::negotiate::Digest,
        data_digest: crate::negotiate::Digest,
    ) {
        let parameters = ConnectionParameters {
            header_digest,
            data_digest,
            initiator_max_recv: SEGMENT_MAX,
            target_max_recv: SEGMENT_MAX,
        };
        let level = RecoveryLevel::SessionRecovery;
        let codec = PduCodec::new(Role::Initiator, &parameters, level, None, &self.pool).unwrap();
        self.initiator.enter_full_feature(codec);
    }
}

fn bhs_of(opcode: Opcode, seed: u8) -> Bhs {
    let mut bytes = [0; BHS_LEN];
    for (at, byte) in bytes.iter_mut().enumerate() {
        *byte = seed.wrapping_mul(31).wrapping_add(u8::try_from(at).unwrap());
    }
    (bytes[0], bytes[4]) = (opcode.0, 0);
    Bhs::from_bytes(bytes)
}

#[test]
fn both_logins_agree_and_pdus_pass_encrypted_with_the_same_headers() {
    let mut world = World::new(PASSWORD);
    let (header, text) = world.request(0, Some(1), &alloc::format!("{NAMES} AuthMethod=CHAP,None"));
    assert_eq!((header.status, header.transit, header.nsg), (0, true, 1));
    assert_eq!(text, "AuthMethod=None TargetAlias=Thedisk TargetPortalGroupTag=7");
    let first_sn = header.sn.stat_sn;
    assert_eq!(header.sn.max_cmd_sn, CmdSn(99));
    let offer = "HeaderDigest=CRC32C,None DataDigest=None MaxRecvDataSegmentLength=262144 MaxBurstLength=70000 \
                 ErrorRecoveryLevel=1 X-com.example.a=1";
    let (header, text) = world.request(1, Some(3), offer);
    assert_eq!((header.status, header.transit, header.nsg, header.tsih), (0, true, 3, TSIH));
    assert_eq!(header.sn.stat_sn, first_sn.next());
    for pair in ["HeaderDigest=CRC32C", "DataDigest=None", "MaxBurstLength=70000", "ErrorRecoveryLevel=1"] {
        assert!(text.contains(pair), "{pair}: {text}");
    }
    assert!(
        text.contains("MaxRecvDataSegmentLength=65536") && text.contains("X-com.example.a=NotUnderstood")
    );
    assert!(!text.contains("org.targe"), "{text}");
    let outcome = world.outcome.as_ref().unwrap();
    assert_eq!(outcome.negotiated.session.max_burst_length, 70000);
    assert_eq!(outcome.negotiated.connection.initiator_max_recv, 65536);
    assert_eq!(outcome.password_login.as_ref().unwrap().protection, Level::Encrypt);
    assert_eq!((outcome.isid, outcome.cid.0, outcome.cmd_sn), (ISID, 1, 77));
    assert_eq!(outcome.initiator.as_str(), INITIATOR);
    assert!(matches!(&outcome.kind, SessionKind::Normal { name, .. } if name.as_str() == TARGET));

    world.use_digests(crate::negotiate::Digest::Crc32c, crate::negotiate::Digest::None);
    world.wire.clear();
    for (at, len) in [0_usize, 1, 512, 65535, 65536].into_iter().enumerate() {
        let seed = u8::try_from(at).unwrap();
        let data = b"plain text of a disk ".iter().copied().cycle().take(len).collect::<Vec<_>>();
        let up = bhs_of(Opcode::SCSI_COMMAND, seed).with_ahs_len(at * 4).with_data_len(len);
        let ahs = vec![seed; at * 4];
        world.initiator.writer.long_header(&up, &ahs, &mut world.initiator.transmit);
        world.initiator.writer.copied(&data, &mut world.initiator.transmit);
        let down = bhs_of(Opcode::DATA_IN, seed).with_data_len(len);
        world.target.writer.header(&down, &mut world.target.transmit);
        world.target.writer.copied(&data, &mut world.target.transmit);
        world.run();
        assert_eq!(world.closed, None);
        assert_eq!(world.at_target.pop(), Some((up, data.clone())), "{len} bytes");
        assert_eq!(world.target.receiver.ahs(), ahs);
        assert_eq!(world.at_initiator.pop(), Some((down, data)), "{len} bytes");
    }
    let plain = world.wire.windows(10).any(|part| part == b"plain text");
    assert!(!plain && world.wire.len() > 2 * 131_000);
}

#[test]
fn every_response_after_the_first_has_the_next_stat_sn() {
    let mut world = World::new(PASSWORD);
    let mut last: Option<StatSn> = None;
    let mut check = |header: ResponseHeader| {
        assert_eq!(header.status, 0);
        assert!(last.is_none_or(|last| header.sn.stat_sn == last.next()), "{last:?} {header:?}");
        last = Some(header.sn.stat_sn);
    };
    check(world.request(0, None, &alloc::format!("{NAMES} SessionType=Normal")).0);
    check(world.request(0, None, "AuthMethod=None").0);
    let (header, text) = world.request(0, Some(3), "");
    // The target has no operational stage to skip.
    assert_eq!((header.transit, header.nsg, text.as_str()), (true, 1, ""));
    check(header);
    let pieces = zeroed("HeaderDigest=None MaxBurstLength=65536");
    let (front, rest) = pieces.split_at(23);
    world.send_request(1, None, true, front);
    let (header, text) = world.response();
    assert_eq!(text, "");
    check(header);
    world.send_request(1, None, false, rest);
    let (header, text) = world.response();
    assert!(text.contains("HeaderDigest=None") && text.contains("MaxBurstLength=65536"), "{text}");
    assert!(text.contains("MaxRecvDataSegmentLength=65536"), "{text}");
    check(header);
    let (header, _) = world.request(1, Some(3), "InitialR2T=No");
    assert_eq!((header.transit, header.nsg, header.tsih), (true, 3, TSIH));
    check(header);
    assert!(world.outcome.is_some() && world.proxy.is_logged_in());
}

#[test]
fn the_first_text_may_come_in_pieces_of_any_size() {
    for (csg, size) in [(0, 1), (0, 40), (1, 7), (1, 40)] {
        let mut world = World::new(PASSWORD);
        let text = zeroed(&alloc::format!("{NAMES} AuthMethod=None"));
        let mut stat_sn = StatSn(0);
        for piece in text.chunks(size).take(text.len().div_ceil(size) - 1) {
            world.send_request(csg, None, true, piece);
            let (header, text) = world.response();
            assert_eq!((header.status, header.transit, header.csg, text.as_str()), (0, false, csg, ""));
            assert_eq!(header.sn.stat_sn, stat_sn);
            stat_sn = stat_sn.next();
        }
        assert!(world.connects.is_empty());
        let last = text.chunks(size).last().unwrap();
        world.send_request(csg, Some(if csg == 0 { 1 } else { 3 }), false, last);
        let (mut header, text) = world.response();
        assert!(text.contains("AuthMethod=None") && text.contains("TargetPortalGroupTag=7"), "{text}");
        assert_eq!((header.status, header.sn.stat_sn), (0, stat_sn));
        if csg == 0 {
            stat_sn = stat_sn.next();
            (header, _) = world.request(1, Some(3), "InitialR2T=Yes");
            assert_eq!((header.status, header.sn.stat_sn), (0, stat_sn));
        }
        assert_eq!((header.nsg, header.tsih, world.proxy.is_logged_in()), (3, TSIH, true));
        world.use_digests(crate::negotiate::Digest::None, crate::negotiate::Digest::None);
        // The first StatSN after the login.
        let (ours, theirs) = (stat_sn.next().0.to_be_bytes(), world.target_stat_sn.to_be_bytes());
        let with = |opcode, at: usize, number: [u8; 4]| {
            let mut bytes = bhs_of(opcode, 3).to_bytes();
            bytes[at..at + 4].copy_from_slice(&number);
            Bhs::from_bytes(bytes).with_data_len(0)
        };
        let (up, down) = (&mut world.initiator, &mut world.target);
        up.writer.header(&with(Opcode::NOP_OUT, 28, ours), &mut up.transmit);
        down.writer.header(&with(Opcode::SCSI_RESPONSE, 24, theirs), &mut down.transmit);
        world.run();
        assert_eq!(world.at_target.pop().unwrap().0, with(Opcode::NOP_OUT, 28, theirs));
        assert_eq!(world.at_initiator.pop().unwrap().0, with(Opcode::SCSI_RESPONSE, 24, ours));
    }
}

#[test]
fn a_refusal_after_a_first_text_in_pieces_has_the_next_stat_sn() {
    let mut world = World::new("wrong horse");
    let text = zeroed(&alloc::format!("{NAMES} AuthMethod=None"));
    let (front, rest) = text.split_at(23);
    world.send_request(1, None, true, front);
    assert_eq!(world.response().0.sn.stat_sn, StatSn(0));
    world.send_request(1, Some(3), false, rest);
    let (header, _) = world.response();
    assert_eq!((header.status, header.sn.stat_sn), (Status::AUTHENTICATION_FAILURE.0, StatSn(1)));
}

#[test]
fn a_piece_of_the_first_text_tells_nothing_of_the_command_window() {
    let mut world = World::new(PASSWORD);
    world.send_request(0, None, true, b"Ini");
    let (header, _) = world.response();
    assert_eq!((header.sn.exp_cmd_sn, header.sn.max_cmd_sn), (CmdSn(77), CmdSn(77)));
    let mut world = World { tsih: TSIH, ..World::new(PASSWORD) };
    world.send_request(0, None, true, b"Ini");
    let (header, _) = world.response();
    assert!(header.sn.max_cmd_sn.next().before(header.sn.exp_cmd_sn), "the initiator ignores both");
}

#[test]
fn redirections_are_followed_and_the_initiator_learns_nothing_of_them() {
    let to = TargetAddress::parse(b"192.0.2.9:3261").unwrap().0;
    for permanently in [false, true] {
        let mut world = World::new(PASSWORD);
        world.site.instead = Some(TargetLookup::Moved { to: to.clone(), permanently });
        world.redirects = 2;
        let (header, text) = world.request(1, Some(3), NAMES);
        assert_eq!((header.status, header.nsg, header.tsih), (0, 3, TSIH));
        assert!(!text.contains("TargetAddress"), "{text}");
        assert_eq!(world.connects, [None, Some(to.clone()), Some(to.clone())]);
    }
    let mut world = World::new(PASSWORD);
    world.site.instead = Some(TargetLookup::Moved { to, permanently: false });
    world.redirects = usize::MAX;
    let (header, text) = world.request(1, Some(3), NAMES);
    assert_eq!((header.status, text.as_str()), (Status::SERVICE_UNAVAILABLE.0, ""));
    assert_eq!(world.closed, Some(ProxyError::MovedTooOften));
    assert_eq!(world.connects.len(), 9);
}

#[test]
fn no_login_response_leads_the_initiator_past_the_proxy() {
    let response = |status| ResponseHeader {
        transit: false,
        continues: false,
        csg: 0,
        nsg: 0,
        version_max: 0,
        version_active: 0,
        isid: ISID.0,
        tsih: 0,
        itt: Itt(5),
        sn: TargetSn::default(),
        status,
    };
    let address = zeroed("TargetAddress=192.0.2.9:3261");
    // What follows a redirection belongs to a connection that is closed.
    let mut world = World::new(PASSWORD);
    world.initiator.send(REQUEST.encode(), &zeroed(NAMES));
    let up = taken(&mut world.initiator.transmit, &world.pool);
    world.proxy.handle_bytes(Side::Local, &mut &up[..]);
    world.process_events();
    for _ in 0..2 {
        world.target.send(response(0x0101).encode(), &address);
    }
    let down = taken(&mut world.target.transmit, &world.pool);
    let mut rest = &down[..];
    world.proxy.handle_bytes(Side::Remote, &mut rest);
    assert_eq!(rest.len(), down.len() / 2);
    world.process_events();
    assert_eq!((world.connects.len(), world.closed), (2, None));
    // A target cannot move when the initiator has its first response.
    let mut world = World::new(PASSWORD);
    world.request(0, Some(1), NAMES);
    world.target.send(response(0x0101).encode(), &address);
    world.run();
    assert_eq!(world.response().0.status, Status::SERVICE_UNAVAILABLE.0);
    assert_eq!(world.closed, Some(ProxyError::MovedInLogin));
    // Nor after the login.
    let mut world = World::new(PASSWORD);
    world.request(1, Some(3), NAMES);
    world.target.writer.header(&response(0x0101).encode().with_data_len(32), &mut world.target.transmit);
    world.target.writer.copied(&[7; 32], &mut world.target.transmit);
    world.run();
    assert_eq!(world.closed, Some(ProxyError::LoginResponseAfterLogin));
    assert!(world.at_initiator.is_empty());
}

#[test]
fn an_initiator_may_skip_the_security_stage() {
    let mut world = World::new(PASSWORD);
    let (header, text) = world.request(1, Some(3), &alloc::format!("{NAMES} AuthMethod=None InitialR2T=Yes"));
    assert_eq!((header.status, header.transit, header.nsg, header.tsih), (0, true, 3, TSIH));
    assert!(text.contains("AuthMethod=None") && text.contains("TargetPortalGroupTag=7"), "{text}");
    assert!(world.outcome.unwrap().negotiated.session.initial_r2t);
}

#[test]
fn a_failed_login_has_the_status_of_its_reason() {
    let refused = |mut world: World, csg: u8, text: &str| {
        let (header, _) = world.request(csg, Some(3), text);
        (header.status, world.closed.unwrap())
    };
    let (status, why) = refused(World::new("wrong horse"), 1, NAMES);
    assert_eq!(status, Status::AUTHENTICATION_FAILURE.0);
    assert_eq!(
        why.to_string(),
        "the login to the target failed: the password login failed: unknown user or wrong password"
    );
    let other = NAMES.replace(":disk", ":other");
    let (status, why) = refused(World::new(PASSWORD), 1, &other);
    assert_eq!((status, why), (Status::NOT_FOUND.0, ProxyError::Refused(Status::NOT_FOUND)));
    for (text, wanted) in [
        ("InitiatorName=iqn.2026-11.com.example:host", LocalLoginError::NameMissing),
        ("TargetName=iqn.2026-11.com.example:disk", LocalLoginError::NameMissing),
        ("InitiatorName=\u{7} TargetName=iqn.2026-11.com.example:disk", LocalLoginError::Name),
        (&alloc::format!("{NAMES} AuthMethod=CHAP"), LocalLoginError::Authentication),
        (&alloc::format!("{NAMES} MaxBurstLength=65536"), LocalLoginError::Stage),
    ] {
        let (status, why) = refused(World::new(PASSWORD), 0, text);
        assert_eq!(why, ProxyError::LocalLogin(wanted), "{text}");
        assert_eq!(Some(status), why.login_status().map(|status| status.0));
    }
}

#[test]
fn a_changed_byte_on_either_side_closes_both_connections() {
    for (side, at, wanted) in [
        (Side::Remote, 10, ProxyError::Stream(Side::Remote, crate::framing::StreamError::HeaderDigest)),
        (Side::Remote, 70, ProxyError::DataDigest(Side::Remote)),
        (Side::Local, 10, ProxyError::Stream(Side::Local, crate::framing::StreamError::HeaderDigest)),
        (Side::Local, 60, ProxyError::DataDigest(Side::Local)),
    ] {
        let mut world = World::new(PASSWORD);
        world.request(1, Some(3), &alloc::format!("{NAMES} HeaderDigest=CRC32C DataDigest=CRC32C"));
        world.use_digests(crate::negotiate::Digest::Crc32c, crate::negotiate::Digest::Crc32c);
        let sender = if side == Side::Local { &mut world.initiator } else { &mut world.target };
        sender.writer.header(&bhs_of(Opcode::NOP_OUT, 1).with_data_len(64), &mut sender.transmit);
        sender.writer.copied(&[7; 64], &mut sender.transmit);
        let mut bytes = taken(&mut sender.transmit, &world.pool);
        bytes[at] ^= 1;
        world.proxy.handle_bytes(side, &mut &bytes[..]);
        world.run();
        assert_eq!(world.closed, Some(wanted));
        assert!(world.at_initiator.is_empty() && world.at_target.is_empty());
        assert!(!world.proxy.can_receive(Side::Local) && !world.proxy.can_receive(Side::Remote));
    }
}

#[test]
fn memory_for_unsent_bytes_is_bounded_and_no_pdu_is_lost() {
    let lens = [0, 1, 4, 4096, 4097, 16384, 16385, 65535, 65536];
    for (ahs_len, len) in lens.into_iter().flat_map(|len| [(0, len), (1020, len)]) {
        for side in [Side::Local, Side::Remote] {
            let mut world = World::new(PASSWORD);
            world.request(1, Some(3), &alloc::format!("{NAMES} HeaderDigest=CRC32C DataDigest=CRC32C"));
            world.use_digests(crate::negotiate::Digest::Crc32c, crate::negotiate::Digest::Crc32c);
            let (sender, opcode) = match side {
                Side::Local => (&mut world.initiator, Opcode::SCSI_COMMAND),
                Side::Remote => (&mut world.target, Opcode::SCSI_RESPONSE),
            };
            let header = bhs_of(opcode, 1).with_ahs_len(ahs_len).with_data_len(len);
            let (ahs, data, mut count) = (vec![1; ahs_len], vec![2; len], 0);
            while sender.transmit.len() < 3 * Transmit::BATCH_BYTES / 2 {
                sender.writer.long_header(&header, &ahs, &mut sender.transmit);
                sender.writer.copied(&data, &mut sender.transmit);
                count += 1;
            }
            let received = taken(&mut sender.transmit, &world.pool);
            let (mut rest, mut wire, mut stops) = (&received[..], vec![], 0);
            while !rest.is_empty() {
                world.proxy.handle_bytes(side, &mut rest);
                let is_full = !world.proxy.can_receive(side);
                assert!(is_full || rest.is_empty());
                stops += usize::from(is_full);
                let unsent = world.proxy.transmit(side.other());
                let (len, memory) = (unsent.len(), unsent.memory());
                assert!(len < Transmit::BATCH_BYTES + PDU_LEN_MAX, "{len} bytes wait");
                assert!(memory <= UNSENT_MEMORY_MAX, "{memory} bytes for PDUs of {ahs_len} and {len} bytes");
                // The batch is never empty while PDUs follow.
                let part = unsent.len() - if rest.is_empty() { 0 } else { unsent.len() / 3 };
                wire.extend_from_slice(&unsent.pieces().collect::<Vec<_>>().concat()[..part]);
                unsent.sent(part, &world.pool);
                unsent.compact();
            }
            assert!(stops > 0, "the batch was never full");
            let receiver = if side == Side::Local { &mut world.target } else { &mut world.initiator };
            let arrived = pdus(receiver, &world.pool, &wire);
            assert_eq!(arrived.len(), count);
            assert!(arrived.iter().all(|pdu| *pdu == (header, data.clone())));
        }
    }
}

#[test]
fn discovery_leads_back_to_the_proxy() {
    let mut world = World::new(PASSWORD);
    let names = "InitiatorName=iqn.2026-11.com.example:host SessionType=Discovery AuthMethod=None";
    world.request(0, Some(1), names);
    let (header, text) = world.request(1, Some(3), "HeaderDigest=None DataDigest=None");
    assert_eq!((header.status, header.nsg), (0, 3), "{text}");
    // Rewritten answers fit into what the initiator receives.
    assert_eq!(world.outcome.as_ref().unwrap().negotiated.connection.initiator_max_recv, 4096);
    let answer = zeroed("TargetName=iqn.2026-11.com.example:disk TargetAddress=192.0.2.7:3260,7");
    let response = TextResponse {
        is_final: true,
        continues: false,
        lun: 0,
        itt: Itt(9),
        ttt: Ttt::NONE,
        sn: TargetSn::default(),
    };
    let header = response.encode().with_data_len(answer.len());
    world.target.writer.header(&header, &mut world.target.transmit);
    world.target.writer.copied(&answer, &mut world.target.transmit);
    world.run();
    let (bhs, data) = world.at_initiator.remove(0);
    assert_eq!(TextResponse::decode(&bhs), Ok(response));
    assert_eq!(spaced(&data), "TargetName=iqn.2026-11.com.example:disk TargetAddress=127.0.0.1:3260,7");
}

/// Peers can send anything: the proxy ends the connection, and never panics.
#[test]
fn survives_any_bytes_from_either_side() {
    for seed in 0..300 {
        let mut rng = base::rng::Rng::from_seed(seed);
        let mut world = World::new(PASSWORD);
        if seed % 3 > 0 {
            world.request(1, Some(3), NAMES);
        }
        let side = if seed % 2 == 0 { Side::Local } else { Side::Remote };
        let mut bytes = vec![0; 4000];
        rng.fill(&mut bytes);
        // Most begin like a login or a text.
        if seed % 5 > 0 {
            bytes[..8].copy_from_slice(&[
                if side == Side::Local { 0x43 } else { 0x24 },
                0x87,
                0,
                0,
                0,
                0,
                0,
                200,
            ]);
        }
        world.proxy.handle_bytes(side, &mut &bytes[..]);
        while let Some(event) = world.proxy.poll_event() {
            if let ProxyEvent::Connect(_) = event {
                world.proxy.connect_failed();
            }
        }
    }
}
