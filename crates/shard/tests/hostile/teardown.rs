//! A connection, a session or a task ends at the worst moment.

use base::state_machine::{DisconnectReason, StreamMachine as _};
use base::time::Duration;
use iscsi::pdu::login_request::LoginRequest;
use iscsi::pdu::logout_request::{LogoutReason, LogoutRequest};
use iscsi::pdu::scsi_response::ScsiResponse;
use iscsi::pdu::{Itt, Opcode, PduHeader};
use iscsi::serial::{CmdSn, StatSn};
use iscsi::target::engine::Limits;
use transport::task_management::TmfFunction;

use crate::medium::{Keeper, held};
use crate::pair::{BLOCK, TARGET, World, config, login_request, pattern};
use crate::peer::{MALLORY, NO_DIGESTS, Peer, Witness};

/// So small a memory quota that a leak of a few hundred bytes for each connection would use it up soon.
const LIMITS: fn() -> Limits =
    || Limits { data_out_bytes_max: 1 << 20, idle_within: Duration::ZERO, ..Limits::default() };

fn world() -> (World, Keeper, Witness) {
    let (medium, keeper) = held(8 << 20);
    let mut world = World::with(config(&[(0, 0)], vec![]), vec![medium], LIMITS());
    let witness = Witness::login(&mut world, 0);
    (world, keeper, witness)
}

fn login(world: &mut World) -> Peer {
    let keys = format!("{NO_DIGESTS}InitialR2T=No\0MaxBurstLength=65536\0FirstBurstLength=65536\0");
    Peer::settle(world, MALLORY, &keys)
}

/// CVE-2026-23216: the medium still executes a write of a session that has ended when the next session writes
/// the same blocks.
#[test]
fn no_write_of_a_dead_session_lands_on_top_of_what_came_after() {
    for youngest_first in [false, true] {
        for blocks in [1, 8] {
            let (mut world, keeper, mut witness) = world();
            let mut peer = login(&mut world);
            keeper.hold(true);
            let old = peer.write_command(0, 100, 8);
            peer.send(&mut world, old.encode(), &[0x0d; 8 * BLOCK]);
            assert_eq!(keeper.writes_waiting(), 1);
            world.cut(peer.conn);
            let mut peer = login(&mut world);
            let new = peer.write_command(0, 107, blocks);
            peer.send(&mut world, new.encode(), &vec![0x9e; usize::from(blocks) * BLOCK]);
            while keeper.release(&mut world, 0, youngest_first) {}
            assert_eq!(peer.hear(&mut world), [Opcode::SCSI_RESPONSE]);
            let after = keeper.peek(107 * 512, usize::from(blocks) * BLOCK);
            assert!(
                after.iter().all(|byte| *byte == 0x9e),
                "{blocks} blocks, youngest first: {youngest_first}"
            );
            keeper.hold(false);
            witness.works(&mut world);
        }
    }
}

/// How the connection ends.
#[derive(Clone, Copy, Debug)]
enum End {
    /// The transport fails.
    Cut,
    /// The peer closes its side in order.
    Closed,
    /// The initiator logs in again before the target notices that the old connection is gone (session
    /// reinstatement).
    Reinstated,
    /// The peer sends nothing more.
    Silence,
}

fn end(world: &mut World, peer: &Peer, end: End) {
    if world.is_open(peer.conn) {
        match end {
            End::Cut => world.cut(peer.conn),
            End::Closed => {
                *world.wire(peer.conn).1 = false;
                world.shard.disconnected(world.now, peer.conn, DisconnectReason::Closed);
                world.drain();
            }
            End::Reinstated => {
                let again = login(world);
                assert!(!world.is_open(peer.conn), "the old connection of a reinstated session");
                world.cut(again.conn);
                world.forget(again.conn);
            }
            End::Silence => {}
        }
    }
}

type Exchange = fn(&mut World, &mut Peer);

/// The exchanges during which a hostile initiator disappears. Each returns when its connection is gone.
const EXCHANGES: [(&str, Exchange); 6] = [
    ("small write", |world, peer| peer.write(world, 64, &pattern(8 * BLOCK, 1))),
    ("write of every kind of data", |world, peer| peer.write(world, 64, &pattern(200 * BLOCK, 1))),
    ("reads", |world, peer| {
        for lba in 0..4 {
            let command = peer.read_command(0, 64 + lba, 300);
            peer.send(world, command.encode(), &[]);
        }
    }),
    ("management of a write that waits for data", |world, peer| {
        for function in [
            TmfFunction::ABORT_TASK,
            TmfFunction::ABORT_TASK_SET,
            TmfFunction::CLEAR_TASK_SET,
            TmfFunction::QUERY_TASK,
        ] {
            let command = peer.write_command(0, 64, 200);
            peer.send(world, command.encode(), &[]);
            let request = peer.manage(function, 0, command.itt);
            peer.send(world, request.encode(), &[]);
            while let Some(r2t) = peer.next_r2t(world) {
                let len = usize::try_from(r2t.desired_data_transfer_length).unwrap();
                peer.send_sequence(world, &peer.answer(&r2t), &vec![0; len]);
            }
        }
    }),
    ("pings and texts", |world, peer| {
        for len in [0, 1, 8000] {
            let ping = peer.ping();
            peer.send(world, ping.encode(), &pattern(len, 2));
            let text = peer.text();
            peer.send(world, text.encode(), b"SendTargets=\0");
        }
    }),
    ("commands, then a logout", |world, peer| {
        let write = peer.write_command(0, 64, 200);
        peer.send(world, write.encode(), &pattern(2 * BLOCK, 1));
        let read = peer.read_command(0, 64, 8);
        peer.send(world, read.encode(), &[]);
        let logout = LogoutRequest {
            immediate: true,
            reason: LogoutReason::CloseSession,
            itt: Itt(99),
            cid: 0,
            cmd_sn: CmdSn(peer.cmd_sn),
            exp_stat_sn: StatSn(peer.exp_stat_sn),
        };
        peer.send(world, logout.encode(), &[]);
    }),
];

/// Returns how many bytes an initiator sends in an exchange.
fn total(world: &mut World, exchange: Exchange) -> usize {
    let mut peer = login(world);
    exchange(world, &mut peer);
    end(world, &peer, End::Cut);
    usize::MAX - peer.fuse.get()
}

/// Returns where to break an exchange of `total` bytes: at every byte of the first PDUs, then at intervals.
fn cuts(total: usize) -> impl Iterator<Item = usize> {
    (1..total.min(100)).chain((100..total).step_by(2777)).chain([total - 1])
}

/// CVE-2026-23216: commands are in flight while their connection ends, at any byte of any exchange, with the
/// medium idle or busy.
#[test]
fn a_connection_may_end_at_any_byte_of_any_exchange() {
    for (name, exchange) in EXCHANGES {
        let (mut world, keeper, mut witness) = world();
        let total = total(&mut world, exchange);
        for (round, cut) in cuts(total).enumerate() {
            let mut peer = login(&mut world);
            peer.fuse.set(cut);
            keeper.hold(round % 2 == 0);
            exchange(&mut world, &mut peer);
            end(&mut world, &peer, [End::Cut, End::Closed][round / 2 % 2]);
            keeper.hold(false);
            if round % 4 == 0 {
                witness.works(&mut world);
            }
            while keeper.release(&mut world, 0, round / 4 % 2 == 0) {}
            world.forget(peer.conn);
            assert!(blocks_are_whole(&keeper), "{name}, cut after {cut} bytes");
        }
        witness.works(&mut world);
        settled(&world, name);
    }
}

/// CVE-2026-23216: the same if the protocol ends the session and not the network: a login that replaces the
/// session (session reinstatement), or a timeout of the target.
#[test]
fn a_session_may_be_replaced_or_given_up_at_any_pdu_of_any_exchange() {
    for (name, exchange) in EXCHANGES {
        let (mut world, keeper, mut witness) = world();
        let total = total(&mut world, exchange);
        for (round, cut) in cuts(total).step_by(5).enumerate() {
            let mut peer = login(&mut world);
            keeper.hold(round % 2 == 0);
            // No more bytes arrive, and the connection stays open.
            let conn = peer.conn;
            peer.fuse.set(cut);
            peer.stalls = true;
            exchange(&mut world, &mut peer);
            let how = [End::Reinstated, End::Silence][round / 2 % 2];
            end(&mut world, &peer, how);
            keeper.hold(false);
            if let End::Silence = how {
                for _ in 0..4 {
                    world.pass(Duration::from_secs(15));
                    witness.works(&mut world);
                }
            }
            assert!(!world.is_open(conn), "{name}, stopped after {cut} bytes, {how:?}");
            while keeper.release(&mut world, 0, round / 4 % 2 == 0) {}
            world.forget(conn);
            assert!(blocks_are_whole(&keeper), "{name}, stopped after {cut} bytes");
        }
        settled(&world, name);
    }
}

/// An initiator closes one of two connections while commands of it wait for data.
#[test]
fn a_logout_that_ends_commands_leaves_a_unit_attention() {
    //= rfc7143#section-11.14.5
    //= type=test
    //# After the tasks are terminated, the target MUST report a Unit Attention condition on the next command
    //# processed on any connection for each affected I_T_L nexus with the status of CHECK CONDITION, the
    //# ASC/ASCQ value of 47h/7Fh ("SOME COMMANDS CLEARED BY ISCSI PROTOCOL EVENT"), etc.; see [SPC3].
    let mut config = config(&[(0, 0), (1, 1)], vec![]);
    config.targets[0].keys.max_connections = 2;
    let media = vec![held(8 << 20).0, held(8 << 20).0];
    let mut world = World::with(config, media, LIMITS());
    let keys = format!("{NO_DIGESTS}MaxConnections=2\0");
    let mut first = Peer::settle(&mut world, MALLORY, &keys);
    let tsih = world.shard.sessions()[0].tsih;
    for lun in [0, 1] {
        while run(&mut world, &mut first, lun).0 != 0 {}
    }
    let mut second = Peer::connect(&mut world);
    second.cmd_sn = first.cmd_sn;
    let joins = LoginRequest { tsih, cid: 1, cmd_sn: CmdSn(first.cmd_sn), ..login_request(1) };
    let text = format!("InitiatorName={MALLORY}\0TargetName={TARGET}\0{NO_DIGESTS}");
    second.send(&mut world, joins.encode(), text.as_bytes());
    assert_eq!(second.hear(&mut world), [Opcode::LOGIN_RESPONSE]);
    for _ in 0..2 {
        let write = second.write_command(0, 64, 200);
        second.send(&mut world, write.encode(), &[]);
    }
    first.cmd_sn = second.cmd_sn;
    let logout = LogoutRequest {
        immediate: true,
        reason: LogoutReason::CloseConnection,
        itt: first.tag(),
        cid: 1,
        cmd_sn: CmdSn(first.cmd_sn),
        exp_stat_sn: StatSn(first.exp_stat_sn),
    };
    first.send(&mut world, logout.encode(), &[]);
    assert_eq!(first.hear(&mut world), [Opcode::LOGOUT_RESPONSE]);
    assert!(!world.is_open(second.conn));
    // The other unit lost no command, and the first one says so once.
    assert_eq!(run(&mut world, &mut first, 1), (0, [0; 3]));
    assert_eq!(run(&mut world, &mut first, 0), (2, [0x06, 0x47, 0x7f]));
    assert_eq!(run(&mut world, &mut first, 0), (0, [0; 3]));
}

/// Runs TEST UNIT READY. Returns the status and the sense codes.
fn run(world: &mut World, peer: &mut Peer, lun: u64) -> (u8, [u8; 3]) {
    let command = peer.command(lun, &[0; 6]);
    peer.send(world, command.encode(), &[]);
    let (bhs, data) = peer.receive(world).expect("a response");
    let sense = data.get(2..).filter(|sense| !sense.is_empty());
    let codes = sense.map_or([0; 3], |sense| match sense[0] & 0x7f {
        0x70 => [sense[2] & 15, sense[12], sense[13]],
        _ => [sense[1], sense[2], sense[3]],
    });
    (ScsiResponse::decode(&bhs).unwrap().status, codes)
}

/// Asserts that only the session of the witness is left, and that it has no open task.
fn settled(world: &World, name: &str) {
    let sessions = world.shard.sessions();
    assert_eq!((sessions.len(), sessions[0].tasks), (1, 0), "{name}");
    assert!(world.shard.units().iter().all(|unit| unit.stats.tasks == 0), "{name}");
}

/// Returns whether each block holds the data of one write, or zeros.
fn blocks_are_whole(keeper: &Keeper) -> bool {
    let (area, written) = (keeper.peek(64 * 512, 200 * BLOCK), pattern(200 * BLOCK, 1));
    area.chunks(BLOCK).zip(written.chunks(BLOCK)).all(|(have, new)| have == new || have == [0; BLOCK])
}
