//! A complete target in memory and an initiator that sends raw PDUs: the helpers of this crate's tests.
//!
//! The initiator is deliberately simple: one connection, and one request at a time unless a test sends more
//! itself. It uses only the PDU codec, so it cannot share a mistake of the session logic.

use std::collections::VecDeque;
use std::rc::Rc;

use base::buffer::Pool;
use base::state_machine::{AcceptInfo, Action, ConnId, DisconnectReason, PortalId, StreamMachine as _};
use base::time::{Duration, Instant};
use base::transmit::Transmit;
use base::units::BlockSize;
use device::contract::{Access, Identity, InquiryOverrides, RelativePort, TargetPort, UnitConfig};
use device::unit::LogicalUnit;
use iscsi::login::directory::{AuthPolicy, TargetId};
use iscsi::name::PortalGroupTag;
use iscsi::negotiate::KeyPolicy;
use iscsi::pdu::data_in::DataIn;
use iscsi::pdu::data_out::DataOut;
use iscsi::pdu::login_request::LoginRequest;
use iscsi::pdu::login_response::LoginResponse;
use iscsi::pdu::r2t::R2t;
use iscsi::pdu::scsi_command::ScsiCommand;
use iscsi::pdu::scsi_response::ScsiResponse;
use iscsi::pdu::{BHS_LEN, Bhs, Itt, Opcode, PduHeader, Ttt};
use iscsi::serial::{CmdSn, DataSn, StatSn};
use iscsi::target::engine::Limits;
use shard::config::{
    DiscoveryConfig, HyperScsiConfig, InitiatorEntry, LunEntry, Portal, ShardConfig, TargetConfig,
};
use shard::shard::Shard;
use store::Store;
use store::ram::Ram;
use target::units::UnitId;
use transport::command::TaskAttribute;

pub(crate) const TARGET: &str = "iqn.2026-11.org.targe:disk";
pub(crate) const BLOCK: usize = 512;

pub(crate) fn ram() -> Box<dyn Store> {
    Box::new(Ram::new(8 << 20))
}

/// A target whose drivers are played by the test.
pub(crate) struct World {
    pub(crate) shard: Shard,
    pub(crate) pool: Pool,
    pub(crate) now: Instant,
    /// The portal that accepts connections from now on.
    pub(crate) portal: PortalId,
    next_conn: u32,
    /// The bytes that the target sent and the test has not read yet, by connection, and whether the
    /// connection is open.
    wires: Vec<(ConnId, VecDeque<u8>, bool)>,
    /// Numbers of closed connections, which may be used again.
    free: Vec<ConnId>,
    /// Connections whose peer reads nothing, so that their driver cannot send.
    pub(crate) deaf: Vec<ConnId>,
}

pub(crate) fn unit_config(number: u32) -> UnitConfig {
    UnitConfig {
        device: device::contract::DeviceKind::Disk,
        identity: Identity {
            vendor: *b"TARGE   ",
            product: *b"VIRTUAL DISK    ",
            revision: *b"0001",
            serial: format!("serial{number}"),
            naa: [&[0x60, 0x12, 0x34, 0x56][..], &[0; 11], &[u8::try_from(number).unwrap()]].concat(),
        },
        block_size: BlockSize::B512,
        physical_exponent: 3,
        read_only: false,
        removable: false,
        long_cdbs: false,
        atomic_blocks: 1,
        thin: true,
        write_cache: true,
        overrides: InquiryOverrides::default(),
        tasks: device::contract::TaskRules::default(),
        task_set_max: 128,
        io_timeout: None,
        limit: device::rate_limit::RateLimit::NONE,
        transfer_blocks_max: 32768,
        ports: Rc::new([TargetPort {
            relative: RelativePort(1),
            group: 1,
            port_name: format!("{TARGET},t,0x0001"),
            device_name: TARGET.into(),
            protocol: 5,
        }]),
    }
}

pub(crate) fn keys() -> KeyPolicy {
    KeyPolicy { error_recovery_level: 0, max_connections: 1, ..KeyPolicy::default() }
}

pub(crate) fn config(luns: &[(u16, u32)], initiators: Vec<InitiatorEntry>) -> ShardConfig {
    let open = AuthPolicy { allows_none: true, ..AuthPolicy::default() };
    let entry = |(number, unit): &(u16, u32)| LunEntry::new(*number, UnitId(*unit), Access::ReadWrite);
    ShardConfig {
        portals: vec![Portal {
            id: PortalId(0),
            group: PortalGroupTag(1),
            bound: None,
            announced: None,
            tls: false,
            certificates: None,
        }],
        targets: vec![TargetConfig {
            id: TargetId(0),
            name: TARGET.parse().unwrap(),
            alias: None,
            ports: vec![(PortalId(0), RelativePort(1))],
            luns: luns.iter().map(entry).collect(),
            initiators,
            auth: open.clone().into(),
            keys: keys(),
            sessions_max: 64,
            groups: vec![],
            exchanges: 128,
            session_limits: None,
        }],
        discovery: DiscoveryConfig { enabled: true, auth: open.into(), keys: keys() },
        frames: HyperScsiConfig::default(),
    }
}

impl World {
    /// Makes a target with a unit on each of these media.
    pub(crate) fn new(config: ShardConfig, media: Vec<Box<dyn Store>>) -> Self {
        Self::with(config, media, Limits::default())
    }

    /// Makes a target like [`Self::new`], with other limits than the default.
    pub(crate) fn with(config: ShardConfig, media: Vec<Box<dyn Store>>, limits: Limits) -> Self {
        let pool = Pool::new(16 << 20);
        let mut shard = Shard::new(config, limits, pool.clone());
        let now = Instant(1_000_000_000);
        for (number, medium) in (0..).zip(media) {
            let unit = LogicalUnit::new(unit_config(number), medium, None, pool.clone()).unwrap();
            assert!(shard.add_unit(now, UnitId(number), unit));
        }
        Self {
            shard,
            pool,
            now,
            portal: PortalId(0),
            next_conn: 0,
            wires: vec![],
            free: vec![],
            deaf: vec![],
        }
    }

    pub(crate) fn connect(&mut self) -> ConnId {
        let conn = self.free.pop().unwrap_or(ConnId(self.next_conn));
        self.next_conn = self.next_conn.max(conn.0 + 1);
        let arrival = AcceptInfo {
            portal: self.portal,
            local: "127.0.0.1:3260".parse().unwrap(),
            peer: "127.0.0.1:50000".parse().unwrap(),
            entropy: [7; 32],
        };
        self.shard.connected(self.now, conn, &arrival);
        self.wires.push((conn, VecDeque::new(), true));
        conn
    }

    /// Passes bytes to the target, in receive buffers if the target provides them, and plays the driver until
    /// there is nothing left to do.
    pub(crate) fn send(&mut self, conn: ConnId, mut bytes: &[u8]) {
        while !bytes.is_empty() && self.is_open(conn) {
            match self.shard.take_rx_buffer(conn) {
                Some(mut loan) => {
                    let len = loan.len_max.min(bytes.len());
                    loan.buf.append(&bytes[..len]);
                    bytes = &bytes[len..];
                    self.shard.return_rx_buffer(self.now, conn, loan);
                }
                None => {
                    let len = bytes.len().min(8192);
                    self.shard.received(self.now, conn, &bytes[..len]);
                    bytes = &bytes[len..];
                }
            }
            self.drain();
        }
    }

    pub(crate) fn drain(&mut self) {
        while let Some(save) = self.shard.poll_save() {
            self.shard.state_saved(self.now, save.unit, save.ticket, true);
        }
        while let Some(action) = self.shard.poll_action() {
            let (Action::Transmit(conn) | Action::Close(conn) | Action::Abort(conn)) = action;
            while !self.deaf.contains(&conn) {
                let mut out = Transmit::new();
                self.shard.transmit(self.now, conn, &mut out);
                if out.is_empty() {
                    break;
                }
                let bytes: Vec<u8> = out.pieces().flatten().copied().collect();
                out.clear(&self.pool);
                self.wire(conn).0.extend(bytes);
            }
            if !matches!(action, Action::Transmit(_)) && *self.wire(conn).1 {
                *self.wire(conn).1 = false;
                self.shard.disconnected(self.now, conn, DisconnectReason::Closed);
            }
        }
    }

    /// Removes a closed connection, so that its number is used again, as drivers do.
    pub(crate) fn forget(&mut self, conn: ConnId) {
        assert!(!self.is_open(conn), "{conn:?} is open");
        self.wires.retain(|(id, ..)| *id != conn);
        self.deaf.retain(|id| *id != conn);
        self.free.push(conn);
    }

    pub(crate) fn cut(&mut self, conn: ConnId) {
        *self.wire(conn).1 = false;
        self.shard.disconnected(self.now, conn, DisconnectReason::Failed);
        self.drain();
    }

    pub(crate) fn is_open(&mut self, conn: ConnId) -> bool {
        *self.wire(conn).1
    }

    pub(crate) fn pass(&mut self, span: Duration) {
        self.now = self.now.after(span);
        self.shard.handle_timeout(self.now);
        self.drain();
    }

    pub(crate) fn wire(&mut self, conn: ConnId) -> (&mut VecDeque<u8>, &mut bool) {
        let wire = self.wires.iter_mut().find(|(id, ..)| *id == conn).unwrap();
        (&mut wire.1, &mut wire.2)
    }

    /// Returns the next PDU that the target sent, if there is one. Without digests.
    pub(crate) fn receive(&mut self, conn: ConnId) -> Option<(Bhs, Vec<u8>)> {
        let (wire, _) = self.wire(conn);
        if wire.is_empty() {
            return None;
        }
        let mut header = [0; BHS_LEN];
        header.iter_mut().for_each(|byte| *byte = wire.pop_front().unwrap());
        let bhs = Bhs::from_bytes(header);
        let len = usize::try_from(bhs.data_len()).unwrap();
        let mut data: Vec<u8> = wire.drain(..len.next_multiple_of(4)).collect();
        data.truncate(len);
        Some((bhs, data))
    }
}

pub(crate) fn pdu(bhs: Bhs, data: &[u8]) -> Vec<u8> {
    let mut bytes = bhs.with_data_len(data.len()).to_bytes().to_vec();
    bytes.extend_from_slice(data);
    bytes.resize(bytes.len().next_multiple_of(4), 0);
    bytes
}

/// Returns a login by one request, directly to the full feature phase.
pub(crate) const fn login_request(isid_qualifier: u8) -> LoginRequest {
    LoginRequest {
        transit: true,
        continues: false,
        csg: 1,
        nsg: 3,
        version_max: 0,
        version_min: 0,
        isid: [0x80, 0, 0, 0, 0, isid_qualifier],
        tsih: 0,
        itt: Itt(1),
        cid: 0,
        cmd_sn: CmdSn(1),
        exp_stat_sn: StatSn(0),
    }
}

/// Returns bytes that differ between offsets and between seeds.
pub(crate) fn pattern(len: usize, seed: u64) -> Vec<u8> {
    let mut bytes = vec![0; len];
    base::rng::Rng::from_seed(seed).fill(&mut bytes);
    bytes
}

/// The result of a command.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Answer {
    pub(crate) status: u8,
    pub(crate) sense: Vec<u8>,
    pub(crate) data: Vec<u8>,
}

impl Answer {
    /// Returns the sense key and the additional sense code, from either format.
    pub(crate) fn code(&self) -> (u8, u16) {
        match self.sense.first().map(|first| first & 0x7f) {
            Some(0x70 | 0x71) => (self.sense[2] & 15, u16::from_be_bytes([self.sense[12], self.sense[13]])),
            Some(0x72 | 0x73) => (self.sense[1], u16::from_be_bytes([self.sense[2], self.sense[3]])),
            _ => (0, 0),
        }
    }
}

/// An initiator that has logged in.
pub(crate) struct Initiator {
    pub(crate) conn: ConnId,
    pub(crate) cmd_sn: u32,
    pub(crate) exp_stat_sn: u32,
    pub(crate) next_itt: u32,
    pub(crate) first_burst: usize,
}

impl Initiator {
    /// Logs in without authentication, and panics if that fails.
    pub(crate) fn login(world: &mut World, name: &str, isid_qualifier: u8) -> Self {
        Self::try_login(world, name, isid_qualifier).expect("login")
    }

    /// Logs in, or returns the status of the refusal.
    pub(crate) fn try_login(world: &mut World, name: &str, isid_qualifier: u8) -> Result<Self, u16> {
        let conn = world.connect();
        let text = format!(
            "InitiatorName={name}\0TargetName={TARGET}\0SessionType=Normal\0HeaderDigest=None\0DataDigest=None\0\
             InitialR2T=No\0ImmediateData=Yes\0FirstBurstLength=65536\0MaxBurstLength=262144\0"
        );
        world.send(conn, &pdu(login_request(isid_qualifier).encode(), text.as_bytes()));
        let (bhs, _) = world.receive(conn).expect("a login response");
        let response = LoginResponse::decode(&bhs).unwrap();
        if response.status != 0 {
            return Err(response.status);
        }
        assert!(response.transit && response.nsg == 3, "{response:?}");
        let exp_stat_sn = response.sn.stat_sn.0.wrapping_add(1);
        Ok(Self { conn, cmd_sn: 1, exp_stat_sn, next_itt: 2, first_burst: 65536 })
    }

    /// Sends a command with up to 8 KiB of its data as immediate data, answers R2Ts, and returns the result.
    pub(crate) fn run(
        &mut self,
        world: &mut World,
        lun: u64,
        cdb: &[u8],
        out: &[u8],
        expect_in: usize,
    ) -> Answer {
        let itt = self.start(world, lun, cdb, out, expect_in);
        self.finish(world, itt, out)
    }

    pub(crate) fn start(
        &mut self,
        world: &mut World,
        lun: u64,
        cdb: &[u8],
        out: &[u8],
        expect_in: usize,
    ) -> Itt {
        let itt = Itt(self.next_itt);
        self.next_itt += 1;
        let mut whole = [0; 16];
        whole[..cdb.len()].copy_from_slice(cdb);
        let immediate = &out[..out.len().min(8192)];
        let rest = &out[immediate.len()..out.len().min(self.first_burst)];
        let command = ScsiCommand {
            immediate: false,
            is_final: rest.is_empty(),
            read: expect_in > 0,
            write: !out.is_empty(),
            attribute: TaskAttribute::SIMPLE,
            priority: 0,
            lun: lun << 48,
            itt,
            expected_data_transfer_length: u32::try_from(expect_in.max(out.len())).unwrap(),
            cmd_sn: CmdSn(self.cmd_sn),
            exp_stat_sn: StatSn(self.exp_stat_sn),
            cdb: whole,
        };
        self.cmd_sn = self.cmd_sn.wrapping_add(1);
        world.send(self.conn, &pdu(command.encode(), immediate));
        if !rest.is_empty() {
            self.send_data(world, lun, itt, Ttt::NONE, immediate.len(), rest);
        }
        itt
    }

    pub(crate) fn send_data(
        &self,
        world: &mut World,
        lun: u64,
        itt: Itt,
        ttt: Ttt,
        offset: usize,
        data: &[u8],
    ) {
        let parts: Vec<_> = data.chunks(16384).collect();
        for (number, part) in parts.iter().enumerate() {
            let header = DataOut {
                is_final: number + 1 == parts.len(),
                lun: lun << 48,
                itt,
                ttt,
                exp_stat_sn: StatSn(self.exp_stat_sn),
                data_sn: DataSn(u32::try_from(number).unwrap()),
                buffer_offset: u32::try_from(offset + number * 16384).unwrap(),
            };
            world.send(self.conn, &pdu(header.encode(), part));
        }
    }

    pub(crate) fn finish(&mut self, world: &mut World, itt: Itt, out: &[u8]) -> Answer {
        let mut data = vec![];
        loop {
            let (bhs, payload) = world.receive(self.conn).expect("an answer");
            match bhs.opcode() {
                Opcode::DATA_IN => {
                    let header = DataIn::decode(&bhs).unwrap();
                    assert_eq!(
                        (header.itt, usize::try_from(header.buffer_offset).unwrap()),
                        (itt, data.len())
                    );
                    data.extend(payload);
                    if let Some(end) = header.status {
                        self.exp_stat_sn = header.sn.stat_sn.0.wrapping_add(1);
                        return Answer { status: end.status, sense: vec![], data };
                    }
                }
                Opcode::R2T => {
                    let r2t = R2t::decode(&bhs).unwrap();
                    let from = usize::try_from(r2t.buffer_offset).unwrap();
                    let len = usize::try_from(r2t.desired_data_transfer_length).unwrap();
                    self.send_data(world, r2t.lun >> 48, itt, r2t.ttt, from, &out[from..from + len]);
                }
                Opcode::SCSI_RESPONSE => {
                    let response = ScsiResponse::decode(&bhs).unwrap();
                    assert_eq!(response.itt, itt);
                    self.exp_stat_sn = response.sn.stat_sn.0.wrapping_add(1);
                    let sense = payload.get(2..).unwrap_or_default().to_vec();
                    return Answer { status: response.status, sense, data };
                }
                // A ping, which this initiator leaves unanswered.
                Opcode::NOP_IN => {}
                other => panic!("{other:?} instead of an answer"),
            }
        }
    }

    /// Runs TEST UNIT READY until no unit attention is left.
    pub(crate) fn clear_attentions(&mut self, world: &mut World, lun: u64) {
        while self.run(world, lun, &[0; 6], &[], 0).status != 0 {}
    }

    pub(crate) fn write(&mut self, world: &mut World, lun: u64, lba: u32, data: &[u8], fua: bool) -> Answer {
        let blocks = u16::try_from(data.len() / BLOCK).unwrap();
        let mut cdb = [0x2a, u8::from(fua) << 3, 0, 0, 0, 0, 0, 0, 0, 0];
        cdb[2..6].copy_from_slice(&lba.to_be_bytes());
        cdb[7..9].copy_from_slice(&blocks.to_be_bytes());
        self.run(world, lun, &cdb, data, 0)
    }

    pub(crate) fn read(&mut self, world: &mut World, lun: u64, lba: u32, blocks: u16) -> Answer {
        let mut cdb = [0x28, 0, 0, 0, 0, 0, 0, 0, 0, 0];
        cdb[2..6].copy_from_slice(&lba.to_be_bytes());
        cdb[7..9].copy_from_slice(&blocks.to_be_bytes());
        self.run(world, lun, &cdb, &[], usize::from(blocks) * BLOCK)
    }
}
