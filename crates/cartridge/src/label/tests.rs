use super::*;
use crate::attributes::AttributeFormat;

pub(super) fn blank() -> Blank {
    let mut entropy = [0; 48];
    (0..).zip(&mut entropy).for_each(|(number, byte)| *byte = number);
    Blank {
        profile: Profile::Lto8,
        is_worm: false,
        barcode: String::from("A00001L8"),
        capacity: 1 << 30,
        partitions: vec![1 << 20, 1 << 29],
        segment_len: 1 << 20,
        date: *b"20261125",
        entropy,
    }
}

/// A label in which no field has its first value.
fn full() -> Label {
    let mut label = Label::blank(&blank()).unwrap();
    label.sequence = 77;
    label.is_write_protected = true;
    label.is_unloaded = false;
    label.next_epoch = 12;
    label.volume_change = 13;
    label.formats = 1;
    label.loads = 14;
    label.written = Usage { life: 15, load: 16 };
    label.read = Usage { life: 17, load: 18 };
    label.partitions[1] = Checkpoint {
        capacity: 1 << 29,
        end: 64 * 40,
        objects: 20,
        filemarks: 3,
        epoch: 11,
        first_encrypted: 5,
    };
    label.attributes.set(0, 0x0801, AttributeFormat::Ascii, b"LTFS").unwrap();
    label.attributes.set(1, 0x080c, AttributeFormat::Binary, &[9; 70]).unwrap();
    label
}

#[test]
fn a_label_reads_back() {
    let label = full();
    let bytes = label.encode();
    assert_eq!(bytes.len() % 4096, 0);
    assert_eq!(Label::decode(&bytes), Ok(label));
}

#[test]
fn a_full_memory_fits() {
    let mut label = full();
    for id in 0x1400..0x1800 {
        let _ = label.attributes.set(0, id, AttributeFormat::Binary, &[1; 10]);
    }
    for id in 0x1400..0x1800 {
        let _ = label.attributes.set(0, id, AttributeFormat::Binary, &[1; 11]);
    }
    assert!(label.attributes.used() > crate::attributes::SPACE - 100);
    assert_eq!(Label::decode(&label.encode()), Ok(label));
}

#[test]
fn damage_is_noticed_wherever_it_is() {
    let mut bytes = full().encode();
    let len = usize::try_from(u32::from_be_bytes(bytes[12..16].try_into().unwrap())).unwrap();
    for at in 0..len {
        bytes[at] ^= 0x10;
        assert!(Label::decode(&bytes).is_err(), "byte {at}");
        bytes[at] ^= 0x10;
    }
    for cut in 0..len {
        assert_eq!(Label::decode(&bytes[..cut]), Err(Error::NoLabel), "cut at {cut}");
    }
}

#[test]
fn another_version_is_named_and_an_impossible_label_is_refused() {
    let mut bytes = full().encode();
    let len = u32::from_be_bytes(bytes[12..16].try_into().unwrap());
    bytes[8..12].copy_from_slice(&9_u32.to_be_bytes());
    let crc = crc_of_version(9, len, &bytes[FRAME_LEN..to_usize(len)]);
    bytes[16..20].copy_from_slice(&crc.to_be_bytes());
    assert_eq!(Label::decode(&bytes), Err(Error::UnknownVersion(9)));
    let impossible: [fn(&mut Label); 7] = [
        |label| label.partitions.clear(),
        |label| label.is_worm = true,
        |label| label.segment_len = 4096,
        |label| label.capacity = 100,
        |label| label.partitions[1].filemarks = 21,
        |label| label.partitions[1].epoch = 12,
        |label| label.barcode = String::from("a b"),
    ];
    for change in impossible {
        let mut label = full();
        change(&mut label);
        assert_eq!(Label::decode(&label.encode()), Err(Error::ImpossibleLabel));
    }
}

#[test]
fn impossible_cartridges_are_not_made() {
    let make = |change: fn(&mut Blank)| {
        let mut blank = blank();
        change(&mut blank);
        Label::blank(&blank)
    };
    assert!(make(|_| ()).is_ok());
    let sizes = Err(Error::PartitionSizes);
    assert_eq!(make(|blank| blank.partitions = vec![1 << 20; 5]), sizes);
    assert_eq!(make(|blank| blank.partitions = vec![1 << 30, 1 << 20]), sizes);
    assert_eq!(make(|blank| blank.partitions = vec![u64::MAX, u64::MAX]), sizes);
    assert_eq!(make(|blank| blank.partitions = vec![100]), sizes);
    assert_eq!(make(|blank| blank.is_worm = true), sizes);
    assert_eq!(
        make(|blank| blank.profile = Profile::Lto5),
        Ok(make(|blank| blank.profile = Profile::Lto5).unwrap())
    );
    assert_eq!(make(|blank| blank.barcode = String::from("white space")), Err(Error::ImpossibleLabel));
}
