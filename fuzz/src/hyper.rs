//! HyperSCSI: every payload parser, and whether what they take is what the encoders would write.

use hyperscsi::frame::{Cmd, Flags, Header};
use hyperscsi::pdu::Malformed;
use hyperscsi::pdu::abort::Abort;
use hyperscsi::pdu::ack::{Ack, RANGES_MAX, Ranges};
use hyperscsi::pdu::ask::Ask;
use hyperscsi::pdu::command::Request;
use hyperscsi::pdu::disconnect::Disconnect;
use hyperscsi::pdu::discovery::Discovery;
use hyperscsi::pdu::negotiate::{Negotiate, Negotiated};
use hyperscsi::pdu::parts::{self, PARTS_MAX, Parts};
use hyperscsi::pdu::reply::Reply;

/// Reads a payload as a frame with this header has it.
pub fn read(header: &Header, mut payload: &[u8]) {
    if header.flags.has(Flags::ACKS) {
        match ack(payload) {
            Ok(rest) => payload = rest,
            Err(_) => return,
        }
    }
    if header.flags.has(Flags::PARTS) {
        parts(header, payload);
    } else {
        proper(header, payload);
    }
}

/// Reads parts: none overlaps another, nothing is left over, and written again they are the same.
fn parts(header: &Header, payload: &[u8]) {
    let Ok(parts) = Parts::parse(payload) else { return };
    let (mut headers, mut behind) = (Vec::new(), Vec::new());
    parts.each(header, &mut |part, bytes| {
        assert!(part.cmd == header.cmd && part.pn == header.pn && usize::from(part.len) == bytes.len());
        proper(part, bytes);
        headers.push(*part);
        behind.extend_from_slice(bytes);
    });
    assert!(payload.ends_with(&behind) && headers.len() == parts.count() && headers.len() <= PARTS_MAX);
    let mut written = written(|out| parts::encode(headers[1..].iter().copied(), out));
    written.extend_from_slice(&behind);
    let mut again = Vec::new();
    Parts::parse(&written).unwrap().each(header, &mut |part, _| again.push(*part));
    assert_eq!(again, headers);
}

/// Reads what a frame carries, or one of its parts.
fn proper(header: &Header, payload: &[u8]) {
    if header.flags.has(Flags::DATA) {
        return;
    }
    match header.cmd {
        Cmd::Request => {
            if let Ok((request, data)) = Request::parse(payload) {
                let written = written(|out| request.encode(out));
                assert_eq!(Request::parse(&[&written, data].concat()), Ok((request, data)));
            }
        }
        Cmd::Reply => {
            if let Ok(reply) = Reply::parse(payload) {
                assert_eq!(Reply::parse(&written(|out| reply.encode(out))), Ok(reply));
            }
        }
        Cmd::Discovery => again(payload, Discovery::parse, Discovery::encode),
        Cmd::Negotiate => again(payload, Negotiate::parse, Negotiate::encode),
        Cmd::Negotiated => again(payload, Negotiated::parse, Negotiated::encode),
        Cmd::Disconnect => again(payload, Disconnect::parse, Disconnect::encode),
        Cmd::Ask => again(payload, Ask::parse, Ask::encode),
        Cmd::Ack => drop(ack(payload)),
        Cmd::Abort => again(payload, Abort::parse, Abort::encode),
    }
}

/// Reads an acknowledgement; returns what stands behind it.
fn ack(payload: &[u8]) -> Result<&[u8], Malformed> {
    let (ack, rest) = Ack::parse(payload)?;
    assert!(ack.ranges.count() <= RANGES_MAX);
    let written = written(|out| ack.encode(ack.ranges, out));
    let (again, behind) = Ack::parse(&written)?;
    assert!(behind.is_empty() && again.ranges.eq(ack.ranges));
    assert_eq!(Ack { ranges: Ranges::default(), ..again }, Ack { ranges: Ranges::default(), ..ack });
    Ok(rest)
}

/// What a parser takes reads the same after the encoder wrote it.
fn again<T: PartialEq + std::fmt::Debug>(
    payload: &[u8],
    parse: impl Fn(&[u8]) -> Result<T, Malformed>,
    encode: impl Fn(&T, &mut Vec<u8>),
) {
    if let Ok(value) = parse(payload) {
        let written = written(|out| encode(&value, out));
        assert!(written.len() < 1472, "{} bytes do not fit every frame", written.len());
        assert_eq!(parse(&written), Ok(value));
    }
}

fn written(encode: impl FnOnce(&mut Vec<u8>)) -> Vec<u8> {
    let mut out = Vec::new();
    encode(&mut out);
    out
}
