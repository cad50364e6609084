//! Mutants in authentication: `chap-*`.

use iscsi::pdu::Opcode;

use crate::mutant::{Mutant, by, change};
use crate::pdu::{FINAL, Pdu};
use crate::relay::Wire;

use super::login::{refuses_with, says};

pub(super) const MUTANTS: &[Mutant] = &[
    change("chap-login", "the login is refused with status 0201", refuses_proofs),
    change("chap-algorithms", "the right response is refused with", refuses_proofs),
    change("chap-algorithms", "no algorithm is accepted; MD5 is mandatory", |pdu| {
        if pdu.is(Opcode::LOGIN_RESPONSE) && pdu.value("CHAP_A").is_some() {
            pdu.data.clear();
            pdu.append("CHAP_A", "Reject");
        }
    }),
    change("chap-order", "the target chooses Some(\"7\")", |pdu| says(pdu, "CHAP_A", "7")),
    change("chap-order", "a list with an unknown algorithm in front is refused", |pdu| {
        if pdu.is(Opcode::LOGIN_RESPONSE) && pdu.value("CHAP_A").is_some() {
            pdu.set_login_status(0x0200);
        }
    }),
    change("chap-unknown-algorithm", "CHAP_A=99 is answered with a challenge", |pdu| {
        // The mutant takes what it does not know for MD5.
        if pdu.is(Opcode::LOGIN_REQUEST) {
            pdu.replace("CHAP_A", "5");
        }
    }),
    change("chap-secret", "a wrong secret: the login goes on", accepts_proofs),
    change("chap-secret", "a wrong secret: expected status 0201, came 0200", |pdu| refuses_with(pdu, 0x0200)),
    change("chap-secret", "the right response is refused with", refuses_proofs),
    change("chap-user", "an unknown user: the login goes on", accepts_proofs),
    change("chap-user", "an unknown user: expected status 0201, came 0203", |pdu| refuses_with(pdu, 0x0203)),
    change("chap-user", "the right response is refused with", refuses_proofs),
    change("chap-none", "expected status 0201, came 0200", |pdu| refuses_with(pdu, 0x0200)),
    change("chap-skip", "the target agrees to stage 3 without a proof", |pdu| {
        refuses_with(pdu, 0);
        goes_on(pdu, 3);
    }),
    change("chap-leave", "the target agrees to stage 1 without a proof", |pdu| goes_on(pdu, 1)),
    change("chap-base64", "the right response in base64 is refused with", refuses_proofs),
    change("chap-length", "a response of 1 bytes is taken for right", accepts_proofs),
    change("chap-length", "a response of 17 bytes is taken for right", |pdu| {
        // The mutant compares as many bytes as it expects: two digits each, after 0x.
        if let Some(response) = pdu.value("CHAP_R").filter(|_| pdu.is(Opcode::LOGIN_REQUEST))
            && response.len() > 34
        {
            pdu.replace("CHAP_R", &response[..34]);
        }
    }),
    change("chap-length", "the right response is refused with", refuses_proofs),
    by("chap-fresh", "a challenge comes twice", |wire, mut pdu| {
        if let Some(challenge) = pdu.value("CHAP_C").filter(|_| pdu.is(Opcode::LOGIN_RESPONSE)) {
            match wire.kept.first() {
                Some(first) => {
                    let first = first.value("CHAP_C").unwrap();
                    pdu.replace("CHAP_C", &first);
                }
                None => wire.kept.push(pdu.clone()),
            }
            assert!(challenge.len() > 2, "a challenge has bytes");
        }
        wire.pass(pdu);
    }),
    change("chap-identifier", "a challenge of 4 bytes is shorter than the response", |pdu| {
        says(pdu, "CHAP_C", "0x01020304");
    }),
    change("chap-identifier", "CHAP_I or CHAP_C is missing or malformed", |pdu| says(pdu, "CHAP_I", "256")),
    change("chap-mutual", "the target does not prove that it knows the mutual secret", |pdu| {
        says(pdu, "CHAP_R", "0x0102030405060708090a0b0c0d0e0f10");
    }),
    by("chap-reflection", "the target answers the challenge that it had set", answers_its_own_challenge),
];

/// Refuses every proof of an initiator.
fn refuses_proofs(pdu: &mut Pdu) {
    let proves = pdu.value("CHAP_R").is_some() || pdu.flags() & FINAL != 0;
    if pdu.is(Opcode::LOGIN_RESPONSE) && proves {
        pdu.set_login_status(0x0201);
    }
}

/// Takes every proof of an initiator for right.
fn accepts_proofs(pdu: &mut Pdu) {
    let is_refused = pdu.is(Opcode::LOGIN_RESPONSE) && pdu.login_status() != 0;
    if is_refused {
        pdu.set_login_status(0);
        goes_on(pdu, 1);
    }
}

/// Agrees to a stage.
fn goes_on(pdu: &mut Pdu, stage: u8) {
    if pdu.is(Opcode::LOGIN_RESPONSE) {
        pdu.header[1] = FINAL | stage;
    }
}

/// Answers a challenge that it had set with the response that it got for it.
fn answers_its_own_challenge(wire: &mut Wire, mut pdu: Pdu) {
    if pdu.is(Opcode::LOGIN_REQUEST) && pdu.value("CHAP_R").is_some() {
        wire.kept.push(pdu.clone());
    }
    if let Some(claim) = wire.kept.first().filter(|_| pdu.is(Opcode::LOGIN_RESPONSE)) {
        let response = claim.value("CHAP_R").unwrap();
        pdu.set_login_status(0);
        goes_on(&mut pdu, 1);
        pdu.append("CHAP_N", "the-target");
        pdu.append("CHAP_R", &response);
    }
    wire.pass(pdu);
}
