//! A whole target among initiators that do anything, while reloads give them other disks and take some away,
//! and one initiator whose disk none of them may see: what must hold is that its blocks stay as they are,
//! that it is served at the end, and that nothing is left of the others, nor of units that were removed.

use std::rc::Rc;

use base::buffer::Pool;
use base::rng::Rng;
use base::state_machine::{Action, ConnId, DisconnectReason, PortalId, StreamMachine as _};
use base::time::{Duration, Instant};
use base::transmit::Transmit;
use base::units::BlockSize;
use device::contract::{Access, Identity, InquiryOverrides, RelativePort, TargetPort, UnitConfig};
use device::unit::LogicalUnit;
use iscsi::login::directory::{AuthPolicy, TargetId};
use iscsi::name::PortalGroupTag;
use iscsi::negotiate::KeyPolicy;
use iscsi::pdu::login_request::LoginRequest;
use iscsi::pdu::{BHS_LEN, Bhs, Itt, Opcode, PduHeader};
use iscsi::serial::{CmdSn, StatSn};
use iscsi::target::engine::Limits;
use shard::config::{InitiatorQuota, 
    DiscoveryConfig, HyperScsiConfig, InitiatorEntry, LunEntry, Portal, ShardConfig, TargetConfig,
};
use shard::shard::Shard;
use store::ram::Ram;
use target::units::UnitId;

const PEERS: usize = 3;
const MEDIUM_LEN: u64 = 1 << 20;
/// The first is that of the peers, the second the owner's, and then a spare one, which peers are shown by
/// some reloads.
const UNITS: u32 = 3;
const OWN: u32 = 1;
const SPARE: u32 = 2;
const OWNER: &str = "iqn.2026-11.com.example:owner";
const BLOCK: [u8; 512] = [0xa5; 512];

/// Runs one input: operations, each by one of a few initiators.
pub fn torment(input: &[u8]) {
    let Some((first, rest)) = input.split_first() else { return };
    let mut world = World::new();
    world.owner_writes();
    for peer in 0..PEERS {
        world.arrive(peer, *first);
    }
    for (which, bytes) in crate::Operations::of(rest) {
        let peer = usize::from(which & 3) % PEERS;
        match which >> 2 & 15 {
            0..=7 => world.send_pdu(peer, bytes),
            8 => world.reload(bytes.first().copied().unwrap_or(0)),
            9 => world.remove(bytes.first().copied().unwrap_or(0)),
            10 => world.feed(peer, bytes),
            11 => world.pass(u64::from(which >> 6) * 7 + 1),
            12 => world.leave(peer, DisconnectReason::Failed),
            13 => world.leave(peer, DisconnectReason::Stalled),
            14 => world.peers[peer].deaf ^= true,
            _ => world.arrive(peer, bytes.first().copied().unwrap_or(0)),
        }
    }
    world.end();
}

/// Makes an input of requests as an initiator would send them, a little damaged.
pub fn sensible(seed: u64) -> Vec<u8> {
    let mut rng = Rng::from_seed(seed);
    let mut input = vec![rng.below(256).to_le_bytes()[0]];
    let mut numbers = [1_u32; PEERS];
    for tag in 0..rng.below(40) {
        let mut below = |max: u64| rng.below(max).to_le_bytes()[0];
        let peer = below(PEERS as u64);
        let mut which = peer;
        let mut bytes = vec![];
        if below(12) == 0 {
            which |= (8 + below(8)) << 2;
            bytes.push(below(16));
        } else {
            let mut header = [0; BHS_LEN];
            let opcode = [1, 1, 1, 1, 1, 0, 2, 4, 5, 6, 0x10][usize::from(below(11))];
            header[0] = opcode | if below(5) == 0 { 0x40 } else { 0 };
            header[1] = [0x80, 0xc1, 0xa1, 0xe0, 0x81][usize::from(below(5))];
            header[19] = tag.to_le_bytes()[0];
            header[20..24].copy_from_slice(&[0, 0, below(40), 0]);
            let number = &mut numbers[usize::from(peer)];
            header[24..28].copy_from_slice(&number.to_be_bytes());
            *number += u32::from(header[0] & 0x40 == 0);
            let cdbs: [&[u8]; 8] = [
                &[0],
                &[0x28, 0, 0, 0, 0, 1, 0, 0, 8],
                &[0x2a, 0, 0, 0, 0, 2, 0, 0, 8],
                &[0x12, 0, 0, 0, 96],
                &[0x5f, 0, 0, 0, 0, 0, 0, 0, 24],
                &[0xa0, 0, 0, 0, 0, 0, 0, 0, 1],
                &[0x42, 0, 0, 0, 0, 0, 0, 0, 24],
                &[0x83, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 64],
            ];
            let cdb = cdbs[usize::from(below(8))];
            header[32..32 + cdb.len()].copy_from_slice(cdb);
            if below(6) == 0 {
                header[usize::from(below(48))] = below(255);
            }
            bytes.extend(header);
            let len = [0, 0, 0, 24, 512, 4096][usize::from(below(6))];
            bytes.extend((0..len).map(|at: usize| at.to_le_bytes()[0]));
        }
        input.push(which);
        input.extend(u16::try_from(bytes.len()).unwrap().to_be_bytes());
        input.extend(bytes);
    }
    input
}

struct World {
    shard: Shard,
    pool: Pool,
    now: Instant,
    /// The last is the owner of the other disk.
    peers: Vec<Peer>,
    /// Units that are served, and those that were removed and are not closed yet.
    served: Vec<u32>,
    closing: Vec<u32>,
}

#[derive(Default)]
struct Peer {
    open: bool,
    deaf: bool,
    /// What it was sent, kept for the owner alone.
    heard: Vec<u8>,
}

impl World {
    fn new() -> Self {
        let pool = Pool::new(1 << 20);
        // Little of everything, so that every limit is met.
        let limits = Limits {
            queue_depth: 8,
            data_out_bytes_max: 256 << 10,
            data_in_bytes_max: 256 << 10,
            control_bytes_max: 64 << 10,
            unsent_bytes_max: 64 << 10,
            ..Limits::default()
        };
        let now = Instant(1_000_000_000);
        let shard = Shard::new(config(0), limits, pool.clone());
        let peers = (0..=PEERS).map(|_| Peer::default()).collect();
        let mut world = Self { shard, pool, now, peers, served: vec![], closing: vec![] };
        (0..UNITS).for_each(|number| world.add(number));
        world
    }

    fn add(&mut self, number: u32) {
        let medium = Box::new(Ram::new(MEDIUM_LEN));
        let mut unit = LogicalUnit::new(unit_config(number), medium, None, self.pool.clone()).unwrap();
        unit.seed(&[9; 32]);
        assert!(self.shard.add_unit(self.now, UnitId(number), unit));
        self.served.push(number);
    }

    /// Brings back the disks that are closed, and shows peers what `how` says.
    fn reload(&mut self, how: u8) {
        self.close_removed();
        for number in 0..UNITS {
            if !self.served.contains(&number) && !self.closing.contains(&number) {
                self.add(number);
            }
        }
        self.shard.apply(self.now, config(how));
        self.drain();
    }

    /// Takes away a disk that peers see, while its LUN still leads to it or not.
    fn remove(&mut self, how: u8) {
        let number = if how & 1 == 0 { 0 } else { SPARE };
        if let Some(at) = self.served.iter().position(|known| *known == number) {
            self.served.remove(at);
            self.closing.push(number);
            assert!(self.shard.remove_unit(self.now, UnitId(number)), "it was served");
        }
        self.drain();
    }

    fn close_removed(&mut self) {
        while let Some((UnitId(number), _)) = self.shard.poll_removed() {
            let at = self.closing.iter().position(|known| *known == number).expect("it was removed");
            self.closing.remove(at);
        }
    }

    /// A connection that logs in, or one that says nothing yet.
    fn arrive(&mut self, peer: usize, how: u8) {
        self.leave(peer, DisconnectReason::Closed);
        self.peers[peer] = Peer { open: true, ..Peer::default() };
        self.shard.connected(self.now, conn(peer), &crate::arrival());
        if how & 1 == 0 {
            let level = how >> 1 & 3;
            self.log_in(peer, &format!("iqn.2026-11.com.example:peer{}", how >> 3 & 3), level);
        }
    }

    fn log_in(&mut self, peer: usize, name: &str, level: u8) {
        let text = format!(
            "InitiatorName={name}\0TargetName={}\0HeaderDigest=None\0DataDigest=None\0InitialR2T=No\0\
             ErrorRecoveryLevel={level}\0MaxConnections=2\0iSCSIProtocolLevel=2\0",
            crate::TARGET
        );
        let request = LoginRequest {
            transit: true,
            continues: false,
            csg: 1,
            nsg: 3,
            version_max: 0,
            version_min: 0,
            isid: [0x80, 0, 0, 0, 0, peer.to_le_bytes()[0]],
            tsih: 0,
            itt: Itt(0),
            cid: 0,
            cmd_sn: CmdSn(1),
            exp_stat_sn: StatSn(0),
        };
        self.send_pdu(peer, &[&request.encode().to_bytes()[..], text.as_bytes()].concat());
    }

    /// Sends a header and data as a PDU with right lengths.
    fn send_pdu(&mut self, peer: usize, bytes: &[u8]) {
        let Some((header, data)) = bytes.split_first_chunk::<BHS_LEN>() else { return };
        let bhs = Bhs::from_bytes(*header).with_ahs_len(0).with_data_len(data.len());
        let mut out = bhs.to_bytes().to_vec();
        out.extend_from_slice(data);
        out.resize(out.len().next_multiple_of(4), 0);
        self.feed(peer, &out);
    }

    fn feed(&mut self, peer: usize, mut bytes: &[u8]) {
        while !bytes.is_empty() && self.peers[peer].open {
            if let Some(mut loan) = self.shard.take_rx_buffer(conn(peer)) {
                let (into, behind) = bytes.split_at(loan.len_max.min(bytes.len()));
                loan.buf.append(into);
                bytes = behind;
                self.shard.return_rx_buffer(self.now, conn(peer), loan);
            } else {
                let (now, behind) = bytes.split_at(bytes.len().min(4096));
                bytes = behind;
                self.shard.received(self.now, conn(peer), now);
            }
            self.drain();
        }
    }

    fn pass(&mut self, seconds: u64) {
        self.now = self.now.after(Duration::from_secs(seconds));
        self.shard.handle_timeout(self.now);
        self.drain();
    }

    fn leave(&mut self, peer: usize, how: DisconnectReason) {
        if std::mem::take(&mut self.peers[peer].open) {
            self.shard.disconnected(self.now, conn(peer), how);
            self.drain();
        }
    }

    fn drain(&mut self) {
        while let Some(action) = self.shard.poll_action() {
            let (Action::Transmit(id) | Action::Close(id) | Action::Abort(id)) = action;
            let peer = usize::try_from(id.0).unwrap();
            while !self.peers[peer].deaf && self.peers[peer].open {
                let mut out = Transmit::new();
                self.shard.transmit(self.now, id, &mut out);
                if out.is_empty() {
                    break;
                }
                if peer == PEERS {
                    self.peers[peer].heard.extend(out.pieces().flatten().copied());
                }
                out.clear(&self.pool);
            }
            if !matches!(action, Action::Transmit(_)) {
                self.leave(peer, DisconnectReason::Closed);
            }
        }
        while let Some(save) = self.shard.poll_save() {
            self.shard.state_saved(self.now, save.unit, save.ticket, save.ticket % 5 != 0);
        }
    }

    fn owner_writes(&mut self) {
        self.owner_arrives();
        let data = BLOCK.repeat(8);
        self.owner_commands(&[0x2a, 0, 0, 0, 0, 16, 0, 0, 8], 0xa1, &data);
        self.leave(PEERS, DisconnectReason::Closed);
    }

    fn owner_arrives(&mut self) {
        self.peers[PEERS] = Peer { open: true, ..Peer::default() };
        self.shard.connected(self.now, conn(PEERS), &crate::arrival());
        self.log_in(PEERS, OWNER, 0);
        // The unit attentions that a new nexus finds.
        for _ in 0..4 {
            self.owner_commands(&[0; 6], 0x81, &[]);
        }
    }

    /// Carries a command of the owner out and returns everything it heard.
    fn owner_commands(&mut self, cdb: &[u8], flags: u8, data: &[u8]) -> Vec<u8> {
        let mut header = [0; BHS_LEN];
        (header[0], header[1]) = (0x41, flags);
        header[20..24].copy_from_slice(&4096_u32.to_be_bytes());
        header[27] = 1;
        header[32..32 + cdb.len()].copy_from_slice(cdb);
        self.peers[PEERS].heard.clear();
        self.send_pdu(PEERS, &[&header[..], data].concat());
        std::mem::take(&mut self.peers[PEERS].heard)
    }

    /// Whatever happened, the owner is served, and its blocks are what it wrote.
    fn end(mut self) {
        self.owner_arrives();
        let heard = self.owner_commands(&[0x28, 0, 0, 0, 0, 16, 0, 0, 8], 0xc1, &[]);
        let (header, data) = heard.split_first_chunk::<BHS_LEN>().expect("an answer to the owner");
        let bhs = Bhs::from_bytes(*header);
        assert_eq!(bhs.opcode(), Opcode::DATA_IN, "{bhs:?}");
        assert!(data.starts_with(&BLOCK.repeat(8)), "blocks of a disk that nobody else sees have changed");
        for peer in 0..=PEERS {
            self.leave(peer, DisconnectReason::Closed);
        }
        // A session of level 2 outlives its last connection by Time2Wait and Time2Retain, an hour each at
        // most.
        self.pass(2 * 3600 + 1);
        assert!(self.shard.is_idle(), "a session is left without a connection");
        self.close_removed();
        assert!(self.closing.is_empty(), "units that were removed are not closed: {:?}", self.closing);
        assert!(self.shard.units().iter().all(|unit| unit.stats.tasks == 0), "tasks of nobody");
    }
}

fn conn(peer: usize) -> ConnId {
    ConnId(u32::try_from(peer).unwrap())
}

/// The bits of `how`: peers' LUN 0 is the spare disk; the other disk is their LUN 1; they may not log in;
/// they may only read.
fn config(how: u8) -> ShardConfig {
    let open = AuthPolicy { allows_none: true, ..AuthPolicy::default() };
    let sees = |pattern: &str, luns| InitiatorEntry {
        pattern: Rc::from(pattern),
        luns: Some(luns),
        auth: None,
        quota: InitiatorQuota::default(),
    };
    let access = if how & 8 == 0 { Access::ReadWrite } else { Access::ReadOnly };
    let (first, other) = if how & 1 == 0 { (0, SPARE) } else { (SPARE, 0) };
    let mut luns = vec![LunEntry::new(0, UnitId(first), access)];
    if how & 2 != 0 {
        luns.push(LunEntry::new(1, UnitId(other), access));
    }
    let mut initiators = vec![sees(OWNER, vec![LunEntry::new(0, UnitId(OWN), Access::ReadWrite)])];
    if how & 4 == 0 {
        initiators.push(sees("*", luns));
    }
    let keys = KeyPolicy { error_recovery_level: 2, max_connections: 2, ..KeyPolicy::default() };
    ShardConfig {
        portals: vec![Portal { id: PortalId(0), group: PortalGroupTag(1), bound: None, announced: None, tls: false, certificates: None }],
        targets: vec![TargetConfig {
            id: TargetId(0),
            name: crate::TARGET.parse().unwrap(),
            alias: None,
            ports: vec![(PortalId(0), RelativePort(1))],
            luns: vec![],
            initiators,
            auth: open.clone().into(),
            keys: keys.clone(),
            sessions_max: 64,
            groups: vec![],
            exchanges: 8,
            session_limits: None,
        }],
        discovery: DiscoveryConfig { enabled: true, auth: open.into(), keys },
        frames: HyperScsiConfig::default(),
    }
}

fn unit_config(number: u32) -> UnitConfig {
    UnitConfig {
        device: device::contract::DeviceKind::Disk,
        identity: Identity {
            vendor: *b"VENDOR  ",
            product: *b"PRODUCT         ",
            revision: *b"0001",
            serial: format!("serial{number}"),
            naa: [&[0x60, 0x12, 0x34, 0x56][..], &[0; 11], &number.to_le_bytes()[..1]].concat(),
        },
        block_size: BlockSize::B512,
        physical_exponent: 3,
        read_only: false,
        removable: false,
        long_cdbs: false,
        atomic_blocks: 1,
        thin: true,
        limit: device::rate_limit::RateLimit::NONE,
        write_cache: true,
        overrides: InquiryOverrides::default(),
        tasks: device::contract::TaskRules::default(),
        task_set_max: 32,
        io_timeout: None,
        transfer_blocks_max: 8192,
        ports: Rc::new([TargetPort {
            relative: RelativePort(1),
            group: 1,
            port_name: format!("{},t,0x0001", crate::TARGET),
            device_name: crate::TARGET.into(),
            protocol: 5,
        }]),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_sensible_harms_a_disk_of_others() {
        for seed in 0..2000 {
            let input = sensible(seed);
            if std::panic::catch_unwind(|| torment(&input)).is_err() {
                panic!("seed {seed}");
            }
        }
    }
}
