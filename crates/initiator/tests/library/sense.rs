//! Tests CHECK CONDITIONs that do not say that their own command failed.

use super::relay::{Relay, check_condition};
use super::*;
use scsi::opcode as op;

#[test]
fn a_recovered_error_is_a_success() {
    let relay = Relay::of(14);
    let disk = block_on(Disk::open(relay.url())).unwrap();
    for (key, asc) in [(0, 0), (1, 0x1700)] {
        relay.change(move |cdb, pdu| {
            if [op::WRITE_16, op::SYNCHRONIZE_CACHE_10].contains(&cdb[0]) {
                check_condition(pdu, 0x70, key, asc);
            }
        });
        block_on(disk.write(0, list(&[1; 512]), Durability::Cached)).unwrap();
        block_on(disk.flush()).unwrap();
    }
    relay.change(|cdb, pdu| {
        if cdb[0] == op::WRITE_16 {
            pdu[1] |= 2;
            pdu[44..48].copy_from_slice(&512_u32.to_be_bytes());
            check_condition(pdu, 0x70, 1, 0x1700);
        }
    });
    let error = block_on(disk.write(0, list(&[1; 512]), Durability::Cached)).unwrap_err();
    assert!(matches!(error, Error::Command(CommandError::Untaken { taken: 0, wanted: 512 })), "{error:?}");
}

#[test]
fn a_write_that_was_lost_later_fails_one_flush() {
    let relay = Relay::of(15);
    let disk = block_on(Disk::open(relay.url())).unwrap();
    // With the write, and with the flush itself.
    for code in [op::WRITE_16, op::SYNCHRONIZE_CACHE_10] {
        let mut left = 1;
        relay.change(move |cdb, pdu| {
            if cdb[0] == code && left > 0 {
                left -= 1;
                check_condition(pdu, 0x71, 3, 0x0c00);
            }
        });
        relay.sent();
        block_on(disk.write(0, list(&[1; 512]), Durability::Cached)).unwrap();
        match block_on(disk.flush()) {
            Err(Error::Command(CommandError::Sense(sense))) => {
                assert!(sense.deferred && sense.key == SenseKey::MEDIUM_ERROR, "{sense:?}");
            }
            other => panic!("{other:?}"),
        }
        let twice = relay.sent().into_iter().filter(|sent| *sent == code).count();
        assert_eq!(twice, 2, "the command that got it was not executed");
        block_on(disk.flush()).unwrap();
    }
}

#[test]
fn a_write_that_was_lost_fails_one_flush_of_every_handle() {
    let relay = Relay::of(18);
    let disk = block_on(Disk::open(relay.url())).unwrap();
    let before = disk.clone();
    let mut left = 1;
    relay.change(move |cdb, pdu| {
        if cdb[0] == op::WRITE_16 && left > 0 {
            left -= 1;
            check_condition(pdu, 0x71, 3, 0x0c00);
        }
    });
    block_on(disk.write(0, list(&[1; 512]), Durability::Cached)).unwrap();
    let unreported = disk.clone();
    block_on(disk.flush()).unwrap_err();
    let reported = disk.clone();
    for (handle, fails) in [(&disk, false), (&before, true), (&unreported, true), (&reported, false)] {
        assert_eq!(block_on(handle.flush()).is_err(), fails);
        block_on(handle.flush()).unwrap();
    }
}

#[test]
fn a_write_that_was_lost_fails_what_is_durable_with_it() {
    let relay = Relay::of(16);
    let disk = block_on(Disk::open(relay.url())).unwrap();
    let zeroes =
        || OpAction::WriteZeroes { at: 0, len: 512, may_deallocate: false, durability: Durability::Stable };
    let make_durable = || block_on(disk.perform(zeroes()));
    for code in [op::WRITE_SAME_16, op::SYNCHRONIZE_CACHE_10] {
        let mut left = 1;
        relay.change(move |cdb, pdu| {
            if cdb[0] == code && left > 0 {
                left -= 1;
                check_condition(pdu, 0x71, 3, 0x0c00);
            }
        });
        let error = make_durable().unwrap_err();
        assert!(
            matches!(error, Error::Command(CommandError::Sense(sense)) if sense.deferred),
            "{code:x}: {error:?}"
        );
        make_durable().unwrap();
        // Other writes may be lost with it.
        block_on(disk.flush()).unwrap_err();
        block_on(disk.flush()).unwrap();
    }
}
