//! Tests a unit whose logical block length changes under an open disk.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use super::relay::{HEADER, Relay, check_condition};
use super::*;
use scsi::opcode as op;

/// Writes are few: the unit of 512-byte blocks counts them.
fn writes(sent: &[u8]) -> usize {
    sent.iter().filter(|code| **code == op::WRITE_16).count()
}

#[test]
fn a_unit_with_other_blocks_is_another_device() {
    for (lun, by_attention) in [(11, true), (12, false)] {
        let relay = Relay::of(lun);
        let disk = block_on(Disk::open(relay.url())).unwrap();
        block_on(disk.write(0, list(&[1; 512]), Durability::Cached)).unwrap();
        let mut attention = by_attention;
        relay.change(move |cdb, pdu| {
            if cdb[0] == op::SERVICE_ACTION_IN_16 && pdu.len() >= HEADER + 12 {
                pdu[HEADER + 8..HEADER + 12].copy_from_slice(&4096_u32.to_be_bytes());
            }
            if cdb[0] == op::READ_16 && std::mem::take(&mut attention) {
                check_condition(pdu, 0x70, 6, 0x2a09);
            }
        });
        relay.sent();
        if by_attention {
            let error = block_on(disk.read(0, 512)).unwrap_err();
            assert!(matches!(error, Error::Command(CommandError::OtherDevice(_))), "{error:?}");
        } else {
            relay.cut();
        }
        let error = block_on(disk.write(512, list(&[2; 512]), Durability::Cached)).unwrap_err();
        let text = error.report().to_string();
        assert!(matches!(error, Error::Command(CommandError::OtherDevice(_))), "{text}");
        assert!(text.contains("512 bytes") && text.contains("4096 bytes"), "{text}");
        assert_eq!(writes(&relay.sent()), 0);
    }
}

#[test]
fn a_unit_that_grows_is_the_same_device() {
    let relay = Relay::of(13);
    let disk = block_on(Disk::open(relay.url())).unwrap();
    block_on(disk.write(0, list(&[1; 512]), Durability::Cached)).unwrap();
    let told = Arc::new(AtomicBool::new(false));
    let tell = Arc::clone(&told);
    relay.change(move |cdb, pdu| {
        if cdb[0] == op::SERVICE_ACTION_IN_16 && pdu.len() >= HEADER + 12 {
            pdu[HEADER..HEADER + 8].copy_from_slice(&0x7fff_u64.to_be_bytes());
        }
        if cdb[0] == op::READ_16 && !tell.swap(true, Ordering::AcqRel) {
            check_condition(pdu, 0x70, 6, 0x2a09);
        }
    });
    block_on(disk.read(0, 512)).unwrap();
    assert!(told.load(Ordering::Acquire));
    let began = Instant::now();
    while disk.size() != 16 << 20 {
        assert!(began.elapsed() < HANG, "it has {} bytes", disk.size());
        std::thread::sleep(Duration::from_millis(1));
    }
}
