//! Third-party copies, which know nothing of tapes.

use base::buffer::{Bytes, Pool};
use base::units::{Blocks, Lba};
use scsi::copy::ListId;
use scsi::copy::cscd::{Cscd, CscdId};
use scsi::copy::list::{CopyList, Format};
use scsi::copy::segment::SegmentAction;
use store::ram::Ram;

use super::*;
use crate::contract::{
    ThirdPartyCaller, ThirdPartyError, ThirdPartyRequest, ThirdPartyResult, ThirdPartyUnit, UnitEvent,
};
use crate::unit::LogicalUnit;

const CALLER: ThirdPartyCaller = ThirdPartyCaller { unit: 0, call: 0 };

fn ask(rig: &mut Rig, request: ThirdPartyRequest) -> ThirdPartyResult {
    rig.unit.execute_third_party(Instant::ORIGIN, CALLER, A, request);
    rig.drain();
    let at = rig.events.iter().position(|event| matches!(event, UnitEvent::ThirdPartyReply { .. })).unwrap();
    match rig.events.remove(at) {
        Some(UnitEvent::ThirdPartyReply { result, .. }) => result,
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_tape_drive_executes_no_command_of_a_copy_manager() {
    let mut rig = tape();
    for request in [
        ThirdPartyRequest::Write { lba: Lba(0), data: Bytes::copied_from(&[7; 2048]).into() },
        ThirdPartyRequest::Read { lba: Lba(0), blocks: Blocks(1) },
        ThirdPartyRequest::Zero { lba: Lba(0), blocks: Blocks(1) },
        ThirdPartyRequest::Flush,
    ] {
        assert!(matches!(ask(&mut rig, request), Err(ThirdPartyError::NotReachable)));
    }
    rig.read_block(2048).stopped(END_OF_DATA, 0, Some(2048));
}

/// A segment of blocks would write another number of bytes than it copies.
#[test]
fn an_extended_copy_between_a_disk_and_a_tape_drive_is_refused() {
    let mut identity = config().identity;
    identity.naa[15] = 1;
    let disk = UnitConfig { identity, ..config() };
    let cscd = |device_type, unit: &UnitConfig| Cscd {
        device_type,
        code_set: 1,
        kind: 3,
        association: 0,
        designator: unit.identity.naa.clone(),
        pad: false,
        block_len: 512,
        null: false,
    };
    for (from, to) in [(0, 1), (1, 0)] {
        let unit = LogicalUnit::new(disk.clone(), Box::new(Ram::new(1 << 20)), None, Pool::new(1 << 20));
        let (mut disk_rig, mut tape) = (Rig::of(unit.unwrap()), tape());
        let mut list = CopyList::new(Format::Lid1, ListId(1));
        list.cscds = Vec::from([cscd(0, &disk), cscd(1, &drive())]);
        list.push(SegmentAction::Blocks {
            counts_destination: false,
            keep_residual: false,
            source: CscdId(from),
            destination: CscdId(to),
            count: 8,
            source_lba: Lba(0),
            destination_lba: Lba(0),
        });
        let bytes = list.to_bytes();
        let [high, low] = u16::try_from(bytes.len()).unwrap().to_be_bytes();
        let cdb = [0x83, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, high, low, 0, 0];
        let key = disk_rig.start(A, &cdb, 0, bytes.len());
        disk_rig.send(key, &bytes, 0, u32::from(u16::from_be_bytes([high, low])));
        // The copy manager calls both units.
        while let Some(at) =
            disk_rig.events.iter().position(|event| matches!(event, UnitEvent::ThirdPartyCall(_)))
        {
            let Some(UnitEvent::ThirdPartyCall(call)) = disk_rig.events.remove(at) else { panic!() };
            let ThirdPartyUnit::Designator { code_set, kind, designator } = &call.unit else { panic!() };
            let is_tape = tape.unit.is_designated_by(*code_set, *kind, designator);
            let result = ask(if is_tape { &mut tape } else { &mut disk_rig }, call.request);
            disk_rig.unit.third_party_reply(Instant::ORIGIN, call.call, result);
            disk_rig.drain();
        }
        disk_rig.event_of(key);
        disk_rig.finish(key, &[]).check(SenseKey::COPY_ABORTED, Asc::INCORRECT_COPY_TARGET_DEVICE_TYPE);
        tape.read_block(2048).stopped(END_OF_DATA, 0, Some(2048));
    }
}
