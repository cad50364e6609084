//! Sequences of PDUs and raw bytes to a session that has logged in, with an owner that keeps asking for
//! things.
//!
//! The first byte says what kind of session; each operation is a PDU that is framed here (so that digests do
//! not stand in the way), raw bytes, something that the owner does, or time that passes.
#![no_main]

use std::collections::HashSet;
use std::net::SocketAddr;

use base::buffer::{Bytes, DataList, Pool};
use base::state_machine::{Action, ConnId, DisconnectReason};
use base::time::{Duration, Instant};
use base::transmit::Transmit;
use ground::{Operations, TARGET};
use iscsi::digest::Crc32c;
use iscsi::initiator::Session;
use iscsi::initiator::contract::{ConnectionDown, Event, Portal, Purpose, SessionPlan};
use iscsi::login::directory::TargetAddress;
use iscsi::name::Isid;
use iscsi::pdu::login_request::LoginRequest;
use iscsi::pdu::login_response::LoginResponse;
use iscsi::pdu::{BHS_LEN, Bhs, PduHeader, TargetSn};
use iscsi::serial::{CmdSn, StatSn};
use libfuzzer_sys::fuzz_target;
use transport::command::Cdb;
use transport::initiator::{InitiatorTransport as _, Request, TaskId, TmfParameters};
use transport::task_management::TmfFunction;

struct World {
    session: Session,
    pool: Pool,
    now: Instant,
    digests: bool,
    discovery: bool,
    /// The connection of the moment, and its bytes that nobody looked at.
    conn: ConnId,
    inbox: Vec<u8>,
    live: bool,
    open: HashSet<TaskId>,
    /// Why the last connection ended.
    why: Option<ConnectionDown>,
}

fuzz_target!(|input: &[u8]| {
    let Some((first, rest)) = input.split_first() else { return };
    let mut world = World::new(*first);
    for (which, bytes) in Operations::of(rest) {
        match which >> 6 {
            0 => world.send(bytes),
            1 => world.feed(bytes),
            2 => world.ask(which, bytes),
            _ => world.pass(Duration::from_millis(u64::from(which & 0x3f) * 200)),
        }
        if world.session.is_down() {
            break;
        }
    }
    world.end();
});

impl World {
    fn new(first: u8) -> Self {
        let pool = Pool::new(1 << 20);
        let discovery = first & 8 != 0;
        let purpose = if discovery { Purpose::Discovery } else { Purpose::Target(TARGET.parse().unwrap()) };
        let portal = SocketAddr::from(([127, 0, 0, 1], 3260));
        let portal = Portal { address: TargetAddress::Socket(portal) };
        let isid = Isid::random([1, 2, 3], 0);
        let name = "iqn.2026-11.com.example:host".parse().unwrap();
        let mut plan = SessionPlan::new(name, isid, purpose, vec![portal]);
        plan.limits.tasks_max = 16;
        plan.connections = 1 + u16::from(first & 16 != 0);
        plan.keys.error_recovery_level = (first & 3).min(2);
        let mut world = Self {
            session: Session::new(Instant::ORIGIN, plan, pool.clone()),
            pool,
            now: Instant::ORIGIN,
            digests: false,
            discovery,
            conn: ConnId(0),
            inbox: Vec::new(),
            live: false,
            open: HashSet::new(),
            why: None,
        };
        world.drain();
        world.log_in(first & 4 != 0);
        assert!(world.session.is_up(), "the login fails: {:?}", world.why);
        world
    }

    /// Answers the login of the connection of the moment.
    fn log_in(&mut self, digests: bool) {
        self.digests = false;
        let mut stat_sn = 1;
        while let Some((bhs, text)) = self.take() {
            let Ok(request) = LoginRequest::decode(&bhs) else { return };
            let answer =
                if request.csg == 0 { b"AuthMethod=None\0".to_vec() } else { Self::agree(&text, digests) };
            let response = LoginResponse {
                transit: request.transit,
                continues: false,
                csg: request.csg,
                nsg: request.nsg,
                version_max: 0,
                version_active: 0,
                isid: request.isid,
                tsih: 7,
                itt: request.itt,
                sn: TargetSn { stat_sn: StatSn(stat_sn), exp_cmd_sn: CmdSn(1), max_cmd_sn: CmdSn(8) },
                status: 0,
            };
            let response =
                if request.csg == 0 { LoginResponse { tsih: request.tsih, ..response } } else { response };
            stat_sn += 1;
            self.send(&[&response.encode().to_bytes()[..], &answer].concat());
        }
        self.digests = digests;
    }

    fn agree(text: &[u8], digests: bool) -> Vec<u8> {
        let mut answer = Vec::new();
        for pair in String::from_utf8_lossy(text).split_terminator('\0') {
            let Some((name, value)) = pair.split_once('=') else { continue };
            let value = match name {
                "InitiatorName" | "InitiatorAlias" | "SessionType" | "TargetName" => continue,
                "HeaderDigest" | "DataDigest" if digests => "CRC32C",
                "HeaderDigest" | "DataDigest" => "None",
                "MaxRecvDataSegmentLength" | "MaxBurstLength" | "FirstBurstLength" => "4096",
                _ => value.split(',').next().unwrap_or_default(),
            };
            answer.extend(format!("{name}={value}\0").bytes());
        }
        answer
    }

    /// Takes a PDU that the session sent, while it sends no digests.
    fn take(&mut self) -> Option<(Bhs, Vec<u8>)> {
        let bhs = Bhs::from_bytes(*self.inbox.first_chunk::<BHS_LEN>()?);
        let len = bhs.data_len() as usize;
        let data = self.inbox.get(BHS_LEN..BHS_LEN + len)?.to_vec();
        self.inbox.drain(..BHS_LEN + len.next_multiple_of(4));
        Some((bhs, data))
    }

    /// Sends a header and data as a PDU with right lengths and digests.
    fn send(&mut self, bytes: &[u8]) {
        let Some((header, data)) = bytes.split_first_chunk::<BHS_LEN>() else { return };
        let bhs = Bhs::from_bytes(*header).with_ahs_len(0).with_data_len(data.len());
        let mut out = bhs.to_bytes().to_vec();
        if self.digests {
            out.extend(Crc32c::of(&out));
        }
        let start = out.len();
        out.extend_from_slice(data);
        out.resize(start + data.len().next_multiple_of(4), 0);
        if self.digests && !data.is_empty() {
            let crc = Crc32c::of(&out[start..]);
            out.extend(crc);
        }
        self.feed(&out);
    }

    fn feed(&mut self, bytes: &[u8]) {
        if !self.live {
            return;
        }
        let mut rest = bytes;
        if let Some(mut loan) = self.session.take_rx_buffer(self.conn) {
            let (into, behind) = bytes.split_at(loan.len_max.min(bytes.len()));
            loan.buf.append(into);
            rest = behind;
            self.session.return_rx_buffer(self.now, self.conn, loan);
        }
        self.session.received(self.now, self.conn, rest);
        self.drain();
    }

    fn pass(&mut self, span: Duration) {
        let end = self.now.after(span);
        for _ in 0..200 {
            let Some(at) = self.session.poll_timeout().filter(|at| *at <= end) else { break };
            self.now = self.now.max(at);
            self.session.handle_timeout(self.now);
            self.drain();
        }
        self.now = end;
        if self.live && !self.session.is_up() {
            self.log_in(self.digests);
        }
    }

    /// The owner wants something.
    fn ask(&mut self, which: u8, bytes: &[u8]) {
        let len = u32::try_from(bytes.len()).unwrap_or(0);
        let cdb = if which & 32 != 0 { Cdb::new(&[1; 32]).unwrap() } else { Cdb::from_16([0; 16]) };
        let mut request = Request { replay: which & 16 != 0, ..Request::new(0, cdb) };
        match which & 7 {
            0 => request.data_in_len = len * 17,
            1 => request.data_out = DataList::from(Bytes::copied_from(bytes)),
            2 => {
                request.data_in_len = len;
                request.data_out = DataList::from(Bytes::copied_from(bytes));
            }
            3 => {
                let task = self.open.iter().min().copied();
                let function = TmfFunction(bytes.first().copied().unwrap_or(1));
                let _ = self.session.submit_tmf(self.now, TmfParameters { function, lun: 0, task });
                return self.drain();
            }
            4 => {
                let _ = self.session.send_targets(self.now, None);
                return self.drain();
            }
            5 => {
                self.session.set_connections(self.now, len.min(4) as u16);
                return self.drain();
            }
            6 => request.immediate = true,
            _ => {}
        }
        if let Ok(task) = self.session.submit(self.now, request) {
            assert!(!self.discovery && self.open.insert(task));
        }
        self.drain();
    }

    fn drain(&mut self) {
        loop {
            while let Some(event) = self.session.poll_event() {
                match event {
                    Event::Connect { slot, .. } if !self.live => {
                        self.conn = ConnId(self.conn.0 + 1);
                        self.live = true;
                        self.inbox.clear();
                        self.session.connected(self.now, self.conn, slot, [5; 32]);
                    }
                    Event::Connect { slot, .. } => self.session.connect_failed(self.now, slot),
                    Event::Done { task, outcome } => {
                        assert!(self.open.remove(&task), "a task ends once");
                        if let Some(data) = outcome.data_in {
                            assert!(outcome.end.is_good() || data.len() <= 65_535 * 17);
                            self.pool.recycle(data);
                        }
                    }
                    Event::ConnectionDown { why, .. } => self.why = Some(why),
                    _ => {}
                }
            }
            match self.session.poll_action() {
                None => break,
                Some(Action::Transmit(conn)) => {
                    let mut out = Transmit::new();
                    self.session.transmit(self.now, conn, &mut out);
                    if conn == self.conn {
                        out.pieces().for_each(|piece| self.inbox.extend_from_slice(piece));
                    }
                    out.clear(&self.pool);
                }
                Some(Action::Close(conn) | Action::Abort(conn)) => {
                    self.session.disconnected(self.now, conn, DisconnectReason::Closed);
                    self.live &= conn != self.conn;
                }
            }
        }
        // What nobody reads any more is not kept.
        if self.session.is_up() {
            self.inbox.clear();
        }
        assert_eq!(self.session.stats().bugs, 0);
    }

    fn end(&mut self) {
        self.session.close(self.now);
        self.drain();
        assert!(self.open.is_empty() && self.session.is_down());
        assert_eq!(self.session.poll_timeout(), None);
    }
}
