//! The login phase (RFC 7143 §6, §11.12, §11.13, §13): cases written from its MUSTs.

use iscsi::pdu::login_request::LoginRequest;
use iscsi::pdu::login_response::LoginResponse;
use iscsi::pdu::nop_in::NopIn;
use iscsi::pdu::nop_out::NopOut;
use iscsi::pdu::text_response::TextResponse;
use iscsi::pdu::{Itt, Opcode, PduHeader, Ttt};
use iscsi::serial::{CmdSn, StatSn};

use crate::suite::case;
use crate::text::Keys;
use crate::verdict::Outcome;
use crate::wire::{Damage, Received};

use super::Test;
use super::fixture::Fixture;
use super::login::{FIRST_CMD_SN, LoginExchange, LoginOutcome, LoginPlan, OPERATIONAL, Reply, SECURITY};

const STATUS: &str = "RFC 7143 §11.13.5";
const STAGES: &str = "RFC 7143 §6.3, §11.12";
const KEYS: &str = "RFC 7143 §6.2";

pub(super) const CASES: &[Test] = &[
    case("login-version", STATUS, "a version that is not supported is refused with 0205", bad_version),
    case("login-session", STATUS, "a session that does not exist is refused with 020a", no_session),
    case("login-target", STATUS, "a target that does not exist is refused with 0203", no_target),
    case("login-no-initiator", STATUS, "a login without InitiatorName is refused with 0207", |s| {
        without(s, "InitiatorName")
    }),
    case("login-no-target", STATUS, "a normal login without TargetName is refused with 0207", |s| {
        without(s, "TargetName")
    }),
    case(
        "login-session-type",
        "RFC 7143 §11.13.5, §13.21",
        "an unknown SessionType is refused",
        bad_session_type,
    ),
    case(
        "login-default-type",
        "RFC 7143 §13.21",
        "a login without SessionType is a normal one",
        default_type,
    ),
    case("login-first", "RFC 7143 §6.3", "a connection that does not begin with a login ends", not_a_login),
    case("login-again", "RFC 7143 §6.3, §11.12", "a login in the full feature phase is refused", login_again),
    case("login-stage-reserved", STAGES, "the reserved stage is refused", |s| bad_stages(s, 2, Some(3))),
    case("login-stage-same", STAGES, "a transit to the same stage is refused", |s| bad_stages(s, 1, Some(1))),
    case("login-stage-back", STAGES, "a transit backwards is refused", |s| bad_stages(s, 1, Some(0))),
    case("login-stage-return", STAGES, "a stage that was left is not entered again", stage_again),
    case("login-t-and-c", "RFC 7143 §11.12.2", "T and C together are refused", transit_and_continue),
    case(
        "login-c",
        "RFC 7143 §6.2, §11.12.2",
        "a text over two requests is one text, and the first answer is empty",
        over_two_requests,
    ),
    case(
        "login-numbers",
        "RFC 7143 §11.13",
        "responses carry the tags and numbers of their requests",
        numbers,
    ),
    case("login-tpgt", "RFC 7143 §13.9", "the first response names the portal group", portal_group),
    case("login-key-twice", "RFC 7143 §6.3", "a key that is offered twice is refused", key_twice),
    case("login-unknown-key", KEYS, "an unknown key is NotUnderstood", unknown_key),
    case(
        "login-list-order",
        "RFC 7143 §6.2.1",
        "the first value of a list that the target takes is chosen",
        list_order,
    ),
    case("login-list-unknown", "RFC 7143 §6.2.1", "an unknown value of a list is passed over", list_unknown),
    case("login-list-none", "RFC 7143 §6.2.1", "a list without a value that is known is refused", |s| {
        refuses_value(s, "HeaderDigest", "X-com.example.none")
    }),
    case("login-range", "RFC 7143 §6.2.2", "a number out of range is refused", |s| {
        refuses_value(s, "MaxBurstLength", "511")
    }),
    case("login-boolean", "RFC 7143 §6.2.2", "what is neither Yes nor No is refused", |s| {
        refuses_value(s, "ImmediateData", "Perhaps")
    }),
    case("login-min", "RFC 7143 §6.2.2, §13", "minimum functions do not exceed what was offered", minimums),
    case(
        "login-max",
        "RFC 7143 §6.2.2, §13.15",
        "maximum functions do not fall below what was offered",
        maximum,
    ),
    case("login-or", "RFC 7143 §6.2.2, §13", "OR and AND functions keep what we decide alone", booleans),
    case("login-hex", "RFC 7143 §6.1", "a number may be hexadecimal", hexadecimal),
    case("login-markers", "RFC 7143 §13.25", "obsolete marker keys are refused, but not as unknown", markers),
    case("login-irrelevant", "RFC 7143 §13", "keys without meaning in discovery do no harm", irrelevant),
    case(
        "login-reinstatement",
        "RFC 7143 §6.3.5",
        "a login with the same ISID replaces the session",
        reinstatement,
    ),
    case("login-same-cid", "RFC 7143 §6.3.4", "a login with the same CID replaces the connection", same_cid),
];

/// Tries to log in; fails unless the target refuses the login with one of these statuses.
fn refused(fixture: &mut Fixture, plan: &LoginPlan, statuses: &[u16]) -> Outcome {
    match fixture.try_login(plan)? {
        LoginOutcome::Refused(status) => {
            require!(statuses.contains(&status), "expected status {}, came {status:04x}", shown(statuses));
            Ok(())
        }
        LoginOutcome::Closed => fail!("expected status {}; the connection was closed", shown(statuses)),
        LoginOutcome::In(_) => fail!("the login succeeds"),
    }
}

/// Tries to log in; fails unless the target refuses the login with an initiator error (status class 02). With
/// `may_close`, where no clause demands a response, closing the connection counts as a refusal too.
fn refused_as_initiators_fault(fixture: &mut Fixture, plan: &LoginPlan, may_close: bool) -> Outcome {
    match fixture.try_login(plan)? {
        LoginOutcome::Refused(status) => {
            require!(status >> 8 == 2, "expected a status of class 02, came {status:04x}");
            Ok(())
        }
        LoginOutcome::Closed if may_close => {
            fixture.record.remark("the target ends the connection without a Login Response");
            Ok(())
        }
        LoginOutcome::Closed => fail!("expected a status of class 02; the connection was closed"),
        LoginOutcome::In(_) => fail!("the login succeeds"),
    }
}

fn shown(statuses: &[u16]) -> String {
    let words: Vec<String> = statuses.iter().map(|status| format!("{status:04x}")).collect();
    words.join(" or ")
}

/// Sends one request and fails unless the target refuses it: with a Login Response of class 2, with a Reject,
/// or by closing the connection.
fn refuses(talk: &mut LoginExchange, request: LoginRequest, text: &[u8], what: &str) -> Outcome {
    talk.send_text(request, text);
    match talk.reply(request)? {
        Reply::Response(response, _) => {
            require!(
                response.status >> 8 == 2,
                "{what}: expected a status of class 02, came {:04x}",
                response.status
            );
            Ok(())
        }
        Reply::Other(pdu) => {
            require!(pdu.opcode() == Opcode::REJECT, "{what}: expected a refusal, came {}", pdu.shown());
            Ok(())
        }
        Reply::Closed => Ok(()),
    }
}

fn first_text(plan: &LoginPlan) -> Keys {
    let mut keys = plan.names.clone();
    keys.push("AuthMethod", "None");
    keys
}

fn bad_version(fixture: &mut Fixture) -> Outcome {
    let plan = LoginPlan::normal(fixture);
    let mut talk = LoginExchange::open(fixture, 0)?;
    let request =
        LoginRequest { version_min: 0x7f, version_max: 0x7f, ..plan.request(SECURITY, Some(OPERATIONAL)) };
    talk.send(request, &first_text(&plan));
    match talk.reply(request)? {
        Reply::Response(response, _) => {
            require!(response.status == 0x0205, "expected status 0205, came {:04x}", response.status);
            Ok(())
        }
        Reply::Closed => fail!("expected status 0205; the connection was closed"),
        Reply::Other(pdu) => fail!("expected status 0205, came {}", pdu.shown()),
    }
}

fn no_session(fixture: &mut Fixture) -> Outcome {
    let plan = LoginPlan { tsih: 0x7eee, ..LoginPlan::normal(fixture) };
    refused(fixture, &plan, &[0x020a])
}

fn no_target(fixture: &mut Fixture) -> Outcome {
    let mut plan = LoginPlan::normal(fixture);
    plan.names.set("TargetName", "iqn.2026-11.example.targe:there-is-no-such-target");
    refused(fixture, &plan, &[0x0203])
}

fn without(fixture: &mut Fixture, name: &str) -> Outcome {
    let mut plan = LoginPlan::normal(fixture);
    plan.names.remove(name);
    refused(fixture, &plan, &[0x0207])
}

fn bad_session_type(fixture: &mut Fixture) -> Outcome {
    let mut plan = LoginPlan::normal(fixture);
    plan.names.set("SessionType", "Holiday");
    refused_as_initiators_fault(fixture, &plan, true)
}

fn default_type(fixture: &mut Fixture) -> Outcome {
    let mut plan = LoginPlan::normal(fixture);
    plan.names.remove("SessionType");
    fixture.login(&plan)?.warm_up()
}

fn not_a_login(fixture: &mut Fixture) -> Outcome {
    let mut talk = LoginExchange::open(fixture, 0)?;
    let ping = NopOut {
        immediate: true,
        lun: 0,
        itt: Itt(1),
        ttt: Ttt::NONE,
        cmd_sn: CmdSn(FIRST_CMD_SN),
        exp_stat_sn: StatSn(0),
    };
    talk.line.send(ping.encode(), &[], &[], Damage::None);
    loop {
        match talk.line.receive(fixture.options.patience)? {
            Received::Closed => return Ok(()),
            Received::Nothing => fail!("the connection goes on although it did not begin with a login"),
            Received::Pdu(pdu) => {
                require!(
                    pdu.opcode() != NopIn::OPCODE,
                    "a ping before the login is answered: {}",
                    pdu.shown()
                );
            }
        }
    }
}

fn login_again(fixture: &mut Fixture) -> Outcome {
    let mut conn = fixture.start(&[])?;
    let plan = LoginPlan::normal(fixture);
    let request = plan.request(SECURITY, Some(OPERATIONAL));
    conn.line.send(request.encode(), &[], &first_text(&plan).to_bytes(), Damage::None);
    match conn.receive_within(conn.patience)? {
        Received::Closed => Ok(()),
        Received::Pdu(pdu) if pdu.opcode() == Opcode::REJECT => Ok(()),
        Received::Pdu(pdu) if pdu.opcode() == Opcode::LOGIN_RESPONSE && pdu.byte(36) != 0 => Ok(()),
        Received::Pdu(pdu) => fail!("expected Reject or the end of the connection, came {}", pdu.shown()),
        Received::Nothing => fail!("expected Reject or the end of the connection; nothing came"),
    }
}

fn bad_stages(fixture: &mut Fixture, csg: u8, nsg: Option<u8>) -> Outcome {
    let plan = LoginPlan::normal(fixture);
    let mut talk = LoginExchange::open(fixture, 0)?;
    refuses(&mut talk, plan.request(csg, nsg), &first_text(&plan).to_bytes(), "these stages")
}

fn stage_again(fixture: &mut Fixture) -> Outcome {
    need!(fixture.auth.user.is_none(), "with CHAP, the second request belongs to the first stage anyway");
    let plan = LoginPlan::normal(fixture);
    let mut talk = LoginExchange::open(fixture, 0)?;
    let request = plan.request(SECURITY, Some(OPERATIONAL));
    talk.send(request, &first_text(&plan));
    match talk.reply(request)? {
        Reply::Response(response, _) if response.status == 0 && response.transit => {}
        _ => fail!("the first stage does not end"),
    }
    let again = plan.request(SECURITY, Some(OPERATIONAL));
    refuses(&mut talk, again, &Keys::of(&[("AuthMethod", "None")]).to_bytes(), "the stage that was left")
}

fn transit_and_continue(fixture: &mut Fixture) -> Outcome {
    let plan = LoginPlan::normal(fixture);
    let mut talk = LoginExchange::open(fixture, 0)?;
    let request = LoginRequest { continues: true, ..plan.request(SECURITY, Some(OPERATIONAL)) };
    refuses(&mut talk, request, &first_text(&plan).to_bytes(), "T and C together")
}

fn over_two_requests(fixture: &mut Fixture) -> Outcome {
    need!(fixture.auth.user.is_none(), "the case speaks no CHAP");
    let plan = LoginPlan::normal(fixture);
    let mut talk = LoginExchange::open(fixture, 0)?;
    let mut keys = first_text(&plan);
    keys.push("X-com.example.cut", "value");
    let text = keys.to_bytes();
    let (head, tail) = text.split_at(text.len() - 12);
    let first = LoginRequest { continues: true, ..plan.request(SECURITY, None) };
    talk.send_text(first, head);
    match talk.reply(first)? {
        Reply::Response(response, keys) => {
            require!(response.status == 0, "the first part is refused with {:04x}", response.status);
            require!(!response.transit, "T answers a request without T");
            require!(keys.is_empty(), "the text goes on, but is answered already");
        }
        Reply::Other(pdu) => fail!("expected a Login Response, came {}", pdu.shown()),
        Reply::Closed => fail!("expected a Login Response; the connection was closed"),
    }
    let last = plan.request(SECURITY, Some(OPERATIONAL));
    talk.send_text(last, tail);
    match talk.reply(last)? {
        Reply::Response(response, keys) => {
            require!(response.status == 0, "the whole is refused with {:04x}", response.status);
            let answer = keys.value("X-com.example.cut");
            require!(
                answer == Some("NotUnderstood"),
                "expected NotUnderstood for the key that was cut, came {answer:?}"
            );
            Ok(())
        }
        Reply::Other(pdu) => fail!("expected a Login Response, came {}", pdu.shown()),
        Reply::Closed => fail!("expected a Login Response; the connection was closed"),
    }
}

fn numbers(fixture: &mut Fixture) -> Outcome {
    let plan = LoginPlan::normal(fixture);
    let conn = fixture.login(&plan)?;
    let request = plan.request(SECURITY, None);
    let Some((last, before)) = conn.responses.split_last() else { fail!("no Login Response came") };
    let both = |response: &LoginResponse| response.itt == request.itt && response.isid == request.isid;
    require!(
        conn.responses.iter().all(both),
        "a Login Response has another task tag or ISID than its request"
    );
    require!(
        before.iter().all(|response| response.tsih == 0),
        "a TSIH is given before the last Login Response"
    );
    require!(last.tsih != 0, "the last Login Response carries no TSIH");
    let exp = last.sn.exp_cmd_sn.0;
    require!(exp == FIRST_CMD_SN, "the last Login Response expects CmdSN {exp:x}, expected {FIRST_CMD_SN:x}");
    require!(last.version_active == 0, "version {:02x} is active, 00 was asked for", last.version_active);
    Ok(())
}

fn portal_group(fixture: &mut Fixture) -> Outcome {
    let conn = fixture.login(&LoginPlan::normal(fixture))?;
    let tag = conn.said.number("TargetPortalGroupTag");
    require!(tag.is_some_and(|tag| tag <= 0xffff), "TargetPortalGroupTag is {tag:?}");
    Ok(())
}

fn key_twice(fixture: &mut Fixture) -> Outcome {
    let mut plan = LoginPlan::normal(fixture);
    plan.keys.push("MaxBurstLength", "65536");
    // The clause: the target MUST respond with a Login reject (initiator error).
    refused_as_initiators_fault(fixture, &plan, false)
}

/// Logs in with one key changed, and returns the target's answer to that key.
fn answer(fixture: &mut Fixture, name: &str, value: &str) -> Outcome<Option<String>> {
    let conn = fixture.login(&LoginPlan::normal(fixture).with(&[(name, value)]))?;
    Ok(conn.said.value(name).map(str::to_owned))
}

fn unknown_key(fixture: &mut Fixture) -> Outcome {
    let said = answer(fixture, "X-com.example.unknown", "1")?;
    require!(said.as_deref() == Some("NotUnderstood"), "expected NotUnderstood, came {said:?}");
    Ok(())
}

fn list_order(fixture: &mut Fixture) -> Outcome {
    for (only, list) in [("None", "None,CRC32C"), ("CRC32C", "CRC32C,None")] {
        let plan = LoginPlan::normal(fixture).with(&[("HeaderDigest", only)]);
        let LoginOutcome::In(conn) = fixture.try_login(&plan)? else { continue };
        if conn.said.value("HeaderDigest") != Some(only) {
            continue;
        }
        let said = answer(fixture, "HeaderDigest", list)?;
        require!(
            said.as_deref() == Some(only),
            "the target takes {only} alone, but of {list} it chooses {said:?}"
        );
    }
    Ok(())
}

fn list_unknown(fixture: &mut Fixture) -> Outcome {
    let said = answer(fixture, "HeaderDigest", "X-com.example.none,None,CRC32C")?;
    let known = matches!(said.as_deref(), Some("None" | "CRC32C"));
    require!(known, "expected a value of the list that is known, came {said:?}");
    Ok(())
}

/// Offers a value that no target can accept; fails unless the target answers `Reject` for the key or ends the
/// login.
fn refuses_value(fixture: &mut Fixture, name: &str, value: &str) -> Outcome {
    let plan = LoginPlan::normal(fixture).with(&[(name, value)]);
    match fixture.try_login(&plan)? {
        LoginOutcome::Refused(_) | LoginOutcome::Closed => Ok(()),
        LoginOutcome::In(conn) => {
            let said = conn.said.value(name);
            require!(said == Some("Reject"), "{name}={value} is answered {said:?}, and the login succeeds");
            Ok(())
        }
    }
}

fn minimums(fixture: &mut Fixture) -> Outcome {
    let keys = [
        ("MaxConnections", "2"),
        ("MaxBurstLength", "65536"),
        ("FirstBurstLength", "4096"),
        ("DefaultTime2Retain", "5"),
        ("MaxOutstandingR2T", "2"),
        ("ErrorRecoveryLevel", "1"),
    ];
    let conn = fixture.login(&LoginPlan::normal(fixture).with(&keys))?;
    let params = &conn.params;
    let outcomes = [
        (params.max_connections, 1, 2),
        (params.max_burst, 512, 65_536),
        (params.first_burst, 512, 4096),
        (params.time2retain, 0, 5),
        (params.max_outstanding_r2t, 1, 2),
        (params.erl, 0, 1),
    ];
    for ((name, offered), (outcome, min, max)) in keys.iter().zip(outcomes) {
        require!((min..=max).contains(&outcome), "{name}={offered} was offered and becomes {outcome}");
        require!(conn.said.value(name).is_some(), "{name}={offered} is not answered");
    }
    Ok(())
}

fn maximum(fixture: &mut Fixture) -> Outcome {
    let conn = fixture.login(&LoginPlan::normal(fixture).with(&[("DefaultTime2Wait", "7")]))?;
    let wait = conn.params.time2wait;
    require!((7..=3600).contains(&wait), "DefaultTime2Wait=7 was offered and becomes {wait}");
    Ok(())
}

fn booleans(fixture: &mut Fixture) -> Outcome {
    // Each of these values decides the result of its key, whatever the other side offers.
    for (name, value) in [
        ("InitialR2T", "Yes"),
        ("ImmediateData", "No"),
        ("DataPDUInOrder", "Yes"),
        ("DataSequenceInOrder", "Yes"),
    ] {
        let said = answer(fixture, name, value)?;
        require!(said.as_deref().is_none_or(|said| said == value), "{name}={value} becomes {said:?}");
    }
    Ok(())
}

fn hexadecimal(fixture: &mut Fixture) -> Outcome {
    let conn = fixture.login(
        &LoginPlan::normal(fixture).with(&[("MaxBurstLength", "0x8000"), ("FirstBurstLength", "0x1000")]),
    )?;
    let burst = conn.params.max_burst;
    require!((512..=0x8000).contains(&burst), "MaxBurstLength=0x8000 becomes {burst}");
    Ok(())
}

fn markers(fixture: &mut Fixture) -> Outcome {
    for (name, value, alternative) in [
        ("IFMarker", "Yes", "No"),
        ("OFMarker", "Yes", "No"),
        ("IFMarkInt", "2048~8192", "Reject"),
        ("OFMarkInt", "2048~8192", "Reject"),
    ] {
        let said = answer(fixture, name, value)?;
        let right = said.as_deref().is_some_and(|said| said == "Reject" || said == alternative);
        require!(right, "{name}={value}: expected Reject, came {said:?}");
    }
    Ok(())
}

fn irrelevant(fixture: &mut Fixture) -> Outcome {
    let plan = LoginPlan::discovery(fixture).with(&[("MaxBurstLength", "65536"), ("InitialR2T", "Yes")]);
    let mut conn = fixture.login(&plan)?;
    for name in ["MaxBurstLength", "InitialR2T"] {
        let said = conn.said.value(name);
        let right = said.is_none_or(|said| matches!(said, "Irrelevant" | "65536" | "Yes" | "Reject"));
        require!(right, "{name} in discovery is answered {said:?}");
    }
    let request = conn.text(true);
    conn.send(&request, &Keys::of(&[("SendTargets", "All")]).to_bytes());
    conn.expect::<TextResponse>(request.itt)?;
    Ok(())
}

fn reinstatement(fixture: &mut Fixture) -> Outcome {
    let plan = LoginPlan::normal(fixture);
    let mut old = fixture.login(&plan)?;
    old.warm_up()?;
    let mut new = fixture.login(&plan)?;
    require!(old.closes(old.patience)?, "the connection of the session that was replaced stays open");
    new.warm_up()
}

fn same_cid(fixture: &mut Fixture) -> Outcome {
    let mut old = fixture.start(&[])?;
    let plan = fixture.join_plan(&old, old.cid);
    let nexus = std::rc::Rc::clone(&old.nexus);
    match fixture.try_join(&plan, nexus)? {
        LoginOutcome::In(mut new) => {
            require!(old.closes(old.patience)?, "the connection that was replaced stays open");
            new.warm_up()
        }
        // §6.3.4: a second connection for this purpose is a MUST at level 2, and a SHOULD below.
        LoginOutcome::Refused(_) | LoginOutcome::Closed if old.params.erl < 2 => {
            fixture.record.remark("the target refuses, as a SHOULD allows below level 2");
            Ok(())
        }
        LoginOutcome::Refused(status) => fail!("the login is refused with status {status:04x}"),
        LoginOutcome::Closed => fail!("the connection was closed during the login"),
    }
}
