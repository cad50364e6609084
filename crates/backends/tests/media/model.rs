//! Random operations on a store, compared with the same operations on plain memory.

use base::buffer::DataList;
use base::rng::Rng;
use store::Store;
use store::api::{Durability, ExtentState, OpAction, OpOutput};

use crate::rig::{Rig, flat, list};

pub(crate) const SIZE: u64 = 4 << 20;

/// How many batches of operations one comparison runs.
const BATCHES: usize = 60;

/// The operations of one batch are under way together, each in its own part of the medium.
const PARTS: u64 = 8;

/// Returns three fixed seeds, or the one in `TARGE_SEED`.
pub(crate) fn seeds() -> Vec<u64> {
    match std::env::var("TARGE_SEED") {
        Ok(seed) => vec![seed.parse().expect("TARGE_SEED is a number")],
        Err(_) => vec![1, 20_261_120, 0xfeed],
    }
}

pub(crate) fn pattern(seed: u64, len: usize) -> Vec<u8> {
    let mut bytes = vec![0; len];
    Rng::from_seed(seed).fill(&mut bytes);
    bytes
}

pub(crate) fn compare(mut rig: Rig, seed: u64) {
    eprintln!("to replay: TARGE_SEED={seed}");
    let mut rng = Rng::from_seed(seed);
    let mut memory = vec![0_u8; SIZE as usize];
    let granule = u64::from(rig.store.capabilities().logical_block_len);
    for batch in 0..BATCHES {
        let mut actions = Vec::new();
        let mut checks = Vec::new();
        for part in 0..PARTS {
            let (at, len) = range(&mut rng, part, granule);
            let (action, expected) = choose(&mut rng, &mut memory, at, len, granule);
            actions.push(action);
            checks.push((at, len, expected));
        }
        for (result, (at, len, expected)) in rig.run(actions).into_iter().zip(checks) {
            let place = format!("seed {seed}, batch {batch}, {len} bytes at {at}");
            match (result, expected) {
                (Ok(OpOutput::Data(data)), Some(bytes)) => {
                    assert!(flat(&data) == bytes, "{place}: other bytes")
                }
                (Ok(OpOutput::Done(_)), None) => {}
                (Ok(OpOutput::MapStatus(extents)), None) => {
                    let mut next = at;
                    for extent in extents {
                        assert_eq!(extent.at, next, "{place}: a gap in the extents");
                        next += extent.len;
                        let bytes = &memory[extent.at as usize..next as usize];
                        let hole = extent.state == ExtentState::Hole;
                        assert!(!hole || bytes.iter().all(|byte| *byte == 0), "{place}: data in a hole");
                    }
                    assert_eq!(next, at + len, "{place}: extents end early");
                }
                (other, _) => panic!("{place}: {other:?}"),
            }
        }
    }
    for at in (0..SIZE).step_by(1 << 20) {
        assert!(
            rig.read(at, 1 << 20) == memory[at as usize..][..1 << 20],
            "seed {seed}: other bytes in the end"
        );
    }
}

fn range(rng: &mut Rng, part: u64, granule: u64) -> (u64, u64) {
    let size = SIZE / PARTS;
    let from = rng.below(size / granule) * granule;
    let longest = (size - from).min(if rng.chance(1, 4) { size } else { 16 << 10 });
    let len = (rng.below(longest / granule) + 1) * granule;
    (part * size + from, len.min(size - from))
}

/// Picks an operation and applies it to `memory`. Returns it with the bytes that a read must return.
fn choose(rng: &mut Rng, memory: &mut [u8], at: u64, len: u64, granule: u64) -> (OpAction, Option<Vec<u8>>) {
    let room = &mut memory[at as usize..(at + len) as usize];
    let durability = if rng.chance(1, 8) { Durability::Stable } else { Durability::Cached };
    match rng.below(16) {
        0..5 => (OpAction::Read { at, len: room.len() }, Some(room.to_vec())),
        5..11 => {
            rng.fill(room);
            (OpAction::Write { at, data: in_pieces(rng, room, granule), durability }, None)
        }
        11 => {
            room.fill(0);
            (OpAction::Deallocate { at, len }, None)
        }
        12 | 13 => {
            room.fill(0);
            (OpAction::WriteZeroes { at, len, may_deallocate: rng.chance(1, 2), durability }, None)
        }
        14 => (OpAction::MapStatus { at, len, count_max: usize::MAX }, None),
        _ => (OpAction::Flush, None),
    }
}

fn in_pieces(rng: &mut Rng, bytes: &[u8], granule: u64) -> DataList {
    let mut data = DataList::new();
    let mut left = bytes;
    while !left.is_empty() {
        let len = ((rng.below(left.len() as u64 / granule) + 1) * granule) as usize;
        list(&left[..len]).into_parts().for_each(|part| data.push(part));
        left = &left[len..];
    }
    data
}
