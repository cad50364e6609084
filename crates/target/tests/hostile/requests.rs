//! Requests that make no sense: every opcode with every length, every CDB with anything in it, and reports of many.

use base::rng::Rng;
use iscsi::pdu::scsi_command::ScsiCommand;
use iscsi::pdu::{Bhs, Message, Opcode};
use store::Store;
use store::ram::Ram;

use crate::pair::{BLOCK, Initiator, World, config};
use crate::peer::{MALLORY, NO_DIGESTS, Peer, Witness};

/// What the witness's neighbour wrote; it must never be seen by anybody who did not read it.
const SECRET: u8 = 0x5a;

fn world() -> (World, Witness) {
    let media: Vec<Box<dyn Store>> = vec![Box::new(Ram::new(8 << 20))];
    let mut world = World::new(config(&[(0, 0)], vec![]), media);
    let witness = Witness::login(&mut world, 0);
    (world, witness)
}

fn login(world: &mut World) -> Peer {
    let mut peer = Peer::login(world, MALLORY, 1, NO_DIGESTS);
    let command = peer.command(0, &[0; 6]);
    peer.send(world, command.encode(), &[]);
    assert_eq!(peer.hear(world).len(), 1, "the unit attention");
    peer
}

/// CVE-2026-53176, SPDK 2019 and the wrong-state PDUs of nvmet-tcp: a header that announces more or less than follows,
/// of every opcode, before the login, in the midst of it, in a discovery session and in a normal one.
#[test]
fn any_opcode_with_any_lengths_in_any_state_harms_nobody() {
    let (mut world, mut witness) = world();
    let states: [fn(&mut World) -> Peer; 4] = [
        Peer::connect,
        |world| {
            let peer = Peer::connect(world);
            let request = iscsi::pdu::login_request::LoginRequest {
                transit: false,
                continues: true,
                ..peer.login_request(1)
            };
            peer.send(world, request.encode(), b"InitiatorName=iqn.2026-11.org.example:half");
            peer
        },
        |world| Peer::discover(world, MALLORY, 2),
        login,
    ];
    for state in states {
        for opcode in 0..=0x7f {
            for (data_len, ahs_len) in
                [(0, 0), (1, 0), (48, 0), (8192, 4), (262_144, 0), (262_145, 0), (0xff_ffff, 1020)]
            {
                let peer = state(&mut world);
                let mut header = [0; 48];
                header[0] = opcode;
                header[1] = 0x80;
                let bhs = Bhs::from_bytes(header).with_data_len(data_len).with_ahs_len(ahs_len);
                peer.send_bytes(&mut world, bhs.bytes());
                peer.send_bytes(&mut world, &[0xff; 76]);
                if world.is_open(peer.conn) {
                    world.cut(peer.conn);
                }
                world.forget(peer.conn);
            }
        }
        witness.works(&mut world);
    }
    assert_eq!(world.shard.sessions().len(), 1);
}

/// SPDK 2019 ("carefully prepared, invalid I/O request"), spdk#3203 (odd lengths), CVE-2024-42416, CVE-2024-8178, CVE-2024-45063,
/// CVE-2024-43110, CVE-2024-39281: every operation code with fields of any value, reading and writing any length. Each is
/// answered, and no answer shows what somebody else wrote.
#[test]
fn any_cdb_is_answered_and_shows_nothing_of_others() {
    let (mut world, _) = world();
    let mut neighbour = Initiator::login(&mut world, "iqn.2026-11.org.example:neighbour", 1);
    neighbour.clear_attentions(&mut world, 0);
    let mut rng = Rng::from_seed(1);
    for opcode in 0..=u8::MAX {
        // What reads blocks may show blocks; what resets, reserves or locks harms by right who shares the unit.
        if matches!(opcode, 0x08 | 0x28 | 0x88 | 0xa8 | 0x7f | 0x16 | 0x56 | 0x5f | 0x48 | 0x1b | 0x83 | 0x84)
        {
            continue;
        }
        for round in 0..12 {
            assert_eq!(neighbour.write(&mut world, 0, 9000, &[SECRET; 64 * BLOCK], false).status, 0);
            let mut peer = login(&mut world);
            let mut cdb = [0; 16];
            if round > 0 {
                rng.fill(&mut cdb[1..]);
            }
            cdb[0] = opcode;
            let len = [0, 1, 3, 252, 512, 8192][round % 6];
            let command = peer.command(0, &cdb);
            let reads = round < 6;
            let command = ScsiCommand {
                read: reads && len > 0,
                write: !reads && len > 0,
                expected_data_transfer_length: u32::try_from(len).unwrap(),
                ..command
            };
            let data = if reads { vec![] } else { vec![0xa5; len] };
            peer.send(&mut world, command.encode(), &data);
            let got: Vec<_> = std::iter::from_fn(|| peer.receive(&mut world)).collect();
            let answered = got.iter().any(|(bhs, _)| {
                bhs.opcode() == Opcode::SCSI_RESPONSE
                    || bhs.opcode() == Opcode::DATA_IN && bhs.flags() & 1 != 0
            });
            assert!(answered, "{opcode:#04x} {cdb:02x?}");
            let shown = got.iter().any(|(_, data)| data.windows(8).any(|window| window == [SECRET; 8]));
            assert!(!shown, "{opcode:#04x} {cdb:02x?} shows what somebody else wrote");
            world.cut(peer.conn);
            world.forget(peer.conn);
        }
    }
    let answer = neighbour.read(&mut world, 0, 9000, 1);
    assert!(answer.data == [SECRET; BLOCK], "and what can be read by right is there to be seen");
}

/// LIO 2023, `lio_target_nacl_info_show`: a report of sessions overran its page.
#[test]
fn a_report_of_many_sessions_with_the_longest_names_is_whole() {
    let mut config = config(&[(0, 0)], vec![]);
    config.targets[0].sessions_max = 5000;
    let mut world = World::new(config, vec![Box::new(Ram::new(8 << 20))]);
    let name = |number: u32| format!("iqn.2026-11.org.example:{number:0>199}");
    for number in 0..300 {
        Peer::login(&mut world, &name(number), 1, NO_DIGESTS);
    }
    let reports = world.shard.sessions();
    assert_eq!(reports.len(), 300);
    for (number, report) in (0..).zip(reports) {
        assert_eq!((report.initiator.len(), report.initiator), (223, name(number)));
    }
}
