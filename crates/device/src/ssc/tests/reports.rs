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

fn log_cdb(page: u8) -> [u8; 10] {
    [0x4d, 0, 0x40 | page, 0, 0, 0, 0, 0x10, 0, 0]
}

#[test]
fn log_pages_are_those_of_a_tape_drive() {
    let mut rig = tape();
    assert_eq!(rig.query(&log_cdb(0))[4..], [0, 2, 3, 0x0c, 0x10, 0x17, 0x2e, 0x2f]);
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
    rig.run(A, &[0x1b, 0, 0, 0, 0, 0], 0, &[]).good();
    assert_eq!(rig.query(&log_cdb(0x17)), [0x97, 0, 0, 5, 0, 0, 0x23, 1, 0]);
}

#[test]
fn tape_alerts_are_told_once_to_each_host() {
    let (mut rig, _) = with(Kind { is_worm: true, ..Kind::USUAL });
    let alerts_of = |rig: &mut Rig, nexus| -> Vec<u8> {
        let page = rig.run(nexus, &log_cdb(0x2e), 1 << 20, &[]).good();
        assert_eq!(page.len(), 4 + 64 * 5);
        page[4..].chunks(5).filter(|flag| flag[4] == 1).map(|flag| flag[1]).collect()
    };
    let alerts = |rig: &mut Rig| alerts_of(rig, A);
    assert_eq!(alerts(&mut rig), [0; 0]);
    rig.write_block(&[0; 10]).good();
    rig.rewind();
    assert!(rig.write_block(&[0; 10]).sense.is_some());
    // A request that is refused reads nothing.
    rig.run(A, &[0x4d, 0, 0x2e, 0, 0, 0, 0, 1, 0, 0], 255, &[]).illegal(Asc::INVALID_FIELD_IN_CDB);
    // Programs read the header first, and some receive less than they request.
    rig.run(A, &[0x4d, 0, 0x6e, 0, 0, 0, 0, 0, 4, 0], 4, &[]).good();
    rig.run(A, &log_cdb(0x2e), 100, &[]).good();
    assert_eq!(alerts(&mut rig), [0x3c]);
    assert_eq!(alerts(&mut rig), [0; 0]);
    assert_eq!(alerts_of(&mut rig, B), [0x3c]);
    assert_eq!(alerts_of(&mut rig, B), [0; 0]);
}
