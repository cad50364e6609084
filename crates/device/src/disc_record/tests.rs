use super::*;

/// Returns the trailer and the length of an image with this record.
fn image(record: &mut DiscRecord) -> (Vec<u8>, u64) {
    let trailer = record.new_trailer();
    (trailer, u64::from(record.capacity) * SECTOR_LEN + 65_536)
}

/// Writes the next record to the trailer of its image, or only its first bytes.
fn write(record: &mut DiscRecord, trailer: &mut [u8], torn_at: Option<usize>) {
    let (at, bytes) = record.next_record();
    let at = usize::try_from(at - u64::from(record.capacity) * SECTOR_LEN).unwrap();
    let len = torn_at.unwrap_or(bytes.len()).min(bytes.len());
    trailer[at..at + len].copy_from_slice(&bytes[..len]);
}

fn blank() -> DiscRecord {
    DiscRecord::blank(WritableKind::BdRe, 64_000).unwrap()
}

#[test]
fn a_record_comes_back_from_either_slot() {
    for kind in WritableKind::ALL {
        let mut record = DiscRecord::blank(kind, kind.usual_capacity()).unwrap();
        let (mut trailer, len) = image(&mut record);
        for formatted in [0, 32, 64, 96] {
            record.formatted = formatted;
            write(&mut record, &mut trailer, None);
            record.record_written();
            assert_eq!(DiscRecord::of_trailer(&trailer, len).unwrap(), Some(record.clone()));
        }
    }
}

#[test]
fn a_torn_write_leaves_the_former_record() {
    let mut record = blank();
    let (mut trailer, len) = image(&mut record);
    record.formatted = 320;
    write(&mut record, &mut trailer, None);
    record.record_written();
    let former = record.clone();
    for torn_at in 0..RECORD_LEN {
        let (mut torn, mut next) = (trailer.clone(), record.clone());
        next.formatted = 640;
        write(&mut next, &mut torn, Some(torn_at));
        let read = DiscRecord::of_trailer(&torn, len).unwrap().unwrap();
        assert_eq!(read, former, "torn at {torn_at}");
        // The write was not confirmed: the next record goes to the same slot, and spares the whole one.
        next.formatted = 960;
        write(&mut next, &mut torn, Some(torn_at));
        assert_eq!(DiscRecord::of_trailer(&torn, len).unwrap().unwrap(), former);
    }
}

#[test]
fn every_damaged_byte_is_found() {
    let mut record = blank();
    let (trailer, len) = image(&mut record);
    for at in 0..RECORD_LEN {
        let mut damaged = trailer.clone();
        damaged[at] ^= 0x10;
        let read = DiscRecord::of_trailer(&damaged, len);
        match at {
            0..8 => assert_eq!(read, Ok(None), "no image of a writable disc"),
            8 | 9 => assert_eq!(read, Err(DiscRecordError::UnknownVersion)),
            _ => assert_eq!(read, Err(DiscRecordError::Damaged), "{at}"),
        }
    }
}

#[test]
fn the_length_of_the_image_and_the_capacity_are_checked() {
    let mut record = blank();
    let (trailer, len) = image(&mut record);
    for wrong in [len - 1, len + 2048, 0] {
        assert_eq!(DiscRecord::of_trailer(&trailer, wrong), Err(DiscRecordError::Length));
    }
    for capacity in [0, 31, 33, 12_219_392 + 32] {
        assert_eq!(DiscRecord::blank(WritableKind::BdRe, capacity), Err(DiscRecordError::Capacity));
    }
}

#[test]
fn other_files_have_no_record() {
    for trailer in [&[][..], &[0; 100], &[0; TRAILER_LEN], &[0xa5; TRAILER_LEN]] {
        assert_eq!(DiscRecord::of_trailer(trailer, 1 << 20), Ok(None));
    }
    assert_eq!(DiscRecord::of_trailer(b"TARGEDSC", 1 << 20), Err(DiscRecordError::Damaged));
}
