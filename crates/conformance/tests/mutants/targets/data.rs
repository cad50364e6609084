//! Mutants in numbering, data transfer and responses: `ffp-t-1.*` to `ffp-t-10.*`, `ffp-t-16.*` to
//! `ffp-t-19.*`.

use iscsi::pdu::Opcode;

use crate::mutant::{Mutant, by, change, loss};
use crate::pdu::{
    DATA_SN, EXP_CMD_SN, FINAL, INQUIRY, ITT, LUN, MAX_CMD_SN, OFFSET, OVERFLOW, Pdu, READ, READ_CAPACITY,
    RESIDUAL, STAT_SN, STATUS, TTT, UNDERFLOW, WRITE,
};
use crate::relay::Wire;

/// The reason of a case in which a read ended with GOOD, and its data did not come.
const NO_DATA: &str = "READ: GOOD, but of bytes 0 to 8192 no data came for those from 0 on";

pub(super) const MUTANTS: &[Mutant] = &[
    change("ffp-t-1.1", "MaxCmdSN is before ExpCmdSN - 1", |pdu| {
        if pdu.is(Opcode::SCSI_RESPONSE) {
            pdu.add(MAX_CMD_SN, -2000);
        }
    }),
    by("ffp-t-1.2", "a command beyond MaxCmdSN must be ignored silently; came", |wire, pdu| {
        let [_, _, max] = wire.counters(pdu.conn);
        let is_beyond = pdu.is(Opcode::SCSI_COMMAND) && is_before(max, pdu.word(STAT_SN));
        if is_beyond { wire.answer(&pdu, 0) } else { wire.pass(pdu) }
    }),
    by("ffp-t-1.3", "whose number was used before must be ignored silently; came", |wire, pdu| {
        let [_, exp, _] = wire.counters(pdu.conn);
        let is_used = pdu.is(Opcode::SCSI_COMMAND) && is_before(pdu.word(STAT_SN), exp);
        if is_used { wire.answer(&pdu, 0) } else { wire.pass(pdu) }
    }),
    change("ffp-t-2.1", "expected StatSN", |pdu| {
        if pdu.of(Opcode::SCSI_RESPONSE, WRITE) {
            pdu.add(STAT_SN, 1);
        }
    }),
    change("ffp-t-3.1", "expected DataSN 0", |pdu| {
        if pdu.of(Opcode::DATA_IN, READ) {
            pdu.add(DATA_SN, 1);
        }
    }),
    by("ffp-t-3.1", "READ: GOOD, but of bytes", no_data),
    change("ffp-t-4.1", "expected R2TSN 0", |pdu| {
        if pdu.is(Opcode::R2T) {
            pdu.add(DATA_SN, 1);
        }
    }),
    change("ffp-t-5.1", "expected Reject, came", |pdu| pdu.damaged_data = false),
    change("ffp-t-5.1", "expected reason 02, came", |pdu| {
        if pdu.is(Opcode::REJECT) {
            pdu.header[2] = 4;
        }
    }),
    change("ffp-t-5.1", "the retried WRITE: expected GOOD", |pdu| {
        if pdu.of(Opcode::SCSI_RESPONSE, WRITE) {
            pdu.make_aborted();
        }
    }),
    by("ffp-t-6.1", "expected the answer to a command; nothing came", |wire, mut pdu| {
        // The answers to reads go to the other connection.
        if pdu.of(Opcode::DATA_IN, READ) || pdu.of(Opcode::SCSI_RESPONSE, READ) {
            pdu.conn = 3 - pdu.conn;
        }
        wire.pass(pdu);
    }),
    change("ffp-t-7.1", "the target answers GOOD", |pdu| {
        if pdu.is(Opcode::DATA_OUT) {
            pdu.data.truncate(512);
        }
    }),
    change("ffp-t-7.2", "the target answers GOOD", |pdu| {
        if pdu.is(Opcode::DATA_OUT) && pdu.word(TTT) == u32::MAX {
            pdu.data.truncate(512);
        }
    }),
    change("ffp-t-8.1", "the transfer tag is the reserved value", |pdu| {
        if pdu.is(Opcode::R2T) {
            pdu.set(TTT, u32::MAX);
        }
    }),
    change("ffp-t-8.1", "in the R2T, 0000000000000000 in the command", |pdu| {
        if pdu.is(Opcode::R2T) {
            pdu.header[LUN + 1] = 1;
        }
    }),
    change("ffp-t-8.2", "A is clear, but the reserved LUN field is", |pdu| {
        if pdu.of(Opcode::DATA_IN, READ) {
            pdu.header[LUN + 1] = 1;
        }
    }),
    change("ffp-t-8.2", "A is clear, but a transfer tag is there", |pdu| {
        if pdu.of(Opcode::DATA_IN, READ) {
            pdu.set(TTT, 7);
        }
    }),
    by("ffp-t-8.2", NO_DATA, no_data),
    by("ffp-t-9.1", NO_DATA, no_data),
    change("ffp-t-9.1", "the S bit is set, but the F bit is not", |pdu| {
        if pdu.of(Opcode::DATA_IN, READ) && pdu.flags() & STATUS != 0 {
            pdu.header[1] &= !FINAL;
        }
    }),
    change("ffp-t-9.1", "READ: expected GOOD, came response 00 status 02", |pdu| {
        if pdu.of(Opcode::DATA_IN, READ) && pdu.flags() & STATUS != 0 {
            pdu.header[3] = 2;
        }
    }),
    by("ffp-t-9.2", NO_DATA, no_data),
    by("ffp-t-9.2", "F is clear in the last Data-In", |wire, pdu| {
        let ends = pdu.of(Opcode::DATA_IN, READ) && pdu.flags() & STATUS != 0;
        if ends { split_status(wire, pdu, |data_in| data_in.header[1] = 0) } else { wire.pass(pdu) }
    }),
    by("ffp-t-9.3.1", NO_DATA, no_data),
    change("ffp-t-9.3.1", "longer than the 512 bytes that we take", believes_in_longer_segments),
    change("ffp-t-9.3.2", "a WRITE whose first Data-Out has no bytes: expected GOOD", |pdu| {
        if pdu.of(Opcode::SCSI_RESPONSE, WRITE) {
            pdu.make_aborted();
        }
    }),
    by("ffp-t-9.3.3", NO_DATA, no_data),
    by("ffp-t-9.3.3", "a segment of broken words without F", |wire, pdu| {
        let is_first = pdu.of(Opcode::DATA_IN, READ) && pdu.flags() & FINAL == 0;
        if is_first { split(wire, &pdu, 1022) } else { wire.pass(pdu) }
    }),
    by("ffp-t-9.4", NO_DATA, no_data),
    change("ffp-t-9.4", "expected DataSN 1", |pdu| {
        if pdu.of(Opcode::DATA_IN, READ) && pdu.word(DATA_SN) > 0 {
            pdu.add(DATA_SN, 1);
        }
    }),
    change("ffp-t-9.4", "the target sends 16 blocks in one PDU", believes_in_longer_segments),
    by("ffp-t-9.5", NO_DATA, no_data),
    change("ffp-t-9.5", "expected Buffer Offset 0 in", |pdu| {
        // The first two segments change places.
        if pdu.of(Opcode::DATA_IN, READ) && pdu.word(OFFSET) < 1024 {
            let other = 512 - pdu.word(OFFSET);
            pdu.set(OFFSET, other);
        }
    }),
    change("ffp-t-10.1", "more than MaxBurstLength=512 is asked for", |pdu| {
        if pdu.is(Opcode::LOGIN_REQUEST) {
            pdu.replace("MaxBurstLength", "8192");
        }
    }),
    change("ffp-t-10.1", "expected R2TSN 0", |pdu| {
        if pdu.is(Opcode::R2T) {
            pdu.add(DATA_SN, 1);
        }
    }),
    change("ffp-t-10.1", "to stay", |pdu| {
        if pdu.is(Opcode::R2T) {
            pdu.add(STAT_SN, 1);
        }
    }),
    change("ffp-t-10.1", "expected Buffer Offset 0", |pdu| {
        if pdu.is(Opcode::R2T) {
            pdu.add(OFFSET, 512);
        }
    }),
    change("ffp-t-16.1", "expected U and", |pdu| {
        if pdu.operation == Some(INQUIRY) && pdu.is_from_target() && pdu.word(RESIDUAL) > 0 {
            pdu.add(RESIDUAL, 1);
        }
    }),
    by("ffp-t-16.1", "0 bytes of INQUIRY data came", |wire, pdu| {
        if pdu.of(Opcode::DATA_IN, INQUIRY) && pdu.word(RESIDUAL) > 0 {
            withhold(wire, &pdu);
        } else {
            wire.pass(pdu);
        }
    }),
    change("ffp-t-16.2", "expected O and 32", |pdu| {
        let answers = pdu.is(Opcode::SCSI_RESPONSE) || pdu.is(Opcode::DATA_IN);
        if answers && pdu.operation == Some(INQUIRY) && pdu.word(RESIDUAL) == 32 {
            pdu.add(RESIDUAL, 1);
        }
    }),
    change("ffp-t-16.2", "expected O and 32", |pdu| {
        let answers = pdu.is(Opcode::SCSI_RESPONSE) || pdu.is(Opcode::DATA_IN);
        if answers && pdu.operation == Some(INQUIRY) && pdu.word(RESIDUAL) == 32 {
            pdu.header[1] ^= OVERFLOW | UNDERFLOW;
        }
    }),
    change("ffp-t-16.3.1", "the R2T does not go on behind the data", |pdu| {
        if pdu.is(Opcode::R2T) {
            pdu.add(OFFSET, -512);
        }
    }),
    change("ffp-t-16.3.1", "other data is read back", spoils_reads),
    change("ffp-t-16.3.2", "the target answers GOOD", |pdu| {
        if pdu.of(Opcode::SCSI_COMMAND, WRITE) {
            pdu.data.truncate(512);
        }
    }),
    change("ffp-t-16.3.3", "other data is read back", spoils_reads),
    change("ffp-t-16.3.4", "the target answers GOOD", |pdu| {
        if pdu.of(Opcode::SCSI_COMMAND, WRITE) {
            pdu.data.clear();
        }
    }),
    change("ffp-t-16.3.4", "expected sense b/0c0c", |pdu| {
        if pdu.of(Opcode::SCSI_RESPONSE, WRITE) {
            pdu.set_sense(0xb, 0x0c0d);
        }
    }),
    change("ffp-t-16.3.5", "other data is read back", |pdu| {
        if pdu.is(Opcode::DATA_OUT) {
            pdu.spoil();
        }
    }),
    by("ffp-t-16.3.5", "an R2T asks for data that came unsolicited", |wire, pdu| {
        if pdu.is(Opcode::DATA_OUT) && wire.count == 0 {
            wire.count = 1;
            let mut r2t = Pdu::new(pdu.conn, Opcode::R2T);
            r2t.header[1] = FINAL;
            r2t.set(ITT, pdu.word(ITT));
            r2t.set(TTT, 0x7777);
            r2t.set(RESIDUAL, 512);
            wire.say(r2t);
        }
        if !pdu.is(Opcode::DATA_OUT) || pdu.word(TTT) != 0x7777 {
            wire.pass(pdu);
        }
    }),
    change("ffp-t-16.3.6", "the target answers GOOD", |pdu| {
        if pdu.of(Opcode::SCSI_RESPONSE, WRITE) {
            pdu.make_good();
        }
    }),
    change("ffp-t-16.3.6", "expected sense b/0c0d", |pdu| {
        if pdu.of(Opcode::SCSI_RESPONSE, WRITE) {
            pdu.set_sense(0xb, 0x0c0c);
        }
    }),
    change("ffp-t-16.3.7", "expected CHECK CONDITION", |pdu| {
        if pdu.of(Opcode::SCSI_RESPONSE, 0xff) {
            pdu.make_good();
        }
    }),
    change("ffp-t-16.3.7", "expected sense 5/2000", |pdu| {
        if pdu.of(Opcode::SCSI_RESPONSE, 0xff) {
            pdu.set_sense(5, 0x2400);
        }
    }),
    by("ffp-t-16.4.1", "a retry of a command in progress must be discarded silently; came", answers_retries),
    by("ffp-t-16.4.2", "a retry of a command in progress must be discarded silently; came", answers_retries),
    by("ffp-t-16.5", "expected Reject or nothing, came", |wire, pdu| {
        if pdu.is(Opcode::DATA_OUT) && wire.count == 0 {
            wire.count = 1;
            if let Some(command) = wire.command(pdu.conn) {
                wire.answer(&command, 0);
            }
        }
        wire.pass(pdu);
    }),
    by("ffp-t-16.5", "the last data is not there yet; came", |wire, pdu| {
        wire.count += u32::from(pdu.is(Opcode::DATA_OUT));
        if pdu.is(Opcode::DATA_OUT) && wire.count == 2 {
            wire.count += 1;
            if let Some(command) = wire.command(pdu.conn) {
                wire.answer(&command, 0);
            }
        }
        wire.pass(pdu);
    }),
    by("ffp-t-16.6", "READ: GOOD, but of bytes 0 to 1024 no data came for those from 0 on", no_data),
    change("ffp-t-16.6", "no Data-In was sent for the write, ExpDataSN is", |pdu| {
        if pdu.of(Opcode::SCSI_RESPONSE, WRITE) {
            pdu.add(DATA_SN, 1);
        }
    }),
    by("ffp-t-16.6", "1 Data-In were sent, ExpDataSN is 2", |wire, pdu| {
        let ends = pdu.of(Opcode::DATA_IN, READ) && pdu.flags() & STATUS != 0;
        if ends { split_status(wire, pdu, |data_in| data_in.add(DATA_SN, 1)) } else { wire.pass(pdu) }
    }),
    change("ffp-t-18.1.1", "a PDU with a wrong header digest must be discarded, came", |pdu| {
        pdu.damaged_header = false;
    }),
    change("ffp-t-18.2.1", "expected a Reject for the wrong data digest; nothing came", |pdu| {
        pdu.damaged_data = false;
    }),
    change("ffp-t-18.2.1", "expected reason 02", |pdu| {
        if pdu.is(Opcode::REJECT) {
            pdu.header[2] = 4;
        }
    }),
    by("ffp-t-18.2.1", "the command was rejected: no R2T and no status may follow; came", |wire, pdu| {
        let follows = pdu.is(Opcode::REJECT).then(|| wire.command(pdu.conn)).flatten();
        wire.pass(pdu);
        if let Some(command) = follows {
            wire.answer(&command, 2);
        }
    }),
    change("ffp-t-18.2.2", "expected a Reject for the wrong data digest; nothing came", |pdu| {
        pdu.damaged_data = false;
    }),
    change("ffp-t-18.2.2", "the damaged data was written", spoils_reads),
    by("ffp-t-19.1", "beyond the 0 that the command expects", |wire, pdu| {
        let asks = pdu.of(Opcode::SCSI_RESPONSE, READ_CAPACITY);
        let expects_none = wire.command(pdu.conn).is_some_and(|command| command.word(TTT) == 0);
        if asks && expects_none {
            let mut data_in = Pdu::new(pdu.conn, Opcode::DATA_IN);
            data_in.header[1] = FINAL;
            data_in.set(ITT, pdu.word(ITT));
            data_in.set(TTT, u32::MAX);
            data_in.data = vec![0; 8];
            wire.say(data_in);
        }
        wire.pass(pdu);
    }),
    loss("ffp-t-15.3", "expected the answer to a command; nothing came", |pdu| {
        pdu.of(Opcode::DATA_IN, READ) || pdu.of(Opcode::SCSI_RESPONSE, READ)
    }),
];

/// Returns whether a serial number is before another.
const fn is_before(one: u32, other: u32) -> bool {
    one.wrapping_sub(other) > 1 << 31
}

/// Ends reads with GOOD, and sends no data.
pub(super) fn no_data(wire: &mut Wire, pdu: Pdu) {
    if !pdu.of(Opcode::DATA_IN, READ) {
        return wire.pass(pdu);
    }
    if pdu.flags() & STATUS != 0 {
        withhold(wire, &pdu);
    }
}

/// Sends the status of a Data-In without its data.
fn withhold(wire: &mut Wire, pdu: &Pdu) {
    const RESIDUAL_BITS: u8 = 6;
    let mut response = Pdu::new(pdu.conn, Opcode::SCSI_RESPONSE);
    response.header[1] = FINAL | pdu.flags() & RESIDUAL_BITS;
    for at in [ITT, STAT_SN, EXP_CMD_SN, MAX_CMD_SN, RESIDUAL] {
        response.set(at, pdu.word(at));
    }
    if pdu.flags() & RESIDUAL_BITS != 0 {
        response.add(RESIDUAL, pdu.data.len() as i32);
    }
    wire.pass(response);
}

/// Damages the end of what is read.
pub(super) fn spoils_reads(pdu: &mut Pdu) {
    if pdu.of(Opcode::DATA_IN, READ) {
        pdu.spoil();
    }
}

/// Sends longer segments than the initiator takes.
pub(super) fn believes_in_longer_segments(pdu: &mut Pdu) {
    if pdu.is(Opcode::LOGIN_REQUEST) {
        pdu.replace("MaxRecvDataSegmentLength", "16384");
    }
}

/// Sends the status of a Data-In in a response of its own; `change` changes the Data-In after that.
fn split_status(wire: &mut Wire, mut pdu: Pdu, change: fn(&mut Pdu)) {
    let mut response = Pdu::new(pdu.conn, Opcode::SCSI_RESPONSE);
    response.header[1] = FINAL;
    for at in [ITT, STAT_SN, EXP_CMD_SN, MAX_CMD_SN, DATA_SN] {
        response.set(at, pdu.word(at));
    }
    response.add(DATA_SN, 1);
    pdu.header[1] &= !STATUS;
    let before = pdu.word(DATA_SN);
    change(&mut pdu);
    if pdu.word(DATA_SN) != before {
        // The change is one of the count.
        pdu.set(DATA_SN, before);
        response.add(DATA_SN, 1);
    }
    wire.pass(pdu);
    wire.pass(response);
}

/// Sends a Data-In in two parts, the first of this length.
pub(super) fn split(wire: &mut Wire, pdu: &Pdu, at: usize) {
    let mut first = pdu.clone();
    first.data.truncate(at);
    first.header[1] = 0;
    let mut second = pdu.clone();
    second.data.drain(..at);
    second.add(OFFSET, at as i32);
    wire.pass(first);
    wire.pass(second);
}

/// Answers a command that comes again while it is in progress.
fn answers_retries(wire: &mut Wire, pdu: Pdu) {
    if !pdu.of(Opcode::SCSI_COMMAND, WRITE) {
        return wire.pass(pdu);
    }
    if wire.kept.iter().any(|kept| kept.word(ITT) == pdu.word(ITT)) {
        return wire.answer(&pdu, 8);
    }
    wire.kept.push(pdu.clone());
    wire.pass(pdu);
}
