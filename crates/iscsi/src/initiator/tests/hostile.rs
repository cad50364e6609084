//! Malicious targets (facts on CVE-2020-1711, libiscsi 2025-09, edk2#9796, CVE-2026-44944 and similar ones):
//! the connection is closed with the right reason, no byte is written outside a buffer, and every task ends
//! once.

use alloc::vec::Vec;

use base::rng::Rng;
use base::state_machine::Action;
use base::time::Duration;
use transport::initiator::{InitiatorTransport as _, Request, Residual, TaskResult};
use transport::task_management::TmfResult;

use super::pair::{LUN, Setup, cdb, read, target_name, write};
use super::scripted_target::ScriptedTarget;
use crate::initiator::contract::*;
use crate::initiator::protocol_error::ProtocolError;
use crate::pdu::async_message::{AsyncEventCode, AsyncMessage};
use crate::pdu::data_in::DataIn;
use crate::pdu::nop_in::NopIn;
use crate::pdu::r2t::R2t;
use crate::pdu::reject::{Reject, RejectReason};
use crate::pdu::scsi_response::ScsiResponse;
use crate::pdu::text_response::TextResponse;
use crate::pdu::tmf_response::TmfResponse;
use crate::pdu::{Bhs, Itt, Malformed, Opcode, PduHeader, Ttt};
use crate::serial::{DataSn, StatSn};

/// Sends one PDU in the middle of a read of 1000 bytes and checks that the connection ends for this reason.
fn check_read(why: ProtocolError, lie: impl Fn(&mut ScriptedTarget, DataIn) -> (Bhs, Vec<u8>)) {
    let (mut raw, conn) = ScriptedTarget::level(0, &[]);
    let (task, command) = raw.start(conn, read(0, 1000));
    let pdu = raw.data_in(conn, command.itt, 0, 0);
    let (bhs, data) = lie(&mut raw, pdu);
    let bytes = raw.frame(conn, bhs, &data);
    raw.feed(conn, &bytes);
    assert_eq!(raw.why(), Some(ConnectionDown::ProtocolError(why)));
    assert_eq!(raw.ended(conn), Some(Action::Abort(conn)));
    assert_eq!(raw.outcome(task).end, TaskResult::Lost);
    assert_eq!(raw.session.stats().bugs, 0);
}

/// CVE-2020-1711: a target sent more data than requested, and QEMU's initiator accepted it.
#[test]
fn data_in_outside_the_buffer_is_refused_before_it_is_read() {
    for (offset, len) in
        [(1000u32, 1usize), (999, 2), (0, 1001), (u32::MAX, 4), (u32::MAX - 3, 4), (1 << 31, 512)]
    {
        check_read(ProtocolError::DataInBeyondBuffer, |_, pdu| {
            (DataIn { buffer_offset: offset, ..pdu }.encode(), alloc::vec![0x5a; len])
        });
    }
}

#[test]
fn data_in_out_of_order_or_for_nobody_is_refused() {
    check_read(ProtocolError::DataInOffset, |_, pdu| {
        (DataIn { buffer_offset: 4, ..pdu }.encode(), alloc::vec![0; 4])
    });
    for sn in [1, u32::MAX] {
        check_read(ProtocolError::DataSnOutOfOrder, |_, pdu| {
            (DataIn { data_sn: DataSn(sn), ..pdu }.encode(), alloc::vec![0; 4])
        });
    }
    for itt in [0xffff_ffff, 0xdead, 0x4000_0000, 0x8000_0001, 0x0001_0000] {
        check_read(ProtocolError::UnknownTask, |_, pdu| {
            (DataIn { itt: Itt(itt), ..pdu }.encode(), alloc::vec![0; 4])
        });
    }
}

/// The LUN of a Data-In means something only with the A bit, and the A bit only at level 1 and up.
#[test]
fn data_in_for_another_lun_is_refused_before_it_is_read() {
    //= rfc7143#section-4.2.5.3
    //= type=test
    //# the iSCSI initiator and target MUST verify that all other fields used in task-related PDUs have values
    //# that are consistent with the values used at the task instantiation
    //= rfc7143#section-11.7.2
    //= type=test
    //# The initiator MUST ignore the A bit set to 1 for sessions with ErrorRecoveryLevel=0.
    let other = 2 << 48;
    for (level, acknowledge, lun, refused) in [
        (0, false, 0, false),
        (0, false, u64::MAX, false),
        (0, true, other, false),
        (1, false, 0, false),
        (1, false, other, false),
        (1, true, LUN, false),
        (1, true, 0, true),
        (1, true, other, true),
    ] {
        let (mut raw, conn) = ScriptedTarget::level(level, &[]);
        let (task, command) = raw.start(conn, read(0, 1000));
        let ttt = if acknowledge { Ttt(1) } else { Ttt::NONE };
        let pdu = DataIn { acknowledge, lun, ttt, ..raw.data_in(conn, command.itt, 0, 0) };
        // The header alone decides: no byte of the data is needed, and none is placed.
        let bytes = raw.frame(conn, pdu.encode(), &[7; 1000]);
        raw.feed(conn, &bytes[..48]);
        let why = refused.then_some(ConnectionDown::ProtocolError(ProtocolError::DataInOtherLun));
        assert_eq!(raw.why(), why, "level {level}, A {acknowledge}, LUN {lun:#x}");
        if refused {
            let outcome = raw.outcome(task);
            assert_eq!((outcome.end, outcome.data_in), (TaskResult::Lost, None));
            continue;
        }
        raw.feed(conn, &bytes[48..]);
        let acknowledged = core::iter::from_fn(|| raw.receive(conn))
            .filter(|sent| sent.bhs.opcode() == Opcode::SNACK)
            .count();
        assert_eq!(acknowledged, usize::from(level > 0 && acknowledge));
        let response = raw.response(conn, command.itt, 1);
        raw.send(conn, &response, &[]);
        assert_eq!(raw.outcome(task).data_in.as_deref(), Some(&[7; 1000][..]));
    }
}

#[test]
fn data_in_for_a_command_that_does_not_read_is_refused() {
    let (mut raw, conn) = ScriptedTarget::level(0, &[]);
    let (task, command) = raw.start(conn, Request::new(LUN, cdb(0, 0, 0)));
    let pdu = raw.data_in(conn, command.itt, 0, 0);
    raw.send(conn, &pdu, &[1, 2, 3, 4]);
    assert_eq!(raw.why(), Some(ConnectionDown::ProtocolError(ProtocolError::DataInNotExpected)));
    assert_eq!(raw.outcome(task).end, TaskResult::Lost);
}

/// libiscsi 2025-09: a reply that is shorter than its parser assumes.
#[test]
fn a_good_status_with_less_data_than_it_admits_is_refused() {
    for (len, residual, good) in [
        (1000usize, Residual::None, true),
        (600, Residual::Underflow(400), true),
        (600, Residual::None, false),
        (600, Residual::Underflow(399), false),
        (600, Residual::Underflow(u32::MAX), false),
        (600, Residual::Overflow(400), false),
        (1000, Residual::Overflow(400), true),
        (0, Residual::None, false),
    ] {
        let (mut raw, conn) = ScriptedTarget::level(0, &[]);
        let (task, command) = raw.start(conn, read(0, 1000));
        if len > 0 {
            let pdu = raw.data_in(conn, command.itt, 0, 0);
            raw.send(conn, &pdu, &alloc::vec![7; len]);
        }
        let response = ScsiResponse { residual, ..raw.response(conn, command.itt, u32::from(len > 0)) };
        raw.send(conn, &response, &[]);
        let outcome = raw.outcome(task);
        assert_eq!(outcome.end.is_good(), good, "{len} {residual:?}");
        if good {
            assert_eq!(outcome.data_in.as_deref(), Some(&alloc::vec![7; len][..]));
        } else {
            assert_eq!(raw.why(), Some(ConnectionDown::ProtocolError(ProtocolError::DataInShort)));
        }
    }
}

/// edk2#9796: the sum of an R2T's offset and length wrapped around.
#[test]
fn r2ts_that_lie_are_refused_and_send_nothing() {
    //= rfc7143#section-11.8.4
    //= type=test
    //# The Desired Data Transfer Length MUST NOT be 0 and MUST NOT exceed MaxBurstLength.
    //= rfc7143#section-11.8.5
    //= type=test
    //# There is no protocol rule about the Target Transfer Tag except that the value 0xffffffff is reserved
    //# and MUST NOT be sent by a target in an R2T.
    //= rfc7143#section-4.2.5.3
    //= type=test
    //# (e.g., the LUN used in an R2T PDU MUST be the same as the one used in the SCSI Command PDU used to
    //# instantiate the task)
    type Lie = (ProtocolError, fn(R2t) -> R2t);
    let lies: [Lie; 10] = [
        (ProtocolError::R2tOtherLun, |r2t| R2t { lun: 0, ..r2t }),
        (ProtocolError::R2tOtherLun, |r2t| R2t { lun: 2 << 48, ..r2t }),
        (ProtocolError::R2tBeyondData, |r2t| R2t { buffer_offset: u32::MAX, ..r2t }),
        (ProtocolError::R2tBeyondData, |r2t| R2t {
            buffer_offset: u32::MAX - 511,
            desired_data_transfer_length: 1024,
            ..r2t
        }),
        (ProtocolError::R2tBeyondData, |r2t| R2t { desired_data_transfer_length: u32::MAX, ..r2t }),
        (ProtocolError::R2tBeyondData, |r2t| R2t { desired_data_transfer_length: 100_001, ..r2t }),
        (ProtocolError::R2tBeyondBurst, |r2t| R2t { desired_data_transfer_length: 65_537, ..r2t }),
        (ProtocolError::R2tOffset, |r2t| R2t { buffer_offset: 512, ..r2t }),
        (ProtocolError::R2tReservedTag, |r2t| R2t { ttt: Ttt::NONE, ..r2t }),
        (ProtocolError::R2tSnOutOfOrder, |r2t| R2t { r2t_sn: crate::serial::R2tSn(1), ..r2t }),
    ];
    for (why, lie) in lies {
        let keys = ["InitialR2T=Yes", "ImmediateData=No", "MaxBurstLength=65536", "FirstBurstLength=65536"];
        let (mut raw, conn) = ScriptedTarget::level(0, &keys);
        let (task, command) = raw.start(conn, write(0, 1, &[1; 100_000]));
        let r2t = lie(raw.r2t(conn, command.itt, 0, 0, 65_536));
        raw.send(conn, &r2t, &[]);
        assert_eq!(raw.why(), Some(ConnectionDown::ProtocolError(why)));
        assert!(raw.receive(conn).is_none(), "{why:?}");
        assert_eq!(raw.outcome(task).end, TaskResult::Lost);
    }
    let (mut raw, conn) = ScriptedTarget::level(0, &[]);
    let (_, command) = raw.start(conn, read(0, 512));
    let r2t = raw.r2t(conn, command.itt, 0, 0, 512);
    raw.send(conn, &r2t, &[]);
    assert_eq!(raw.why(), Some(ConnectionDown::ProtocolError(ProtocolError::R2tNotExpected)));
}

#[test]
fn more_r2ts_than_agreed_are_refused() {
    let keys = [
        "InitialR2T=Yes",
        "ImmediateData=No",
        "MaxBurstLength=512",
        "FirstBurstLength=512",
        "MaxOutstandingR2T=1",
    ];
    let (mut raw, conn) = ScriptedTarget::level(0, &keys);
    let (_, command) = raw.start(conn, write(0, 1, &[1; 2048]));
    // Both arrive before the session can send a PDU.
    let mut bytes = Vec::new();
    for (sn, offset) in [(0, 0), (1, 512)] {
        bytes.extend(raw.frame(conn, raw.r2t(conn, command.itt, sn, offset, 512).encode(), &[]));
    }
    raw.feed(conn, &bytes);
    assert_eq!(raw.why(), Some(ConnectionDown::ProtocolError(ProtocolError::TooManyR2ts)));
}

/// Sends one PDU to an idle session and checks that the connection ends for this reason.
fn check_idle(why: ProtocolError, lie: impl Fn(&mut ScriptedTarget) -> (Bhs, Vec<u8>)) {
    let (mut raw, conn) = ScriptedTarget::level(0, &[]);
    let (bhs, data) = lie(&mut raw);
    let bytes = raw.frame(conn, bhs, &data);
    raw.feed(conn, &bytes);
    assert_eq!(raw.why(), Some(ConnectionDown::ProtocolError(why)));
    assert_eq!(raw.session.stats().bugs, 0);
}

#[test]
fn answers_to_nothing_are_refused() {
    //= rfc7143#section-11.2.1.2
    //= type=test
    //# Initiators MUST NOT use target Opcodes, and targets MUST NOT use initiator Opcodes.
    let conn = base::state_machine::ConnId(0);
    check_idle(ProtocolError::UnknownTask, |raw| (raw.response(conn, Itt(0), 0).encode(), Vec::new()));
    check_idle(ProtocolError::UnknownTask, |raw| {
        let pdu = TmfResponse { response: TmfResult::COMPLETE, itt: Itt(0x4000_0000), sn: raw.next_sn(conn) };
        (pdu.encode(), Vec::new())
    });
    check_idle(ProtocolError::UnknownTask, |raw| {
        (NopIn { lun: 0, itt: Itt(5), ttt: Ttt::NONE, sn: raw.next_sn(conn) }.encode(), Vec::new())
    });
    check_idle(ProtocolError::TextNotExpected, |raw| {
        let sn = raw.next_sn(conn);
        let pdu = TextResponse { is_final: true, continues: false, lun: 0, itt: Itt(5), ttt: Ttt::NONE, sn };
        (pdu.encode(), b"TargetName=iqn.2026-01.x:y\0".to_vec())
    });
    check_idle(ProtocolError::StatSnOutOfOrder, |raw| {
        let mut sn = raw.next_sn(conn);
        sn.stat_sn = StatSn(sn.stat_sn.0 + 9);
        (NopIn { lun: 0, itt: Itt(5), ttt: Ttt::NONE, sn }.encode(), Vec::new())
    });
    check_idle(ProtocolError::RejectWithoutHeader, |raw| {
        let pdu = Reject { reason: RejectReason::PROTOCOL_ERROR, sn: raw.next_sn(conn), data_sn: DataSn(0) };
        (pdu.encode(), alloc::vec![1; 47])
    });
    check_idle(ProtocolError::LoginAfterLogin, |_| {
        let mut bytes = [0; 48];
        bytes[0] = Opcode::LOGIN_RESPONSE.0;
        (Bhs::from_bytes(bytes), Vec::new())
    });
    check_idle(ProtocolError::InitiatorPdu, |_| (Bhs::from_bytes([0; 48]), Vec::new()));
    check_idle(ProtocolError::UnknownOpcode, |_| {
        let mut bytes = [0; 48];
        bytes[0] = 0x3c;
        (Bhs::from_bytes(bytes), Vec::new())
    });
    check_idle(ProtocolError::Malformed(Malformed::EmptyR2t), |raw| {
        let pdu = raw.r2t(conn, Itt(0), 0, 0, 0);
        (pdu.encode(), Vec::new())
    });
}

#[test]
fn a_data_segment_longer_than_declared_is_refused() {
    let (mut raw, conn) = ScriptedTarget::level(0, &[]);
    let (_, command) = raw.start(conn, read(0, 1 << 20));
    let pdu = raw.data_in(conn, command.itt, 0, 0).encode().with_data_len((256 << 10) + 1);
    raw.feed(conn, pdu.bytes());
    assert_eq!(raw.why(), Some(ConnectionDown::ProtocolError(ProtocolError::DataSegmentTooLong)));
}

#[test]
fn sense_that_is_longer_than_its_segment_is_refused() {
    for data in [&[0][..], &[0, 1], &[0xff, 0xff, 0, 0], &[0, 3, 1, 2]] {
        let (mut raw, conn) = ScriptedTarget::level(0, &[]);
        let (_, command) = raw.start(conn, Request::new(LUN, cdb(0, 0, 0)));
        let response = ScsiResponse { status: 2, ..raw.response(conn, command.itt, 0) };
        raw.send(conn, &response, data);
        assert_eq!(raw.why(), Some(ConnectionDown::ProtocolError(ProtocolError::BadSense)), "{data:?}");
    }
}

/// CVE-2026-44944, CVE-2026-18724: names from a list became file names.
#[test]
fn names_with_slashes_and_newlines_never_come_out_of_a_list() {
    let mut setup = Setup::default();
    setup.plan.purpose = Purpose::Discovery;
    let (mut raw, conn) = ScriptedTarget::up(setup, &[]);
    let now = raw.now;
    raw.session.send_targets(now, None).unwrap();
    raw.drain();
    let request = raw.expect_any(conn);
    assert_eq!(request.data, b"SendTargets=All\0");
    let sn = raw.next_sn(conn);
    let itt = request.bhs.itt();
    let pdu = TextResponse { is_final: true, continues: false, lun: 0, itt, ttt: Ttt::NONE, sn };
    let list = b"TargetName=iqn.2026-01.test:../../etc/passwd\0TargetAddress=10.0.0.1:3260,1\0\
        TargetName=iqn.2026-01.test:a\nb\0TargetName=..\0TargetName=iqn.2026-01.test:%n%n\0\
        TargetName=iqn.2026-01.test:target-00000\0TargetAddress=10.0.0.1:3260,1\0\
        TargetAddress=$(reboot):1,1\0TargetAddress=../etc:1\0";
    raw.send(conn, &pdu, list);
    let Some(Event::Targets { targets, ignored }) = raw.events.pop() else { panic!("no list") };
    assert_eq!(targets.len(), 1);
    assert_eq!((&targets[0].name, targets[0].addresses.len()), (&target_name(0), 1));
    assert_eq!(ignored, 7);
}

/// open-iscsi PR #224: a list of some 250 targets overflowed a buffer.
#[test]
fn a_flood_of_targets_ends_at_a_limit() {
    let mut setup = Setup::default();
    setup.plan.purpose = Purpose::Discovery;
    let (mut raw, conn) = ScriptedTarget::up(setup, &[]);
    let now = raw.now;
    raw.session.send_targets(now, None).unwrap();
    raw.drain();
    let mut request = raw.expect_any(conn);
    let mut at = 0u32;
    for round in 0..90u32 {
        let mut list = Vec::new();
        for _ in 0..1000 {
            list.extend(alloc::format!("TargetName=iqn.2026-01.test:{at}\0").into_bytes());
            at += 1;
        }
        let last = round == 89;
        let (itt, sn) = (request.bhs.itt(), raw.next_sn(conn));
        let ttt = if last { Ttt::NONE } else { Ttt(7) };
        raw.send(conn, &TextResponse { is_final: last, continues: !last, lun: 0, itt, ttt, sn }, &list);
        if !last {
            request = raw.expect_any(conn);
        }
    }
    let Some(Event::Targets { targets, ignored }) = raw.events.pop() else { panic!("no list") };
    assert_eq!(
        (targets.len(), ignored),
        (crate::discovery::MAX_TARGETS, 90_000 - crate::discovery::MAX_TARGETS)
    );
    // A name without an end is not collected without limit.
    let (mut raw, conn) = ScriptedTarget::up(
        Setup {
            plan: SessionPlan { purpose: Purpose::Discovery, ..Setup::default().plan },
            ..Setup::default()
        },
        &[],
    );
    let now = raw.now;
    raw.session.send_targets(now, None).unwrap();
    raw.drain();
    let request = raw.expect_any(conn);
    let (itt, sn) = (request.bhs.itt(), raw.next_sn(conn));
    let pdu = TextResponse { is_final: false, continues: true, lun: 0, itt, ttt: Ttt(7), sn };
    raw.send(conn, &pdu, &alloc::vec![b'a'; 5000]);
    assert!(
        matches!(raw.why(), Some(ConnectionDown::ProtocolError(ProtocolError::Text(_)))),
        "{:?}",
        raw.events
    );
    assert!(raw.events.iter().any(|event| matches!(event, Event::TextFailed)));
}

#[test]
fn a_window_that_lies_is_passed_over() {
    let (mut raw, conn) = ScriptedTarget::level(0, &[]);
    raw.exp_cmd_sn = 0x7000_0000;
    let pdu = NopIn { lun: 0, itt: Itt::NONE, ttt: Ttt::NONE, sn: raw.sn(conn) };
    raw.send(conn, &pdu, &[]);
    raw.exp_cmd_sn = 1;
    let (task, command) = raw.start(conn, Request::new(LUN, cdb(0, 0, 0)));
    assert_eq!(command.cmd_sn.0, 1);
    let response = raw.response(conn, command.itt, 0);
    raw.send(conn, &response, &[]);
    assert!(raw.outcome(task).end.is_good());
}

#[test]
fn a_flood_of_pings_that_reads_no_answers_is_ended() {
    let (mut raw, conn) = ScriptedTarget::level(0, &[]);
    let mut bytes = Vec::new();
    for at in 0..5000 {
        let pdu = NopIn { lun: 0, itt: Itt::NONE, ttt: Ttt(at), sn: raw.sn(conn) };
        bytes.extend(raw.frame(conn, pdu.encode(), &[]));
    }
    raw.feed(conn, &bytes);
    assert_eq!(raw.why(), Some(ConnectionDown::ProtocolError(ProtocolError::AnswersUnread)));
}

#[test]
fn a_target_that_always_misbehaves_is_not_asked_in_a_hot_loop() {
    let mut setup = Setup::default();
    setup.plan.keys.error_recovery_level = 0;
    setup.plan.retry.timeout = Duration::from_secs(3600);
    let (mut raw, conn) = ScriptedTarget::up(setup, &["ErrorRecoveryLevel=0"]);
    let task = raw.session.submit(raw.now, Request { replay: true, ..read(0, 512) }).unwrap();
    raw.drain();
    let mut conn = conn;
    let mut rounds = 0;
    while raw.session.open_tasks() > 0 {
        rounds += 1;
        assert!(rounds < 20);
        let pdu = raw.data_in(conn, Itt(0x1234), 0, 0);
        raw.send(conn, &pdu, &[0; 4]);
        raw.pass(Duration::from_secs(10));
        let next = base::state_machine::ConnId(conn.0 + 1);
        if raw.ends.contains_key(&next) {
            raw.exp_cmd_sn = 1;
            raw.log_in(next, 7, &["ErrorRecoveryLevel=0"]);
        }
        conn = next;
    }
    assert_eq!(raw.outcome(task).end, TaskResult::Lost);
    assert_eq!(rounds, 9);
}

#[test]
fn an_unknown_async_message_is_reported_and_harmless() {
    let (mut raw, conn) = ScriptedTarget::level(0, &[]);
    let message = AsyncMessage {
        lun: LUN,
        sn: raw.next_sn(conn),
        event: AsyncEventCode::VENDOR,
        vendor_code: 3,
        parameter1: u16::MAX,
        parameter2: u16::MAX,
        parameter3: u16::MAX,
    };
    raw.send(conn, &message, &[1, 2, 3]);
    assert!(matches!(raw.events.pop(), Some(Event::AsyncMessage(notice)) if notice.message.vendor_code == 3));
    assert!(raw.session.is_up());
}

/// Whatever a target sends, no input causes a panic, every task ends exactly once, and the session closes.
#[test]
fn random_pdus_never_make_the_session_panic_and_every_task_ends_once() {
    for seed in 0..300 {
        let mut rng = Rng::from_seed(seed);
        let level = u8::try_from(rng.below(3)).unwrap();
        let (mut raw, conn) = ScriptedTarget::level(level, &[]);
        let mut open = Vec::new();
        for _ in 0..4 {
            open.push(raw.start(conn, read(0, 4096)).0);
            open.push(raw.start(conn, write(0, 1, &[3; 9000])).0);
        }
        for _ in 0..40 {
            if raw.ended(conn).is_some() {
                break;
            }
            let mut bytes = [0; 48];
            rng.fill(&mut bytes);
            let kinds = [0x20, 0x21, 0x22, 0x24, 0x25, 0x26, 0x31, 0x32, 0x3f];
            bytes[0] = kinds[usize::try_from(rng.below(9)).unwrap()];
            if rng.chance(9, 10) {
                // Mostly about an open request, with small numbers and the right sequence numbers.
                bytes[1] &= 0x81 | (rng.next_u64().to_be_bytes()[0] & 0x48);
                bytes[16..20].copy_from_slice(&u32::try_from(rng.below(9)).unwrap().to_be_bytes());
                let sn = raw.sn(conn);
                bytes[24..28].copy_from_slice(&sn.stat_sn.0.to_be_bytes());
                bytes[28..32].copy_from_slice(&sn.exp_cmd_sn.0.to_be_bytes());
                bytes[32..36].copy_from_slice(&sn.max_cmd_sn.0.to_be_bytes());
                bytes[36..40].copy_from_slice(&u32::try_from(rng.below(3)).unwrap().to_be_bytes());
                bytes[40..44].copy_from_slice(&u32::try_from(rng.below(5000)).unwrap().to_be_bytes());
                bytes[44..48].copy_from_slice(&u32::try_from(rng.below(5000)).unwrap().to_be_bytes());
            }
            let bhs = Bhs::from_bytes(bytes).with_ahs_len(0);
            let data = alloc::vec![9; usize::try_from(rng.below(600)).unwrap()];
            let framed = raw.frame(conn, bhs, &data);
            raw.feed(conn, &framed);
            if rng.chance(1, 4) {
                raw.ends.get_mut(&conn).unwrap().stat_sn += 1;
            }
            if rng.chance(1, 10) {
                raw.pass(Duration::from_millis(500));
            }
        }
        let now = raw.now;
        raw.session.close(now);
        raw.drain();
        for task in open {
            let ends = raw
                .events
                .iter()
                .filter(|event| matches!(event, Event::Done { task: of, .. } if *of == task));
            assert_eq!(ends.count(), 1, "seed {seed}");
        }
        assert!(matches!(raw.events.last(), Some(Event::Down(_))), "seed {seed}");
        assert_eq!(raw.session.stats().bugs, 0, "seed {seed}");
    }
}

#[test]
fn anything_but_a_login_response_ends_a_login() {
    for opcode in [Opcode::NOP_IN, Opcode::SCSI_RESPONSE, Opcode::REJECT, Opcode(0x3c)] {
        let mut raw = ScriptedTarget::new(Setup::default());
        let conn = base::state_machine::ConnId(0);
        //= rfc7143#section-4.2.4
        //= type=test
        //# On any connection, the Login Phase MUST immediately follow TCP connection establishment
        assert_eq!(raw.expect_any(conn).bhs.opcode(), Opcode::LOGIN_REQUEST);
        let mut bytes = [0; 48];
        bytes[0] = opcode.0;
        //= rfc7143#section-4.2.4
        //= type=test
        //# If the initiator receives any PDU except a Login Response, it MUST immediately terminate
        //# the connection.
        raw.feed(conn, &bytes);
        assert_eq!(raw.ended(conn), Some(Action::Abort(conn)));
        assert_eq!(raw.why(), Some(ConnectionDown::ProtocolError(ProtocolError::NotALogin)));
    }
}

#[test]
fn a_status_far_ahead_of_the_last_ends_the_connection() {
    let (mut raw, conn) = ScriptedTarget::level(1, &[]);
    let mut sn = raw.next_sn(conn);
    sn.stat_sn = sn.stat_sn.plus(1 << 17);
    //= rfc7143#section-4.2.2.2
    //= type=test
    //# Initiators MUST undertake recovery actions if the difference is greater than an
    //# implementation-defined constant that MUST NOT exceed 2**31 - 1.
    raw.send(conn, &NopIn { lun: 0, itt: Itt(5), ttt: Ttt::NONE, sn }, &[]);
    assert_eq!(raw.why(), Some(ConnectionDown::ProtocolError(ProtocolError::StatSnFarAhead)));
}
