//! Traces: what they show is what stands on the wire, and no secret.

extern crate std;

use alloc::string::{String, ToString};
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::net::SocketAddr;
use std::sync::Mutex;

use base::state_machine::DisconnectReason;
use transport::target::Finish;

use super::world::{INITIATOR, TARGET, TLS_PORTAL, World, data_out, pattern};
use crate::chap::Algorithms;
use crate::login::directory::AuthPolicy;
use crate::pdu::r2t::R2t;
use crate::pdu::{BHS_LEN, Opcode, PduHeader};
use crate::trace::{PduTrace, TracedPdu};

/// The CDB of a command whose data is secret.
const SECRET: u8 = 0xb5;

#[derive(Debug, Default)]
struct Kept {
    takes_protected: bool,
    target: Option<&'static str>,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    opened: u64,
    closed: u64,
    ended: bool,
    pdus: Vec<Shown>,
}

/// A PDU that was shown.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Shown {
    received: bool,
    opcode: Opcode,
    bytes: Vec<u8>,
    data: Vec<u8>,
    data_len: usize,
}

impl PduTrace for Kept {
    fn selects(&self, initiator: &str, target: Option<&str>, _: [u8; 6]) -> bool {
        initiator == INITIATOR && (self.target.is_none() || self.target == target)
    }

    fn takes_protected(&self) -> bool {
        self.takes_protected
    }

    fn carries_secret(&self, cdb: &[u8]) -> bool {
        cdb.len() == 16 && cdb[0] == SECRET
    }

    fn opened(&self, local: SocketAddr, peer: SocketAddr) -> u64 {
        assert_eq!((local.port(), peer.port()), (3260, 40000));
        let mut state = self.state.lock().unwrap();
        state.opened += 1;
        state.opened
    }

    fn record(&self, connection: u64, pdu: &TracedPdu<'_>) {
        let mut state = self.state.lock().unwrap();
        assert!((1..=state.opened).contains(&connection));
        let data = pdu.data.concat();
        state.pdus.push(Shown {
            received: pdu.received,
            opcode: Opcode(pdu.header[0] & 0x3f),
            bytes: [pdu.header, &data, pdu.trailer].concat(),
            data,
            data_len: pdu.data_len,
        });
    }

    fn closed(&self, _: u64) {
        self.state.lock().unwrap().closed += 1;
    }

    fn has_ended(&self) -> bool {
        self.state.lock().unwrap().ended
    }
}

impl Kept {
    fn start(world: &mut World, kept: Self) -> (Arc<Self>, usize) {
        let kept = Arc::new(kept);
        let sessions = world.engine.start_trace(Arc::clone(&kept) as _);
        (kept, sessions)
    }

    fn take(&self) -> Vec<Shown> {
        core::mem::take(&mut self.state.lock().unwrap().pdus)
    }

    /// Returns how many connections are open.
    fn open(&self) -> u64 {
        let state = self.state.lock().unwrap();
        state.opened - state.closed
    }
}

fn one_direction(pdus: &[Shown], received: bool) -> Vec<u8> {
    pdus.iter().filter(|pdu| pdu.received == received).flat_map(|pdu| pdu.bytes.clone()).collect()
}

#[test]
fn every_pdu_is_shown_as_it_is_on_the_wire_in_both_directions() {
    for digests in [&["HeaderDigest=CRC32C", "DataDigest=CRC32C"][..], &["DataDigest=CRC32C"], &[]] {
        let mut world = World::new();
        let (conn, _) = world.login(
            &[&["ImmediateData=Yes", "FirstBurstLength=8192", "MaxBurstLength=16384"], digests].concat(),
        );
        let (kept, sessions) = Kept::start(&mut world, Kept::default());
        assert_eq!((sessions, kept.open()), (1, 1));
        let write = world.write(conn, 40_001);
        let data = pattern(0, 40_001);
        let mut sent = world.frame(conn, write.encode(), &[], &data[..4001]);
        let up = world.start(conn, &write, &data[..4001]);
        world.fetch(up.task, 4001, 16_000);
        let mut wire = world.peers[&conn].inbox.clone();
        let r2t: R2t = world.expect(conn);
        let pdu = data_out(&write, r2t.ttt, 0, 4001, true).encode();
        let bytes = world.frame(conn, pdu, &[], &data[4001..20_001]);
        sent.extend_from_slice(&bytes);
        // In pieces, and the last part into the driver's buffer.
        let (front, rest) = bytes.split_at(60);
        world.feed(conn, front);
        world.feed(conn, rest);
        assert_eq!(world.expect_data(up.task, 4001), &data[4001..20_001]);
        world.finish(up.task, Finish::good(20_001));
        wire.extend_from_slice(&world.peers[&conn].inbox);
        world.expect_any(conn);
        let read = world.read(conn, 9001);
        sent.extend_from_slice(&world.frame(conn, read.encode(), &[], &[]));
        let up = world.start(conn, &read, &[]);
        world.data_in(up.task, 0, &data[..9001]);
        world.finish(up.task, Finish::good(9001));
        wire.extend_from_slice(&world.peers[&conn].inbox);
        let pdus = kept.take();
        assert!(one_direction(&pdus, true) == sent, "received, {digests:?}");
        assert!(one_direction(&pdus, false) == wire, "sent, {digests:?}");
        let order: Vec<Opcode> = pdus.iter().map(|pdu| pdu.opcode).collect();
        let wanted = [Opcode::SCSI_COMMAND, Opcode::R2T, Opcode::DATA_OUT, Opcode::SCSI_RESPONSE];
        assert_eq!(order[..5], [&wanted[..], &[Opcode::SCSI_COMMAND]].concat(), "in their order");
        assert!(pdus.iter().all(|pdu| pdu.data.len() == pdu.data_len));
    }
}

#[test]
fn secrets_of_a_login_are_masked_and_keep_their_length() {
    let mut world = World::new();
    world.names.auth = AuthPolicy { chap: Algorithms::ALL, ..AuthPolicy::default() };
    let (kept, sessions) = Kept::start(&mut world, Kept::default());
    assert_eq!(sessions, 0);
    let conn = world.connect();
    let name = ["InitiatorName=", INITIATOR, "\0TargetName=", TARGET, "\0SessionType=Normal\0"].concat();
    let mut request = world.login_request(conn, (0, 0, 0));
    (request.transit, request.csg, request.nsg) = (false, 0, 0);
    world.send(conn, &request, [&name, "AuthMethod=CHAP\0"].concat().as_bytes());
    world.expect_any(conn);
    world.send(conn, &request, b"CHAP_A=5\0");
    world.expect_any(conn);
    // A key and its value are divided between PDUs that belong together.
    request.continues = true;
    world.send(conn, &request, b"CHAP_N=somebody\0CHA");
    world.expect_any(conn);
    world.send(conn, &request, b"P_R=0x0011");
    world.expect_any(conn);
    request.continues = false;
    world.send(conn, &request, b"2233445566778899aabbccddee\0");
    let pdus = kept.take();
    let requests = pdus.iter().filter(|pdu| pdu.received);
    let texts: Vec<String> = requests.map(|pdu| String::from_utf8_lossy(&pdu.data).to_string()).collect();
    assert_eq!(texts[0], [&name, "AuthMethod=CHAP\0"].concat());
    assert_eq!(texts[2..], ["CHAP_N=********\0CHA", "P_R=******", "**************************\0"]);
    let responses = pdus.iter().filter(|pdu| !pdu.received);
    let answers: Vec<String> = responses.map(|pdu| String::from_utf8_lossy(&pdu.data).to_string()).collect();
    assert!(answers.iter().any(|text| text.contains("CHAP_C=0x")), "{answers:?}");
}

#[test]
fn the_data_of_secret_commands_and_of_tasks_begun_before_is_left_out() {
    let mut world = World::new();
    let (conn, _) = world.login(&["ImmediateData=Yes"]);
    let early = world.read(conn, 100);
    let early = world.start(conn, &early, &[]);
    let (kept, _) = Kept::start(&mut world, Kept::default());
    world.data_in(early.task, 0, &[1; 100]);
    world.finish(early.task, Finish::good(100));
    let mut command = world.write(conn, 100);
    command.cdb[0] = SECRET;
    let up = world.start(conn, &command, &[2; 50]);
    world.fetch(up.task, 50, 50);
    // The data and the status of the first task.
    world.expect_any(conn);
    world.expect_any(conn);
    let r2t: R2t = world.expect(conn);
    world.send(conn, &data_out(&command, r2t.ttt, 0, 50, true), &[3; 50]);
    world.next_event();
    world.finish(up.task, Finish::good(100));
    let after = world.write(conn, 50);
    world.start(conn, &after, &[4; 50]);
    let pdus = kept.take();
    let with_data: Vec<_> = pdus
        .iter()
        .filter(|pdu| pdu.data_len > 0)
        .map(|pdu| (pdu.opcode, pdu.data.len(), pdu.data_len))
        .collect();
    let wanted = [
        (Opcode::DATA_IN, 0, 100),
        (Opcode::SCSI_COMMAND, 0, 50),
        (Opcode::DATA_OUT, 0, 50),
        (Opcode::SCSI_COMMAND, 50, 50),
    ];
    assert_eq!(with_data, wanted);
}

#[test]
fn a_protected_connection_is_shown_only_if_the_trace_takes_it() {
    for takes_protected in [false, true] {
        let mut world = World::new();
        world.portal = TLS_PORTAL;
        let (kept, _) = Kept::start(&mut world, Kept { takes_protected, ..Kept::default() });
        let (conn, _) = world.login(&[]);
        let command = world.command(conn);
        world.start(conn, &command, &[]);
        assert_eq!(!kept.take().is_empty(), takes_protected);
        let (later, sessions) = Kept::start(&mut world, Kept { takes_protected, ..Kept::default() });
        assert_eq!((sessions, later.open()), (usize::from(takes_protected), u64::from(takes_protected)));
    }
}

#[test]
fn a_trace_shows_the_sessions_that_it_selects_until_it_or_they_end() {
    let mut world = World::new();
    let (elsewhere, _) = Kept::start(&mut world, Kept { target: Some("iqn.other"), ..Kept::default() });
    let (all, _) = Kept::start(&mut world, Kept { target: Some(TARGET), ..Kept::default() });
    let (conn, _) = world.login(&[]);
    let login = all.take();
    assert_eq!(login[0].opcode, Opcode::LOGIN_REQUEST);
    assert_eq!((login.len(), login[1].bytes.len() % 4), (2, 0));
    assert!(login[1].bytes.len() > BHS_LEN);
    let command = world.command(conn);
    world.start(conn, &command, &[]);
    assert_eq!(all.take().len(), 1);
    world.hang_up(conn, DisconnectReason::Closed);
    assert_eq!((all.open(), elsewhere.state.lock().unwrap().opened), (0, 0));
    let (conn, _) = world.login_again();
    assert_eq!(all.take().len(), 2);
    all.state.lock().unwrap().ended = true;
    world.engine.drop_ended_traces();
    assert_eq!((all.open(), Arc::strong_count(&all)), (0, 1));
    let command = world.command(conn);
    world.start(conn, &command, &[]);
    assert!(all.take().is_empty());
}

#[test]
fn a_session_that_logs_in_while_a_trace_is_on_is_shown_only_if_the_trace_selects_it() {
    for (target, is_shown) in [(None, true), (Some(TARGET), true), (Some("iqn.2026-01.test:other"), false)] {
        let mut world = World::new();
        let (kept, sessions) = Kept::start(&mut world, Kept { target, ..Kept::default() });
        assert_eq!(sessions, 0);
        let (conn, _) = world.login(&[]);
        kept.take();
        let command = world.command(conn);
        let task = world.start(conn, &command, &[]).task;
        world.finish(task, Finish::good(0));
        let opcodes: Vec<_> = kept.take().iter().map(|pdu| pdu.opcode).collect();
        let expected: &[_] = if is_shown { &[Opcode::SCSI_COMMAND, Opcode::SCSI_RESPONSE] } else { &[] };
        assert_eq!(opcodes, expected, "{target:?}");
    }
}
