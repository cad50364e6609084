//! The byte stream: pieces, receive buffers, digests, and peers that send what no peer should.

use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;

use base::buffer::Bytes;
use base::state_machine::{Action, ConnId, DisconnectReason, RxBuffer};
use base::time::Duration;
use transport::target::{Finish, TargetTransport};

use super::world::{LUN, World, data_out, keys, pattern};
use crate::pdu::data_out::DataOut;
use crate::pdu::nop_in::NopIn;
use crate::pdu::nop_out::NopOut;
use crate::pdu::r2t::R2t;
use crate::pdu::reject::{Reject, RejectReason};
use crate::pdu::scsi_command::ScsiCommand;
use crate::pdu::scsi_response::ScsiResponse;
use crate::pdu::text_request::TextRequest;
use crate::pdu::text_response::TextResponse;
use crate::pdu::{Bhs, Itt, PduHeader, Ttt};
use crate::recovery::TransportSense;
use crate::serial::{CmdSn, DataSn, StatSn};
use crate::target::contract::{Event, SessionEnd};
use crate::target::engine::Limits;
use crate::target::protocol_error::ProtocolError;

const DIGESTS: [&str; 2] = ["HeaderDigest=CRC32C", "DataDigest=CRC32C"];

/// Acts as a layer above that answers every command at once, and logs the events.
fn serve(world: &mut World, log: &mut String) {
    while let Some(event) = world.next_event() {
        *log += &format!("{event:?}\n");
        match event {
            Event::Command(command) if command.data_out_len > 0 => {
                world.fetch(command.task, 0, command.data_out_len);
            }
            Event::Command(command) => {
                let data = pattern(0, command.data_in_len as usize);
                world.engine.data_in(command.task, 0, Bytes::copied_from(&data).into());
                world.finish(command.task, Finish::good(command.data_in_len.into()));
            }
            Event::DataOut { task, data, .. } => {
                let mut bytes = alloc::vec![0; data.len()];
                data.copy_to(0, &mut bytes);
                *log += &format!("{:?}\n", crate::digest::Crc32c::of(&bytes));
                world.finish(task, Finish::good(data.len() as u64));
            }
            _ => {}
        }
    }
}

#[test]
fn a_narrow_batch_gets_short_pdus_and_the_data_are_whole() {
    use base::transmit::Transmit;
    let mut world = World::new();
    let (conn, _) = world.login(&["MaxRecvDataSegmentLength=1048576", "MaxBurstLength=1048576"]);
    let len = 300 << 10;
    let read = world.read(conn, len);
    let task = world.start(conn, &read, &[]).task;
    let sent = pattern(0, 300 << 10);
    world.engine.data_in(task, 0, Bytes::copied_from(&sent).into());
    world.engine.finish(task, Finish::good(len.into()));
    let (mut got, mut batches) = (Vec::new(), 0);
    while got.len() < sent.len() {
        let mut batch = Transmit::new();
        batch.narrow();
        world.engine.transmit(world.now, conn, &mut batch);
        assert!(batch.len() <= Transmit::NARROW_BYTES + 48 && !batch.is_empty());
        got.extend(batch.pieces().flatten().copied().collect::<Vec<u8>>().split_off(48));
        batches += 1;
    }
    assert_eq!((batches, got == sent), (5, true));
}

/// A way to pass bytes to the engine.
type Feed<'a> = dyn FnMut(&mut World, ConnId, &[u8], &mut String) + 'a;

/// Passes an exchange of several PDUs piece by piece to the engine. Returns all events and responses.
fn converse(digests: bool, feed: &mut Feed<'_>) -> String {
    let mut world = World::new();
    let mut keys = alloc::vec!["InitialR2T=No", "FirstBurstLength=512", "MaxBurstLength=1024"];
    if digests {
        keys.extend(DIGESTS);
    }
    let (conn, _) = world.login(&keys);
    let mut log = String::new();
    let write = ScsiCommand { is_final: false, ..world.write(conn, 1400) };
    let rest = DataOut {
        is_final: true,
        lun: 0,
        itt: write.itt,
        ttt: Ttt::NONE,
        exp_stat_sn: StatSn(0),
        data_sn: DataSn(0),
        buffer_offset: 101,
    };
    world.count(conn);
    let long_cdb = crate::pdu::ahs::Ahs { extended_cdb: Some(&[5; 9]), bidirectional_read_length: None };
    let read = world.read(conn, 77);
    let ping = NopOut {
        immediate: true,
        lun: 0,
        itt: Itt(60),
        ttt: Ttt::NONE,
        cmd_sn: CmdSn(102),
        exp_stat_sn: StatSn(0),
    };
    let stream = [
        world.frame(conn, write.encode(), &[], &pattern(0, 101)),
        world.frame(conn, rest.encode(), &[], &pattern(101, 411)),
        world.frame(conn, read.encode(), &long_cdb.to_bytes(), &[]),
    ]
    .concat();
    feed(&mut world, conn, &stream, &mut log);
    // The R2T is always the first output: no request before it could be answered yet.
    let r2t: R2t = world.expect(conn);
    let mut answer = world.frame(conn, ping.encode(), &[], &pattern(0, 13));
    for (sn, at, len, is_final) in [(0, 512, 600, false), (1, 1112, 288, true)] {
        let data =
            DataOut { is_final, lun: LUN, ttt: r2t.ttt, data_sn: DataSn(sn), buffer_offset: at, ..rest };
        answer.extend(world.frame(conn, data.encode(), &[], &pattern(at, len)));
    }
    feed(&mut world, conn, &answer, &mut log);
    while let Some(got) = world.receive(conn) {
        log += &format!("{:?} {:02x?}\n", got.bhs, got.data);
    }
    assert_eq!(world.ended(conn), None);
    log
}

#[test]
fn a_stream_cut_anywhere_says_the_same() {
    for digests in [false, true] {
        let whole = converse(digests, &mut |world, conn, bytes, log| {
            world.feed(conn, bytes);
            serve(world, log);
        });
        assert!(whole.contains("DataOut") && whole.contains("DATA_IN") && whole.contains("SCSI_RESPONSE"));
        for cut in (1..1500).step_by(if digests { 1 } else { 7 }) {
            let pieces = converse(digests, &mut |world, conn, bytes, log| {
                let (head, tail) = bytes.split_at(cut.min(bytes.len()));
                for piece in [head, &[], tail] {
                    world.feed(conn, piece);
                    serve(world, log);
                }
            });
            assert_eq!(pieces, whole, "cut at {cut}, digests {digests}");
        }
        let bytewise = converse(digests, &mut |world, conn, bytes, log| {
            for byte in bytes {
                world.feed(conn, &[*byte]);
                serve(world, log);
            }
        });
        assert_eq!(bytewise, whole, "byte by byte, digests {digests}");
    }
}

/// Passes bytes as the driver does when it asks for a receive buffer before each receive of at most `piece`
/// bytes.
fn feed_by_loan(world: &mut World, conn: ConnId, mut bytes: &[u8], piece: usize) -> usize {
    let mut lent = 0;
    while !bytes.is_empty() {
        let (now, rest) = bytes.split_at(piece.min(bytes.len()));
        bytes = rest;
        let mut behind = now;
        if let Some(mut rx_buffer) = world.engine.take_rx_buffer(conn) {
            assert!(rx_buffer.buf.capacity() - rx_buffer.buf.len() >= rx_buffer.len_max);
            let (into, after) = now.split_at(rx_buffer.len_max.min(now.len()));
            rx_buffer.buf.append(into);
            lent += into.len();
            behind = after;
            world.engine.return_rx_buffer(world.now, conn, rx_buffer, &world.names);
        }
        world.engine.received(world.now, conn, behind, &world.names);
        world.drain();
    }
    lent
}

#[test]
fn a_payload_received_in_place_is_the_same_as_one_that_was_copied() {
    for digests in [false, true] {
        for piece in [1000, 5000, 16_384, 70_000, 1 << 20] {
            let mut world = World::new();
            let keys: &[&str] = if digests { &DIGESTS } else { &[] };
            let (conn, _) = world.login(keys);
            let command = world.write(conn, 200_000);
            let task = world.start(conn, &command, &[]).task;
            world.fetch(task, 0, 200_000);
            let r2t: R2t = world.expect(conn);
            let mut stream = Vec::new();
            for (sn, at, len) in [(0, 0, 100_001), (1, 100_001, 99_999)] {
                let data = DataOut {
                    is_final: sn == 1,
                    lun: LUN,
                    itt: command.itt,
                    ttt: r2t.ttt,
                    exp_stat_sn: StatSn(0),
                    data_sn: DataSn(sn),
                    buffer_offset: at,
                };
                stream.extend(world.frame(conn, data.encode(), &[], &pattern(at, len)));
            }
            let lent = feed_by_loan(&mut world, conn, &stream, piece);
            assert_eq!(world.expect_data(task, 0), pattern(0, 200_000), "pieces of {piece}");
            assert_eq!(lent > 0, piece < 100_000, "pieces of {piece} lent {lent}");
        }
    }
}

/// Starts a large solicited write and takes the receive buffer for its data.
fn with_rx_buffer_taken() -> (World, ConnId, transport::target::TaskRef, RxBuffer) {
    let mut world = World::new();
    let (conn, _) = world.login(&[]);
    let command = world.write(conn, 100_000);
    let task = world.start(conn, &command, &[]).task;
    world.fetch(task, 0, 100_000);
    let r2t: R2t = world.expect(conn);
    let data = data_out(&command, r2t.ttt, 0, 0, true);
    let bytes = world.frame(conn, data.encode(), &[], &pattern(0, 100_000));
    world.feed(conn, &bytes[..48]);
    let rx_buffer = world.engine.take_rx_buffer(conn).unwrap();
    assert_eq!(rx_buffer.len_max, 100_000);
    (world, conn, task, rx_buffer)
}

#[test]
fn a_task_may_end_while_its_buffer_is_lent_out() {
    let (mut world, conn, task, mut rx_buffer) = with_rx_buffer_taken();
    world.engine.abort(task);
    world.drain();
    rx_buffer.buf.append(&pattern(0, 60_000));
    world.engine.return_rx_buffer(world.now, conn, rx_buffer, &world.names);
    world.feed(conn, &pattern(60_000, 40_000));
    world.expect_silence(conn);
    let next = world.command(conn);
    world.start(conn, &next, &[]);
}

#[test]
fn a_connection_may_end_while_a_buffer_is_lent_out() {
    let (mut world, conn, task, rx_buffer) = with_rx_buffer_taken();
    let session = world.engine.sessions().next().unwrap().session;
    world.engine.close_session(world.now, session);
    assert!(world.engine.take_rx_buffer(conn).is_none());
    world.engine.return_rx_buffer(world.now, conn, rx_buffer, &world.names);
    world.drain();
    assert!(matches!(world.next_event(), Some(Event::TaskGone { task: gone }) if gone == task));
    assert!(matches!(world.next_event(), Some(Event::SessionDown { why: SessionEnd::Closed, .. })));
}

#[test]
fn a_loan_that_comes_back_too_full_or_empty_does_no_harm() {
    let (mut world, conn, task, rx_buffer) = with_rx_buffer_taken();
    world.engine.return_rx_buffer(world.now, conn, rx_buffer, &world.names);
    let mut rx_buffer = world.engine.take_rx_buffer(conn).unwrap();
    assert_eq!(rx_buffer.len_max, 100_000);
    rx_buffer.buf.append(&[pattern(0, 100_000), [9; 100].into()].concat());
    world.engine.return_rx_buffer(world.now, conn, rx_buffer, &world.names);
    world.drain();
    assert_eq!(world.expect_data(task, 0), pattern(0, 100_000));
}

#[test]
fn bytes_handed_over_while_a_loan_is_out_are_the_drivers_error() {
    let (mut world, conn, _, rx_buffer) = with_rx_buffer_taken();
    world.feed(conn, &[1]);
    assert_eq!(world.ended(conn), Some(Action::Abort(conn)));
    world.engine.return_rx_buffer(world.now, conn, rx_buffer, &world.names);
}

#[test]
fn a_damaged_header_ends_the_session_whichever_bit_it_is() {
    //= rfc7143#section-7.8
    //= type=test
    //# When a target or an initiator receives any iSCSI PDU with a header digest error, it MUST either
    //# discard the header and all data up to the beginning of a later PDU or close the connection.
    for bit in (0..(48 + 12 + 4) * 8).step_by(7) {
        let mut world = World::new();
        let (conn, up) = world.login(&DIGESTS);
        let command = world.command(conn);
        let ahs = crate::pdu::ahs::Ahs { extended_cdb: Some(&[1; 8]), bidirectional_read_length: None };
        let mut bytes = world.frame(conn, command.encode(), &ahs.to_bytes(), &[]);
        bytes[bit / 8] ^= 1 << (bit % 8);
        // A header that claims a length greater than its real one is checked once that many bytes are
        // received.
        world.feed(conn, &[bytes, alloc::vec![0; 1100]].concat());
        assert_eq!(world.ended(conn), Some(Action::Abort(conn)), "bit {bit}");
        match world.next_event() {
            Some(Event::SessionDown { session, why }) => {
                assert_eq!(
                    (session, why),
                    (up.session, SessionEnd::Misbehaved(ProtocolError::HeaderDigestMismatch))
                );
            }
            other => panic!("{other:?}"),
        }
        assert_eq!(world.engine.stats().header_digest_errors, 1);
    }
}

/// Sends a PDU with one flipped bit in its data segment, padding or data digest.
fn send_damaged(world: &mut World, conn: ConnId, bhs: Bhs, data: &[u8], byte: usize) {
    let mut bytes = world.frame(conn, bhs, &[], data);
    bytes[52 + byte] ^= 0x10;
    world.feed(conn, &bytes);
}

#[test]
fn damaged_data_of_a_command_leaves_its_number_open_to_be_sent_again() {
    //= rfc7143#section-7.3
    //= type=test
    //# The CmdSN of the rejected command PDU (if it is a non-immediate command) MUST NOT be considered
    //# received by the target (i.e., a command sequence gap must be assumed for the CmdSN), even though the
    //# CmdSN of the rejected command PDU may be reliably ascertained.
    let mut world = World::new();
    let (conn, _) = world.login(&DIGESTS);
    for byte in [0, 511, 513, 514, 516, 519] {
        let command = world.write(conn, 514);
        send_damaged(&mut world, conn, command.encode(), &pattern(0, 514), byte);
        let reject: Reject = world.expect(conn);
        assert_eq!(reject.reason, RejectReason::DATA_DIGEST_ERROR);
        assert_eq!(reject.sn.exp_cmd_sn, command.cmd_sn);
        world.expect_silence(conn);
        let task = world.start(conn, &command, &pattern(0, 514)).task;
        world.fetch(task, 0, 514);
        assert_eq!(world.expect_data(task, 0), pattern(0, 514));
    }
    assert_eq!(world.engine.stats().data_digest_errors, 6);
}

#[test]
fn a_damaged_command_that_is_not_sent_again_costs_the_session() {
    let mut world = World::with(Limits { gap_within: Duration::from_secs(3), ..Limits::default() }, keys());
    let (conn, _) = world.login(&DIGESTS);
    let command = world.write(conn, 512);
    world.count(conn);
    send_damaged(&mut world, conn, command.encode(), &pattern(0, 512), 0);
    world.expect::<Reject>(conn);
    let next = world.command(conn);
    world.send(conn, &next, &[]);
    world.expect_silence(conn);
    world.pass(Duration::from_secs(3));
    assert_eq!(world.ended(conn), Some(Action::Abort(conn)));
}

#[test]
fn damaged_data_out_fails_its_task_once_its_sequence_is_over() {
    //= rfc7143#section-7.8
    //= type=test
    //# If the discarded PDU is a solicited or unsolicited iSCSI data PDU (for immediate data in a command
    //# PDU, the non-data PDU rule below applies), the target MUST do one of the following:
    //= rfc7143#section-7.8
    //= type=test
    //# If the target chooses to implement this option, it MUST wait to receive all the data (signaled by a
    //# data PDU with the Final bit set for all outstanding R2Ts) before sending the SCSI Response PDU.
    for (unsolicited, is_final) in [(false, false), (false, true), (true, false), (true, true)] {
        let mut world = World::new();
        let (conn, _) = world.login(&[&DIGESTS[..], &["InitialR2T=No", "FirstBurstLength=4096"]].concat());
        let command = ScsiCommand { is_final: !unsolicited, ..world.write(conn, 4096) };
        let task = world.start(conn, &command, &[]).task;
        world.fetch(task, 0, 4096);
        let ttt = if unsolicited { Ttt::NONE } else { world.expect::<R2t>(conn).ttt };
        let data = DataOut {
            is_final,
            lun: LUN,
            itt: command.itt,
            ttt,
            exp_stat_sn: StatSn(0),
            data_sn: DataSn(0),
            buffer_offset: 0,
        };
        send_damaged(&mut world, conn, data.encode(), &pattern(0, 4096), 17);
        assert_eq!(world.expect::<Reject>(conn).reason, RejectReason::DATA_DIGEST_ERROR);
        assert!(matches!(world.next_event(), Some(Event::TaskGone { task: gone }) if gone == task));
        if !is_final {
            world.expect_silence(conn);
            world.send(conn, &DataOut { is_final: true, data_sn: DataSn(1), ..data }, &pattern(0, 4096));
        }
        let got = world.expect_any(conn);
        assert_eq!(got.read::<ScsiResponse>().status, 2);
        assert_eq!(got.data[2..], TransportSense::CrcError.sense());
        world.expect_silence(conn);
    }
}

#[test]
fn damaged_data_of_any_other_pdu_is_rejected_and_forgotten() {
    //= rfc7143#section-7.8
    //= type=test
    //# When a target receives any iSCSI PDU with a payload digest error, it MUST answer with a Reject PDU
    //# with a reason code of Data-Digest-Error and discard the PDU.
    let mut world = World::new();
    let (conn, _) = world.login(&DIGESTS);
    let ping = NopOut {
        immediate: true,
        lun: 0,
        itt: Itt(60),
        ttt: Ttt::NONE,
        cmd_sn: CmdSn(100),
        exp_stat_sn: StatSn(0),
    };
    let text = TextRequest {
        immediate: true,
        is_final: true,
        continues: false,
        lun: 0,
        itt: Itt(61),
        ttt: Ttt::NONE,
        cmd_sn: CmdSn(100),
        exp_stat_sn: StatSn(0),
    };
    let stray = DataOut {
        is_final: true,
        lun: 0,
        itt: Itt(62),
        ttt: Ttt::NONE,
        exp_stat_sn: StatSn(0),
        data_sn: DataSn(0),
        buffer_offset: 0,
    };
    let mut unknown = [0; 48];
    unknown[0] = 0x1c;
    for bhs in [ping.encode(), text.encode(), stray.encode(), Bhs::from_bytes(unknown)] {
        send_damaged(&mut world, conn, bhs, b"SendTargets=\0", 3);
        let reject: Reject = world.expect(conn);
        assert_eq!(reject.reason, RejectReason::DATA_DIGEST_ERROR, "{bhs:?}");
        world.expect_silence(conn);
    }
    world.send(conn, &ping, b"SendTargets=\0");
    world.expect::<NopIn>(conn);
    world.send(conn, &text, b"SendTargets=\0");
    world.expect::<TextResponse>(conn);
}

#[test]
fn a_segment_longer_than_we_take_ends_the_connection_before_its_data_comes() {
    for (logged_in, len, ends) in [
        (false, 8193, true),
        (false, 0x00ff_ffff, true),
        (true, 262_144, false),
        (true, 262_145, true),
        (true, 0x00ff_ffff, true),
    ] {
        for opcode in [0x00, 0x01, 0x03, 0x04, 0x05, 0x1c] {
            let mut world = World::new();
            let conn =
                if logged_in { world.login(&["MaxRecvDataSegmentLength=8192"]).0 } else { world.connect() };
            let mut bytes = [0; 48];
            bytes[0] = opcode | 0x40;
            bytes[1] = 0x80;
            world.feed(conn, &Bhs::from_bytes(bytes).with_data_len(len).to_bytes());
            assert_eq!(world.ended(conn).is_some(), ends, "{opcode:#04x} of {len}");
        }
    }
}

#[test]
fn a_login_that_is_cut_short_leaves_nothing_behind() {
    for len in [0, 1, 47, 48, 49] {
        let mut world = World::new();
        let conn = world.connect();
        let mut bytes = [0; 60];
        bytes[0] = 0x43;
        bytes[7] = 12;
        world.feed(conn, &bytes[..len]);
        world.hang_up(conn, DisconnectReason::Closed);
        assert!(world.events.is_empty());
        assert_eq!(
            world.engine.poll_timeout().into_iter().count(),
            1,
            "one stale entry, forgotten when it passes"
        );
        world.pass(Duration::from_secs(600));
        assert_eq!(world.engine.poll_timeout(), None);
    }
}

#[test]
fn a_peer_that_trickles_is_pinged_and_given_up_like_a_silent_one() {
    let mut world = World::new();
    let (conn, _) = world.login(&[]);
    let command = world.write(conn, 4096);
    let bytes = world.frame(conn, command.encode(), &[], &pattern(0, 4096));
    for byte in bytes {
        if world.ended(conn).is_some() {
            break;
        }
        world.feed(conn, &[byte]);
        world.pass(Duration::from_secs(1));
    }
    assert_eq!(world.ended(conn), Some(Action::Abort(conn)));
}

#[test]
fn a_slow_peer_that_gets_on_is_left_alone() {
    let mut world = World::new();
    let (conn, _) = world.login(&["FirstBurstLength=262144"]);
    let command = world.write(conn, 262_144);
    let bytes = world.frame(conn, command.encode(), &[], &pattern(0, 262_144));
    for piece in bytes.chunks(4096) {
        world.feed(conn, piece);
        world.pass(Duration::from_secs(1));
    }
    assert_eq!(world.ended(conn), None);
    world.expect_command();
}
