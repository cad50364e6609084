//! Headers and data that are received damaged, and commands that are lost (RFC 7143 §7.8).

use alloc::vec::Vec;

use base::state_machine::Action;
use base::time::Duration;
use transport::target::Finish;

use super::super::world::pattern;
use super::{login, rejected, send_hurt, world};
use crate::pdu::nop_in::NopIn;
use crate::pdu::reject::RejectReason;
use crate::pdu::scsi_command::ScsiCommand;
use crate::pdu::scsi_response::ScsiResponse;
use crate::pdu::{PduHeader, Ttt};

#[test]
fn a_header_with_one_wrong_bit_costs_its_pdu_and_nothing_else() {
    //= rfc7143#section-7.8
    //= type=test
    //# When a target or an initiator receives any iSCSI PDU with a header digest error, it MUST either
    //# discard the header and all data up to the beginning of a later PDU or close the connection.
    for bit in 0..52 * 8 {
        let mut world = world();
        let conn = login(&mut world, &["ImmediateData=Yes"]);
        let write = ScsiCommand { is_final: true, ..world.write(conn, 600) };
        send_hurt(&mut world, conn, &write, &pattern(0, 600), bit);
        assert_eq!(world.ended(conn), None, "bit {bit}");
        world.expect_silence(conn);
        // The same command is sent again.
        let up = world.start(conn, &write, &pattern(0, 600));
        world.fetch(up.task, 0, 600);
        assert_eq!(world.expect_data(up.task, 0), pattern(0, 600), "bit {bit}");
        assert_eq!(world.engine.stats().header_digest_errors, 1);
    }
}

#[test]
fn a_header_that_is_worse_hurt_ends_the_connection() {
    //= rfc7143#section-7.8
    //= type=test
    //# When a target or an initiator receives any iSCSI PDU with a header digest error, it MUST either
    //# discard the header and all data up to the beginning of a later PDU or close the connection.
    let mut world = world();
    let conn = login(&mut world, &[]);
    let command = world.command(conn);
    let mut bytes = world.frame(conn, command.encode(), &[], &[]);
    bytes[7] ^= 3;
    world.feed(conn, &bytes);
    assert_eq!(world.ended(conn), Some(Action::Abort(conn)));
}

#[test]
fn a_missing_command_is_shown_and_waited_for() {
    //= rfc7143#section-11.19.1
    //= type=test
    //# If the target is initiating a NOP-In without wanting to receive a corresponding NOP-Out, this field
    //# MUST hold the reserved value 0xffffffff.
    let mut world = world();
    let conn = login(&mut world, &[]);
    let (lost, second) = (world.command(conn), world.command(conn));
    let second = ScsiCommand { cmd_sn: lost.cmd_sn.next(), ..second };
    send_hurt(&mut world, conn, &lost, &[], 100);
    world.issue(conn, &second, &[]);
    world.count(conn);
    assert!(world.events.is_empty());
    world.pass(Duration::from_secs(4));
    let shown: Vec<NopIn> = core::iter::from_fn(|| world.receive(conn)).map(|got| got.read()).collect();
    assert!(shown.iter().any(|pdu| pdu.ttt == Ttt::NONE && pdu.sn.exp_cmd_sn == lost.cmd_sn));
    world.send(conn, &lost, &[]);
    let order = [world.expect_command().task, world.expect_command().task];
    assert_ne!(order[0], order[1]);
    // Another copy is a duplicate, answered or not.
    world.send(conn, &lost, &[]);
    assert!(world.events.is_empty());
    world.finish(order[0], Finish::good(0));
    world.send(conn, &lost, &[]);
    assert!(world.events.is_empty());
    assert_eq!(world.expect::<ScsiResponse>(conn).itt, lost.itt);
    assert_eq!(world.ended(conn), None);
}

#[test]
fn immediate_data_that_is_damaged_takes_its_command_with_it() {
    let mut world = world();
    let conn = login(&mut world, &[]);
    let write = world.write(conn, 600);
    send_hurt(&mut world, conn, &write, &pattern(0, 600), (52 + 100) * 8);
    assert_eq!(rejected(&mut world, conn), RejectReason::DATA_DIGEST_ERROR);
    assert!(world.events.is_empty());
    let up = world.start(conn, &write, &pattern(0, 600));
    world.fetch(up.task, 0, 600);
    assert_eq!(world.expect_data(up.task, 0), pattern(0, 600));
}
