use super::*;
use crate::chap::Secret;
use crate::discovery::{Discovered, TargetList};
use crate::login::directory::{
    DiscoveryAccess, Realm, SendTargetsEntry, SessionInfo, SessionQuery, TargetAddress, TargetId,
    TargetLookup,
};
use crate::name::PortalGroupTag;
use alloc::format;
use alloc::vec;
use base::rng::Rng;
use base::state_machine::PortalId;
use core::net::SocketAddr;

/// A directory of this many targets, in the order of their names.
struct Catalogue(u32);

fn target(at: u32) -> IscsiName {
    format!("iqn.2026-11.com.example:disk{at:05}").parse().unwrap()
}

impl Directory for Catalogue {
    fn certifies(&self, _: &ConnectionPath, _: &IscsiName) -> bool {
        true
    }

    fn find_target(&self, _: &ConnectionPath, _: &IscsiName, _: &IscsiName) -> TargetLookup {
        TargetLookup::NotFound
    }

    fn discovery(&self, _: &ConnectionPath, _: &IscsiName) -> DiscoveryAccess {
        DiscoveryAccess::NotServed
    }

    fn chap_secret(&self, _: Realm, _: &IscsiName, _: &str) -> Option<Secret> {
        None
    }

    fn find_session(&self, _: &SessionQuery<'_>) -> Option<SessionInfo> {
        None
    }

    fn next_target(
        &self,
        _: &ConnectionPath,
        _: &IscsiName,
        after: Option<&IscsiName>,
    ) -> Option<SendTargetsEntry> {
        let after = after.map(|name| name.as_str().rsplit_once("disk").unwrap().1.parse::<u32>().unwrap());
        let at = after.map_or(0, |at| at + 1);
        let addresses = ["10.0.0.1:3260", "[2001:db8::1]:3260"];
        let addresses =
            addresses.map(|text| (TargetAddress::Socket(text.parse().unwrap()), PortalGroupTag(1)));
        // The fifth target listens on the address of the connection.
        let addresses = if at == 4 { vec![] } else { addresses.to_vec() };
        (at < self.0).then(|| SendTargetsEntry { name: target(at), addresses })
    }
}

/// A session with a text negotiation.
struct Session {
    catalogue: Catalogue,
    kind: SessionKind,
    max_recv: u32,
    text: TargetText,
    tags: u32,
}

impl Session {
    fn discovery(targets: u32) -> Self {
        Self {
            catalogue: Catalogue(targets),
            kind: SessionKind::Discovery { named: None },
            max_recv: 8192,
            text: TargetText::new(),
            tags: 0,
        }
    }

    /// Returns a normal session with the third of five targets.
    fn normal() -> Self {
        let kind =
            SessionKind::Normal { target: TargetId(2), name: target(2), portal_group: PortalGroupTag(1) };
        Self { kind, ..Self::discovery(5) }
    }

    fn handle(&mut self, request: &TextRequest<'_>) -> Result<TextReply, TextNegotiationError> {
        let address: SocketAddr = "127.0.0.1:3260".parse().unwrap();
        let via = ConnectionPath { portal: PortalId(0), local: address, peer: address };
        let initiator: IscsiName = "iqn.2026-11.com.example:host".parse().unwrap();
        self.tags += 1;
        let context = TextContext {
            directory: &self.catalogue,
            via: &via,
            initiator: &initiator,
            kind: &self.kind,
            initiator_max_recv: self.max_recv,
            fresh_ttt: self.tags,
        };
        let reply = self.text.handle(request, &context)?;
        assert!(reply.data.len() <= usize::try_from(self.max_recv).unwrap());
        assert_eq!(reply.ttt, if reply.is_final { NO_TAG } else { self.tags });
        assert!(!(reply.is_final && reply.cont));
        Ok(reply)
    }

    /// Sends one text (pairs divided by spaces) in one request.
    fn say(&mut self, text: &str) -> Result<TextReply, TextNegotiationError> {
        let data = zeroed(text);
        self.handle(&TextRequest { is_final: true, cont: false, itt: 1, ttt: NO_TAG, data: &data })
    }

    /// Asks for targets with the initiator's side, in pieces, and parses the list; also returns the number of
    /// requests.
    fn ask(&mut self, value: &str, piece_max: usize) -> (Vec<Discovered>, usize) {
        let mut out = TextBuilder::new();
        out.put("SendTargets", value);
        let (mut initiator, mut list) = (InitiatorText::new(9, out, piece_max), TargetList::new());
        let (mut call, mut requests) = (initiator.start(), 0);
        loop {
            requests += 1;
            let reply = self.handle(&call.as_request()).unwrap();
            list.add(&reply.data).unwrap();
            match initiator.handle(&reply).unwrap() {
                Some(next) => call = next,
                None => return (list.finish().unwrap(), requests),
            }
        }
    }
}

fn zeroed(text: &str) -> Vec<u8> {
    text.split_whitespace().flat_map(|pair| [pair.as_bytes(), b"\0"]).flatten().copied().collect()
}

fn shown(reply: &TextReply) -> String {
    String::from_utf8(reply.data.clone()).unwrap().trim_end_matches('\0').replace('\0', " ")
}

/// open-iscsi PR #224: initiators and targets that fail at 250 targets.
#[test]
fn lists_ten_thousand_targets_over_as_many_responses_as_it_takes() {
    let mut session = Session::discovery(10_000);
    for (max_recv, piece_max) in [(512, 3), (8192, 8192), (262_144, 8192)] {
        session.max_recv = max_recv;
        let (targets, requests) = session.ask("All", piece_max);
        assert_eq!(targets.len(), 10_000);
        for (at, found) in (0..).zip(&targets) {
            assert_eq!((&found.name, found.addresses.len()), (&target(at), if at == 4 { 1 } else { 2 }));
        }
        assert!(requests < 4000, "{requests}");
        assert!(!session.text.is_negotiating());
    }
}

/// libiscsi declares 256 KiB, and takes one response only.
#[test]
fn a_list_of_nearly_the_length_that_the_initiator_takes_is_one_response() {
    let mut session = Session::discovery(2000);
    session.max_recv = 256 << 10;
    let reply = session.say("SendTargets=All").unwrap();
    assert!(reply.data.len() > 128 << 10, "{}", reply.data.len());
    assert!(reply.is_final && !reply.cont);
}

#[test]
fn a_list_is_cut_between_pairs_if_they_fit() {
    let mut session = Session::discovery(100);
    let reply = session.say("SendTargets=All").unwrap();
    assert!(reply.cont && !reply.is_final);
    assert_eq!(reply.data.last(), Some(&0));
    assert!(reply.data.len() > 8000);
}

#[test]
fn lists_what_the_kind_of_session_may_ask_for() {
    let third = "TargetName=iqn.2026-11.com.example:disk00002 TargetAddress=10.0.0.1:3260,1 \
                 TargetAddress=[2001:db8::1]:3260,1";
    let reject = "SendTargets=Reject";
    for (asked, in_discovery, in_normal) in [
        ("SendTargets=iqn.2026-11.com.example:disk00002", third, third),
        ("SendTargets=IQN.2026-11.com.example:DISK00002", third, third),
        ("SendTargets=", reject, third),
        (
            "SendTargets=iqn.2026-11.com.example:disk00004",
            "TargetName=iqn.2026-11.com.example:disk00004 TargetAddress=127.0.0.1:3260,1",
            reject,
        ),
        ("SendTargets=iqn.2026-11.com.example:disk00007", "", reject),
        ("SendTargets=iqn.2026-11.com.example:disk00003x", "", reject),
        ("SendTargets=../x", reject, reject),
        ("X-a=1 SendTargets=", &format!("X-a=NotUnderstood {reject}"), &format!("X-a=NotUnderstood {third}")),
    ] {
        for (mut session, want) in [(Session::discovery(5), in_discovery), (Session::normal(), in_normal)] {
            let reply = session.say(asked).unwrap();
            assert_eq!((shown(&reply).as_str(), reply.is_final), (want, true), "{asked}");
        }
    }
    // RFC 7143 appendix C: `All` must not be supported in a normal session.
    assert_eq!(shown(&Session::normal().say("SendTargets=All").unwrap()), reject);
    assert_eq!(Session::discovery(5).ask("All", 8192).0.len(), 5);
}

#[test]
fn takes_what_may_change_now_and_refuses_the_rest() {
    //= rfc7143#section-6.4
    //= type=test
    //# Targets MUST NOT submit parameters that require an additional initiator Text Request
    //# in a Text Response with the F bit set to 1.
    //= rfc7143#section-11.11.1
    //= type=test
    //# A Text Response with the F bit set to 1 MUST NOT contain key=value pairs that may require additional
    //# answers from the initiator.
    for (text, answer, max_recv) in [
        ("MaxRecvDataSegmentLength=4096", "", Some(4096)),
        ("MaxRecvDataSegmentLength=511", "MaxRecvDataSegmentLength=Reject", None),
        ("MaxRecvDataSegmentLength=many", "MaxRecvDataSegmentLength=Reject", None),
        ("HeaderDigest=CRC32C,None", "HeaderDigest=Reject", None),
        ("MaxBurstLength=512", "MaxBurstLength=Reject", None),
        ("InitiatorName=iqn.2026-11.com.example:x", "InitiatorName=Reject", None),
        ("TargetAlias=x", "TargetAlias=Reject", None),
        ("AuthMethod=None", "AuthMethod=Reject", None),
        ("IFMarker=No", "IFMarker=Reject", None),
        ("X-com.example.k=1", "X-com.example.k=NotUnderstood", None),
        ("", "", None),
    ] {
        let reply = Session::normal().say(text).unwrap();
        assert_eq!(shown(&reply), answer, "{text}");
        assert_eq!(reply.agreed.initiator_max_recv, max_recv, "{text}");
    }
    let reply = Session::normal().say("InitiatorAlias=me\x1b!").unwrap();
    assert_eq!(reply.agreed.initiator_alias.as_deref(), Some("me!"));
}

#[test]
fn a_conversation_takes_effect_when_it_ends_and_not_before() {
    //= rfc7143#section-6.2
    //= type=test
    //# Negotiations MUST be handled as atomic operations.
    //= rfc7143#section-7.12
    //= type=test
    //# The operational parameters of the session or the connection MUST continue to be the values agreed upon
    //# during an earlier successful negotiation (i.e., any partial results of this unsuccessful negotiation
    //# MUST NOT take effect and MUST be discarded).
    let mut session = Session::normal();
    let data = zeroed("MaxRecvDataSegmentLength=4096");
    let first = TextRequest { is_final: false, cont: false, itt: 1, ttt: NO_TAG, data: &data };
    let reply = session.handle(&first).unwrap();
    assert!(!reply.is_final && session.text.is_negotiating());
    assert_eq!(reply.agreed, Agreed::default());
    let last = TextRequest { is_final: true, ttt: reply.ttt, data: &[], ..first };
    let reply = session.handle(&last).unwrap();
    assert_eq!((reply.is_final, reply.agreed.initiator_max_recv), (true, Some(4096)));
}

/// UNH-IOL targets 17.7.1: negotiation reset.
#[test]
fn a_request_without_a_tag_starts_over() {
    //= rfc7143#section-7.12
    //= type=test
    //# The operational parameters of the session or the connection MUST continue to be the values agreed upon
    //# during an earlier successful negotiation (i.e., any partial results of this unsuccessful negotiation
    //# MUST NOT take effect and MUST be discarded).
    let mut session = Session::normal();
    let data = zeroed("MaxRecvDataSegmentLength=4096");
    let first = TextRequest { is_final: false, cont: false, itt: 1, ttt: NO_TAG, data: &data };
    let stale = session.handle(&first).unwrap();
    let reset = TextRequest { is_final: true, itt: 2, data: &[], ..first };
    assert_eq!(session.handle(&reset).unwrap().agreed, Agreed::default());
    let late = TextRequest { is_final: true, ttt: stale.ttt, data: &[], ..first };
    assert_eq!(session.handle(&late), Err(TextNegotiationError::NoSuchConversation));
}

/// UNH-IOL targets 17.6 (negotiate once), 17.7.2–3 (negotiation failure), 17.8.1–3 (C and F).
#[test]
fn refuses_conversations_that_break_the_rules() {
    //= rfc7143#section-6.2
    //= type=test
    //# As negotiation text may span PDU boundaries, a Text or Login Request or a Text or
    //# Login Response PDU that has the C bit set to 1 MUST NOT have the F bit or T bit set to
    //# 1.
    //= rfc7143#section-6.4
    //= type=test
    //# If such an attempt is detected by the target, the target MUST respond with a Reject
    //# PDU with a reason of "Protocol Error".
    let twice = zeroed("MaxRecvDataSegmentLength=4096 MaxRecvDataSegmentLength=4096");
    let answer = zeroed("MaxRecvDataSegmentLength=Reject");
    let fine = TextRequest { is_final: true, cont: false, itt: 1, ttt: NO_TAG, data: &[] };
    for (request, why) in [
        (TextRequest { cont: true, data: b"A=1\0", ..fine }, TextNegotiationError::FinalWithContinue),
        (TextRequest { ttt: 77, ..fine }, TextNegotiationError::NoSuchConversation),
        (
            TextRequest { data: &twice, ..fine },
            TextNegotiationError::Negotiation(BadNegotiation::KeyTwice(Key::MaxRecvDataSegmentLength)),
        ),
        (
            TextRequest { data: &answer, ..fine },
            TextNegotiationError::Negotiation(BadNegotiation::AnswerWithoutOffer),
        ),
        (TextRequest { data: b"A=1", ..fine }, TextNegotiationError::Text(BadText::Unterminated)),
        (TextRequest { data: b"A\0", ..fine }, TextNegotiationError::Text(BadText::NoEquals)),
    ] {
        let mut session = Session::normal();
        assert_eq!(session.handle(&request), Err(why));
        assert!(!session.text.is_negotiating());
    }
    // The same key twice in one text negotiation, but in two texts.
    let mut session = Session::normal();
    let once = zeroed("MaxRecvDataSegmentLength=4096");
    let first = TextRequest { is_final: false, data: &once, ..fine };
    let tag = session.handle(&first).unwrap().ttt;
    let again = TextRequest { ttt: tag, data: &once, ..fine };
    let why = BadNegotiation::KeyTwice(Key::MaxRecvDataSegmentLength);
    assert_eq!(session.handle(&again), Err(TextNegotiationError::Negotiation(why)));
    // With the tag of the response, but another task tag.
    let mut session = Session::normal();
    let tag = session.handle(&first).unwrap().ttt;
    let other = TextRequest { itt: 2, ttt: tag, ..fine };
    assert_eq!(session.handle(&other), Err(TextNegotiationError::NoSuchConversation));
}

/// CVE-2021-28361: a Text Request with C and no data.
#[test]
fn refuses_a_continued_text_request_without_data() {
    let request = TextRequest { is_final: false, cont: true, itt: 1, ttt: NO_TAG, data: &[] };
    assert_eq!(Session::normal().handle(&request), Err(TextNegotiationError::Text(BadText::ContinuedEmpty)));
}

#[test]
fn bounds_a_conversation_in_size_and_number() {
    let mut session = Session::normal();
    let mut request = TextRequest { is_final: false, cont: true, itt: 1, ttt: NO_TAG, data: &[b'a'; 8192] };
    let why = loop {
        match session.handle(&request) {
            Ok(reply) => request.ttt = reply.ttt,
            Err(why) => break why,
        }
    };
    assert_eq!(why, TextNegotiationError::Text(BadText::TooLong));
    let mut request = TextRequest { is_final: false, cont: false, itt: 1, ttt: NO_TAG, data: &[] };
    let why = loop {
        match session.handle(&request) {
            Ok(reply) => request.ttt = reply.ttt,
            Err(why) => break why,
        }
    };
    assert_eq!(why, TextNegotiationError::TooLong);
}

#[test]
fn refuses_text_in_the_middle_of_a_list() {
    let mut session = Session::discovery(1000);
    let tag = session.say("SendTargets=All").unwrap().ttt;
    let data = zeroed("X-a=1");
    let request = TextRequest { is_final: true, cont: false, itt: 1, ttt: tag, data: &data };
    assert_eq!(session.handle(&request), Err(TextNegotiationError::TextAmidAnswer));
}

#[test]
fn the_initiator_drops_a_target_that_strays() {
    let fine =
        TextReply { is_final: true, cont: false, ttt: NO_TAG, data: vec![], agreed: Agreed::default() };
    for (piece_max, reply, why) in [
        (99, TextReply { cont: true, ..fine.clone() }, TextNegotiationError::FinalWithContinue),
        (99, TextReply { is_final: false, ..fine.clone() }, TextNegotiationError::NoSuchConversation),
        (3, fine.clone(), TextNegotiationError::TextAmidAnswer),
        (
            3,
            TextReply { is_final: false, ttt: 1, data: vec![0], ..fine.clone() },
            TextNegotiationError::TextAmidAnswer,
        ),
    ] {
        let mut out = TextBuilder::new();
        out.put("SendTargets", "All");
        let mut initiator = InitiatorText::new(1, out, piece_max);
        initiator.start();
        assert_eq!(initiator.handle(&reply), Err(why));
    }
    //= rfc7143#section-11.10.4
    //= type=test
    //# The initiator MUST ignore the Target Transfer Tag in the Text Response when the F bit is set to 1.
    for ttt in [NO_TAG, 0, 1] {
        let mut initiator = InitiatorText::new(1, TextBuilder::new(), 99);
        initiator.start();
        let last = TextReply { ttt, ..fine.clone() };
        assert_eq!(initiator.handle(&last), Ok(None));
        assert_eq!(initiator.handle(&last), Err(TextNegotiationError::NoSuchConversation));
    }
}

#[test]
fn no_sequence_of_requests_makes_the_conversation_panic() {
    let parts =
        ["SendTargets=All", "SendTargets=", "MaxRecvDataSegmentLength=512", "X-a=b", "InitiatorAlias=x", "="];
    let mut finals = 0;
    for seed in 0..2000 {
        let mut rng = Rng::from_seed(seed);
        let mut session = if rng.chance(1, 2) { Session::discovery(300) } else { Session::normal() };
        let mut tag = NO_TAG;
        for _ in 0..10 {
            let mut data = Vec::new();
            for _ in 0..rng.below(3) {
                data.extend(zeroed(parts[usize::try_from(rng.below(6)).unwrap()]));
            }
            let request = TextRequest {
                is_final: rng.chance(1, 2),
                cont: rng.chance(1, 5),
                itt: u32::from(rng.chance(1, 20)),
                ttt: if rng.chance(1, 20) { 12_345 } else { tag },
                data: &data,
            };
            tag = session.handle(&request).map_or(NO_TAG, |reply| {
                finals += usize::from(reply.is_final);
                reply.ttt
            });
        }
    }
    assert!(finals > 2000, "{finals}");
}
