//! INQUIRY, GET CONFIGURATION, mode pages, and the speed.

use super::*;

#[test]
fn inquiry_names_a_removable_drive_for_discs() {
    let mut rig = disc(CD);
    let data = rig.get(&[0x12, 0, 0, 0, 96, 0]);
    assert_eq!(data[..4], [0x05, 0x80, 0x06, 0x12]);
    assert!(data[58..74].chunks(2).any(|version| version == [0x04, 0xe0]), "MMC-6");
    let pages = rig.get(&[0x12, 1, 0, 0, 255, 0]);
    assert_eq!(pages, [0x05, 0, 0, 6, 0x00, 0x80, 0x83, 0x86, 0x87, 0x88]);
    rig.run(A, &[0x12, 1, 0xb0, 0, 255, 0], 255, &[]).illegal(Asc::INVALID_FIELD_IN_CDB);
}

/// Returns the current profile, and the codes of the features with their current bit.
fn features(rig: &mut Rig, request: u8, first: u8) -> (u16, Vec<(u16, bool)>) {
    let data = rig.get(&[0x46, request, 0, first, 0, 0, 0, 0xff, 0xff, 0]);
    let word = |at: usize| u16::from_be_bytes([data[at], data[at + 1]]);
    assert_eq!(usize::from(word(2)), data.len() - 4);
    let mut list = Vec::new();
    let mut at = 8;
    while at < data.len() {
        list.push((word(at), data[at + 2] & 1 == 1));
        assert_eq!(data[at + 3] % 4, 0, "whole words");
        at += 4 + usize::from(data[at + 3]);
    }
    assert_eq!(at, data.len());
    (word(6), list)
}

const CODES: [u16; 18] = [
    0x0000, 0x0001, 0x0002, 0x0003, 0x0010, 0x001e, 0x001f, 0x0020, 0x0021, 0x0023, 0x002a, 0x002f, 0x0040,
    0x0041, 0x0100, 0x0105, 0x0107, 0x0108,
];

#[test]
fn features_are_current_by_the_kind_of_disc() {
    for (sectors, profile, own) in
        [(CD, 0x0008, Some(0x001e)), (DVD, 0x0010, Some(0x001f)), (BD, 0x0040, Some(0x0040)), (0, 0, None)]
    {
        let mut rig = disc(sectors);
        let (current, list) = features(&mut rig, 0, 0);
        assert_eq!(current, profile);
        assert_eq!(list.iter().map(|(code, _)| *code).collect::<Vec<_>>(), CODES);
        for (code, is_current) in &list {
            let expected = match code {
                0x0010 | 0x0107 => own.is_some(),
                0x001e | 0x001f | 0x0040 => Some(*code) == own,
                0x0020..=0x002f | 0x0041 => false,
                _ => true,
            };
            assert_eq!(*is_current, expected, "{code:04x} of {profile:04x}");
        }
        let (_, currents) = features(&mut rig, 1, 0);
        let expected: Vec<_> = list.iter().copied().filter(|(_, is_current)| *is_current).collect();
        assert_eq!(currents, expected);
        assert_eq!(features(&mut rig, 0, 0x10).1, list[4..]);
    }
}

#[test]
fn one_feature_can_be_asked_for() {
    let mut rig = disc(DVD);
    let ask = |code: u8| [0x46, 2, 0, code, 0, 0, 0, 0, 100, 0];
    assert_eq!(
        rig.get(&ask(0x00)),
        [
            0, 0, 0, 36, 0, 0, 0, 0x10, 0, 0, 3, 28, 0, 0x43, 0, 0, 0, 0x41, 0, 0, 0, 0x40, 0, 0, 0, 0x1a, 0,
            0, 0, 0x11, 0, 0, 0, 0x10, 1, 0, 0, 0x08, 0, 0
        ]
    );
    assert_eq!(rig.get(&ask(0x10)), [0, 0, 0, 16, 0, 0, 0, 0x10, 0, 0x10, 1, 8, 0, 0, 8, 0, 0, 16, 1, 0]);
    assert_eq!(rig.get(&ask(0x03)), [0, 0, 0, 12, 0, 0, 0, 0x10, 0, 0x03, 7, 4, 0x39, 0, 0, 0]);
    assert_eq!(rig.get(&ask(0x1d)), [0, 0, 0, 4, 0, 0, 0, 0x10], "no such feature");
    let serial = rig.get(&[0x46, 2, 1, 8, 0, 0, 0, 0, 100, 0]);
    assert_eq!(&serial[12..], b"SERIAL0001  ");
    rig.run(A, &[0x46, 3, 0, 0, 0, 0, 0, 0, 8, 0], 8, &[]).illegal(Asc::INVALID_FIELD_IN_CDB);
}

#[test]
fn a_configured_kind_overrides_the_capacity() {
    for (profile, number) in [(DiscProfile::Cd, 0x08), (DiscProfile::Dvd, 0x10), (DiscProfile::Bd, 0x40)] {
        let mut rig = Rig::with(drive(Some(profile)), Box::new(Tray::new(1000)));
        assert_eq!(rig.get(&[0x46, 2, 0, 0, 0, 0, 0, 0, 8, 0])[6..8], [0, number]);
    }
}

#[test]
fn mode_pages_come_without_block_descriptor() {
    let mut rig = disc(CD);
    let data = rig.get(&[0x5a, 0, 0x2a, 0, 0, 0, 0, 0, 255, 0]);
    assert_eq!(data[..8], [0, 38, 0, 0, 0, 0, 0, 0]);
    let page = &data[8..];
    assert_eq!(page.len(), 32);
    assert_eq!(page[..8], [0x2a, 30, 0x18, 0x10, 0xc0, 0, 0x29, 0]);
    assert_eq!((page[8..10].to_vec(), page[14..16].to_vec()), ([0x21, 0x13].to_vec(), [0x21, 0x13].to_vec()));
    let data = rig.get(&[0x1a, 0, 0x3f, 0, 255, 0]);
    assert_eq!(data[..4], [u8::try_from(data.len() - 1).unwrap(), 0, 0, 0]);
    let (mut codes, mut at) = (Vec::new(), 4);
    while at < data.len() {
        codes.push(data[at] & 0x3f);
        at += 2 + usize::from(data[at + 1]);
    }
    assert_eq!(codes, [0x01, 0x05, 0x0a, 0x1a, 0x1c, 0x1d, 0x2a]);
    let timeouts = rig.get(&[0x1a, 0, 0x1d, 0, 255, 0]);
    assert_eq!(timeouts[4..], [0x1d, 8, 0, 0, 0, 0, 0, 30, 0, 60]);
}

#[test]
fn what_was_sensed_can_be_selected_also_while_the_medium_is_locked() {
    let mut rig = disc(CD);
    rig.run(B, &[0x1e, 0, 0, 0, 1, 0], 0, &[]).good();
    let data = rig.get(&[0x5a, 0, 0x2a, 0, 0, 0, 0, 0, 255, 0]);
    assert_eq!(data[14], 0x2b, "locked");
    let mut list = data;
    list[..8].fill(0);
    let len = u8::try_from(list.len()).unwrap();
    rig.run(A, &[0x55, 0x10, 0, 0, 0, 0, 0, 0, len, 0], 0, &list).good();
    let defaults = rig.get(&[0x5a, 0, 0x80 | 0x2a, 0, 0, 0, 0, 0, 255, 0]);
    assert_eq!(defaults[14], 0x29);
}

#[test]
fn log_pages_are_those_of_a_writer() {
    let mut rig = disc(CD);
    assert_eq!(
        rig.get(&[0x4d, 0, 0x40, 0, 0, 0, 0, 0, 100, 0]),
        [0x80, 0, 0, 6, 0, 0x02, 0x03, 0x10, 0x19, 0x2f]
    );
}

#[test]
fn the_speed_is_one_from_begin_to_end() {
    let mut rig = disc(DVD);
    let ask = |flags: u8, count: u8, kind: u8| [0xac, flags, 0, 0, 0, 7, 0, 0, 0, count, kind, 0];
    let data = rig.get(&ask(0x10, 1, 0));
    assert_eq!(data[..8], [0, 0, 0, 20, 0, 0, 0, 0]);
    let words: Vec<u32> =
        data[8..].chunks(4).map(|word| u32::from_be_bytes(word.try_into().unwrap())).collect();
    assert_eq!(words, [7, 22_160, u32::try_from(DVD).unwrap() - 1, 22_160]);
    assert_eq!(rig.get(&ask(0x10, 0, 0)), [0, 0, 0, 20, 0, 0, 0, 0], "no descriptor fits");
    assert_eq!(rig.get(&ask(0x14, 1, 0)), [0, 0, 0, 4, 2, 0, 0, 0], "it does not write");
    assert_eq!(rig.get(&ask(0x11, 1, 0)), [0, 0, 0, 4, 1, 0, 0, 0], "there are no exceptions");
    assert_eq!(rig.get(&ask(0, 1, 3)), [0, 0, 0, 4, 0, 0, 0, 0]);
    rig.run(A, &ask(0, 1, 1), 100, &[]).illegal(Asc::INVALID_FIELD_IN_CDB);
    let behind = [0xac, 0x10, 0, 0xff, 0xff, 0xff, 0, 0, 0, 1, 0, 0];
    rig.run(A, &behind, 100, &[]).illegal(Asc::LBA_OUT_OF_RANGE);
}

#[test]
fn requests_for_a_speed_are_checked_and_accepted() {
    let mut rig = disc(CD);
    rig.run(A, &[0xbb, 0, 0xff, 0xff, 0xff, 0xff, 0, 0, 0, 0, 0, 0], 0, &[]).good();
    let set = |len: u8| [0xb6, 0, 0, 0, 0, 0, 0, 0, 0, 0, len, 0];
    let mut list = [0; 28];
    list[11] = 9;
    rig.run(A, &set(28), 0, &list).good();
    list[7] = 10;
    rig.run(A, &set(28), 0, &list).illegal(Asc::INVALID_FIELD_IN_PARAMETER_LIST);
    rig.run(A, &set(28), 0, &list[..20]).illegal(Asc::PARAMETER_LIST_LENGTH_ERROR);
    rig.run(A, &set(27), 0, &list[..27]).illegal(Asc::PARAMETER_LIST_LENGTH_ERROR);
    assert_eq!(rig.get(&[0x5c, 0, 0, 0, 0, 0, 0, 0, 12, 0]), [0, 10, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
}
