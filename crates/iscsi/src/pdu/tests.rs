//! Golden headers, encoded and decoded, as RFC 7143 §11 draws them: twelve 32-bit words each.

use core::fmt;

use transport::command::TaskAttribute;
use transport::initiator::ServiceResponse;
use transport::task_management::{TmfFunction, TmfResult};

use super::async_message::{AsyncEventCode, AsyncMessage};
use super::data_in::{DataIn, DataInStatus};
use super::data_out::DataOut;
use super::login_request::LoginRequest;
use super::login_response::LoginResponse;
use super::logout_request::{LogoutReason, LogoutRequest};
use super::logout_response::{LogoutResponse, LogoutResult};
use super::nop_in::NopIn;
use super::nop_out::NopOut;
use super::r2t::R2t;
use super::read_residual;
use super::reject::{Reject, RejectReason};
use super::scsi_command::ScsiCommand;
use super::scsi_response::ScsiResponse;
use super::snack::{Snack, SnackKind};
use super::text_request::TextRequest;
use super::text_response::TextResponse;
use super::tmf_request::TmfRequest;
use super::tmf_response::TmfResponse;
use super::*;
use crate::serial::{DataSn, R2tSn};

const LUN: u64 = 0x0001_0000_0000_0000;
const ITT: Itt = Itt(0x1111_2222);
const TTT: Ttt = Ttt(0x3333_4444);
const CMD_SN: CmdSn = CmdSn(0x51);
const EXP_STAT_SN: StatSn = StatSn(0x61);
const SN: TargetSn = TargetSn { stat_sn: StatSn(0x62), exp_cmd_sn: CmdSn(0x52), max_cmd_sn: CmdSn(0x92) };

fn header(words: [u32; 12]) -> Bhs {
    let mut bytes = [0; BHS_LEN];
    for (to, word) in bytes.chunks_exact_mut(4).zip(words) {
        to.copy_from_slice(&word.to_be_bytes());
    }
    Bhs::from_bytes(bytes)
}

/// Checks that `value` is encoded as `words`, and that `words` decode to it whatever reserved bits a peer
/// sets.
fn golden<M: PduHeader + PartialEq + fmt::Debug>(value: &M, words: [u32; 12], reserved: [u32; 12]) {
    let expected = header(words);
    //= rfc7143#section-11
    //= type=test
    //# Any compliant sender MUST set all bits not defined and all reserved fields to 0, unless specified
    //# otherwise.
    //= rfc7143#section-11.2.1.5
    //= type=test
    //# The TotalAHSLength is only used in PDUs that have an AHS and MUST be 0 in all other PDUs.
    //= rfc7143#section-11.2.1.6
    //= type=test
    //# The DataSegmentLength MUST be 0 whenever the PDU has no data segment.
    assert_eq!(value.encode().to_bytes(), expected.to_bytes(), "{value:?}");
    assert_eq!(M::decode(&expected).as_ref(), Ok(value));
    //= rfc7143#section-11
    //= type=test
    //# Any compliant receiver MUST ignore any bit not defined and all reserved fields unless specified
    //# otherwise.
    let mut noisy = words;
    for (word, bits) in noisy.iter_mut().zip(reserved) {
        assert_eq!(*word & bits, 0, "reserved bits of {value:?}");
        *word |= bits;
    }
    assert_eq!(M::decode(&header(noisy)).as_ref(), Ok(value), "reserved bits are ignored");
    let other = header([0x3e00_0000, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
    assert_eq!(M::decode(&other), Err(Malformed::OtherOpcode));
}

#[test]
fn nop_out() {
    let ping = NopOut {
        immediate: true,
        lun: LUN,
        itt: ITT,
        ttt: Ttt::NONE,
        cmd_sn: CMD_SN,
        exp_stat_sn: EXP_STAT_SN,
    };
    let words = [0x4080_0000, 0, 0x0001_0000, 0, 0x1111_2222, u32::MAX, 0x51, 0x61, 0, 0, 0, 0];
    golden(&ping, words, [0x807f_ffff, 0, 0, 0, 0, 0, 0, 0, !0, !0, !0, !0]);
}

#[test]
fn nop_in() {
    let pong = NopIn { lun: LUN, itt: Itt::NONE, ttt: TTT, sn: SN };
    let words = [0x2080_0000, 0, 0x0001_0000, 0, u32::MAX, 0x3333_4444, 0x62, 0x52, 0x92, 0, 0, 0];
    golden(&pong, words, [0x007f_ffff, 0, 0, 0, 0, 0, 0, 0, 0, !0, !0, !0]);
}

#[test]
fn scsi_command() {
    //= rfc7143#section-11.3.1
    //= type=test
    //# At least one of the W and F bits MUST be set to 1.
    let mut cdb = [0; 16];
    cdb[..10].copy_from_slice(&[0x2a, 0, 0, 0, 1, 0, 0, 0, 8, 0]);
    let write = ScsiCommand {
        immediate: false,
        is_final: false,
        read: false,
        write: true,
        attribute: TaskAttribute::SIMPLE,
        priority: 9,
        lun: LUN,
        itt: ITT,
        expected_data_transfer_length: 4096,
        cmd_sn: CMD_SN,
        exp_stat_sn: EXP_STAT_SN,
        cdb,
    };
    let words = [
        0x0121_9000,
        0,
        0x0001_0000,
        0,
        0x1111_2222,
        4096,
        0x51,
        0x61,
        0x2a00_0000,
        0x0100_0000,
        0x0800_0000,
        0,
    ];
    golden(&write, words, [0x8018_0fff, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
    let read = ScsiCommand {
        immediate: true,
        is_final: true,
        read: true,
        write: false,
        attribute: TaskAttribute::ACA,
        priority: 0,
        ..write
    };
    assert_eq!(read.encode().to_bytes()[..4], [0x41, 0xc4, 0, 0]);
    assert_eq!(ScsiCommand::decode(&read.encode()), Ok(read));
    for (flags, error) in [(0x85, Malformed::ReservedAttribute), (0x40, Malformed::UnsolicitedWithoutWrite)] {
        let bhs = header([0x0100_0000 | (flags << 16), 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
        assert_eq!(ScsiCommand::decode(&bhs), Err(error));
    }
}

#[test]
fn scsi_response() {
    let response = ScsiResponse {
        response: ServiceResponse::COMPLETED,
        status: 2,
        status_qualifier: 0x0102,
        itt: ITT,
        snack_tag: 7,
        sn: SN,
        exp_data_sn: DataSn(3),
        bidirectional_read_residual: Residual::Underflow(5),
        residual: Residual::Overflow(6),
    };
    let words = [0x218c_0002, 0, 0x0102_0000, 0, 0x1111_2222, 7, 0x62, 0x52, 0x92, 3, 5, 6];
    golden(&response, words, [0x0061_0000, 0, 0x0000_ffff, !0, 0, 0, 0, 0, 0, 0, 0, 0]);
    for flags in [0x9800_u32, 0x8600] {
        let bhs = header([0x2100_0000 | (flags << 8), 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
        assert_eq!(ScsiResponse::decode(&bhs), Err(Malformed::OverflowAndUnderflow));
    }
}

#[test]
fn tmf_request() {
    //= rfc7143#section-11.5.2
    //= type=test
    //# For this PDU, TotalAHSLength and DataSegmentLength MUST be 0.
    let request = TmfRequest {
        immediate: true,
        function: TmfFunction::ABORT_TASK,
        lun: LUN,
        itt: ITT,
        referenced_task_tag: Itt(0x1111_2223),
        cmd_sn: CMD_SN,
        exp_stat_sn: EXP_STAT_SN,
        ref_cmd_sn: CmdSn(0x50),
        exp_data_sn: DataSn(1),
    };
    let words = [0x4281_0000, 0, 0x0001_0000, 0, 0x1111_2222, 0x1111_2223, 0x51, 0x61, 0x50, 1, 0, 0];
    golden(&request, words, [0x8000_ffff, 0, 0, 0, 0, 0, 0, 0, 0, 0, !0, !0]);
}

#[test]
fn tmf_response() {
    //= rfc7143#section-11.6.2
    //= type=test
    //# For this PDU, TotalAHSLength and DataSegmentLength MUST be 0.
    let response = TmfResponse { response: TmfResult::NO_TASK, itt: ITT, sn: SN };
    let words = [0x2280_0100, 0, 0, 0, 0x1111_2222, 0, 0x62, 0x52, 0x92, 0, 0, 0];
    golden(&response, words, [0x007f_00ff, 0, !0, !0, 0, !0, 0, 0, 0, !0, !0, !0]);
}

#[test]
fn login_request() {
    let request = LoginRequest {
        transit: true,
        continues: false,
        csg: 1,
        nsg: 3,
        version_max: 0,
        version_min: 0,
        isid: [0x80, 1, 2, 3, 4, 5],
        tsih: 0x0607,
        itt: ITT,
        cid: 0x0809,
        cmd_sn: CMD_SN,
        exp_stat_sn: EXP_STAT_SN,
    };
    let words = [0x4387_0000, 0, 0x8001_0203, 0x0405_0607, 0x1111_2222, 0x0809_0000, 0x51, 0x61, 0, 0, 0, 0];
    golden(&request, words, [0x8030_0000, 0, 0, 0, 0, 0xffff, 0, 0, !0, !0, !0, !0]);
}

#[test]
fn login_response() {
    let response = LoginResponse {
        transit: false,
        continues: true,
        csg: 0,
        nsg: 1,
        version_max: 1,
        version_active: 2,
        isid: [0x80, 1, 2, 3, 4, 5],
        tsih: 0x0607,
        itt: ITT,
        sn: SN,
        status: 0x0201,
    };
    let words =
        [0x2341_0102, 0, 0x8001_0203, 0x0405_0607, 0x1111_2222, 0, 0x62, 0x52, 0x92, 0x0201_0000, 0, 0];
    golden(&response, words, [0x0030_0000, 0, 0, 0, 0, !0, 0, 0, 0, 0xffff, !0, !0]);
}

#[test]
fn text_request_and_response() {
    //= rfc7143#section-11.10.2
    //= type=test
    //# A Text Request with the C bit set to 1 MUST have the F bit set to 0.
    let request = TextRequest {
        immediate: false,
        is_final: true,
        continues: false,
        lun: LUN,
        itt: ITT,
        ttt: TTT,
        cmd_sn: CMD_SN,
        exp_stat_sn: EXP_STAT_SN,
    };
    let words = [0x0480_0000, 0, 0x0001_0000, 0, 0x1111_2222, 0x3333_4444, 0x51, 0x61, 0, 0, 0, 0];
    golden(&request, words, [0x803f_ffff, 0, 0, 0, 0, 0, 0, 0, !0, !0, !0, !0]);
    let response =
        TextResponse { is_final: false, continues: true, lun: LUN, itt: ITT, ttt: Ttt::NONE, sn: SN };
    let words = [0x2440_0000, 0, 0x0001_0000, 0, 0x1111_2222, u32::MAX, 0x62, 0x52, 0x92, 0, 0, 0];
    golden(&response, words, [0x003f_ffff, 0, 0, 0, 0, 0, 0, 0, 0, !0, !0, !0]);
    let both = header([0x04c0_0000, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
    assert_eq!(TextRequest::decode(&both), Err(Malformed::FinalAndContinue));
}

#[test]
fn data_out() {
    let data = DataOut {
        is_final: true,
        lun: LUN,
        itt: ITT,
        ttt: TTT,
        exp_stat_sn: EXP_STAT_SN,
        data_sn: DataSn(2),
        buffer_offset: 8192,
    };
    let words = [0x0580_0000, 0, 0x0001_0000, 0, 0x1111_2222, 0x3333_4444, 0, 0x61, 0, 2, 8192, 0];
    golden(&data, words, [0x807f_ffff, 0, 0, 0, 0, 0, !0, 0, !0, 0, 0, !0]);
}

#[test]
fn data_in() {
    //= rfc7143#section-11.7.3
    //= type=test
    //# If this bit is set to 1, the F bit MUST also be set to 1.
    let last = DataIn {
        is_final: true,
        acknowledge: false,
        status: Some(DataInStatus { status: 0, residual: Residual::Underflow(512) }),
        lun: 0,
        itt: ITT,
        ttt: Ttt::NONE,
        sn: SN,
        data_sn: DataSn(2),
        buffer_offset: 8192,
    };
    let words = [0x2583_0000, 0, 0, 0, 0x1111_2222, u32::MAX, 0x62, 0x52, 0x92, 2, 8192, 512];
    golden(&last, words, [0x0038_ff00, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
    let middle = DataIn {
        is_final: false,
        acknowledge: true,
        status: None,
        lun: LUN,
        ttt: TTT,
        sn: TargetSn { stat_sn: StatSn(0), ..SN },
        ..last
    };
    let words = [0x2540_0000, 0, 0x0001_0000, 0, 0x1111_2222, 0x3333_4444, 0, 0x52, 0x92, 2, 8192, 0];
    golden(&middle, words, [0x0038_ffff, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
    let early = header([0x2501_0000, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
    assert_eq!(DataIn::decode(&early), Err(Malformed::StatusBeforeFinal));
}

#[test]
fn r2t() {
    //= rfc7143#section-11.8.1
    //= type=test
    //# For this PDU, TotalAHSLength and DataSegmentLength MUST be 0.
    let r2t = R2t {
        lun: LUN,
        itt: ITT,
        ttt: TTT,
        sn: SN,
        r2t_sn: R2tSn(1),
        buffer_offset: 65536,
        desired_data_transfer_length: 262_144,
    };
    let words =
        [0x3180_0000, 0, 0x0001_0000, 0, 0x1111_2222, 0x3333_4444, 0x62, 0x52, 0x92, 1, 65536, 262_144];
    golden(&r2t, words, [0x007f_ffff, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
    let empty = header([0x3180_0000, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
    assert_eq!(R2t::decode(&empty), Err(Malformed::EmptyR2t));
}

#[test]
fn async_message() {
    let message = AsyncMessage {
        lun: LUN,
        sn: SN,
        event: AsyncEventCode::LOGOUT_REQUEST,
        vendor_code: 0,
        parameter1: 1,
        parameter2: 2,
        parameter3: 3,
    };
    let words = [0x3280_0000, 0, 0x0001_0000, 0, u32::MAX, 0, 0x62, 0x52, 0x92, 0x0100_0001, 0x0002_0003, 0];
    golden(&message, words, [0x007f_ffff, 0, 0, 0, 0, !0, 0, 0, 0, 0, 0, !0]);
}

#[test]
fn logout_request_and_response() {
    //= rfc7143#section-11.14.2
    //= type=test
    //# For this PDU, TotalAHSLength and DataSegmentLength MUST be 0.
    //= rfc7143#section-11.15.2
    //= type=test
    //# For this PDU, TotalAHSLength and DataSegmentLength MUST be 0.
    let request = LogoutRequest {
        immediate: true,
        reason: LogoutReason::CloseConnection,
        itt: ITT,
        cid: 0x0809,
        cmd_sn: CMD_SN,
        exp_stat_sn: EXP_STAT_SN,
    };
    let words = [0x4681_0000, 0, 0, 0, 0x1111_2222, 0x0809_0000, 0x51, 0x61, 0, 0, 0, 0];
    golden(&request, words, [0x8000_ffff, 0, !0, !0, 0, 0xffff, 0, 0, !0, !0, !0, !0]);
    let reserved = header([0x4683_0000, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
    assert_eq!(LogoutRequest::decode(&reserved), Err(Malformed::ReservedLogoutReason));
    let response =
        LogoutResponse { response: LogoutResult::NO_CID, itt: ITT, sn: SN, time2wait: 2, time2retain: 20 };
    let words = [0x2680_0100, 0, 0, 0, 0x1111_2222, 0, 0x62, 0x52, 0x92, 0, 0x0002_0014, 0];
    golden(&response, words, [0x007f_00ff, 0, !0, !0, 0, !0, 0, 0, 0, !0, 0, !0]);
}

#[test]
fn snack() {
    let snack = Snack {
        kind: SnackKind::STATUS,
        lun: 0,
        itt: Itt::NONE,
        tag: u32::MAX,
        exp_stat_sn: EXP_STAT_SN,
        beg_run: 0x70,
        run_length: 2,
    };
    let words = [0x1081_0000, 0, 0, 0, u32::MAX, u32::MAX, 0, 0x61, 0, 0, 0x70, 2];
    golden(&snack, words, [0x8070_ffff, 0, 0, 0, 0, 0, !0, 0, !0, !0, 0, 0]);
}

#[test]
fn reject() {
    let reject = Reject { reason: RejectReason::PROTOCOL_ERROR, sn: SN, data_sn: DataSn(4) };
    let words = [0x3f80_0400, 0, 0, 0, u32::MAX, 0, 0x62, 0x52, 0x92, 4, 0, 0];
    golden(&reject, words, [0x007f_00ff, 0, !0, !0, 0, !0, 0, 0, 0, 0, !0, !0]);
}

#[test]
fn a_header_tells_its_lengths() {
    let bhs = header([0x4181_0000, 0xff01_0203, 0, 5, 0, 0, 0, 0, 0, 0, 0, 0]);
    assert_eq!((bhs.ahs_len(), bhs.data_len(), bhs.lun()), (1020, 0x01_0203, 5));
    assert_eq!((bhs.opcode(), bhs.is_immediate()), (Opcode::SCSI_COMMAND, true));
    let longer = bhs.with_data_len(1 << 30).with_ahs_len(8);
    assert_eq!((longer.ahs_len(), longer.data_len()), (8, MAX_DATA_SEGMENT));
}

#[test]
fn a_residual_without_its_bit_is_passed_over() {
    //= rfc7143#section-11.4.5.1
    //= type=test
    //# If neither bit is set, the Residual Count field MUST be ignored on reception and SHOULD be set to 0
    //# when sending.
    assert_eq!(read_residual(0, 4, 2, 9), Ok(Residual::None));
}

#[test]
fn residuals_compare_with_what_was_expected() {
    //= rfc7143#section-11.4.5.2
    //= type=test
    //# If SPDTL > EDTL for a task, iSCSI Overflow MUST be signaled in the SCSI Response PDU as specified in
    //# Section 11.4.5.1.
    //= rfc7143#section-11.4.5.2
    //= type=test
    //# The Residual Count MUST be set to the numerical value of (SPDTL - EDTL).
    //= rfc7143#section-11.4.5.2
    //= type=test
    //# If SPDTL < EDTL for a task, iSCSI Underflow MUST be signaled in the SCSI Response PDU as specified in
    //# Section 11.4.5.1.
    //= rfc7143#section-11.4.5.2
    //= type=test
    //# The Residual Count MUST be set to the numerical value of (EDTL - SPDTL).
    for (transferable, expected, residual) in [
        (0, 0, Residual::None),
        (512, 512, Residual::None),
        (0, 512, Residual::Underflow(512)),
        (1024, 512, Residual::Overflow(512)),
        (u64::MAX, 0, Residual::Overflow(u32::MAX)),
    ] {
        assert_eq!(Residual::of(transferable, expected), residual);
    }
}
