//! Mutants in recovery: `ffp-t-12.*`, `erl1-*`, `erl2-*`.

use iscsi::pdu::Opcode;

use crate::mutant::{Mutant, by, change, lawful, loss};
use crate::pdu::{
    DATA_SN, EXP_STAT_SN, FINAL, ITT, OFFSET, Pdu, READ, RESIDUAL, STAT_SN, STATUS, TTT, WRITE,
};
use crate::relay::Wire;

use super::data::spoils_reads;
use super::management::{logs_out, loses_a_part, spoils_the_reassigned};

pub(super) const MUTANTS: &[Mutant] = &[
    by("ffp-t-12.1", "byte 23 differs", |wire, mut pdu| {
        if comes_again(wire, &pdu) && pdu.is(Opcode::R2T) {
            pdu.add(TTT, 1);
        }
        wire.pass(pdu);
    }),
    loss("ffp-t-12.1", "expected R2T for task", |pdu| pdu.is(Opcode::SNACK)),
    by("ffp-t-12.2", "the data differs", spoils_what_comes_again),
    by("ffp-t-12.2", "byte 1 differs", |wire, mut pdu| {
        if comes_again(wire, &pdu) && pdu.of(Opcode::DATA_IN, READ) {
            pdu.header[1] ^= FINAL;
        }
        wire.pass(pdu);
    }),
    loss("ffp-t-12.2", "a Data-In that was asked for again", |pdu| pdu.is(Opcode::SNACK)),
    by("ffp-t-12.3", "the data differs", spoils_what_comes_again),
    change("ffp-t-12.3", "a Data-In that was asked for again", |pdu| {
        // Only the first PDU comes again.
        if pdu.is(Opcode::SNACK) {
            pdu.set(RESIDUAL, 1);
        }
    }),
    change("ffp-t-12.4", "expected reason 04", |pdu| rejects(pdu, 9)),
    change("ffp-t-12.4", "expected the next R2TSN, 1", |pdu| {
        if pdu.is(Opcode::REJECT) {
            pdu.add(DATA_SN, 1);
        }
    }),
    loss("ffp-t-12.4", "a Reject of the SNACK; nothing came", |pdu| pdu.is(Opcode::REJECT)),
    by("erl1-status", "StatSN differs", |wire, mut pdu| {
        if comes_again(wire, &pdu) {
            pdu.add(STAT_SN, 1);
        }
        wire.pass(pdu);
    }),
    by("erl1-status", "byte 3 differs", |wire, mut pdu| {
        if comes_again(wire, &pdu) {
            pdu.header[3] = 8;
        }
        wire.pass(pdu);
    }),
    change("erl1-status-run", "a status again; nothing came", |pdu| {
        if pdu.is(Opcode::SNACK) {
            pdu.set(RESIDUAL, 1);
        }
    }),
    by("erl1-status-data-in", "the status differs", |wire, mut pdu| {
        if comes_again(wire, &pdu) {
            pdu.header[3] = 8;
        }
        wire.pass(pdu);
    }),
    by("erl1-status-data-in", "StatSN differs", |wire, mut pdu| {
        if comes_again(wire, &pdu) {
            pdu.add(STAT_SN, 1);
        }
        wire.pass(pdu);
    }),
    change("erl1-acknowledged", "expected reason 04", |pdu| rejects(pdu, 9)),
    loss("erl1-acknowledged", "a Reject of the SNACK; nothing came", |pdu| pdu.is(Opcode::REJECT)),
    change("erl1-data-ack", "the READ returns other data", |pdu| {
        if pdu.of(Opcode::DATA_IN, READ) && pdu.flags() & 0x40 != 0 {
            pdu.spoil();
        }
    }),
    loss("erl1-data-ack", "no data came for the bytes from 0 on", |pdu| {
        pdu.of(Opcode::DATA_IN, READ) && pdu.word(DATA_SN) == 0
    }),
    change("erl1-data-ack", "a right DataACK is rejected", |pdu| {
        if pdu.is(Opcode::REJECT) {
            pdu.data[1] = pdu.data[1] & 0xf0 | 2;
        }
    }),
    loss("erl1-data-ack", "a Reject of the SNACK for acknowledged data; nothing came", |pdu| {
        pdu.is(Opcode::REJECT)
    }),
    by("erl1-data-ack", "data comes again after it was acknowledged", |wire, pdu| {
        // The mutant forgets nothing: it answers the SNACK with the first segment.
        let first = pdu.of(Opcode::DATA_IN, READ) && pdu.word(DATA_SN) == 0;
        if first {
            wire.kept = vec![pdu.clone()];
        }
        if !pdu.is(Opcode::REJECT) {
            return wire.pass(pdu);
        }
        if let Some(again) = wire.kept.pop() {
            wire.pass(again);
        }
    }),
    by("erl1-r-data", "other data comes again", spoils_what_comes_again),
    lawful("erl1-r-data", |wire, pdu| {
        // The target pings after the status, and forgets the data once an answer acknowledges the status.
        let is_status = pdu.of(Opcode::SCSI_RESPONSE, READ) && pdu.word(TTT) == 0;
        if pdu.is(Opcode::NOP_OUT) && pdu.word(TTT) == PING {
            let acknowledges = |status: &Pdu| pdu.word(EXP_STAT_SN) == status.word(STAT_SN).wrapping_add(1);
            wire.count = u32::from(wire.kept.iter().any(acknowledges));
        } else if pdu.is(Opcode::SNACK) && wire.count > 0 {
            let mut reject = Pdu::new(pdu.conn, Opcode::REJECT);
            (reject.header[1], reject.header[2]) = (FINAL, 3);
            reject.set(ITT, u32::MAX);
            reject.data = pdu.header.to_vec();
            wire.say(reject);
        } else {
            let conn = pdu.conn;
            if is_status {
                wire.kept = vec![pdu.clone()];
            }
            wire.pass(pdu);
            if is_status {
                let mut ping = Pdu::new(conn, Opcode::NOP_IN);
                ping.header[1] = FINAL;
                ping.set(ITT, u32::MAX);
                ping.set(TTT, PING);
                wire.say(ping);
            }
        }
    }),
    by("erl1-r-data", "do not come again", |wire, pdu| {
        // Of the data that comes again the end is missing.
        let is_again = comes_again(wire, &pdu) && pdu.of(Opcode::DATA_IN, READ);
        if !is_again || pdu.word(OFFSET) < 7168 {
            wire.pass(pdu);
        }
    }),
    change("erl1-r-data", "the data does not come again from DataSN 0", |pdu| {
        if pdu.of(Opcode::DATA_IN, READ) && pdu.data.len() == 512 {
            pdu.add(DATA_SN, 100);
        }
    }),
    change("erl1-r-data", "longer than the 512 bytes that we declared", |pdu| {
        if pdu.is(Opcode::TEXT_REQUEST) {
            pdu.replace("MaxRecvDataSegmentLength", "1024");
        }
    }),
    change("erl1-r-data", "the response that closes the R-Data; nothing came", |pdu| {
        if pdu.of(Opcode::SCSI_RESPONSE, READ) {
            pdu.set(TTT, 0);
        }
    }),
    change("erl1-header-command", "a PDU with a wrong header digest must be discarded, came", |pdu| {
        pdu.damaged_header = false;
    }),
    change("erl1-header-command", "the READ at its second try: expected GOOD", fails_reads),
    by("erl1-header-data", "other data is read back", believes_in_damaged_data),
    by("erl1-digest-data", "other data is read back", believes_in_damaged_data),
    by("erl1-last-data", "other data is read back", believes_in_damaged_data),
    by("erl1-unsolicited", "other data is read back", believes_in_damaged_data),
    change("erl1-unsolicited", "expected recovery or sense b/4705", |pdu| {
        if pdu.of(Opcode::SCSI_RESPONSE, WRITE) && !pdu.data.is_empty() {
            pdu.set_sense(0xb, 0x0c0d);
        } else if pdu.of(Opcode::SCSI_RESPONSE, WRITE) {
            pdu.make_aborted();
        }
    }),
    by("erl1-r2t-sn", "a recovery R2T has the next R2TSN", |wire, mut pdu| {
        if is_second_r2t(wire, &pdu) {
            pdu.add(DATA_SN, 1);
        }
        wire.pass(pdu);
    }),
    by("erl1-r2t-sn", "a recovery R2T has a transfer tag of its own", |wire, mut pdu| {
        if is_second_r2t(wire, &pdu) {
            pdu.set(TTT, wire.kept[0].word(TTT));
        }
        wire.pass(pdu);
    }),
    by("erl1-r2t-sn", "the recovery R2T does not cover what is missing", |wire, mut pdu| {
        if is_second_r2t(wire, &pdu) {
            pdu.add(OFFSET, 512);
        }
        wire.pass(pdu);
    }),
    change("erl1-immediate", "expected reason 02", |pdu| rejects(pdu, 4)),
    change("erl1-immediate", "the WRITE at its second try: expected GOOD", |pdu| {
        if pdu.of(Opcode::SCSI_RESPONSE, WRITE) {
            pdu.make_aborted();
        }
    }),
    change("erl1-immediate", "other data is read back", spoils_reads),
    by("erl1-gap", "a command behind a gap must wait; came", |wire, pdu| {
        let [_, exp, _] = wire.counters(pdu.conn);
        let is_behind = pdu.of(Opcode::SCSI_COMMAND, READ) && pdu.word(STAT_SN) != exp;
        if is_behind && wire.count == 0 {
            wire.count = 1;
            wire.answer(&pdu, 0);
        }
        wire.pass(pdu);
    }),
    change("erl1-gap", "the command that plugs the gap: expected GOOD", fails_reads),
    change("erl2-write", "TASK REASSIGN: expected 00, came 01", |pdu| reassigns(pdu, 1)),
    change("erl2-write", "other data is read back", spoils_later_writes),
    change("erl2-write-dropped", "the logout for recovery is answered 01", |pdu| logs_out(pdu, 1)),
    change("erl2-write-dropped", "other data is read back", spoils_later_writes),
    change("erl2-write-same-cid", "TASK REASSIGN: expected 00, came 05", |pdu| reassigns(pdu, 5)),
    change("erl2-write-same-cid", "other data is read back", spoils_later_writes),
    change("erl2-write-same-cid", "the login that replaces the connection is refused", |pdu| {
        if pdu.conn == 3 && pdu.is(Opcode::LOGIN_RESPONSE) {
            pdu.set_login_status(0x020a);
        }
    }),
    change("erl2-read-rest", "expected data from DataSN 3, came Some(4)", |pdu| {
        if pdu.conn > 1 && pdu.of(Opcode::DATA_IN, READ) {
            pdu.add(DATA_SN, 1);
        }
    }),
    by("erl2-read-rest", "the reassigned READ: GOOD, but of bytes 1536 to 8192 no data came", loses_a_part),
    by("erl2-read-rest", "the reassigned READ returns other data", spoils_the_reassigned),
    change("erl2-unknown", "expected task does not exist (01), came 00", |pdu| reassigns(pdu, 0)),
    change("erl2-continue", "the session is not continued: status 020a", |pdu| {
        if pdu.conn == 2 && pdu.is(Opcode::LOGIN_RESPONSE) {
            pdu.set_login_status(0x020a);
        }
    }),
    by("erl2-continue", "the reassigned READ: GOOD, but of bytes 0 to 8192 no data came", loses_a_part),
    by("erl2-continue", "the reassigned READ returns other data", spoils_the_reassigned),
    change("erl2-once", "the write that had been done was done once more", spoils_reads),
    change("erl2-once", "the reassigned WRITE: expected GOOD", |pdu| {
        if pdu.conn > 1 && pdu.of(Opcode::SCSI_RESPONSE, WRITE) && pdu.word(ITT) < 13 {
            pdu.make_aborted();
        }
    }),
    change("erl2-logout-times", "exceeds what was agreed on", |pdu| {
        if pdu.is(Opcode::LOGOUT_RESPONSE) {
            pdu.set(OFFSET, 0x0000_0e10);
        }
    }),
];

/// The tag of a ping of a target.
const PING: u32 = 0x70;

/// Returns whether a SNACK came before this PDU, and counts it if it is one.
fn comes_again(wire: &mut Wire, pdu: &Pdu) -> bool {
    wire.count += u32::from(pdu.is(Opcode::SNACK));
    wire.count > 0 && pdu.is_from_target()
}

/// Changes the data that comes after a SNACK.
fn spoils_what_comes_again(wire: &mut Wire, mut pdu: Pdu) {
    if comes_again(wire, &pdu) {
        spoils_reads(&mut pdu);
    }
    wire.pass(pdu);
}

/// Gives Rejects this reason.
fn rejects(pdu: &mut Pdu, reason: u8) {
    if pdu.is(Opcode::REJECT) {
        pdu.header[2] = reason;
    }
}

/// Answers TASK REASSIGN with this response.
fn reassigns(pdu: &mut Pdu, response: u8) {
    if pdu.is(Opcode::TMF_RESPONSE) {
        pdu.header[2] = response;
    }
}

/// Ends reads with BUSY.
fn fails_reads(pdu: &mut Pdu) {
    if pdu.of(Opcode::DATA_IN, READ) && pdu.flags() & STATUS != 0 {
        pdu.header[3] = 8;
    }
}

/// Takes Data-Out with a wrong digest for right, with damaged data.
fn believes_in_damaged_data(wire: &mut Wire, mut pdu: Pdu) {
    if pdu.is(Opcode::DATA_OUT) && (pdu.damaged_header || pdu.damaged_data) {
        pdu.damaged_header = false;
        pdu.damaged_data = false;
        pdu.spoil();
    }
    wire.pass(pdu);
}

/// Changes the data of writes on all connections but the first.
fn spoils_later_writes(pdu: &mut Pdu) {
    if pdu.conn > 1 && pdu.is(Opcode::DATA_OUT) {
        pdu.spoil();
    }
}

/// Returns whether a PDU is the second R2T, and keeps the first.
fn is_second_r2t(wire: &mut Wire, pdu: &Pdu) -> bool {
    if !pdu.is(Opcode::R2T) {
        return false;
    }
    wire.kept.push(pdu.clone());
    wire.kept.len() == 2
}
