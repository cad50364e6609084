//! The barrier with disks that only report, and the names of files.

use std::cell::RefCell;
use std::panic::{AssertUnwindSafe, catch_unwind};

use super::*;
use crate::scratch::Scratch;

const SHORT: Duration = Duration::from_millis(20);
const LONG: Duration = Duration::from_secs(60);

/// Two disks, whose reports to each order are given: those that were not ordered are of the beginning.
fn pass(
    hold_max: Duration,
    reports: impl Fn(Option<SnapshotOrder>) -> Vec<SnapshotReport>,
) -> (Result<(), (usize, String)>, Vec<SnapshotOrder>) {
    let given = RefCell::new(Vec::new());
    let (sender, receiver) = channel();
    let send = |order| {
        for report in reports(order) {
            sender.send(report).unwrap();
        }
    };
    send(None);
    let mut orders = Orders::new(|order| {
        given.borrow_mut().push(order);
        send(Some(order));
    });
    let done = orders.pass(2, &receiver, hold_max);
    drop(orders);
    (done, given.into_inner())
}

/// What both disks report when all goes well.
fn good(order: Option<SnapshotOrder>) -> Vec<SnapshotReport> {
    let progress = match order {
        None => SnapshotProgress::WrittenOut,
        Some(SnapshotOrder::Hold) => SnapshotProgress::Held,
        Some(SnapshotOrder::Clone) => SnapshotProgress::Cloned,
        Some(SnapshotOrder::Release) => return Vec::new(),
    };
    vec![(1, progress.clone()), (0, progress)]
}

const PASSED: [SnapshotOrder; 2] = [SnapshotOrder::Hold, SnapshotOrder::Clone];
const HELD: [SnapshotOrder; 2] = [SnapshotOrder::Hold, SnapshotOrder::Release];

#[test]
fn every_disk_takes_a_step_before_one_takes_the_next() {
    let (done, orders) = pass(LONG, good);
    assert_eq!((done, orders), (Ok(()), PASSED.to_vec()));
}

#[test]
fn no_file_is_cloned_unless_all_disks_are_held_in_time() {
    let slow = |order| match order {
        Some(SnapshotOrder::Hold) => vec![(0, SnapshotProgress::Held)],
        order => good(order),
    };
    let (done, orders) = pass(SHORT, slow);
    let (number, why) = done.unwrap_err();
    assert!(number == 1 && why.contains("do not end"), "{number}: {why}");
    assert_eq!(orders, HELD);
}

#[test]
fn one_disk_that_fails_or_is_removed_releases_all_at_once() {
    for (progress, told) in [
        (SnapshotProgress::Failed("no reflink".to_owned()), "no reflink"),
        (SnapshotProgress::Removed, "the LUN was removed meanwhile"),
    ] {
        for (at, expected) in [
            (None, vec![SnapshotOrder::Release]),
            (Some(SnapshotOrder::Hold), HELD.to_vec()),
            (Some(SnapshotOrder::Clone), [&PASSED[..], &[SnapshotOrder::Release]].concat()),
        ] {
            let began = Instant::now();
            // The other one does not report.
            let failing = |order| if order == at { vec![(1, progress.clone())] } else { good(order) };
            let (done, orders) = pass(LONG, failing);
            assert_eq!((done, orders), (Err((1, told.to_owned())), expected));
            assert!(began.elapsed() < LONG, "the other disk was waited for");
        }
    }
}

#[test]
fn a_thread_that_dies_releases_all() {
    let given = RefCell::new(Vec::new());
    let died = catch_unwind(AssertUnwindSafe(|| {
        let (sender, receiver) = channel();
        let mut orders = Orders::new(|order| {
            given.borrow_mut().push(order);
            assert_ne!(order, SnapshotOrder::Hold, "the thread dies");
        });
        for number in 0..2 {
            sender.send((number, SnapshotProgress::WrittenOut)).unwrap();
        }
        let _ = orders.pass(2, &receiver, LONG);
    }));
    assert!(died.is_err());
    assert_eq!(given.into_inner(), HELD);
}

#[test]
fn all_files_get_their_names_or_none() {
    let scratch = Scratch::new();
    let unnamed = || {
        let flags = i32::try_from(OFlags::TMPFILE.bits()).unwrap();
        let file = File::options().read(true).write(true).custom_flags(flags).open(scratch.path());
        file.map(|file| Arc::new(ReleasedFile::from(file)))
    };
    let Ok(first) = unnamed() else { return };
    let files = [first, unnamed().unwrap(), unnamed().unwrap()];
    let others = [(); 3].map(|()| unnamed().unwrap());
    let names = ["a", "b", "c"].map(|name| scratch.path().join(name));
    let wanted = names.clone().map(|path| Wanted { name: "disk".to_owned(), id: UnitId(1), path });
    std::fs::write(&names[2], "another file").unwrap();
    let refused = name_files(&wanted, &files).unwrap_err();
    assert!(refused.message.contains("exists already"), "{}", refused.message);
    assert!(!names[0].exists() && !names[1].exists());
    assert_eq!(std::fs::read_to_string(&names[2]).unwrap(), "another file");
    std::fs::remove_file(&names[2]).unwrap();
    // The system links no file that has lost its last name.
    name_files(&wanted, &others).unwrap();
    assert!(names.iter().all(|name| name.exists()));
}

#[test]
fn a_disk_or_a_file_that_is_named_twice_is_refused() {
    let one = |id, path: &str| Wanted { name: format!("disk/{id}"), id: UnitId(id), path: path.into() };
    refuse_twice(&[one(1, "/a"), one(2, "/b")]).unwrap();
    let refused = refuse_twice(&[one(1, "/a"), one(2, "/b"), one(1, "/c")]).unwrap_err();
    assert!(refused.message.contains("the same disk"), "{}", refused.message);
    let refused = refuse_twice(&[one(1, "/a"), one(2, "/a")]).unwrap_err();
    assert!(refused.message.contains("another LUN, too"), "{}", refused.message);
}
