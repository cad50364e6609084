//! A session whose target the test scripts, PDU by PDU.

use alloc::collections::BTreeMap;
use alloc::vec::Vec;
use core::net::SocketAddr;

use base::buffer::Pool;
use base::state_machine::{Action, ConnId, DisconnectReason};
use base::time::{Duration, Instant};
use base::transmit::Transmit;
use transport::initiator::{InitiatorTransport as _, Outcome, Request, Residual, ServiceResponse, TaskId};

use super::pair::Setup;
use crate::digest::Crc32c;
use crate::initiator::Session;
use crate::initiator::contract::*;
use crate::pdu::data_in::{DataIn, DataInStatus};
use crate::pdu::login_request::LoginRequest;
use crate::pdu::login_response::LoginResponse;
use crate::pdu::r2t::R2t;
use crate::pdu::scsi_command::ScsiCommand;
use crate::pdu::scsi_response::ScsiResponse;
use crate::pdu::{BHS_LEN, Bhs, Itt, Opcode, PduHeader, TargetSn, Ttt};
use crate::serial::{CmdSn, DataSn, R2tSn, StatSn};

/// A session, and the target's end of its connections.
pub(super) struct ScriptedTarget {
    pub(super) session: Session,
    pub(super) now: Instant,
    pool: Pool,
    pub(super) ends: BTreeMap<ConnId, TargetEnd>,
    next_conn: u32,
    pub(super) events: Vec<Event>,
    /// The command window that every PDU announces.
    pub(super) exp_cmd_sn: u32,
    pub(super) window: u32,
    /// The slots for which connections were requested and not provided, if the test does not provide them
    /// immediately.
    pub(super) manual: bool,
    pub(super) wanted: Vec<Slot>,
    /// The addresses of host names, and the addresses to which connections were requested.
    pub(super) hosts: BTreeMap<&'static str, Vec<SocketAddr>>,
    pub(super) dialed: Vec<SocketAddr>,
}

/// The target's end of a connection.
#[derive(Default)]
pub(super) struct TargetEnd {
    inbox: Vec<u8>,
    pub(super) stat_sn: u32,
    pub(super) header_digest: bool,
    pub(super) data_digest: bool,
    pub(super) ended: Option<Action>,
}

/// A PDU that the session sent.
#[derive(Clone, Debug)]
pub(super) struct Sent {
    pub(super) bhs: Bhs,
    pub(super) data: Vec<u8>,
}

impl Sent {
    pub(super) fn read<M: PduHeader>(&self) -> M {
        M::decode(&self.bhs).unwrap_or_else(|error| panic!("{error}: {:?}", self.bhs))
    }
}

/// Answers every offer with the value in `keys` if there is one, else with the offered value, except for
/// digests.
fn agree(text: &[u8], keys: &[&str]) -> Vec<alloc::string::String> {
    let text = alloc::string::String::from_utf8_lossy(text);
    let mut answers = Vec::new();
    for (name, value) in text.split_terminator('\0').filter_map(|pair| pair.split_once('=')) {
        let own = keys.iter().find(|key| key.split_once('=').is_some_and(|(key, _)| key == name));
        let value = match name {
            "InitiatorName" | "InitiatorAlias" | "SessionType" | "TargetName" => continue,
            "HeaderDigest" | "DataDigest" => "None",
            _ => value.split(',').next().unwrap_or_default(),
        };
        answers.push(own.map_or_else(|| alloc::format!("{name}={value}"), |own| (*own).into()));
    }
    answers
}

impl ScriptedTarget {
    pub(super) fn new(setup: Setup) -> Self {
        let mut raw = Self::idle(setup);
        raw.drain();
        raw
    }

    /// Returns a session whose first event was not handled yet.
    pub(super) fn idle(setup: Setup) -> Self {
        let pool = Pool::new(16 << 20);
        let now = Instant(1_000_000_000);
        Self {
            session: Session::new(now, setup.plan, pool.clone()),
            now,
            pool,
            ends: BTreeMap::new(),
            next_conn: 0,
            events: Vec::new(),
            exp_cmd_sn: 1,
            window: 64,
            manual: false,
            wanted: Vec::new(),
            hosts: BTreeMap::new(),
            dialed: Vec::new(),
        }
    }

    /// Returns a session that is up with one connection, after a login that negotiated these keys.
    pub(super) fn up(setup: Setup, keys: &[&str]) -> (Self, ConnId) {
        let mut raw = Self::new(setup);
        let conn = ConnId(0);
        raw.log_in(conn, 7, keys);
        assert!(raw.session.is_up(), "{:?}", raw.events);
        raw.events.clear();
        (raw, conn)
    }

    pub(super) fn level(level: u8, keys: &[&str]) -> (Self, ConnId) {
        let mut setup = Setup::default();
        setup.plan.keys.error_recovery_level = level;
        let level = alloc::format!("ErrorRecoveryLevel={level}");
        let keys: Vec<&str> = keys.iter().copied().chain([&*level]).collect();
        Self::up(setup, &keys)
    }

    /// Answers the login on a connection.
    pub(super) fn log_in(&mut self, conn: ConnId, tsih: u16, keys: &[&str]) -> LoginRequest {
        let first = self.expect_any(conn);
        let mut request: LoginRequest = first.read();
        let mut text = first.data;
        if request.csg == 0 {
            self.login_response(
                conn,
                &request,
                0,
                request.tsih,
                &["AuthMethod=None", "TargetPortalGroupTag=1"],
            );
            let second = self.expect_any(conn);
            request = second.read();
            text = second.data;
        }
        let answers = agree(&text, keys);
        let answers: Vec<&str> = answers.iter().map(|answer| &**answer).collect();
        self.login_response(conn, &request, 0, tsih, &answers);
        let end = self.ends.get_mut(&conn).unwrap();
        end.header_digest = keys.contains(&"HeaderDigest=CRC32C");
        end.data_digest = keys.contains(&"DataDigest=CRC32C");
        request
    }

    pub(super) fn login_response(
        &mut self,
        conn: ConnId,
        request: &LoginRequest,
        status: u16,
        tsih: u16,
        keys: &[&str],
    ) {
        let sn = self.next_sn(conn);
        let response = LoginResponse {
            transit: status == 0 && request.transit,
            continues: false,
            csg: request.csg,
            nsg: if status == 0 && request.transit { request.nsg } else { 0 },
            version_max: 0,
            version_active: 0,
            isid: request.isid,
            tsih,
            itt: request.itt,
            sn,
            status,
        };
        let text: Vec<u8> = keys.iter().flat_map(|key| key.bytes().chain([0])).collect();
        self.send(conn, &response, &text);
    }

    /// Returns the sequence numbers of the next PDU that carries a status, and uses the StatSN up.
    pub(super) fn next_sn(&mut self, conn: ConnId) -> TargetSn {
        let sn = self.sn(conn);
        self.ends.get_mut(&conn).unwrap().stat_sn += 1;
        sn
    }

    pub(super) fn sn(&self, conn: ConnId) -> TargetSn {
        let exp_cmd_sn = CmdSn(self.exp_cmd_sn);
        TargetSn {
            stat_sn: StatSn(self.ends[&conn].stat_sn),
            exp_cmd_sn,
            max_cmd_sn: exp_cmd_sn.plus(self.window).minus(1),
        }
    }

    pub(super) fn send(&mut self, conn: ConnId, message: &impl PduHeader, data: &[u8]) {
        let bytes = self.frame(conn, message.encode(), data);
        self.feed(conn, &bytes);
    }

    pub(super) fn frame(&self, conn: ConnId, bhs: Bhs, data: &[u8]) -> Vec<u8> {
        let end = &self.ends[&conn];
        let mut out = bhs.with_data_len(data.len()).to_bytes().to_vec();
        if end.header_digest {
            let crc = Crc32c::of(&out);
            out.extend_from_slice(&crc);
        }
        let start = out.len();
        out.extend_from_slice(data);
        out.resize(start + data.len().next_multiple_of(4), 0);
        if end.data_digest && !data.is_empty() {
            let crc = Crc32c::of(&out[start..]);
            out.extend_from_slice(&crc);
        }
        out
    }

    pub(super) fn feed(&mut self, conn: ConnId, bytes: &[u8]) {
        self.session.received(self.now, conn, bytes);
        self.drain();
    }

    pub(super) fn drain(&mut self) {
        loop {
            while let Some(event) = self.session.poll_event() {
                if let Event::Resolve { slot, name, .. } = event {
                    self.session.host_resolved(self.now, slot, self.hosts[&*name].clone());
                } else if let Event::Connect { slot, to, .. } = event {
                    self.dialed.push(to);
                    self.wanted.push(slot);
                    if !self.manual {
                        self.connect();
                    }
                } else {
                    self.events.push(event);
                }
            }
            let Some(action) = self.session.poll_action() else { return };
            match action {
                Action::Transmit(conn) => self.transmit(conn),
                Action::Close(conn) | Action::Abort(conn) => {
                    self.transmit(conn);
                    let end = self.ends.get_mut(&conn).unwrap();
                    assert_eq!(end.ended, None, "{conn:?} ends once");
                    end.ended = Some(action);
                    self.session.disconnected(self.now, conn, DisconnectReason::Closed);
                }
            }
        }
    }

    /// Provides the first connection that the session requested.
    pub(super) fn connect(&mut self) -> ConnId {
        let slot = self.wanted.remove(0);
        let conn = ConnId(self.next_conn);
        self.next_conn += 1;
        self.ends.insert(conn, TargetEnd { stat_sn: 1, ..TargetEnd::default() });
        self.session.connected(self.now, conn, slot, [9; 32]);
        conn
    }

    fn transmit(&mut self, conn: ConnId) {
        loop {
            let mut out = Transmit::new();
            self.session.transmit(self.now, conn, &mut out);
            let full = out.is_full();
            let end = self.ends.get_mut(&conn).unwrap();
            end.inbox.extend(out.pieces().flatten());
            out.clear(&self.pool);
            if !full {
                return;
            }
        }
    }

    pub(super) fn cut(&mut self, conn: ConnId) {
        self.ends.get_mut(&conn).unwrap().ended = Some(Action::Abort(conn));
        self.session.disconnected(self.now, conn, DisconnectReason::Failed);
        self.drain();
    }

    pub(super) fn pass(&mut self, span: Duration) {
        let end = self.now.after(span);
        while let Some(at) = self.session.poll_timeout().filter(|at| *at <= end) {
            self.now = self.now.max(at);
            self.session.handle_timeout(self.now);
            self.drain();
        }
        self.now = end;
    }

    /// Removes the next PDU that the session sent, and checks its digests.
    pub(super) fn receive(&mut self, conn: ConnId) -> Option<Sent> {
        let end = self.ends.get_mut(&conn).unwrap();
        let bhs = Bhs::from_bytes(*end.inbox.first_chunk::<BHS_LEN>()?);
        let plain = bhs.opcode() == Opcode::LOGIN_REQUEST;
        let mut at = BHS_LEN + bhs.ahs_len();
        if end.header_digest && !plain {
            assert_eq!(end.inbox[at..at + 4], Crc32c::of(&end.inbox[..at]), "header digest of {bhs:?}");
            at += 4;
        }
        let len = usize::try_from(bhs.data_len()).unwrap();
        let behind = at + len.next_multiple_of(4);
        let data = end.inbox[at..at + len].to_vec();
        let mut whole = behind;
        if end.data_digest && len > 0 && !plain {
            assert_eq!(
                end.inbox[behind..behind + 4],
                Crc32c::of(&end.inbox[at..behind]),
                "data digest of {bhs:?}"
            );
            whole += 4;
        }
        end.inbox.drain(..whole);
        Some(Sent { bhs, data })
    }

    pub(super) fn expect_any(&mut self, conn: ConnId) -> Sent {
        match self.receive(conn) {
            Some(sent) => sent,
            None => panic!("nothing was sent; {:?}", self.events),
        }
    }

    pub(super) fn expect<M: PduHeader>(&mut self, conn: ConnId) -> M {
        self.expect_any(conn).read()
    }

    /// Submits a request and receives its command.
    pub(super) fn start(&mut self, conn: ConnId, request: Request) -> (TaskId, ScsiCommand) {
        let task = self.session.submit(self.now, request).unwrap();
        self.drain();
        let command: ScsiCommand = self.expect(conn);
        self.exp_cmd_sn = command.cmd_sn.next().0;
        (task, command)
    }

    pub(super) fn outcome(&mut self, task: TaskId) -> Outcome {
        let at =
            self.events.iter().position(|event| matches!(event, Event::Done { task: of, .. } if *of == task));
        match at.map(|at| self.events.remove(at)) {
            Some(Event::Done { outcome, .. }) => outcome,
            _ => panic!("{task:?} has not ended: {:?}", self.events),
        }
    }

    /// Returns a Data-In for a command.
    pub(super) fn data_in(&self, conn: ConnId, itt: Itt, data_sn: u32, offset: u32) -> DataIn {
        DataIn {
            is_final: true,
            acknowledge: false,
            status: None,
            lun: 0,
            itt,
            ttt: Ttt::NONE,
            sn: TargetSn { stat_sn: StatSn(0), ..self.sn(conn) },
            data_sn: DataSn(data_sn),
            buffer_offset: offset,
        }
    }

    pub(super) fn with_status(&mut self, conn: ConnId, pdu: DataIn) -> DataIn {
        let sn = self.next_sn(conn);
        DataIn { sn, status: Some(DataInStatus { status: 0, residual: Residual::None }), ..pdu }
    }

    pub(super) fn r2t(&self, conn: ConnId, itt: Itt, r2t_sn: u32, offset: u32, len: u32) -> R2t {
        R2t {
            lun: super::pair::LUN,
            itt,
            ttt: Ttt(0x100 + r2t_sn),
            sn: self.sn(conn),
            r2t_sn: R2tSn(r2t_sn),
            buffer_offset: offset,
            desired_data_transfer_length: len,
        }
    }

    pub(super) fn response(&mut self, conn: ConnId, itt: Itt, exp_data_sn: u32) -> ScsiResponse {
        ScsiResponse {
            response: ServiceResponse::COMPLETED,
            status: 0,
            status_qualifier: 0,
            itt,
            snack_tag: 0,
            sn: self.next_sn(conn),
            exp_data_sn: DataSn(exp_data_sn),
            bidirectional_read_residual: Residual::None,
            residual: Residual::None,
        }
    }

    pub(super) fn ended(&self, conn: ConnId) -> Option<Action> {
        self.ends[&conn].ended
    }

    /// Returns the reason for which a connection ended.
    pub(super) fn why(&self) -> Option<ConnectionDown> {
        self.events.iter().find_map(|event| match event {
            Event::ConnectionDown { why, .. } => Some(*why),
            _ => None,
        })
    }
}

/// Returns a session at level 2 with this many connections.
pub(super) fn level_2(connections: u16) -> (ScriptedTarget, Vec<ConnId>) {
    let mut setup = Setup::default();
    setup.plan.connections = connections;
    setup.plan.keys.max_connections = 4;
    let (mut raw, first) =
        ScriptedTarget::up(setup, &["MaxConnections=4", "ErrorRecoveryLevel=2", "DefaultTime2Wait=1"]);
    let mut conns = Vec::from([first]);
    for at in 1..u32::from(connections) {
        let request = raw.log_in(ConnId(at), 7, &[]);
        assert_eq!((request.tsih, u32::from(request.cid)), (7, at));
        conns.push(ConnId(at));
    }
    raw.events.clear();
    (raw, conns)
}
