//! Tests flushes that the unit refuses.

use super::relay::{Relay, check_condition};
use super::*;
use scsi::opcode as op;

/// Which commands the unit lacks, and what it tells of its cache.
#[derive(Clone, Copy)]
struct Unit {
    /// The additional sense code of SYNCHRONIZE CACHE (10) and (16); zero: it is executed.
    sync_10: u16,
    sync_16: u16,
    /// Whether it has the caching mode page.
    tells: bool,
}

#[test]
fn a_flush_that_the_unit_does_not_execute_is_no_success() {
    let relay = Relay::of(10);
    let disk = block_on(Disk::open(relay.url())).unwrap();
    let (absent, invalid) = (0x2000, 0x2400);
    let fails = |unit: Unit, is_volatile: bool| {
        relay.change(move |cdb, pdu| {
            let asc = match cdb[0] {
                op::SYNCHRONIZE_CACHE_10 => unit.sync_10,
                op::SYNCHRONIZE_CACHE_16 => unit.sync_16,
                op::MODE_SENSE_6 | op::MODE_SENSE_10 if !unit.tells => invalid,
                op::MODE_SENSE_6 if pdu.len() > 48 + 6 => {
                    pdu[48 + 6] = if is_volatile { pdu[48 + 6] | 4 } else { pdu[48 + 6] & !4 };
                    0
                }
                _ => 0,
            };
            if asc != 0 {
                check_condition(pdu, 0x70, 5, asc);
            }
        });
        block_on(disk.flush()).is_err()
    };
    assert!(!fails(Unit { sync_10: 0, sync_16: absent, tells: true }, true));
    assert!(!fails(Unit { sync_10: absent, sync_16: 0, tells: true }, true), "the 16-byte form is sent");
    assert!(fails(Unit { sync_10: absent, sync_16: absent, tells: true }, true));
    assert!(!fails(Unit { sync_10: absent, sync_16: absent, tells: true }, false));
    assert!(!fails(Unit { sync_10: absent, sync_16: absent, tells: false }, true), "it has no cache");
    assert!(fails(Unit { sync_10: invalid, sync_16: 0, tells: true }, true));
    assert!(fails(Unit { sync_10: absent, sync_16: invalid, tells: true }, true));
    assert!(fails(Unit { sync_10: invalid, sync_16: invalid, tells: false }, true));
}
