//! Tests a write cache that is switched on while a disk is open.

use super::relay::{Relay, check_condition};
use super::*;
use scsi::opcode as op;

/// WCE of the caching mode page.
const WCE: u8 = 0x04;

/// Sets WCE by MODE SELECT.
fn set_write_cache(disk: &Disk, on: bool) {
    let command = |bytes| disk.command(Cdb::from_bytes(bytes).unwrap());
    let sense = block_on(disk.run(command(&[op::MODE_SENSE_6, 8, 0x08, 0, 192, 0]).reading(192))).unwrap();
    let mut list = sense.bytes().to_vec();
    list[..4].fill(0);
    list[4] &= 0x3f;
    list[6] = if on { list[6] | WCE } else { list[6] & !WCE };
    let len = u8::try_from(list.len()).unwrap();
    let select = command(&[op::MODE_SELECT_6, 0x10, 0, 0, len, 0]).writing(Bytes::copied_from(&list));
    block_on(disk.run(select)).unwrap();
}

/// Returns whether a command is a SYNCHRONIZE CACHE.
fn is_sync(code: &u8) -> bool {
    [op::SYNCHRONIZE_CACHE_10, op::SYNCHRONIZE_CACHE_16].contains(code)
}

fn write(disk: &Disk, durability: Durability) {
    block_on(disk.write(0, list(&[1; 512]), durability)).unwrap();
}

/// Waits until the disk reports this about its cache.
fn await_cache(disk: &Disk, is_volatile: bool) {
    let began = Instant::now();
    while disk.capabilities().volatile_cache != is_volatile {
        assert!(began.elapsed() < HANG, "the cache stays {}", !is_volatile);
        std::thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn a_cache_that_is_switched_on_later_is_flushed() {
    let (relay, other) = (Relay::of(8), disk(8));
    set_write_cache(&other, false);
    let disk = block_on(Disk::open(relay.url())).unwrap();
    assert!(!disk.capabilities().volatile_cache);
    relay.sent();
    write(&disk, Durability::Cached);
    block_on(disk.flush()).unwrap();
    assert!(!relay.sent().iter().any(is_sync), "nothing is to be flushed");
    // The write gets the unit attention, which it absorbs.
    set_write_cache(&other, true);
    write(&disk, Durability::Cached);
    block_on(disk.flush()).unwrap();
    assert!(relay.sent().iter().any(is_sync));
    assert!(disk.capabilities().volatile_cache);
    // A durable write that gets it was sent without FUA.
    set_write_cache(&other, false);
    write(&disk, Durability::Cached);
    await_cache(&disk, false);
    set_write_cache(&other, true);
    relay.sent();
    write(&disk, Durability::Stable);
    assert!(relay.sent().iter().any(is_sync));
    // While the unit does not tell its mode pages, its cache counts as volatile.
    set_write_cache(&other, false);
    write(&disk, Durability::Cached);
    await_cache(&disk, false);
    relay.change(|cdb, pdu| {
        if [op::MODE_SENSE_6, op::MODE_SENSE_10].contains(&cdb[0]) {
            check_condition(pdu, 0x70, 4, 0x4400);
        }
    });
    assert_eq!(
        block_on(other.unit().submit_tmf(TmfFunction::LOGICAL_UNIT_RESET)).unwrap(),
        Some(TmfResult::COMPLETE)
    );
    write(&disk, Durability::Cached);
    relay.sent();
    block_on(disk.flush()).unwrap();
    assert!(relay.sent().iter().any(is_sync));
}

#[test]
fn a_cache_that_is_switched_on_before_a_new_session_is_flushed() {
    let (relay, other) = (Relay::of(9), disk(9));
    set_write_cache(&other, false);
    let disk = block_on(Disk::open(relay.url())).unwrap();
    // The unit attention is not what tells it.
    relay.change(|cdb, pdu| {
        if cdb[0] == op::WRITE_16 && pdu[3] == 2 {
            check_condition(pdu, 0x70, 6, 0x3f0e);
        }
    });
    write(&disk, Durability::Cached);
    assert!(!disk.capabilities().volatile_cache);
    relay.cut();
    set_write_cache(&other, true);
    write(&disk, Durability::Cached);
    relay.sent();
    block_on(disk.flush()).unwrap();
    assert!(relay.sent().iter().any(is_sync));
}
