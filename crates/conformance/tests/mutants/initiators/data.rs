//! Mutants in data: `ffp-i-6.*`, `ffp-i-8.*` to `ffp-i-12.*`, `ffp-i-16.*`.

use iscsi::pdu::Opcode;

use crate::mutant::{Mutant, by, change, loss};
use crate::pdu::{CDB, DATA_SN, FINAL, ITT, LUN, OFFSET, Pdu, READ_16, STAT_SN, STATUS, TTT, WRITE_16};
use crate::relay::Wire;

pub(super) const MUTANTS: &[Mutant] = &[
    change("ffp-i-6.1", "expected DataSN 0", counts_from_one),
    change("ffp-i-8.1", "bytes come unsolicited, FirstBurstLength is 512", |pdu| {
        hears(pdu, "FirstBurstLength", "8192");
    }),
    change("ffp-i-8.2", "ImmediateData=No, but", |pdu| hears(pdu, "ImmediateData", "Yes")),
    change("ffp-i-8.2", "InitialR2T=Yes, but F is clear", |pdu| hears(pdu, "InitialR2T", "No")),
    change("ffp-i-8.3", "ImmediateData=No, but", |pdu| hears(pdu, "ImmediateData", "Yes")),
    change("ffp-i-8.3", "bytes come unsolicited, FirstBurstLength is 512", |pdu| {
        hears(pdu, "FirstBurstLength", "8192");
    }),
    change("ffp-i-9.1", "the R2T is not answered to its end", |pdu| {
        if pdu.is(Opcode::DATA_OUT) {
            pdu.add(TTT, 1);
        }
    }),
    change("ffp-i-9.1", "the LUN of the R2T is missing", |pdu| {
        if pdu.is(Opcode::DATA_OUT) {
            pdu.header[LUN + 1] = 1;
        }
    }),
    by("ffp-i-10.1", "the initiator does not go on after status on Data-In", |wire, pdu| {
        wire.count += u32::from(pdu.of(Opcode::DATA_IN, READ_16) && pdu.flags() & STATUS != 0);
        if wire.count == 0 || pdu.is_from_target() {
            wire.pass(pdu);
        } else {
            wire.keep_open(pdu.conn);
        }
    }),
    loss("ffp-i-10.2", "Data-In with A is not acknowledged by a SNACK", |pdu| pdu.is(Opcode::SNACK)),
    change("ffp-i-10.2", "expected BegRun", |pdu| {
        if pdu.is(Opcode::SNACK) {
            pdu.add(OFFSET, -1);
        }
    }),
    change("ffp-i-11.1.1", "longer than the 512 bytes that we take", |pdu| {
        hears(pdu, "MaxRecvDataSegmentLength", "8192");
    }),
    by("ffp-i-11.1.2", "the initiator takes Data-In of no bytes for an error", |wire, pdu| {
        wire.count += u32::from(pdu.of(Opcode::DATA_IN, READ_16) && pdu.data.is_empty());
        if wire.count > 0 { wire.close(pdu.conn) } else { wire.pass(pdu) }
    }),
    change("ffp-i-11.2.1", "unsolicited data does not end with F", never_final),
    change("ffp-i-11.2.2", "the R2T is not answered to its end", never_final),
    change("ffp-i-11.3", "expected DataSN 0", counts_from_one),
    change("ffp-i-11.4", "expected Buffer Offset", |pdu| {
        if pdu.is(Opcode::DATA_OUT) {
            pdu.add(OFFSET, 512);
        }
    }),
    change("ffp-i-12.1", "the R2T is not answered to its end", |pdu| {
        if pdu.is(Opcode::DATA_OUT) {
            pdu.add(TTT, 1);
        }
    }),
    by("ffp-i-12.1", "bytes came, 2048 were asked for", loses_the_end),
    by("ffp-i-12.2", "expected Buffer Offset", |wire, mut pdu| {
        // A hole of one segment, and the numbers go on.
        if pdu.is(Opcode::DATA_OUT) && pdu.word(TTT) != u32::MAX {
            wire.count += 1;
            if wire.count == 2 {
                return;
            }
            if wire.count > 2 {
                pdu.add(DATA_SN, -1);
            }
        }
        wire.pass(pdu);
    }),
    by("ffp-i-12.3", "are answered in the order", |wire, pdu| {
        let ends = pdu.is(Opcode::DATA_OUT) && pdu.flags() & FINAL != 0;
        wire.count += u32::from(ends);
        if ends && wire.count == 1 {
            return wire.kept.push(pdu);
        }
        wire.pass(pdu);
        if ends
            && wire.count == 2
            && let Some(first) = wire.kept.pop()
        {
            wire.pass(first);
        }
    }),
    by("ffp-i-12.4", "the later R2T is answered first", |wire, pdu| {
        wire.count += u32::from(pdu.is(Opcode::DATA_OUT));
        if pdu.is(Opcode::DATA_OUT) && wire.count == 1 {
            return wire.kept.push(pdu);
        }
        wire.pass(pdu);
        if wire.count == 2
            && let Some(first) = wire.kept.pop()
        {
            wire.pass(first);
        }
    }),
    change("ffp-i-16.1.1", "expected ExpStatSN", |pdu| {
        if pdu.is(Opcode::SCSI_COMMAND) {
            pdu.add(crate::pdu::EXP_CMD_SN, 1);
        }
    }),
    change("ffp-i-16.1.2", "expected CmdSN", |pdu| {
        if pdu.is(Opcode::SCSI_COMMAND) {
            pdu.add(STAT_SN, 1);
        }
    }),
    change("ffp-i-16.1.2", "the task tag is the reserved value", |pdu| {
        if pdu.is(Opcode::SCSI_COMMAND) {
            pdu.set(ITT, u32::MAX);
        }
    }),
    change("ffp-i-16.2.1", "InitialR2T=Yes, but F is clear", |pdu| {
        if pdu.of(Opcode::SCSI_COMMAND, WRITE_16) {
            pdu.header[1] &= !FINAL;
        }
    }),
    change("ffp-i-16.2.1", "bytes are immediate, of", |pdu| {
        hears(pdu, "FirstBurstLength", "65536");
        hears(pdu, "MaxRecvDataSegmentLength", "65536");
    }),
    change("ffp-i-16.2.2", "ImmediateData=No, but", |pdu| hears(pdu, "ImmediateData", "Yes")),
    change("ffp-i-16.2.3", "ImmediateData=No, but", |pdu| hears(pdu, "ImmediateData", "Yes")),
    change("ffp-i-16.2.4", "come unsolicited, FirstBurstLength is 8192", |pdu| {
        hears(pdu, "FirstBurstLength", "65536");
    }),
    change("ffp-i-16.3.1", "no unsolicited data follows, but F is clear", |pdu| {
        if pdu.of(Opcode::SCSI_COMMAND, WRITE_16) {
            pdu.header[1] &= !FINAL;
        }
    }),
    by("ffp-i-16.4.1", TAKEN_FOR_SUCCESS, takes_failure_for_success),
    by("ffp-i-16.4.2", TAKEN_FOR_SUCCESS, |wire, pdu| {
        // The mutant makes up the first half, which the target withholds.
        let Some(command) = wire.command_of(&pdu).filter(|_| pdu.is(Opcode::SNACK)) else {
            return wire.pass(pdu);
        };
        let mut data_in = Pdu::new(pdu.conn, Opcode::DATA_IN);
        data_in.set(ITT, pdu.word(ITT));
        data_in.set(TTT, u32::MAX);
        data_in.data = vec![0; command.word(TTT) as usize / 2];
        wire.say(data_in);
    }),
    by("ffp-i-16.4.3", TAKEN_FOR_SUCCESS, takes_failure_for_success),
    by("ffp-i-16.4.4", TAKEN_FOR_SUCCESS, takes_failure_for_success),
    by("ffp-i-16.4.5", TAKEN_FOR_SUCCESS, takes_failure_for_success),
    by("ffp-i-16.4.6", TAKEN_FOR_SUCCESS, takes_failure_for_success),
    by("ffp-i-16.4.1", "the command comes again with its old CmdSN", repeats_as_it_was),
    change("ffp-i-16.6", "the CDB writes", |pdu| {
        if pdu.of(Opcode::SCSI_COMMAND, WRITE_16) {
            pdu.add(TTT, 512);
        }
    }),
    change("ffp-i-16.6", "all data is immediate, but F is clear", |pdu| {
        // The command writes only the block that is immediate.
        if pdu.of(Opcode::SCSI_COMMAND, WRITE_16) {
            pdu.set(TTT, 512);
            pdu.set(CDB + 10, 1);
            pdu.header[1] &= !FINAL;
        }
    }),
    change("ffp-i-16.6", "bytes are immediate, FirstBurstLength is 512", |pdu| {
        hears(pdu, "FirstBurstLength", "65536");
    }),
    change("ffp-i-16.6", "data comes before any R2T although InitialR2T=Yes", |pdu| {
        hears(pdu, "ImmediateData", "No");
        hears(pdu, "InitialR2T", "No");
    }),
];

const TAKEN_FOR_SUCCESS: &str = "the initiator goes on as if the command had succeeded";

/// Gives another answer to a key of the login to the initiator than the target gave.
fn hears(pdu: &mut Pdu, name: &str, value: &str) {
    if pdu.is(Opcode::LOGIN_RESPONSE) {
        pdu.replace(name, value);
    }
}

fn counts_from_one(pdu: &mut Pdu) {
    if pdu.is(Opcode::DATA_OUT) {
        pdu.add(DATA_SN, 1);
    }
}

fn never_final(pdu: &mut Pdu) {
    if pdu.is(Opcode::DATA_OUT) {
        pdu.header[1] &= !FINAL;
    }
}

/// Ends the data for an R2T with its second segment.
fn loses_the_end(wire: &mut Wire, mut pdu: Pdu) {
    if pdu.is(Opcode::DATA_OUT) {
        wire.count += 1;
        if wire.count > 2 {
            return;
        }
        pdu.header[1] |= if wire.count == 2 { FINAL } else { 0 };
    }
    wire.pass(pdu);
}

/// Takes the first failure of a read or write for success: the initiator gets zeros for what it reads.
fn takes_failure_for_success(wire: &mut Wire, mut pdu: Pdu) {
    let fails = pdu.is(Opcode::SCSI_RESPONSE) && pdu.header[3] != 0 && wire.count == 0;
    let Some(command) = wire.command_of(&pdu).filter(|_| fails) else { return wire.pass(pdu) };
    if command.header[32] != READ_16 && command.header[32] != WRITE_16 {
        return wire.pass(pdu);
    }
    wire.count = 1;
    if command.header[32] == READ_16 {
        let mut data_in = Pdu::new(pdu.conn, Opcode::DATA_IN);
        data_in.header[1] = FINAL;
        data_in.set(ITT, pdu.word(ITT));
        data_in.set(TTT, u32::MAX);
        data_in.header[STAT_SN..STAT_SN + 12].copy_from_slice(&pdu.header[STAT_SN..STAT_SN + 12]);
        data_in.data = vec![0; command.word(TTT) as usize];
        pdu.set(DATA_SN, 1);
        wire.pass(data_in);
    }
    pdu.make_good();
    wire.pass(pdu);
}

/// Sends a command that failed once more, as it was.
fn repeats_as_it_was(wire: &mut Wire, pdu: Pdu) {
    let fails = pdu.is(Opcode::SCSI_RESPONSE) && pdu.header[3] != 0 && wire.count == 0;
    match wire.command_of(&pdu).filter(|command| fails && matches!(command.header[32], READ_16 | WRITE_16)) {
        Some(command) => {
            wire.count = 1;
            wire.pass(command);
        }
        None => wire.pass(pdu),
    }
}
