//! CHAP (RFC 7143 §12.1, §9.2; RFC 1994): cases written from their MUSTs.

use iscsi::chap::{Algorithm, Credentials, Response, Secret};
use iscsi::text::value::{to_base64, to_hex};

use crate::entropy::{fresh, pattern};
use crate::suite::case;
use crate::text::Keys;
use crate::verdict::Outcome;

use super::Test;
use super::fixture::Fixture;
use super::login::{ChapChallenge, LoginExchange, LoginOutcome, LoginPlan, OPERATIONAL, Reply, SECURITY};

const CHAP: &str = "RFC 7143 §12.1.3";

pub(super) const CASES: &[Test] = &[
    case("chap-login", CHAP, "who knows the secret gets in", knows_the_secret),
    case("chap-algorithms", CHAP, "each algorithm works or is refused", algorithms),
    case("chap-order", CHAP, "the first algorithm that the target knows is chosen", algorithm_order),
    case("chap-unknown-algorithm", CHAP, "an unknown algorithm is refused", unknown_algorithm),
    case("chap-secret", STATUS, "a wrong secret is refused with 0201", wrong_secret),
    case("chap-user", STATUS, "an unknown user is refused with 0201", wrong_user),
    case("chap-none", STATUS, "a login that offers no authentication is refused", no_authentication),
    case("chap-skip", "RFC 7143 §6.3", "the security stage cannot be skipped", skip_security),
    case("chap-leave", "RFC 7143 §6.3", "the security stage cannot be left before the proof", leave_early),
    case("chap-base64", "RFC 7143 §6.1", "a response may be in base64", base64_response),
    case("chap-length", CHAP, "a response of the wrong length is refused", wrong_length),
    case("chap-fresh", "RFC 7143 §9.2.1", "no challenge comes twice", challenges_differ),
    case(
        "chap-identifier",
        "RFC 1994 §4.1",
        "identifier and challenge are well-formed",
        challenge_is_well_formed,
    ),
    case("chap-mutual", CHAP, "the target proves who it is", mutual),
    case("chap-reflection", "RFC 7143 §9.2.1", "the target does not answer its own challenge", reflection),
];

const STATUS: &str = "RFC 7143 §11.13.5, §12.1.3";

fn user(fixture: &Fixture) -> Outcome<Credentials> {
    match &fixture.auth.user {
        Some(user) => Ok(user.clone()),
        None => Err(crate::verdict::Stop::Skip("no --user was given".to_owned())),
    }
}

fn knows_the_secret(fixture: &mut Fixture) -> Outcome {
    user(fixture)?;
    fixture.start(&[])?;
    Ok(())
}

/// Asks for CHAP with these algorithms. Returns the login and the target's reply.
fn begin(fixture: &mut Fixture, plan: &LoginPlan, algorithms: &str) -> Outcome<(LoginExchange, Reply)> {
    let mut talk = LoginExchange::open(fixture, 0)?;
    let mut keys = plan.names.clone();
    keys.push("AuthMethod", "CHAP");
    let request = plan.request(SECURITY, None);
    talk.send(request, &keys);
    match talk.reply(request)? {
        Reply::Response(response, keys) if response.status == 0 => {
            let method = keys.value("AuthMethod");
            need!(method == Some("CHAP"), "the target answers AuthMethod={method:?}: it wants no CHAP");
        }
        _ => fail!("AuthMethod=CHAP is refused"),
    }
    talk.send(request, &Keys::of(&[("CHAP_A", algorithms)]));
    let reply = talk.reply(request)?;
    Ok((talk, reply))
}

/// Like [`begin`], but also parses the challenge.
fn challenged(
    fixture: &mut Fixture,
    plan: &LoginPlan,
    algorithms: &str,
) -> Outcome<(LoginExchange, ChapChallenge)> {
    match begin(fixture, plan, algorithms)? {
        (talk, Reply::Response(response, keys)) if response.status == 0 => {
            Ok((talk, ChapChallenge::read(&keys)?))
        }
        (_, Reply::Response(response, _)) => {
            fail!("CHAP_A={algorithms} is refused with {:04x}", response.status)
        }
        (_, Reply::Other(pdu)) => fail!("expected a Login Response, came {}", pdu.shown()),
        (_, Reply::Closed) => fail!("expected a challenge; the connection was closed"),
    }
}

/// Sends a CHAP response and returns the target's keys, or the status of its refusal: `None` if it closed the
/// connection.
fn prove(talk: &mut LoginExchange, plan: &LoginPlan, keys: &Keys) -> Outcome<Result<Keys, Option<u16>>> {
    let request = plan.request(SECURITY, Some(OPERATIONAL));
    talk.send(request, keys);
    Ok(match talk.reply(request)? {
        Reply::Response(response, keys) if response.status == 0 => Ok(keys),
        Reply::Response(response, _) => Err(Some(response.status)),
        Reply::Closed => Err(None),
        Reply::Other(pdu) => fail!("expected a Login Response, came {}", pdu.shown()),
    })
}

fn refused(ending: Result<Keys, Option<u16>>, what: &str) -> Outcome {
    match ending {
        Err(Some(0x0201)) => Ok(()),
        Err(Some(status)) => fail!("{what}: expected status 0201, came {status:04x}"),
        Err(None) => fail!("{what}: expected status 0201; the connection was closed"),
        Ok(_) => fail!("{what}: the login goes on"),
    }
}

fn proof(user: &Credentials, to: &ChapChallenge) -> Response {
    Response::compute(to.algorithm, to.id, &user.secret, &to.bytes)
}

/// Returns the keys of a CHAP response. With mutual CHAP they include a challenge of our own, as such a
/// target refuses a login without one.
fn claim(fixture: &Fixture, name: &str, response: &str, algorithm: Algorithm) -> Keys {
    let mut keys = Keys::of(&[("CHAP_N", name), ("CHAP_R", response)]);
    if fixture.auth.mutual.is_some() {
        keys.push("CHAP_I", "17");
        keys.push("CHAP_C", &to_hex(&pattern(fresh(), algorithm.response_len())));
    }
    keys
}

fn algorithms(fixture: &mut Fixture) -> Outcome {
    let user = user(fixture)?;
    let mut known = 0;
    for algorithm in Algorithm::ALL {
        let plan = LoginPlan::normal(fixture);
        let number = algorithm.number().to_string();
        let (mut talk, keys) = match begin(fixture, &plan, &number)? {
            (talk, Reply::Response(response, keys))
                if response.status == 0 && keys.value("CHAP_A") == Some(&number) =>
            {
                (talk, keys)
            }
            _ => continue,
        };
        known += 1;
        let challenge = ChapChallenge::read(&keys)?;
        let keys = claim(fixture, &user.name, &to_hex(proof(&user, &challenge).as_bytes()), algorithm);
        if let Err(status) = prove(&mut talk, &plan, &keys)? {
            fail!("with algorithm {number} the right response is refused with {status:04x?}");
        }
    }
    require!(known > 0, "no algorithm is accepted; MD5 is mandatory");
    fixture.record.remark(format!("{known} of {} algorithms are accepted", Algorithm::ALL.len()));
    Ok(())
}

fn algorithm_order(fixture: &mut Fixture) -> Outcome {
    user(fixture)?;
    let plan = LoginPlan::normal(fixture);
    let (_, keys) = match begin(fixture, &plan, "99,5,8,7,6")? {
        (talk, Reply::Response(response, keys)) if response.status == 0 => (talk, keys),
        _ => fail!("a list with an unknown algorithm in front is refused"),
    };
    let chosen = keys.value("CHAP_A");
    require!(chosen == Some("5"), "of 99,5,8,7,6 the target chooses {chosen:?}; MD5 is mandatory");
    Ok(())
}

fn unknown_algorithm(fixture: &mut Fixture) -> Outcome {
    user(fixture)?;
    let plan = LoginPlan::normal(fixture);
    match begin(fixture, &plan, "99")?.1 {
        Reply::Response(response, _) if response.status != 0 => Ok(()),
        Reply::Response(_, keys) => {
            require!(keys.value("CHAP_C").is_none(), "CHAP_A=99 is answered with a challenge");
            Ok(())
        }
        Reply::Closed | Reply::Other(_) => Ok(()),
    }
}

/// Fails unless the right response is accepted, so that a claim that differs in one thing is refused for that
/// thing.
fn right_claim_is_accepted(fixture: &mut Fixture, user: &Credentials) -> Outcome {
    let plan = LoginPlan::normal(fixture);
    let (mut talk, challenge) = challenged(fixture, &plan, "5")?;
    let response = to_hex(proof(user, &challenge).as_bytes());
    let keys = claim(fixture, &user.name, &response, challenge.algorithm);
    match prove(&mut talk, &plan, &keys)? {
        Ok(_) => Ok(()),
        Err(status) => fail!("the right response is refused with {status:04x?}"),
    }
}

fn wrong_secret(fixture: &mut Fixture) -> Outcome {
    let user = user(fixture)?;
    let Ok(secret) = Secret::new(b"certainly-not-the-secret") else { fail!("the case has no secret") };
    let wrong = Credentials { name: user.name.clone(), secret };
    right_claim_is_accepted(fixture, &user)?;
    let plan = LoginPlan::normal(fixture);
    let (mut talk, challenge) = challenged(fixture, &plan, "5")?;
    let response = to_hex(proof(&wrong, &challenge).as_bytes());
    let keys = claim(fixture, &wrong.name, &response, challenge.algorithm);
    refused(prove(&mut talk, &plan, &keys)?, "a wrong secret")
}

fn wrong_user(fixture: &mut Fixture) -> Outcome {
    let user = user(fixture)?;
    right_claim_is_accepted(fixture, &user)?;
    let plan = LoginPlan::normal(fixture);
    let (mut talk, challenge) = challenged(fixture, &plan, "5")?;
    let response = to_hex(proof(&user, &challenge).as_bytes());
    let keys = claim(fixture, "there-is-no-such-user", &response, challenge.algorithm);
    refused(prove(&mut talk, &plan, &keys)?, "an unknown user")
}

fn no_authentication(fixture: &mut Fixture) -> Outcome {
    user(fixture)?;
    fixture.auth.user = None;
    match fixture.try_login(&LoginPlan::normal(fixture))? {
        LoginOutcome::Refused(status) => {
            require!(status == 0x0201, "expected status 0201, came {status:04x}");
            Ok(())
        }
        LoginOutcome::Closed => Ok(()),
        LoginOutcome::In(_) => fail!("the login succeeds without authentication"),
    }
}

/// Sends a request with which the login must not leave the security stage.
fn must_not_pass(fixture: &mut Fixture, plan: &LoginPlan, csg: u8, nsg: u8, keys: &Keys) -> Outcome {
    let mut talk = LoginExchange::open(fixture, 0)?;
    let request = plan.request(csg, Some(nsg));
    talk.send(request, keys);
    match talk.reply(request)? {
        Reply::Response(response, _) if response.status == 0 => {
            require!(!response.transit, "the target agrees to stage {} without a proof", response.nsg);
            Ok(())
        }
        Reply::Response(..) | Reply::Closed | Reply::Other(_) => Ok(()),
    }
}

fn skip_security(fixture: &mut Fixture) -> Outcome {
    user(fixture)?;
    let plan = LoginPlan::normal(fixture);
    let mut keys = plan.names.clone();
    keys.append(plan.keys.clone());
    must_not_pass(fixture, &plan, OPERATIONAL, 3, &keys)
}

fn leave_early(fixture: &mut Fixture) -> Outcome {
    user(fixture)?;
    let plan = LoginPlan::normal(fixture);
    let mut keys = plan.names.clone();
    keys.push("AuthMethod", "CHAP");
    must_not_pass(fixture, &plan, SECURITY, OPERATIONAL, &keys)
}

fn base64_response(fixture: &mut Fixture) -> Outcome {
    let user = user(fixture)?;
    let plan = LoginPlan::normal(fixture);
    let (mut talk, challenge) = challenged(fixture, &plan, "5")?;
    let response = to_base64(proof(&user, &challenge).as_bytes());
    let keys = claim(fixture, &user.name, &response, challenge.algorithm);
    match prove(&mut talk, &plan, &keys)? {
        Ok(_) => Ok(()),
        Err(status) => fail!("the right response in base64 is refused with {status:04x?}"),
    }
}

fn wrong_length(fixture: &mut Fixture) -> Outcome {
    let user = user(fixture)?;
    right_claim_is_accepted(fixture, &user)?;
    for len in [1, 15, 17, 64, 1024] {
        let plan = LoginPlan::normal(fixture);
        let (mut talk, challenge) = challenged(fixture, &plan, "5")?;
        let mut bytes = proof(&user, &challenge).as_bytes().to_vec();
        bytes.resize(len, 0);
        let keys = claim(fixture, &user.name, &to_hex(&bytes), challenge.algorithm);
        if prove(&mut talk, &plan, &keys)?.is_ok() {
            fail!("a response of {len} bytes is taken for right");
        }
    }
    Ok(())
}

fn challenges_differ(fixture: &mut Fixture) -> Outcome {
    user(fixture)?;
    let mut seen = Vec::new();
    for _ in 0..8 {
        let plan = LoginPlan::normal(fixture);
        let (_, challenge) = challenged(fixture, &plan, "5")?;
        require!(
            !seen.contains(&challenge.bytes),
            "a challenge comes twice within {} logins",
            seen.len() + 1
        );
        seen.push(challenge.bytes);
    }
    Ok(())
}

fn challenge_is_well_formed(fixture: &mut Fixture) -> Outcome {
    user(fixture)?;
    let plan = LoginPlan::normal(fixture);
    let (_, challenge) = challenged(fixture, &plan, "5")?;
    require!(
        challenge.bytes.len() >= 16,
        "a challenge of {} bytes is shorter than the response",
        challenge.bytes.len()
    );
    Ok(())
}

fn mutual(fixture: &mut Fixture) -> Outcome {
    user(fixture)?;
    need!(fixture.auth.mutual.is_some(), "no --mutual-user was given");
    fixture.start(&[])?;
    Ok(())
}

fn reflection(fixture: &mut Fixture) -> Outcome {
    let user = user(fixture)?;
    need!(fixture.auth.mutual.is_some(), "no --mutual-user was given");
    let plan = LoginPlan::normal(fixture);
    let (mut talk, challenge) = challenged(fixture, &plan, "5")?;
    let keys = Keys::of(&[
        ("CHAP_N", &user.name),
        ("CHAP_R", &to_hex(proof(&user, &challenge).as_bytes())),
        ("CHAP_I", &challenge.id.to_string()),
        ("CHAP_C", &to_hex(&challenge.bytes)),
    ]);
    match prove(&mut talk, &plan, &keys)? {
        Ok(keys) => {
            require!(keys.value("CHAP_R").is_none(), "the target answers the challenge that it had set");
            Ok(())
        }
        Err(_) => Ok(()),
    }
}
