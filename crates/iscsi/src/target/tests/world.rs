//! An engine whose connections end in raw initiators. The test acts as the layer above.

use alloc::collections::{BTreeMap, BTreeSet};
use alloc::string::ToString;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::fmt::Debug;
use core::net::SocketAddr;

use base::buffer::{Bytes, DataList, Pool};
use base::state_machine::{AcceptInfo, Action, ConnId, DisconnectReason, PortalId};
use base::time::{Duration, Instant};
use base::transmit::Transmit;
use security::opaque::PasswordRecord;
use transport::command::TaskAttribute;
use transport::target::{Command, Finish, TargetTransport, TaskRef};
use transport::task_management::TmfFunction;

use crate::chap::Secret;
use crate::digest::Crc32c;
use crate::login::directory::{
    AuthPolicy, ConnectionPath, Directory, DiscoveryAccess, Realm, SendTargetsEntry, SessionInfo,
    SessionQuery, TargetAccess, TargetAddress, TargetId, TargetLookup,
};
use crate::name::{IscsiName, PortalGroupTag, Tsih};
use crate::negotiate::KeyPolicy;
use crate::pdu::data_out::DataOut;
use crate::pdu::login_request::LoginRequest;
use crate::pdu::login_response::LoginResponse;
use crate::pdu::scsi_command::ScsiCommand;
use crate::pdu::tmf_request::TmfRequest;
use crate::pdu::{BHS_LEN, Bhs, Itt, Opcode, PduHeader, Ttt};
use crate::serial::{CmdSn, DataSn, StatSn};
use crate::target::contract::{Event, SessionUp};
use crate::target::engine::{Engine, Limits};

pub(super) const INITIATOR: &str = "iqn.2026-01.test:initiator";
pub(super) const TARGET: &str = "iqn.2026-01.test:target";
pub(super) const LUN: u64 = 1 << 48;

/// Returns the header of a Data-Out PDU for a write.
pub(super) fn data_out(write: &ScsiCommand, ttt: Ttt, sn: u32, offset: u32, is_final: bool) -> DataOut {
    DataOut {
        is_final,
        lun: LUN,
        itt: write.itt,
        ttt,
        exp_stat_sn: StatSn(0),
        data_sn: DataSn(sn),
        buffer_offset: offset,
    }
}

/// A directory of targets that every initiator may log in to.
pub(super) struct Names {
    pub(super) keys: KeyPolicy,
    pub(super) targets: Vec<IscsiName>,
    /// Whether every target has reached its session limit.
    pub(super) full: bool,
    /// The most sessions of each initiator with a target.
    pub(super) sessions_max: Option<u32>,
    /// The portal group of the portals.
    pub(super) portal_group: PortalGroupTag,
    /// The authentication that targets require.
    pub(super) auth: AuthPolicy,
    /// The record of the password of every user.
    pub(super) record: Option<Arc<PasswordRecord>>,
}

impl Directory for Names {
    fn certifies(&self, _: &ConnectionPath, _: &IscsiName) -> bool {
        true
    }

    fn find_target(&self, _: &ConnectionPath, _: &IscsiName, name: &IscsiName) -> TargetLookup {
        match self.targets.iter().position(|target| target == name) {
            Some(at) => {
                (if self.full { TargetLookup::AtSessionLimit } else { TargetLookup::Found })(TargetAccess {
                    sessions_max: self.sessions_max,
                    target: TargetId(u32::try_from(at).unwrap()),
                    portal_group: self.portal_group,
                    alias: None,
                    auth: self.auth.clone(),
                    keys: self.keys.clone(),
                })
            }
            None => TargetLookup::NotFound,
        }
    }

    fn discovery(&self, _: &ConnectionPath, _: &IscsiName) -> DiscoveryAccess {
        DiscoveryAccess::Granted {
            auth: AuthPolicy { allows_none: true, ..AuthPolicy::default() },
            keys: self.keys.clone(),
        }
    }

    fn is_tls(&self, portal: PortalId) -> bool {
        portal == TLS_PORTAL
    }

    fn chap_secret(&self, _: Realm, _: &IscsiName, _: &str) -> Option<Secret> {
        None
    }

    fn password_record(&self, _: Realm, _: &IscsiName, _: &str) -> Option<Arc<PasswordRecord>> {
        self.record.clone()
    }

    fn find_session(&self, _: &SessionQuery<'_>) -> Option<SessionInfo> {
        None
    }

    fn next_target(
        &self,
        via: &ConnectionPath,
        _: &IscsiName,
        after: Option<&IscsiName>,
    ) -> Option<SendTargetsEntry> {
        let name =
            self.targets.iter().find(|name| after.is_none_or(|after| name.as_str() > after.as_str()))?;
        let address = TargetAddress::Socket(via.local);
        Some(SendTargetsEntry { name: name.clone(), addresses: [(address, PortalGroupTag(1))].into() })
    }
}

/// The fixture of a test: the engine, its peers, and the events it reported.
pub(super) struct World {
    pub(super) engine: Engine,
    pub(super) names: Names,
    pub(super) now: Instant,
    pub(super) pool: Pool,
    pub(super) peers: BTreeMap<ConnId, Peer>,
    pub(super) events: Vec<Event>,
    pub(super) next_conn: u32,
    /// The portal that accepts connections from now on.
    pub(super) portal: PortalId,
    /// The name under which initiators log in.
    pub(super) initiator: &'static str,
    /// The text of the last login response.
    pub(super) login_text: Vec<u8>,
    /// Connections that accept no output at present.
    pub(super) stalled: BTreeSet<ConnId>,
}

/// The initiator's end of a connection.
#[derive(Debug, Default)]
pub(super) struct Peer {
    pub(super) header_digest: bool,
    pub(super) data_digest: bool,
    pub(super) cmd_sn: u32,
    pub(super) itt: u32,
    /// Received bytes that the test has not read.
    pub(super) inbox: Vec<u8>,
    /// Whether the driver was told to close or abort it, and which of them.
    pub(super) ended: Option<Action>,
}

/// A PDU that the initiator received.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Got {
    pub(super) bhs: Bhs,
    pub(super) data: Vec<u8>,
}

impl Got {
    pub(super) fn read<M: PduHeader>(&self) -> M {
        match M::decode(&self.bhs) {
            Ok(message) => message,
            Err(error) => panic!("{error}: {:?}", self.bhs),
        }
    }
}

/// The portal whose connections are inside TLS.
pub(super) const TLS_PORTAL: PortalId = PortalId(1);

/// The default key policy: level 0, one connection.
pub(super) fn keys() -> KeyPolicy {
    KeyPolicy { error_recovery_level: 0, max_connections: 1, ..KeyPolicy::default() }
}

impl World {
    pub(super) fn new() -> Self {
        Self::with(Limits::default(), keys())
    }

    pub(super) fn with(limits: Limits, keys: KeyPolicy) -> Self {
        let pool = Pool::new(64 << 20);
        Self {
            engine: Engine::new(limits, pool.clone()),
            names: Names {
                keys,
                targets: [IscsiName::parse(TARGET.as_bytes()).unwrap()].into(),
                full: false,
                sessions_max: None,
                portal_group: PortalGroupTag(1),
                auth: AuthPolicy { allows_none: true, ..AuthPolicy::default() },
                record: None,
            },
            now: Instant(1_000_000_000),
            pool,
            peers: BTreeMap::new(),
            events: Vec::new(),
            next_conn: 0,
            portal: PortalId(0),
            initiator: INITIATOR,
            login_text: Vec::new(),
            stalled: BTreeSet::new(),
        }
    }

    pub(super) fn connect(&mut self) -> ConnId {
        self.connect_from(([127, 0, 0, 1], 40000).into())
    }

    pub(super) fn connect_from(&mut self, peer: SocketAddr) -> ConnId {
        self.connect_between(peer, ([127, 0, 0, 1], 3260).into())
    }

    /// Connects to this address of the target.
    pub(super) fn connect_between(&mut self, peer: SocketAddr, local: SocketAddr) -> ConnId {
        let conn = ConnId(self.next_conn);
        self.next_conn += 1;
        let arrival = AcceptInfo { portal: self.portal, local, peer, entropy: [7; 32] };
        self.engine.connected(self.now, conn, &arrival);
        self.peers.insert(conn, Peer { cmd_sn: 100, itt: 1, ..Peer::default() });
        while let Some(action) = self.engine.poll_action() {
            assert_eq!(action, Action::Abort(conn));
            self.peers.get_mut(&conn).unwrap().ended = Some(action);
        }
        self.drain();
        conn
    }

    /// Logs in to the target with these operational keys. Returns the connection and the reported session.
    pub(super) fn login(&mut self, keys: &[&str]) -> (ConnId, SessionUp) {
        let conn = self.connect();
        let up = self.login_on(conn, 0, keys);
        (conn, up)
    }

    /// Logs in on an open connection as the initiator port with this ISID.
    pub(super) fn login_on(&mut self, conn: ConnId, isid: u8, keys: &[&str]) -> SessionUp {
        let target = ["TargetName=", TARGET].concat();
        let response = self.login_pdu(conn, isid, &[&["SessionType=Normal", &target], keys].concat());
        assert_eq!(response.status, 0, "login with {keys:?}");
        match self.events.pop() {
            Some(Event::SessionUp(up)) => *up,
            other => panic!("expected a session, got {other:?}"),
        }
    }

    /// Discards the events of the former session, and logs in on a new connection.
    pub(super) fn login_again(&mut self) -> (ConnId, SessionUp) {
        self.login_again_with(&[])
    }

    pub(super) fn login_again_with(&mut self, keys: &[&str]) -> (ConnId, SessionUp) {
        self.events.clear();
        self.login(keys)
    }

    pub(super) fn discover(&mut self) -> ConnId {
        let conn = self.connect();
        let response = self.login_pdu(conn, 0, &["SessionType=Discovery"]);
        assert_eq!(response.status, 0);
        conn
    }

    /// Adds a new connection to a session under this CID, with the command numbers of `like`. Also returns
    /// the login status.
    pub(super) fn join(&mut self, like: ConnId, tsih: Tsih, cid: u16, keys: &[&str]) -> (ConnId, u16) {
        let conn = self.connect();
        self.share_numbers(like, conn);
        let target = ["TargetName=", TARGET].concat();
        let keys = [&["SessionType=Normal", &target], keys].concat();
        let response = self.login_as(conn, (0, tsih.0, cid), &keys);
        (conn, response.status)
    }

    /// Opens a connection with the number of one that has ended.
    pub(super) fn reuse(&mut self, gone: ConnId) -> ConnId {
        let next = core::mem::replace(&mut self.next_conn, gone.0);
        let conn = self.connect();
        self.next_conn = next;
        conn
    }

    /// Returns the header of a command.
    pub(super) fn command_bhs(&mut self, conn: ConnId) -> Bhs {
        self.command(conn).encode()
    }

    /// Continues on one connection with the tags and command numbers of another.
    pub(super) fn share_numbers(&mut self, from: ConnId, to: ConnId) {
        let (itt, cmd_sn) = (self.peers[&from].itt, self.peers[&from].cmd_sn);
        let peer = self.peers.get_mut(&to).unwrap();
        (peer.itt, peer.cmd_sn) = (itt + 1000 * (to.0 + 1), cmd_sn);
    }

    /// Sends the single request of a login without security, and returns the response. Sets the digests to
    /// the negotiated ones.
    pub(super) fn login_pdu(&mut self, conn: ConnId, isid: u8, keys: &[&str]) -> LoginResponse {
        self.login_as(conn, (isid, 0, 0), keys)
    }

    pub(super) fn login_as(
        &mut self,
        conn: ConnId,
        (isid, tsih, cid): (u8, u16, u16),
        keys: &[&str],
    ) -> LoginResponse {
        let name = ["InitiatorName=", self.initiator].concat();
        let text: Vec<u8> = core::iter::once(&*name)
            .chain(keys.iter().copied())
            .flat_map(|key| [key, "\0"].concat().into_bytes())
            .collect();
        let request = self.login_request(conn, (isid, tsih, cid));
        self.send(conn, &request, &text);
        let got = self.expect_any(conn);
        self.login_text = got.data.clone();
        let peer = self.peers.get_mut(&conn).unwrap();
        let answer = alloc::string::String::from_utf8_lossy(&got.data);
        peer.header_digest = answer.contains("HeaderDigest=CRC32C");
        peer.data_digest = answer.contains("DataDigest=CRC32C");
        got.read()
    }

    /// Returns a Login Request that transits from the operational negotiation stage to full feature phase.
    pub(super) fn login_request(&mut self, conn: ConnId, (isid, tsih, cid): (u8, u16, u16)) -> LoginRequest {
        let (itt, cmd_sn) = self.numbers(conn);
        LoginRequest {
            transit: true,
            continues: false,
            csg: 1,
            nsg: 3,
            version_max: 0,
            version_min: 0,
            isid: [0x80, 0, 0, 0, 0, isid],
            tsih,
            itt,
            cid,
            cmd_sn,
            exp_stat_sn: StatSn(0),
        }
    }

    /// Returns the tag and the number of the next request; [`Self::count`] advances the number.
    pub(super) fn numbers(&mut self, conn: ConnId) -> (Itt, CmdSn) {
        let peer = self.peers.get_mut(&conn).unwrap();
        peer.itt += 1;
        (Itt(peer.itt), CmdSn(peer.cmd_sn))
    }

    pub(super) fn count(&mut self, conn: ConnId) {
        let peer = self.peers.get_mut(&conn).unwrap();
        peer.cmd_sn = peer.cmd_sn.wrapping_add(1);
    }

    /// Returns a command that neither reads nor writes, with the next tag and number.
    pub(super) fn command(&mut self, conn: ConnId) -> ScsiCommand {
        let (itt, cmd_sn) = self.numbers(conn);
        ScsiCommand {
            immediate: false,
            is_final: true,
            read: false,
            write: false,
            attribute: TaskAttribute::SIMPLE,
            priority: 0,
            lun: LUN,
            itt,
            expected_data_transfer_length: 0,
            cmd_sn,
            exp_stat_sn: StatSn(0),
            cdb: [0; 16],
        }
    }

    /// Returns an immediate request for a function on a logical unit, with the next tag and number.
    pub(super) fn manage(&mut self, conn: ConnId, function: TmfFunction) -> TmfRequest {
        let (itt, cmd_sn) = self.numbers(conn);
        TmfRequest {
            immediate: true,
            function,
            lun: LUN,
            itt,
            referenced_task_tag: Itt::NONE,
            cmd_sn,
            exp_stat_sn: StatSn(0),
            ref_cmd_sn: CmdSn(0),
            exp_data_sn: DataSn(0),
        }
    }

    /// Returns a read of `len` bytes.
    pub(super) fn read(&mut self, conn: ConnId, len: u32) -> ScsiCommand {
        ScsiCommand { read: true, expected_data_transfer_length: len, ..self.command(conn) }
    }

    /// Returns a write of `len` bytes without unsolicited Data-Out.
    pub(super) fn write(&mut self, conn: ConnId, len: u32) -> ScsiCommand {
        ScsiCommand { write: true, expected_data_transfer_length: len, ..self.command(conn) }
    }

    /// Sends a command with immediate data, and advances the command number.
    pub(super) fn issue(&mut self, conn: ConnId, command: &ScsiCommand, data: &[u8]) {
        if !command.immediate {
            self.count(conn);
        }
        self.send(conn, command, data);
    }

    /// Sends a command and returns it as it was delivered to the layer above.
    pub(super) fn start(&mut self, conn: ConnId, command: &ScsiCommand, data: &[u8]) -> Command {
        self.issue(conn, command, data);
        self.expect_command()
    }

    pub(super) fn expect_command(&mut self) -> Command {
        match self.next_event() {
            Some(Event::Command(command)) => command,
            other => panic!("expected a command, got {other:?}"),
        }
    }

    /// Checks that the next event reports tasks of the logical unit that ended without a response.
    pub(super) fn expect_cleared(&mut self) {
        match self.next_event() {
            Some(Event::TasksCleared { lun, .. }) => assert_eq!(lun, LUN),
            other => panic!("expected cleared tasks, got {other:?}"),
        }
    }

    pub(super) fn next_event(&mut self) -> Option<Event> {
        if self.events.is_empty() { None } else { Some(self.events.remove(0)) }
    }

    pub(super) fn send(&mut self, conn: ConnId, message: &impl PduHeader, data: &[u8]) {
        self.send_raw(conn, message.encode(), &[], data);
    }

    /// Sends a PDU with correct lengths and digests.
    pub(super) fn send_raw(&mut self, conn: ConnId, bhs: Bhs, ahs: &[u8], data: &[u8]) {
        let bytes = self.frame(conn, bhs, ahs, data);
        self.feed(conn, &bytes);
    }

    pub(super) fn frame(&self, conn: ConnId, bhs: Bhs, ahs: &[u8], data: &[u8]) -> Vec<u8> {
        let peer = &self.peers[&conn];
        let bhs = bhs.with_data_len(data.len()).with_ahs_len(ahs.len());
        let mut out = bhs.to_bytes().to_vec();
        out.extend_from_slice(ahs);
        if peer.header_digest {
            let crc = Crc32c::of(&out);
            out.extend_from_slice(&crc);
        }
        let start = out.len();
        out.extend_from_slice(data);
        out.resize(start + data.len().next_multiple_of(4), 0x5a);
        if peer.data_digest && !data.is_empty() {
            let crc = Crc32c::of(&out[start..]);
            out.extend_from_slice(&crc);
        }
        out
    }

    /// Passes bytes to the engine as the driver does after a receive.
    pub(super) fn feed(&mut self, conn: ConnId, bytes: &[u8]) {
        self.engine.received(self.now, conn, bytes, &self.names);
        self.drain();
    }

    /// Polls the engine's events and actions, and carries the actions out, until none is left.
    pub(super) fn drain(&mut self) {
        loop {
            while let Some(event) = self.engine.poll_event() {
                self.events.push(event);
            }
            let Some(action) = self.engine.poll_action() else { break };
            match action {
                Action::Transmit(conn) => self.transmit(conn),
                Action::Close(conn) => {
                    self.transmit(conn);
                    self.end(conn, action);
                }
                Action::Abort(conn) => self.end(conn, action),
            }
        }
    }

    pub(super) fn transmit(&mut self, conn: ConnId) {
        while !self.stalled.contains(&conn) {
            let mut out = Transmit::new();
            self.engine.transmit(self.now, conn, &mut out);
            let full = out.is_full();
            // The last PDU of a batch may exceed its bound.
            assert!(out.len() <= Transmit::BATCH_BYTES + (512 << 10), "a batch of {} bytes", out.len());
            let peer = self.peers.get_mut(&conn).unwrap();
            for piece in out.pieces() {
                peer.inbox.extend_from_slice(piece);
            }
            out.clear(&self.pool);
            if !full {
                break;
            }
        }
    }

    fn end(&mut self, conn: ConnId, action: Action) {
        let peer = self.peers.get_mut(&conn).unwrap();
        assert_eq!(peer.ended, None, "{conn:?} ends once");
        peer.ended = Some(action);
        self.engine.disconnected(self.now, conn, DisconnectReason::Closed);
    }

    /// Ends the connection from the peer's side.
    pub(super) fn hang_up(&mut self, conn: ConnId, why: DisconnectReason) {
        self.engine.disconnected(self.now, conn, why);
        self.drain();
    }

    /// Reads the next PDU from a connection, and checks its digests and padding.
    pub(super) fn receive(&mut self, conn: ConnId) -> Option<Got> {
        let peer = self.peers.get_mut(&conn).unwrap();
        let bhs = Bhs::from_bytes(*peer.inbox.first_chunk::<BHS_LEN>()?);
        // Login Responses carry no digest, and no Login Response follows the login.
        let is_login = bhs.opcode() == Opcode::LOGIN_RESPONSE;
        assert_eq!(bhs.ahs_len(), 0);
        let mut at = BHS_LEN;
        if peer.header_digest && !is_login {
            assert_eq!(peer.inbox[at..at + 4], Crc32c::of(&peer.inbox[..at]), "header digest of {bhs:?}");
            at += 4;
        }
        let len = usize::try_from(bhs.data_len()).unwrap();
        let end = at + len.next_multiple_of(4);
        let data = peer.inbox[at..at + len].to_vec();
        assert!(peer.inbox[at + len..end].iter().all(|byte| *byte == 0), "padding of {bhs:?}");
        let mut whole = end;
        if peer.data_digest && len > 0 && !is_login {
            assert_eq!(peer.inbox[end..end + 4], Crc32c::of(&peer.inbox[at..end]), "data digest of {bhs:?}");
            whole += 4;
        }
        peer.inbox.drain(..whole);
        Some(Got { bhs, data })
    }

    pub(super) fn expect_any(&mut self, conn: ConnId) -> Got {
        match self.receive(conn) {
            Some(got) => got,
            None => panic!("nothing came; the connection is {:?}", self.peers[&conn].ended),
        }
    }

    /// Reads the next PDU, which must be of this type.
    pub(super) fn expect<M: PduHeader + Debug>(&mut self, conn: ConnId) -> M {
        self.expect_any(conn).read()
    }

    /// Checks that no further PDU was sent on a connection and no further event was reported.
    pub(super) fn expect_silence(&mut self, conn: ConnId) {
        assert_eq!(self.receive(conn), None);
        assert!(self.events.is_empty(), "{:?}", self.events);
    }

    pub(super) fn data_in(&mut self, task: TaskRef, offset: u32, data: &[u8]) {
        self.engine.data_in(task, offset, DataList::from(Bytes::copied_from(data)));
        self.drain();
    }

    pub(super) fn finish(&mut self, task: TaskRef, finish: Finish<'_>) {
        self.engine.finish(task, finish);
        self.drain();
    }

    pub(super) fn fetch(&mut self, task: TaskRef, offset: u32, len: u32) {
        self.engine.fetch(task, offset, len);
        self.drain();
    }

    pub(super) fn expect_data(&mut self, task: TaskRef, offset: u32) -> Vec<u8> {
        match self.next_event() {
            Some(Event::DataOut { task: of, offset: at, data }) => {
                assert_eq!((of, at), (task, offset));
                let mut out = alloc::vec![0; data.len()];
                data.copy_to(0, &mut out);
                out
            }
            other => panic!("expected data, got {other:?}"),
        }
    }

    /// Advances the time, stopping at every deadline.
    pub(super) fn pass(&mut self, span: Duration) {
        let end = self.now.after(span);
        while let Some(at) = self.engine.poll_timeout().filter(|at| *at <= end) {
            self.now = self.now.max(at);
            self.engine.handle_timeout(self.now);
            self.drain();
        }
        self.now = end;
        self.engine.handle_timeout(self.now);
        self.drain();
    }

    pub(super) fn ended(&self, conn: ConnId) -> Option<Action> {
        self.peers[&conn].ended
    }
}

/// Returns bytes that depend on their offset.
pub(super) fn pattern(offset: u32, len: usize) -> Vec<u8> {
    (0..len)
        .map(|at| (u64::from(offset) + u64::try_from(at).unwrap()).wrapping_mul(0x9e37_79b9).to_be_bytes()[5])
        .collect()
}

/// Returns the `Key=value` pairs of a text.
pub(super) fn pairs(text: &[u8]) -> Vec<alloc::string::String> {
    alloc::string::String::from_utf8_lossy(text).split_terminator('\0').map(ToString::to_string).collect()
}
