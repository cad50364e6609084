use std::sync::Mutex;

use super::*;
use crate::testing::{Medium, seed};
use base::rng::Rng;
use store::api::ExtentState;

const GRANULE: u32 = 512;
const LEN: u64 = 64 << 10;
const IO_LEN_MAX: usize = 4096;

type Results = Arc<Mutex<Vec<(usize, Result<OpOutput, Failure>)>>>;

fn data(bytes: &[u8]) -> DataList {
    Bytes::copied_from(bytes).into()
}

fn write(at: u64, bytes: &[u8]) -> OpAction {
    OpAction::Write { at, data: data(bytes), durability: Durability::Cached }
}

/// Executes one operation on a medium that completes it at once.
fn does(disk: &UnalignedStore, action: OpAction) -> Result<OpOutput, Failure> {
    let slot = Arc::new(Mutex::new(None));
    let there = Arc::clone(&slot);
    disk.submit(action, Box::new(move |result| *there.lock().unwrap() = Some(result)));
    slot.lock().unwrap().take().expect("the medium answers at once")
}

fn reads(disk: &UnalignedStore, at: u64, len: usize) -> Vec<u8> {
    let Ok(OpOutput::Data(list)) = does(disk, OpAction::Read { at, len }) else { panic!("cannot read") };
    assert_eq!(list.len(), len);
    let mut bytes = vec![0; len];
    list.copy_to(0, &mut bytes);
    bytes
}

fn disk() -> (Arc<Medium>, UnalignedStore) {
    let medium = Medium::new(LEN, GRANULE, IO_LEN_MAX);
    (Arc::clone(&medium), UnalignedStore::new(medium))
}

#[test]
fn what_fits_passes_through_untouched() {
    let (medium, disk) = disk();
    does(&disk, write(512, &[1; 4096])).unwrap();
    reads(&disk, 512, 4096);
    does(&disk, OpAction::Flush).unwrap();
    does(
        &disk,
        OpAction::WriteZeroes { at: 0, len: LEN, may_deallocate: true, durability: Durability::Stable },
    )
    .unwrap();
    assert_eq!(
        medium.log(),
        ["write Cached 512+4096", "read 512+4096", "flush 0+0", "zero Stable hole 0+65536"]
    );
}

#[test]
fn ends_inside_granules_are_patched() {
    let (medium, disk) = disk();
    does(&disk, write(0, &[7; 2048])).unwrap();
    medium.log();
    does(&disk, write(1000, &[9; 100])).unwrap();
    assert_eq!(medium.log(), ["read 512+512", "read 1024+512", "write Cached 512+1024"]);
    does(&disk, write(10, &[3; 5])).unwrap();
    assert_eq!(medium.log(), ["read 0+512", "write Cached 0+512"]);
    let mut expected = [7; 2048];
    expected[1000..1100].fill(9);
    expected[10..15].fill(3);
    assert_eq!(reads(&disk, 0, 2048), expected);
}

#[test]
fn long_transfers_are_cut() {
    let (medium, disk) = disk();
    does(&disk, write(0, &[5; 10_000])).unwrap();
    assert_eq!(
        medium.log(),
        ["read 9728+512", "write Cached 0+4096", "write Cached 4096+4096", "write Cached 8192+2048"]
    );
    does(&disk, OpAction::Write { at: 0, data: data(&[6; 8192]), durability: Durability::Stable }).unwrap();
    assert_eq!(medium.log(), ["write Stable 0+4096", "write Stable 4096+4096"]);
    assert_eq!(reads(&disk, 8190, 4), [6, 6, 5, 5]);
}

#[test]
fn zeroing_keeps_the_bytes_around_it() {
    let (medium, disk) = disk();
    does(&disk, write(0, &[7; 8192])).unwrap();
    medium.log();
    let zero =
        |at, len| OpAction::WriteZeroes { at, len, may_deallocate: true, durability: Durability::Cached };
    does(&disk, zero(500, 2000)).unwrap();
    assert_eq!(
        medium.log(),
        [
            "read 0+512",
            "read 2048+512",
            "write Cached 0+512",
            "zero Cached hole 512+1536",
            "write Cached 2048+512"
        ]
    );
    does(&disk, zero(4100, 10)).unwrap();
    let mut expected = [7; 8192];
    expected[500..2500].fill(0);
    expected[4100..4110].fill(0);
    assert_eq!(reads(&disk, 0, 8192), expected);
}

#[test]
fn discarding_touches_whole_granules_only() {
    let (medium, disk) = disk();
    does(&disk, write(0, &[7; 4096])).unwrap();
    medium.log();
    does(&disk, OpAction::Deallocate { at: 500, len: 2000 }).unwrap();
    does(&disk, OpAction::Deallocate { at: 500, len: 20 }).unwrap();
    assert_eq!(medium.log(), ["deallocate 512+1536"]);
}

#[test]
fn ranges_beyond_the_end_are_refused() {
    let (medium, disk) = disk();
    for action in [
        write(LEN - 1, &[1, 2]),
        OpAction::Read { at: LEN, len: 1 },
        OpAction::Read { at: u64::MAX, len: 2 },
        OpAction::Deallocate { at: 0, len: u64::MAX },
    ] {
        assert_eq!(does(&disk, action).unwrap_err().fault, Fault::OutOfRange);
    }
    assert_eq!(medium.log(), [""; 0]);
    // A partial block at the end does not belong to the disk.
    medium.change_profile(|profile| profile.len = 1000);
    assert_eq!(disk.capabilities().len, 512);
    assert!(does(&disk, OpAction::Read { at: 512, len: 1 }).is_err());
}

#[test]
fn nothing_is_done_for_no_bytes() {
    let (medium, disk) = disk();
    assert!(matches!(does(&disk, write(5, &[])), Ok(OpOutput::Done(_))));
    assert!(matches!(does(&disk, OpAction::Read { at: 5, len: 0 }), Ok(OpOutput::Data(_))));
    assert!(matches!(
        does(&disk, OpAction::MapStatus { at: 5, len: 0, count_max: 9 }),
        Ok(OpOutput::MapStatus(_))
    ));
    assert_eq!(medium.log(), [""; 0]);
}

#[test]
fn extents_are_clipped_to_what_was_asked() {
    let (medium, disk) = disk();
    medium.change_profile(|profile| profile.len = 256 << 10);
    does(&disk, write(64 << 10, &[1; 512])).unwrap();
    let Ok(OpOutput::MapStatus(list)) =
        does(&disk, OpAction::MapStatus { at: 1000, len: 100_000, count_max: 10 })
    else {
        panic!("no extents");
    };
    let expected = [
        Extent { at: 1000, len: 64_536, state: ExtentState::Hole },
        Extent { at: 65_536, len: 35_464, state: ExtentState::Mapped },
    ];
    assert_eq!(list, expected);
}

#[test]
fn a_failure_anywhere_fails_the_whole() {
    let (medium, disk) = disk();
    let failure = Failure { fault: Fault::Medium, at: Some(4096) };
    medium.fail(Some(failure));
    assert_eq!(does(&disk, write(10, &[1; 9000])).unwrap_err(), failure);
    assert_eq!(does(&disk, OpAction::Read { at: 10, len: 9000 }).unwrap_err(), failure);
    medium.fail(None);
    assert!(does(&disk, write(10, &[1; 9000])).is_ok(), "the gate is open again");
}

/// Every byte has one writer at a time, so that its content is known; the blocks have many writers.
#[test]
fn neighbours_in_a_granule_never_undo_each_other() {
    let mut rng = Rng::from_seed(seed());
    for _ in 0..300 {
        let (medium, disk) = disk();
        does(&disk, write(0, &[0xee; 8192])).unwrap();
        medium.hold();
        let mut expected = vec![0xee; 8192];
        let results: Results = Arc::default();
        let (mut at, mut count) = (0, 0);
        while at < 8000 {
            let len = 1 + rng.below(1200).min(8191 - at);
            let range = at as usize..(at + len) as usize;
            let action = match rng.below(8) {
                0 => {
                    expected[range].fill(0);
                    OpAction::WriteZeroes { at, len, may_deallocate: true, durability: Durability::Cached }
                }
                1 => OpAction::Read { at, len: len as usize },
                _ => {
                    let value = 1 + rng.below(200) as u8;
                    expected[range].fill(value);
                    write(at, &vec![value; len as usize])
                }
            };
            let results = Arc::clone(&results);
            disk.submit(action, Box::new(move |result| results.lock().unwrap().push((count, result))));
            count += 1;
            at += len;
            if rng.chance(1, 4) {
                medium.release_one(&mut rng);
            }
        }
        while medium.release_one(&mut rng) {}
        let mut done: Vec<usize> = results
            .lock()
            .unwrap()
            .iter()
            .map(|(n, result)| {
                assert!(result.is_ok());
                *n
            })
            .collect();
        done.sort_unstable();
        assert_eq!(done, (0..count).collect::<Vec<_>>(), "each ends exactly once");
        assert_eq!(medium.bytes(0, 8192), expected);
    }
}
