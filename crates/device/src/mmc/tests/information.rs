//! What is reported of the disc: table of contents, disc, track and structure.

use super::*;

fn toc(format: u8, msf: u8, track: u8, control: u8) -> [u8; 10] {
    [0x43, msf, format, 0, 0, 0, track, 0xff, 0xff, control]
}

#[test]
fn the_table_of_contents_has_one_data_track() {
    let mut rig = disc(CD);
    let lba = rig.get(&toc(0, 0, 0, 0));
    // 300 000 = 0493E0h.
    let lead_out = [0, 0x14, 0xaa, 0, 0, 0x04, 0x93, 0xe0];
    assert_eq!(lba, [&[0, 18, 1, 1, 0, 0x14, 1, 0, 0, 0, 0, 0][..], &lead_out].concat());
    assert_eq!(rig.get(&toc(0, 0, 1, 0)), lba);
    assert_eq!(rig.get(&toc(0, 0, 0xaa, 0)), [&[0, 10, 1, 1][..], &lead_out].concat());
    let msf = rig.get(&toc(0, 2, 0, 0));
    assert_eq!(msf[8..12], [0, 0, 2, 0]);
    // 300 150 frames are 66 minutes and 42 seconds.
    assert_eq!(msf[16..20], [0, 66, 42, 0]);
    for track in [2, 0xa0, 0xff] {
        rig.run(A, &toc(0, 0, track, 0), 100, &[]).illegal(Asc::INVALID_FIELD_IN_CDB);
    }
    assert_eq!(rig.run(A, &[0x43, 0, 0, 0, 0, 0, 0, 0, 4, 0], 4, &[]).good(), [0, 18, 1, 1]);
}

/// Linux asks for the last session with the format in the CONTROL byte.
#[test]
fn the_session_is_reported_in_both_forms_of_the_command() {
    let mut rig = disc(DVD);
    let expected = [0, 10, 1, 1, 0, 0x14, 1, 0, 0, 0, 0, 0];
    assert_eq!(rig.get(&toc(1, 0, 0, 0)), expected);
    assert_eq!(rig.get(&toc(0, 0, 0, 0x40)), expected);
}

#[test]
fn the_lead_in_of_a_cd_has_three_points_and_a_track() {
    let mut rig = disc(CD);
    let data = rig.get(&toc(2, 2, 1, 0));
    assert_eq!(data[..4], [0, 46, 1, 1]);
    let points: Vec<_> = data[4..].chunks(11).map(|entry| (entry[3], entry[8..].to_vec())).collect();
    let expected: [(u8, [u8; 3]); 4] =
        [(0xa0, [1, 0, 0]), (0xa1, [1, 0, 0]), (0xa2, [66, 42, 0]), (1, [0, 2, 0])];
    assert_eq!(points, expected.map(|(point, position)| (point, position.to_vec())));
    assert_eq!(rig.get(&toc(5, 2, 0, 0)), [0, 2, 0, 0], "no CD-TEXT");
    for format in [3, 4, 6, 15] {
        rig.run(A, &toc(format, 2, 0, 0), 100, &[]).illegal(Asc::INVALID_FIELD_IN_CDB);
    }
    for format in [2, 3, 4, 5] {
        disc(BD).run(A, &toc(format, 2, 0, 0), 100, &[]).illegal(Asc::INVALID_FIELD_IN_CDB);
    }
}

#[test]
fn an_address_that_minutes_cannot_express_is_the_highest() {
    let mut rig = disc(BD);
    assert_eq!(rig.get(&toc(0, 2, 0xaa, 0))[8..], [0, 255, 59, 74]);
}

#[test]
fn the_disc_is_complete() {
    let mut rig = disc(DVD);
    let data = rig.get(&[0x51, 0, 0, 0, 0, 0, 0, 0, 255, 0]);
    assert_eq!(data.len(), 34);
    assert_eq!(data[..9], [0, 32, 0x0e, 1, 1, 1, 1, 0x20, 0]);
    assert_eq!(data[16..24], [0xff; 8]);
    assert_eq!((data[9..16].to_vec(), data[24..].to_vec()), ([0; 7].to_vec(), [0; 10].to_vec()));
    rig.run(A, &[0x51, 1, 0, 0, 0, 0, 0, 0, 255, 0], 255, &[]).illegal(Asc::INVALID_FIELD_IN_CDB);
}

#[test]
fn the_track_is_found_by_block_track_and_session() {
    let mut rig = disc(CD);
    let ask = |by: u8, number: u32| {
        let [a, b, c, d] = number.to_be_bytes();
        [0x52, by, a, b, c, d, 0, 0, 255, 0]
    };
    let data = rig.get(&ask(0, 0));
    assert_eq!(data.len(), 36);
    assert_eq!(data[..8], [0, 34, 1, 1, 0, 4, 1, 0]);
    assert_eq!(data[24..28], [0, 0x04, 0x93, 0xe0]);
    assert_eq!(data[8..24], [0; 16]);
    for (by, number) in [(0, 299_999), (1, 1), (2, 1)] {
        assert_eq!(rig.get(&ask(by, number)), data);
    }
    rig.run(A, &ask(0, 300_000), 255, &[]).illegal(Asc::LBA_OUT_OF_RANGE);
    for (by, number) in [(1, 0), (1, 2), (1, 0xff), (2, 2), (3, 1)] {
        rig.run(A, &ask(by, number), 255, &[]).illegal(Asc::INVALID_FIELD_IN_CDB);
    }
}

fn structure(media: u8, layer: u8, format: u8) -> [u8; 12] {
    [0xad, media, 0, 0, 0, 0, layer, format, 0xff, 0xff, 0, 0]
}

#[test]
fn a_dvd_has_its_physical_format() {
    let mut rig = disc(DVD);
    let data = rig.get(&structure(0, 0, 0));
    assert_eq!((data.len(), &data[..4]), (2052, &[8, 2, 0, 0][..]));
    assert_eq!(data[4..8], [0x01, 0x02, 0x01, 0]);
    // 030000h + 2 000 000 - 1 = 21847Fh.
    assert_eq!(data[8..20], [0, 3, 0, 0, 0, 0x21, 0x84, 0x7f, 0, 0, 0, 0]);
    assert_eq!(rig.get(&structure(0, 0, 1)), [0, 6, 0, 0, 0, 0, 0, 0]);
    assert_eq!(rig.get(&structure(0, 0, 4)).len(), 2052);
    let list = rig.get(&structure(0, 0, 0xff));
    assert_eq!(list, [0, 14, 0, 0, 0, 0x40, 8, 4, 1, 0x40, 0, 8, 4, 0x40, 8, 4]);
    rig.run(A, &structure(0, 1, 0), 100, &[]).illegal(Asc::INVALID_FIELD_IN_CDB);
    rig.run(A, &structure(0, 0, 3), 100, &[]).illegal(Asc::INVALID_FIELD_IN_CDB);
}

#[test]
fn the_second_layer_has_the_complements_of_the_addresses_of_the_first() {
    let mut rig = disc(DVD_DL);
    let data = rig.get(&structure(0, 1, 0));
    let word = |at: usize| u32::from_be_bytes(data[at..at + 4].try_into().unwrap());
    assert_eq!(data[6], 0x31, "two layers, opposite track path");
    let (first, last, turn) = (word(8), word(12), word(16));
    let on_first = turn - first + 1;
    let on_second = last - (!turn & 0xff_ffff) + 1;
    assert_eq!((first, u64::from(on_first + on_second)), (0x03_0000, DVD_DL));
    assert_eq!(on_first % 16, 0);
}

#[test]
fn a_bd_has_disc_information_and_other_discs_have_another_structure() {
    let mut rig = disc(BD);
    let data = rig.get(&structure(1, 0, 0));
    assert_eq!((data.len(), &data[..4]), (4100, &[0x10, 2, 0, 0][..]));
    assert_eq!((&data[4..6], &data[12..15], data[16]), (&b"DI"[..], &b"BDO"[..], 0x11));
    assert_eq!(rig.get(&structure(1, 0, 0xff)), [0, 6, 0, 0, 0, 0x40, 0x10, 4]);
    for (sectors, media) in [(BD, 0), (DVD, 1), (CD, 0), (CD, 1)] {
        disc(sectors)
            .run(A, &structure(media, 0, 0), 100, &[])
            .illegal(Asc::CANNOT_READ_MEDIUM_INCOMPATIBLE_FORMAT);
    }
    rig.run(A, &structure(2, 0, 0), 100, &[]).illegal(Asc::INVALID_FIELD_IN_CDB);
}
