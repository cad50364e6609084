extern crate std;

use super::*;
use crate::api::{Durability, OpId};
use alloc::collections::BTreeMap;
use alloc::sync::Arc;
use alloc::vec;
use base::rng::Rng;
use core::sync::atomic::{AtomicBool, Ordering};
use std::sync::Mutex;

fn run(ram: &mut Ram, action: OpAction) -> Result<OpOutput, Failure> {
    ram.submit(Op { id: OpId(7), action });
    let completion = ram.poll().expect("memory answers at once");
    assert_eq!(completion.id, OpId(7));
    assert!(ram.poll().is_none());
    completion.result
}

fn read(ram: &mut Ram, at: u64, len: usize) -> Vec<u8> {
    match run(ram, OpAction::Read { at, len }) {
        Ok(OpOutput::Data(list)) => {
            let mut out = vec![0; len];
            assert_eq!(list.copy_to(0, &mut out), len);
            out
        }
        other => panic!("{other:?}"),
    }
}

fn write(ram: &mut Ram, at: u64, bytes: &[u8]) {
    let data = Bytes::copied_from(bytes).into();
    let result = run(ram, OpAction::Write { at, data, durability: Durability::Cached });
    assert!(matches!(result, Ok(OpOutput::Done(data)) if data.len() == bytes.len()));
}

fn extents(ram: &mut Ram, at: u64, len: u64, count_max: usize) -> Vec<(u64, u64, ExtentState)> {
    match run(ram, OpAction::MapStatus { at, len, count_max }) {
        Ok(OpOutput::MapStatus(list)) => list.iter().map(|e| (e.at, e.len, e.state)).collect(),
        other => panic!("{other:?}"),
    }
}

#[test]
fn never_written_bytes_read_as_zeros_and_take_no_memory() {
    let mut ram = Ram::new(1 << 40);
    assert_eq!(read(&mut ram, (1 << 39) - 5, 10), [0; 10]);
    assert_eq!(extents(&mut ram, 0, 1 << 20, 8), [(0, 1 << 20, ExtentState::Hole)]);
}

#[test]
fn a_read_shares_the_medium_and_survives_a_later_write() {
    let mut ram = Ram::new(1 << 20);
    write(&mut ram, 0, b"before");
    let Ok(OpOutput::Data(first)) = run(&mut ram, OpAction::Read { at: 0, len: 6 }) else { panic!() };
    let Ok(OpOutput::Data(second)) = run(&mut ram, OpAction::Read { at: 0, len: 6 }) else { panic!() };
    assert_eq!(first.parts()[0].as_ptr(), second.parts()[0].as_ptr());
    write(&mut ram, 0, b"after!");
    assert_eq!(&*first.parts()[0], b"before");
    assert_eq!(read(&mut ram, 0, 6), b"after!");
}

#[test]
fn a_range_that_leaves_the_medium_fails() {
    let mut ram = Ram::new(1000);
    for (at, len) in [(1000, 1), (999, 2), (u64::MAX, 1), (u64::MAX - 1, 4)] {
        let wide = u64::try_from(len).unwrap();
        for action in [
            OpAction::Read { at, len },
            OpAction::Write {
                at,
                data: Bytes::copied_from(&vec![1; len]).into(),
                durability: Durability::Cached,
            },
            OpAction::Deallocate { at, len: wide },
            OpAction::WriteZeroes { at, len: wide, may_deallocate: false, durability: Durability::Cached },
            OpAction::MapStatus { at, len: wide, count_max: 4 },
        ] {
            let result = run(&mut ram, action);
            assert!(matches!(result, Err(Failure { fault: Fault::OutOfRange, .. })), "{at} {len}");
        }
    }
    assert_eq!(read(&mut ram, 999, 1), [0]);
    assert!(read(&mut ram, 1000, 0).is_empty());
}

#[test]
fn deallocating_frees_whole_chunks_and_zeroes_the_rest() {
    let chunk = to_u64(CHUNK);
    let mut ram = Ram::new(4 * chunk - 100);
    write(&mut ram, 0, &vec![0xff; 4 * CHUNK - 100]);
    let holes = OpAction::Deallocate { at: chunk - 10, len: 2 * chunk };
    assert!(run(&mut ram, holes).is_ok());
    assert_eq!(
        extents(&mut ram, 0, 4 * chunk - 100, 8),
        [
            (0, chunk, ExtentState::Mapped),
            (chunk, chunk, ExtentState::Hole),
            (2 * chunk, 2 * chunk - 100, ExtentState::Mapped)
        ]
    );
    assert_eq!(extents(&mut ram, 0, 4 * chunk - 100, 2).len(), 2);
    let bytes = read(&mut ram, 0, 4 * CHUNK - 100);
    assert!(bytes[..CHUNK - 10].iter().all(|b| *b == 0xff));
    assert!(bytes[CHUNK - 10..3 * CHUNK - 10].iter().all(|b| *b == 0));
    assert!(bytes[3 * CHUNK - 10..].iter().all(|b| *b == 0xff));
    // The last chunk ends with the medium, so deallocating its part of the medium frees the whole chunk.
    assert!(run(&mut ram, OpAction::Deallocate { at: 3 * chunk, len: chunk - 100 }).is_ok());
    assert_eq!(extents(&mut ram, 3 * chunk, 1, 1)[0].2, ExtentState::Hole);
}

#[test]
fn zeros_that_must_stay_allocated_stay_allocated() {
    let mut ram = Ram::new(1 << 20);
    let durability = Durability::Cached;
    let zero = OpAction::WriteZeroes { at: 10, len: 10, may_deallocate: false, durability };
    assert!(run(&mut ram, zero).is_ok());
    assert_eq!(extents(&mut ram, 0, 1, 1)[0].2, ExtentState::Mapped);
}

#[test]
fn shrinking_and_growing_again_brings_zeros() {
    let mut ram = Ram::new(200_000);
    write(&mut ram, 0, &[1; 200_000]);
    ram.resize(100_000).unwrap();
    assert_eq!(ram.capabilities().len, 100_000);
    ram.resize(200_000).unwrap();
    let bytes = read(&mut ram, 0, 200_000);
    assert!(bytes[..100_000].iter().all(|b| *b == 1) && bytes[100_000..].iter().all(|b| *b == 0));
}

#[test]
fn agrees_with_a_plain_array_over_random_operations() {
    const LEN: usize = 5 * CHUNK + 777;
    for seed in 0..16 {
        let mut rng = Rng::from_seed(seed);
        let mut model = vec![0; LEN];
        let mut ram = Ram::new(to_u64(LEN));
        let storage = Aside::default();
        let mut taken = Vec::new();
        for step in 0..300 {
            if rng.chance(1, 4) {
                move_on(&mut ram, &storage, &mut taken, &mut rng);
            }
            let at = usize::try_from(rng.below(to_u64(LEN))).unwrap();
            let len = usize::try_from(rng.below(to_u64((LEN - at).min(2 * CHUNK)))).unwrap();
            let (wide_at, wide_len) = (to_u64(at), to_u64(len));
            match rng.below(4) {
                0 => assert_eq!(read(&mut ram, wide_at, len), model[at..at + len], "seed {seed} step {step}"),
                1 => {
                    rng.fill(&mut model[at..at + len]);
                    write(&mut ram, wide_at, &model[at..at + len]);
                }
                2 => {
                    model[at..at + len].fill(0);
                    assert!(run(&mut ram, OpAction::Deallocate { at: wide_at, len: wide_len }).is_ok());
                }
                _ => {
                    model[at..at + len].fill(0);
                    let may_deallocate = rng.chance(1, 2);
                    let durability = Durability::Stable;
                    let zero =
                        OpAction::WriteZeroes { at: wide_at, len: wide_len, may_deallocate, durability };
                    assert!(run(&mut ram, zero).is_ok());
                }
            }
        }
        assert_eq!(read(&mut ram, 0, LEN), model, "seed {seed}");
    }
}

/// A storage of chunks, each with its data, by their places.
#[derive(Clone, Debug, Default)]
struct Aside {
    chunks: Arc<Mutex<BTreeMap<u64, Vec<u8>>>>,
    is_broken: Arc<AtomicBool>,
}

impl Aside {
    fn store(&self, chunks: &[(u64, Bytes)]) {
        self.chunks.lock().unwrap().extend(chunks.iter().map(|(at, chunk)| (*at, chunk.to_vec())));
    }

    fn places(&self) -> Vec<u64> {
        self.chunks.lock().unwrap().keys().copied().collect()
    }
}

impl ChunkStorage for Aside {
    fn read(&mut self, at: u64, buf: &mut [u8]) -> Result<(), Fault> {
        let start = usize::try_from(at % to_u64(CHUNK)).unwrap();
        let chunks = self.chunks.lock().unwrap();
        let chunk = chunks.get(&(at - to_u64(start))).expect("only what was stored is read");
        buf.copy_from_slice(&chunk[start..start + buf.len()]);
        if self.is_broken.load(Ordering::Relaxed) { Err(Fault::Medium) } else { Ok(()) }
    }

    fn discard(&mut self, at: u64, len: u64) {
        assert!(at.is_multiple_of(to_u64(CHUNK)) && len.is_multiple_of(to_u64(CHUNK)) && len > 0);
        self.chunks.lock().unwrap().retain(|place, _| !(at..at + len).contains(place));
    }
}

/// Takes a step of a move: begins or ends it, takes chunks or returns them, or makes another medium of the
/// storage.
fn move_on(ram: &mut Ram, storage: &Aside, taken: &mut Vec<(u64, Bytes)>, rng: &mut Rng) {
    match rng.below(6) {
        0 => ram.begin_move(Box::new(storage.clone())),
        1 if ram.is_moving && taken.is_empty() => {
            *taken = ram.next_to_move(2);
            storage.store(taken);
        }
        2 => ram.moved(mem::take(taken)),
        3 => {
            ram.moved(mem::take(taken));
            ram.end_move();
        }
        4 if ram.is_moving => {
            ram.moved(mem::take(taken));
            let rest = ram.rest_to_move();
            assert_eq!(to_u64(rest.len() * CHUNK), ram.len_to_move());
            storage.store(&rest);
            let runs = ram.allocated_runs();
            let places = runs.iter().flat_map(|run| run.first..run.first + run.count);
            assert_eq!(storage.places(), places.map(|number| number * to_u64(CHUNK)).collect::<Vec<_>>());
            let space = ram.space();
            *ram = Ram::from_storage(ram.len, Box::new(storage.clone()), &runs).unwrap();
            assert_eq!(ram.space(), space);
        }
        _ => {}
    }
}

#[test]
fn chunks_that_change_while_they_are_copied_stay_in_memory() {
    let mut ram = Ram::new(to_u64(3 * CHUNK));
    write(&mut ram, 0, &vec![1; 3 * CHUNK]);
    let storage = Aside::default();
    ram.begin_move(Box::new(storage.clone()));
    let taken = ram.next_to_move(9);
    storage.store(&taken);
    write(&mut ram, to_u64(CHUNK), &[2]);
    assert!(run(&mut ram, OpAction::Deallocate { at: 0, len: to_u64(CHUNK) }).is_ok());
    ram.moved(taken);
    assert_eq!(ram.len_to_move(), to_u64(CHUNK));
    assert_eq!(storage.places(), [to_u64(2 * CHUNK)], "the other copies are of no use");
    assert!(ram.next_to_move(9).is_empty(), "it ends before it begins anew");
    assert_eq!(ram.next_to_move(9).len(), 1);
    // Reading a chunk does not bring it back while the medium moves.
    assert_eq!(read(&mut ram, to_u64(2 * CHUNK), 3), [1; 3]);
    assert_eq!(ram.len_to_move(), to_u64(CHUNK));
    ram.end_move();
    assert_eq!(read(&mut ram, to_u64(2 * CHUNK), 3), [1; 3]);
    assert!(!ram.has_storage() && storage.places().is_empty());
}

#[test]
fn a_storage_that_cannot_be_read_is_a_medium_error_and_changes_nothing() {
    let storage = Aside::default();
    let chunk = |byte: u8| Bytes::copied_from(&vec![byte; CHUNK]);
    storage.store(&[(0, chunk(1)), (to_u64(CHUNK), chunk(2))]);
    let runs = [ChunkRun { first: 0, count: 2 }];
    let mut ram = Ram::from_storage(to_u64(2 * CHUNK), Box::new(storage.clone()), &runs).unwrap();
    storage.is_broken.store(true, Ordering::Relaxed);
    let at = to_u64(CHUNK) - 1;
    let broken = |result: Result<OpOutput, Failure>| {
        assert!(matches!(result, Err(Failure { fault: Fault::Medium, .. })), "{result:?}");
    };
    broken(run(&mut ram, OpAction::Read { at, len: 2 }));
    let data = Bytes::copied_from(&[7; 2]).into();
    broken(run(&mut ram, OpAction::Write { at, data, durability: Durability::Cached }));
    broken(run(&mut ram, OpAction::Deallocate { at, len: 2 }));
    assert!(ram.resize(at).is_err());
    storage.is_broken.store(false, Ordering::Relaxed);
    assert_eq!(read(&mut ram, at, 2), [1, 2]);
}

#[test]
fn chunks_that_do_not_fit_a_medium_are_refused() {
    let ram = |runs: &[(u64, u64)]| {
        let runs: Vec<_> = runs.iter().map(|&(first, count)| ChunkRun { first, count }).collect();
        Ram::from_storage(to_u64(9 * CHUNK) + 1, Box::new(Aside::default()), &runs)
    };
    assert!(ram(&[(0, 1), (1, 9)]).is_some() && ram(&[]).is_some_and(|ram| !ram.has_storage()));
    for wrong in [&[(0, 11)][..], &[(10, 1)], &[(3, 2), (4, 1)], &[(5, 1), (0, 1)], &[(1, u64::MAX)]] {
        assert!(ram(wrong).is_none(), "{wrong:?}");
    }
}
