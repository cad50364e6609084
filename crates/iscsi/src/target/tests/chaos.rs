//! Random peers, and a layer above that keeps to the contract. Whatever happens: nothing panics, no byte is
//! delivered that was not sent for that offset, and nothing is left when all peers are gone.

use alloc::collections::BTreeMap;
use alloc::vec::Vec;

use base::buffer::Bytes;
use base::rng::Rng;
use base::state_machine::{ConnId, DisconnectReason};
use base::time::Duration;
use transport::command::TaskAttribute;
use transport::target::{Command, Finish, SessionId, TargetTransport, TaskRef, TmfIndication};
use transport::task_management::{TmfFunction, TmfResult};

use super::world::{LUN, TARGET, World, data_out, keys, pattern};
use crate::negotiate::KeyPolicy;
use crate::pdu::data_out::DataOut;
use crate::pdu::logout_request::{LogoutReason, LogoutRequest};
use crate::pdu::nop_out::NopOut;
use crate::pdu::r2t::R2t;
use crate::pdu::scsi_command::ScsiCommand;
use crate::pdu::snack::{Snack, SnackKind};
use crate::pdu::text_request::TextRequest;
use crate::pdu::tmf_request::TmfRequest;
use crate::pdu::{Bhs, Itt, Opcode, PduHeader, Ttt};
use crate::serial::{CmdSn, DataSn, StatSn};
use crate::target::contract::{AsyncEvent, Event};
use crate::target::engine::Limits;

extern crate std;

const SEEDS: u64 = 80;
const STEPS: usize = 1500;

struct Chaos {
    world: World,
    rng: Rng,
    conns: Vec<ConnId>,
    r2ts: Vec<(ConnId, R2t)>,
    /// Open first bursts: connection, command, bytes sent, next DataSN.
    bursts: Vec<(ConnId, ScsiCommand, u32, u32)>,
    /// The StatSN of the last PDU received on each connection, which shows roughly which statuses were
    /// received.
    acked: BTreeMap<ConnId, u32>,
    tags: u32,
    held: BTreeMap<TaskRef, Held>,
    manages: Vec<TmfIndication>,
    sessions: BTreeMap<SessionId, ConnId>,
}

struct Held {
    command: Command,
    fetches: Vec<(u32, u32)>,
    sent: u32,
}

/// Prints the seed of a run that failed.
struct Blame(u64);

impl Drop for Blame {
    fn drop(&mut self) {
        if std::thread::panicking() {
            std::eprintln!("seed {}", self.0);
        }
    }
}

#[test]
fn whatever_peers_do_nothing_breaks_and_nothing_is_left() {
    let seed = std::env::var("TARGE_SEED").ok().and_then(|seed| seed.parse().ok());
    let seeds = std::env::var("TARGE_SEEDS").ok().and_then(|seeds| seeds.parse().ok()).unwrap_or(SEEDS);
    for seed in seed.map_or(0..seeds, |seed: u64| seed..seed + 1) {
        let _blame = Blame(seed);
        let mut chaos = Chaos::new(seed);
        for _ in 0..STEPS {
            chaos.step();
        }
        chaos.end();
    }
}

impl Chaos {
    fn new(seed: u64) -> Self {
        let mut rng = Rng::from_seed(seed);
        let limits = Limits {
            connections_max: 1 << 20,
            queue_depth: [1, 4, 32][pick(&mut rng, 3)],
            immediate_max: 4,
            data_out_bytes_max: [3000, 100_000, 10 << 20][pick(&mut rng, 3)],
            unsent_bytes_max: [1000, 100_000][pick(&mut rng, 2)],
            ..Limits::default()
        };
        let policy = KeyPolicy {
            data_pdu_in_order: rng.chance(1, 2),
            task_reporting: if rng.chance(1, 2) { &["FastAbort", "RFC3720"] } else { &["RFC3720"] },
            data_sequence_in_order: rng.chance(1, 2),
            // Half of the seeds use level 0; whether a session may have several connections is drawn
            // independently.
            error_recovery_level: [0, 0, 0, 1, 2, 2][pick(&mut rng, 6)],
            max_connections: [1, 4][pick(&mut rng, 2)],
            ..keys()
        };
        Self {
            world: World::with(limits, policy),
            rng,
            conns: Vec::new(),
            r2ts: Vec::new(),
            bursts: Vec::new(),
            acked: BTreeMap::new(),
            tags: 0,
            held: BTreeMap::new(),
            manages: Vec::new(),
            sessions: BTreeMap::new(),
        }
    }

    fn step(&mut self) {
        match self.rng.below(32) {
            0 => self.log_in(),
            1..=6 => self.send_command(),
            7..=15 => self.send_data(),
            16 if self.rng.chance(1, 3) => self.send_snack(),
            16 => self.send_control(),
            17 if self.rng.chance(1, 2) => self.send_tmf(),
            18 => self.stall_or_not(),
            19 if self.rng.chance(1, 16) => self.hang_up(),
            20 if self.rng.chance(1, 4) => self.world.pass(Duration::from_millis(self.rng.below(5000))),
            21 if self.rng.chance(1, 16) => self.speak_up(),
            _ => self.serve(),
        }
        self.look();
    }

    fn log_in(&mut self) {
        if self.conns.len() >= 3 {
            return;
        }
        let conn = self.world.connect();
        let target = ["TargetName=", TARGET].concat();
        let mut all: Vec<&str> = alloc::vec!["SessionType=Normal", &target];
        if self.rng.chance(1, 10) {
            all = alloc::vec!["SessionType=Discovery"];
        }
        // With only one digest, damage to the other part would not be detected; then nothing is damaged.
        if self.rng.chance(2, 3) {
            all.extend(["HeaderDigest=CRC32C", "DataDigest=CRC32C"]);
        }
        for choice in [
            ["InitialR2T=No", "InitialR2T=Yes"],
            ["ImmediateData=Yes", "ImmediateData=No"],
            ["MaxOutstandingR2T=1", "MaxOutstandingR2T=4"],
            ["DataPDUInOrder=No", "DataPDUInOrder=Yes"],
            ["MaxRecvDataSegmentLength=600", "MaxRecvDataSegmentLength=100000"],
            ["TaskReporting=FastAbort", "TaskReporting=RFC3720"],
            ["iSCSIProtocolLevel=2", "iSCSIProtocolLevel=1"],
        ] {
            all.push(choice[pick(&mut self.rng, 2)]);
        }
        all.extend(
            [
                ["FirstBurstLength=2000", "MaxBurstLength=3000"],
                ["FirstBurstLength=40000", "MaxBurstLength=60000"],
            ][pick(&mut self.rng, 2)],
        );
        let level = ["ErrorRecoveryLevel=0", "ErrorRecoveryLevel=1", "ErrorRecoveryLevel=2"];
        all.extend([level[pick(&mut self.rng, 3).max(pick(&mut self.rng, 3))], "MaxConnections=4"]);
        if self.rng.chance(1, 2) && self.join(conn) {
            return;
        }
        let isid = u8::try_from(self.rng.below(4)).unwrap();
        let response = self.world.login_pdu(conn, isid, &all);
        assert_eq!(response.status, 0, "{all:?}");
        self.conns.push(conn);
    }

    /// Adds a connection to a random session, continues that session, or reinstates one of its connections.
    fn join(&mut self, conn: ConnId) -> bool {
        let normal = self.world.engine.sessions().filter(|session| session.target.is_some());
        let found: Vec<_> = normal.map(|session| (session.isid, session.tsih)).collect();
        if found.is_empty() {
            return false;
        }
        let (isid, tsih) = found[pick(&mut self.rng, found.len())];
        let cid = u16::try_from(self.rng.below(4)).unwrap();
        let target = ["TargetName=", TARGET].concat();
        let mut keys: Vec<&str> = alloc::vec!["SessionType=Normal", &target];
        if self.rng.chance(2, 3) {
            keys.extend(["HeaderDigest=CRC32C", "DataDigest=CRC32C"]);
        }
        keys.push(
            ["MaxRecvDataSegmentLength=600", "MaxRecvDataSegmentLength=100000"][pick(&mut self.rng, 2)],
        );
        let response = self.world.login_as(conn, (isid.0[5], tsih.0, cid), &keys);
        if response.status == 0 {
            self.world.peers.get_mut(&conn).unwrap().cmd_sn = response.sn.exp_cmd_sn.0;
            self.conns.push(conn);
        }
        true
    }

    fn send_snack(&mut self) {
        let Some(conn) = self.any_conn() else { return };
        let kind = SnackKind(u8::try_from(self.rng.below(5)).unwrap());
        let named = matches!(kind, SnackKind::DATA_OR_R2T | SnackKind::R_DATA);
        let back = u32::try_from(self.rng.below(20)).unwrap();
        let near = self.acked.get(&conn).copied().unwrap_or(0);
        let small = |rng: &mut Rng| u32::try_from(rng.below(4)).unwrap();
        let snack = Snack {
            kind,
            lun: 0,
            itt: if named { Itt(self.tags.wrapping_sub(back)) } else { Itt::NONE },
            tag: if kind == SnackKind::R_DATA { 1 + small(&mut self.rng) } else { u32::MAX },
            exp_stat_sn: StatSn(0),
            beg_run: match self.rng.below(4) {
                0 => near.wrapping_sub(small(&mut self.rng)),
                _ if kind == SnackKind::R_DATA => 0,
                1 => small(&mut self.rng),
                _ => 0,
            },
            run_length: if kind == SnackKind::R_DATA { 0 } else { small(&mut self.rng) },
        };
        self.send(conn, snack.encode(), &[]);
    }

    fn any_conn(&mut self) -> Option<ConnId> {
        if self.conns.is_empty() { None } else { Some(self.conns[pick(&mut self.rng, self.conns.len())]) }
    }

    fn tag(&mut self) -> Itt {
        // Sometimes returns a tag that may be in use.
        let back = if self.rng.chance(1, 20) { 1 + u32::try_from(self.rng.below(8)).unwrap() } else { 0 };
        self.tags += 1;
        Itt(self.tags.wrapping_sub(back))
    }

    fn number(&mut self, conn: ConnId, immediate: bool) -> CmdSn {
        let peer = self.world.peers.get_mut(&conn).unwrap();
        let sn = CmdSn(peer.cmd_sn);
        if !immediate {
            peer.cmd_sn = peer.cmd_sn.wrapping_add(1);
        }
        match self.rng.below(60) {
            0 => sn.plus(1),
            1 => sn.minus(1),
            2 => CmdSn(u32::try_from(self.rng.below(1 << 32)).unwrap()),
            _ => sn,
        }
    }

    fn send_command(&mut self) {
        let Some(conn) = self.any_conn() else { return };
        let immediate = self.rng.chance(1, 12);
        let len = [0, 1, 511, 4096, 9001, 50_000, 130_000][pick(&mut self.rng, 7)];
        let write = self.rng.chance(1, 2);
        let first_burst = self.rng.chance(1, 3) && write;
        let command = ScsiCommand {
            immediate,
            is_final: !first_burst,
            read: !write && self.rng.chance(7, 8),
            write,
            attribute: TaskAttribute::SIMPLE,
            priority: 0,
            lun: [0, LUN][pick(&mut self.rng, 2)],
            itt: self.tag(),
            expected_data_transfer_length: len,
            cmd_sn: self.number(conn, immediate),
            exp_stat_sn: StatSn(0),
            cdb: [0; 16],
        };
        let data = if write && self.rng.chance(1, 2) {
            len.min(1 + u32::try_from(self.rng.below(2000)).unwrap())
        } else {
            0
        };
        if first_burst {
            self.bursts.push((conn, command, data, 0));
        }
        self.send(conn, command.encode(), &pattern(0, data as usize));
    }

    fn send_data(&mut self) {
        if self.rng.chance(1, 3) && !self.bursts.is_empty() {
            let at = pick(&mut self.rng, self.bursts.len());
            let (conn, command, sent, sn) = self.bursts[at];
            let most = 2000u32.min(command.expected_data_transfer_length).saturating_sub(sent);
            let len = most.min(u32::try_from(self.rng.below(2000)).unwrap());
            let is_final = len == most || self.rng.chance(1, 10);
            let data = DataOut { lun: 0, ..data_out(&command, Ttt::NONE, sn, sent, is_final) };
            self.send_data_out(conn, data, len);
            self.bursts[at] = (conn, command, sent + len, sn + 1);
            if is_final {
                self.bursts.swap_remove(at);
            }
            return;
        }
        if self.r2ts.is_empty() {
            return;
        }
        let at = pick(&mut self.rng, self.r2ts.len());
        let (conn, r2t) = self.r2ts.swap_remove(at);
        let mut at = 0;
        let mut sn = 0;
        while at < r2t.desired_data_transfer_length {
            let left = r2t.desired_data_transfer_length - at;
            let len = left.min(1 + u32::try_from(self.rng.below(60_000)).unwrap());
            let data = DataOut {
                is_final: len == left,
                lun: r2t.lun,
                itt: r2t.itt,
                ttt: r2t.ttt,
                exp_stat_sn: StatSn(0),
                data_sn: DataSn(sn),
                buffer_offset: r2t.buffer_offset + at,
            };
            self.send_data_out(conn, data, len);
            at += len;
            sn += 1;
        }
    }

    /// Sends data, sometimes with one wrong field. The data always matches its offset.
    fn send_data_out(&mut self, conn: ConnId, mut data: DataOut, mut len: u32) {
        if !self.conns.contains(&conn) {
            return;
        }
        match self.rng.below(100) {
            0 => data.data_sn = data.data_sn.next(),
            1 => data.buffer_offset = data.buffer_offset.wrapping_add(4),
            2 => data.buffer_offset = u32::MAX - 1,
            3 => data.lun ^= 1,
            4 => data.ttt = Ttt(data.ttt.0.wrapping_add(1)),
            5 => data.is_final = !data.is_final,
            6 => len += 4,
            7 => len = 0,
            8 => data.itt = Itt(data.itt.0.wrapping_sub(1)),
            _ => {}
        }
        self.send(conn, data.encode(), &pattern(data.buffer_offset, len as usize));
    }

    fn send_control(&mut self) {
        let Some(conn) = self.any_conn() else { return };
        let immediate = self.rng.chance(1, 2);
        let cmd_sn = self.number(conn, immediate);
        let itt = self.tag();
        let exp_stat_sn = StatSn(0);
        let (bhs, data) = match self.rng.below(12) {
            0..=4 => {
                let ping = NopOut { immediate, lun: 0, itt, ttt: Ttt::NONE, cmd_sn, exp_stat_sn };
                (ping.encode(), pattern(0, pick(&mut self.rng, 9000)))
            }
            5..=8 => {
                let text = TextRequest {
                    immediate,
                    is_final: self.rng.chance(3, 4),
                    continues: false,
                    lun: 0,
                    itt,
                    ttt: Ttt::NONE,
                    cmd_sn,
                    exp_stat_sn,
                };
                (text.encode(), Vec::from(&b"SendTargets=\0X-y=1\0"[..]))
            }
            9 if self.rng.chance(1, 6) => {
                let reason = [
                    LogoutReason::CloseSession,
                    LogoutReason::CloseConnection,
                    LogoutReason::RemoveForRecovery,
                ][pick(&mut self.rng, 3)];
                let cid = u16::try_from(self.rng.below(4)).unwrap();
                (LogoutRequest { immediate, reason, itt, cid, cmd_sn, exp_stat_sn }.encode(), Vec::new())
            }
            _ => {
                let mut bytes = [0; 48];
                self.rng.fill(&mut bytes);
                (Bhs::from_bytes(bytes).with_ahs_len(0), pattern(0, pick(&mut self.rng, 100)))
            }
        };
        self.send(conn, bhs, &data);
    }

    fn send_tmf(&mut self) {
        let Some(conn) = self.any_conn() else { return };
        let immediate = self.rng.chance(7, 8);
        let cmd_sn = self.number(conn, immediate);
        let tmf = TmfRequest {
            immediate,
            function: match self.rng.below(3) {
                0 => TmfFunction::TASK_REASSIGN,
                _ => TmfFunction(u8::try_from(self.rng.below(14)).unwrap()),
            },
            lun: [0, LUN][pick(&mut self.rng, 2)],
            itt: self.tag(),
            referenced_task_tag: Itt(self.tags.wrapping_sub(u32::try_from(self.rng.below(10)).unwrap())),
            cmd_sn,
            exp_stat_sn: StatSn(0),
            ref_cmd_sn: cmd_sn.minus(u32::try_from(self.rng.below(4)).unwrap()),
            exp_data_sn: DataSn(u32::try_from(self.rng.below(3)).unwrap()),
        };
        self.send(conn, tmf.encode(), &[]);
    }

    /// Sends a PDU in pieces, into the engine's receive buffer where one is available, and sometimes damaged
    /// if a digest detects that.
    fn send(&mut self, conn: ConnId, bhs: Bhs, data: &[u8]) {
        let acked = self.acked.get(&conn).copied().unwrap_or(0);
        let acked = match self.rng.below(8) {
            0 => acked.wrapping_sub(u32::try_from(self.rng.below(4)).unwrap()),
            1 if self.rng.chance(1, 4) => u32::try_from(self.rng.below(1 << 32)).unwrap(),
            1..=3 => 0,
            _ => acked,
        };
        let mut header = bhs.to_bytes();
        header[28..32].copy_from_slice(&acked.to_be_bytes());
        let bhs = Bhs::from_bytes(header);
        let mut bytes = self.world.frame(conn, bhs, &[], data);
        let peer = &self.world.peers[&conn];
        if peer.header_digest && peer.data_digest && self.rng.chance(1, 80) {
            let at = pick(&mut self.rng, bytes.len());
            bytes[at] ^= 1 << self.rng.below(8);
        }
        let mut rest = &bytes[..];
        while !rest.is_empty() && self.world.ended(conn).is_none() {
            let size = if self.rng.chance(1, 2) { rest.len() } else { 1 + pick(&mut self.rng, rest.len()) };
            let (mut now, later) = rest.split_at(size);
            rest = later;
            if let Some(mut rx_buffer) = self.world.engine.take_rx_buffer(conn) {
                let (into, behind) = now.split_at(rx_buffer.len_max.min(now.len()));
                rx_buffer.buf.append(into);
                now = behind;
                self.world.engine.return_rx_buffer(self.world.now, conn, rx_buffer, &self.world.names);
            }
            self.world.feed(conn, now);
        }
    }

    fn stall_or_not(&mut self) {
        let Some(conn) = self.any_conn() else { return };
        if self.world.stalled.remove(&conn) {
            self.world.transmit(conn);
            self.world.drain();
        } else if self.rng.chance(1, 6) {
            self.world.stalled.insert(conn);
        }
    }

    fn hang_up(&mut self) {
        if let Some(conn) = self.any_conn() {
            self.conns.retain(|other| *other != conn);
            self.world.hang_up(conn, DisconnectReason::Failed);
        }
    }

    fn speak_up(&mut self) {
        let Some(session) = self.sessions.keys().next().copied() else { return };
        let now = self.world.now;
        match self.rng.below(3) {
            0 => self.world.engine.close_session(now, session),
            1 => {
                let within = Duration::from_secs(2);
                self.world.engine.async_message(now, session, AsyncEvent::LogoutRequest { within });
            }
            _ => self.world.engine.async_message(now, session, AsyncEvent::Scsi { lun: 0, sense: &[0x70] }),
        }
        self.world.drain();
    }

    /// Lets the layer above act on one of its tasks or requests.
    fn serve(&mut self) {
        if !self.manages.is_empty() && self.rng.chance(1, 2) {
            let at = pick(&mut self.rng, self.manages.len());
            let manage = self.manages.swap_remove(at);
            let whole = manage.function.0 >= TmfFunction::TARGET_WARM_RESET.0;
            let ends: Vec<TaskRef> = match manage.function {
                TmfFunction::ABORT_TASK => manage.task.into_iter().collect(),
                TmfFunction::ABORT_TASK_SET
                | TmfFunction::LOGICAL_UNIT_RESET
                | TmfFunction::TARGET_WARM_RESET => self
                    .held
                    .iter()
                    .filter(|(_, held)| whole || held.command.lun == manage.lun)
                    .map(|(task, _)| *task)
                    .collect(),
                _ => Vec::new(),
            };
            for task in ends {
                if self.held.remove(&task).is_some() {
                    self.world.engine.abort(task);
                }
            }
            self.world.engine.finish_tmf(manage.tmf, TmfResult::COMPLETE);
            return self.world.drain();
        }
        if self.held.is_empty() {
            return;
        }
        let at = pick(&mut self.rng, self.held.len());
        let task = *self.held.keys().nth(at).unwrap();
        let held = self.held.get_mut(&task).unwrap();
        let (len_in, len_out) = (held.command.data_in_len, held.command.data_out_len);
        match self.rng.below(8) {
            0..=3 if len_out > 0 && held.fetches.len() < 3 => {
                let offset = u32::try_from(self.rng.below(len_out.into())).unwrap();
                let len = 1 + u32::try_from(self.rng.below((len_out - offset).into())).unwrap();
                held.fetches.push((offset, len));
                self.world.engine.fetch(task, offset, len);
            }
            0..=5 if held.sent < len_in => {
                let len = 1 + u32::try_from(self.rng.below((len_in - held.sent).into())).unwrap();
                let data = Bytes::copied_from(&pattern(held.sent, len as usize));
                self.world.engine.data_in(task, held.sent, data.into());
                held.sent += len;
            }
            6.. => {
                let good = self.rng.chance(3, 4);
                let sense: &[u8] = if good { &[] } else { &[0x70, 0, 5] };
                let status = if good { 0 } else { 2 };
                let transferable = held.sent.into();
                self.held.remove(&task);
                self.world
                    .engine
                    .finish(task, Finish { status, sense, transferable, is_unit_attention: false });
            }
            _ => {}
        }
        self.world.drain();
    }

    /// Processes all output, of the events and of the connections.
    fn look(&mut self) {
        while let Some(event) = self.world.next_event() {
            self.hear(event);
        }
        let ended: Vec<ConnId> =
            self.conns.iter().copied().filter(|conn| self.world.ended(*conn).is_some()).collect();
        self.conns.retain(|conn| !ended.contains(conn));
        for conn in self.conns.clone() {
            while let Some(got) = self.world.receive(conn) {
                // The initiator continues with ExpCmdSN, so it uses a number again that the target did not
                // receive.
                let exp_cmd_sn = got.bhs.to_bytes()[28..32].try_into().map(u32::from_be_bytes).unwrap();
                self.world.peers.get_mut(&conn).unwrap().cmd_sn = exp_cmd_sn;
                let stat_sn = got.bhs.to_bytes()[24..28].try_into().map(u32::from_be_bytes).unwrap();
                if stat_sn != 0 {
                    self.acked.insert(conn, stat_sn);
                }
                match got.bhs.opcode() {
                    Opcode::R2T => self.r2ts.push((conn, got.read())),
                    Opcode::DATA_IN => {
                        let data: crate::pdu::data_in::DataIn = got.read();
                        assert_eq!(got.data, pattern(data.buffer_offset, got.data.len()));
                    }
                    _ => {}
                }
            }
        }
        assert_eq!(self.world.engine.stats().bugs, 0);
    }

    fn hear(&mut self, event: Event) {
        match event {
            Event::SessionUp(up) => {
                let conn = self.conns.last().copied().unwrap_or(ConnId(0));
                assert!(self.sessions.insert(up.session, conn).is_none());
            }
            Event::Command(command) => {
                assert!(self.sessions.contains_key(&command.session));
                let held = Held { command: command.clone(), fetches: Vec::new(), sent: 0 };
                assert!(self.held.insert(command.task, held).is_none());
            }
            Event::TasksCleared { session, .. } => assert!(self.sessions.contains_key(&session)),
            Event::DataOut { task, offset, data } => {
                // The data may have been queued as an event when the task ended.
                let Some(held) = self.held.get_mut(&task) else { return };
                let len = u32::try_from(data.len()).unwrap();
                let at = held.fetches.iter().position(|fetch| *fetch == (offset, len));
                held.fetches.swap_remove(at.unwrap_or_else(|| panic!("{offset}+{len} was not asked for")));
                let mut bytes = alloc::vec![0; data.len()];
                data.copy_to(0, &mut bytes);
                assert!(bytes == pattern(offset, bytes.len()), "bytes of {offset}+{len} are out of place");
            }
            Event::Tmf(manage) => self.manages.push(manage),
            Event::TaskGone { task } => {
                assert!(self.held.remove(&task).is_some(), "a task goes once");
            }
            Event::SessionDown { session, why: _ } => {
                assert!(self.sessions.remove(&session).is_some());
                assert!(self.held.values().all(|held| held.command.session != session));
                self.manages.retain(|manage| manage.session != session);
            }
        }
    }

    fn end(&mut self) {
        for conn in core::mem::take(&mut self.conns) {
            self.world.hang_up(conn, DisconnectReason::Failed);
        }
        // Tasks that wait for another connection wait no longer than this.
        self.world.pass(Duration::from_secs(60));
        while let Some(event) = self.world.next_event() {
            self.hear(event);
        }
        assert!(self.held.is_empty() && self.sessions.is_empty());
        let engine = &self.world.engine;
        assert_eq!((engine.sessions().count(), engine.tasks.len(), engine.tmfs.len()), (0, 0, 0));
        assert_eq!(
            [&engine.quotas.unsolicited, &engine.quotas.solicited, &engine.quotas.data_in]
                .map(|budget| budget.used()),
            [0; 3]
        );
        self.world.pass(Duration::from_secs(1000));
        assert_eq!(self.world.engine.poll_timeout(), None);
    }
}

fn pick(rng: &mut Rng, count: usize) -> usize {
    usize::try_from(rng.below(count as u64)).unwrap()
}
