//! Mutants in logout, Reject, pings, digests and several connections: `ffp-t-13.*` to `ffp-t-15.*`,
//! `digest-*`, `mcs-*`.

use iscsi::pdu::Opcode;

use crate::mutant::{Mutant, by, change, loss};
use crate::pdu::{
    EXP_CMD_SN, FINAL, ITT, MAX_CMD_SN, Pdu, READ, READ_CAPACITY, STAT_SN, TEST_UNIT_READY, TTT, WRITE,
};
use crate::relay::Wire;

use super::data::{believes_in_longer_segments, spoils_reads};
use super::management::logs_out;

pub(super) const MUTANTS: &[Mutant] = &[
    change("ffp-t-13.1", "expected response 0, came 03", |pdu| logs_out(pdu, 3)),
    by("ffp-t-13.1", "the connection is not closed after the logout", keeps_connections),
    by("ffp-t-13.1", "the connection was closed", |wire, pdu| {
        let ends = pdu.is(Opcode::LOGOUT_RESPONSE);
        wire.pass(pdu);
        if ends {
            wire.close(2);
        }
    }),
    change("ffp-t-13.2", "expected response 0, came 03", |pdu| logs_out(pdu, 3)),
    by("ffp-t-13.2", "the other connection of the session is not closed", |wire, pdu| {
        if pdu.conn == 2 {
            wire.keep_open(2);
        }
        wire.pass(pdu);
    }),
    change("ffp-t-13.3", "expected CID not found (01), came 00", |pdu| logs_out(pdu, 0)),
    by("ffp-t-13.3", "the connection was closed", |wire, pdu| {
        let ends = pdu.is(Opcode::LOGOUT_RESPONSE);
        wire.pass(pdu);
        if ends {
            wire.close(2);
        }
    }),
    by("ffp-t-14.1", "the Reject does not carry the header", |wire, pdu| {
        rejects_foreign_data(wire, pdu, rejects_another_header);
    }),
    by("ffp-t-14.1", "the reason 00 is not defined", |wire, pdu| {
        rejects_foreign_data(wire, pdu, |reject| reject.header[2] = 0);
    }),
    change("ffp-t-14.2", "the Reject does not carry the header", rejects_another_header),
    loss("ffp-t-14.2", "a Reject of the DataACK; nothing came", |pdu| pdu.is(Opcode::REJECT)),
    change("ffp-t-14.3", "the Reject does not carry the header", rejects_another_header),
    change("ffp-t-14.3", "bytes 16 to 19 of a Reject are ffffffff", |pdu| {
        if pdu.is(Opcode::REJECT) {
            pdu.set(ITT, 7);
        }
    }),
    change("ffp-t-15.1.1", "the answer to a ping has a transfer tag", |pdu| {
        if pdu.is(Opcode::NOP_IN) {
            pdu.set(TTT, 7);
        }
    }),
    change("ffp-t-15.1.2", "of the answer to the ping", |pdu| {
        if pdu.is(Opcode::NOP_IN) {
            pdu.add(STAT_SN, -1);
        }
    }),
    change("ffp-t-15.1.3", "came 300 bytes that are others", spoils_pings),
    change("ffp-t-15.1.4", "came 301 bytes that are others", spoils_pings),
    change("ffp-t-15.1.4", "that are too many or too few", |pdu| {
        if pdu.is(Opcode::NOP_IN) {
            pdu.data.clear();
        }
    }),
    change("ffp-t-15.1.5", "that are too many or too few", believes_in_longer_segments),
    change("ffp-t-15.1.6", "that are too many or too few", believes_in_longer_segments),
    by("ffp-t-15.2", "a ping of the target has no data", |wire, pdu| {
        pings(wire, pdu, |ping| ping.data = vec![1; 4]);
    }),
    by("ffp-t-15.2", "a NOP-In that answers nothing has no task tag", |wire, pdu| {
        pings(wire, pdu, |ping| ping.set(ITT, 0x7777));
    }),
    by("ffp-t-15.2", "must not use up StatSN", |wire, mut pdu| {
        // The first response after the ping leaves a number out.
        wire.count += u32::from(pdu.is(Opcode::NOP_OUT));
        if wire.count > 0 && pdu.is(Opcode::SCSI_RESPONSE) {
            pdu.add(STAT_SN, 1);
        }
        pings(wire, pdu, |_| {});
    }),
    change("ffp-t-15.3", "the window is closed although nothing is outstanding", |pdu| {
        if pdu.is_from_target() {
            pdu.set(MAX_CMD_SN, pdu.word(EXP_CMD_SN).wrapping_sub(1));
        }
    }),
    by("ffp-t-15.3", "a NOP-In of the target has no data", |wire, pdu| {
        if pdu.of(Opcode::SCSI_COMMAND, READ) && wire.count == 0 {
            wire.count = 1;
            let mut nop = nop(pdu.conn);
            nop.data = vec![1; 4];
            wire.say(nop);
        }
        wire.pass(pdu);
    }),
    change("digest-both", "other data is read back", spoils_reads),
    change("digest-both", "a header digest of the peer is wrong", |pdu| {
        pdu.damaged_header = pdu.of(Opcode::DATA_IN, READ);
    }),
    change("digest-both", "a data digest of the peer is wrong", |pdu| {
        pdu.damaged_data = pdu.of(Opcode::DATA_IN, READ);
    }),
    change("digest-header", "a header digest of the peer is wrong", |pdu| {
        pdu.damaged_header = pdu.of(Opcode::SCSI_RESPONSE, WRITE);
    }),
    change("digest-data", "a data digest of the peer is wrong", |pdu| {
        pdu.damaged_data = pdu.of(Opcode::DATA_IN, READ);
    }),
    change("digest-padding", "a data digest of the peer is wrong", |pdu| {
        pdu.damaged_data = pdu.is_from_target() && pdu.data.len() % 4 != 0;
    }),
    change("digest-padding", "comes back otherwise", spoils_pings),
    change("digest-text", "expected Reject, came", |pdu| pdu.damaged_data = false),
    change("digest-text", "expected reason 02", |pdu| {
        if pdu.is(Opcode::REJECT) {
            pdu.header[2] = 4;
        }
    }),
    change("digest-ping", "expected Reject, came", |pdu| pdu.damaged_data = false),
    loss("digest-ping", "expected a Reject for the wrong data digest; nothing came", |pdu| {
        pdu.is(Opcode::NOP_OUT)
    }),
    change("digest-data-out", "answered GOOD although its data was damaged", |pdu| {
        pdu.damaged_header = false;
    }),
    by("digest-data-out", "data of a PDU with a wrong header digest was written", |wire, mut pdu| {
        // The mutant writes, but does not say so.
        let was_damaged = pdu.damaged_header;
        wire.count += u32::from(was_damaged);
        pdu.damaged_header = false;
        if !pdu.of(Opcode::SCSI_RESPONSE, WRITE) || wire.count == 0 {
            wire.pass(pdu);
        }
    }),
    change("digest-immediate", "expected Reject, came", |pdu| pdu.damaged_data = false),
    by("digest-immediate", "data with a wrong digest was written", |wire, mut pdu| {
        if pdu.is(Opcode::SCSI_COMMAND) && pdu.damaged_data {
            let reject = reject(&pdu);
            wire.say(reject);
            pdu.damaged_data = false;
        }
        wire.pass(pdu);
    }),
    change("mcs-join", "the second connection gets TSIH", |pdu| {
        if pdu.conn == 2 && pdu.is(Opcode::LOGIN_RESPONSE) {
            pdu.header[14] ^= 1;
        }
    }),
    change("mcs-join", "a second connection is refused with status 0208", |pdu| {
        if pdu.conn == 2 && pdu.is(Opcode::LOGIN_RESPONSE) {
            pdu.set_login_status(0x0208);
        }
    }),
    by("mcs-order", "a command must wait for those with lower CmdSN; came", |wire, pdu| {
        if pdu.conn == 2 && pdu.of(Opcode::SCSI_COMMAND, READ) {
            wire.answer(&pdu, 0);
        }
        wire.pass(pdu);
    }),
    by("mcs-order-writes", "the write with the lower CmdSN was done last", |wire, mut pdu| {
        // The two writes exchange their data.
        if !pdu.of(Opcode::SCSI_COMMAND, WRITE) {
            return wire.pass(pdu);
        }
        match wire.kept.pop() {
            None => wire.kept.push(pdu),
            Some(mut other) => {
                std::mem::swap(&mut other.data, &mut pdu.data);
                wire.pass(other);
                wire.pass(pdu);
            }
        }
    }),
    change("mcs-window", "ExpCmdSN is", |pdu| {
        if pdu.conn == 2 && pdu.of(Opcode::SCSI_RESPONSE, TEST_UNIT_READY) {
            pdu.add(EXP_CMD_SN, -1);
        }
    }),
    change("mcs-window", "MaxCmdSN is", |pdu| {
        // The second connection does not count the last commands of the first.
        if pdu.conn == 2 && pdu.of(Opcode::SCSI_RESPONSE, TEST_UNIT_READY) {
            pdu.set(MAX_CMD_SN, pdu.word(EXP_CMD_SN).wrapping_sub(2));
        }
    }),
    by("mcs-stat-sn", "StatSN of one connection jumps", |wire, mut pdu| {
        // One numbering for all connections.
        if pdu.of(Opcode::SCSI_RESPONSE, TEST_UNIT_READY) {
            wire.count += u32::from(pdu.conn == 1);
            pdu.add(STAT_SN, if pdu.conn == 2 { wire.count as i32 } else { 0 });
        }
        wire.pass(pdu);
    }),
    change("mcs-too-many", "expected status 0206, came 0200", |pdu| {
        if pdu.is(Opcode::LOGIN_RESPONSE) && pdu.login_status() != 0 {
            pdu.set_login_status(0x0200);
        }
    }),
    change("mcs-sixteen", "a second connection is refused with status 0206", |pdu| {
        if pdu.conn == 16 && pdu.is(Opcode::LOGIN_RESPONSE) {
            pdu.set_login_status(0x0206);
        }
    }),
    change("mcs-logout-other", "expected response 0, came 01", |pdu| logs_out(pdu, 1)),
    by("mcs-logout-other", "the connection that was logged out stays open", |wire, pdu| {
        if pdu.conn == 2 {
            wire.keep_open(2);
        }
        wire.pass(pdu);
    }),
    by("mcs-lost", "the connection was closed", |wire, pdu| {
        // The first connection has started twice when the second is dropped.
        wire.count += u32::from(pdu.conn == 1 && pdu.of(Opcode::SCSI_COMMAND, READ_CAPACITY));
        let is_after = wire.count == 2 && pdu.conn == 1 && pdu.of(Opcode::SCSI_COMMAND, TEST_UNIT_READY);
        if is_after { wire.close(1) } else { wire.pass(pdu) }
    }),
    loss("mcs-immediate", "expected NOP_IN", |pdu| pdu.is(Opcode::NOP_IN)),
];

/// Keeps the connection open after a logout.
fn keeps_connections(wire: &mut Wire, pdu: Pdu) {
    if pdu.is(Opcode::LOGOUT_RESPONSE) {
        wire.keep_open(pdu.conn);
    }
    wire.pass(pdu);
}

fn rejects_another_header(pdu: &mut Pdu) {
    if pdu.is(Opcode::REJECT) {
        pdu.data[16] ^= 1;
    }
}

/// Rejects Data-Out of a task that is none, which the true target passes over.
fn rejects_foreign_data(wire: &mut Wire, pdu: Pdu, change: fn(&mut Pdu)) {
    let is_foreign = pdu.is(Opcode::DATA_OUT) && wire.command_of(&pdu).is_none();
    if !is_foreign {
        return wire.pass(pdu);
    }
    let mut reject = reject(&pdu);
    change(&mut reject);
    wire.say(reject);
}

/// Returns a Reject of a PDU.
fn reject(pdu: &Pdu) -> Pdu {
    let mut reject = Pdu::new(pdu.conn, Opcode::REJECT);
    reject.header[1] = FINAL;
    reject.header[2] = 2;
    reject.set(ITT, u32::MAX);
    reject.data = pdu.header.to_vec();
    reject
}

fn spoils_pings(pdu: &mut Pdu) {
    if pdu.is(Opcode::NOP_IN) {
        pdu.spoil();
    }
}

/// Returns a NOP-In that asks for no answer.
fn nop(conn: usize) -> Pdu {
    let mut nop = Pdu::new(conn, Opcode::NOP_IN);
    nop.header[1] = FINAL;
    nop.set(ITT, u32::MAX);
    nop.set(TTT, u32::MAX);
    nop
}

/// Sends a ping of the target after the READ CAPACITY that ends the start of an initiator.
fn pings(wire: &mut Wire, pdu: Pdu, change: fn(&mut Pdu)) {
    let (conn, is_start) = (pdu.conn, pdu.operation == Some(READ_CAPACITY));
    let ends = is_start && pdu.is_from_target();
    // The answer to the ping is not for the true target.
    if !pdu.is(Opcode::NOP_OUT) {
        wire.pass(pdu);
    }
    if ends {
        let mut ping = nop(conn);
        ping.set(TTT, 0x5555);
        change(&mut ping);
        wire.say(ping);
    }
}
