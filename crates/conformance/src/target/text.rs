//! Text requests in the full feature phase (RFC 7143 §11.10, §11.11, §6): the cases `ffp-t-17.*` of the
//! UNH-IOL plan.

use iscsi::pdu::logout_request::LogoutReason;
use iscsi::pdu::logout_response::LogoutResponse;
use iscsi::pdu::reject::RejectReason;
use iscsi::pdu::text_request::TextRequest;
use iscsi::pdu::text_response::TextResponse;
use iscsi::pdu::{Itt, Opcode, PduHeader, Ttt};

use crate::suite::case;
use crate::text::Keys;
use crate::verdict::Outcome;
use crate::wire::{Pdu, Received};

use super::Test;
use super::conn::Conn;
use super::fixture::Fixture;
use super::login::LoginPlan;
use super::reject::well_formed;

const SEND_TARGETS: &str = "RFC 7143 appendix C";
const ONCE: &str = "RFC 7143 §6.4, §7.12";

pub(super) const CASES: &[Test] = &[
    case(
        "ffp-t-17.1.1",
        "RFC 7143 §11.11",
        "the answer to an open text in discovery has tag and F right",
        |s| open_text(s, true),
    ),
    case(
        "ffp-t-17.1.2",
        "RFC 7143 §11.11",
        "the answers of a negotiation have tags and F right",
        negotiation,
    ),
    case("ffp-t-17.2.1", "RFC 7143 §11.11.1", "no F in answer to an open text in discovery", |s| {
        open_text(s, true)
    }),
    case("ffp-t-17.2.2", "RFC 7143 §11.11.1", "no F in answer to an open text", |s| open_text(s, false)),
    case("ffp-t-17.3.1", SEND_TARGETS, "SendTargets=All in discovery names the target", |s| {
        in_discovery(s, "All")
    }),
    case("ffp-t-17.3.2", SEND_TARGETS, "SendTargets with no value in discovery is answered", |s| {
        in_discovery(s, "")
    }),
    case("ffp-t-17.3.3", SEND_TARGETS, "SendTargets=All in a normal session is refused", all_in_normal),
    case(
        "ffp-t-17.3.4",
        SEND_TARGETS,
        "SendTargets with no value in a normal session names this target",
        none_in_normal,
    ),
    case("ffp-t-17.3.5", SEND_TARGETS, "SendTargets with a name shows that target only", by_name),
    case(
        "ffp-t-17.4.1",
        "RFC 7143 §4.3, §13",
        "other keys in discovery are irrelevant or rejected",
        other_key_in_discovery,
    ),
    case(
        "ffp-t-17.4.2",
        "RFC 7143 §4.3, §11.14.1",
        "no logout for recovery in discovery",
        recovery_in_discovery,
    ),
    case(
        "ffp-t-17.5",
        "RFC 7143 §6.4, §11.10.4",
        "a text with another task tag does not go on with the first",
        other_task_tag,
    ),
    case("ffp-t-17.6", ONCE, "a key is negotiated once", key_twice),
    case("ffp-t-17.7.1", ONCE, "a negotiation that was reset leaves nothing behind", reset_by_tag),
    case("ffp-t-17.7.2", ONCE, "a negotiation that does not end changes nothing", never_ended),
    case("ffp-t-17.7.3", ONCE, "a value out of range changes nothing", out_of_range),
    case("ffp-t-17.8.1", "RFC 7143 §6.1, §11.10.2", "a text over two PDUs is one text", over_two_pdus),
    case("ffp-t-17.8.2", "RFC 7143 §11.10.2", "C and F together are an error", c_and_f),
    case("ffp-t-17.8.3", "RFC 7143 §6.1, §11.10.2", "a key may be cut by the end of a PDU", key_cut),
];

const SEGMENT: &str = "MaxRecvDataSegmentLength";

/// Sends keys in a text request and waits for the response.
fn ask(conn: &mut Conn, request: &TextRequest, keys: &[(&str, &str)]) -> Outcome<(TextResponse, Pdu)> {
    conn.send(request, &Keys::of(keys).to_bytes());
    conn.expect::<TextResponse>(request.itt)
}

/// Fails unless the response keeps the negotiation open: F clear, and a transfer tag.
fn stays_open(response: &TextResponse, pdu: &Pdu) -> Outcome {
    require!(!response.is_final, "F answers a request without F: {}", pdu.shown());
    require!(response.ttt != Ttt::NONE, "the conversation is open, but has no transfer tag: {}", pdu.shown());
    Ok(())
}

/// Ends a text negotiation, with up to four further requests.
fn conclude(conn: &mut Conn, first: &TextRequest, mut reply: Pdu) -> Outcome<Pdu> {
    for _ in 0..4 {
        let request = conn.text_on(first, &reply, true);
        let (response, pdu) = ask(conn, &request, &[])?;
        if response.is_final {
            require!(response.ttt == Ttt::NONE, "F with a transfer tag: {}", pdu.shown());
            return Ok(pdu);
        }
        reply = pdu;
    }
    fail!("the target does not end a negotiation in which nothing is left to say")
}

/// Reads 16 blocks and returns the length of the longest data segment.
fn longest_segment(conn: &mut Conn) -> Outcome<usize> {
    let from = conn.seen.len();
    conn.read_blocks(16)?;
    let data = conn.seen.iter().skip(from).filter(|pdu| pdu.opcode() == Opcode::DATA_IN);
    Ok(data.map(|pdu| pdu.data.len()).max().unwrap_or_default())
}

/// Declares the length of the longest data segment that we take from now on.
pub(super) fn declare_segment(conn: &mut Conn, len: &str) -> Outcome {
    let request = conn.text(true);
    let (response, pdu) = ask(conn, &request, &[(SEGMENT, len)])?;
    if !response.is_final {
        conclude(conn, &request, pdu)?;
    }
    Ok(())
}

fn open_text(fixture: &mut Fixture, discovery: bool) -> Outcome {
    let (mut conn, key) = if discovery {
        (fixture.discover()?, ("SendTargets", "All"))
    } else {
        (fixture.start(&[(SEGMENT, "")])?, (SEGMENT, "4096"))
    };
    let request = conn.text(false);
    let (response, pdu) = ask(&mut conn, &request, &[key])?;
    stays_open(&response, &pdu)?;
    require!(pdu.data.len() <= 8192, "longer than the 8192 bytes that we take: {}", pdu.shown());
    conclude(&mut conn, &request, pdu)?;
    Ok(())
}

fn negotiation(fixture: &mut Fixture) -> Outcome {
    let mut conn = fixture.login(&LoginPlan::normal(fixture).with(&[(SEGMENT, "")]))?;
    let request = conn.text(false);
    let (response, pdu) = ask(&mut conn, &request, &[(SEGMENT, "1024")])?;
    stays_open(&response, &pdu)?;
    conclude(&mut conn, &request, pdu)?;
    conn.warm_up()?;
    let longest = longest_segment(&mut conn)?;
    require!(longest <= 1024, "{longest} bytes in a PDU, we take 1024 since the negotiation");
    Ok(())
}

/// Sends SendTargets in a discovery session, and returns the keys of the response.
fn targets(conn: &mut Conn, value: &str) -> Outcome<Keys> {
    let mut request = conn.text(true);
    conn.send(&request, &Keys::of(&[("SendTargets", value)]).to_bytes());
    let mut text = Vec::new();
    for _ in 0..64 {
        let (response, pdu) = conn.expect::<TextResponse>(request.itt)?;
        text.extend_from_slice(&pdu.data);
        if response.is_final {
            return Keys::parse(&text);
        }
        request = conn.text_on(&request, &pdu, true);
        conn.send(&request, &[]);
    }
    fail!("the list of targets does not end")
}

fn in_discovery(fixture: &mut Fixture, value: &str) -> Outcome {
    let name = fixture.name.clone();
    let mut conn = fixture.discover()?;
    let keys = targets(&mut conn, value)?;
    if value.is_empty() {
        // The value names the target of the session, and a discovery session has none. The target may send no
        // records or refuse the key; it must not list all targets.
        let refused = matches!(keys.value("SendTargets"), Some("Reject" | "NotUnderstood" | "Irrelevant"));
        let named = keys.values("TargetName").count();
        require!(
            refused || named <= 1 || keys.values("TargetName").all(|other| other == name),
            "{named} targets are named"
        );
        return Ok(());
    }
    require!(keys.values("TargetName").any(|other| other == name), "{name} is not among the targets");
    require!(keys.values("TargetName").all(|other| other != "iSCSI"), "a target is named iSCSI");
    Ok(())
}

fn all_in_normal(fixture: &mut Fixture) -> Outcome {
    let mut conn = fixture.start(&[])?;
    let request = conn.text(true);
    conn.send(&request, &Keys::of(&[("SendTargets", "All")]).to_bytes());
    let pdu = match conn.receive_within(conn.patience)? {
        Received::Pdu(pdu) => pdu,
        Received::Nothing => fail!("SendTargets=All is not answered"),
        Received::Closed => {
            fixture.record.remark("the target ends the connection");
            return Ok(());
        }
    };
    if pdu.opcode() == Opcode::REJECT {
        return Ok(());
    }
    let keys = Keys::parse(&pdu.data)?;
    require!(
        keys.value("TargetName").is_none(),
        "SendTargets=All must not be supported here: {}",
        pdu.shown()
    );
    Ok(())
}

fn none_in_normal(fixture: &mut Fixture) -> Outcome {
    let name = fixture.name.clone();
    let mut conn = fixture.start(&[])?;
    let keys = targets(&mut conn, "")?;
    let names: Vec<&str> = keys.values("TargetName").collect();
    require!(names == [name.as_str()], "expected TargetName={name}, came {names:?}");
    Ok(())
}

fn by_name(fixture: &mut Fixture) -> Outcome {
    let name = fixture.name.clone();
    let mut conn = fixture.discover()?;
    let keys = targets(&mut conn, &name)?;
    let names: Vec<&str> = keys.values("TargetName").collect();
    require!(names.first() == Some(&name.as_str()), "expected TargetName={name}, came {names:?}");
    require!(names.iter().all(|other| *other == name), "other targets are shown too: {names:?}");
    require!(keys.values("TargetAddress").next().is_some(), "no address is shown");
    Ok(())
}

fn other_key_in_discovery(fixture: &mut Fixture) -> Outcome {
    let mut conn = fixture.discover()?;
    let request = conn.text(true);
    conn.send(&request, &Keys::of(&[("MaxBurstLength", "65536")]).to_bytes());
    let pdu = conn.next_of(request.itt, "an answer to a key that means nothing here")?;
    if pdu.opcode() == Opcode::REJECT {
        return Ok(());
    }
    require!(pdu.opcode() == Opcode::TEXT_RESPONSE, "expected Text Response or Reject, came {}", pdu.shown());
    let keys = Keys::parse(&pdu.data)?;
    let answer = keys.value("MaxBurstLength").unwrap_or_default().to_owned();
    require!(
        matches!(answer.as_str(), "Irrelevant" | "Reject" | "NotUnderstood"),
        "expected MaxBurstLength=Irrelevant, came {answer:?}"
    );
    Ok(())
}

fn recovery_in_discovery(fixture: &mut Fixture) -> Outcome {
    let mut conn = fixture.discover()?;
    targets(&mut conn, "All")?;
    let cid = conn.cid;
    let request = conn.logout(LogoutReason::RemoveForRecovery, cid);
    conn.send(&request, &[]);
    let pdu = match conn.receive_within(conn.patience)? {
        Received::Pdu(pdu) => pdu,
        Received::Closed => return Ok(()),
        Received::Nothing => fail!("expected a Logout Response or a Reject; nothing came"),
    };
    if pdu.opcode() == Opcode::REJECT {
        return Ok(());
    }
    let response: LogoutResponse = pdu.read()?;
    require!(response.response.0 == 2, "expected response 02, came {}", pdu.shown());
    Ok(())
}

fn other_task_tag(fixture: &mut Fixture) -> Outcome {
    let mut conn = fixture.start(&[(SEGMENT, "")])?;
    let request = conn.text(false);
    let (_, pdu) = ask(&mut conn, &request, &[(SEGMENT, "1024")])?;
    let next = TextRequest { itt: conn.itt(), ..conn.text_on(&request, &pdu, true) };
    conn.send(&next, &Keys::of(&[("InitiatorAlias", "conform")]).to_bytes());
    match conn.receive_within(conn.patience)? {
        Received::Closed => Ok(()),
        Received::Nothing => Ok(()),
        Received::Pdu(pdu) if pdu.opcode() == Opcode::REJECT => {
            well_formed(&pdu, &next.encode())?;
            Ok(())
        }
        Received::Pdu(pdu) if pdu.opcode() == Opcode::ASYNC_MESSAGE => Ok(()),
        Received::Pdu(pdu) if pdu.opcode() == Opcode::TEXT_RESPONSE => {
            fixture.record.remark("the target goes by the transfer tag alone, which nothing forbids");
            Ok(())
        }
        Received::Pdu(pdu) => fail!("expected Reject, came {}", pdu.shown()),
    }
}

/// After a failed negotiation: a new negotiation with a new tag must succeed, and its result must take
/// effect.
fn starts_over(conn: &mut Conn, itt: Itt, length: &str) -> Outcome {
    let request = TextRequest { itt, ..conn.text(false) };
    let (response, pdu) = ask(conn, &request, &[(SEGMENT, length)])?;
    stays_open(&response, &pdu)?;
    conclude(conn, &request, pdu)?;
    conn.warm_up()?;
    let longest = longest_segment(conn)?;
    let limit: usize = length.parse().unwrap_or_default();
    require!(longest <= limit, "{longest} bytes in a PDU, we take {limit} since the negotiation");
    Ok(())
}

fn key_twice(fixture: &mut Fixture) -> Outcome {
    let mut conn = fixture.start(&[(SEGMENT, "")])?;
    let request = conn.text(false);
    let (_, pdu) = ask(&mut conn, &request, &[(SEGMENT, "512")])?;
    let again = conn.text_on(&request, &pdu, false);
    conn.send(&again, &Keys::of(&[(SEGMENT, "512")]).to_bytes());
    let pdu = conn.next("a Reject of the second negotiation of a key")?;
    require!(pdu.opcode() == Opcode::REJECT, "expected Reject, came {}", pdu.shown());
    let reason = RejectReason(pdu.byte(2));
    require!(reason == RejectReason::PROTOCOL_ERROR, "expected reason 04, came {}", pdu.shown());
    conn.plug_gap(&pdu);
    starts_over(&mut conn, request.itt, "512")
}

fn reset_by_tag(fixture: &mut Fixture) -> Outcome {
    let mut conn = fixture.start(&[(SEGMENT, "")])?;
    let request = conn.text(false);
    let (_, pdu) = ask(&mut conn, &request, &[(SEGMENT, "1024")])?;
    let stray = TextRequest { itt: conn.itt(), ..conn.text_on(&request, &pdu, true) };
    conn.send(&stray, &Keys::of(&[("InitiatorAlias", "conform")]).to_bytes());
    match conn.receive_within(super::numbering::SILENCE)? {
        Received::Closed => {
            fixture.record.remark("the target ends the connection, as it may");
            return Ok(());
        }
        Received::Pdu(pdu) => {
            let known = matches!(pdu.opcode(), Opcode::REJECT | Opcode::TEXT_RESPONSE);
            require!(known, "expected Reject, came {}", pdu.shown());
            conn.plug_gap(&pdu);
        }
        Received::Nothing => {}
    }
    starts_over(&mut conn, request.itt, "512")
}

fn never_ended(fixture: &mut Fixture) -> Outcome {
    let mut conn = fixture.start(&[(SEGMENT, "1024")])?;
    let request = conn.text(false);
    let (response, pdu) = ask(&mut conn, &request, &[(SEGMENT, "512")])?;
    stays_open(&response, &pdu)?;
    let longest = longest_segment(&mut conn)?;
    require!(longest > 512, "{longest} bytes in a PDU: a value of an unfinished negotiation is used");
    require!(longest <= 1024, "{longest} bytes in a PDU, we take 1024");
    Ok(())
}

fn out_of_range(fixture: &mut Fixture) -> Outcome {
    let mut conn = fixture.start(&[(SEGMENT, "")])?;
    let request = conn.text(true);
    conn.send(&request, &Keys::of(&[(SEGMENT, "511")]).to_bytes());
    match conn.receive_within(conn.patience)? {
        Received::Nothing => fail!("a text with a value out of range is not answered"),
        Received::Closed => {
            fixture.record.remark("the target ends the connection, as it may");
            return Ok(());
        }
        Received::Pdu(pdu) => {
            let known = matches!(pdu.opcode(), Opcode::REJECT | Opcode::TEXT_RESPONSE);
            require!(known, "expected Reject or Text Response, came {}", pdu.shown());
            conn.plug_gap(&pdu);
        }
    }
    let longest = longest_segment(&mut conn)?;
    require!(longest > 511, "{longest} bytes in a PDU: the value 511, which is out of range, is used");
    declare_segment(&mut conn, "1024")?;
    let longest = longest_segment(&mut conn)?;
    require!(longest <= 1024, "{longest} bytes in a PDU, we take 1024 since the negotiation");
    Ok(())
}

/// Sends a text in two PDUs, split at `at`, and returns the response to the whole.
fn in_two(conn: &mut Conn, text: &[u8], at: usize) -> Outcome<Pdu> {
    let (head, tail) = text.split_at(at.min(text.len()));
    let request = conn.text(false);
    let first = TextRequest { continues: true, ..request };
    conn.send(&first, head);
    let (response, pdu) = conn.expect::<TextResponse>(request.itt)?;
    stays_open(&response, &pdu)?;
    require!(pdu.data.is_empty(), "the text goes on, but is answered already: {}", pdu.shown());
    let rest = conn.text_on(&request, &pdu, true);
    conn.send(&rest, tail);
    let (response, pdu) = conn.expect::<TextResponse>(request.itt)?;
    if response.is_final { Ok(pdu) } else { conclude(conn, &request, pdu.clone()).map(|_| pdu) }
}

fn over_two_pdus(fixture: &mut Fixture) -> Outcome {
    let mut conn = fixture.start(&[(SEGMENT, "512")])?;
    let long = "a".repeat(240);
    let text = Keys::of(&[
        ("X-com.example.first", &"b".repeat(250)),
        ("InitiatorAlias", &long),
        ("X-com.example.second", "c"),
    ])
    .to_bytes();
    let pdu = in_two(&mut conn, &text, 512)?;
    let keys = Keys::parse(&pdu.data)?;
    for name in ["X-com.example.first", "X-com.example.second"] {
        require!(
            keys.value(name) == Some("NotUnderstood"),
            "expected {name}=NotUnderstood in {}",
            pdu.shown()
        );
    }
    Ok(())
}

fn c_and_f(fixture: &mut Fixture) -> Outcome {
    let mut conn = fixture.start(&[(SEGMENT, "1024")])?;
    let request = TextRequest { continues: true, ..conn.text(true) };
    conn.send(&request, &Keys::of(&[(SEGMENT, "512")]).to_bytes());
    match conn.receive_within(super::numbering::SILENCE)? {
        Received::Closed => {
            fixture.record.remark("the target ends the connection, as it may");
            return Ok(());
        }
        Received::Pdu(pdu) if pdu.opcode() == Opcode::TEXT_RESPONSE => {
            require!(
                pdu.flags() & 0x80 == 0,
                "C and F together were taken for a whole text: {}",
                pdu.shown()
            );
        }
        Received::Pdu(pdu) => conn.plug_gap(&pdu),
        Received::Nothing => {}
    }
    let longest = longest_segment(&mut conn)?;
    require!(longest > 512, "{longest} bytes in a PDU: a value of a PDU with C and F is used");
    Ok(())
}

fn key_cut(fixture: &mut Fixture) -> Outcome {
    let mut conn = fixture.start(&[(SEGMENT, "1024")])?;
    let mut text = Keys::of(&[("X-com.example.first", &"b".repeat(250))]).to_bytes();
    let at = text.len() + "MaxRecvDataSegment".len();
    text.extend(Keys::of(&[(SEGMENT, "512")]).to_bytes());
    let pdu = in_two(&mut conn, &text, at)?;
    let keys = Keys::parse(&pdu.data)?;
    let answer = keys.value("X-com.example.first");
    require!(answer == Some("NotUnderstood"), "expected NotUnderstood, came {}", pdu.shown());
    let longest = longest_segment(&mut conn)?;
    require!(longest <= 512, "{longest} bytes in a PDU, we take 512 since the negotiation");
    Ok(())
}
