//! Drives for discs.

use store::Store;
use store::api::{Capabilities, Completion, Op};
use store::ram::Ram;

use super::fixture::*;
use crate::contract::DeviceKind;
use crate::disc_record::{DiscRecord, WritableKind};

const SECTORS: u32 = 320;

/// A writable disc whose image outlives the drive. The trailer is that of the time when it was opened, as of
/// a file.
#[derive(Clone)]
struct Disc {
    image: Rc<core::cell::RefCell<Ram>>,
    trailer: Vec<u8>,
}

impl Store for Disc {
    fn capabilities(&self) -> Capabilities {
        self.image.borrow().capabilities()
    }

    fn trailer(&self) -> Option<Vec<u8>> {
        Some(self.trailer.clone())
    }

    fn submit(&mut self, op: Op) {
        self.image.borrow_mut().submit(op);
    }

    fn poll(&mut self) -> Option<Completion> {
        self.image.borrow_mut().poll()
    }
}

fn drive_config() -> UnitConfig {
    UnitConfig {
        device: DeviceKind::Disc { profile: None },
        block_size: base::units::BlockSize::B2048,
        removable: true,
        thin: false,
        ..config()
    }
}

fn blank(kind: WritableKind) -> Disc {
    let trailer = DiscRecord::blank(kind, SECTORS).unwrap().new_trailer();
    let len = u64::from(SECTORS) * 2048 + u64::try_from(trailer.len()).unwrap();
    Disc { image: Rc::new(core::cell::RefCell::new(Ram::new(len))), trailer }
}

/// The commands that show the state of a drive.
fn disc_probes() -> Vec<Vec<u8>> {
    let mut probes: Vec<Vec<u8>> = alloc::vec![
        alloc::vec![op::GET_EVENT_STATUS_NOTIFICATION, 1, 0, 0, 0x10, 0, 0, 0, 64, 0],
        alloc::vec![op::MECHANISM_STATUS, 0, 0, 0, 0, 0, 0, 0, 0, 64, 0, 0],
        alloc::vec![0; 6],
        alloc::vec![0; 6],
        alloc::vec![op::READ_DISC_INFORMATION, 0, 0, 0, 0, 0, 0, 0, 64, 0],
        alloc::vec![op::READ_CAPACITY_10, 0, 0, 0, 0, 0, 0, 0, 0, 0],
        alloc::vec![op::MODE_SENSE_10, 0, 0x3f, 0xff, 0, 0, 0, 0x10, 0, 0],
        alloc::vec![op::READ_10, 0, 0, 0, 0, 0, 0, 0, 16, 0],
        alloc::vec![op::SYNCHRONIZE_CACHE_10, 0, 0, 0, 0, 0, 0, 0, 0, 0],
        alloc::vec![op::START_STOP_UNIT, 0, 0, 0, 3, 0],
        alloc::vec![0; 6],
    ];
    for track in 1..4 {
        probes.insert(5, alloc::vec![op::READ_TRACK_INFORMATION, 1, 0, 0, 0, track, 0, 0, 64, 0]);
    }
    probes
}

#[track_caller]
fn answer_alike(old: &mut Rig, new: &mut Rig) {
    for cdb in disc_probes() {
        for (was, is) in [(A, A2), (B, B2)] {
            let expected = run(old, was, &cdb, &[]);
            assert_eq!(run(new, is, &cdb, &[]), expected, "{was:?} {cdb:02x?}");
        }
    }
}

#[test]
fn a_disc_goes_on_to_be_written_where_it_was() {
    let disc = blank(WritableKind::DvdR);
    let mut old = served(drive_config(), Box::new(disc.clone()));
    run(&mut old, A, &[0; 6], &[]);
    let write = |rig: &mut Rig, nexus, lba: u8| {
        run(rig, nexus, &[op::WRITE_10, 0, 0, 0, 0, lba, 0, 0, 16, 0], &[lba; 16 * 2048])
    };
    write(&mut old, A, 0).good();
    run(&mut old, A, &[op::SYNCHRONIZE_CACHE_10, 0, 0, 0, 0, 0, 0, 0, 0, 0], &[]).good();
    // What is written now is not in the record of the image.
    write(&mut old, A, 16).good();
    assert_eq!(old.unit.busy(), None);
    let state = export(&old);
    let mut new = resumed(drive_config(), Box::new(disc.clone()), &state);
    assert!(new.unit.is_removal_prevented(), "sectors that no host has synchronized");
    write(&mut new, A2, 32).good();
    run(&mut new, A2, &[op::SYNCHRONIZE_CACHE_10, 0, 0, 0, 0, 0, 0, 0, 0, 0], &[]).good();
    // The newest record on the medium is the one of the new process.
    let at = u64::from(SECTORS) * 2048;
    let mut image = disc.image.borrow_mut();
    image.submit(Op {
        id: store::api::OpId(0),
        action: store::api::OpAction::Read { at, len: crate::disc_record::TRAILER_LEN },
    });
    let Ok(store::api::OpOutput::Data(data)) = image.poll().unwrap().result else { panic!("no trailer") };
    let mut trailer = alloc::vec![0; data.len()];
    data.copy_to(0, &mut trailer);
    let len = at + u64::try_from(trailer.len()).unwrap();
    assert_eq!(DiscRecord::of_trailer(&trailer, len).unwrap().unwrap().readable(), 48);
}

#[test]
fn a_drive_that_was_handed_over_answers_as_the_one_before() {
    for steps in 0..6 {
        let disc = blank(WritableKind::DvdR);
        let mut old = Rig::fresh(drive_config(), Box::new(disc.clone()));
        old.unit.seed(&[3; 32]);
        let write = [op::WRITE_10, 0, 0, 0, 0, 0, 0, 0, 16, 0];
        let script: [(NexusId, &[u8], &[u8]); 5] = [
            (A, &[0; 6], &[]),
            (A, &write, &[3; 16 * 2048]),
            (B, &[op::PREVENT_ALLOW_MEDIUM_REMOVAL, 0, 0, 0, 1, 0], &[]),
            (B, &[op::PREVENT_ALLOW_MEDIUM_REMOVAL, 0, 0, 0, 0, 0], &[]),
            (A, &[op::START_STOP_UNIT, 0, 0, 0, 2, 0], &[]),
        ];
        for (nexus, cdb, out) in script.into_iter().take(steps) {
            run(&mut old, nexus, cdb, out);
        }
        let state = export(&old);
        let mut new = resumed(drive_config(), Box::new(disc), &state);
        answer_alike(&mut old, &mut new);
    }
}

#[test]
fn the_record_of_another_disc_is_refused() {
    let mut rig = served(drive_config(), Box::new(blank(WritableKind::DvdR)));
    run(&mut rig, A, &[0; 6], &[]);
    let state = export(&rig);
    let mut unit = next_unit(drive_config(), Box::new(blank(WritableKind::DvdPlusRw)));
    assert_eq!(unit.restore(Instant::ORIGIN, &state, nexus_of), Err(RestoreError::DiscRecord));
}
