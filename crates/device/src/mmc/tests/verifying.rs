//! VERIFY(10) and WRITE AND VERIFY(10).

use super::*;
use crate::testing::cdb_10;

const CAPACITY: u32 = 640;
const BYTCHK: u8 = 0x02;
const MISCOMPARE: (SenseKey, Asc) = (SenseKey::MISCOMPARE, Asc::MISCOMPARE_DURING_VERIFY);

fn verify(flags: u8, lba: u32, sectors: u16) -> [u8; 10] {
    cdb_10(op::VERIFY_10, flags, lba, sectors)
}

fn write_and_verify(flags: u8, lba: u32, sectors: u16) -> [u8; 10] {
    cdb_10(op::WRITE_AND_VERIFY_10, flags, lba, sectors)
}

const fn is_read(action: &OpAction) -> bool {
    matches!(action, OpAction::Read { .. })
}

#[test]
fn sectors_are_verified_and_compared() {
    let (mut rig, tray) = with_tray(CD);
    tray.fill(7, 3);
    rig.run(A, &verify(0, 0, 4096), 0, &[]).good();
    rig.run(A, &verify(0, 7, 0), 0, &[]).good();
    rig.run(A, &verify(0x10, 7, 1), 0, &[]).good();
    rig.run(A, &verify(BYTCHK, 7, 1), 0, &[3; 2048]).good();
    assert_eq!(rig.run(A, &verify(BYTCHK, 7, 1), 0, &[4; 2048]).sense, Some(MISCOMPARE));
    rig.run(A, &verify(0, u32::try_from(CD).unwrap(), 1), 0, &[]).illegal(Asc::LBA_OUT_OF_RANGE);
    let most = u16::try_from(drive(None).transfer_blocks_max).unwrap();
    rig.run(A, &verify(0, 0, most + 1), 0, &[]).illegal(Asc::INVALID_FIELD_IN_CDB);
    // Bit 2 of byte 1 is reserved, and so is byte 6.
    rig.run(A, &verify(0x04, 0, 1), 0, &[]).illegal(Asc::INVALID_FIELD_IN_CDB);
    let mut group = verify(0, 0, 1);
    group[6] = 1;
    rig.run(A, &group, 0, &[]).illegal(Asc::INVALID_FIELD_IN_CDB);
}

#[test]
fn only_discs_that_can_be_written_are_written_and_verified() {
    const PROTECTED: (SenseKey, Asc) = (SenseKey::DATA_PROTECT, Asc::WRITE_PROTECTED);
    let rom = disc(CD).run(A, &write_and_verify(0, 0, 1), 0, &[1; 2048]);
    assert_eq!(rom.sense, Some(PROTECTED));
    let mut rig = Blank::new(WritableKind::BdRe, CAPACITY).drive();
    rig.run(A, &write_and_verify(0, 0, 1), 0, &[1; 2048]).illegal(Asc::MEDIUM_NOT_FORMATTED);
}

#[test]
fn a_rewritable_disc_is_written_durably_and_read_back() {
    let disc = Blank::new(WritableKind::BdRe, CAPACITY);
    let (mut rig, drawer) = Drawer::with(&disc);
    let list = [0, 0x02, 0, 8, 0, 0, 0x02, 0x80, 0x31 << 2, 0, 0, 0];
    rig.run(A, &[0x04, 0x11, 0, 0, 0, 0], 0, &list).good();
    for flags in [0, BYTCHK] {
        rig.run(A, &write_and_verify(flags, 9, 2), 0, &[5; 4096]).good();
        assert_eq!(disc.power.sectors_at_risk(), 0, "it is durable");
        assert_eq!(rig.run(A, &cdb_10(op::READ_10, 0, 10, 1), 2048, &[]).good(), [5; 2048]);
    }
    drawer.fail(is_read);
    let unread = (SenseKey::MEDIUM_ERROR, Asc::UNRECOVERED_READ_ERROR);
    assert_eq!(rig.run(A, &write_and_verify(0, 9, 2), 0, &[6; 4096]).sense, Some(unread));
}

#[test]
fn sectors_that_read_back_otherwise_than_written_are_reported() {
    for kind in [WritableKind::BdRe, WritableKind::BdR] {
        let disc = Blank::new(kind, CAPACITY);
        let (mut rig, drawer) = Drawer::with(&disc);
        if kind == WritableKind::BdRe {
            let list = [0, 0x02, 0, 8, 0, 0, 0x02, 0x80, 0x31 << 2, 0, 0, 0];
            rig.run(A, &[0x04, 0x11, 0, 0, 0, 0], 0, &list).good();
        }
        drawer.spoil_reads();
        rig.run(A, &write_and_verify(0, 0, 1), 0, &[5; 2048]).good();
        let compared = rig.run(A, &write_and_verify(BYTCHK, 1, 1), 0, &[5; 2048]);
        assert_eq!(compared.sense, Some(MISCOMPARE), "{kind:?}");
    }
}

/// INFORMATION is an offset in bytes from the first sector of the command, in a later part of it too.
#[test]
fn the_first_byte_that_differs_is_named() {
    const LEN: usize = 600 * 2048;
    let disc = Blank::new(WritableKind::BdRe, CAPACITY);
    let (mut rig, drawer) = Drawer::with(&disc);
    let list = [0, 0x02, 0, 8, 0, 0, 0x02, 0x80, 0x31 << 2, 0, 0, 0];
    rig.run(A, &[0x04, 0x11, 0, 0, 0, 0], 0, &list).good();
    let written = alloc::vec![5; LEN];
    rig.run(A, &write_and_verify(BYTCHK, 3, 600), 0, &written).good();
    drawer.spoil_reads();
    for at in [0, 2047, 2048, LEN - 1] {
        let mut sent = alloc::vec![0; LEN];
        sent[at..].fill(7);
        for cdb in [verify(BYTCHK, 3, 600), write_and_verify(BYTCHK, 3, 600)] {
            let reply = rig.run(A, &cdb, 0, &sent);
            reply.check(MISCOMPARE.0, MISCOMPARE.1);
            assert_eq!(reply.information(), Some(u32::try_from(at).unwrap()), "{:#x}", cdb[0]);
        }
    }
}

/// The sectors stay unwritten as far as the drive counts, so the host can write them again.
#[test]
fn the_track_does_not_go_on_behind_sectors_that_read_back_otherwise() {
    let disc = Blank::new(WritableKind::BdR, CAPACITY);
    let (mut rig, drawer) = Drawer::with(&disc);
    drawer.spoil_reads();
    let reply = rig.run(A, &write_and_verify(BYTCHK, 0, 2), 0, &[5; 4096]);
    reply.check(MISCOMPARE.0, MISCOMPARE.1);
    rig.run(A, &cdb_10(op::WRITE_10, 0, 2, 1), 0, &[6; 2048]).illegal(Asc::INVALID_ADDRESS_FOR_WRITE);
    rig.run(A, &cdb_10(op::WRITE_10, 0, 0, 1), 0, &[6; 2048]).good();
}

#[test]
fn a_sequential_disc_is_appended_to_and_read_back() {
    for kind in [WritableKind::DvdR, WritableKind::BdR] {
        let disc = Blank::new(kind, CAPACITY);
        let (mut rig, drawer) = Drawer::with(&disc);
        rig.run(A, &write_and_verify(BYTCHK, 0, 2), 0, &[1; 4096]).good();
        rig.run(A, &write_and_verify(0, 0, 1), 0, &[9; 2048]).illegal(Asc::INVALID_ADDRESS_FOR_WRITE);
        drawer.fail(is_read);
        let unread = (SenseKey::MEDIUM_ERROR, Asc::UNRECOVERED_READ_ERROR);
        assert_eq!(rig.run(A, &write_and_verify(0, 2, 1), 0, &[2; 2048]).sense, Some(unread));
        drawer.fail(|_| false);
        rig.run(A, &cdb_10(op::WRITE_10, 0, 2, 1), 0, &[3; 2048]).good();
        rig.run(A, &verify(BYTCHK, 2, 1), 0, &[3; 2048]).good();
        rig.run(A, &verify(0, 3, 1), 0, &[]).illegal(Asc::LBA_OUT_OF_RANGE);
    }
}
