//! The text of a login: its keys, names and pieces, and the bounds of all of them.

use super::TAGS;
use crate::login::target::*;
use crate::login::test_site::{FFP, INITIATOR, NAMES, OP, SEC, Said, TARGET, Talk, TestSite, zeroed};
use crate::name::BadName;
use crate::text::{BadText, MAX_PAIRS, MAX_TEXT, MAX_TEXT_PDUS};
use alloc::format;
use alloc::vec;
use core::time::Duration;

/// Names that Linux targets accept, where lenient names are allowed; and no name that could harm a log, a
/// path or a list.
#[test]
fn takes_names_of_another_form_only_where_that_is_allowed() {
    for (named, taken) in [
        ("myhost", true),
        ("iqn.2026.org.example:host", true),
        ("iqn.2026-11.org.example:host+1@home", true),
        ("IQN.MYHOST", true),
        ("..", false),
        ("a/../../etc", false),
        ("host,i,0x00023d000000", false),
        ("host\\one", false),
        ("host'one", false),
    ] {
        let text = format!("InitiatorName={named} TargetName={TARGET}");
        let strict = Talk::at(TestSite::open()).go(OP, FFP, &text);
        assert!(matches!(strict.why(), LoginError::BadInitiatorName(_)), "{named}");
        let mut lenient = Talk::at(TestSite::open());
        lenient.login.take_lenient_names();
        // A lenient name is subject to the same access control as any other: this one may not use the target.
        match lenient.go(OP, FFP, &text).why() {
            LoginError::TargetForbidden => {
                assert!(taken, "{named}");
                assert_eq!(lenient.login.claims().initiator.as_ref().unwrap().as_str(), named.to_lowercase());
            }
            why => assert!(!taken && matches!(why, LoginError::BadInitiatorName(_)), "{named}: {why}"),
        }
    }
}

/// Duplicate AuthMethod, keys in the wrong stage, keys of the other side.
#[test]
fn refuses_keys_that_come_twice_or_where_they_do_not_belong() {
    //= rfc7143#section-6.3
    //= type=test
    //# the target MUST respond with a Login reject (initiator error); if detected by the
    //# initiator, the initiator MUST drop the connection.
    use BadNegotiation::{KeyFromWrongSide, KeyInWrongStage, KeyTwice};
    for (first, second, why) in [
        ("AuthMethod=None AuthMethod=None", "", KeyTwice(Key::AuthMethod)),
        ("InitiatorName=iqn.2026-11.com.example:host", "", KeyTwice(Key::InitiatorName)),
        ("HeaderDigest=None", "", KeyInWrongStage(Key::HeaderDigest)),
        ("SendTargets=All", "", KeyInWrongStage(Key::SendTargets)),
        ("TargetAlias=mine", "", KeyFromWrongSide(Key::TargetAlias)),
        ("TargetPortalGroupTag=1", "", KeyFromWrongSide(Key::TargetPortalGroupTag)),
        ("", "AuthMethod=CHAP,None", KeyInWrongStage(Key::AuthMethod)),
        ("AuthMethod=None", "AuthMethod=None", KeyTwice(Key::AuthMethod)),
        ("", "CHAP_A=5", KeyInWrongStage(Key::ChapA)),
        ("", "MaxBurstLength=512 MaxBurstLength=512", KeyTwice(Key::MaxBurstLength)),
        ("", "SendTargets=All", KeyInWrongStage(Key::SendTargets)),
    ] {
        let mut talk = Talk::at(TestSite::open());
        let mut said = talk.go(SEC, OP, &format!("{NAMES} {first}"));
        if matches!(said, Said::Moves(..)) {
            said = talk.stay(OP, second);
        }
        assert_eq!(said.why(), LoginError::Negotiation(why), "{first} {second}");
    }
    let mut talk = Talk::at(TestSite::open());
    talk.stay(OP, &format!("{NAMES} MaxBurstLength=512")).text();
    assert_eq!(
        talk.stay(OP, "MaxBurstLength=512").why(),
        LoginError::Negotiation(KeyTwice(Key::MaxBurstLength))
    );
}

#[test]
fn answers_keys_that_it_does_not_know() {
    //= rfc7143#section-6.2
    //= type=test
    //# the answer for a key that is not understood MUST be key=NotUnderstood
    let mut talk = Talk::at(TestSite::open());
    let said = talk.stay(SEC, &format!("{NAMES} X-com.example.a=1 Future=2 AuthMethod=None Z-b=3,4"));
    assert_eq!(
        said.text(),
        format!(
            "X-com.example.a=NotUnderstood Future=NotUnderstood Z-b=NotUnderstood {TAGS} AuthMethod=None"
        )
    );
    let why = Talk::at(TestSite::open()).stay(SEC, &format!("{NAMES} X-a=NotUnderstood")).why();
    assert_eq!(why, LoginError::Negotiation(BadNegotiation::AnswerWithoutOffer));
}

/// CVE-2013-2850: the answer to an unknown key repeats its name, so the name must be bounded.
#[test]
fn refuses_an_unknown_key_of_64_kib_without_an_echo() {
    let mut talk = Talk::at(TestSite::open());
    let text = [&zeroed(NAMES)[..], &vec![b'A'; 60 << 10], b"=1\0"].concat();
    let request = talk.request(SEC, &text);
    let LoginStep::Fail { response, why } = talk.send(&request) else { panic!() };
    assert_eq!((response.data.len(), why), (0, LoginError::Text(BadText::KeyName)));
}

/// The unbounded appends of 2026 in LIO's text encoder: as many unknown keys as fit, each with its answer.
#[test]
fn answers_to_many_unknown_keys_stay_bounded_and_leave_in_pieces() {
    //= rfc7143#section-11.13.6
    //= type=test
    //# If the Status-Class is 0, the T bit MUST NOT be set to 1 if the T bit in the request was set to 0.
    //= rfc7143#section-11.13.7
    //= type=test
    //# A Login Response with the C bit set to 1 MUST have the T bit set to 0.
    let mut talk = Talk::at(TestSite::open());
    let key = |at: usize| format!("{:X<63}=\0", format!("X-{at}-"));
    let mut text = zeroed(NAMES);
    text.extend((0..MAX_PAIRS - 2).flat_map(|at| key(at).into_bytes()));
    assert!(text.len() < MAX_TEXT);
    let request = LoginRequest { transit: true, nsg: Stage::FULL_FEATURE, ..talk.request(OP, &text) };
    let (mut step, mut total, mut pieces) = (talk.send(&request), 0, 0);
    let outcome = loop {
        let response = match &step {
            LoginStep::Continue(response) | LoginStep::Complete { response, .. } => response,
            other => panic!("{other:?}"),
        };
        assert!(response.data.len() <= 8192);
        total += response.data.len();
        pieces += 1;
        if let LoginStep::Complete { outcome, .. } = step {
            break outcome;
        }
        assert!(response.cont && !response.transit);
        let next = LoginRequest { transit: true, nsg: Stage::FULL_FEATURE, ..talk.request(OP, &[]) };
        step = talk.send(&next);
    };
    assert!((39_000..MAX_TEXT).contains(&total), "{total}");
    assert_eq!((pieces, outcome.effect), (total.div_ceil(8192), LoginEffect::NewSession));
    // One more key, and the target refuses the text.
    let mut talk = Talk::at(TestSite::open());
    text.extend(key(MAX_PAIRS).into_bytes());
    let request = talk.request(OP, &text);
    assert_eq!(talk.hear(&request).why(), LoginError::Text(BadText::TooManyPairs));
}

#[test]
fn leaves_the_stage_only_with_a_request_that_wants_to() {
    //= rfc7143#section-11.13.6
    //= type=test
    //# If the Status-Class is 0, the T bit MUST NOT be set to 1 if the T bit in the request was set to 0.
    let mut talk = Talk::at(TestSite::open());
    let text = format!("{NAMES} {}", "X-com.example.a=1 ".repeat(400));
    let said = talk.go(SEC, OP, &text);
    assert!(matches!(said, Said::Stays(_)));
    // The rest of the target's text answers a request without T, so that the stage changes at the next
    // request.
    assert!(matches!(talk.stay(SEC, ""), Said::Stays(text) if !text.is_empty()));
    assert!(matches!(talk.go(SEC, OP, ""), Said::Moves(Stage::OPERATIONAL, _)));
}

#[test]
fn refuses_text_in_the_middle_of_its_own() {
    let mut talk = Talk::at(TestSite::open());
    let text = format!("{NAMES} {}", "X-com.example.a=1 ".repeat(400));
    talk.stay(SEC, &text).text();
    assert_eq!(talk.stay(SEC, "AuthMethod=None").why(), LoginError::TextAmidAnswer);
}

#[test]
fn collects_a_text_cut_into_single_bytes() {
    //= rfc7143#section-6.2
    //= type=test
    //# A target receiving a Text or Login Request with the C bit set to 1 MUST answer with a
    //# Text or Login Response with no data segment (DataSegmentLength 0).
    let mut talk = Talk::at(TestSite::open());
    let data = zeroed(NAMES);
    let (last, head) = data.split_last().unwrap();
    for byte in head {
        let byte = [*byte];
        let request = LoginRequest { cont: true, ..talk.request(OP, &byte) };
        assert!(matches!(talk.hear(&request), Said::Stays(text) if text.is_empty()));
    }
    let byte = [*last];
    let request = LoginRequest { transit: true, nsg: Stage::FULL_FEATURE, ..talk.request(OP, &byte) };
    assert!(matches!(talk.hear(&request), Said::Enters(..)));
}

/// CVE-2021-28361: the C bit is set, and there is no data.
#[test]
fn refuses_a_continued_request_without_data() {
    let mut talk = Talk::at(TestSite::open());
    let request = LoginRequest { cont: true, ..talk.request(SEC, &[]) };
    assert_eq!(talk.hear(&request).why(), LoginError::Text(BadText::ContinuedEmpty));
}

/// CVE-2011-0001, CVE-2026-53176: logins that are too large, have too many PDUs, are too short, or are too
/// slow.
#[test]
fn bounds_a_login_in_size_number_and_time() {
    let mut talk = Talk::at(TestSite::open());
    let piece = vec![b'a'; 8192];
    let last = loop {
        let request = LoginRequest { cont: true, ..talk.request(SEC, &piece) };
        match talk.hear(&request) {
            Said::Stays(_) => {}
            said => break said,
        }
    };
    assert_eq!(last.why(), LoginError::Text(BadText::TooLong));

    let mut talk = Talk::at(TestSite::open());
    let mut requests = 0;
    let last = loop {
        requests += 1;
        let request = LoginRequest { cont: true, ..talk.request(SEC, b"a") };
        match talk.hear(&request) {
            Said::Stays(_) => {}
            said => break said,
        }
    };
    assert_eq!((requests, last.why()), (MAX_TEXT_PDUS, LoginError::Text(BadText::TooManyPdus)));

    let mut talk = Talk::at(TestSite::open());
    talk.stay(SEC, NAMES).text();
    let last = loop {
        match talk.stay(SEC, "") {
            Said::Stays(_) => {}
            said => break said,
        }
    };
    assert_eq!(last.why(), LoginError::TooManyTexts);

    let mut talk = Talk::at(TestSite::open());
    talk.stay(SEC, NAMES).text();
    talk.now = talk.login.deadline().after(Duration::from_nanos(1));
    assert_eq!(talk.stay(SEC, "").why(), LoginError::TooSlow);
}

/// CVE-2026-44943: names that are paths, CVE-2010-0743: names that are format strings.
#[test]
fn refuses_names_that_are_no_names() {
    for (initiator, why) in [
        ("iqn.2026-11.com.example:../../etc/passwd", BadName::Character),
        ("iqn.2026-11.com.example:%n%n", BadName::Character),
        ("..", BadName::Type),
        ("", BadName::Length),
    ] {
        let text = format!("InitiatorName={initiator} TargetName={TARGET}");
        assert_eq!(Talk::at(TestSite::open()).stay(SEC, &text).why(), LoginError::BadInitiatorName(why));
    }
    let mut talk = Talk::at(TestSite::open());
    let data = format!("InitiatorName={INITIATOR}\nx\0TargetName={TARGET}\0");
    let request = talk.request(SEC, data.as_bytes());
    assert_eq!(talk.hear(&request).why(), LoginError::BadInitiatorName(BadName::Character));
    let text = format!("InitiatorName={INITIATOR} TargetName={TARGET}/../x");
    let said = Talk::at(TestSite::open()).stay(SEC, &text);
    assert_eq!(said.status(), Status::NOT_FOUND);
}

#[test]
fn keeps_an_alias_fit_to_be_shown() {
    let mut talk = Talk::at(TestSite::open());
    let data = [&zeroed(NAMES)[..], b"InitiatorAlias=a\x1b[2Jb\n\xff", &[b'z'; 400], b"\0"].concat();
    let request = LoginRequest { transit: true, nsg: Stage::FULL_FEATURE, ..talk.request(OP, &data) };
    let alias = talk.hear(&request).outcome().initiator_alias.unwrap();
    assert!(alias.starts_with("a[2Jb\u{fffd}zzz"), "{alias}");
    assert!(alias.len() <= 255);
}
