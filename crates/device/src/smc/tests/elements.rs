//! READ ELEMENT STATUS and the mode pages.

use super::*;

fn addresses(data: &[u8]) -> Vec<u16> {
    descriptors(data).iter().map(|(_, at)| u16::from_be_bytes([at[0], at[1]])).collect()
}

#[test]
fn elements_are_selected_by_type_start_and_number() {
    let all = [1, MAIL_1, MAIL_2, DRIVE_1, DRIVE_2, SLOT_1, SLOT_2, SLOT_3, SLOT_4];
    let cases: &[(u8, u16, u16, &[u16])] = &[
        (0, 0, 0xffff, &all),
        (0, 1, 9, &all),
        (0, 0, 3, &[1, MAIL_1, MAIL_2]),
        (0, 11, 3, &[MAIL_2, DRIVE_1, DRIVE_2]),
        (0, 12, 1, &[DRIVE_1]),
        (1, 0, 10, &[1]),
        (2, 0, 2, &[SLOT_1, SLOT_2]),
        (2, SLOT_3, 10, &[SLOT_3, SLOT_4]),
        (3, 0, 10, &[MAIL_1, MAIL_2]),
        (4, DRIVE_2, 10, &[DRIVE_2]),
        (4, 0, 0, &[]),
        (0, SLOT_4 + 1, 1, &[]),
        (1, 2, 1, &[]),
        (2, 0xffff, 10, &[]),
        (3, MAIL_2 + 1, 1, &[]),
        (4, DRIVE_2 + 1, 1, &[]),
    ];
    let mut rig = changer();
    for (kind, start, count, expected) in cases {
        let data = rig.run(A, &status(*kind, *start, *count, 0, 0xffff), 0xffff, &[]).good();
        assert_eq!(addresses(&data), *expected, "type {kind} from {start}, {count}");
        assert_eq!(u16::from_be_bytes([data[0], data[1]]), expected.first().copied().unwrap_or(0));
    }
    rig.run(A, &status(5, 0, 1, 0, 0xffff), 0xffff, &[]).illegal(Asc::INVALID_FIELD_IN_CDB);
}

/// Hosts ask for each type by itself, also for mail slots that a library does not have.
#[test]
fn a_type_without_elements_has_an_empty_report() {
    let mut rig = Rig::with(configuration(), Box::new(store::null::Null::new(0)));
    let counts = Counts { drives: 1, slots: 4, mail_slots: 0 };
    let library = Library::new("LIB00001".to_owned(), Profile::Lto8, counts).unwrap();
    rig.tell(LibraryInput::Install { file: library.encode(), unusable: Vec::new() });
    assert_eq!(rig.run(A, &status(0x13, 0, 1000, 1, 0xffff), 0xffff, &[]).good(), [0; 8]);
}

#[test]
fn descriptors_have_the_length_that_their_page_tells() {
    let mut rig = changer();
    for (flags, more, others, drives) in
        [(0, 0, 16, 16), (0x10, 0, 52, 52), (0, 1, 16, 50), (0x10, 3, 52, 86)]
    {
        let data = rig.run(A, &status(flags, 0, 0xffff, more, 0xffff), 0xffff, &[]).good();
        for (header, descriptor) in descriptors(&data) {
            let expected = if header[0] == 4 { drives } else { others };
            assert_eq!(descriptor.len(), expected, "type {}", header[0]);
            assert_eq!(header[1], if flags == 0 { 0 } else { 0x80 }, "PVOLTAG");
        }
    }
}

#[test]
fn a_short_allocation_length_cuts_the_data_and_no_count() {
    let mut rig = changer();
    let whole = rig.run(A, &status(0x10, 0, 0xffff, 1, 0xffff), 0xffff, &[]).good();
    for allocation in [0, 4, 8, 16, 17, 100, 5000] {
        let reply = rig.run(A, &status(0x10, 0, 0xffff, 1, allocation), 0xffff, &[]);
        let len = usize::try_from(allocation).unwrap().min(whole.len());
        assert_eq!(reply.good(), whole[..len]);
    }
}

#[test]
fn a_descriptor_tells_what_is_known_of_its_element() {
    let mut rig = changer();
    let data = rig.run(A, &status(0x10, DRIVE_2, 1, 1, 0xffff), 0xffff, &[]).good();
    let drive = descriptors(&data)[0].1.to_vec();
    assert_eq!(drive[..12], [0x01, 0xf5, 0x09, 0, 0, 0, 0, 0, 0, 0x81, 0x03, 0xea], "full, from slot 3");
    assert_eq!(&drive[12..44], b"A00003L8                        ");
    assert_eq!(drive[44..52], [0, 0, 0, 0, 0x02, 0x01, 0, 34]);
    assert_eq!(&drive[52..], b"IBM     ULT3580-TD8     LIB0000102");
    // An empty drive, the transport element, mail slots, and a slot.
    let one = |rig: &mut Rig, address| {
        let data = rig.run(A, &status(0x10, address, 1, 0, 0xffff), 0xffff, &[]).good();
        descriptors(&data)[0].1.to_vec()
    };
    let expected: &[(u16, u8, u8, bool)] = &[
        (DRIVE_1, 0x08, 0, false),
        (1, 0, 0, false),
        (MAIL_1, 0x38, 0, false),
        (MAIL_2, 0x3b, 1, true),
        (SLOT_1, 0x09, 1, true),
        (SLOT_4, 0x08, 0, false),
    ];
    for (address, flags, medium, has_tag) in expected {
        let found = one(&mut rig, *address);
        assert_eq!((found[2], found[9], found[12] != 0), (*flags, *medium, *has_tag), "element {address}");
    }
}

#[test]
fn a_cartridge_that_cannot_be_used_is_an_exception() {
    let mut rig = changer();
    let unusable = vec!["A00002L8".to_owned()];
    rig.tell(LibraryInput::Install { file: library().encode(), unusable });
    let data = rig.run(A, &status(2, SLOT_2, 1, 0, 0xffff), 0xffff, &[]).good();
    assert_eq!(descriptors(&data)[0].1[2..6], [0x0d, 0, 0x30, 0x00]);
    // It can be moved, and stays one.
    rig.moves(&move_medium(SLOT_2, SLOT_4)).good();
    let data = rig.run(A, &status(2, SLOT_4, 1, 0, 0xffff), 0xffff, &[]).good();
    assert_eq!(descriptors(&data)[0].1[2], 0x0d);
}

#[test]
fn mode_pages_tell_the_elements_and_what_can_be_moved() {
    let mut rig = changer();
    let mut page = |code: u8| rig.run(A, &[0x1a, 0x08, code, 0, 255, 0], 255, &[]).good()[4..].to_vec();
    assert_eq!(page(0x1d), [0x1d, 18, 0, 1, 0, 1, 0x03, 0xe8, 0, 4, 0, 10, 0, 2, 0x01, 0xf4, 0, 2, 0, 0],);
    assert_eq!(page(0x1e), [0x1e, 2, 0, 0]);
    assert_eq!(
        page(0x1f),
        [0x1f, 18, 0x0e, 0, 0, 0x0e, 0x0e, 0x0e, 0, 0, 0, 0, 0, 0x0e, 0x0e, 0x0e, 0, 0, 0, 0]
    );
    let all = page(0x3f);
    assert!(all.len() > 60, "all pages");
}

/// As `tapeinfo` asks: without PC.
#[test]
fn a_changer_has_no_tape_alerts() {
    let mut rig = changer();
    let pages = rig.run(A, &[0x4d, 0, 0, 0, 0, 0, 0, 0, 255, 0], 255, &[]).good();
    assert_eq!(pages[4..], [0, 0x10, 0x2e, 0x2f]);
    let page = rig.run(A, &[0x4d, 0, 0x2e, 0, 0, 0, 0, 0x10, 0, 0], 0x1000, &[]).good();
    assert_eq!((page.len(), &page[..9]), (4 + 64 * 5, &[0xae, 0, 1, 0x40, 0, 1, 0x23, 1, 0][..]));
    assert!(page[4..].chunks(5).all(|flag| flag[4] == 0));
}

#[test]
fn reservations_stop_element_status_but_not_with_current_data() {
    let mut rig = changer();
    rig.run(A, &[0x16, 0, 0, 0, 0, 0], 0, &[]).good();
    let reply = rig.run(B, &status(0, 0, 10, 0, 0xffff), 0xffff, &[]);
    assert_eq!(reply.status, scsi::status::Status::RESERVATION_CONFLICT);
    rig.run(B, &status(0, 0, 10, 2, 0xffff), 0xffff, &[]).good();
    let reply = rig.run(B, &move_medium(SLOT_1, SLOT_4), 0, &[]);
    assert_eq!(reply.status, scsi::status::Status::RESERVATION_CONFLICT);
    rig.run(A, &[0x17, 0, 0, 0, 0, 0], 0, &[]).good();
    rig.run(B, &status(0, 0, 10, 0, 0xffff), 0xffff, &[]).good();
}
