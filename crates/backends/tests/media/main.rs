//! Tests of files and block devices as stores, on real file systems, with either engine.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::cast_possible_truncation,
    reason = "all of this is test code, where a panic is the verdict"
)]

mod model;
mod rig;
mod tape;

use std::fs::{self, OpenOptions};
use std::time::Duration;

use backends::open::{Allocation, BlockSpec, FileSpec, OpenError, Opened};
use base::buffer::DataList;
use drivers::config::EngineChoice;
use store::Store;
use store::api::{Durability, Extent, ExtentState, Failure, Fault, OpAction, OpOutput, Space};

use tape::{frees_what_is_erased, keeps_a_cartridge_in_its_folder};

use rig::{LoopDevice, Rig, Scratch, flat, list, open_direct, spec};

const MIB: u64 = 1 << 20;

/// Makes a test of each function for each engine.
macro_rules! with_both_engines {
    ($($name:ident,)*) => {
        mod epoll {
            $(#[test] fn $name() { super::$name(super::EngineChoice::Epoll); })*
        }
        mod uring {
            $(#[test] fn $name() { super::$name(super::EngineChoice::Uring); })*
        }
    };
}

with_both_engines! {
    behaves_like_memory,
    tells_how_much_storage_a_sparse_file_takes,
    behaves_like_memory_past_the_page_cache,
    reads_and_writes_more_than_one_buffer_at_once,
    bounces_what_lies_askew_for_direct_io,
    refuses_what_breaks_the_contract,
    says_gone_where_the_file_was_cut,
    follows_the_size_of_the_file,
    lists_data_and_holes,
    keeps_reserved_storage_of_a_full_file,
    says_no_space_and_recovers,
    says_no_space_for_a_stable_write_and_recovers,
    writes_through_without_a_cache,
    a_cache_is_switched_off_and_on,
    tells_the_machine_of_results,
    serves_a_block_device,
    never_flushes_well_again_after_a_failed_flush,
    fails_all_that_is_under_way_with_a_failed_flush,
    keeps_a_cartridge_in_its_folder,
    frees_what_is_erased,
}

fn behaves_like_memory(engine: EngineChoice) {
    for seed in model::seeds() {
        let scratch = Scratch::new();
        let opened = spec(scratch.file("disk"), model::SIZE).open().unwrap();
        let Some(rig) = Rig::serve(engine, opened) else { return };
        model::compare(rig, seed);
    }
}

fn behaves_like_memory_past_the_page_cache(engine: EngineChoice) {
    for seed in model::seeds() {
        let scratch = Scratch::new();
        let Some(opened) = open_direct(&spec(scratch.file("disk"), model::SIZE)) else { return };
        let Some(rig) = Rig::serve(engine, opened) else { return };
        model::compare(rig, seed);
    }
}

fn reads_and_writes_more_than_one_buffer_at_once(engine: EngineChoice) {
    let scratch = Scratch::new();
    let opened = spec(scratch.file("disk"), 32 * MIB).open().unwrap();
    let Some(mut rig) = Rig::serve(engine, opened) else { return };
    let len = rig.store.capabilities().io_len_max;
    let words = model::pattern(5, len);
    let mut data = DataList::new();
    for piece in words.chunks(3000) {
        list(piece).into_parts().for_each(|part| data.push(part));
    }
    assert!(data.parts().len() > 1024, "more pieces than one call takes");
    let written = rig.one(OpAction::Write { at: 4096, data, durability: Durability::Cached });
    assert!(matches!(written, Ok(OpOutput::Done(back)) if back.len() == len));
    assert!(rig.read(4096, len) == words);
}

fn bounces_what_lies_askew_for_direct_io(engine: EngineChoice) {
    let scratch = Scratch::new();
    let Some(opened) = open_direct(&spec(scratch.file("disk"), 8 * MIB)) else { return };
    let Some(mut rig) = Rig::serve(engine, opened) else { return };
    let words = model::pattern(6, 2 * MIB as usize + 8192 + 7);
    let whole = list(&words);
    let mut data = DataList::new();
    whole.slice(7, 4096 + 7).into_parts().for_each(|part| data.push(part));
    whole.slice(4096 + 7, words.len()).into_parts().for_each(|part| data.push(part));
    let given = flat(&data);
    let written = rig.one(OpAction::Write { at: 8192, data, durability: Durability::Cached });
    let Ok(OpOutput::Done(back)) = written else { panic!("{written:?}") };
    assert!(flat(&back) == given, "the submitter's own data comes back");
    assert!(rig.read(8192, given.len()) == given);
}

fn refuses_what_breaks_the_contract(engine: EngineChoice) {
    let scratch = Scratch::new();
    let path = scratch.file("disk");
    drop(spec(path.clone(), MIB).open().unwrap());
    let reader = FileSpec { read_only: true, size: None, ..spec(path, 0) };
    let opened = open_soon(|| reader.open());
    let Some(mut rig) = Rig::serve(engine, opened) else { return };
    assert!(rig.store.capabilities().read_only);
    assert!(rig.store.capabilities().thin, "what is asked of it is refused as a write, not as unknown");
    let longest = rig.store.capabilities().io_len_max;
    let fault = |result: Result<OpOutput, Failure>| result.unwrap_err().fault;
    let table = [
        (OpAction::Read { at: MIB - 1, len: 2 }, Fault::OutOfRange),
        (OpAction::Read { at: u64::MAX, len: 2 }, Fault::OutOfRange),
        (OpAction::Read { at: 0, len: longest + 1 }, Fault::OutOfRange),
        (OpAction::Write { at: 0, data: list(b"x"), durability: Durability::Cached }, Fault::ReadOnly),
        (OpAction::Deallocate { at: 0, len: 1 }, Fault::ReadOnly),
        (
            OpAction::WriteZeroes { at: 0, len: 1, may_deallocate: false, durability: Durability::Stable },
            Fault::ReadOnly,
        ),
        (OpAction::MapStatus { at: MIB, len: 1, count_max: 1 }, Fault::OutOfRange),
    ];
    for (action, expected) in table {
        let shown = format!("{action:?}");
        assert_eq!(fault(rig.one(action)), expected, "{shown}");
    }
    assert!(rig.one(OpAction::Flush).is_ok(), "nothing is left to flush");
    let Some(direct) = open_direct(&spec(scratch.file("direct"), MIB)) else { return };
    let Some(mut rig) = Rig::serve(engine, direct) else { return };
    assert!(rig.store.capabilities().logical_block_len >= 512);
    assert_eq!(fault(rig.one(OpAction::Read { at: 1, len: 4096 })), Fault::Bug);
    assert_eq!(fault(rig.write(0, b"short", Durability::Cached)), Fault::Bug);
}

fn says_gone_where_the_file_was_cut(engine: EngineChoice) {
    let scratch = Scratch::new();
    let path = scratch.file("disk");
    let Some(mut rig) = Rig::serve(engine, spec(path.clone(), MIB).open().unwrap()) else { return };
    OpenOptions::new().write(true).open(&path).unwrap().set_len(10_000).unwrap();
    let failure = rig.one(OpAction::Read { at: 8192, len: 8192 }).unwrap_err();
    assert_eq!(failure, Failure { fault: Fault::Gone, at: Some(10_000) });
    assert_eq!((rig.store.is_truncated(), rig.store.size_meter().measure()), (true, Ok(10_000)));
    assert_eq!(rig.read(0, 8192).len(), 8192);
}

fn follows_the_size_of_the_file(engine: EngineChoice) {
    let scratch = Scratch::new();
    let path = scratch.file("disk");
    let Some(mut rig) = Rig::serve(engine, spec(path.clone(), MIB).open().unwrap()) else { return };
    let meter = rig.store.size_meter();
    assert!(!rig.store.adopt_size(meter.measure().unwrap()));
    OpenOptions::new().write(true).open(&path).unwrap().set_len(3 * MIB).unwrap();
    assert_eq!(rig.store.capabilities().len, MIB);
    assert!(rig.store.adopt_size(meter.measure().unwrap()));
    assert_eq!(rig.store.capabilities().len, 3 * MIB);
    assert_eq!(rig.read(2 * MIB, 10), [0; 10]);
}

fn lists_data_and_holes(engine: EngineChoice) {
    let scratch = Scratch::new();
    let Some(mut rig) = Rig::serve(engine, spec(scratch.file("disk"), MIB).open().unwrap()) else { return };
    assert!(rig.store.capabilities().thin && rig.store.capabilities().deallocated_reads_zero);
    let block = 64 << 10;
    rig.write(block, &[1; 64 << 10], Durability::Cached).unwrap();
    rig.write(3 * block, &[1; 64 << 10], Durability::Stable).unwrap();
    let list = |rig: &mut Rig, at, len, count_max| match rig.one(OpAction::MapStatus { at, len, count_max }) {
        Ok(OpOutput::MapStatus(list)) => list,
        other => panic!("{other:?}"),
    };
    let extent = |at, len, state| Extent { at, len, state };
    let (hole, data) = (ExtentState::Hole, ExtentState::Mapped);
    let all = [
        extent(0, block, hole),
        extent(block, block, data),
        extent(2 * block, block, hole),
        extent(3 * block, block, data),
        extent(4 * block, MIB - 4 * block, hole),
    ];
    assert_eq!(list(&mut rig, 0, MIB, 100), all);
    assert_eq!(list(&mut rig, 0, MIB, 2), all[..2]);
    let cut = [extent(block + 4096, block - 4096, data), extent(2 * block, 4096, hole)];
    assert_eq!(list(&mut rig, block + 4096, block, 100), cut);
    rig.one(OpAction::Deallocate { at: block, len: block }).unwrap();
    assert_eq!(list(&mut rig, 0, 3 * block, 100), [extent(0, 3 * block, hole)]);
    assert!(rig.read(block, 64 << 10).iter().all(|byte| *byte == 0));
    assert_eq!(list(&mut rig, 0, 0, 100), []);
}

fn keeps_reserved_storage_of_a_full_file(engine: EngineChoice) {
    let scratch = Scratch::new();
    let full = FileSpec { allocation: Allocation::Full, ..spec(scratch.file("disk"), MIB) };
    let Some(mut rig) = Rig::serve(engine, full.open().unwrap()) else { return };
    assert!(!rig.store.capabilities().thin);
    let failure = rig.one(OpAction::Deallocate { at: 0, len: MIB }).unwrap_err();
    assert_eq!(failure.fault, Fault::Unsupported);
    rig.write(0, &[1; 8192], Durability::Cached).unwrap();
    let zeroes = OpAction::WriteZeroes {
        at: 4096,
        len: MIB - 4096,
        may_deallocate: true,
        durability: Durability::Stable,
    };
    rig.one(zeroes).unwrap();
    assert!(rig.read(4096, 8192).iter().all(|byte| *byte == 0));
    let extents = rig.one(OpAction::MapStatus { at: 0, len: MIB, count_max: 10 });
    let Ok(OpOutput::MapStatus(extents)) = extents else { panic!("{extents:?}") };
    assert!(extents.iter().all(|extent| extent.state != ExtentState::Hole), "{extents:?}");
    let stored = std::os::unix::fs::MetadataExt::blocks(&fs::metadata(scratch.file("disk")).unwrap());
    assert!(stored * 512 >= MIB, "{stored} sectors are stored");
}

fn says_no_space_and_recovers(engine: EngineChoice) {
    fill_up(engine, Durability::Cached);
}

fn says_no_space_for_a_stable_write_and_recovers(engine: EngineChoice) {
    fill_up(engine, Durability::Stable);
}

fn fill_up(engine: EngineChoice, durability: Durability) {
    let Some(scratch) = Scratch::small("1m") else { return };
    let Some(mut rig) = Rig::serve(engine, spec(scratch.file("disk"), 8 * MIB).open().unwrap()) else {
        return;
    };
    let words = model::pattern(9, 256 << 10);
    let (mut written, mut refused) = (0, 0);
    for step in 0..8 {
        match rig.write(step * (256 << 10), &words, durability) {
            Ok(_) => written += 1,
            Err(failure) => {
                assert_eq!(failure.fault, Fault::NoSpace);
                refused += 1;
            }
        }
    }
    assert!(written >= 2 && refused >= 4, "{written} written, {refused} refused");
    let zeroes = OpAction::WriteZeroes {
        at: 4 * MIB,
        len: 4 * MIB,
        may_deallocate: false,
        durability: Durability::Cached,
    };
    assert_eq!(rig.one(zeroes).unwrap_err().fault, Fault::NoSpace);
    rig.one(OpAction::Flush).unwrap();
    assert!(rig.read(0, words.len()) == words);
    rig.one(OpAction::Deallocate { at: 0, len: 8 * MIB }).unwrap();
    rig.write(5 * MIB, &words, durability).unwrap();
    rig.one(OpAction::Flush).unwrap();
    assert!(rig.read(5 * MIB, words.len()) == words);
}

fn writes_through_without_a_cache(engine: EngineChoice) {
    let scratch = Scratch::new();
    let through = FileSpec { write_cache: false, ..spec(scratch.file("disk"), MIB) };
    let Some(mut rig) = Rig::serve(engine, through.open().unwrap()) else { return };
    assert!(!rig.store.capabilities().volatile_cache);
    rig.write(4096, &[5; 4096], Durability::Cached).unwrap();
    rig.one(OpAction::Deallocate { at: 8192, len: 4096 }).unwrap();
    let zeroes =
        OpAction::WriteZeroes { at: 0, len: 4096, may_deallocate: true, durability: Durability::Cached };
    rig.one(zeroes).unwrap();
    rig.one(OpAction::Flush).unwrap();
    assert_eq!(rig.read(4095, 3), [0, 5, 5]);
}

fn tells_the_machine_of_results(engine: EngineChoice) {
    let scratch = Scratch::new();
    let Some(mut rig) = Rig::serve(engine, spec(scratch.file("disk"), MIB).open().unwrap()) else { return };
    rig.write(0, b"words", Durability::Cached).unwrap();
    rig.one(OpAction::Flush).unwrap();
    assert!(rig.listener.told > 0, "nobody said that the flush was done");
}

fn serves_a_block_device(engine: EngineChoice) {
    let scratch = Scratch::new();
    let path = scratch.file("image");
    fs::write(&path, vec![7; 2 * MIB as usize]).unwrap();
    let Some(device) = LoopDevice::over(&path) else { return };
    for direct in [false, true] {
        let block = BlockSpec { path: device.path.clone(), read_only: false, direct, write_cache: true };
        let opened = open_soon(|| block.open());
        assert!(matches!(block.open(), Err(OpenError::InUse { .. })), "a second claim");
        let Some(mut rig) = Rig::serve(engine, opened) else { return };
        let profile = rig.store.capabilities();
        assert_eq!((profile.len, profile.logical_block_len), (2 * MIB, 512));
        assert!(!profile.deallocated_reads_zero);
        let words = model::pattern(3, 8192);
        rig.write(512, &words, Durability::Stable).unwrap();
        assert_eq!(rig.read(512, 8192), words);
        for (at, may_deallocate) in [(1024, false), (4096, true)] {
            let zeroes =
                OpAction::WriteZeroes { at, len: 1024, may_deallocate, durability: Durability::Stable };
            rig.one(zeroes).unwrap();
            assert_eq!(rig.read(at, 1024), [0; 1024]);
            assert_eq!(rig.read(at + 1024, 512), words[at as usize + 512..at as usize + 1024]);
        }
        if profile.thin {
            rig.one(OpAction::Deallocate { at: MIB, len: MIB }).unwrap();
        }
        rig.one(OpAction::Flush).unwrap();
        let extents = rig.one(OpAction::MapStatus { at: 512, len: MIB, count_max: 10 });
        let Ok(OpOutput::MapStatus(extents)) = extents else { panic!("{extents:?}") };
        assert_eq!(extents, [Extent { at: 512, len: MIB, state: ExtentState::Mapped }]);
        drop(rig);
    }
}

/// A loop device over a sparse file on a full file system accepts writes into the cache that it can never
/// store.
fn never_flushes_well_again_after_a_failed_flush(engine: EngineChoice) {
    let Some(scratch) = Scratch::small("1m") else { return };
    let path = scratch.file("image");
    fs::File::create(&path).unwrap().set_len(8 * MIB).unwrap();
    let Some(device) = LoopDevice::over(&path) else { return };
    let block = BlockSpec { path: device.path.clone(), read_only: false, direct: false, write_cache: true };
    let Some(mut rig) = Rig::serve(engine, open_soon(|| block.open())) else { return };
    rig.write(0, &model::pattern(1, 4 * MIB as usize), Durability::Cached).unwrap();
    assert_eq!(rig.one(OpAction::Flush).unwrap_err().fault, Fault::Medium);
    // The kernel has forgotten the error by now, and its next `fdatasync` would succeed.
    assert_eq!(rig.one(OpAction::Flush).unwrap_err().fault, Fault::Medium);
    rig.write(0, &[2; 512], Durability::Cached).unwrap();
    assert_eq!(rig.one(OpAction::Flush).unwrap_err().fault, Fault::Medium);
    drop(rig);
    let Some(mut rig) = Rig::serve(engine, open_soon(|| block.open())) else { return };
    rig.write(0, &[1; 512], Durability::Cached).unwrap();
    rig.one(OpAction::Flush).unwrap();
}

/// Of a flush and stable writes that are under way together, one gets the only report of the kernel.
fn fails_all_that_is_under_way_with_a_failed_flush(engine: EngineChoice) {
    let Some(scratch) = Scratch::small("1m") else { return };
    let path = scratch.file("image");
    fs::File::create(&path).unwrap().set_len(8 * MIB).unwrap();
    let Some(device) = LoopDevice::over(&path) else { return };
    let block = BlockSpec { path: device.path.clone(), read_only: false, direct: false, write_cache: true };
    let Some(mut rig) = Rig::serve(engine, open_soon(|| block.open())) else { return };
    // This part has storage.
    rig.write(0, &[1; 65536], Durability::Stable).unwrap();
    rig.write(MIB, &model::pattern(1, 4 * MIB as usize), Durability::Cached).unwrap();
    let stable = |page: u64| {
        let data = list(&[2; 4096]);
        OpAction::Write { at: page * 4096, data, durability: Durability::Stable }
    };
    let mut actions: Vec<OpAction> = (0..8).map(stable).collect();
    actions.insert(4, OpAction::Flush);
    for result in rig.run(actions) {
        assert_eq!(result.unwrap_err().fault, Fault::Medium);
    }
}

/// Opens a medium that was closed. A process that another test has just forked holds the lock until it
/// executes another program.
fn open_soon(open: impl Fn() -> Result<Opened, OpenError>) -> Opened {
    for _ in 0..60_000 {
        match open() {
            Err(OpenError::InUse { .. }) => std::thread::sleep(Duration::from_millis(1)),
            other => return other.unwrap(),
        }
    }
    panic!("still locked");
}

#[test]
fn a_writer_keeps_others_out_and_readers_share() {
    let scratch = Scratch::new();
    let spec = spec(scratch.file("disk"), MIB);
    let reader = FileSpec { read_only: true, size: None, ..spec.clone() };
    let writing = spec.open().unwrap();
    assert!(matches!(spec.open(), Err(OpenError::InUse { .. })));
    let refused = reader.open().unwrap_err();
    assert_eq!(refused.to_string(), format!("{} is in use by another process", spec.path.display()));
    drop(writing);
    let readers = [open_soon(|| reader.open()), open_soon(|| reader.open())];
    assert!(matches!(spec.open(), Err(OpenError::InUse { .. })));
    drop(readers);
    open_soon(|| spec.open());
}

#[test]
fn a_lock_of_another_process_counts() {
    let scratch = Scratch::new();
    let spec = spec(scratch.file("disk"), MIB);
    drop(spec.open().unwrap());
    let mut other = std::process::Command::new("flock")
        .arg(&spec.path)
        .args(["sh", "-c", "echo locked; read _"])
        .stdin(std::process::Stdio::piped())
        .stdout(std::process::Stdio::piped())
        .spawn();
    let Ok(other) = &mut other else {
        eprintln!("skipped: no flock command here");
        return;
    };
    let mut said = [0; 6];
    std::io::Read::read_exact(other.stdout.as_mut().unwrap(), &mut said).unwrap();
    assert!(matches!(spec.open(), Err(OpenError::InUse { .. })));
    drop(other.stdin.take());
    other.wait().unwrap();
    open_soon(|| spec.open());
}

#[test]
fn says_why_a_medium_cannot_be_opened() {
    let scratch = Scratch::new();
    let file = |name: &str| FileSpec { size: None, ..spec(scratch.file(name), 0) };
    fs::write(scratch.file("some"), [1; 5000]).unwrap();
    fs::write(scratch.file("empty"), []).unwrap();
    let table: [(FileSpec, &str); 6] = [
        (file("missing"), "missing does not exist, and no size was given to create it"),
        (file("no/such/directory"), "cannot open"),
        (file("empty"), "empty is empty, and no size was given"),
        (
            FileSpec { size: Some(100), ..file("some") },
            "some has 5000 bytes, more than the 100 that were requested; it is not truncated",
        ),
        (file("."), "is not a regular file"),
        (FileSpec { size: Some(u64::MAX / 2), ..file("vast") }, "cannot extend"),
    ];
    for (spec, expected) in table {
        let said = spec.open().unwrap_err().to_string();
        assert!(said.contains(expected), "{said:?} does not say {expected:?}");
    }
    let block = BlockSpec { path: scratch.file("some"), read_only: false, direct: false, write_cache: true };
    let said = block.open().unwrap_err().to_string();
    assert!(said.ends_with("some is not a block device"), "{said}");
    assert_eq!(fs::read(scratch.file("some")).unwrap(), [1; 5000]);
}

#[test]
fn creates_and_grows_a_file_and_keeps_what_is_in_it() {
    let scratch = Scratch::new();
    let path = scratch.file("disk");
    drop(spec(path.clone(), MIB).open().unwrap());
    assert_eq!(fs::metadata(&path).unwrap().len(), MIB);
    fs::write(&path, [3; 5000]).unwrap();
    let full = FileSpec { allocation: Allocation::Full, ..spec(path.clone(), 2 * MIB) };
    drop(open_soon(|| full.open()));
    let words = fs::read(&path).unwrap();
    assert_eq!((words.len() as u64, &words[..5000]), (2 * MIB, &[3; 5000][..]));
    let mode = std::os::unix::fs::MetadataExt::mode(&fs::metadata(&path).unwrap());
    assert_eq!(mode & 0o077, 0, "only its owner may read it");
}

/// What a size needs is made durable by `fsync`, which would take a report that the store of the file needs.
#[test]
fn a_file_that_is_opened_once_more_keeps_its_size() {
    let scratch = Scratch::new();
    let path = scratch.file("disk");
    let opened = spec(path.clone(), MIB).open().unwrap();
    let larger = spec(path.clone(), 2 * MIB).open_again(opened.duplicate().unwrap());
    assert!(matches!(larger, Err(OpenError::OtherSize { .. })), "{larger:?}");
    assert_eq!(fs::metadata(&path).unwrap().len(), MIB);
    assert!(spec(path, MIB).open_again(opened.duplicate().unwrap()).is_ok());
}

#[test]
fn what_cannot_be_given_its_size_is_left_as_it_was() {
    let scratch = Scratch::new();
    // No file system has that much space, and few support a file of that length.
    let vast = |name: &str, allocation| FileSpec { allocation, ..spec(scratch.file(name), 1 << 62) };
    for allocation in [Allocation::Full, Allocation::Sparse] {
        if vast("new", allocation).open().is_ok() {
            fs::remove_file(scratch.file("new")).unwrap();
            continue;
        }
        assert!(!scratch.file("new").exists(), "{allocation:?}");
    }
    fs::write(scratch.file("old"), [3; 5000]).unwrap();
    assert!(vast("old", Allocation::Full).open().is_err());
    assert_eq!(fs::read(scratch.file("old")).unwrap(), [3; 5000]);
}

#[test]
fn what_was_done_to_a_file_that_is_not_served_after_all_is_taken_back() {
    let scratch = Scratch::new();
    let path = scratch.file("disk");
    let mut created = spec(path.clone(), MIB).open().unwrap();
    let undo = created.take_undo().unwrap();
    drop(created);
    undo.undo().unwrap();
    assert!(!path.exists());
    fs::write(&path, [3; 5000]).unwrap();
    let mut grown = spec(path.clone(), MIB).open().unwrap();
    grown.take_undo().unwrap().undo().unwrap();
    assert_eq!(fs::read(&path).unwrap(), [3; 5000]);
    drop(grown);
    let as_it_is = FileSpec { size: None, ..spec(path, MIB) };
    assert!(open_soon(|| as_it_is.open()).take_undo().is_none());
}

#[test]
fn what_another_process_added_before_it_gave_the_lock_up_is_not_taken_back() {
    let scratch = Scratch::new();
    let path = scratch.file("disk");
    let holder = fs::File::create(&path).unwrap();
    holder.set_len(4096).unwrap();
    holder.lock().unwrap();
    let spec = spec(path.clone(), MIB);
    let opener = std::thread::spawn(move || open_soon(|| spec.open()));
    std::thread::sleep(Duration::from_millis(200));
    fs::write(&path, [3; 8192]).unwrap();
    drop(holder);
    opener.join().unwrap().take_undo().unwrap().undo().unwrap();
    assert_eq!(fs::read(&path).unwrap(), [3; 8192]);
}

fn a_cache_is_switched_off_and_on(engine: EngineChoice) {
    let scratch = Scratch::new();
    let Some(mut rig) = Rig::serve(engine, spec(scratch.file("disk"), MIB).open().unwrap()) else { return };
    for cached in [false, true] {
        // One write is under way when the cache is switched.
        let data = list(&[7; 4096]);
        let action = OpAction::Write { at: 0, data, durability: Durability::Cached };
        let result = rig.one_switching(action, cached);
        assert!(matches!(result, Ok(OpOutput::Done(_))), "{result:?}");
        assert_eq!(rig.store.capabilities().volatile_cache, cached);
        rig.write(4096, &[8; 4096], Durability::Cached).unwrap();
        assert_eq!(rig.read(4095, 2), [7, 8]);
    }
}

fn tells_how_much_storage_a_sparse_file_takes(engine: EngineChoice) {
    let scratch = Scratch::new();
    let Some(mut rig) = Rig::serve(engine, spec(scratch.file("disk"), 4 * MIB).open().unwrap()) else {
        return;
    };
    if !rig.store.capabilities().thin {
        return eprintln!("skipped: this file system makes no holes");
    }
    let space = |rig: &Rig| rig.store.space().expect("a file on a file system");
    // A thread measures, so that a file system that is frozen does not hold up the reactor: the numbers
    // follow.
    let await_space = |rig: &mut Rig, expected: &dyn Fn(&Space) -> bool| {
        let deadline = std::time::Instant::now() + Duration::from_secs(60);
        loop {
            let space = space(rig);
            if expected(&space) {
                return space;
            }
            assert!(std::time::Instant::now() < deadline, "{space:?}");
            rig.read(0, 512);
        }
    };
    let before = space(&rig);
    assert!(before.used < MIB && before.available <= 4 * MIB && before.shared, "{before:?}");
    rig.write(MIB, &vec![1; 1 << 20], Durability::Stable).unwrap();
    let after = await_space(&mut rig, &|space| space.used >= before.used + MIB);
    assert!(after.used + after.available <= 4 * MIB, "{after:?}");
    rig.one(OpAction::Deallocate { at: 0, len: 4 * MIB }).unwrap();
    await_space(&mut rig, &|space| space.used < MIB);
}
