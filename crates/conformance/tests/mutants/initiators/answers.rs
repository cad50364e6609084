//! Mutants in recovery, logout, pings, text, asynchronous messages and task management: `ffp-i-7.*`,
//! `ffp-i-13.*` to `ffp-i-20.*`.

use iscsi::pdu::Opcode;

use crate::mutant::{Mutant, by, change, loss};
use crate::pdu::{EXP_CMD_SN, ITT, LUN, MAX_CMD_SN, OFFSET, Pdu, STAT_SN, TTT};
use crate::relay::Wire;

/// Where requests have their CmdSN and their ExpStatSN, and task management its RefCmdSN.
const CMD_SN: usize = STAT_SN;
const EXP_STAT_SN: usize = EXP_CMD_SN;
const REF_CMD_SN: usize = MAX_CMD_SN;

pub(super) const MUTANTS: &[Mutant] = &[
    change("ffp-i-7.1", "expected task", names_another_task),
    loss("ffp-i-7.1", "no TASK REASSIGN came", |pdu| pdu.is(Opcode::TMF_REQUEST)),
    change("ffp-i-13.1", "expected BegRun 3", |pdu| {
        if pdu.is(Opcode::SNACK) {
            pdu.add(OFFSET, 1);
        }
    }),
    loss("ffp-i-13.1", "missing Data-In is not asked for", |pdu| pdu.is(Opcode::SNACK)),
    change("ffp-i-13.2", "a DataACK has no task tag", |pdu| {
        if pdu.is(Opcode::SNACK) {
            pdu.set(ITT, 1);
        }
    }),
    change("ffp-i-13.2", "the DataACK has not the transfer tag of the Data-In", |pdu| {
        if pdu.is(Opcode::SNACK) {
            pdu.set(TTT, 1);
        }
    }),
    loss("ffp-i-14.1", "no Logout came within", |pdu| pdu.is(Opcode::LOGOUT_REQUEST)),
    change("ffp-i-14.1", "the reason is recovery, nobody asked for that", |pdu| logs_out_for(pdu, 2)),
    change("ffp-i-14.2", "another connection is logged out than was asked for", |pdu| {
        logs_out_for(pdu, 1);
        if pdu.is(Opcode::LOGOUT_REQUEST) {
            pdu.header[20] ^= 1;
        }
    }),
    change("ffp-i-15.1", "a NOP-Out without a task tag is immediate", |pdu| {
        if pdu.is(Opcode::NOP_OUT) {
            pdu.header[0] &= 0x3f;
        }
    }),
    loss("ffp-i-15.1", "a ping is not answered", |pdu| pdu.is(Opcode::NOP_OUT)),
    change("ffp-i-15.1", "the ping had no data", |pdu| {
        if pdu.is(Opcode::NOP_OUT) {
            pdu.data = vec![1; 4];
        }
    }),
    change("ffp-i-15.3", "expected ExpStatSN", |pdu| {
        if pdu.is(Opcode::NOP_OUT) {
            pdu.add(EXP_STAT_SN, 1);
        }
    }),
    change("ffp-i-15.3", "a NOP-Out without a task tag is immediate", |pdu| {
        if pdu.is(Opcode::NOP_OUT) {
            pdu.header[0] &= 0x3f;
        }
    }),
    by("ffp-i-17.1", "a command follows the Logout", |wire, pdu| {
        let follows = wire.command(pdu.conn).filter(|_| pdu.is(Opcode::LOGOUT_REQUEST));
        let cmd_sn = pdu.word(CMD_SN);
        wire.pass(pdu);
        if let Some(mut command) = follows {
            command.set(CMD_SN, cmd_sn.wrapping_add(1));
            wire.pass(command);
        }
    }),
    change("ffp-i-18.1", "no SendTargets in", |pdu| {
        if pdu.is(Opcode::TEXT_REQUEST) {
            pdu.remove("SendTargets");
        }
    }),
    change("ffp-i-18.1", "the first request has a transfer tag", |pdu| {
        if pdu.is(Opcode::TEXT_REQUEST) {
            pdu.set(TTT, 7);
        }
    }),
    by("ffp-i-18.2", "expected transfer tag", |wire, mut pdu| {
        if is_second_text(wire, &pdu) {
            pdu.set(TTT, 7);
        }
        wire.pass(pdu);
    }),
    by("ffp-i-18.2", "expected LUN", |wire, mut pdu| {
        if is_second_text(wire, &pdu) {
            pdu.header[LUN..LUN + 8].fill(0);
        }
        wire.pass(pdu);
    }),
    change("ffp-i-18.3.1", "discovery ends by closing the session", |pdu| logs_out_for(pdu, 1)),
    by("ffp-i-18.3.1", "expected Logout or the end of the connection; nothing came", hangs_after_the_text),
    by("ffp-i-18.3.2", "expected Logout or the end of the connection; nothing came", hangs_after_the_text),
    by("ffp-i-18.4", "the discovery does not end", hangs_after_the_text),
    by("ffp-i-18.5", "the connection is closed because of the Reject", |wire, pdu| {
        if pdu.is(Opcode::REJECT) { wire.close(pdu.conn) } else { wire.pass(pdu) }
    }),
    change("ffp-i-19.1", "expected CmdSN", |pdu| {
        if pdu.is(Opcode::TMF_REQUEST) {
            pdu.add(CMD_SN, 1);
        }
    }),
    change("ffp-i-19.2", "expected LUN 0", |pdu| {
        if pdu.is(Opcode::TMF_REQUEST) {
            pdu.header[LUN + 1] = 1;
        }
    }),
    change("ffp-i-19.3", "expected RefCmdSN", |pdu| {
        if pdu.is(Opcode::TMF_REQUEST) {
            pdu.add(REF_CMD_SN, 1);
        }
    }),
    change("ffp-i-19.3", "expected task", names_another_task),
    loss("ffp-i-19.4.1", "a ping is not answered while a set is aborted", |pdu| pdu.is(Opcode::NOP_OUT)),
    loss("ffp-i-19.4.2", "Data-In with A is not acknowledged while a set is aborted", |pdu| {
        pdu.is(Opcode::SNACK)
    }),
    by("ffp-i-19.4.3", "the initiator drops the connection because of an answer", |wire, pdu| {
        let drops = pdu.is(Opcode::SCSI_RESPONSE) && pdu.header[3] == 8;
        if drops { wire.close(pdu.conn) } else { wire.pass(pdu) }
    }),
    change("ffp-i-19.5", "expected task", names_another_task),
    loss("ffp-i-19.5", "no TASK REASSIGN came", |pdu| pdu.is(Opcode::TMF_REQUEST)),
    loss("ffp-i-20.1", "no Logout came within 1s", |pdu| pdu.is(Opcode::LOGOUT_REQUEST)),
    by("ffp-i-20.2", "the initiator comes back, but fails", |wire, pdu| {
        // The second connection never works.
        if pdu.conn > 0 { wire.close(pdu.conn) } else { wire.pass(pdu) }
    }),
    change("ffp-i-20.3", "Time2Wait is 1 s", |pdu| {
        // The mutant comes back at once.
        if pdu.is(Opcode::ASYNC_MESSAGE) {
            pdu.header[OFFSET..OFFSET + 2].fill(0);
        }
    }),
    loss("ffp-i-20.4", "neither a Text Request nor a Logout came within 3 s", |pdu| {
        pdu.is(Opcode::TEXT_REQUEST) || pdu.is(Opcode::LOGOUT_REQUEST)
    }),
];

/// Names another task in task management.
fn names_another_task(pdu: &mut Pdu) {
    if pdu.is(Opcode::TMF_REQUEST) {
        pdu.add(TTT, 1);
    }
}

/// Logs out for another reason.
fn logs_out_for(pdu: &mut Pdu, reason: u8) {
    if pdu.is(Opcode::LOGOUT_REQUEST) {
        pdu.header[1] = 0x80 | reason;
    }
}

/// Returns whether a PDU is the second text request.
fn is_second_text(wire: &mut Wire, pdu: &Pdu) -> bool {
    wire.count += u32::from(pdu.is(Opcode::TEXT_REQUEST));
    pdu.is(Opcode::TEXT_REQUEST) && wire.count == 2
}

/// Says nothing more after the first text, and does not close the connection.
fn hangs_after_the_text(wire: &mut Wire, pdu: Pdu) {
    if wire.count > 0 && !pdu.is_from_target() {
        return wire.keep_open(pdu.conn);
    }
    wire.count += u32::from(pdu.is(Opcode::TEXT_REQUEST));
    wire.keep_open(pdu.conn);
    wire.pass(pdu);
}
