//! What operators do while hosts use the changer.

use super::*;

#[track_caller]
fn operator(rig: &mut Rig, change: OperatorChange) -> Result<(), String> {
    rig.tell(LibraryInput::Operator { ticket: 7, change });
    loop {
        match rig.asked() {
            Some(LibraryEvent::Change(_)) => rig.tell(LibraryInput::Changed(Ok(()))),
            Some(LibraryEvent::OperatorDone { ticket: 7, result }) => return result,
            other => panic!("{other:?}"),
        }
    }
}

fn load(element: Element, names: &[&str]) -> OperatorChange {
    OperatorChange::Load(
        element,
        names.iter().map(|name| (String::from(*name), String::from(*name))).collect(),
    )
}

#[test]
fn every_host_is_told_what_an_operator_did() {
    for (change, code) in [
        (load(Element::Mail(1), &["B1"]), Asc::IMPORT_OR_EXPORT_ELEMENT_ACCESSED),
        (OperatorChange::Eject(Element::Mail(2)), Asc::IMPORT_OR_EXPORT_ELEMENT_ACCESSED),
        (load(Element::Slot(3), &["B1", "B2"]), Asc::MEDIUM_MAY_HAVE_CHANGED),
        (OperatorChange::Eject(Element::Slot(1)), Asc::MEDIUM_MAY_HAVE_CHANGED),
        (OperatorChange::Vault(Element::Mail(2), true), Asc::IMPORT_OR_EXPORT_ELEMENT_ACCESSED),
    ] {
        let mut rig = changer();
        operator(&mut rig, change).unwrap();
        for nexus in [A, B] {
            rig.run(nexus, &[0; 6], 0, &[]).check(SenseKey::UNIT_ATTENTION, code);
            rig.run(nexus, &[0; 6], 0, &[]).good();
        }
    }
}

#[test]
fn a_refused_change_is_one_sentence_and_no_unit_attention() {
    let cases = [
        (load(Element::Slot(1), &["B1"]), "there is a cartridge already"),
        (load(Element::Slot(3), &["B1", "B2", "B3"]), "the library has no such slot"),
        (load(Element::Slot(3), &["A00001L8"]), "the cartridge is in the library already"),
        (load(Element::Drive(1), &["B1"]), "a cartridge in a drive is moved"),
        (OperatorChange::Eject(Element::Drive(2)), "a cartridge in a drive is moved"),
        (OperatorChange::Eject(Element::Slot(4)), "there is no cartridge"),
        (OperatorChange::Eject(Element::Mail(3)), "the library has no such slot"),
        (OperatorChange::Vault(Element::Slot(1), true), "a cartridge can be locked in a mail slot only"),
    ];
    let mut rig = changer();
    let before = rig.inventory();
    for (change, sentence) in cases {
        let told = operator(&mut rig, change.clone()).unwrap_err();
        assert!(told.starts_with(sentence), "{change:?}: {told}");
    }
    assert_eq!(rig.inventory(), before);
    rig.run(A, &[0; 6], 0, &[]).good();
}

#[test]
fn a_locked_cartridge_is_out_of_reach_of_hosts() {
    let mut rig = changer();
    operator(&mut rig, OperatorChange::Vault(Element::Mail(2), true)).unwrap();
    for nexus in [A, B] {
        rig.run(nexus, &[0; 6], 0, &[])
            .check(SenseKey::UNIT_ATTENTION, Asc::IMPORT_OR_EXPORT_ELEMENT_ACCESSED);
    }
    for cdb in [
        move_medium(MAIL_2, SLOT_4),
        move_medium(MAIL_2, DRIVE_1),
        exchange(SLOT_1, MAIL_2, SLOT_1),
        exchange(MAIL_2, DRIVE_2, SLOT_4),
    ] {
        rig.run(A, &cdb, 0, &[]).illegal(Asc::MEDIUM_REMOVAL_PREVENTED);
    }
    rig.run(A, &move_medium(SLOT_1, MAIL_2), 0, &[]).illegal(Asc::MEDIUM_DESTINATION_ELEMENT_FULL);
    let data = rig.run(A, &status(3, MAIL_2, 1, 0, 255), 255, &[]).good();
    assert_eq!(descriptors(&data)[0].1[2] & 0x09, 0x01, "full, and not accessible");
    operator(&mut rig, OperatorChange::Vault(Element::Mail(2), false)).unwrap();
    rig.run(A, &[0; 6], 0, &[]).check(SenseKey::UNIT_ATTENTION, Asc::IMPORT_OR_EXPORT_ELEMENT_ACCESSED);
    rig.moves(&move_medium(MAIL_2, SLOT_4)).good();
}

#[test]
fn a_host_keeps_operators_from_the_mail_slots_only() {
    let mut rig = changer();
    rig.run(A, &[0x1e, 0, 0, 0, 1, 0], 0, &[]).good();
    for change in [load(Element::Mail(1), &["B1"]), OperatorChange::Eject(Element::Mail(2))] {
        let told = operator(&mut rig, change).unwrap_err();
        assert!(told.starts_with("a host prevents access to the mail slots"), "{told}");
    }
    operator(&mut rig, load(Element::Slot(4), &["B1"])).unwrap();
    // A host that is gone prevents nothing.
    rig.unit.nexus_lost(Instant::ORIGIN, A);
    operator(&mut rig, OperatorChange::Eject(Element::Mail(2))).unwrap();
}

#[test]
fn operators_wait_for_motions() {
    let mut rig = changer();
    let key = rig.start(A, &move_medium(SLOT_1, SLOT_4), 0, 0);
    let _ = rig.change();
    rig.tell(LibraryInput::Operator { ticket: 3, change: load(Element::Slot(1), &["B1"]) });
    assert!(rig.asked().is_none());
    rig.tell(LibraryInput::Changed(Ok(())));
    rig.finish(key, &[]).good();
    let after = Library::decode(&rig.change().file).unwrap();
    assert_eq!(after.at(Element::Slot(1)).unwrap().name, "B1");
    rig.tell(LibraryInput::Changed(Ok(())));
    assert!(matches!(rig.asked(), Some(LibraryEvent::OperatorDone { ticket: 3, result: Ok(()) })));
}
