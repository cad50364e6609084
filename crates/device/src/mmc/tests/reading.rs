//! READ, READ CAPACITY and READ CD.

use super::*;

fn filled(sectors: u64) -> Rig {
    let (rig, tray) = with_tray(sectors);
    for (lba, byte) in [(0, 0x11), (1, 0x22), (2, 0x33)] {
        tray.fill(lba, byte);
    }
    tray.fill(sectors - 1, 0xee);
    rig
}

#[test]
fn blocks_are_read_as_from_a_disk() {
    let mut rig = filled(CD);
    assert_eq!(rig.get(&[0x25, 0, 0, 0, 0, 0, 0, 0, 0, 0]), [0, 0x04, 0x93, 0xdf, 0, 0, 8, 0]);
    let two = rig.get(&[0x28, 0, 0, 0, 0, 0, 0, 0, 2, 0]);
    assert_eq!((two.len(), two[0], two[2047], two[2048]), (4096, 0x11, 0x11, 0x22));
    let last = rig.get(&[0xa8, 0, 0, 0x04, 0x93, 0xdf, 0, 0, 0, 1, 0, 0]);
    assert_eq!(last, [0xee; 2048]);
    for cdb in [
        &[0x28, 0, 0, 0x04, 0x93, 0xdf, 0, 0, 2, 0][..],
        &[0xa8, 0, 0xff, 0xff, 0xff, 0xff, 0, 0, 0, 1, 0, 0],
    ] {
        rig.run(A, cdb, 4096, &[]).illegal(Asc::LBA_OUT_OF_RANGE);
    }
}

/// Returns READ CD with the flags of byte 9.
fn read_cd(lba: u8, sectors: u8, flags: u8) -> [u8; 12] {
    [0xbe, 0, 0, 0, 0, lba, 0, 0, sectors, flags, 0, 0]
}

#[test]
fn read_cd_delivers_the_parts_that_it_is_asked_for() {
    let mut rig = filled(CD);
    let user = rig.get(&read_cd(1, 2, 0x10));
    assert_eq!((user.len(), user[0], user[2048]), (4096, 0x22, 0x33));
    assert_eq!(rig.get(&read_cd(1, 1, 0x50)), user[..2048], "mode 1 has no subheader");
    assert_eq!(rig.get(&read_cd(1, 3, 0x20)), [0, 2, 1, 1, 0, 2, 2, 1, 0, 2, 3, 1]);
    assert_eq!(rig.get(&read_cd(1, 3, 0)), [0; 0]);
    let whole = rig.get(&read_cd(1, 2, 0xf8));
    assert_eq!(whole.len(), 2 * 2352);
    assert_eq!(whole[..16], [0, 255, 255, 255, 255, 255, 255, 255, 255, 255, 255, 0, 0, 2, 1, 1]);
    assert_eq!((whole[16..2064].to_vec(), whole[2352 + 16]), (user[..2048].to_vec(), 0x33));
    assert_eq!(rig.get(&read_cd(1, 1, 0x18)), whole[16..2352]);
    let msf = [0xb9, 0, 0, 0, 2, 1, 0, 2, 3, 0xf8, 0, 0];
    assert_eq!(rig.get(&msf), whole);
}

#[test]
fn read_cd_stops_where_the_initiator_has_no_room() {
    let mut rig = filled(CD);
    let whole = rig.get(&read_cd(0, 100, 0xf8));
    assert_eq!(whole.len(), 100 * 2352);
    let reply = rig.run(A, &read_cd(0, 100, 0xf8), 70 * 2352 + 5, &[]);
    assert_eq!(reply.transferable, 100 * 2352);
    assert_eq!(reply.good(), whole[..70 * 2352 + 5]);
}

#[test]
fn read_cd_is_bounded_as_other_reads_are() {
    let mut rig = filled(CD);
    let most = drive(None).transfer_blocks_max;
    for (flags, most) in [(0x10, most), (0xf0, most), (0xf8, 256)] {
        let [_, high, middle, low] = (most + 1).to_be_bytes();
        let refused = [0xbe, 0, 0, 0, 0, 0, high, middle, low, flags, 0, 0];
        rig.run(A, &refused, 4096, &[]).illegal(Asc::INVALID_FIELD_IN_CDB);
        let [_, high, middle, low] = most.to_be_bytes();
        let allowed = [0xbe, 0, 0, 0, 0, 0, high, middle, low, flags, 0, 0];
        assert_eq!(rig.run(A, &allowed, 4096, &[]).good().len(), 4096, "{flags:x}");
    }
}

#[test]
fn read_cd_refuses_what_an_image_has_not() {
    let mut rig = filled(CD);
    for flags in [0x90, 0x98, 0x28, 0x08, 0x88, 0x12] {
        rig.run(A, &read_cd(0, 1, flags), 4096, &[]).illegal(Asc::INVALID_FIELD_IN_CDB);
    }
    let mut sub_channel = read_cd(0, 1, 0x10);
    sub_channel[10] = 1;
    rig.run(A, &sub_channel, 4096, &[]).illegal(Asc::INVALID_FIELD_IN_CDB);
    for (kind, is_legal) in [(1, false), (2, true), (3, false), (4, false), (5, false)] {
        let mut cdb = read_cd(0, 1, 0x10);
        cdb[1] = kind << 2;
        let reply = rig.run(A, &cdb, 4096, &[]);
        if is_legal {
            reply.good();
        } else {
            reply.illegal(Asc::ILLEGAL_MODE_FOR_THIS_TRACK);
        }
    }
    let behind = [0xbe, 0, 0, 0x04, 0x93, 0xdf, 0, 0, 2, 0xf8, 0, 0];
    rig.run(A, &behind, 4096, &[]).illegal(Asc::LBA_OUT_OF_RANGE);
    rig.run(A, &[0xb9, 0, 0, 0, 1, 0, 0, 2, 0, 0x10, 0, 0], 4096, &[]).illegal(Asc::LBA_OUT_OF_RANGE);
    rig.run(A, &[0xb9, 0, 0, 0, 3, 0, 0, 2, 0, 0x10, 0, 0], 4096, &[]).illegal(Asc::INVALID_FIELD_IN_CDB);
    disc(DVD).run(A, &read_cd(0, 1, 0x10), 4096, &[]).illegal(Asc::CANNOT_READ_MEDIUM_INCOMPATIBLE_FORMAT);
}

#[test]
fn commands_of_disks_do_not_exist() {
    let mut rig = disc(CD);
    for opcode in [
        op::READ_6,
        op::WRITE_6,
        op::READ_16,
        op::UNMAP,
        op::SERVICE_ACTION_IN_16,
        op::SYNCHRONIZE_CACHE_16,
        op::THIRD_PARTY_COPY_OUT,
        op::VERIFY_12,
    ] {
        let mut cdb = [0; 16];
        cdb[0] = opcode;
        rig.run(A, &cdb, 0, &[]).illegal(Asc::INVALID_COMMAND_OPERATION_CODE);
    }
}
