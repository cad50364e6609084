//! The common case: what every initiator does.

use base::state_machine::Action;
use transport::initiator::Residual;
use transport::target::{Finish, TargetTransport};

use alloc::vec::Vec;

use super::world::{LUN, World, pattern};
use crate::pdu::Ttt;
use crate::pdu::data_in::{DataIn, DataInStatus};
use crate::pdu::data_out::DataOut;
use crate::pdu::logout_request::{LogoutReason, LogoutRequest};
use crate::pdu::logout_response::{LogoutResponse, LogoutResult};
use crate::pdu::r2t::R2t;
use crate::pdu::scsi_response::ScsiResponse;
use crate::serial::{CmdSn, DataSn, StatSn};
use crate::target::contract::{Event, SessionEnd};

#[test]
fn a_read_comes_back_as_data_with_the_status_on_the_last_pdu() {
    //= rfc7143#section-4.2.1
    //= type=test
    //# iSCSI targets and initiators MUST support at least one TCP connection and MAY support
    //# several connections in a session.
    //= rfc7143#section-7.1.5
    //= type=test
    //# Implementations MUST support error recovery level "0", while the rest are OPTIONAL to implement.
    let mut world = World::new();
    let (conn, _) =
        world.login(&["MaxRecvDataSegmentLength=4096", "HeaderDigest=CRC32C", "DataDigest=CRC32C"]);
    let command = world.read(conn, 10_000);
    let up = world.start(conn, &command, &[]);
    assert_eq!((up.lun, up.data_in_len, up.data_out_len), (LUN, 10_000, 0));
    let data = pattern(0, 10_000);
    world.engine.data_in(up.task, 0, base::buffer::Bytes::copied_from(&data).into());
    world.finish(up.task, Finish::good(10_000));
    let mut got = Vec::new();
    for (sn, len, last) in [(0, 4096, false), (1, 4096, false), (2, 1808, true)] {
        let pdu = world.expect_any(conn);
        let header: DataIn = pdu.read();
        assert_eq!((header.data_sn, header.is_final, pdu.data.len()), (DataSn(sn), last, len));
        assert_eq!(header.buffer_offset, u32::try_from(got.len()).unwrap());
        assert_eq!((header.itt, header.ttt), (command.itt, Ttt::NONE));
        assert_eq!(header.status, last.then_some(DataInStatus { status: 0, residual: Residual::None }));
        assert_eq!(header.sn.exp_cmd_sn, CmdSn(101));
        got.extend_from_slice(&pdu.data);
    }
    assert_eq!(got, data);
    world.expect_silence(conn);
}

#[test]
fn a_write_takes_immediate_unsolicited_and_solicited_data() {
    let mut world = World::new();
    let (conn, _) = world.login(&[
        "InitialR2T=No",
        "ImmediateData=Yes",
        "FirstBurstLength=8192",
        "MaxBurstLength=16384",
        "MaxOutstandingR2T=1",
        "HeaderDigest=CRC32C",
        "DataDigest=CRC32C",
    ]);
    let mut command = world.write(conn, 40_000);
    command.is_final = false;
    let data = pattern(0, 40_000);
    let up = world.start(conn, &command, &data[..4096]);
    world.fetch(up.task, 0, 40_000);
    // An R2T for the solicited part may be sent at once.
    let r2t: R2t = world.expect(conn);
    assert_eq!((r2t.buffer_offset, r2t.desired_data_transfer_length), (8192, 16384));
    assert_eq!((r2t.lun, r2t.itt), (LUN, command.itt));
    let unsolicited = DataOut {
        is_final: true,
        lun: 0,
        itt: command.itt,
        ttt: Ttt::NONE,
        exp_stat_sn: StatSn(0),
        data_sn: DataSn(0),
        buffer_offset: 4096,
    };
    world.send(conn, &unsolicited, &data[4096..8192]);
    let mut r2t = r2t;
    for start in [8192_u32, 24576] {
        assert_eq!(r2t.buffer_offset, start);
        let end = start + r2t.desired_data_transfer_length;
        for (sn, at) in (0..).zip((start..end).step_by(5000)) {
            let to = (at + 5000).min(end);
            let out = DataOut {
                is_final: to == end,
                lun: LUN,
                ttt: r2t.ttt,
                data_sn: DataSn(sn),
                buffer_offset: at,
                ..unsolicited
            };
            world.send(conn, &out, &data[at as usize..to as usize]);
        }
        if end < 40_000 {
            r2t = world.expect(conn);
        }
    }
    assert_eq!(world.expect_data(up.task, 0), data);
    world.finish(up.task, Finish::good(40_000));
    let response: ScsiResponse = world.expect(conn);
    assert_eq!((response.status, response.residual, response.exp_data_sn), (0, Residual::None, DataSn(0)));
    world.expect_silence(conn);
}

#[test]
fn a_logout_ends_the_session_and_then_the_connection() {
    let mut world = World::new();
    let (conn, up) = world.login(&[]);
    let (itt, cmd_sn) = world.numbers(conn);
    let logout = LogoutRequest {
        immediate: false,
        reason: LogoutReason::CloseSession,
        itt,
        cid: 0,
        cmd_sn,
        exp_stat_sn: StatSn(0),
    };
    world.send(conn, &logout, &[]);
    let response: LogoutResponse = world.expect(conn);
    assert_eq!((response.response, response.itt), (LogoutResult::CLOSED, itt));
    assert_eq!(response.sn.exp_cmd_sn, cmd_sn.next());
    match world.next_event() {
        Some(Event::SessionDown { session, why }) => {
            assert_eq!((session, why), (up.session, SessionEnd::LoggedOut))
        }
        other => panic!("{other:?}"),
    }
    assert_eq!(world.ended(conn), Some(Action::Close(conn)));
    world.expect_silence(conn);
}
