//! Mutants in text negotiations: `ffp-t-17.*`.

use iscsi::pdu::Opcode;

use crate::mutant::{Mutant, by, change, loss};
use crate::pdu::{FINAL, ITT, Pdu, READ, TTT};
use crate::relay::Wire;

const SEGMENT: &str = "MaxRecvDataSegmentLength";

pub(super) const MUTANTS: &[Mutant] = &[
    change("ffp-t-17.1.1", "the conversation is open, but has no transfer tag", loses_the_tag),
    change("ffp-t-17.1.1", "longer than the 8192 bytes that we take", |pdu| {
        if pdu.is(Opcode::TEXT_RESPONSE) {
            pdu.data = vec![b'x'; 8196];
        }
    }),
    change("ffp-t-17.1.2", "F answers a request without F", ends_early),
    change("ffp-t-17.1.2", "we take 1024 since the negotiation", takes_it_for_4096),
    change("ffp-t-17.1.2", "F with a transfer tag", |pdu| {
        if pdu.is(Opcode::TEXT_RESPONSE) && pdu.flags() & FINAL != 0 {
            pdu.set(TTT, 7);
        }
    }),
    change("ffp-t-17.2.1", "F answers a request without F", ends_early),
    change("ffp-t-17.2.2", "F answers a request without F", ends_early),
    change("ffp-t-17.3.1", "is not among the targets", |pdu| names(pdu, &["iqn.2001-04.com.example:other"])),
    change("ffp-t-17.3.1", "a target is named iSCSI", |pdu| {
        if pdu.is(Opcode::TEXT_RESPONSE) {
            pdu.append("TargetName", "iSCSI");
        }
    }),
    change("ffp-t-17.3.2", "2 targets are named", |pdu| {
        names(pdu, &["iqn.2001-04.com.example:one", "iqn.2001-04.com.example:two"]);
    }),
    by("ffp-t-17.3.3", "SendTargets=All must not be supported here", |wire, mut pdu| {
        if pdu.is(Opcode::REJECT) {
            pdu.header[0] = Opcode::TEXT_RESPONSE.0;
        }
        names(&mut pdu, &["iqn.2001-04.com.example:other"]);
        wire.pass(pdu);
    }),
    change("ffp-t-17.3.4", "expected TargetName=", |pdu| names(pdu, &["iqn.2001-04.com.example:other"])),
    change("ffp-t-17.3.5", "other targets are shown too", |pdu| {
        if pdu.is(Opcode::TEXT_RESPONSE) {
            pdu.append("TargetName", "iqn.2001-04.com.example:other");
        }
    }),
    change("ffp-t-17.3.5", "no address is shown", |pdu| {
        while pdu.is(Opcode::TEXT_RESPONSE) && pdu.value("TargetAddress").is_some() {
            pdu.remove("TargetAddress");
        }
    }),
    by("ffp-t-17.4.1", "expected MaxBurstLength=Irrelevant, came", |wire, mut pdu| {
        if pdu.is(Opcode::TEXT_REQUEST) {
            wire.kept.push(pdu.clone());
        }
        if pdu.is(Opcode::REJECT) || pdu.is(Opcode::TEXT_RESPONSE) {
            pdu.header[0] = Opcode::TEXT_RESPONSE.0;
            pdu.header[2] = 0;
            pdu.set(ITT, wire.kept[0].word(ITT));
            pdu.set(TTT, u32::MAX);
            pdu.data.clear();
            pdu.append("MaxBurstLength", "65536");
        }
        wire.pass(pdu);
    }),
    by("ffp-t-17.4.2", "expected response 02", |wire, mut pdu| {
        if pdu.is(Opcode::REJECT) {
            pdu.header[0] = Opcode::LOGOUT_RESPONSE.0;
            pdu.data.clear();
        }
        if pdu.is(Opcode::LOGOUT_RESPONSE) {
            pdu.header[2] = 0;
        }
        wire.pass(pdu);
    }),
    change("ffp-t-17.5", "the Reject does not carry the header", |pdu| {
        if pdu.is(Opcode::REJECT) {
            pdu.data[16] ^= 1;
        }
    }),
    change("ffp-t-17.6", "expected reason 04", |pdu| {
        if pdu.is(Opcode::REJECT) {
            pdu.header[2] = 9;
        }
    }),
    change("ffp-t-17.6", "expected Reject, came", |pdu| {
        if pdu.is(Opcode::REJECT) {
            pdu.header[0] = Opcode::TEXT_RESPONSE.0;
        }
    }),
    change("ffp-t-17.6", "we take 512 since the negotiation", takes_it_for_4096),
    change("ffp-t-17.7.1", "we take 512 since the negotiation", |pdu| {
        if pdu.is(Opcode::TEXT_REQUEST) && pdu.value(SEGMENT).as_deref() == Some("512") {
            pdu.replace(SEGMENT, "4096");
        }
    }),
    change("ffp-t-17.7.2", "a value of an unfinished negotiation is used", takes_512_at_login),
    by("ffp-t-17.7.3", "the value 511, which is out of range, is used", |wire, pdu| {
        let is_refused = pdu.is(Opcode::TEXT_REQUEST) && pdu.value(SEGMENT).as_deref() == Some("511");
        wire.count += u32::from(is_refused);
        if wire.count > 0 { split_small(wire, pdu) } else { wire.pass(pdu) }
    }),
    loss("ffp-t-17.7.3", "a text with a value out of range is not answered", |pdu| {
        pdu.is(Opcode::REJECT) || pdu.is(Opcode::TEXT_RESPONSE)
    }),
    change("ffp-t-17.8.1", "expected X-com.example.first=NotUnderstood", |pdu| {
        if pdu.is(Opcode::TEXT_RESPONSE) {
            pdu.remove("X-com.example.first");
        }
    }),
    change("ffp-t-17.8.1", "the text goes on, but is answered already", |pdu| {
        if pdu.is(Opcode::TEXT_RESPONSE) && pdu.data.is_empty() {
            pdu.append("X-com.example.first", "NotUnderstood");
        }
    }),
    change("ffp-t-17.8.2", "C and F together were taken for a whole text", |pdu| {
        if pdu.is(Opcode::TEXT_REQUEST) {
            pdu.header[1] &= !0x40;
        }
    }),
    change("ffp-t-17.8.2", "a value of a PDU with C and F is used", takes_512_at_login),
    change("ffp-t-17.8.3", "we take 512 since the negotiation", |pdu| {
        if pdu.is(Opcode::TEXT_REQUEST) && pdu.data == b"Length=512\0" {
            pdu.data = b"Length=768\0".to_vec();
        }
    }),
];

/// Answers with F although more may come.
fn ends_early(pdu: &mut Pdu) {
    if pdu.is(Opcode::TEXT_RESPONSE) {
        pdu.header[1] |= FINAL;
    }
}

/// Leaves the transfer tag out while the negotiation is open.
fn loses_the_tag(pdu: &mut Pdu) {
    if pdu.is(Opcode::TEXT_RESPONSE) && pdu.flags() & FINAL == 0 {
        pdu.set(TTT, u32::MAX);
    }
}

/// Takes another length for agreed.
fn takes_it_for_4096(pdu: &mut Pdu) {
    if pdu.is(Opcode::TEXT_REQUEST) {
        pdu.replace(SEGMENT, "4096");
    }
}

/// Sends segments of 512 bytes, whatever is declared.
fn takes_512_at_login(pdu: &mut Pdu) {
    if pdu.is(Opcode::LOGIN_REQUEST) {
        pdu.replace(SEGMENT, "512");
    }
}

/// Answers a text with these names of targets.
fn names(pdu: &mut Pdu, names: &[&str]) {
    if pdu.is(Opcode::TEXT_RESPONSE) {
        pdu.data.clear();
        for name in names {
            pdu.append("TargetName", name);
        }
    }
}

/// Sends Data-In in segments of 508 bytes.
fn split_small(wire: &mut Wire, mut pdu: Pdu) {
    while pdu.of(Opcode::DATA_IN, READ) && pdu.data.len() > 508 {
        let mut head = pdu.clone();
        head.data.truncate(508);
        head.header[1] = 0;
        wire.pass(head);
        pdu.data.drain(..508);
        pdu.add(crate::pdu::OFFSET, 508);
    }
    wire.pass(pdu);
}
