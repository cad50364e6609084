//! ErrorRecoveryLevel 1 (RFC 7143 §7.1.5): lost PDUs are sent again, and illegal requests for them are
//! rejected.

mod acknowledged;
mod digests;
mod recovery_r2t;
mod snack;

use alloc::vec::Vec;

use base::state_machine::ConnId;
use transport::target::{Finish, TargetTransport};

use super::world::{Got, World, keys, pattern};
use crate::negotiate::KeyPolicy;
use crate::pdu::data_in::DataIn;
use crate::pdu::nop_out::NopOut;
use crate::pdu::reject::{Reject, RejectReason};
use crate::pdu::snack::{Snack, SnackKind};
use crate::pdu::{Itt, PduHeader, TargetSn, Ttt};
use crate::serial::StatSn;
use crate::target::engine::Limits;

const DIGESTS: [&str; 2] = ["HeaderDigest=CRC32C", "DataDigest=CRC32C"];
const LEVEL: &str = "ErrorRecoveryLevel=1";

pub(super) fn policy(level: u8) -> KeyPolicy {
    KeyPolicy { error_recovery_level: level, ..keys() }
}

fn world() -> World {
    World::with(Limits::default(), policy(1))
}

/// Logs in at level 1 with digests and small bursts.
fn login(world: &mut World, more: &[&str]) -> ConnId {
    let keys = ["MaxBurstLength=4096", "FirstBurstLength=1024", "MaxRecvDataSegmentLength=1024", LEVEL];
    world.login(&[&keys, &DIGESTS[..], more].concat()).0
}

pub(super) fn snack(kind: SnackKind, itt: Itt, (beg_run, run_length): (u32, u32)) -> Snack {
    Snack { kind, lun: 0, itt, tag: u32::MAX, exp_stat_sn: StatSn(0), beg_run, run_length }
}

/// Starts a read and answers it completely. Returns its tag and all PDUs received.
fn read_all(world: &mut World, conn: ConnId, len: u32) -> (Itt, Vec<DataIn>) {
    let read = world.read(conn, len);
    let command = world.start(conn, &read, &[]);
    let data = pattern(0, len as usize);
    world.engine.data_in(command.task, 0, base::buffer::Bytes::copied_from(&data).into());
    world.finish(command.task, Finish::good(len.into()));
    let mut got = Vec::new();
    while let Some(pdu) = world.receive(conn) {
        let header = pdu.read::<DataIn>();
        assert_eq!(pdu.data, data[header.buffer_offset as usize..][..pdu.data.len()]);
        got.push(without_counters(header));
    }
    (read.itt, got)
}

/// Reads Data-In PDUs, checks their data against the pattern, and returns them.
fn data_ins(world: &mut World, conn: ConnId) -> Vec<DataIn> {
    let mut got = Vec::new();
    while let Some(pdu) = world.receive(conn) {
        let header = pdu.read::<DataIn>();
        assert_eq!(pdu.data, pattern(header.buffer_offset, pdu.data.len()));
        got.push(without_counters(header));
    }
    got
}

/// Returns everything of a PDU but ExpCmdSN and MaxCmdSN.
fn as_kept(got: &Got) -> (Vec<u8>, Vec<u8>) {
    let mut bytes = got.bhs.to_bytes().to_vec();
    bytes[28..36].fill(0);
    (bytes, got.data.clone())
}

/// Clears ExpCmdSN and MaxCmdSN, which have their present values in a retransmission too.
fn without_counters(pdu: DataIn) -> DataIn {
    let sn = TargetSn { stat_sn: pdu.sn.stat_sn, ..TargetSn::default() };
    DataIn { sn, ..pdu }
}

fn rejected(world: &mut World, conn: ConnId) -> RejectReason {
    world.expect::<Reject>(conn).reason
}

/// Acknowledges every status before `exp` with a ping that requests no answer.
pub(super) fn ack(world: &mut World, conn: ConnId, exp: StatSn) {
    let (_, cmd_sn) = world.numbers(conn);
    let ping = NopOut { immediate: true, lun: 0, itt: Itt::NONE, ttt: Ttt::NONE, cmd_sn, exp_stat_sn: exp };
    world.send(conn, &ping, &[]);
}

/// Sends a PDU with one flipped bit.
fn send_hurt(world: &mut World, conn: ConnId, message: &impl PduHeader, data: &[u8], bit: usize) {
    let mut bytes = world.frame(conn, message.encode(), &[], data);
    bytes[bit / 8] ^= 1 << (bit % 8);
    world.feed(conn, &bytes);
}
