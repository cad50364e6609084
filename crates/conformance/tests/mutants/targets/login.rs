//! Mutants in the login phase: `login-*`.

use iscsi::pdu::Opcode;

use crate::mutant::{Mutant, by, change, loss};
use crate::pdu::{EXP_CMD_SN, FINAL, ITT, Pdu, TTT};
use crate::relay::Wire;

pub(super) const MUTANTS: &[Mutant] = &[
    change("login-version", "expected status 0205, came 0200", |pdu| refuses_with(pdu, 0x0200)),
    change("login-version", "expected status 0205, came 0000", |pdu| refuses_with(pdu, 0)),
    change("login-session", "expected status 020a, came 0208", |pdu| refuses_with(pdu, 0x0208)),
    change("login-session", "the login succeeds", |pdu| {
        // The mutant makes a new session.
        if pdu.is(Opcode::LOGIN_REQUEST) {
            pdu.header[14..16].fill(0);
        }
    }),
    change("login-target", "expected status 0203, came 0202", |pdu| refuses_with(pdu, 0x0202)),
    change("login-no-initiator", "expected status 0207, came 0200", |pdu| refuses_with(pdu, 0x0200)),
    change("login-no-initiator", "the login succeeds", |pdu| {
        if begins(pdu) && pdu.value("InitiatorName").is_none() {
            pdu.append("InitiatorName", "iqn.2001-04.com.example:nobody");
        }
    }),
    change("login-no-target", "expected status 0207, came 0203", |pdu| refuses_with(pdu, 0x0203)),
    change("login-session-type", "the login succeeds", |pdu| {
        if pdu.is(Opcode::LOGIN_REQUEST) {
            pdu.replace("SessionType", "Normal");
        }
    }),
    change("login-session-type", "expected a status of class 02, came 0300", |pdu| refuses_with(pdu, 0x0300)),
    change("login-default-type", "the login is refused with status 0207", |pdu| {
        if pdu.is(Opcode::LOGIN_RESPONSE) {
            pdu.set_login_status(0x0207);
        }
    }),
    change("login-default-type", "INQUIRY: expected GOOD", |pdu| {
        // The session is one for discovery: it executes no command.
        if pdu.is(Opcode::SCSI_RESPONSE) || pdu.is(Opcode::DATA_IN) {
            let itt = pdu.word(ITT);
            let mut response = Pdu::new(pdu.conn, Opcode::SCSI_RESPONSE);
            response.header[24..36].copy_from_slice(&pdu.header[24..36]);
            response.header[1] = FINAL;
            response.set(ITT, itt);
            response.make_aborted();
            *pdu = response;
        }
    }),
    by("login-first", "a ping before the login is answered", |wire, pdu| {
        if pdu.is(Opcode::NOP_OUT) {
            let mut pong = Pdu::new(pdu.conn, Opcode::NOP_IN);
            pong.header[1] = FINAL;
            pong.set(ITT, pdu.word(ITT));
            pong.set(TTT, u32::MAX);
            return wire.say(pong);
        }
        wire.pass(pdu);
    }),
    loss("login-first", "the connection goes on although it did not begin with a login", |pdu| {
        pdu.is(Opcode::NOP_OUT)
    }),
    by("login-again", "expected Reject or the end of the connection, came", |wire, pdu| {
        if !pdu.is(Opcode::LOGIN_REQUEST) || !wire.is_in_full_feature(pdu.conn) {
            return wire.pass(pdu);
        }
        let mut response = Pdu::new(pdu.conn, Opcode::LOGIN_RESPONSE);
        response.header[1] = pdu.header[1];
        response.header[8..16].copy_from_slice(&pdu.header[8..16]);
        response.set(ITT, pdu.word(ITT));
        wire.say(response);
    }),
    by("login-again", "expected Reject or the end of the connection; nothing came", |wire, pdu| {
        if !pdu.is(Opcode::LOGIN_REQUEST) || !wire.is_in_full_feature(pdu.conn) {
            wire.pass(pdu);
        }
    }),
    by("login-stage-reserved", "these stages: expected a status of class 02, came 0000", accepts),
    by("login-stage-same", "these stages: expected a status of class 02, came 0000", accepts),
    by("login-stage-back", "these stages: expected a status of class 02, came 0000", accepts),
    by(
        "login-stage-return",
        "the stage that was left: expected a status of class 02, came 0000",
        |wire, pdu| {
            wire.count += u32::from(pdu.is(Opcode::LOGIN_REQUEST));
            if wire.count > 1 { accepts(wire, pdu) } else { wire.pass(pdu) }
        },
    ),
    by("login-t-and-c", "T and C together: expected a status of class 02, came 0000", accepts),
    change("login-c", "the first part is refused with 0200", |pdu| {
        if pdu.is(Opcode::LOGIN_RESPONSE) && pdu.data.is_empty() {
            pdu.set_login_status(0x0200);
        }
    }),
    change("login-c", "the text goes on, but is answered already", |pdu| {
        if pdu.is(Opcode::LOGIN_RESPONSE) && pdu.data.is_empty() {
            pdu.append("AuthMethod", "None");
        }
    }),
    change("login-c", "expected NotUnderstood for the key that was cut", |pdu| {
        if pdu.is(Opcode::LOGIN_RESPONSE) {
            pdu.remove("X-com.example.cut");
        }
    }),
    change("login-numbers", "has another task tag or ISID than its request", |pdu| {
        if pdu.is(Opcode::LOGIN_RESPONSE) {
            pdu.header[9] ^= 1;
        }
    }),
    change("login-numbers", "a TSIH is given before the last Login Response", |pdu| {
        if pdu.is(Opcode::LOGIN_RESPONSE) {
            pdu.header[14..16].fill(7);
        }
    }),
    change("login-numbers", "the last Login Response carries no TSIH", |pdu| {
        if pdu.is(Opcode::LOGIN_RESPONSE) {
            pdu.header[14..16].fill(0);
        }
    }),
    change("login-numbers", "the last Login Response expects CmdSN", |pdu| {
        if pdu.is(Opcode::LOGIN_RESPONSE) {
            pdu.add(EXP_CMD_SN, 1);
        }
    }),
    change("login-tpgt", "TargetPortalGroupTag is None", |pdu| {
        if pdu.is(Opcode::LOGIN_RESPONSE) {
            pdu.remove("TargetPortalGroupTag");
        }
    }),
    change("login-key-twice", "expected a status of class 02, came 0300", |pdu| refuses_with(pdu, 0x0300)),
    change("login-key-twice", "the login succeeds", |pdu| {
        // The mutant takes the first value.
        let mut text = pdu.text();
        if pdu.is(Opcode::LOGIN_REQUEST)
            && text.iter().filter(|(name, _)| name == "MaxBurstLength").count() > 1
        {
            text.pop();
            pdu.set_text(&text);
        }
    }),
    change("login-unknown-key", "expected NotUnderstood, came", |pdu| {
        says(pdu, "X-com.example.unknown", "1")
    }),
    change("login-list-order", "but of CRC32C,None it chooses Some(\"None\")", |pdu| {
        if pdu.value("HeaderDigest").as_deref() == Some("CRC32C,None") {
            pdu.replace("HeaderDigest", "None");
        }
    }),
    change("login-list-unknown", "expected a value of the list that is known", |pdu| {
        says(pdu, "HeaderDigest", "X-com.example.none");
    }),
    change("login-list-none", "and the login succeeds", |pdu| takes(pdu, "HeaderDigest", "None")),
    change("login-range", "MaxBurstLength=511 is answered Some(\"512\")", |pdu| {
        takes(pdu, "MaxBurstLength", "512");
        takes(pdu, "FirstBurstLength", "512");
    }),
    change("login-boolean", "ImmediateData=Perhaps is answered Some(\"No\")", |pdu| {
        takes(pdu, "ImmediateData", "No");
    }),
    change("login-min", "MaxBurstLength=65536 was offered and becomes 262144", |pdu| {
        says(pdu, "MaxBurstLength", "262144");
    }),
    change("login-min", "ErrorRecoveryLevel=1 was offered and becomes 2", |pdu| {
        says(pdu, "ErrorRecoveryLevel", "2");
    }),
    change("login-min", "MaxOutstandingR2T=2 is not answered", |pdu| {
        if pdu.is(Opcode::LOGIN_RESPONSE) {
            pdu.remove("MaxOutstandingR2T");
        }
    }),
    change("login-max", "DefaultTime2Wait=7 was offered and becomes 2", |pdu| {
        says(pdu, "DefaultTime2Wait", "2");
    }),
    change("login-or", "InitialR2T=Yes becomes", |pdu| says(pdu, "InitialR2T", "No")),
    change("login-or", "ImmediateData=No becomes", |pdu| says(pdu, "ImmediateData", "Yes")),
    change("login-or", "DataPDUInOrder=Yes becomes", |pdu| says(pdu, "DataPDUInOrder", "No")),
    change("login-or", "DataSequenceInOrder=Yes becomes", |pdu| says(pdu, "DataSequenceInOrder", "No")),
    change("login-hex", "MaxBurstLength=0x8000 becomes 65536", |pdu| says(pdu, "MaxBurstLength", "65536")),
    change("login-markers", "IFMarker=Yes: expected Reject, came", |pdu| {
        says(pdu, "IFMarker", "NotUnderstood")
    }),
    change("login-markers", "OFMarkInt=2048~8192: expected Reject, came", |pdu| {
        says(pdu, "OFMarkInt", "2048");
    }),
    change("login-irrelevant", "MaxBurstLength in discovery is answered", |pdu| {
        if pdu.is(Opcode::LOGIN_RESPONSE) {
            pdu.remove("MaxBurstLength");
            pdu.append("MaxBurstLength", "NotUnderstood");
        }
    }),
    loss("login-irrelevant", "expected TEXT_RESPONSE for task", |pdu| pdu.is(Opcode::TEXT_REQUEST)),
    by("login-reinstatement", "the connection of the session that was replaced stays open", |wire, pdu| {
        wire.keep_open(1);
        wire.pass(pdu);
    }),
    by("login-same-cid", "the connection that was replaced stays open", |wire, pdu| {
        wire.keep_open(1);
        wire.pass(pdu);
    }),
];

/// Refuses logins that are refused with this status; status 0 accepts them.
pub(super) fn refuses_with(pdu: &mut Pdu, status: u16) {
    if pdu.is(Opcode::LOGIN_RESPONSE) && pdu.login_status() != 0 {
        pdu.set_login_status(status);
    }
}

/// Answers every login request with success.
fn accepts(wire: &mut Wire, pdu: Pdu) {
    if !pdu.is(Opcode::LOGIN_REQUEST) {
        return wire.pass(pdu);
    }
    let mut response = Pdu::new(pdu.conn, Opcode::LOGIN_RESPONSE);
    response.header[1] = FINAL | 1;
    response.header[8..16].copy_from_slice(&pdu.header[8..16]);
    response.set(ITT, pdu.word(ITT));
    wire.say(response);
}

/// Returns whether a PDU is the first request of a login.
fn begins(pdu: &Pdu) -> bool {
    pdu.is(Opcode::LOGIN_REQUEST) && pdu.value("SessionType").is_some()
}

/// Changes the answer to a key of the login.
pub(super) fn says(pdu: &mut Pdu, name: &str, value: &str) {
    if pdu.is(Opcode::LOGIN_RESPONSE) {
        pdu.replace(name, value);
    }
}

/// Takes another value of a key for the one that was offered.
fn takes(pdu: &mut Pdu, name: &str, value: &str) {
    if pdu.is(Opcode::LOGIN_REQUEST) {
        pdu.replace(name, value);
    }
}
