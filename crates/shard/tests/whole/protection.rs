//! LUNs that require protection, over iSCSI: a portal with TLS beside one without.

use base::state_machine::PortalId;
use base::units::Lba;
use device::contract::{Access, RelativePort};
use iscsi::name::PortalGroupTag;
use iscsi::pdu::login_response::LoginResponse;
use iscsi::pdu::text_request::TextRequest;
use iscsi::pdu::{Itt, PduHeader as _, Ttt};
use iscsi::serial::{CmdSn, StatSn};
use scsi::copy::ListId;
use scsi::copy::cscd::{Cscd, CscdId};
use scsi::copy::list::{CopyList, Format};
use scsi::copy::segment::SegmentAction;
use security::Level;
use shard::admin::ShardEvent;
use shard::config::{InitiatorEntry, LunEntry, Portal, ShardConfig};
use target::units::UnitId;

use crate::pair::{BLOCK, Initiator, World, config, login_request, pattern, pdu, ram, unit_config};
use crate::{ALICE, BOB, CHECK, GOOD};

/// LUN 0 is for every session, LUN 1 only for encrypted ones. Portal 1 has TLS.
fn two_portals() -> ShardConfig {
    let mut config = config(&[(0, 0), (1, 1)], vec![]);
    config.targets[0].luns[1].min_level = Level::Encrypt;
    let secure = Portal {
        id: PortalId(1),
        group: PortalGroupTag(1),
        bound: None,
        announced: None,
        tls: true,
        certificates: None,
    };
    config.portals.push(secure);
    config.targets[0].ports.push((PortalId(1), RelativePort(1)));
    config
}

/// Logs in without TLS, and over TLS.
fn both(world: &mut World) -> [Initiator; 2] {
    let mut login = |portal, name| {
        world.portal = PortalId(portal);
        let mut initiator = Initiator::login(world, name, 1);
        initiator.clear_attentions(world, 0);
        initiator
    };
    [login(0, ALICE), login(1, BOB)]
}

/// Returns an EXTENDED COPY of the first block of a unit to the second block of another, and its list.
pub(crate) fn copy_list(from: u32, to: u32) -> ([u8; 16], Vec<u8>) {
    let cscd = |unit| Cscd {
        device_type: 0,
        code_set: 1,
        kind: 3,
        association: 0,
        designator: unit_config(unit).identity.naa,
        pad: false,
        block_len: 512,
        null: false,
    };
    let mut list = CopyList::new(Format::Lid1, ListId(1));
    list.cscds = [from, to].map(cscd).to_vec();
    list.push(SegmentAction::Blocks {
        counts_destination: false,
        keep_residual: false,
        source: CscdId(0),
        destination: CscdId(1),
        count: 1,
        source_lba: Lba(0),
        destination_lba: Lba(1),
    });
    let list = list.to_bytes();
    let mut cdb = [0; 16];
    cdb[0] = 0x83;
    cdb[10..14].copy_from_slice(&u32::try_from(list.len()).unwrap().to_be_bytes());
    (cdb, list)
}

fn listed(world: &mut World, who: &mut Initiator) -> Vec<u8> {
    let luns = who.run(world, 0, &[0xa0, 0, 0, 0, 0, 0, 0, 0, 0, 64, 0, 0], &[], 64);
    luns.data[8..].chunks(8).map(|entry| entry[1]).collect()
}

#[test]
fn a_lun_that_must_be_encrypted_is_there_over_tls_only() {
    let mut world = World::new(two_portals(), vec![ram(), ram()]);
    let [mut plain, mut sealed] = both(&mut world);
    sealed.clear_attentions(&mut world, 1);
    let data = pattern(BLOCK, 3);
    assert_eq!(sealed.write(&mut world, 1, 0, &data, false).status, GOOD);
    assert_eq!(listed(&mut world, &mut sealed), [0, 1]);
    assert_eq!(listed(&mut world, &mut plain), [0]);
    assert_eq!(plain.read(&mut world, 1, 0, 1).code(), (5, 0x2500));
    assert_eq!(plain.write(&mut world, 1, 0, &pattern(BLOCK, 4), false).code(), (5, 0x2500));
    let inquiry = plain.run(&mut world, 1, &[0x12, 0, 0, 0, 96, 0], &[], 96);
    assert_eq!(inquiry.data[0], 0x7f);
    let (cdb, list) = copy_list(1, 0);
    let refused = plain.run(&mut world, 0, &cdb, &list, 0);
    assert_eq!((refused.status, refused.code()), (CHECK, (0xa, 0x0d02)));
    assert_eq!(sealed.read(&mut world, 1, 0, 1).data, data);
    assert_eq!(sealed.run(&mut world, 0, &cdb, &list, 0).status, GOOD);
    assert_eq!(sealed.read(&mut world, 0, 1, 1).data, data);
}

/// An initiator without TLS cannot use the portal with TLS, and one with TLS must not be led to the other.
#[test]
fn discovery_lists_the_portals_of_the_kind_that_the_initiator_uses() {
    let mut config = two_portals();
    for (id, of) in [(2, 0), (3, 1)] {
        let bound = Some(([192, 0, 2, 1], 3260 + u16::try_from(id).unwrap()).into());
        config.portals.push(Portal { id: PortalId(id), bound, ..config.portals[of].clone() });
        config.targets[0].ports.push((PortalId(id), RelativePort(1)));
    }
    let mut world = World::new(config, vec![ram(), ram()]);
    for (portal, other) in [(0, "192.0.2.1:3262"), (1, "192.0.2.1:3263")] {
        world.portal = PortalId(portal);
        let conn = world.connect();
        let login = format!("InitiatorName={ALICE}\0SessionType=Discovery\0");
        world.send(conn, &pdu(login_request(1).encode(), login.as_bytes()));
        let (bhs, _) = world.receive(conn).expect("a login response");
        let response = LoginResponse::decode(&bhs).unwrap();
        let request = TextRequest {
            immediate: false,
            is_final: true,
            continues: false,
            lun: 0,
            itt: Itt(2),
            ttt: Ttt::NONE,
            cmd_sn: CmdSn(1),
            exp_stat_sn: StatSn(response.sn.stat_sn.0 + 1),
        };
        world.send(conn, &pdu(request.encode(), b"SendTargets=All\0"));
        let (_, text) = world.receive(conn).expect("a text response");
        let text = String::from_utf8(text).unwrap();
        let listed: Vec<_> = text.split_terminator('\0').skip(1).collect();
        assert_eq!(listed, ["TargetAddress=127.0.0.1:3260,1", &format!("TargetAddress={other},1")]);
    }
}

#[test]
fn reports_tell_the_protection_of_sessions_and_what_it_hides() {
    let mut world = World::new(two_portals(), vec![ram(), ram()]);
    both(&mut world);
    let mut told = vec![];
    while let Some(event) = world.shard.poll_event() {
        if let ShardEvent::SessionUp { initiator, portal, protection, hidden_luns, .. } = event {
            told.push((initiator, portal.0, protection.level(), hidden_luns));
        }
    }
    let expected = [(ALICE, 0, Level::None, 1), (BOB, 1, Level::Encrypt, 0)];
    assert_eq!(told, expected.map(|(name, portal, level, hidden)| (name.to_owned(), portal, level, hidden)));
    let reports = world.shard.sessions();
    let shown = reports.iter().map(|report| {
        (report.initiator.as_str(), report.portal.unwrap().0, report.protection.level(), report.hidden_luns)
    });
    assert!(shown.eq(expected));
}

#[test]
fn an_entry_of_the_access_list_can_require_more_or_less_than_the_lun() {
    let mut config = two_portals();
    let row = |number, min_level| LunEntry {
        min_level,
        ..LunEntry::new(number, UnitId(number.into()), Access::ReadWrite)
    };
    let entry = |pattern: &str, luns| InitiatorEntry {
        pattern: pattern.into(),
        luns: Some(luns),
        auth: None,
        quota: Default::default(),
    };
    config.targets[0].initiators = vec![
        entry(ALICE, vec![row(0, Level::None), row(1, Level::None)]),
        entry(BOB, vec![row(0, Level::Encrypt), row(1, Level::Encrypt)]),
    ];
    let mut world = World::new(config, vec![ram(), ram()]);
    let mut alice = Initiator::login(&mut world, ALICE, 1);
    let mut bob = Initiator::login(&mut world, BOB, 1);
    assert_eq!(listed(&mut world, &mut alice), [0, 1]);
    assert_eq!(listed(&mut world, &mut bob), [0_u8; 0]);
    assert_eq!(bob.read(&mut world, 0, 0, 1).code(), (5, 0x2500));
}

#[test]
fn a_reload_that_raises_a_level_hides_luns_of_running_sessions_and_tells_of_it() {
    let mut world = World::new(two_portals(), vec![ram(), ram(), ram()]);
    let [mut plain, mut sealed] = both(&mut world);
    sealed.clear_attentions(&mut world, 1);
    while world.shard.poll_event().is_some() {}
    let mut other = two_portals();
    other.targets[0].luns.push(LunEntry::new(2, UnitId(2), Access::ReadWrite));
    world.shard.apply(world.now, other.clone());
    assert_eq!(plain.run(&mut world, 0, &[0; 6], &[], 0).code(), (6, 0x3f0e), "LUN 2 came");
    plain.clear_attentions(&mut world, 2);
    other.targets[0].luns[2].min_level = Level::Integrity;
    world.shard.apply(world.now, other.clone());
    assert_eq!(plain.run(&mut world, 0, &[0; 6], &[], 0).code(), (6, 0x3f0e), "LUN 2 went");
    assert_eq!(plain.read(&mut world, 2, 0, 1).code(), (5, 0x2500));
    let hidden = |world: &mut World| {
        let mut found = vec![];
        while let Some(event) = world.shard.poll_event() {
            if let ShardEvent::LunsHidden { initiator, level, hidden_luns, .. } = event {
                found.push((initiator, level, hidden_luns));
            }
        }
        found
    };
    assert_eq!(hidden(&mut world), [(ALICE.to_owned(), Level::None, 2)]);
    sealed.clear_attentions(&mut world, 0);
    assert_eq!(listed(&mut world, &mut sealed), [0, 1, 2]);
    other.targets[0].luns.iter_mut().for_each(|row| row.min_level = Level::None);
    world.shard.apply(world.now, other);
    assert_eq!(hidden(&mut world), [(ALICE.to_owned(), Level::None, 0)]);
    assert_eq!(listed(&mut world, &mut plain), [0, 1, 2]);
}

#[test]
fn a_session_keeps_its_protection_when_its_portal_goes() {
    let mut world = World::new(two_portals(), vec![ram(), ram()]);
    let [_, mut sealed] = both(&mut world);
    let mut without = two_portals();
    without.portals.pop();
    without.targets[0].ports.pop();
    world.shard.apply(world.now, without);
    assert_eq!(listed(&mut world, &mut sealed), [0, 1]);
}
