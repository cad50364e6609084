//! HyperSCSI: every payload parser, and whether what they take is what the encoders would write.

use hyperscsi::frame::{Cmd, Flags};
use hyperscsi::pdu::Malformed;
use hyperscsi::pdu::abort::Abort;
use hyperscsi::pdu::ack::{Ack, RANGES_MAX, Ranges};
use hyperscsi::pdu::ask::Ask;
use hyperscsi::pdu::command::Request;
use hyperscsi::pdu::disconnect::Disconnect;
use hyperscsi::pdu::discovery::Discovery;
use hyperscsi::pdu::negotiate::{Negotiate, Negotiated};
use hyperscsi::pdu::reply::Reply;

/// Reads a payload as a frame with this command and these flags has it.
pub fn read(cmd: Cmd, flags: Flags, mut payload: &[u8]) {
    if flags.has(Flags::ACKS) {
        match ack(payload) {
            Ok(rest) => payload = rest,
            Err(_) => return,
        }
    }
    if flags.has(Flags::DATA) {
        return;
    }
    match cmd {
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
