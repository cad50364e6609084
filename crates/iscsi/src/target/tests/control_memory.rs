//! The memory of control PDUs that wait to be sent, and of text that continues in other PDUs.

use alloc::format;
use alloc::vec::Vec;

use base::state_machine::{Action, ConnId};

use super::world::{INITIATOR, TARGET, World, keys};
use crate::pdu::login_response::LoginResponse;
use crate::pdu::nop_in::NopIn;
use crate::pdu::nop_out::NopOut;
use crate::pdu::text_request::TextRequest;
use crate::pdu::text_response::TextResponse;
use crate::pdu::{Itt, Ttt};
use crate::serial::StatSn;
use crate::target::engine::{CONTROL_COST, Limits};

fn bounded(control_bytes_max: usize) -> World {
    World::with(Limits { control_bytes_max, ..Limits::default() }, keys())
}

fn ping(world: &mut World, conn: ConnId, len: usize) {
    let (itt, cmd_sn) = world.numbers(conn);
    let ping = NopOut { immediate: true, lun: 0, itt, ttt: Ttt::NONE, cmd_sn, exp_stat_sn: StatSn(0) };
    world.send(conn, &ping, &super::world::pattern(0, len));
}

/// Sends a piece of a text. The next piece has the tag of the last response.
fn text(world: &mut World, conn: ConnId, (itt, ttt): (Itt, Ttt), continues: bool, data: &[u8]) {
    let cmd_sn = world.numbers(conn).1;
    let request = TextRequest {
        immediate: true,
        is_final: !continues,
        continues,
        lun: 0,
        itt,
        ttt,
        cmd_sn,
        exp_stat_sn: StatSn(0),
    };
    world.send(conn, &request, data);
}

/// Returns whole pairs, about 980 bytes of text. Each `part` has other keys.
fn pairs(part: u32) -> Vec<u8> {
    (0..5).flat_map(|at| format!("X-test.part{part}.{at}={}\0", "v".repeat(180)).into_bytes()).collect()
}

#[test]
fn the_pieces_of_a_login_take_memory_until_it_is_complete() {
    let mut world = World::new();
    let conn = world.connect();
    let mut request = world.login_request(conn, (0, 0, 0));
    (request.transit, request.nsg, request.continues) = (false, 0, true);
    let begin = ["InitiatorName=", INITIATOR, "\0SessionType=Nor"].concat();
    world.send(conn, &request, begin.as_bytes());
    assert_eq!(world.expect::<LoginResponse>(conn).status, 0);
    assert!(world.engine.control_bytes >= begin.len(), "{}", world.engine.control_bytes);
    (request.transit, request.nsg, request.continues) = (true, 3, false);
    world.send(conn, &request, ["mal\0TargetName=", TARGET, "\0"].concat().as_bytes());
    assert_eq!(world.expect::<LoginResponse>(conn).status, 0);
    assert_eq!(world.engine.control_bytes, 0);
}

#[test]
fn the_pieces_of_a_text_take_memory_until_it_is_whole() {
    let mut world = World::new();
    let (conn, _) = world.login(&[]);
    let itt = world.numbers(conn).0;
    text(&mut world, conn, (itt, Ttt::NONE), true, &pairs(0));
    let response: TextResponse = world.expect(conn);
    assert!(world.engine.control_bytes >= 900, "{}", world.engine.control_bytes);
    text(&mut world, conn, (itt, response.ttt), false, &pairs(1));
    let response: TextResponse = world.expect(conn);
    assert!(response.is_final);
    assert_eq!(world.engine.control_bytes, 0);
}

#[test]
fn a_text_that_grows_beyond_the_bound_ends_its_connection() {
    let mut world = bounded(2500);
    let (conn, _) = world.login(&[]);
    let itt = world.numbers(conn).0;
    let mut ttt = Ttt::NONE;
    for part in 0..2 {
        text(&mut world, conn, (itt, ttt), true, &pairs(part));
        ttt = world.expect::<TextResponse>(conn).ttt;
    }
    assert_eq!(world.ended(conn), None);
    text(&mut world, conn, (itt, ttt), true, &pairs(2));
    assert_eq!(world.ended(conn), Some(Action::Abort(conn)));
    assert_eq!(world.engine.control_bytes, 0);
}

#[test]
fn the_connection_that_reads_least_ends_and_not_the_one_that_asks_last() {
    let mut world = bounded(10_000);
    let conns: Vec<ConnId> = (0..2)
        .map(|isid| {
            let conn = world.connect();
            world.login_on(conn, isid, &[]);
            conn
        })
        .collect();
    world.stalled.extend(&conns);
    for _ in 0..3 {
        ping(&mut world, conns[0], 3000 - CONTROL_COST);
    }
    ping(&mut world, conns[1], 1000 - CONTROL_COST);
    // This is the bound.
    assert_eq!((world.engine.control_bytes, world.ended(conns[0])), (10_000, None));
    ping(&mut world, conns[1], 0);
    assert_eq!(world.ended(conns[0]), Some(Action::Abort(conns[0])));
    assert_eq!(world.ended(conns[1]), None);
    assert_eq!(world.engine.control_bytes, 1000 + CONTROL_COST);
    world.stalled.clear();
    world.transmit(conns[1]);
    for _ in 0..2 {
        world.expect::<NopIn>(conns[1]);
    }
    assert_eq!(world.engine.control_bytes, 0);
}

#[test]
fn answers_that_were_sent_take_no_memory_however_many_they_are() {
    // Each answer takes a tenth of the bound.
    let mut world = bounded(10_000);
    let (conn, _) = world.login(&[]);
    for _ in 0..100 {
        ping(&mut world, conn, 1000 - CONTROL_COST);
        world.expect::<NopIn>(conn);
        let connection = world.engine.conn(conn).unwrap();
        assert_eq!(
            (connection.control_bytes, connection.control_queued, world.engine.control_bytes),
            (0, 0, 0)
        );
    }
}
