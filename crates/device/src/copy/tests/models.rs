//! Random copies against a model of bytes. A failure prints its seed, which suffices to repeat it.

use alloc::vec::Vec;

use base::rng::Rng;
use base::units::{BlockSize, Lba};
use scsi::copy::ListId;
use scsi::copy::cscd::CscdId;
use scsi::copy::list::{Format, ListIdUsage};
use scsi::copy::segment::SegmentAction;
use scsi::status::Status;

use super::world::{LID4, LID4_IMMEDIATE, World, cscd, list};
use crate::testing::{A, B};

/// Two units of 512-byte blocks and one of 4096, 3 MiB each: more than a copy has in progress at a time.
const SIZES: [(BlockSize, u64); 3] =
    [(BlockSize::B512, 6144), (BlockSize::B512, 6144), (BlockSize::B4096, 768)];

/// Returns a random segment, executed on the model if it is valid, and whether it is valid.
fn random_segment(rng: &mut Rng, media: &mut [Vec<u8>]) -> (SegmentAction, bool) {
    let (from, to) = (rng.below(3), rng.below(3));
    let block = |unit: u64| SIZES[usize::try_from(unit).unwrap()].0;
    let (from_block, to_block) = (block(from), block(to));
    let coarse = from_block.shift().max(to_block.shift());
    let len = rng.below(1 << (21 - coarse)) << coarse;
    let beyond = u64::from(rng.chance(1, 40)) << 20;
    let place = |rng: &mut Rng, shift: u32| rng.below((((3 << 20) - len) >> shift) + 1) + beyond;
    let source_lba = place(rng, from_block.shift());
    let destination_lba = place(rng, to_block.shift());
    let id = |unit: u64| CscdId(u16::try_from(unit).unwrap());
    let skip = if len > 0 && rng.chance(1, 3) { rng.below(u64::from(from_block.bytes())) } else { 0 };
    let fits = |lba: u64, shift: u32, skip: u64| (lba << shift) + skip + len <= 3 << 20;
    let good = fits(source_lba, from_block.shift(), skip) && fits(destination_lba, to_block.shift(), 0);
    let as_bytes = skip > 0 || rng.chance(1, 2);
    let action = if as_bytes {
        SegmentAction::Bytes {
            keep_residual: false,
            source: id(from),
            destination: id(to),
            len: u32::try_from(len).unwrap(),
            source_lba: Lba(source_lba),
            destination_lba: Lba(destination_lba),
            source_offset: u16::try_from(skip).unwrap(),
            destination_offset: 0,
        }
    } else {
        let counts_destination = rng.chance(1, 2);
        let counted = if counts_destination { to_block } else { from_block };
        SegmentAction::Blocks {
            counts_destination,
            keep_residual: rng.chance(1, 2),
            source: id(from),
            destination: id(to),
            count: u16::try_from(len >> counted.shift()).unwrap(),
            source_lba: Lba(source_lba),
            destination_lba: Lba(destination_lba),
        }
    };
    if good || len == 0 {
        let narrow = |value: u64| usize::try_from(value).unwrap();
        let at = narrow((source_lba << from_block.shift()) + skip);
        let moved = media[narrow(from)].get(at..at + narrow(len)).unwrap_or_default().to_vec();
        let at = narrow(destination_lba << to_block.shift());
        if !moved.is_empty() {
            media[narrow(to)][at..at + moved.len()].copy_from_slice(&moved);
        }
    }
    (action, good || len == 0)
}

fn check(seed: u64) {
    let mut rng = Rng::from_seed(seed);
    let mut world = World::new(&SIZES);
    let mut media: Vec<Vec<u8>> = (0..3).map(|unit| world.fill(&mut rng, unit)).collect();
    let units = [cscd(0, SIZES[0].0), cscd(1, SIZES[1].0), cscd(2, SIZES[2].0)];
    for round in 0..4 {
        let mut steps = Vec::new();
        let mut good = true;
        while good && steps.len() < 4 && !rng.chance(1, 4) {
            let (step, ok) = random_segment(&mut rng, &mut media);
            steps.push(step);
            good = ok;
        }
        let format = [Format::Lid1, LID4, LID4_IMMEDIATE][usize::try_from(rng.below(3)).unwrap()];
        let mut copy = list(format, &units, &steps);
        copy.usage = [ListIdUsage::Hold, ListIdUsage::Discard][usize::try_from(rng.below(2)).unwrap()];
        copy.list_id = ListId(u32::try_from(rng.below(256)).unwrap());
        let manager = usize::try_from(rng.below(3)).unwrap();
        let id = if rng.chance(1, 2) { A } else { B };
        world.slow(rng.chance(3, 4));
        let key = world.start_copy(manager, id, &copy);
        let reply = world.finish(&mut rng, manager, key);
        world.settle(&mut rng);
        world.slow(false);
        if format != LID4_IMMEDIATE {
            assert_eq!(reply.status == Status::GOOD, good, "seed {seed} round {round}: {reply:?} {steps:?}");
        }
        for (unit, wanted) in media.iter().enumerate() {
            assert!(world.dump(unit) == *wanted, "seed {seed} round {round}: unit {unit} after {steps:?}");
        }
    }
}

#[test]
fn random_copies_leave_what_the_model_says() {
    for seed in 0..24 {
        check(seed);
    }
}

#[test]
fn copies_of_two_nexuses_at_once_do_not_disturb_each_other() {
    for seed in 0..12 {
        let mut rng = Rng::from_seed(seed);
        let mut world = World::new(&SIZES[..2]);
        let media: Vec<Vec<u8>> = (0..2).map(|unit| world.fill(&mut rng, unit)).collect();
        let units = [cscd(0, SIZES[0].0), cscd(1, SIZES[1].0)];
        world.slow(true);
        // Each copies a third of one unit to blocks that the other copy neither reads nor writes.
        let step = |from: u16, to: u16, at: u64| super::world::blocks(from, to, 2048, at, 4096);
        let one = world.start_copy(0, A, &list(LID4, &units, &[step(0, 1, 0)]));
        let other = world.start_copy(1, B, &list(LID4, &units, &[step(1, 0, 1024)]));
        world.finish(&mut rng, 0, one).good();
        world.finish(&mut rng, 1, other).good();
        world.slow(false);
        let (first, second) = (world.dump(0), world.dump(1));
        assert!(second[4096 << 9..] == media[0][..2048 << 9], "seed {seed}");
        assert!(first[4096 << 9..] == media[1][1024 << 9..3072 << 9], "seed {seed}");
        assert!(first[..4096 << 9] == media[0][..4096 << 9], "seed {seed}");
    }
}
