//! Mutants in numbers and the command window: `ffp-i-1.*` to `ffp-i-5.*`, `ffp-i-16.5`.

use iscsi::pdu::Opcode;

use crate::mutant::{Mutant, by, change};
use crate::pdu::{EXP_CMD_SN, MAX_CMD_SN, Pdu, READ_16, STAT_SN, STATUS};
use crate::relay::Wire;

/// Where requests have their CmdSN and their ExpStatSN.
const CMD_SN: usize = STAT_SN;
const EXP_STAT_SN: usize = EXP_CMD_SN;
/// About the first StatSN of the scripted target.
const FIRST_STAT_SN: u32 = 0x7fff_fff0;

pub(super) const MUTANTS: &[Mutant] = &[
    change("ffp-i-1.1", "expected CmdSN", |pdu| {
        if pdu.of(Opcode::SCSI_COMMAND, READ_16) {
            pdu.add(CMD_SN, 1);
        }
    }),
    change("ffp-i-2.1", "expected CmdSN", |pdu| {
        if pdu.is(Opcode::NOP_OUT) {
            pdu.add(CMD_SN, 1);
        }
    }),
    change("ffp-i-2.2", "expected CmdSN", |pdu| {
        if pdu.is(Opcode::TMF_REQUEST) {
            pdu.add(CMD_SN, 1);
        }
    }),
    by("ffp-i-2.1", "expected CmdSN", |wire, pdu| uses_up_a_number(wire, pdu, Opcode::NOP_OUT)),
    by("ffp-i-2.2", "expected CmdSN", |wire, pdu| uses_up_a_number(wire, pdu, Opcode::TMF_REQUEST)),
    change("ffp-i-3.1", "the window is closed, but came", ignores_the_window),
    change("ffp-i-3.2", "beyond MaxCmdSN", |pdu| {
        if pdu.of(Opcode::SCSI_COMMAND, READ_16) {
            pdu.add(CMD_SN, 200);
        }
    }),
    change("ffp-i-3.3", "the window is one command wide, but a second came", ignores_the_window),
    by("ffp-i-4.1", "differs: first", |wire, mut pdu| {
        let is_again = wire.kept.iter().any(|kept| kept.word(CMD_SN) == pdu.word(CMD_SN));
        if pdu.of(Opcode::SCSI_COMMAND, READ_16) {
            if is_again {
                // One block less.
                pdu.header[32 + 13] ^= 1;
            }
            wire.kept.push(pdu.clone());
        }
        wire.pass(pdu);
    }),
    by("ffp-i-5.1", "the leap is taken for the next status", |wire, pdu| {
        // The second READ waits for the answer to the first, and acknowledges it in spite of the leap.
        if pdu.of(Opcode::SCSI_COMMAND, READ_16) && wire.count < 2 {
            wire.count += 1;
            if wire.count == 2 {
                return wire.kept.push(pdu);
            }
        }
        let ends = pdu.is(Opcode::SCSI_RESPONSE) || pdu.is(Opcode::DATA_IN) && pdu.flags() & STATUS != 0;
        let leaps = ends && pdu.word(STAT_SN).wrapping_sub(FIRST_STAT_SN) > 1 << 30;
        let expected = pdu.word(STAT_SN).wrapping_add(1);
        wire.pass(pdu);
        if leaps && let Some(mut next) = wire.kept.pop() {
            next.set(EXP_STAT_SN, expected);
            wire.pass(next);
        }
    }),
    change("ffp-i-16.5", "the window is closed, but came", ignores_the_window),
];

/// Gives the requests after an immediate one the numbers that they would have if it had used up its own.
fn uses_up_a_number(wire: &mut Wire, mut pdu: Pdu, immediate: Opcode) {
    if wire.count > 0 && !pdu.is_from_target() && !pdu.is(Opcode::LOGIN_REQUEST) {
        pdu.add(CMD_SN, 1);
    } else if pdu.is(immediate) {
        wire.count = 1;
    }
    wire.pass(pdu);
}

/// Believes in a window of commands that is wider than the target's.
fn ignores_the_window(pdu: &mut Pdu) {
    if pdu.is_from_target() {
        pdu.add(MAX_CMD_SN, 16);
    }
}
