//! Clauses of RFC 7143 that no other test here would miss.

use alloc::vec::Vec;

use base::state_machine::{Action, DisconnectReason};
use transport::target::Finish;
use transport::task_management::TmfResult;

use super::erl1::{policy, snack};
use super::erl2::{reassign, release};
use super::mcs::{issue, session};
use super::world::{LUN, World, data_out, pattern};
use crate::login::Status;
use crate::pdu::data_in::DataIn;
use crate::pdu::nop_in::NopIn;
use crate::pdu::r2t::R2t;
use crate::pdu::scsi_command::ScsiCommand;
use crate::pdu::scsi_response::ScsiResponse;
use crate::pdu::snack::{Snack, SnackKind};
use crate::pdu::text_request::TextRequest;
use crate::pdu::text_response::TextResponse;
use crate::pdu::{Itt, PduHeader, Ttt};
use crate::serial::StatSn;
use crate::target::contract::Event;
use crate::target::engine::Limits;

#[test]
fn a_task_that_is_reassigned_has_no_snack_tag() {
    //= rfc7143#section-7.2.2
    //= type=test
    //# If a SCSI command that involves data input is reassigned, any SNACK Tag it holds for a final response
    //# from the original connection is deleted, and the default value of 0 MUST be used instead.
    let (mut world, conns, _) = session(2, 2);
    let read = world.read(conns[1], 512);
    issue(&mut world, &conns, conns[1], &read, &[]);
    let task = world.expect_command().task;
    world.data_in(task, 0, &pattern(0, 512));
    let anew = Snack { tag: 9, ..snack(SnackKind::R_DATA, read.itt, (0, 0)) };
    world.send(conns[1], &anew, &[]);
    while world.receive(conns[1]).is_some() {}
    world.hang_up(conns[1], DisconnectReason::Failed);
    world.finish(task, Finish::good(512));
    release(&mut world, conns[0], 1);
    assert_eq!(reassign(&mut world, conns[0], read.itt, 0), TmfResult::COMPLETE);
    let mut statuses = 0;
    while let Some(got) = world.receive(conns[0]) {
        if got.bhs.opcode() == ScsiResponse::OPCODE {
            assert_eq!(got.read::<ScsiResponse>().snack_tag, 0);
            statuses += 1;
        } else {
            statuses += usize::from(got.read::<DataIn>().status.is_some());
        }
    }
    assert_eq!(statuses, 1);
}

#[test]
fn a_discovery_session_takes_the_place_of_one_of_the_same_initiator_port() {
    //= rfc7143#section-7.4.2.1
    //= type=test
    //# UNNAMED ISID RULE: Targets MUST enforce the uniqueness of the following 4-tuple for Unnamed Discovery
    //# sessions: <InitiatorName, ISID, NULL, TargetAddress>.
    //= rfc7143#section-7.4.2.1
    //= type=test
    //# A new Unnamed Discovery session that has a matching <InitiatorName, ISID, NULL, TargetAddress> to an
    //# existing Discovery session MUST reinstate the existing Unnamed Discovery session.
    let mut world = World::new();
    let first = world.discover();
    let second = world.discover();
    assert!(world.ended(first).is_some());
    assert_eq!(world.ended(second), None);
    assert_eq!(world.engine.sessions().count(), 1);
}

#[test]
fn discovery_sessions_through_different_portals_are_independent() {
    //= rfc7143#section-7.4.2.1
    //= type=test
    //# Each of the concurrent Discovery sessions, if established by the same initiator port to other Network
    //# Portals, MUST be treated as independent sessions -- i.e., one session MUST NOT reinstate the other.
    let mut world = World::new();
    let first = world.discover();
    for local in [([127, 0, 0, 1], 3261), ([127, 0, 0, 2], 3260)] {
        let conn = world.connect_between(([127, 0, 0, 1], 40000).into(), local.into());
        assert_eq!(world.login_pdu(conn, 0, &["SessionType=Discovery"]).status, 0);
        assert_eq!((world.ended(first), world.ended(conn)), (None, None));
    }
    assert_eq!(world.engine.sessions().count(), 3);
}

#[test]
fn a_discovery_session_that_names_a_target_is_replaced_by_sessions_with_that_target() {
    let mut world = World::new();
    let target = ["TargetName=", super::world::TARGET].concat();
    let named = |world: &mut World| {
        let conn = world.connect();
        assert_eq!(world.login_pdu(conn, 0, &["SessionType=Discovery", &target]).status, 0);
        conn
    };
    let unnamed = world.discover();
    let first = named(&mut world);
    let second = named(&mut world);
    assert!(world.ended(first).is_some(), "another one replaces it");
    let (normal, _) = world.login(&[]);
    assert!(world.ended(second).is_some(), "and so does a normal session");
    // It replaces neither a session that names no target, nor a normal one.
    let third = named(&mut world);
    for conn in [unnamed, normal, third] {
        assert_eq!(world.ended(conn), None);
    }
    // A connection cannot join it.
    let tsih = world.engine.sessions().filter(|view| view.target.is_none()).map(|view| view.tsih).max();
    let (_, status) = world.join(third, tsih.unwrap(), 1, &[]);
    assert_eq!(status, Status::SESSION_DOES_NOT_EXIST.0);
}

#[test]
fn a_negotiation_that_fails_ends_the_login_and_the_connection() {
    //= rfc7143#section-7.12
    //= type=test
    //# During login, any failure in negotiation MUST be considered a login process failure; the Login Phase,
    //# along with the connection, MUST be terminated.
    let mut world = World::new();
    let conn = world.connect();
    let target = ["TargetName=", super::world::TARGET].concat();
    let keys = ["SessionType=Normal", &target, "MaxRecvDataSegmentLength=1"];
    let response = world.login_pdu(conn, 0, &keys);
    assert_eq!(response.status, Status::INITIATOR_ERROR.0);
    assert_eq!(world.ended(conn), Some(Action::Close(conn)));
}

#[test]
fn nothing_is_asked_to_be_acknowledged_at_level_0() {
    //= rfc7143#section-11.7.2
    //= type=test
    //# The target MUST NOT set to 1 the A bit for sessions with ErrorRecoveryLevel=0.
    let mut world = World::new();
    let (conn, _) = world.login(&["MaxBurstLength=512", "FirstBurstLength=512"]);
    let read = world.read(conn, 2000);
    let task = world.start(conn, &read, &[]).task;
    world.data_in(task, 0, &pattern(0, 2000));
    world.finish(task, Finish::good(2000));
    let mut pieces = 0;
    while let Some(got) = world.receive(conn) {
        if got.bhs.opcode() == DataIn::OPCODE {
            assert!(!got.read::<DataIn>().acknowledge);
            pieces += 1;
        }
    }
    assert_eq!(pieces, 4);
}

#[test]
fn data_out_of_no_length_is_received() {
    //= rfc7143#section-11.7.7
    //= type=test
    //# The sending of 0-length data segments should be avoided, but initiators and targets MUST be able to
    //# properly receive 0-length data segments.
    let mut world = World::new();
    let (conn, _) = world.login(&[]);
    let write = world.write(conn, 512);
    let task = world.start(conn, &write, &[]).task;
    world.fetch(task, 0, 512);
    let r2t: R2t = world.expect(conn);
    world.send(conn, &data_out(&write, r2t.ttt, 0, 0, false), &[]);
    world.send(conn, &data_out(&write, r2t.ttt, 1, 0, true), &pattern(0, 512));
    assert_eq!(world.expect_data(task, 0), pattern(0, 512));
    world.finish(task, Finish::good(512));
    assert_eq!(world.expect::<ScsiResponse>(conn).status, 0);
}

#[test]
fn an_r2t_never_has_the_reserved_tag() {
    //= rfc7143#section-11.8.5
    //= type=test
    //# There is no protocol rule about the Target Transfer Tag except that the value 0xffffffff is reserved
    //# and MUST NOT be sent by a target in an R2T.
    let mut world = World::new();
    let (conn, _) = world.login(&[]);
    world.engine.next_ttt = u32::MAX;
    let write = world.write(conn, 512);
    let task = world.start(conn, &write, &[]).task;
    world.fetch(task, 0, 512);
    assert_ne!(world.expect::<R2t>(conn).ttt, Ttt::NONE);
}

#[test]
fn a_text_response_with_a_tag_has_the_unit_too() {
    //= rfc7143#section-11.10.4
    //= type=test
    //# If the Target Transfer Tag is not 0xffffffff, the LUN field MUST be sent by the target in the Text
    //# Response.
    let mut world = World::new();
    let (conn, _) = world.login(&[]);
    let (itt, cmd_sn) = world.numbers(conn);
    let asked = TextRequest {
        immediate: true,
        is_final: false,
        continues: false,
        lun: LUN,
        itt,
        ttt: Ttt::NONE,
        cmd_sn,
        exp_stat_sn: StatSn(0),
    };
    world.send(conn, &asked, b"InitiatorAlias=me\0");
    let response: TextResponse = world.expect(conn);
    assert_ne!(response.ttt, Ttt::NONE);
    assert_eq!(response.lun, LUN);
}

#[test]
fn an_r2t_that_is_sent_again_has_the_counters_of_now() {
    //= rfc7143#section-11.16
    //= type=test
    //# R2T(s)requested by SNACK MUST also carry the current value of the StatSN.
    let mut world = World::with(Limits::default(), policy(1));
    let (conn, _) = world.login(&["ErrorRecoveryLevel=1"]);
    let write = world.write(conn, 512);
    let task = world.start(conn, &write, &[]).task;
    world.fetch(task, 0, 512);
    let r2t: R2t = world.expect(conn);
    let other = world.command(conn);
    let other = world.start(conn, &other, &[]).task;
    world.finish(other, Finish::good(0));
    let response: ScsiResponse = world.expect(conn);
    assert_eq!(r2t.sn.stat_sn, response.sn.stat_sn, "it shows the next number");
    world.send(conn, &snack(SnackKind::DATA_OR_R2T, write.itt, (0, 1)), &[]);
    let again: R2t = world.expect(conn);
    assert_eq!((again.ttt, again.r2t_sn), (r2t.ttt, r2t.r2t_sn));
    assert_eq!(again.sn.stat_sn, response.sn.stat_sn.next());
}

#[test]
fn a_ping_of_the_target_has_no_task_and_no_data() {
    //= rfc7143#section-11.19
    //= type=test
    //# Otherwise, when a target sends a NOP-In that is not a response to a NOP-Out received from the
    //# initiator, the Initiator Task Tag MUST be set to 0xffffffff, and the data segment MUST NOT contain any
    //# data (DataSegmentLength MUST be 0).
    //= rfc7143#section-11.19.3
    //= type=test
    //# A LUN MUST be set to a correct value when the Target Transfer Tag is valid (not the reserved value
    //# 0xffffffff).
    let mut world = World::new();
    let (conn, _) = world.login(&[]);
    world.pass(base::time::Duration::from_secs(31));
    let got = world.expect_any(conn);
    let ping: NopIn = got.read();
    assert_eq!((ping.itt, got.data.len()), (Itt::NONE, 0));
    assert_ne!(ping.ttt, Ttt::NONE);
    assert_eq!(ping.lun, 0);
}

/// A command that waits for a task of the lost connection reports the unit attention as soon as that task has
/// ended, if it is established by then. It must not be established again for the other tasks.
#[test]
fn all_tasks_of_a_lost_connection_end_before_one_unit_attention_of_each_unit() {
    //= rfc7143#section-11.14.5
    //= type=test
    //# After the tasks are terminated, the target MUST report a Unit Attention condition on the next
    //# command processed on any connection for each affected I_T_L nexus with the status of CHECK
    //# CONDITION, the ASC/ASCQ value of 47h/7Fh ("SOME COMMANDS CLEARED BY ISCSI PROTOCOL EVENT"),
    //# etc.; see [SPC3].
    const OTHER_LUN: u64 = 2 << 48;
    let (mut world, conns, _) = session(0, 2);
    let mut tasks = Vec::new();
    for lun in [LUN, OTHER_LUN, LUN, OTHER_LUN, LUN] {
        let read = ScsiCommand { lun, ..world.read(conns[0], 10) };
        issue(&mut world, &conns, conns[0], &read, &[]);
        tasks.push(world.expect_command().task);
    }
    // An answered task has its response, and is no cause.
    world.data_in(tasks[1], 0, &pattern(0, 10));
    world.finish(tasks[1], Finish::good(10));
    world.expect::<DataIn>(conns[0]);
    world.expect::<ScsiResponse>(conns[0]);
    world.hang_up(conns[0], DisconnectReason::Failed);
    let mut gone = 0;
    let mut cleared = Vec::new();
    while let Some(event) = world.next_event() {
        match event {
            Event::TaskGone { .. } => {
                assert!(cleared.is_empty(), "a task ends after the unit attention");
                gone += 1;
            }
            Event::TasksCleared { lun, .. } => cleared.push(lun),
            other => panic!("{other:?}"),
        }
    }
    assert_eq!((gone, cleared), (4, [LUN, OTHER_LUN].to_vec()));
}
