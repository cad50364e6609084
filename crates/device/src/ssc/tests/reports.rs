//! What the drive reports of itself and of the cartridge.

use super::*;

#[test]
fn inquiry_is_that_of_a_tape_drive() {
    let mut rig = tape();
    let data = rig.query(&[0x12, 0, 0, 0, 96, 0]);
    assert_eq!(data[..2], [1, 0x80]);
    assert!(data[58..74].chunks(2).any(|version| version == [0x05, 0x20]), "SSC-4");
    assert_eq!(rig.query(&[0x12, 1, 0, 0, 255, 0])[4..], [0, 0x80, 0x83, 0x86, 0x87, 0x88, 0xb0, 0xb1, 0xb5]);
    assert_eq!(rig.query(&[0x12, 1, 0xb0, 0, 255, 0]), [1, 0xb0, 0, 1, 1]);
    assert_eq!(rig.query(&[0x12, 1, 0xb1, 0, 255, 0])[4..], *b"SERIAL0001");
}

#[test]
fn block_limits_are_one_byte_and_eight_mebibytes() {
    let mut rig = tape();
    assert_eq!(rig.query(&[0x05, 0, 0, 0, 0, 0]), [0, 0x80, 0, 0, 0, 1]);
    rig.run(A, &[0x05, 1, 0, 0, 0, 0], 20, &[]).illegal(Asc::INVALID_FIELD_IN_CDB);
}

#[test]
fn the_density_is_that_of_the_cartridge() {
    let (mut rig, _) = with(Kind { capacity: 12_000_000_000_000, ..Kind::USUAL });
    for media in [0, 1] {
        let data = rig.query(&[0x44, media, 0, 0, 0, 0, 0, 0, 255, 0]);
        assert_eq!((data.len(), &data[..4]), (56, &[0, 54, 0, 0][..]));
        assert_eq!(data[4..9], [0x5e, 0x5e, 0xa0, 0, 0]);
        assert_eq!(data[16..20], 12_000_000_u32.to_be_bytes());
        assert_eq!(&data[20..36], b"LTO-CVE U-832   ");
    }
    assert_eq!(rig.query(&[0x44, 0, 0, 0, 0, 0, 0, 0, 8, 0]).len(), 8);
}

fn attribute_cdb(action: u8, partition: u8, first: u16) -> [u8; 16] {
    let [a, b] = first.to_be_bytes();
    [op::READ_ATTRIBUTE, action, 0, 0, 0, 0, 0, partition, a, b, 0, 0, 0xff, 0xff, 0, 0]
}

fn write_attributes(rig: &mut Rig, attributes: &[(u16, u8, &[u8])]) -> Reply {
    let mut list = vec![0; 4];
    for (id, format, value) in attributes {
        list.extend_from_slice(&id.to_be_bytes());
        list.push(*format);
        list.extend_from_slice(&u16::try_from(value.len()).unwrap().to_be_bytes());
        list.extend_from_slice(value);
    }
    let body = u32::try_from(list.len() - 4).unwrap().to_be_bytes();
    list[..4].copy_from_slice(&body);
    let len = u32::try_from(list.len()).unwrap().to_be_bytes();
    let mut cdb = [0; 16];
    cdb[0] = op::WRITE_ATTRIBUTE;
    cdb[10..14].copy_from_slice(&len);
    rig.run(A, &cdb, 0, &list)
}

/// Returns the attributes of partition 0 from `first` on: identifier, flags and value.
fn attributes(rig: &mut Rig, first: u16) -> Vec<(u16, u8, Vec<u8>)> {
    let data = rig.query(&attribute_cdb(0, 0, first));
    let len = usize::try_from(u32::from_be_bytes(data[..4].try_into().unwrap())).unwrap();
    assert_eq!(len, data.len() - 4);
    let (mut at, mut found) = (4, Vec::new());
    while at < data.len() {
        let id = u16::from_be_bytes([data[at], data[at + 1]]);
        let len = usize::from(u16::from_be_bytes([data[at + 3], data[at + 4]]));
        found.push((id, data[at + 2], data[at + 5..at + 5 + len].to_vec()));
        at += 5 + len;
    }
    found
}

#[test]
fn attributes_are_read_and_written_and_stay() {
    let (mut rig, folder) = with(Kind::USUAL);
    let all = attributes(&mut rig, 0);
    assert_eq!(all[0].0, 0);
    assert_eq!(all[0].1, 0x80, "the remaining capacity is read-only");
    assert_eq!(attributes(&mut rig, 0x0806)[0].2, b"A00001L8                        ");
    write_attributes(&mut rig, &[(0x0801, 1, b"backup"), (0x0803, 2, b"label")]).good();
    assert_eq!(attributes(&mut rig, 0x0801)[0], (0x0801, 1, b"backup".to_vec()));
    let mut rig = Rig::with(drive(), Box::new(folder.after_power_loss()));
    assert_eq!(attributes(&mut rig, 0x0803)[0], (0x0803, 2, b"label".to_vec()));
    let ids = rig.query(&attribute_cdb(1, 0, 0x0801));
    assert_eq!(ids, [0, 0, 0, 6, 8, 1, 8, 3, 8, 6]);
    assert_eq!(rig.query(&attribute_cdb(2, 0, 0)), [0, 2, 0, 1]);
    assert_eq!(rig.query(&attribute_cdb(3, 0, 0)), [0, 2, 0, 1]);
    for (action, partition, first) in [(0, 1, 0), (0, 0, 0x0802), (0, 0, 0xffff), (4, 0, 0), (5, 0, 0)] {
        rig.run(A, &attribute_cdb(action, partition, first), 255, &[]).illegal(Asc::INVALID_FIELD_IN_CDB);
    }
}

#[test]
fn attributes_are_written_all_or_none() {
    let mut rig = tape();
    write_attributes(&mut rig, &[(0x0801, 1, b"first")]).good();
    for wrong in
        [(0x0000, 0, &b"12345678"[..]), (0x0800, 1, b"too long."), (0x0800, 0, b"a"), (0x0810, 1, b"a")]
    {
        write_attributes(&mut rig, &[(0x0801, 1, b"second"), wrong])
            .illegal(Asc::INVALID_FIELD_IN_PARAMETER_LIST);
        assert_eq!(attributes(&mut rig, 0x0801)[0].2, b"first");
    }
    write_attributes(&mut rig, &[(0x0801, 3, b"a")]).illegal(Asc::INVALID_FIELD_IN_PARAMETER_LIST);
    write_attributes(&mut rig, &[(0x0801, 1, b"")]).good();
    assert_eq!(attributes(&mut rig, 0x0806).len(), 1, "an empty value removes an attribute");
    rig.run(A, &attribute_cdb(0, 0, 0x0801), 255, &[]).illegal(Asc::INVALID_FIELD_IN_CDB);
}

#[test]
fn an_attribute_list_that_lies_about_its_length_is_refused() {
    let mut rig = tape();
    let mut cdb = [0; 16];
    (cdb[0], cdb[13]) = (op::WRITE_ATTRIBUTE, 9);
    for list in
        [[0, 0, 0, 6, 8, 1, 1, 0, 0], [0, 0, 0, 5, 8, 1, 1, 0, 1], [0xff, 0xff, 0xff, 0xff, 8, 1, 1, 0, 0]]
    {
        rig.run(A, &cdb, 0, &list).illegal(Asc::PARAMETER_LIST_LENGTH_ERROR);
    }
    rig.run(A, &cdb, 0, &[0, 0, 0, 5, 8, 1]).illegal(Asc::PARAMETER_LIST_LENGTH_ERROR);
}

#[test]
fn an_attribute_list_can_count_its_own_length_and_end_with_padding() {
    let attribute = [&[8, 0, 1, 0, 8][..], b"IBM     "].concat();
    // As SPC counts, as LTFS counts, and with bytes after the attributes.
    for (len, padding) in [(13, 0), (17, 0), (13, 3), (13, 500)] {
        let mut rig = tape();
        let list = [&[0, 0, 0, len], &attribute[..], &vec![0; padding]].concat();
        let mut cdb = [0; 16];
        cdb[0] = op::WRITE_ATTRIBUTE;
        cdb[12..14].copy_from_slice(&u16::try_from(list.len()).unwrap().to_be_bytes());
        rig.run(A, &cdb, 0, &list).good();
        assert_eq!(attributes(&mut rig, 0x0800)[0], (0x0800, 1, b"IBM     ".to_vec()), "{len} {padding}");
    }
    // A length that ends within an attribute, or beyond the list.
    for len in [1, 4, 5, 12, 14, 15, 16, 18, 255] {
        let mut rig = tape();
        let mut cdb = [0; 16];
        (cdb[0], cdb[13]) = (op::WRITE_ATTRIBUTE, 17);
        let list = [&[0, 0, 0, len], &attribute[..]].concat();
        rig.run(A, &cdb, 0, &list).illegal(Asc::PARAMETER_LIST_LENGTH_ERROR);
        rig.run(A, &attribute_cdb(0, 0, 0x0800), 255, &[]).illegal(Asc::INVALID_FIELD_IN_CDB);
    }
}

fn log_cdb(page: u8) -> [u8; 10] {
    [0x4d, 0, 0x40 | page, 0, 0, 0, 0, 0x10, 0, 0]
}

#[test]
fn log_pages_are_those_of_a_tape_drive() {
    let mut rig = tape();
    assert_eq!(rig.query(&log_cdb(0))[4..], [0, 2, 3, 0x0c, 0x10, 0x17, 0x2e, 0x2f, 0x31]);
    rig.write_block(&[1; 3000]).good();
    rig.mark(1).good();
    rig.rewind();
    rig.read_block(3000).good();
    let page = rig.query(&log_cdb(0x0c));
    let counts: Vec<u64> =
        page[4..].chunks(12).map(|p| u64::from_be_bytes(p[4..].try_into().unwrap())).collect();
    assert_eq!(counts, [3000, 3000, 3000, 3000]);
    let statistics = rig.query(&log_cdb(0x17));
    assert_eq!(statistics[4..9], [0, 0, 0x23, 1, 1], "the page is valid");
    for page in [0, 0x17, 0x2e] {
        let without_control = [0x4d, 0, page, 0, 0, 0, 0, 0x10, 0, 0];
        assert_eq!(rig.query(&without_control), rig.query(&log_cdb(page)), "{page:02x}");
    }
    rig.run(A, &[0x1b, 0, 0, 0, 0, 0], 0, &[]).good();
    assert_eq!(rig.query(&log_cdb(0x17)), [0x97, 0, 0, 5, 0, 0, 0x23, 1, 0]);
}

#[test]
fn the_capacities_of_two_partitions_are_counted_in_mebibytes() {
    let kind = Kind { partitions: &[64 << 20, 32 << 20], capacity: 96 << 20, ..Kind::USUAL };
    let (mut rig, _) = with(kind);
    let capacities = |rig: &mut Rig| {
        let page = rig.query(&log_cdb(0x31));
        let parameters: Vec<_> = page[4..].chunks(8).map(|one| (one[1], one[2], one[3], one[7])).collect();
        parameters
    };
    assert_eq!(
        capacities(&mut rig),
        [(1, 0x23, 4, 64), (2, 0x23, 4, 32), (3, 0x23, 4, 64), (4, 0x23, 4, 32)]
    );
    rig.write_block(&vec![1; 3 << 20]).good();
    assert_eq!(capacities(&mut rig)[0], (1, 0x23, 4, 60));
    rig.run(A, &[0x1b, 0, 0, 0, 0, 0], 0, &[]).good();
    assert!(capacities(&mut rig).iter().all(|parameter| parameter.3 == 0));
}

fn transferred(rig: &mut Rig) -> Vec<u64> {
    let page = rig.query(&log_cdb(0x0c));
    page[4..].chunks(12).map(|p| u64::from_be_bytes(p[4..].try_into().unwrap())).collect()
}

#[test]
fn what_was_transferred_is_counted_from_one_moment_on() {
    let (mut rig, folder) = with(Kind::USUAL);
    rig.write_block(&pattern(5000, 1)).good();
    rig.rewind();
    rig.read_block(5000).good();
    // Another drive, which has transferred nothing, and a block that is compressed.
    rig.run(A, &[0x1b, 0, 0, 0, 0, 0], 0, &[]).good();
    let mut rig = Rig::with(drive(), Box::new(folder));
    assert_eq!(transferred(&mut rig), [0; 4]);
    let compression = [0, 0, 0x10, 0, 0x0f, 14, 0xc0, 0x80, 0, 0, 0, 1, 0, 0, 0, 1, 0, 0, 0, 0];
    rig.run(A, &[0x15, 0x10, 0, 0, 20, 0], 0, &compression).good();
    rig.write_block(&[7; 100_000]).good();
    rig.rewind();
    rig.read_block(100_000).good();
    let counts = transferred(&mut rig);
    assert_eq!((counts[0], counts[3]), (100_000, 100_000));
    assert!((1..10_000).contains(&counts[1]) && counts[1] == counts[2], "{counts:?}");
    // LOG SELECT with PCR resets all of them.
    rig.run(A, &[0x4c, 2, 0x40, 0, 0, 0, 0, 0, 0, 0], 0, &[]).good();
    assert_eq!(transferred(&mut rig), [0; 4]);
}
