//! MODE SENSE and MODE SELECT: the header, the block descriptor, and the pages of a tape drive.

use super::*;

#[test]
fn the_header_alone_is_what_linux_requests() {
    let mut rig = tape();
    let wanted = [11, 0x88, 0x10, 8, 0x5e, 0, 0, 0, 0, 0, 0, 0];
    assert_eq!(rig.query(&[0x1a, 0, 0, 0, 12, 0]), wanted);
    assert_eq!(rig.query(&[0x1a, 8, 0, 0, 12, 0]), [3, 0x88, 0x10, 0]);
    let ten = rig.query(&[0x5a, 0, 0, 0, 0, 0, 0, 0, 255, 0]);
    assert_eq!(ten, [0, 14, 0x88, 0x10, 0, 0, 0, 8, 0x5e, 0, 0, 0, 0, 0, 0, 0]);
    let long = rig.query(&[0x5a, 0x10, 0, 0, 0, 0, 0, 0, 255, 0]);
    assert_eq!(long, ten, "a tape has no long block descriptor");
}

#[test]
fn the_block_length_is_what_a_host_sets() {
    let mut rig = tape();
    rig.set_block_len(0x01_0203);
    assert_eq!(rig.query(&[0x1a, 0, 0, 0, 12, 0])[8..], [0, 1, 2, 3]);
    let too_long = [0, 0, 0x10, 8, 0, 0, 0, 0, 0, 0x80, 0, 1];
    rig.run(A, &[0x15, 0x10, 0, 0, 12, 0], 0, &too_long).illegal(Asc::INVALID_FIELD_IN_PARAMETER_LIST);
    assert_eq!(rig.query(&[0x1a, 0, 0, 0, 12, 0])[8..], [0, 1, 2, 3]);
    // Without PF, as older programs send it.
    let list = [0, 0, 0x10, 8, 0x7f, 0, 0, 0, 0, 0, 2, 0];
    rig.run(A, &[0x15, 0, 0, 0, 12, 0], 0, &list).good();
    assert_eq!(rig.query(&[0x1a, 0, 0, 0, 12, 0])[8..], [0, 0, 2, 0]);
}

#[test]
fn a_list_that_is_wrong_changes_nothing() {
    let mut rig = tape();
    let lists = [
        [0, 0, 0x20, 8, 0, 0, 0, 0, 0, 0, 2, 0],
        [0, 0, 0x11, 8, 0, 0, 0, 0, 0, 0, 2, 0],
        [0, 0, 0x10, 8, 0x46, 0, 0, 0, 0, 0, 2, 0],
        [0, 0x48, 0x10, 8, 0, 0, 0, 0, 0, 0, 2, 0],
        [0, 0, 0x10, 7, 0, 0, 0, 0, 0, 0, 2, 0],
    ];
    for list in lists {
        let reply = rig.run(A, &[0x15, 0x10, 0, 0, 12, 0], 0, &list);
        assert_eq!(reply.sense.unwrap().0, SenseKey::ILLEGAL_REQUEST, "{list:02x?}");
    }
    assert_eq!(rig.query(&[0x1a, 0, 0, 0, 12, 0])[8..], [0; 4]);
    let same = [0, 0x88, 0x10, 8, 0x5e, 0, 0, 0, 0, 0, 0, 0];
    rig.run(A, &[0x15, 0x10, 0, 0, 12, 0], 0, &same).good();
}

#[test]
fn a_reset_restores_the_defaults() {
    let mut rig = tape();
    rig.set_block_len(512);
    rig.unit.reset(Instant::ORIGIN, crate::unit::Reset::LogicalUnit);
    rig.test_ready(A);
    assert_eq!(rig.query(&[0x1a, 0, 0, 0, 12, 0])[8..], [0; 4]);
}

#[test]
fn the_pages_are_those_of_a_tape_drive() {
    let mut rig = tape();
    let codes = |data: &[u8]| {
        let (mut at, mut codes) = (8, Vec::new());
        while at < data.len() {
            let has_subpage = data[at] & 0x40 != 0;
            let len = if has_subpage { 4 + usize::from(data[at + 3]) } else { 2 + usize::from(data[at + 1]) };
            codes.push((data[at] & 0x3f, if has_subpage { data[at + 1] } else { 0 }));
            at += len;
        }
        codes
    };
    let plain = [(1, 0), (0x0a, 0), (0x0f, 0), (0x10, 0), (0x11, 0), (0x1a, 0), (0x1c, 0), (0x1d, 0)];
    assert_eq!(codes(&rig.query(&[0x5a, 8, 0x3f, 0, 0, 0, 0, 1, 0, 0])), plain);
    let all = [
        (1, 0),
        (0x0a, 0),
        (0x0a, 1),
        (0x0a, 0xf0),
        (0x0f, 0),
        (0x10, 0),
        (0x10, 1),
        (0x11, 0),
        (0x1a, 0),
        (0x1c, 0),
        (0x1d, 0),
    ];
    assert_eq!(codes(&rig.query(&[0x5a, 8, 0x3f, 0xff, 0, 0, 0, 1, 0, 0])), all);
    rig.run(A, &[0x1a, 8, 0x08, 0, 255, 0], 255, &[]).illegal(Asc::INVALID_FIELD_IN_CDB);
}

#[test]
fn a_worm_cartridge_is_told_by_the_medium_configuration_page() {
    for is_worm in [false, true] {
        let (mut rig, _) = with(Kind { is_worm, ..Kind::USUAL });
        let page = rig.query(&[0x5a, 0, 0x1d, 0, 0, 0, 0, 0x10, 0, 0]);
        assert_eq!((page.len(), &page[16..22]), (48, &[0x1d, 30, u8::from(is_worm), 0, 0, 2][..]));
        assert!(page[22..].iter().all(|byte| *byte == 0));
    }
}

#[test]
fn one_partition_has_the_whole_capacity() {
    let (mut rig, _) = with(Kind { capacity: 5_000_000_000, ..Kind::USUAL });
    let page = rig.query(&[0x1a, 8, 0x11, 0, 255, 0]);
    assert_eq!(page[4..], [0x11, 14, 3, 0, 0x1c, 3, 9, 0, 0, 5, 0, 0, 0, 0, 0, 0]);
    let changeable = rig.query(&[0x1a, 8, 0x51, 0, 255, 0]);
    assert_eq!(changeable[6..12], [0, 0xff, 0xf8, 0, 0x0f, 0]);
}
