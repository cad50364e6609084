//! Reassignment of tasks to another connection at level 2, with a scripted target.

use base::state_machine::ConnId;
use base::time::Duration;

use super::pair::{LUN, Setup, pattern, read};
use super::recovery::level_2;
use super::scripted_target::ScriptedTarget;
use crate::keys::Key;
use crate::pdu::data_in::DataIn;
use crate::pdu::snack::{Snack, SnackKind};
use crate::pdu::text_request::TextRequest;
use crate::pdu::text_response::TextResponse;
use crate::pdu::tmf_request::TmfRequest;
use crate::pdu::tmf_response::{TmfResponse, TmfResult};
use crate::pdu::{Itt, Ttt};
use crate::serial::DataSn;
use crate::text::TextBuilder;

/// Cuts the only connection, moves its only task to a new one, and checks from which number on the data is
/// requested.
fn cut_and_move(raw: &mut ScriptedTarget, conn: ConnId, itt: Itt, exp_data_sn: u32) -> ConnId {
    raw.cut(conn);
    raw.pass(Duration::from_millis(1100));
    let again = ConnId(conn.0 + 1);
    raw.log_in(again, 7, &[]);
    let reassign: TmfRequest = raw.expect(again);
    assert_eq!((reassign.referenced_task_tag, reassign.exp_data_sn), (itt, DataSn(exp_data_sn)));
    let done = TmfResponse { response: TmfResult::COMPLETE, itt: reassign.itt, sn: raw.next_sn(again) };
    raw.send(again, &done, &[]);
    again
}

/// The target reads the medium again for the new connection, and what it reads has changed.
#[test]
fn data_behind_a_gap_is_discarded_when_its_task_moves() {
    //= rfc7143#section-11.5.6
    //= type=test
    //# The initiator MUST discard any data PDUs from the previous execution that it did not acknowledge
    // The PDUs that arrive before the move, by the thousand bytes that they bring: in order, in another
    // order, with two gaps of which one is filled.
    let in_order = [0, 1, 2, 3, 4];
    let moved = [(&[0, 2][..], 1), (&[0, 1, 3, 4], 2), (&[2, 3], 0), (&[0, 2, 4, 1], 1), (&[0, 1], 2)];
    for (places, keys) in
        [(in_order, &[][..]), ([3, 1, 4, 0, 2], &["DataPDUInOrder=No", "DataSequenceInOrder=No"])]
    {
        for (arrived, exp_data_sn) in moved {
            let mut setup = Setup::default();
            setup.plan.keys.data_pdu_in_order = keys.is_empty();
            setup.plan.keys.data_sequence_in_order = keys.is_empty();
            let keys: alloc::vec::Vec<&str> =
                keys.iter().copied().chain(["ErrorRecoveryLevel=2", "DefaultTime2Wait=1"]).collect();
            let (mut raw, conn) = ScriptedTarget::up(setup, &keys);
            let (old, new) = (pattern(1, 5000), pattern(2, 5000));
            let (task, command) = raw.start(conn, read(0, 5000));
            let send = |raw: &mut ScriptedTarget, conn: ConnId, sn: u32, data: &[u8]| {
                let at = places[usize::try_from(sn).unwrap()] * 1000;
                let mut pdu = raw.data_in(conn, command.itt, sn, at);
                if sn == 4 && conn == ConnId(1) {
                    pdu = raw.with_status(conn, pdu);
                }
                let at = usize::try_from(at).unwrap();
                raw.send(conn, &pdu, &data[at..at + 1000]);
            };
            for sn in arrived {
                send(&mut raw, conn, *sn, &old);
            }
            let again = cut_and_move(&mut raw, conn, command.itt, exp_data_sn);
            for sn in exp_data_sn..5 {
                send(&mut raw, again, sn, &new);
            }
            let mut expected = new.clone();
            for sn in 0..exp_data_sn {
                let at = usize::try_from(places[usize::try_from(sn).unwrap()] * 1000).unwrap();
                expected[at..at + 1000].copy_from_slice(&old[at..at + 1000]);
            }
            let outcome = raw.outcome(task);
            assert!(outcome.end.is_good());
            assert!(outcome.data_in.as_deref() == Some(&*expected), "{places:?} {arrived:?}");
        }
    }
}

/// Only what a DataACK acknowledged stays of data whose numbers are meaningless.
#[test]
fn data_that_was_to_be_cut_again_is_discarded_when_its_task_moves() {
    //= rfc7143#section-11.5.6
    //= type=test
    //# The initiator MUST discard any data PDUs from the previous execution that it did not acknowledge
    for acknowledge in [false, true] {
        let (mut raw, conns) = level_2(1);
        let conn = conns[0];
        let (old, new) = (pattern(1, 3000), pattern(2, 3000));
        let (task, command) = raw.start(conn, read(0, 3000));
        let ttt = if acknowledge { Ttt(77) } else { Ttt::NONE };
        let pdu = DataIn { acknowledge, lun: LUN, ttt, ..raw.data_in(conn, command.itt, 0, 0) };
        raw.send(conn, &pdu, &old[..1000]);
        if acknowledge {
            assert_eq!(raw.expect::<Snack>(conn).kind, SnackKind::DATA_ACK);
        }
        let mut text = TextBuilder::new();
        text.put(Key::MaxRecvDataSegmentLength.name(), "512");
        raw.session.send_text(raw.now, None, text).unwrap();
        raw.drain();
        let (itt, sn) = (raw.expect::<TextRequest>(conn).itt, raw.next_sn(conn));
        let last = TextResponse { is_final: true, continues: false, lun: 0, itt, ttt: Ttt::NONE, sn };
        raw.send(conn, &last, &[]);
        let pdu = raw.data_in(conn, command.itt, 2, 2000);
        raw.send(conn, &pdu, &old[2000..2512]);
        assert_eq!(raw.expect::<Snack>(conn).kind, SnackKind::R_DATA);
        let again = cut_and_move(&mut raw, conn, command.itt, 0);
        let from = if acknowledge { 1000 } else { 0 };
        for (sn, at) in (from..3000).step_by(500).enumerate() {
            let offset = u32::try_from(at).unwrap();
            let pdu = raw.data_in(again, command.itt, u32::try_from(sn).unwrap(), offset);
            raw.send(again, &pdu, &new[at..at + 500]);
        }
        let response = raw.response(again, command.itt, 6);
        raw.send(again, &response, &[]);
        let expected = [&old[..from], &new[from..]].concat();
        let outcome = raw.outcome(task);
        assert!(outcome.end.is_good());
        assert!(outcome.data_in.as_deref() == Some(&*expected), "{acknowledge}");
    }
}
