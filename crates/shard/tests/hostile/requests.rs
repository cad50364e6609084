//! Invalid requests: every opcode with many lengths, CDBs with random fields, and reports of many sessions.

use base::rng::Rng;
use iscsi::pdu::scsi_command::ScsiCommand;
use iscsi::pdu::tmf_response::TmfResponse;
use iscsi::pdu::{Bhs, Itt, Opcode, PduHeader};
use shard::config::{InitiatorEntry, LunEntry};
use target::units::UnitId;
use transport::task_management::{TmfFunction, TmfResult};

use base::units::BlockSize;
use device::contract::Access;

use crate::pair::{BLOCK, Initiator, World, config, login_request, ram, unit_config};
use crate::peer::{MALLORY, NO_DIGESTS, Peer, Witness};

/// The data that another initiator wrote. No initiator may see it without having read it.
const SECRET: u8 = 0x5a;

fn world() -> (World, Witness) {
    let mut world = World::new(config(&[(0, 0)], vec![]), vec![ram()]);
    let witness = Witness::login(&mut world, 0);
    (world, witness)
}

fn login(world: &mut World) -> Peer {
    Peer::settle(world, MALLORY, NO_DIGESTS)
}

/// CVE-2026-53176, SPDK 2019 and the wrong-state PDUs of nvmet-tcp: headers of every opcode that announce
/// more or less data than follows, before the login, during the login, in a discovery session and in a normal
/// session.
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
                ..login_request(1)
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

/// SPDK 2019 ("carefully prepared, invalid I/O request"), spdk#3203 (odd lengths), CVE-2024-42416,
/// CVE-2024-8178, CVE-2024-45063, CVE-2024-43110, CVE-2024-39281: every operation code with random fields,
/// reading and writing various lengths. Each command is answered, and no response contains data that another
/// initiator wrote.
#[test]
fn any_cdb_is_answered_and_shows_nothing_of_others() {
    let (mut world, _) = world();
    let mut neighbour = Initiator::login(&mut world, "iqn.2026-11.org.example:neighbour", 1);
    neighbour.clear_attentions(&mut world, 0);
    let mut rng = Rng::from_seed(1);
    for opcode in 0..=u8::MAX {
        // Skips the commands that may read blocks of others, and those that may affect others on the same
        // unit: resets, reservations, locks.
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

/// CVE-2024-45063 and CVE-2024-8178: READ BUFFER and WRITE BUFFER with random fields by several initiators,
/// some of which disconnect in between. READ BUFFER returns only data that WRITE BUFFER wrote, never blocks
/// of the disk, and no more than was requested.
#[test]
fn buffers_with_any_fields_hold_what_was_put_in_and_nothing_else() {
    let (mut world, mut witness) = world();
    let mut neighbour = Initiator::login(&mut world, "iqn.2026-11.org.example:neighbour", 1);
    neighbour.clear_attentions(&mut world, 0);
    assert_eq!(neighbour.write(&mut world, 0, 9000, &[SECRET; 64 * BLOCK], false).status, 0);
    let mut rng = Rng::from_seed(2);
    let mut mallory = Initiator::login(&mut world, MALLORY, 1);
    for round in 0..4000 {
        let mut cdb = [0; 10];
        rng.fill(&mut cdb[1..]);
        // Uses mostly modes that exist, offsets near the front, and lengths near that of a buffer.
        cdb[1] &= if round % 4 == 0 { 0x1f } else { 0x0b };
        cdb[2] &= 1;
        (cdb[3], cdb[4]) = (0, cdb[4] & 3);
        (cdb[6], cdb[7]) = (0, cdb[7] & 0x1f);
        let asked = usize::from(cdb[7]) << 8 | usize::from(cdb[8]);
        let who = if round % 2 == 0 { &mut neighbour } else { &mut mallory };
        if rng.chance(1, 2) {
            cdb[0] = 0x3b;
            who.run(&mut world, 0, &cdb, &vec![0xa5; asked], 0);
        } else {
            cdb[0] = 0x3c;
            let answer = who.run(&mut world, 0, &cdb, &[], asked);
            assert!(answer.data.len() <= asked, "{cdb:02x?}");
            assert!(!answer.data.windows(8).any(|window| window == [SECRET; 8]), "{cdb:02x?}");
        }
        if round % 97 == 0 {
            world.cut(mallory.conn);
            mallory = Initiator::login(&mut world, MALLORY, 1);
        }
    }
    witness.works(&mut world);
}

/// Makes a target with two units. The owner sees one, and all other initiators see the other.
fn world_with_owner() -> (World, Initiator) {
    let lun = |unit| LunEntry::new(0, UnitId(unit), Access::ReadWrite);
    let sees = |pattern: &str, unit| InitiatorEntry {
        pattern: pattern.into(),
        luns: Some(vec![lun(unit)]),
        auth: None,
        quota: Default::default(),
    };
    let owner = "iqn.2026-11.org.example:owner";
    let mut world = World::new(config(&[], vec![sees(owner, 1), sees("*", 0)]), vec![ram(), ram()]);
    let mut owner = Initiator::login(&mut world, owner, 1);
    owner.clear_attentions(&mut world, 0);
    (world, owner)
}

/// CVE-2020-28374 and CVE-2021-3139, through the complete target: an EXTENDED COPY (LID1) that names the unit
/// of another initiator by its world-wide name, as the source and as the destination.
#[test]
fn a_copy_reaches_no_unit_that_its_session_does_not_see() {
    let (mut world, mut owner) = world_with_owner();
    let mut mallory = Initiator::login(&mut world, MALLORY, 1);
    mallory.clear_attentions(&mut world, 0);
    assert_eq!(owner.write(&mut world, 0, 0, &[SECRET; 8 * BLOCK], false).status, 0);
    assert_eq!(mallory.write(&mut world, 0, 0, &[0xa5; 8 * BLOCK], false).status, 0);
    for (from, to) in [(1, 0), (0, 1), (1, 1)] {
        let list = copy_list(from, to);
        let mut cdb = [0; 16];
        (cdb[0], cdb[13]) = (0x83, u8::try_from(list.len()).unwrap());
        let answer = mallory.run(&mut world, 0, &cdb, &list, 0);
        // COPY ABORTED, COPY TARGET DEVICE NOT REACHABLE (SPC-4 §6.4).
        assert_eq!((answer.status, answer.code()), (2, (0x0a, 0x0d02)), "{from} to {to}");
    }
    assert_eq!(owner.read(&mut world, 0, 0, 8).data, [SECRET; 8 * BLOCK]);
    assert_eq!(mallory.read(&mut world, 0, 0, 8).data, [0xa5; 8 * BLOCK]);
    // The same copy within the visible units is executed, so the refusal is not due to the parameter list.
    let list = copy_list(0, 0);
    let mut cdb = [0; 16];
    (cdb[0], cdb[13]) = (0x83, u8::try_from(list.len()).unwrap());
    assert_eq!(mallory.run(&mut world, 0, &cdb, &list, 0).status, 0);
    assert_eq!(mallory.read(&mut world, 0, 100, 8).data, [0xa5; 8 * BLOCK]);
}

/// A target reset affects only the units that its session sees, and the sessions that share one of them.
#[test]
fn a_reset_of_the_target_reaches_nothing_that_its_session_does_not_see() {
    let (mut world, mut owner) = world_with_owner();
    let mut partner = Initiator::login(&mut world, "iqn.2026-11.org.example:partner", 1);
    partner.clear_attentions(&mut world, 0);
    let mut mallory = login(&mut world);
    for function in [TmfFunction::TARGET_WARM_RESET, TmfFunction::TARGET_COLD_RESET] {
        let reset = mallory.manage(function, 0, Itt::NONE);
        mallory.send(&mut world, reset.encode(), &[]);
        assert_eq!(mallory.hear(&mut world).first(), Some(&Opcode::TMF_RESPONSE));
        assert_eq!(owner.read(&mut world, 0, 0, 1).status, 0, "no attention, and no end");
        if function == TmfFunction::TARGET_WARM_RESET {
            assert_eq!(
                partner.read(&mut world, 0, 0, 1).code().0,
                6,
                "the reset is told to who shares the unit"
            );
            partner.clear_attentions(&mut world, 0);
        }
    }
    assert!(!world.is_open(mallory.conn) && !world.is_open(partner.conn) && world.is_open(owner.conn));
}

/// One request resets every unit that its session sees before anything else happens. Each session receives a
/// unit attention for each of these units.
#[test]
fn a_reset_of_the_target_resets_all_of_its_units_at_once() {
    let mut world = World::new(config(&[(0, 0), (1, 1), (2, 2)], vec![]), vec![ram(), ram(), ram()]);
    let mut others: Vec<_> = ["a", "b"]
        .map(|name| Initiator::login(&mut world, &format!("iqn.2026-11.org.example:{name}"), 1))
        .into();
    for other in &mut others {
        (0..3).for_each(|lun| other.clear_attentions(&mut world, lun));
    }
    let mut peer = login(&mut world);
    let reset = peer.manage(TmfFunction::TARGET_WARM_RESET, 0, Itt::NONE);
    peer.send(&mut world, reset.encode(), &[]);
    assert_eq!(outcome(&peer, &mut world), TmfResult::COMPLETE);
    for other in &mut others {
        for lun in 0..3 {
            // BUS DEVICE RESET FUNCTION OCCURRED.
            assert_eq!(other.read(&mut world, lun, 0, 1).code(), (6, 0x2903), "LUN {lun}");
            assert_eq!(other.read(&mut world, lun, 0, 1).status, 0, "LUN {lun}");
        }
    }
}

/// A session with read-only access to one of its units cannot reset any of them.
#[test]
fn a_session_that_may_only_read_resets_nothing() {
    let own = |number, unit, access| LunEntry::new(number, UnitId(unit), access);
    let limited = vec![own(0, 0, Access::ReadWrite), own(1, 1, Access::ReadOnly)];
    let acl = vec![
        InitiatorEntry {
            pattern: MALLORY.into(),
            luns: Some(limited),
            auth: None,
            quota: Default::default(),
        },
        InitiatorEntry { pattern: "*".into(), luns: None, auth: None, quota: Default::default() },
    ];
    let mut world = World::new(config(&[(0, 0), (1, 1)], acl), vec![ram(), ram()]);
    let mut owner = Initiator::login(&mut world, "iqn.2026-11.org.example:owner", 1);
    (0..2).for_each(|lun| owner.clear_attentions(&mut world, lun));
    let mut mallory = login(&mut world);
    for (function, lun) in [
        (TmfFunction::TARGET_WARM_RESET, 0),
        (TmfFunction::TARGET_COLD_RESET, 0),
        (TmfFunction::LOGICAL_UNIT_RESET, 1),
    ] {
        let reset = mallory.manage(function, lun, Itt::NONE);
        mallory.send(&mut world, reset.encode(), &[]);
        assert_eq!(outcome(&mallory, &mut world), TmfResult::NOT_AUTHORIZED, "{function:?}");
        for lun in 0..2 {
            assert_eq!(owner.read(&mut world, lun, 0, 1).status, 0, "{function:?}: no attention");
        }
    }
    assert!(world.is_open(mallory.conn));
}

fn outcome(peer: &Peer, world: &mut World) -> TmfResult {
    let (bhs, _) = peer.receive(world).unwrap();
    TmfResponse::decode(&bhs).unwrap().response
}

/// REPORT SUPPORTED TASK MANAGEMENT FUNCTIONS lists the functions that the session can request: RFC 7144
/// added four.
#[test]
fn the_functions_that_are_reported_are_those_of_the_session() {
    let mut world = World::new(config(&[(0, 0)], vec![]), vec![ram()]);
    for (level, functions) in [("", [0xda, 0]), ("iSCSIProtocolLevel=2\0", [0xde, 7])] {
        let mut peer = Peer::settle(&mut world, MALLORY, &format!("{NO_DIGESTS}{level}"));
        let ask = [0xa3, 0x0d, 0, 0, 0, 0, 0, 0, 0, 4, 0, 0];
        let command = ScsiCommand { read: true, expected_data_transfer_length: 4, ..peer.command(0, &ask) };
        peer.send(&mut world, command.encode(), &[]);
        let (_, data) = peer.receive(&mut world).unwrap();
        assert_eq!(data[..2], functions, "{level}");
    }
}

/// Returns a parameter list (SPC-4 §6.4) of two identification descriptors and one segment: eight blocks from
/// block 0 to block 100.
fn copy_list(from: u32, to: u32) -> Vec<u8> {
    let mut list = vec![0; 16];
    (list[3], list[11]) = (64, 28);
    for unit in [from, to] {
        let naa = unit_config(unit).identity.naa;
        let mut target = vec![0xe4, 0, 0, 0, 1, 3, 0, u8::try_from(naa.len()).unwrap()];
        target.extend(naa);
        target.resize(28, 0);
        target.extend(BlockSize::B512.bytes().to_be_bytes());
        list.extend(target);
    }
    let mut segment = vec![2, 0, 0, 0x18, 0, 0, 0, 1, 0, 0, 0, 8];
    segment.extend(0_u64.to_be_bytes());
    segment.extend(100_u64.to_be_bytes());
    list.extend(segment);
    list
}

/// LIO 2023, `lio_target_nacl_info_show`: a report of sessions overran its page.
#[test]
fn a_report_of_many_sessions_with_the_longest_names_is_whole() {
    let mut config = config(&[(0, 0)], vec![]);
    config.targets[0].sessions_max = 5000;
    let mut world = World::new(config, vec![ram()]);
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
