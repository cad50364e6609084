//! A proxy between a hostile initiator and a hostile target, during the logins or after them.
//!
//! The first byte says how the world begins. Each operation is a PDU that is framed here (so that neither
//! digests nor tags stand in the way), raw bytes, or something that the owner of the connections does. What
//! must hold: a target without the record of the password never completes a login; every PDU arrives
//! unchanged, in order and readable; no text leads the initiator past the proxy; memory is bounded; and
//! nothing is left over when both sides have received everything.
#![no_main]

use std::collections::VecDeque;
use std::net::SocketAddr;

use base::buffer::Pool;
use base::time::Instant;
use base::transmit::Transmit;
use ground::{Operations, Site, TARGET, arrival};
use iscsi::aead::{AeadDigest, Encryptor};
use iscsi::digest::Crc32c;
use iscsi::framing::{DataSink, Framing, FramingEvent, Receiver};
use iscsi::keys::Role;
use iscsi::login::target::TargetLogin;
use iscsi::login::{LoginOutcome, LoginRequest, LoginStep, Stage};
use iscsi::name::Tsih;
use iscsi::pdu::login_request::LoginRequest as RequestHeader;
use iscsi::pdu::login_response::LoginResponse as ResponseHeader;
use iscsi::pdu::{BHS_LEN, Bhs, Itt, Opcode, PduHeader, TargetSn};
use iscsi::proxy::{ProxyConnection, ProxyError, ProxyEvent, ProxyPlan, Side, UNSENT_MEMORY_MAX};
use iscsi::serial::{CmdSn, StatSn};
use libfuzzer_sys::fuzz_target;
use security::Level;
use security::opaque::Password;

/// The address of the proxy, as texts have it.
const OWN: &str = "127.0.0.1:3260";
const SEGMENT_MAX: usize = 64 << 10;
const TSIH: u16 = 7;

/// No peer sends more while the proxy has not taken so much.
const UNREAD_MAX: usize = 2 << 20;

struct World {
    proxy: ProxyConnection,
    pool: Pool,
    initiator: Peer,
    target: Peer,
    /// Whether the proxy waits for a connection to the target.
    connecting: bool,
    /// Whether nobody may complete the login.
    is_hostile: bool,
    over: bool,
}

/// One of the peers of the proxy.
struct Peer {
    receiver: Receiver,
    encryptor: Option<Encryptor>,
    digests: bool,
    /// What it sent and the proxy has not taken.
    unread: Vec<u8>,
    /// The PDUs that it sent and the other peer has not received. None once it sent raw bytes.
    sent: Option<VecDeque<Pdu>>,
}

#[derive(Debug, PartialEq)]
struct Pdu {
    header: Bhs,
    ahs: Vec<u8>,
    data: Vec<u8>,
}

fuzz_target!(|input: &[u8]| {
    let Some((first, rest)) = input.split_first() else { return };
    let mut world = World::new(*first);
    for (which, bytes) in Operations::of(rest) {
        match which >> 6 {
            0 => world.send(Side::Local, which, bytes),
            1 => world.send(Side::Remote, which, bytes),
            2 => world.send_raw(if which & 1 == 0 { Side::Local } else { Side::Remote }, bytes),
            _ => world.own(which),
        }
        if world.over {
            break;
        }
    }
    world.end();
});

impl World {
    fn new(first: u8) -> Self {
        let is_hostile = first & 1 == 0;
        let pool = Pool::new(1 << 20);
        let password: &[u8] = if is_hostile { b"in no input" } else { b"no input holds this password" };
        let (aead_digests, min_protection) = match first & 2 {
            0 => (&AeadDigest::ALL, Level::Encrypt),
            _ => (&AeadDigest::INTEGRITY_FIRST, Level::Integrity),
        };
        let plan = ProxyPlan {
            user: "user".into(),
            password: Password::new(password).unwrap(),
            aead_digests,
            min_protection,
        };
        let mut world = Self {
            proxy: ProxyConnection::new(plan, OWN.parse().unwrap(), pool.clone()),
            pool,
            initiator: Peer::new(),
            target: Peer::new(),
            connecting: false,
            is_hostile,
            over: false,
        };
        if !is_hostile {
            world.log_in(first);
        }
        world
    }

    /// Logs in through the proxy to a target that has the record of the password.
    fn log_in(&mut self, first: u8) {
        let kind =
            if first & 4 == 0 { format!("TargetName={TARGET}") } else { "SessionType=Discovery".into() };
        let digests = first & 8 != 0;
        let digest = if digests { "CRC32C" } else { "None" };
        let text = format!(
            "InitiatorName=iqn.2026-11.com.example:host\0{kind}\0HeaderDigest={digest}\0DataDigest={digest}\0\
             MaxRecvDataSegmentLength=65536\0"
        );
        let request = RequestHeader {
            transit: true,
            continues: false,
            csg: 1,
            nsg: 3,
            version_max: 0,
            version_min: 0,
            isid: [0x80, 0, 0, 0, 0, 1],
            tsih: 0,
            itt: Itt(0),
            cid: 0,
            cmd_sn: CmdSn(1),
            exp_stat_sn: StatSn(0),
        };
        self.initiator.unread = framed(&request.encode().with_data_len(text.len()), &[], text.as_bytes());
        let site = Site { guarded: true, strict: false };
        let mut login = TargetLogin::new(Instant::ORIGIN, &arrival());
        let mut outcome = None;
        while outcome.is_none() {
            self.pump();
            if self.connecting {
                self.connect();
            }
            let requests = self.taken(Side::Remote, usize::MAX);
            assert!(!requests.is_empty() && !self.over, "the login fails");
            for pdu in self.target.read(&self.pool, &requests) {
                let (response, done) = answer(&mut login, &site, &pdu);
                self.target.unread.extend(response);
                outcome = outcome.or(done);
            }
        }
        self.pump();
        assert!(self.proxy.is_logged_in(), "the login fails");
        self.taken(Side::Local, usize::MAX);
        let mut outcome = outcome.unwrap();
        let keys = outcome.record_keys.take().unwrap().derive(Role::Target, Tsih(TSIH));
        self.initiator.enter_full_feature(digests);
        self.target.enter_full_feature(false);
        self.target.receiver.set_decryptor(keys.decryptor);
        self.target.encryptor = Some(keys.encryptor);
    }

    fn peer(&mut self, side: Side) -> &mut Peer {
        match side {
            Side::Local => &mut self.initiator,
            Side::Remote => &mut self.target,
        }
    }

    /// A peer sends a PDU with right lengths, digests or tags: once or many times, with the data as it is or
    /// repeated.
    fn send(&mut self, side: Side, which: u8, bytes: &[u8]) {
        let Some((header, rest)) = bytes.split_first_chunk::<BHS_LEN>() else { return };
        let header = Bhs::from_bytes(*header);
        let ahs_len = header.ahs_len().min(rest.len() / 4 * 4);
        let (ahs, data) = rest.split_at(ahs_len);
        let data = if which & 1 == 0 { data.to_vec() } else { data.repeat(64) };
        let data = &data[..data.len().min(SEGMENT_MAX)];
        let header = header.with_ahs_len(ahs_len).with_data_len(data.len());
        for _ in 0..if which & 2 == 0 { 1 } else { 300 } {
            if self.peer(side).unread.len() > UNREAD_MAX {
                break;
            }
            self.peer(side).send(header, ahs, data);
        }
        self.pump();
    }

    fn send_raw(&mut self, side: Side, bytes: &[u8]) {
        let peer = self.peer(side);
        peer.sent = None;
        if peer.unread.len() <= UNREAD_MAX {
            peer.unread.extend_from_slice(bytes);
        }
        self.pump();
    }

    /// The owner does something.
    fn own(&mut self, which: u8) {
        let part = |len: usize| if which & 8 == 0 { len } else { len / 3 };
        match which & 7 {
            side @ (0 | 1) => {
                let side = if side == 0 { Side::Local } else { Side::Remote };
                let len = part(self.proxy.transmit(side).len());
                self.deliver(side, len);
            }
            2 if self.connecting => {
                self.connecting = false;
                self.proxy.connect_failed();
            }
            3 => self.proxy.disconnected(),
            _ if self.connecting => self.connect(),
            _ => {}
        }
        self.pump();
    }

    fn connect(&mut self) {
        self.connecting = false;
        self.target = Peer::new();
        self.proxy.connected(SocketAddr::from(([192, 0, 2, 7], 3260)), [4; 32]);
    }

    /// Passes to the proxy what it takes.
    fn pump(&mut self) {
        loop {
            let before = self.initiator.unread.len() + self.target.unread.len();
            for side in [Side::Local, Side::Remote] {
                let bytes = std::mem::take(&mut self.peer(side).unread);
                let mut rest = &bytes[..];
                self.proxy.handle_bytes(side, &mut rest);
                assert!(rest.is_empty() || !self.proxy.can_receive(side), "bytes are left");
                self.peer(side).unread = rest.to_vec();
                self.check();
                self.process_events();
            }
            if before == self.initiator.unread.len() + self.target.unread.len() {
                return;
            }
        }
    }

    fn check(&mut self) {
        for side in [Side::Local, Side::Remote] {
            let transmit = self.proxy.transmit(side);
            assert!(transmit.memory() <= UNSENT_MEMORY_MAX, "{} bytes of memory", transmit.memory());
            assert!(transmit.len() <= Transmit::BATCH_BYTES + SEGMENT_MAX + 2048);
        }
        assert!(!(self.is_hostile && self.proxy.is_logged_in()), "a target got in without the record");
    }

    fn process_events(&mut self) {
        while let Some(event) = self.proxy.poll_event() {
            match event {
                ProxyEvent::Connect(_) => {
                    assert!(!self.connecting && !self.over);
                    self.connecting = true;
                    self.target.unread.clear();
                }
                // The cost is within the bounds, but an input must not make the fuzzer slow.
                ProxyEvent::Stretch(job) if job.cost.memory_kib <= 64 && job.cost.passes <= 2 => {
                    self.proxy.stretched(job.run());
                }
                ProxyEvent::Stretch(_) => {}
                ProxyEvent::Close(why) => {
                    assert!(why != ProxyError::Bug && !self.over);
                    self.over = true;
                }
            }
        }
    }

    /// Removes what waits for one side, as its owner does who has sent it.
    fn taken(&mut self, side: Side, len: usize) -> Vec<u8> {
        let transmit = self.proxy.transmit(side);
        let mut bytes = transmit.pieces().collect::<Vec<_>>().concat();
        bytes.truncate(len);
        transmit.sent(bytes.len(), &self.pool);
        transmit.compact();
        bytes
    }

    /// Delivers bytes to one side.
    fn deliver(&mut self, side: Side, len: usize) {
        let bytes = self.taken(side, len);
        let pool = self.pool.clone();
        for pdu in self.peer(side).read(&pool, &bytes) {
            if side == Side::Local {
                leads_nowhere_else(&pdu);
            }
            let Some(sent) = &mut self.peer(side.other()).sent else { continue };
            let sent = sent.pop_front().expect("a PDU that nobody sent");
            // The proxy changes some keys.
            if !matches!(sent.header.opcode(), Opcode::TEXT_REQUEST | Opcode::TEXT_RESPONSE) {
                assert_eq!(pdu, sent);
            }
        }
    }

    fn end(&mut self) {
        loop {
            let before = (self.initiator.unread.len(), self.target.unread.len());
            for side in [Side::Local, Side::Remote] {
                self.deliver(side, usize::MAX);
            }
            self.pump();
            let is_empty = [Side::Local, Side::Remote].map(|side| self.proxy.transmit(side).is_empty());
            if is_empty == [true, true] && before == (self.initiator.unread.len(), self.target.unread.len()) {
                break;
            }
        }
        if self.over {
            assert!(!self.proxy.can_receive(Side::Local) && !self.proxy.can_receive(Side::Remote));
        } else if self.proxy.is_logged_in() {
            for peer in [&self.initiator, &self.target] {
                assert!(peer.unread.is_empty(), "the proxy stopped");
                assert!(peer.sent.as_ref().is_none_or(VecDeque::is_empty), "a PDU is lost");
            }
        }
    }
}

impl Peer {
    fn new() -> Self {
        Self {
            receiver: Receiver::new(framing(false, 8192)),
            encryptor: None,
            digests: false,
            unread: Vec::new(),
            sent: None,
        }
    }

    fn enter_full_feature(&mut self, digests: bool) {
        self.digests = digests;
        self.receiver.set_framing(framing(digests, 64 << 10));
        self.sent = Some(VecDeque::new());
    }

    fn send(&mut self, header: Bhs, ahs: &[u8], data: &[u8]) {
        let bytes = match &mut self.encryptor {
            None if self.digests => with_digests(&header, ahs, data),
            None => framed(&header, ahs, data),
            Some(encryptor) => sealed(encryptor, &header, ahs, data),
        };
        self.unread.extend(bytes);
        if let Some(sent) = &mut self.sent {
            sent.push_back(Pdu { header, ahs: ahs.to_vec(), data: data.to_vec() });
        }
    }

    /// Reads what the proxy sent. All of it must be right.
    fn read(&mut self, pool: &Pool, mut bytes: &[u8]) -> Vec<Pdu> {
        let mut pdus = Vec::new();
        loop {
            match self.receiver.advance(&mut bytes).expect("the proxy sent what is no PDU") {
                FramingEvent::NeedMoreBytes => return pdus,
                FramingEvent::Header(header) => {
                    let len = header.data_len().next_multiple_of(4) as usize;
                    self.receiver.set_sink(DataSink::Append(pool.take(len)));
                }
                FramingEvent::Pdu(pdu) => {
                    assert!(pdu.digest_ok, "the proxy made a wrong digest");
                    let DataSink::Append(buf) = pdu.sink else { panic!() };
                    let (ahs, data) = (self.receiver.ahs().to_vec(), buf.filled().to_vec());
                    pdus.push(Pdu { header: pdu.bhs, ahs, data });
                }
                FramingEvent::Damaged => panic!("the proxy made a wrong digest"),
            }
        }
    }
}

/// Answers a Login Request at the target.
fn answer(login: &mut TargetLogin, site: &Site, pdu: &Pdu) -> (Vec<u8>, Option<Box<LoginOutcome>>) {
    let header = RequestHeader::decode(&pdu.header).unwrap();
    let request = LoginRequest {
        transit: header.transit,
        cont: header.continues,
        csg: Stage(header.csg),
        nsg: Stage(header.nsg),
        version_max: header.version_max,
        version_min: header.version_min,
        isid: header.isid,
        tsih: header.tsih,
        itt: header.itt.0,
        cid: header.cid,
        cmd_sn: header.cmd_sn.0,
        exp_stat_sn: header.exp_stat_sn.0,
        data: &pdu.data,
    };
    let (mut response, outcome) = match login.handle(Instant::ORIGIN, &request, site) {
        LoginStep::Continue(response) | LoginStep::PermitGuess { response, .. } => (response, None),
        LoginStep::Complete { response, outcome } => (response, Some(outcome)),
        LoginStep::Fail { why, .. } | LoginStep::Drop(why) => panic!("{why}"),
    };
    if outcome.is_some() {
        response.tsih = TSIH;
    }
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
        sn: TargetSn { stat_sn: header.exp_stat_sn, exp_cmd_sn: CmdSn(1), max_cmd_sn: CmdSn(8) },
        status: response.status().0,
    };
    (framed(&header.encode().with_data_len(response.data.len()), &[], &response.data), outcome)
}

/// Checks that a PDU sends the initiator to no address but that of the proxy.
fn leads_nowhere_else(pdu: &Pdu) {
    if let Ok(response) = ResponseHeader::decode(&pdu.header) {
        assert!(response.status >> 8 != 1, "the proxy passed a redirection on");
    }
    if pdu.header.opcode() == Opcode::TEXT_RESPONSE {
        for pair in pdu.data.split(|byte| *byte == 0) {
            let address = pair.strip_prefix(b"TargetAddress=");
            assert!(address.is_none_or(|address| address.starts_with(OWN.as_bytes())));
        }
    }
}

fn framing(digests: bool, data_len_max: u32) -> Framing {
    Framing { header_digest: digests, data_digest: digests, data_len_max, resync: false }
}

fn framed(header: &Bhs, ahs: &[u8], data: &[u8]) -> Vec<u8> {
    let mut bytes = [header.bytes(), ahs, data].concat();
    bytes.resize(bytes.len().next_multiple_of(4), 0);
    bytes
}

fn with_digests(header: &Bhs, ahs: &[u8], data: &[u8]) -> Vec<u8> {
    let mut bytes = [header.bytes(), ahs].concat();
    bytes.extend(Crc32c::of(&bytes));
    let start = bytes.len();
    bytes.extend_from_slice(data);
    bytes.resize(bytes.len().next_multiple_of(4), 0);
    if !data.is_empty() {
        let crc = Crc32c::of(&bytes[start..]);
        bytes.extend(crc);
    }
    bytes
}

fn sealed(encryptor: &mut Encryptor, header: &Bhs, ahs: &[u8], data: &[u8]) -> Vec<u8> {
    let mut bytes = [header.bytes(), ahs].concat();
    let tag = encryptor.seal_header(&mut bytes).expect("a header that fits");
    bytes.extend(tag);
    if !data.is_empty() {
        let mut segment = data.to_vec();
        segment.resize(data.len().next_multiple_of(4), 0);
        let tag = encryptor.seal_data(&mut segment).expect("a segment that fits");
        bytes.extend(segment);
        bytes.extend(tag);
    }
    bytes
}
