//! Mutants in task management: `ffp-t-11.*`, `rfc7144-*`, `task-*`.

use iscsi::pdu::Opcode;

use crate::mutant::{Mutant, by, change, loss};
use crate::pdu::{FINAL, IMMEDIATE, ITT, OFFSET, Pdu, READ, WRITE};
use crate::relay::Wire;

use super::data::spoils_reads;

pub(super) const MUTANTS: &[Mutant] = &[
    change("ffp-t-11.1", "expected function complete, came 01", |pdu| answers(pdu, 1)),
    by("ffp-t-11.1", "nothing more was asked for; came", |wire, pdu| {
        // The aborted WRITE ends after the function.
        if pdu.of(Opcode::SCSI_COMMAND, WRITE) && !pdu.is_immediate() {
            wire.kept.push(pdu.clone());
        }
        let ends = pdu.of(Opcode::SCSI_RESPONSE, WRITE);
        wire.pass(pdu);
        if let Some(command) = wire.kept.first().cloned().filter(|_| ends) {
            wire.answer(&command, 0);
        }
    }),
    loss("ffp-t-11.1", "expected the answer to a command; nothing came", |pdu| {
        pdu.of(Opcode::SCSI_COMMAND, WRITE) && pdu.is_immediate()
    }),
    change("ffp-t-11.2.1", "expected function complete, came 05", |pdu| answers(pdu, 5)),
    change("ffp-t-11.2.1", "the logout for recovery is answered 03", |pdu| logs_out(pdu, 3)),
    by("ffp-t-11.2.1", "the reassigned READ: GOOD, but of bytes 0 to 8192 no data came", loses_a_part),
    by("ffp-t-11.2.1", "the reassigned READ returns other data", spoils_the_reassigned),
    change("ffp-t-11.2.2", "expected task still allegiant, came 00", |pdu| answers(pdu, 0)),
    change("ffp-t-11.2.3", "the answer 55 is not defined", |pdu| answers(pdu, 0x55)),
    by("ffp-t-11.2.3", "the reassigned READ: GOOD, but of bytes 0 to 8192 no data came", |wire, pdu| {
        if let Some(pdu) = reassigns_without_logout(wire, pdu) {
            loses_a_part(wire, pdu);
        }
    }),
    by("ffp-t-11.2.3", "the reassigned READ returns other data", |wire, pdu| {
        if let Some(pdu) = reassigns_without_logout(wire, pdu) {
            spoils_the_reassigned(wire, pdu);
        }
    }),
    change("ffp-t-11.3.1", "expected function complete, came 06", |pdu| answers(pdu, 6)),
    by("ffp-t-11.3.1", "the aborted task goes on after the answer", goes_on_after_the_answer),
    change("ffp-t-11.3.2", "expected function complete, came 06", |pdu| answers(pdu, 6)),
    by("ffp-t-11.3.2", "a command numbered before the function is covered by it, but came", |wire, pdu| {
        // The case pings after the response.
        let answered = pdu.is(Opcode::NOP_IN);
        wire.pass(pdu);
        if let Some(late) = wire.command(2).filter(|_| answered) {
            wire.answer(&late, 0);
        }
    }),
    change("ffp-t-11.3.3", "expected task does not exist (01), came 00", |pdu| answers(pdu, 0)),
    change("ffp-t-11.4", "expected function complete, not supported or not authorized", |pdu| {
        answers(pdu, 3);
    }),
    by("ffp-t-11.4", "a task goes on after the reset", goes_on_after_the_answer),
    by("ffp-t-11.4", "a warm reset ends all tasks; came", |wire, pdu| {
        // The case pings after the response.
        let (conn, answered) = (pdu.conn, pdu.is(Opcode::NOP_IN));
        wire.pass(pdu);
        let is_read = |command: &Pdu| command.header[32] == READ;
        if let Some(late) = wire.command(conn).filter(is_read).filter(|_| answered) {
            wire.answer(&late, 0);
        }
    }),
    change("ffp-t-11.5", "expected function complete, not supported or not authorized", |pdu| {
        answers(pdu, 3);
    }),
    by("ffp-t-11.5", "a cold reset ends all connections; this one stays", |wire, mut pdu| {
        wire.keep_open(pdu.conn);
        answers(&mut pdu, 0);
        wire.pass(pdu);
    }),
    change("rfc7144-level", "is answered Some(\"31\")", |pdu| {
        if pdu.is(Opcode::LOGIN_RESPONSE) {
            pdu.replace("iSCSIProtocolLevel", "31");
        }
    }),
    by("rfc7144-range", "level 32 is answered Some(\"32\")", |wire, mut pdu| {
        if pdu.is(Opcode::LOGIN_REQUEST) {
            pdu.replace("iSCSIProtocolLevel", "2");
        } else if pdu.is(Opcode::LOGIN_RESPONSE) {
            pdu.replace("iSCSIProtocolLevel", "32");
        }
        wire.pass(pdu);
    }),
    change("rfc7144-not-agreed", "although level 2 was not agreed on", |pdu| answers(pdu, 0)),
    change("rfc7144-query-task", "function 9: expected 07, came 00", |pdu| answers(pdu, 0)),
    change("rfc7144-query-task", "a task that has ended: expected 00 or 01, came 07", |pdu| answers(pdu, 7)),
    change("rfc7144-query-task-set", "expected 00, came 05", |pdu| answers(pdu, 5)),
    change("rfc7144-query-task-set", "function 10: expected 07, came 00", |pdu| answers(pdu, 0)),
    change("rfc7144-query-async", "expected 00, 05 or 07, came 01", |pdu| answers(pdu, 1)),
    change("rfc7144-nexus-reset", "expected 00, came 04", |pdu| answers(pdu, 4)),
    by("rfc7144-nexus-reset", "a task goes on that was ended", goes_on_after_the_answer),
    change("rfc7144-priority", "READ with a priority: expected GOOD", |pdu| {
        if pdu.of(Opcode::DATA_IN, READ) {
            pdu.header[3] = 8;
        }
    }),
    change("task-reporting", "is chosen", |pdu| {
        if pdu.is(Opcode::LOGIN_RESPONSE) {
            pdu.replace("TaskReporting", "Holiday");
        }
    }),
    change("task-fast-abort", "expected 00, came 01", |pdu| answers(pdu, 1)),
    by("task-fast-abort", "a task goes on that was ended", goes_on_after_the_answer),
    loss("task-fast-abort", "nothing came", |pdu| pdu.is(Opcode::TMF_RESPONSE)),
    change("task-response-fence", "expected 00 or 01, came 04", |pdu| answers(pdu, 4)),
    by("task-response-fence", "a task goes on that was ended", goes_on_after_the_answer),
];

/// Answers functions with this response.
fn answers(pdu: &mut Pdu, response: u8) {
    if pdu.is(Opcode::TMF_RESPONSE) {
        pdu.header[2] = response;
    }
}

/// Answers logouts with this response.
pub(super) fn logs_out(pdu: &mut Pdu, response: u8) {
    if pdu.is(Opcode::LOGOUT_RESPONSE) {
        pdu.header[2] = response;
    }
}

/// Returns whether a PDU is data of a task that was reassigned to the second connection.
fn is_reassigned(pdu: &Pdu) -> bool {
    pdu.conn > 1 && pdu.of(Opcode::DATA_IN, READ)
}

/// Loses the first 512 bytes of a reassigned read.
pub(super) fn loses_a_part(wire: &mut Wire, mut pdu: Pdu) {
    if is_reassigned(&pdu) && wire.count == 0 {
        wire.count = 1;
        pdu.data.drain(..512);
        pdu.add(OFFSET, 512);
    }
    wire.pass(pdu);
}

/// Reassigns tasks of connections that were dropped without a logout for recovery, which the true target
/// wants first. Returns the PDU unless it belongs to that logout.
fn reassigns_without_logout(wire: &mut Wire, pdu: Pdu) -> Option<Pdu> {
    const TAG: u32 = 0x7777;
    if pdu.is(Opcode::TMF_REQUEST) {
        let mut logout = Pdu::new(pdu.conn, Opcode::LOGOUT_REQUEST);
        logout.header[0] |= IMMEDIATE;
        logout.header[1] = FINAL | 2;
        logout.set(ITT, TAG);
        // The CID of the first connection.
        logout.header[21] = 1;
        logout.header[24..32].copy_from_slice(&pdu.header[24..32]);
        wire.pass(logout);
    }
    (!pdu.is(Opcode::LOGOUT_RESPONSE) || pdu.word(ITT) != TAG).then_some(pdu)
}

/// Changes the data of a reassigned read.
pub(super) fn spoils_the_reassigned(wire: &mut Wire, mut pdu: Pdu) {
    if is_reassigned(&pdu) {
        spoils_reads(&mut pdu);
    }
    wire.pass(pdu);
}

/// Sends the response of the last read or write after the response to a function.
fn goes_on_after_the_answer(wire: &mut Wire, pdu: Pdu) {
    let (conn, answered) = (pdu.conn, pdu.is(Opcode::TMF_RESPONSE));
    wire.pass(pdu);
    let is_task = |command: &Pdu| matches!(command.header[32], READ | WRITE);
    if let Some(command) = wire.command(conn).filter(is_task).filter(|_| answered) {
        wire.answer(&command, 0);
    }
}
