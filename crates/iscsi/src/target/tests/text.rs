//! Text requests in full feature phase.

use alloc::format;
use alloc::vec::Vec;

use super::world::{TARGET, World, keys, pairs};
use crate::name::IscsiName;
use crate::negotiate::KeyPolicy;
use crate::pdu::logout_request::{LogoutReason, LogoutRequest};
use crate::pdu::logout_response::{LogoutResponse, LogoutResult};
use crate::pdu::reject::{Reject, RejectReason};
use crate::pdu::text_request::TextRequest;
use crate::pdu::text_response::TextResponse;
use crate::pdu::{Bhs, Itt, Ttt};
use crate::serial::StatSn;
use crate::target::engine::Limits;

fn request(world: &mut World, conn: base::state_machine::ConnId) -> TextRequest {
    let (itt, cmd_sn) = world.numbers(conn);
    TextRequest {
        immediate: true,
        is_final: true,
        continues: false,
        lun: 0,
        itt,
        ttt: Ttt::NONE,
        cmd_sn,
        exp_stat_sn: StatSn(0),
    }
}

#[test]
fn send_targets_tells_what_the_kind_of_session_may_know() {
    //= rfc7143#section-11.11.1
    //= type=test
    //# A Text Response with the F bit set to 1 MUST have a Target Transfer Tag field set to the reserved
    //# value 0xffffffff.
    //= rfc7143#section-11.11.4
    //= type=test
    //# Otherwise, the Target Transfer Tag MUST be set to 0xffffffff.
    let all = [format!("TargetName={TARGET}"), "TargetAddress=127.0.0.1:3260,1".into()];
    let refused = ["SendTargets=Reject".into()];
    let other = "SendTargets=iqn.2026-01.test:other";
    for (discovery, text, expected) in [
        (true, "SendTargets=All", &all[..]),
        (true, &format!("SendTargets={TARGET}"), &all),
        (true, other, &[]),
        (true, "SendTargets=", &refused),
        (false, "SendTargets=", &all),
        (false, &format!("SendTargets={TARGET}"), &all),
        (false, "SendTargets=All", &refused),
        (false, other, &refused),
    ] {
        let mut world = World::new();
        let conn = if discovery { world.discover() } else { world.login(&[]).0 };
        let asked = request(&mut world, conn);
        world.send(conn, &asked, format!("{text}\0").as_bytes());
        let got = world.expect_any(conn);
        let response: TextResponse = got.read();
        assert!(response.is_final && !response.continues && response.ttt == Ttt::NONE);
        assert_eq!(pairs(&got.data), expected, "{text} in discovery: {discovery}");
        world.expect_silence(conn);
    }
}

#[test]
fn a_discovery_session_serves_send_targets_and_logouts_only() {
    let mut world = World::new();
    let conn = world.discover();
    let asked = request(&mut world, conn);
    for text in ["", "MaxRecvDataSegmentLength=4096\0", "InitiatorAlias=me\0", "X-com.example.key=1\0"] {
        world.send(conn, &asked, text.as_bytes());
        assert_eq!(world.expect::<Reject>(conn).reason, RejectReason::PROTOCOL_ERROR, "{text}");
    }
    // Other keys may go with it.
    world.send(conn, &asked, b"MaxRecvDataSegmentLength=4096\0SendTargets=All\0");
    let response: TextResponse = world.expect(conn);
    assert!(response.is_final);
    let logout = |reason| LogoutRequest {
        immediate: true,
        reason,
        itt: Itt(900),
        cid: 0,
        cmd_sn: asked.cmd_sn,
        exp_stat_sn: StatSn(0),
    };
    world.send(conn, &logout(LogoutReason::RemoveForRecovery), &[]);
    assert_eq!(world.expect::<Reject>(conn).reason, RejectReason::PROTOCOL_ERROR);
    world.send(conn, &logout(LogoutReason::CloseSession), &[]);
    assert_eq!(world.expect::<LogoutResponse>(conn).response, LogoutResult::CLOSED);
}

#[test]
fn ten_thousand_targets_leave_in_pieces_as_they_are_asked_for() {
    //= rfc7143#section-11.10.4
    //= type=test
    //# It MUST do so whenever it sets the F bit to 0 in the response.
    //= rfc7143#section-11.11.1
    //= type=test
    //# A Text Response with the F bit set to 0 MUST have a Target Transfer Tag field set to a value other
    //# than the reserved value 0xffffffff.
    //= rfc7143#section-11.11.2
    //= type=test
    //# A Text Response with the C bit set to 1 MUST have the F bit set to 0.
    //= rfc7143#section-11.11.4
    //= type=test
    //# When a target has more work to do (e.g., cannot transfer all the remaining text data in a single Text
    //# Response or has to continue the negotiation) and has enough resources to proceed, it MUST set the
    //# Target Transfer Tag to a value other than the reserved value 0xffffffff.
    //= rfc7143#section-11.11.6
    //= type=test
    //# The data lengths of a Text Response MUST NOT exceed the iSCSI initiator MaxRecvDataSegmentLength (a
    //# parameter that is negotiated per connection and per direction).
    let mut world = World::new();
    let name = |n| IscsiName::parse(format!("iqn.2026-01.test:target-{n:05}").as_bytes()).unwrap();
    world.names.targets = (0..10_000).map(name).collect();
    let conn = world.discover();
    let mut asked = request(&mut world, conn);
    let mut text = Vec::new();
    world.send(conn, &asked, b"SendTargets=All\0");
    loop {
        let got = world.expect_any(conn);
        let response: TextResponse = got.read();
        assert!(got.data.len() <= 8192);
        text.extend_from_slice(&got.data);
        assert_eq!(response.continues, !response.is_final);
        if response.is_final {
            assert_eq!(response.ttt, Ttt::NONE);
            break;
        }
        assert!(got.data.len() > 8000, "pieces are full");
        asked.ttt = response.ttt;
        world.send(conn, &asked, &[]);
    }
    let found = pairs(&text);
    assert_eq!(found.len(), 20_000);
    assert_eq!(found[19_998], format!("TargetName={}", name(9_999).as_str()));
}

#[test]
fn a_text_in_pieces_is_answered_once_it_is_whole() {
    //= rfc7143#section-6.2
    //= type=test
    //# A target receiving a Text or Login Request with the C bit set to 1 MUST answer with a
    //# Text or Login Response with no data segment (DataSegmentLength 0).
    let mut world = World::new();
    let conn = world.discover();
    let mut asked = request(&mut world, conn);
    (asked.is_final, asked.continues) = (false, true);
    world.send(conn, &asked, b"SendTar");
    let got = world.expect_any(conn);
    let response: TextResponse = got.read();
    assert!(!response.is_final && !response.continues && got.data.is_empty());
    (asked.is_final, asked.continues, asked.ttt) = (true, false, response.ttt);
    world.send(conn, &asked, b"gets=All\0X-what=1\0");
    let got = world.expect_any(conn);
    assert!(got.read::<TextResponse>().is_final);
    assert_eq!(pairs(&got.data)[0], "X-what=NotUnderstood");
    assert_eq!(pairs(&got.data).len(), 3);
}

#[test]
fn the_target_waits_for_the_initiator_to_be_final() {
    //= rfc7143#section-6.4
    //= type=test
    //# Whenever the target responds with the F bit set to 0, it MUST set the Target Transfer
    //# Tag to a value other than the default 0xffffffff.
    //= rfc7143#section-11.10.4
    //= type=test
    //# It MUST do so whenever it sets the F bit to 0 in the response.
    //= rfc7143#section-11.11.1
    //= type=test
    //# A Text Response with the F bit set to 0 MUST have a Target Transfer Tag field set to a value other
    //# than the reserved value 0xffffffff.
    //= rfc7143#section-11.11.4
    //= type=test
    //# When a target has more work to do (e.g., cannot transfer all the remaining text data in a single Text
    //# Response or has to continue the negotiation) and has enough resources to proceed, it MUST set the
    //# Target Transfer Tag to a value other than the reserved value 0xffffffff.
    let mut world = World::new();
    let (conn, _) = world.login(&[]);
    let mut asked = request(&mut world, conn);
    asked.is_final = false;
    world.send(conn, &asked, b"MaxRecvDataSegmentLength=65536\0MaxBurstLength=512\0InitiatorAlias=me\0");
    let got = world.expect_any(conn);
    let response: TextResponse = got.read();
    assert!(!response.is_final && response.ttt != Ttt::NONE);
    assert_eq!(pairs(&got.data), ["MaxBurstLength=Reject"]);
    (asked.is_final, asked.ttt) = (true, response.ttt);
    world.send(conn, &asked, &[]);
    assert!(world.expect::<TextResponse>(conn).is_final);
    // The declared value applies from here on.
    let command = world.read(conn, 65536);
    let up = world.start(conn, &command, &[]);
    world.data_in(up.task, 0, &[7; 65536]);
    assert_eq!(world.expect_any(conn).data.len(), 65536);
}

#[test]
fn texts_out_of_order_are_rejected() {
    //= rfc7143#section-6.4
    //= type=test
    //# If such an attempt is detected by the target, the target MUST respond with a Reject
    //# PDU with a reason of "Protocol Error".
    for (name, change, text) in [
        ("empty but continued", (false, true, None), &b""[..]),
        ("unknown transfer tag", (true, false, Some(Ttt(99))), b""),
        ("no task tag", (true, false, None), b"SendTargets=All\0"),
        ("not a text", (true, false, None), b"SendTargets"),
        ("a key twice", (true, false, None), b"SendTargets=All\0SendTargets=All\0"),
        ("an answer to nothing", (true, false, None), b"X-a=NotUnderstood\0"),
    ] {
        let mut world = World::new();
        let conn = world.discover();
        let mut asked = request(&mut world, conn);
        (asked.is_final, asked.continues) = (change.0, change.1);
        asked.ttt = change.2.unwrap_or(asked.ttt);
        if name == "no task tag" {
            asked.itt = Itt::NONE;
        }
        world.send(conn, &asked, text);
        let reject: Reject = world.expect(conn);
        let reason = match name {
            "no task tag" => RejectReason::INVALID_PDU_FIELD,
            _ => RejectReason::PROTOCOL_ERROR,
        };
        assert_eq!(reject.reason, reason, "{name}");
        assert_eq!(world.ended(conn), None);
    }
}

#[test]
fn a_text_that_waited_for_its_turn_is_rejected_by_itself() {
    for fills_by_text in [false, true] {
        let mut world = World::with(Limits::default(), KeyPolicy { max_connections: 2, ..keys() });
        let (first, up) = world.login(&["MaxConnections=2"]);
        let (second, status) = world.join(first, up.tsih, 1, &[]);
        assert_eq!(status, 0);
        let filler = world.command(first);
        let other = request(&mut world, first);
        // It is early, and names no text negotiation: the error shows only when its turn comes.
        let next = filler.cmd_sn.next();
        let early = TextRequest { immediate: false, ttt: Ttt(77), cmd_sn: next, itt: Itt(500), ..other };
        world.send(second, &early, b"X-com.example.key=1\0");
        world.expect_silence(second);
        if fills_by_text {
            let text = TextRequest { immediate: false, cmd_sn: filler.cmd_sn, ..other };
            world.send(first, &text, b"X-com.example.key=1\0");
            world.expect::<TextResponse>(first);
        } else {
            world.start(first, &filler, &[]);
        }
        let got = world.expect_any(second);
        let reject: Reject = got.read();
        assert_eq!(reject.reason, RejectReason::PROTOCOL_ERROR);
        let rejected = Bhs::from_bytes(*got.data.first_chunk().unwrap());
        assert_eq!((rejected.itt(), rejected.data_len()), (early.itt, 20), "the Reject shows its header");
        world.expect_silence(first);
        assert_eq!((world.ended(first), world.ended(second)), (None, None));
    }
}

#[test]
fn a_rejected_text_holds_up_no_command() {
    let mut world = World::new();
    let (conn, _) = world.login(&[]);
    let text = request(&mut world, conn);
    let mut early = world.command(conn);
    early.cmd_sn = text.cmd_sn.next();
    world.send(conn, &early, &[]);
    world.expect_silence(conn);
    world.send(conn, &TextRequest { immediate: false, ttt: Ttt(77), ..text }, b"X-com.example.key=1\0");
    assert_eq!(world.expect::<Reject>(conn).reason, RejectReason::PROTOCOL_ERROR);
    world.expect_command();
}
