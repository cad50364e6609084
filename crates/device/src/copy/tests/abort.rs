//! Copies that are aborted: by task management, by a reset, by the loss of their nexus, by COPY OPERATION
//! ABORT.

use base::rng::Rng;
use base::units::BlockSize;
use scsi::copy::results::{CopyStatus4, OperationStatus};
use scsi::copy::{copy_in, copy_out};
use scsi::sense::{Asc, SenseKey};
use scsi::status::Status;

use super::world::{LID4, LID4_IMMEDIATE, World, blocks, cscd, list, out_cdb};
use crate::contract::{TaskKey, Tmf, TmfOutcome};
use crate::testing::{A, B};
use crate::unit::Reset;

const B512: BlockSize = BlockSize::B512;
const SIZES: [(BlockSize, u64); 2] = [(B512, 12_288), (B512, 12_288)];

/// A copy from unit 0 to unit 1 in progress: some calls wait for the router, some operations for the medium.
/// It takes more operations than are executed here.
fn in_the_midst(rng: &mut Rng, format: scsi::copy::list::Format) -> (World, TaskKey) {
    let mut world = World::new(&SIZES);
    world.fill(rng, 0);
    world.slow(true);
    let steps = [blocks(0, 1, 12_000, 0, 0), blocks(1, 0, 12_000, 0, 100)];
    let key = world.start_copy(0, A, &list(format, &[cscd(0, B512), cscd(1, B512)], &steps));
    for _ in 0..8 + rng.below(32) {
        world.chance(rng);
    }
    (world, key)
}

fn status(world: &mut World) -> CopyStatus4 {
    let bytes = world.ask_lid4(0, A, copy_in::RECEIVE_COPY_STATUS_LID4, 1).good();
    CopyStatus4::parse(&bytes).unwrap().0
}

fn writes(world: &World) -> usize {
    world.gates.iter().map(super::world::Gate::writes).sum()
}

#[test]
fn no_write_happens_after_an_abort_is_confirmed() {
    for seed in 0..60 {
        let mut rng = Rng::from_seed(seed);
        let (mut world, key) = in_the_midst(&mut rng, LID4);
        let function = [
            Tmf::AbortTask(key),
            Tmf::AbortTaskSet,
            Tmf::ClearTaskSet,
            Tmf::LogicalUnitReset,
            Tmf::NexusReset,
        ][usize::try_from(rng.below(5)).unwrap()];
        let request = world.manage(0, A, function);
        while world.managed(request).is_none() {
            assert!(world.chance(&mut rng), "seed {seed}: {function:?} is never answered");
        }
        assert_eq!(world.managed(request), Some(TmfOutcome::Complete));
        let (before, medium) = (writes(&world), world.gates[1].waiting());
        world.settle(&mut rng);
        assert_eq!((writes(&world), medium), (before, 0), "seed {seed}: {function:?}");
        assert!(world.aborted(0, key), "seed {seed}: {function:?}");
        world.slow(false);
        // An operation that a reset or a nexus loss ended is discarded; one that was aborted is reported as
        // such.
        let kept = !matches!(function, Tmf::LogicalUnitReset | Tmf::NexusReset);
        let _attention = world.run(0, A, &[0; 6], 0, &[]);
        if kept {
            let status = status(&mut world);
            assert_eq!((status.status, status.completion_status), (OperationStatus::TERMINATED, 0x40));
        } else {
            world.ask_lid4(0, A, copy_in::RECEIVE_COPY_STATUS_LID4, 1).illegal(Asc::INVALID_FIELD_IN_CDB);
        }
    }
}

#[test]
fn copy_operation_abort_is_answered_when_the_copy_has_stopped() {
    for seed in 0..40 {
        let mut rng = Rng::from_seed(seed);
        let format = if rng.chance(1, 2) { LID4 } else { LID4_IMMEDIATE };
        let (mut world, key) = in_the_midst(&mut rng, format);
        let mut cdb = out_cdb(copy_out::COPY_OPERATION_ABORT, 0);
        cdb[5] = 1;
        world.run(0, B, &cdb, 0, &[]).illegal(Asc::INVALID_FIELD_IN_CDB);
        let abort = world.start(0, A, &cdb, 0, 0);
        world.finish(&mut rng, 0, abort).good();
        let before = writes(&world);
        world.settle(&mut rng);
        assert_eq!(writes(&world), before, "seed {seed}");
        let reply = world.ended(0, key).expect("the copy has ended");
        let wanted = if format == LID4 { Status::TASK_ABORTED } else { Status::GOOD };
        assert_eq!(reply.status, wanted, "seed {seed}");
        assert_eq!(status(&mut world).status, OperationStatus::TERMINATED);
        world.run(0, A, &cdb, 0, &[]).good();
    }
}

#[test]
fn the_loss_of_its_nexus_stops_a_copy_in_the_foreground_and_in_the_background() {
    for (seed, format) in (0..40).zip([LID4, LID4_IMMEDIATE].into_iter().cycle()) {
        let mut rng = Rng::from_seed(seed);
        let (mut world, _) = in_the_midst(&mut rng, format);
        world.lose(A);
        let before = writes(&world);
        world.settle(&mut rng);
        assert_eq!(writes(&world), before, "seed {seed}");
        assert_eq!(world.tasks(0), 0, "seed {seed}: a task is left over");
        assert_eq!(world.tasks(1), 0, "seed {seed}: a task is left over");
    }
}

#[test]
fn a_reset_of_the_unit_that_is_written_ends_the_copy_in_good_order() {
    for seed in 0..40 {
        let mut rng = Rng::from_seed(seed);
        let (mut world, key) = in_the_midst(&mut rng, LID4);
        world.reset(1, Reset::LogicalUnit);
        let reply = world.finish(&mut rng, 0, key);
        if reply.status != Status::GOOD {
            reply.check(SenseKey::COPY_ABORTED, Asc::THIRD_PARTY_DEVICE_FAILURE);
            assert_eq!(status(&mut world).status, OperationStatus::FAILED);
        }
        world.settle(&mut rng);
        assert_eq!(world.tasks(1), 0, "seed {seed}: a task is left over");
    }
}

#[test]
fn a_copy_in_the_background_is_answered_at_once_and_can_be_watched() {
    let mut rng = Rng::from_seed(5);
    let (mut world, key) = in_the_midst(&mut rng, LID4_IMMEDIATE);
    world.ended(0, key).expect("it has been answered").good();
    let going = status(&mut world);
    assert_eq!((going.status, going.service_action), (OperationStatus::IN_BACKGROUND, 1));
    world.settle(&mut rng);
    let done = status(&mut world);
    assert_eq!((done.status, done.segments_processed), (OperationStatus::COMPLETED, 2));
    assert_eq!(done.transfer_count, 24_000 << 9);
    assert!(done.operation_counter != going.operation_counter);
}
