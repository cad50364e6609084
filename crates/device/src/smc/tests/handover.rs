//! A changer that is handed over to another process, whose owner passes the library in again.

use base::buffer::Pool;
use store::null::Null;

use super::*;
use crate::handover::UnitBusy;
use crate::testing::nexus;
use crate::unit::LogicalUnit;

#[test]
fn the_elements_are_those_of_before_and_a_cartridge_that_cannot_be_used_stays_one() {
    let index_of = |id| [A, B].iter().position(|known| *known == id).and_then(|at| u32::try_from(at).ok());
    let nexus_of = |index| [A, B].get(usize::try_from(index).unwrap()).copied();
    let mut rig = changer();
    let key = rig.start(A, &move_medium(SLOT_1, DRIVE_1), 0, 0);
    let change = rig.change();
    assert_eq!(rig.unit.export(Instant::ORIGIN, index_of), Err(UnitBusy::Commands));
    let failure = ChangeFailure {
        status: MotionFailure::CheckCondition(Sense::new(
            SenseKey::MEDIUM_ERROR,
            Asc::MEDIA_LOAD_OR_EJECT_FAILED,
        )),
        unusable: Some("A00001L8".to_owned()),
        why: "it is damaged".to_owned(),
    };
    rig.tell(LibraryInput::Changed(Err(failure)));
    rig.finish(key, &[]).check(SenseKey::MEDIUM_ERROR, Asc::MEDIA_LOAD_OR_EJECT_FAILED);
    assert_ne!(change.file, library().encode());
    let state = rig.unit.export(Instant::ORIGIN, index_of).unwrap();
    let state = serde_json::from_str(&serde_json::to_string(&state).unwrap()).unwrap();
    let unit = LogicalUnit::new(configuration(), Box::new(Null::new(0)), None, Pool::new(1 << 20));
    let mut next = Rig { unit: unit.unwrap(), next_key: 1, events: alloc::collections::VecDeque::new() };
    next.tell(LibraryInput::Install { file: library().encode(), unusable: Vec::new() });
    let drive = DriveName { vendor: *b"IBM     ", product: *b"ULT3580-TD8     " };
    next.tell(LibraryInput::Drives(vec![drive; 2]));
    for id in [A, B] {
        next.unit.nexus_established(Instant::ORIGIN, nexus(id));
    }
    next.unit.restore(Instant::ORIGIN, &state, nexus_of).unwrap();
    let elements = status(0x10, 0, 0xffff, 0, 0xff_ffff);
    let [before, after] = [&mut rig, &mut next].map(|rig| rig.run(A, &elements, 1 << 20, &[]).good());
    assert_eq!(before, after);
    let code = Asc::INCOMPATIBLE_MEDIUM_INSTALLED.0.to_be_bytes();
    assert!(after.windows(2).any(|two| two == code), "the cartridge cannot be used");
}
