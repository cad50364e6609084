use crate::mailbox::{Sender, channel};
use backends::open::{Allocation, FileSpec};
use base::state_machine::MediumId;
use drivers::config::{Config, EngineChoice};
use drivers::files::Errno;
use drivers::reactor::Reactor;
use store::api::OpAction;

use super::snapshot::{SnapshotProgress, SnapshotReport, Step, why_no_snapshot};
use super::*;
use crate::scratch::Scratch;
use crate::serve::media::served::ServedMedium as _;
use crate::serve::reactor_shard::ReactorShard;

fn disk(path: &Path, len: u64) -> (Disk, Reactor<ReactorShard>) {
    let spec = FileSpec {
        path: path.to_path_buf(),
        size: Some(len),
        allocation: Allocation::Sparse,
        read_only: false,
        direct: false,
        write_cache: true,
    };
    let config = Config { engine: EngineChoice::Epoll, ..Config::default() };
    let reactor = Reactor::new(&config).unwrap();
    let queue = reactor.files().queue(MediumId(1));
    let opened = spec.open().unwrap();
    let medium = MediumIdentity::of_opened(&opened);
    (Disk::new((opened, medium), (path.to_path_buf(), None), queue, "disk"), reactor)
}

#[test]
fn a_failure_is_known_until_it_is_made_good_or_accepted() {
    let scratch = Scratch::new();
    let (mut disk, _reactor) = disk(&scratch.path().join("disk.img"), 1 << 20);
    let mut end = |id, at, result: Result<(), Fault>| {
        disk.submit(Op { id: OpId(id), action: OpAction::Read { at, len: 512 } });
        let result = result.map(|()| store::api::OpOutput::Done(Default::default()));
        disk.0.borrow_mut().ended(Completion { id: OpId(id), result: result.map_err(Into::into) });
        (disk.health().failure, disk.clone())
    };
    let expected = Some("a read of 512 bytes at byte 4096 failed: no space left".to_owned());
    assert_eq!(end(1, 4096, Err(Fault::NoSpace)).0, expected);
    assert_eq!(end(2, 4096, Err(Fault::Aborted)).0, expected, "this is not the medium's fault");
    assert_eq!(end(3, 0, Ok(())).0, expected);
    assert_eq!(end(4, 4096, Ok(())).0, None);
    let (failure, disk) = end(5, 4096, Err(Fault::NoSpace));
    assert_eq!(failure, expected);
    assert!(disk.accept_failure().is_some());
    assert_eq!(disk.health().failure, None);
}

#[test]
fn the_storage_of_a_file_is_known_when_it_was_measured() {
    let scratch = Scratch::new();
    let path = scratch.path().join("disk.img");
    let (disk, _reactor) = disk(&path, 1 << 20);
    assert_eq!(disk.health().space, None, "nothing is measured on a reactor");
    std::fs::write(scratch.path().join("other"), [1; 4096]).unwrap();
    disk.info().measure_space();
    let (at, space) = disk.health().space.unwrap();
    assert_eq!((at, space.allocated + space.promised), (path.canonicalize().unwrap(), 1 << 20));
    assert!(space.whole >= space.free && space.free > 0);
}

#[test]
fn a_file_that_has_shrunk_since_it_was_compared_is_not_accepted() {
    let scratch = Scratch::new();
    let path = scratch.path().join("disk.img");
    let (disk, _reactor) = disk(&path, 1 << 20);
    let file = File::options().write(true).open(&path).unwrap();
    file.set_len(4096).unwrap();
    let accept = || disk.accept_size(disk.info().measure().unwrap(), 1 << 20);
    assert_eq!(accept(), Accepted::Shrunk);
    assert_eq!(disk.info().len(), 1 << 20);
    file.set_len(2 << 20).unwrap();
    disk.withhold("it was shorter");
    let accepted = Accepted::Served { changed: true, withheld: true };
    assert_eq!(accept(), accepted);
    assert_eq!(disk.info().len(), 2 << 20);
}

#[test]
fn operations_of_a_disk_that_is_withheld_are_under_way_until_they_end_and_none_begin() {
    let scratch = Scratch::new();
    let (mut disk, _reactor) = disk(&scratch.path().join("disk.img"), 1 << 20);
    disk.withhold("it is to be withheld");
    disk.submit(Op { id: OpId(1), action: OpAction::Read { at: 0, len: 512 } });
    assert!(!disk.info().has_operations(), "it is refused");
    assert_eq!(disk.poll().map(|refused| refused.id), Some(OpId(1)));
    disk.accept_size(1 << 20, 512);
    disk.submit(Op { id: OpId(2), action: OpAction::Read { at: 0, len: 512 } });
    disk.withhold("it is to be withheld again");
    assert!(disk.info().has_operations());
}

#[test]
fn a_folder_with_another_copy_on_write_attribute_is_told_apart_from_a_file_system_without_reflink() {
    let why = |errno| why_no_snapshot(Step::Cloning, Fault::Medium.into(), Some(errno));
    assert!(why(Errno::INVAL).contains("chattr +C"));
    assert!(why(Errno::OPNOTSUPP).contains("reflink"));
}

/// Begins a snapshot, and goes as far as that the disk has written out.
fn written_out(disk: &Disk, reports: &Sender<SnapshotReport>, folder: &Path) {
    let file = File::options().write(true).create(true).truncate(true).open(folder.join("copy.img"));
    disk.begin_snapshot(
        SnapshotId(1),
        Arc::new(file.unwrap().into()),
        SnapshotReporter::new(0, reports.clone()),
    );
    step_ended(disk, Ok(()));
}

/// Ends the operation of a snapshot, as the store does.
fn step_ended(disk: &Disk, result: Result<(), Failure>) {
    disk.0.borrow_mut().snapshot_step_ended(result);
}

fn is_held(disk: &Disk) -> bool {
    disk.0.borrow().is_holding()
}

const READ: OpAction = OpAction::Read { at: 0, len: 512 };

#[test]
fn operations_wait_from_the_order_to_hold_until_the_file_is_cloned() {
    let scratch = Scratch::new();
    let (mut disk, _reactor) = disk(&scratch.path().join("disk.img"), 1 << 20);
    let (sender, reports) = channel();
    written_out(&disk, &sender, scratch.path());
    assert_eq!(reports.try_recv(), Ok((0, SnapshotProgress::WrittenOut)));
    assert!(!is_held(&disk), "the others are not written out");
    disk.order_snapshot(SnapshotId(2), SnapshotOrder::Hold);
    assert!(!is_held(&disk), "it is the order of another snapshot");
    disk.order_snapshot(SnapshotId(1), SnapshotOrder::Hold);
    disk.submit(Op { id: OpId(1), action: READ });
    assert!(is_held(&disk) && disk.busy().is_none());
    assert!(reports.try_recv().is_err(), "it is not flushed");
    step_ended(&disk, Ok(()));
    assert_eq!(reports.try_recv(), Ok((0, SnapshotProgress::Held)));
    disk.order_snapshot(SnapshotId(1), SnapshotOrder::Clone);
    assert!(is_held(&disk) && disk.busy().is_none());
    step_ended(&disk, Ok(()));
    assert_eq!(reports.try_recv(), Ok((0, SnapshotProgress::Cloned)));
    assert!(!is_held(&disk) && disk.busy().is_some());
}

#[test]
fn operations_under_way_end_before_a_disk_is_held() {
    let scratch = Scratch::new();
    let (mut disk, _reactor) = disk(&scratch.path().join("disk.img"), 1 << 20);
    let (sender, reports) = channel();
    disk.submit(Op { id: OpId(1), action: READ });
    written_out(&disk, &sender, scratch.path());
    disk.order_snapshot(SnapshotId(1), SnapshotOrder::Hold);
    assert_eq!(disk.0.borrow().snapshot.as_ref().map(Snapshot::step), Some(Step::Draining));
    disk.order_snapshot(SnapshotId(1), SnapshotOrder::Clone);
    assert_eq!(disk.0.borrow().snapshot.as_ref().map(Snapshot::step), Some(Step::Draining));
    drop(disk);
    let told: Vec<SnapshotProgress> = reports.try_iter().map(|(_, progress)| progress).collect();
    assert_eq!(told, [SnapshotProgress::WrittenOut, SnapshotProgress::Removed]);
}

#[test]
fn a_disk_that_is_released_goes_on_at_every_step() {
    for steps in 0..4 {
        let scratch = Scratch::new();
        let (mut disk, _reactor) = disk(&scratch.path().join("disk.img"), 1 << 20);
        let (sender, reports) = channel();
        let file = File::create(scratch.path().join("copy.img")).unwrap();
        disk.begin_snapshot(SnapshotId(1), Arc::new(file.into()), SnapshotReporter::new(0, sender.clone()));
        if steps > 0 {
            step_ended(&disk, Ok(()));
        }
        if steps > 1 {
            disk.order_snapshot(SnapshotId(1), SnapshotOrder::Hold);
        }
        if steps > 2 {
            step_ended(&disk, Ok(()));
        }
        disk.submit(Op { id: OpId(1), action: READ });
        assert_eq!(disk.busy().is_some(), steps < 2);
        disk.order_snapshot(SnapshotId(1), SnapshotOrder::Release);
        assert!(!is_held(&disk) && disk.busy().is_some(), "after {steps} steps");
        // The flush that is under way is none of the next snapshot.
        if matches!(steps, 0 | 2) {
            assert!(disk.obstacle().is_some());
            step_ended(&disk, Ok(()));
        }
        assert_eq!(disk.obstacle(), None);
        let told: Vec<SnapshotProgress> = reports.try_iter().map(|(_, progress)| progress).collect();
        assert!(!told.contains(&SnapshotProgress::Cloned), "{told:?}");
        assert_eq!(told.last(), Some(&SnapshotProgress::Removed));
    }
}

#[test]
fn a_disk_that_is_withheld_meanwhile_is_not_cloned() {
    let scratch = Scratch::new();
    let (mut disk, _reactor) = disk(&scratch.path().join("disk.img"), 1 << 20);
    let (sender, reports) = channel();
    written_out(&disk, &sender, scratch.path());
    disk.order_snapshot(SnapshotId(1), SnapshotOrder::Hold);
    step_ended(&disk, Ok(()));
    disk.submit(Op { id: OpId(1), action: READ });
    disk.withhold("it has shrunk");
    disk.order_snapshot(SnapshotId(1), SnapshotOrder::Clone);
    let told = reports.try_iter().last();
    assert_eq!(told, Some((0, SnapshotProgress::Failed("it has shrunk".to_owned()))));
    assert!(!is_held(&disk));
    assert_eq!(disk.poll().map(|refused| refused.id), Some(OpId(1)));
}
