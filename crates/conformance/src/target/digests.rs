//! Digests (RFC 7143 §7.8, §13.1): sessions that use them, and the target's reaction to a wrong one. The
//! stream checks the digests of every PDU that the target sends; a wrong one fails the case.

use iscsi::pdu::Opcode;
use iscsi::pdu::nop_in::NopIn;
use iscsi::pdu::r2t::R2t;

use crate::cdb;
use crate::entropy::pattern;
use crate::suite::{case, writing};
use crate::text::Keys;
use crate::verdict::Outcome;
use crate::wire::{Damage, Received};

use super::Test;
use super::conn::{Conn, Flow};
use super::fixture::Fixture;
use super::numbering::SILENCE;
use super::task::piece;

pub(super) const CASES: &[Test] = &[
    writing("digest-both", "RFC 7143 §13.1", "data moves under both digests", |s| data_moves(s, true, true)),
    writing("digest-header", "RFC 7143 §13.1", "data moves under the header digest alone", |s| {
        data_moves(s, true, false)
    }),
    writing("digest-data", "RFC 7143 §13.1", "data moves under the data digest alone", |s| {
        data_moves(s, false, true)
    }),
    case("digest-padding", "RFC 7143 §11.1, §13.1", "the data digest covers the padding", padding),
    case("digest-text", "RFC 7143 §7.8", "a text with a wrong data digest is rejected", text),
    case("digest-ping", "RFC 7143 §7.8", "a ping with a wrong data digest is rejected", ping),
    writing(
        "digest-data-out",
        "RFC 7143 §7.8",
        "a Data-Out with a wrong header digest does not reach the disk",
        data_out_header,
    ),
    writing(
        "digest-immediate",
        "RFC 7143 §7.8",
        "immediate data with a wrong digest does not reach the disk",
        immediate_data,
    ),
];

/// Starts a session with exactly these digests.
pub(super) fn with_digests(
    fixture: &mut Fixture,
    header: bool,
    data: bool,
    more: &[(&str, &str)],
) -> Outcome<Conn> {
    let value = |on| if on { "CRC32C" } else { "None" };
    let keys = [&[("HeaderDigest", value(header)), ("DataDigest", value(data))], more].concat();
    let conn = fixture.start(&keys)?;
    let (got_header, got_data) = (conn.params.header_digest, conn.params.data_digest);
    need!((got_header, got_data) == (header, data), "the target does not agree to these digests");
    Ok(conn)
}

fn data_moves(fixture: &mut Fixture, header: bool, data: bool) -> Outcome {
    let mut conn = with_digests(fixture, header, data, &[])?;
    let bytes = pattern(100, 32 * conn.block());
    conn.write_blocks(&bytes)?;
    let back = conn.read_blocks(32)?;
    require!(back.data == bytes, "other data is read back than was written");
    Ok(())
}

fn padding(fixture: &mut Fixture) -> Outcome {
    let mut conn = with_digests(fixture, true, true, &[])?;
    // Lengths that need 3, 2 and 1 bytes of padding, in both directions.
    for len in [5, 6, 7] {
        let ping = conn.ping(true);
        let data = pattern(101, len);
        conn.send(&ping, &data);
        let (_, pdu) = conn.expect::<NopIn>(ping.itt)?;
        require!(pdu.data == data, "a ping of {len} bytes comes back otherwise");
        let allocation = u16::try_from(len).unwrap_or_default();
        let done = conn.run(cdb::inquiry(allocation), Flow::Read, u32::from(allocation), &[])?;
        let back = done.good("INQUIRY")?.data.len();
        require!(back == len, "{back} bytes of INQUIRY data came, {len} were asked for");
    }
    Ok(())
}

/// Fails unless the target rejects a damaged PDU; it may also close the connection.
fn is_rejected(conn: &mut Conn) -> Outcome {
    super::response::digest_reject(conn).map(|_| ())
}

fn text(fixture: &mut Fixture) -> Outcome {
    let mut conn = with_digests(fixture, false, true, &[])?;
    let request = conn.text(true);
    let data = Keys::of(&[("MaxRecvDataSegmentLength", "512")]).to_bytes();
    conn.send_damaged(&request, &data, Damage::DataDigest);
    is_rejected(&mut conn)
}

fn ping(fixture: &mut Fixture) -> Outcome {
    let mut conn = with_digests(fixture, false, true, &[])?;
    let request = conn.ping(true);
    conn.send_damaged(&request, &pattern(102, 64), Damage::DataDigest);
    is_rejected(&mut conn)
}

/// Reads the first blocks in another session, after a PDU was damaged.
fn on_disk(fixture: &mut Fixture, blocks: u16) -> Outcome<Vec<u8>> {
    Ok(fixture.start(&[])?.read_blocks(blocks)?.data)
}

fn data_out_header(fixture: &mut Fixture) -> Outcome {
    let before = pattern(103, 2 * usize::try_from(fixture.unit.block).unwrap_or(512));
    fixture.start(&[])?.write_blocks(&before)?;
    let mut conn = with_digests(fixture, true, false, &[])?;
    let task = conn.write(2);
    let data = pattern(104, 2 * conn.block());
    conn.send(&task, &[]);
    let (r2t, _) = conn.expect::<R2t>(task.itt)?;
    let head = conn.data_out(&r2t, 0, r2t.buffer_offset, true);
    conn.send_damaged(&head, piece(&data, &r2t)?, Damage::HeaderDigest);
    if let Received::Pdu(pdu) = conn.receive_within(SILENCE)? {
        let good = pdu.opcode() == Opcode::SCSI_RESPONSE && pdu.byte(2) == 0 && pdu.byte(3) == 0;
        require!(!good, "the WRITE is answered GOOD although its data was damaged");
    }
    drop(conn);
    require!(on_disk(fixture, 2)? == before, "data of a PDU with a wrong header digest was written");
    Ok(())
}

fn immediate_data(fixture: &mut Fixture) -> Outcome {
    let before = pattern(105, usize::try_from(fixture.unit.block).unwrap_or(512));
    fixture.start(&[])?.write_blocks(&before)?;
    let mut conn = with_digests(fixture, false, true, &[("ImmediateData", "Yes")])?;
    need!(conn.params.immediate_data, "the target insists on ImmediateData=No");
    let task = conn.write(1);
    conn.send_damaged(&task, &pattern(106, conn.block()), Damage::DataDigest);
    is_rejected(&mut conn)?;
    drop(conn);
    require!(on_disk(fixture, 1)? == before, "data with a wrong digest was written");
    Ok(())
}
