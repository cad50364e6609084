use super::*;

#[test]
fn a_run_in_order_takes_pdus_only_where_the_last_one_ended() {
    let mut sequence = Sequence::new(Ttt(1), 1000, 100);
    assert_eq!(sequence.check(DataSn(0), 1000, 40, (true, false)), Ok(PduDisposition::Accept));
    sequence.record_data(DataSn(0), 1000, 40, true);
    for (sn, offset, len, expected) in [
        (0, 1040, 10, Err(ProtocolError::DataSnOutOfOrder)),
        (2, 1040, 10, Err(ProtocolError::DataSnOutOfOrder)),
        (1, 1050, 10, Err(ProtocolError::DataOutOffset)),
        (1, 999, 10, Err(ProtocolError::DataOutOffset)),
        (1, 1040, 61, Err(ProtocolError::DataOutBeyondR2t)),
        (1, u32::MAX, u32::MAX, Err(ProtocolError::DataOutBeyondR2t)),
        (1, 1040, 60, Ok(PduDisposition::Accept)),
    ] {
        assert_eq!(sequence.check(DataSn(sn), offset, len, (true, false)), expected, "{sn} {offset} {len}");
    }
    assert_eq!(sequence.check_end(4096, true), Err(ProtocolError::DataOutShort));
    sequence.record_data(DataSn(1), 1040, 60, true);
    assert_eq!(sequence.check_end(4096, true), Ok(SequenceEnd::Complete));
}

#[test]
fn a_rejected_pdu_takes_its_number() {
    //= rfc7143#section-7.3
    //= type=test
    //# When a data PDU is rejected and its DataSN can be ascertained, a target MUST advance the ExpDataSN
    //# for the current data burst if a recovery R2T is being generated.
    let mut run = Sequence::new(Ttt(1), 0, 100);
    run.record_skipped(DataSn(0));
    assert_eq!(run.data_sn, DataSn(1));
}

#[test]
fn a_run_in_any_order_takes_every_byte_once() {
    let mut sequence = Sequence::new(Ttt(1), 0, 100);
    for (sn, offset, len) in [(0, 50, 50), (1, 0, 20)] {
        assert_eq!(sequence.check(DataSn(sn), offset, len, (false, false)), Ok(PduDisposition::Accept));
        sequence.record_data(DataSn(sn), offset, len, false);
    }
    assert_eq!(sequence.check(DataSn(2), 10, 20, (false, false)), Err(ProtocolError::DataOutOffset));
    assert_eq!(sequence.check(DataSn(2), 40, 11, (false, false)), Err(ProtocolError::DataOutOffset));
    assert_eq!(sequence.check(DataSn(2), 20, 30, (false, false)), Ok(PduDisposition::Accept));
    sequence.record_data(DataSn(2), 20, 30, false);
    assert_eq!(sequence.spans, [(0, 100)]);
    assert_eq!(sequence.check_end(100, false), Ok(SequenceEnd::Complete));
}

#[test]
fn scattered_pieces_are_refused_before_they_cost_much() {
    let mut sequence = Sequence::new(Ttt(1), 0, 10_000);
    let mut sn = DataSn(0);
    for at in 0.. {
        match sequence.check(sn, at * 2, 1, (false, false)) {
            Ok(_) => sequence.record_data(sn, at * 2, 1, false),
            Err(why) => {
                assert_eq!((why, at), (ProtocolError::DataOutOffset, 64));
                break;
            }
        }
        sn = sn.next();
    }
}

#[test]
fn short_unsolicited_data_is_enough_only_if_the_command_wanted_no_more() {
    for (first_burst, whole, received, expected) in [
        (100, 200, 100, Ok(SequenceEnd::Complete)),
        (100, 200, 99, Err(ProtocolError::NotEnoughUnsolicited)),
        (100, 100, 60, Ok(SequenceEnd::Complete)),
        (80, 80, 0, Ok(SequenceEnd::Complete)),
    ] {
        let mut sequence = Sequence::new(Ttt::NONE, 0, first_burst);
        sequence.record_data(DataSn(0), 0, received, true);
        assert_eq!(sequence.check_end(whole, true), expected, "{first_burst} {whole} {received}");
    }
}

const IN_ORDER: (bool, bool) = (true, true);
const ANY_ORDER: (bool, bool) = (false, true);

#[test]
fn behind_a_gap_everything_is_asked_for_again_if_pdus_come_in_order() {
    let mut sequence = Sequence::new(Ttt(1), 1000, 100);
    assert_eq!(sequence.check(DataSn(0), 1000, 40, IN_ORDER), Ok(PduDisposition::Accept));
    sequence.record_data(DataSn(0), 1000, 40, true);
    assert_eq!(sequence.check(DataSn(2), 1060, 20, IN_ORDER), Ok(PduDisposition::Skip));
    sequence.record_skipped(DataSn(2));
    assert_eq!(sequence.check(DataSn(3), 1080, 20, IN_ORDER), Ok(PduDisposition::Skip));
    assert_eq!(sequence.check(DataSn(2), 1060, 20, IN_ORDER), Ok(PduDisposition::Skip), "a duplicate");
    assert_eq!(sequence.check_end(4096, true), Ok(SequenceEnd::Recover));
    let superseded = sequence.restart_with(Ttt(2), true);
    assert_eq!((superseded.ttt, superseded.start, superseded.len), (Ttt(1), 1000, 100));
    assert_eq!(
        (sequence.ttt, sequence.requested, sequence.data_sn, sequence.announced),
        (Ttt(2), (40, 100), DataSn(0), false)
    );
    assert_eq!(sequence.check(DataSn(0), 1040, 60, IN_ORDER), Ok(PduDisposition::Accept));
    sequence.record_data(DataSn(0), 1040, 60, true);
    assert_eq!(sequence.check_end(4096, true), Ok(SequenceEnd::Complete));
}

#[test]
fn only_the_gaps_are_asked_for_again_if_pdus_come_in_any_order() {
    let mut sequence = Sequence::new(Ttt(1), 0, 100);
    for (sn, offset) in [(0, 80), (2, 20), (5, 60)] {
        assert_eq!(sequence.check(DataSn(sn), offset, 20, ANY_ORDER), Ok(PduDisposition::Accept));
        sequence.record_data(DataSn(sn), offset, 20, false);
    }
    let mut asked = Vec::new();
    for ttt in 2.. {
        match sequence.check_end(100, false) {
            Ok(SequenceEnd::Recover) => {}
            end => {
                assert_eq!(end, Ok(SequenceEnd::Complete));
                break;
            }
        }
        sequence.restart_with(Ttt(ttt), false);
        let (from, to) = sequence.requested;
        asked.push((from, to));
        assert_eq!(
            sequence.check(DataSn(0), from, to - from + 1, ANY_ORDER),
            Err(ProtocolError::DataOutBeyondR2t)
        );
        assert_eq!(sequence.check(DataSn(0), from, to - from, ANY_ORDER), Ok(PduDisposition::Accept));
        sequence.record_data(DataSn(0), from, to - from, false);
    }
    assert_eq!(asked, [(0, 20), (40, 60)]);
}

#[test]
fn a_recovered_sequence_that_is_short_again_without_a_loss_is_a_violation() {
    let mut sequence = Sequence::new(Ttt(1), 0, 100);
    sequence.broken = true;
    assert_eq!(sequence.check_end(100, true), Ok(SequenceEnd::Recover));
    sequence.restart_with(Ttt(2), true);
    assert_eq!(sequence.check(DataSn(0), 0, 40, IN_ORDER), Ok(PduDisposition::Accept));
    sequence.record_data(DataSn(0), 0, 40, true);
    assert_eq!(sequence.check_end(100, true), Err(ProtocolError::DataOutShort));
}
