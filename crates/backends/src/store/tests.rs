//! Tests of the order in which flushes and stable writes end.

use std::path::PathBuf;

use base::ether::FrameMachine;
use base::state_machine::{MediumId, NoStreams};
use drivers::config::Config;
use drivers::reactor::Reactor;

use super::*;
use crate::open::FileSpec;

struct NoConnections;

impl FrameMachine for NoConnections {}

impl NoStreams for NoConnections {}

const IO_ERROR: FileError = FileError { errno: Errno::IO, done: 0 };

/// A store whose file operations end as a test says. Operations have the numbers of their submission.
struct Rig {
    store: FileStore,
    next: u64,
    path: PathBuf,
    _reactor: Reactor<NoConnections>,
}

impl Rig {
    fn new(name: &str) -> Self {
        Self::opened(name, false)
    }

    /// Returns a store whose file is used as if it were open with `O_DIRECT`, or not.
    fn opened(name: &str, direct: bool) -> Self {
        let path = std::env::temp_dir().join(format!("targe-overlap-{name}-{}", std::process::id()));
        let spec = FileSpec {
            path: path.clone(),
            size: Some(1 << 20),
            allocation: Allocation::Sparse,
            read_only: false,
            direct: false,
            write_cache: true,
        };
        let reactor = Reactor::new(&Config::default()).unwrap();
        let mut opened = spec.open().unwrap();
        if direct {
            opened.file = IoFile::new(opened.duplicate().unwrap(), true);
        }
        let store = FileStore::new(opened, reactor.files().queue(MediumId(1)));
        Self { store, next: 0, path, _reactor: reactor }
    }

    /// Begins an operation. Returns its job.
    fn begin(&mut self, action: OpAction) -> Job {
        self.next += 1;
        Store::submit(&mut self.store, Op { id: OpId(self.next), action });
        self.job()
    }

    fn job(&mut self) -> Job {
        self.store.jobs.remove(0).expect("an operation of the file")
    }

    fn flush(&mut self) -> Job {
        self.store.unsynced = true;
        self.begin(OpAction::Flush)
    }

    /// Begins the sync of a change, whatever failed before.
    fn begin_sync(&mut self) -> Job {
        let failed = self.store.lost.take();
        let job = self.flush();
        self.store.lost = failed;
        job
    }

    fn write(&mut self, durability: Durability) -> Job {
        let data = Bytes::copied_from(&[1; 512]).into();
        self.begin(OpAction::Write { at: 0, data, durability })
    }

    fn stable(&mut self) -> Job {
        self.write(Durability::Stable)
    }

    fn end(&mut self, job: Job, result: Result<(), FileError>) {
        let outcome = match job.work {
            Work::Write { .. } => FileOutcome::Wrote(Bytes::copied_from(&[1; 512]).into()),
            _ => FileOutcome::Done,
        };
        self.store.finish(job, result.map(|()| outcome));
    }

    /// Returns the operations that have completed, and whether they succeeded.
    fn ended(&mut self) -> Vec<(u64, bool)> {
        self.store.ready.drain(..).map(|done| (done.id.0, done.result.is_ok())).collect()
    }
}

impl Drop for Rig {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.path);
    }
}

#[test]
fn a_failure_counts_for_all_that_was_under_way_with_it() {
    type Begin = fn(&mut Rig) -> Job;
    let kinds: [(&str, Begin); 2] = [("flush", Rig::flush), ("stable", Rig::stable)];
    for (one, begin_one) in kinds {
        for (other, begin_other) in kinds {
            let mut rig = Rig::new(&format!("{one}-{other}"));
            // The failure first.
            let (bad, good) = (begin_one(&mut rig), begin_other(&mut rig));
            rig.end(bad, Err(IO_ERROR));
            assert_eq!(rig.ended(), [(1, false)]);
            rig.end(good, Ok(()));
            assert_eq!(rig.ended(), [(2, false)], "{other} after a {one} that failed");
            drop(rig);
            // The success first.
            let mut rig = Rig::new(&format!("{one}-{other}"));
            let (bad, good) = (begin_one(&mut rig), begin_other(&mut rig));
            rig.end(good, Ok(()));
            assert_eq!(rig.ended(), [], "{other} while a {one} is under way");
            rig.end(bad, Err(IO_ERROR));
            assert_eq!(rig.ended(), [(2, false), (1, false)], "{other} before a {one} that fails");
            assert!(rig.store.has_lost_writes());
        }
    }
}

#[test]
fn a_success_waits_for_nothing_that_began_later() {
    let mut rig = Rig::new("later");
    let (first, second) = (rig.stable(), rig.stable());
    rig.end(second, Ok(()));
    let third = rig.stable();
    assert_eq!(rig.ended(), []);
    rig.end(first, Ok(()));
    assert_eq!(rig.ended(), [(2, true)], "the first waits for the third");
    let fourth = rig.stable();
    rig.end(third, Ok(()));
    assert_eq!(rig.ended(), [(1, true)]);
    // The third was under way with the fourth, the first was not.
    rig.end(fourth, Err(IO_ERROR));
    assert_eq!(rig.ended(), [(3, false), (4, false)]);
    let fifth = rig.stable();
    rig.end(fifth, Ok(()));
    assert_eq!(rig.ended(), [(5, true)], "a write after the failure");
}

#[test]
fn unstable_writes_and_other_failures_are_not_concerned() {
    let mut rig = Rig::new("other");
    let (flush, cached, stable) = (rig.flush(), rig.write(Durability::Cached), rig.stable());
    rig.end(cached, Ok(()));
    assert_eq!(rig.ended(), [(2, true)]);
    rig.end(stable, Err(FileError { errno: Errno::INVAL, done: 0 }));
    rig.end(flush, Ok(()));
    assert_eq!(rig.ended(), [(3, false), (1, true)]);
}

#[test]
fn a_write_that_is_tried_again_for_space_holds_the_others() {
    for has_space in [false, true] {
        let mut rig = Rig::new(if has_space { "space" } else { "full" });
        rig.store.verifier = None;
        let (full, good) = (rig.stable(), rig.stable());
        rig.end(full, Err(FileError { errno: Errno::NOSPC, done: 0 }));
        let again = rig.job();
        rig.end(good, Ok(()));
        assert_eq!(rig.ended(), []);
        if has_space {
            // So the error was that of another write.
            rig.end(again, Ok(()));
            assert_eq!(rig.ended(), [(2, false), (1, false)]);
        } else {
            rig.end(again, Err(FileError { errno: Errno::NOSPC, done: 0 }));
            assert_eq!(rig.ended(), [(2, true), (1, false)]);
        }
    }
}

#[test]
fn a_write_that_lacks_space_itself_loses_nothing() {
    for errno in [Errno::NOSPC, Errno::ROFS] {
        for report in [None, Some(Errno::NOSPC), Some(Errno::IO), Some(NOT_BEGUN)] {
            let mut rig =
                Rig::new(&format!("verify-{}-{:?}", errno.raw_os_error(), report.map(Errno::raw_os_error)));
            let (full, good) = (rig.stable(), rig.stable());
            rig.end(full, Err(FileError { errno, done: 0 }));
            let verify = rig.job();
            assert!(matches!(verify.work, Work::Verify { .. }), "{verify:?}");
            rig.end(good, Ok(()));
            assert_eq!(rig.ended(), [], "the report may be that of the other write");
            rig.end(verify, report.map_or(Ok(()), |errno| Err(FileError { errno, done: 0 })));
            assert_eq!(rig.ended(), [(2, report.is_none()), (1, false)], "{report:?}");
            assert_eq!(rig.store.has_lost_writes(), report.is_some(), "{report:?}");
        }
    }
}

#[test]
fn the_verifier_is_not_the_open_file_description_that_is_written() {
    let rig = Rig::new("description");
    let flags = |file: &IoFile| rustix::fs::fcntl_getfl(file.file()).unwrap();
    let verifier = rig.store.verifier.as_ref().unwrap();
    assert_ne!(flags(verifier), flags(&rig.store.file), "they share their flags, and so their reports");
}

#[test]
fn a_flush_that_was_not_begun_is_made_when_it_is_repeated() {
    let not_begun = || Err(FileError { errno: NOT_BEGUN, done: 0 });
    let mut rig = Rig::new("not-begun");
    let first = rig.flush();
    Store::submit(&mut rig.store, Op { id: OpId(2), action: OpAction::Flush });
    assert_eq!(rig.ended(), [], "it relies on the first one");
    rig.next = 2;
    rig.end(first, not_begun());
    assert_eq!(rig.ended(), [(2, false), (1, false)]);
    assert!(!rig.store.has_lost_writes());
    let again = rig.begin(OpAction::Flush);
    assert_eq!(rig.ended(), [], "nothing is durable");
    rig.end(again, Ok(()));
    assert_eq!(rig.ended(), [(3, true)]);
}

#[test]
fn a_stable_write_past_the_page_cache_can_take_the_report_of_a_failed_flush() {
    for fault in [Errno::IO, Errno::NODEV, Errno::OPNOTSUPP] {
        let mut rig = Rig::opened(&format!("direct-{}", fault.raw_os_error()), true);
        let (bad, good) = (rig.stable(), rig.stable());
        rig.end(good, Ok(()));
        assert_eq!(rig.ended(), [], "its success counts when the other one has ended");
        rig.end(bad, Err(FileError { errno: fault, done: 0 }));
        assert_eq!(rig.ended(), [(2, false), (1, false)]);
        assert!(rig.store.has_lost_writes(), "{fault}");
    }
}

#[test]
fn where_writes_take_reports_each_one_that_fails_is_a_flush_that_failed() {
    let full = || Err(FileError { errno: Errno::NOSPC, done: 0 });
    type Begin = fn(&mut Rig) -> Job;
    let zeros: Begin = |rig| {
        let durability = Durability::Cached;
        let action = OpAction::WriteZeroes { at: 0, len: 512, may_deallocate: false, durability };
        let job = rig.begin(action);
        rig.end(job, Err(FileError { errno: Errno::OPNOTSUPP, done: 0 }));
        rig.job()
    };
    let cached: Begin = |rig| rig.write(Durability::Cached);
    for (name, begin) in [("cached", cached), ("stable", Rig::stable), ("zeros", zeros)] {
        for takes_reports in [false, true] {
            let mut rig = Rig::new(&format!("takes-{name}-{takes_reports}"));
            rig.store.reports_in_writes = takes_reports;
            let flush = rig.flush();
            let write = begin(&mut rig);
            rig.end(flush, Ok(()));
            assert_eq!(rig.ended().is_empty(), takes_reports || name == "stable", "{name}");
            rig.end(write, full());
            if name == "stable" && !takes_reports {
                let verify = rig.job();
                rig.end(verify, Ok(()));
            }
            let failed = rig.store.ready.iter().filter(|done| done.result.is_err()).count();
            assert_eq!(failed, 1 + usize::from(takes_reports), "{name}");
            assert_eq!(rig.store.has_lost_writes(), takes_reports, "{name}");
            rig.ended();
            // A write that succeeds waits for nothing.
            let (_flush, write) = (rig.begin_sync(), cached(&mut rig));
            rig.end(write, Ok(()));
            assert!(matches!(rig.ended()[..], [(_, true)]), "{name}");
        }
    }
}

#[test]
fn a_sync_that_reports_an_unsupported_write_back_is_a_medium_error() {
    let begins: [fn(&mut Rig) -> Job; 2] = [Rig::flush, Rig::stable];
    for begin in begins {
        let mut rig = Rig::new("write-back");
        let job = begin(&mut rig);
        rig.end(job, Err(FileError { errno: Errno::OPNOTSUPP, done: 0 }));
        let fault = rig.store.ready.pop_front().unwrap().result.unwrap_err().fault;
        assert_eq!((fault, rig.store.has_lost_writes()), (Fault::Medium, true));
    }
}

#[test]
fn a_flush_of_nothing_new_ends_with_the_one_under_way() {
    for fails in [false, true] {
        let mut rig = Rig::new(if fails { "joins-bad" } else { "joins" });
        let first = rig.flush();
        Store::submit(&mut rig.store, Op { id: OpId(2), action: OpAction::Flush });
        assert_eq!(rig.ended(), []);
        rig.end(first, if fails { Err(IO_ERROR) } else { Ok(()) });
        let mut ended = rig.ended();
        ended.sort_unstable();
        assert_eq!(ended, [(1, !fails), (2, !fails)]);
    }
}

#[test]
fn flushes_of_a_medium_that_has_lost_writes_fail_until_the_loss_is_accepted() {
    let mut rig = Rig::new("known-loss");
    rig.store.set_lost_writes();
    Store::submit(&mut rig.store, Op { id: OpId(7), action: OpAction::Flush });
    assert_eq!(rig.ended(), [(7, false)]);
    // Nothing is unsynchronized as far as the store knows, but it knows too little.
    rig.store.unsynced = false;
    rig.store.accept_lost_writes();
    let flush = rig.begin(OpAction::Flush);
    assert_eq!(rig.ended(), []);
    rig.end(flush, Ok(()));
    assert!(matches!(rig.ended()[..], [(_, true)]));
    assert!(!rig.store.has_lost_writes());
}
