//! The test vectors of a whole handshake in docs/hyperscsi.md, computed by this code.

use alloc::boxed::Box;
use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;
use core::fmt::Write;

use zeroize::Zeroizing;

use super::{accept, context};
use crate::pdu::name::{GroupName, Name};
use crate::pdu::negotiate::{Accept, Answer, Finish, Negotiate, Negotiated, Start};
use crate::pdu::parameters::Parameters;
use security::opaque::{KE2_LEN, StretchCost};
use security::opaque::{Password, PasswordRecord, PendingClientLogin, StretchJob};
use security::random::HmacDrbg;

const PASSWORD: &str = "correct horse";
const GROUP: &str = "backup";

/// Writes a line `name = hex`, broken after 32 bytes.
fn line(out: &mut String, name: &str, bytes: &[u8]) {
    let hex = |bytes: &[u8]| bytes.iter().map(|byte| format!("{byte:02x}")).collect::<String>();
    let broken: Vec<String> = bytes.chunks(32).map(hex).collect();
    writeln!(out, "{name} =\n  {}", broken.join("\n  ")).unwrap();
}

fn vectors() -> String {
    let (handshake, group) = ([0x33; 16], GroupName::new(GROUP).unwrap());
    let password = Password::new(PASSWORD.as_bytes()).unwrap();
    let stretch = StretchCost { memory_kib: 64, passes: 3, lanes: 1 };
    let record = PasswordRecord::make(&password, GROUP, stretch, [1; 32]).unwrap();
    let mut random = HmacDrbg::new([2; 32]);
    let (attempt, ke1) = PendingClientLogin::start(&password, &mut random).unwrap();
    let (blind, private) = attempt.secret_values();
    let start = Negotiate::Start(Box::new(Start {
        handshake,
        cookie: [0x44; 40],
        group,
        target: Name::new("iqn.2026-01.org.example:disk").unwrap(),
        initiator: Name::new("iqn.2026-01.org.example:host").unwrap(),
        isid: [0x80, 0, 0, 0, 0, 1],
        sid: 0x0102_0304,
        offer: Parameters { frame_max: 9000, ..Parameters::DEFAULT },
        ke1: Some(ke1),
    }));
    let answer = |ke2| {
        let mut out = Vec::new();
        let choice = Parameters::DEFAULT;
        Negotiated::Answer(Box::new(Answer { handshake, sid: 0x0506_0708, choice, stretch, ke2 }))
            .encode(&mut out);
        out
    };
    let mut started = Vec::new();
    start.encode(&mut started);
    let context = context(&started, &answer([0; KE2_LEN])).unwrap();
    let (pending, ke2) = record.answer(GROUP, &ke1, &context, &mut random).unwrap();
    let job = StretchJob {
        attempt,
        password,
        user: GROUP.as_bytes().to_vec(),
        cost: stretch,
        ke2,
        context,
        entropy: Zeroizing::new([3; 32]),
        digest: [0; 64],
    };
    let proof = job.run().result.unwrap();
    assert_eq!(pending.finish(&proof.ke3).unwrap(), proof.secret);
    let mut finish = Vec::new();
    Negotiate::Finish(Finish { handshake, sid: 0x0506_0708, ke3: proof.ke3 }).encode(&mut finish);
    let accepted = Accept {
        handshake,
        sid: 0x0506_0708,
        choice: Parameters::DEFAULT,
        token: [0x77; 16],
        instance: [0x22; 16],
        proof: None,
    };
    let accepted = accept(&accepted, Some((&proof.secret, &context))).unwrap();

    let mut out = String::new();
    line(&mut out, "password", PASSWORD.as_bytes());
    line(&mut out, "the initiator's blind, as a scalar", &blind);
    line(&mut out, "the initiator's ephemeral private key", &private);
    line(&mut out, "START", &started);
    line(&mut out, "ANSWER", &answer(ke2));
    line(&mut out, "context", &context);
    line(&mut out, "FINISH", &finish);
    line(&mut out, "OPAQUE's session key", &*proof.secret);
    line(&mut out, "ACCEPT", &accepted);
    out
}

#[test]
fn a_handshake_is_that_of_the_specification() {
    let made = vectors();
    assert_eq!(made, include_str!("vectors.txt"), "made now:\n{made}");
    let document = include_str!("../../../../docs/hyperscsi.md");
    assert!(document.contains(&made), "docs/hyperscsi.md prints another handshake");
}
