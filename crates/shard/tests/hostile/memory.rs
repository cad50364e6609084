//! Peers that try to exhaust the target's memory: they request much and read nothing, or announce much and
//! send nothing.

use base::time::Duration;
use iscsi::pdu::login_request::LoginRequest;
use iscsi::pdu::logout_request::{LogoutReason, LogoutRequest};
use iscsi::pdu::nop_out::NopOut;
use iscsi::pdu::{Itt, PduHeader};
use iscsi::serial::{CmdSn, StatSn};
use iscsi::target::engine::Limits;
use store::Store;
use store::ram::Ram;

use crate::pair::{World, config, login_request};
use crate::peer::{NO_DIGESTS, Peer, Witness};

const LIMITS: fn() -> Limits =
    || Limits { data_out_bytes_max: 16 << 20, unsent_bytes_max: 1 << 20, ..Limits::default() };

fn world() -> (World, Witness) {
    let media: Vec<Box<dyn Store>> = vec![Box::new(Ram::new(16 << 20))];
    let mut world = World::with(config(&[(0, 0)], vec![]), media, LIMITS());
    let witness = Witness::login(&mut world, 0);
    (world, witness)
}

fn mallory(world: &mut World, number: u8) -> Peer {
    let name = format!("iqn.2026-11.org.example:mallory{number}");
    Peer::settle(world, &name, &format!("{NO_DIGESTS}InitialR2T=No\0"))
}

/// Answers the target's pings and sends nothing else.
fn pongs(world: &mut World, peer: &mut Peer) {
    let ping = NopOut { itt: Itt::NONE, ..peer.ping() };
    peer.send(world, ping.encode(), &[]);
}

/// Advances the time while the peers answer pings and do nothing else.
fn idle(world: &mut World, peers: &mut [Peer], witness: &mut Witness, seconds: u64) {
    for _ in 0..seconds / 10 {
        world.pass(Duration::from_secs(10));
        for peer in &mut *peers {
            if world.is_open(peer.conn) {
                pongs(world, peer);
            }
        }
        witness.works(world);
    }
}

/// Each peer requests writes of far more data than the memory quota allows, and never sends the data.
#[test]
fn writes_that_never_send_their_data_leave_room_for_others_and_are_given_up() {
    for count in [1, 7] {
        let (mut world, mut witness) = world();
        let mut peers: Vec<_> = (0..count).map(|number| mallory(&mut world, number)).collect();
        for peer in &mut peers {
            for _ in 0..100 {
                let command = peer.write_command(0, 0, 8192);
                peer.send(&mut world, command.encode(), &[]);
            }
        }
        witness.works(&mut world);
        idle(&mut world, &mut peers, &mut witness, 300);
        // A command that was refused no longer waits for data.
        assert!(world.shard.sessions().iter().all(|session| session.tasks == 0), "they owe data for minutes");
        assert!(!world.is_open(peers[0].conn));
    }
}

/// Each peer announces unsolicited data with every command and sends one byte of it.
#[test]
fn unsolicited_data_that_never_comes_leaves_room_for_others() {
    for count in [1, 7] {
        let (mut world, mut witness) = world();
        let mut peers: Vec<_> = (0..count).map(|number| mallory(&mut world, number)).collect();
        for peer in &mut peers {
            for _ in 0..100 {
                let command = peer.write_command(0, 0, 512);
                let command = iscsi::pdu::scsi_command::ScsiCommand { is_final: false, ..command };
                peer.send(&mut world, command.encode(), &[7]);
            }
        }
        witness.works(&mut world);
        idle(&mut world, &mut peers, &mut witness, 120);
        assert_eq!(world.shard.sessions().len(), 1, "they owe data for two minutes");
    }
}

/// Each peer reads as much as it can request and receives none of it. It sends pings, so that the target does
/// not take it for dead. (A connection whose peer receives nothing is closed by the driver.)
#[test]
fn answers_that_nobody_reads_are_bounded() {
    for count in [1, 7] {
        let (mut world, mut witness) = world();
        let mut peers: Vec<_> = (0..count).map(|number| mallory(&mut world, number)).collect();
        for peer in &mut peers {
            world.deaf.push(peer.conn);
            let mut batch = vec![];
            for _ in 0..100 {
                let command = peer.read_command(0, 0, 8192);
                batch.extend(peer.frame(command.encode(), &[], &[], crate::peer::Damage::Nothing));
            }
            peer.send_bytes(&mut world, &batch);
        }
        for report in world.shard.sessions() {
            // One command alone may exceed the limit; no second one starts then.
            assert!(report.unsent_bytes <= (4 << 20) + (1 << 20), "{} bytes wait", report.unsent_bytes);
        }
        witness.works(&mut world);
        idle(&mut world, &mut peers, &mut witness, 120);
    }
}

/// Many peers send pings and read nothing, and many send login text that never ends. The connections that
/// hold the most memory are dropped, and those that hold little remain.
#[test]
fn small_things_of_many_are_bounded_in_sum_and_the_greediest_go_first() {
    let limits = Limits { control_bytes_max: 1 << 20, ..LIMITS() };
    let media: Vec<Box<dyn Store>> = vec![Box::new(Ram::new(16 << 20))];
    let mut world = World::with(config(&[(0, 0)], vec![]), media, limits);
    let mut witness = Witness::login(&mut world, 0);
    let mut modest = mallory(&mut world, 200);
    world.deaf.push(modest.conn);
    let ping = modest.ping();
    modest.send(&mut world, ping.encode(), &[0x55; 8192]);
    // Each peer tries to use 64 KiB: some by pings, some by a login that never ends.
    let mut peers: Vec<_> = (0..30).map(|number| mallory(&mut world, number)).collect();
    peers.extend((0..30).map(|_| Peer::connect(&mut world)));
    for (number, peer) in peers.iter_mut().enumerate() {
        world.deaf.push(peer.conn);
        for _ in 0..8 {
            if !world.is_open(peer.conn) {
                break;
            }
            if number < 30 {
                let ping = peer.ping();
                peer.send(&mut world, ping.encode(), &[0x55; 8192]);
            } else {
                let login = LoginRequest { transit: false, continues: true, ..login_request(1) };
                peer.send(&mut world, login.encode(), &[b'a'; 8192]);
            }
        }
        witness.works(&mut world);
    }
    let there = peers.iter().filter(|peer| world.is_open(peer.conn)).count();
    assert!((4..=16).contains(&there), "{there} of 60 that want 64 KiB each of 1 MiB are there");
    assert!(world.is_open(modest.conn), "8 KiB are less than anybody else has");
}

/// A well-behaved peer that reads slowly or answers late is not disconnected.
#[test]
fn a_slow_peer_is_not_taken_for_a_hostile_one() {
    let (mut world, mut witness) = world();
    let mut peer = mallory(&mut world, 0);
    let command = peer.write_command(0, 0, 4096);
    peer.send(&mut world, command.encode(), &[]);
    let read = peer.read_command(0, 0, 8192);
    peer.send(&mut world, read.encode(), &[]);
    world.deaf.push(peer.conn);
    let mut written = false;
    for round in 0..60 {
        // Every ten seconds the peer reads a little and sends a little data.
        world.pass(Duration::from_secs(10));
        world.deaf.clear();
        world.drain();
        while let Some(r2t) = peer.next_r2t(&mut world) {
            let first = peer.answer(&r2t);
            let data = vec![round; usize::try_from(r2t.desired_data_transfer_length).unwrap()];
            for part in data.chunks(4096) {
                let offset = u32::try_from(part.as_ptr() as usize - data.as_ptr() as usize).unwrap();
                let header = iscsi::pdu::data_out::DataOut {
                    is_final: offset + 4096 == r2t.desired_data_transfer_length,
                    data_sn: iscsi::serial::DataSn(offset / 4096),
                    buffer_offset: r2t.buffer_offset + offset,
                    ..first
                };
                peer.send(&mut world, header.encode(), part);
                if offset % (1 << 18) == 0 {
                    world.pass(Duration::from_secs(10));
                    witness.works(&mut world);
                }
            }
            written = true;
        }
        pongs(&mut world, &mut peer);
        witness.works(&mut world);
    }
    assert!(written && world.is_open(peer.conn));
}

/// A peer that reads nothing sends pings with as much data as is allowed, or senseless requests that cause
/// responses.
#[test]
fn small_answers_that_nobody_reads_are_bounded() {
    for nonsense in [false, true] {
        let (mut world, mut witness) = world();
        let mut peer = mallory(&mut world, 0);
        world.deaf.push(peer.conn);
        for round in 0..5000 {
            if !world.is_open(peer.conn) {
                break;
            }
            assert!(round < 4999, "nobody stops it");
            if nonsense {
                let logout = LogoutRequest {
                    immediate: true,
                    reason: LogoutReason::RemoveForRecovery,
                    itt: Itt(round),
                    cid: 9,
                    cmd_sn: CmdSn(peer.cmd_sn),
                    exp_stat_sn: StatSn(peer.exp_stat_sn),
                };
                peer.send(&mut world, logout.encode(), &[]);
            } else {
                let ping = peer.ping();
                peer.send(&mut world, ping.encode(), &[0x55; 8192]);
            }
        }
        witness.works(&mut world);
    }
}
