//! Media that fail during a copy.

use base::rng::Rng;
use base::units::BlockSize;
use scsi::copy::copy_in;
use scsi::copy::list::Format;
use scsi::copy::results::{CopyStatus1, ManagerStatus};
use scsi::sense::{Asc, SenseKey};
use scsi::status::Status;

use super::world::{World, blocks, cscd, list};
use crate::testing::A;

const B512: BlockSize = BlockSize::B512;
const SIZES: [(BlockSize, u64); 2] = [(B512, 6144), (B512, 6144)];

#[test]
fn a_failing_medium_ends_the_copy_and_nothing_else_is_changed() {
    for seed in 0..40 {
        let mut rng = Rng::from_seed(seed);
        let mut world = World::new(&SIZES);
        let source = world.fill(&mut rng, 0);
        let before = world.fill(&mut rng, 1);
        let bad = (1 + rng.below(4000)) << 9;
        let in_source = rng.chance(1, 2);
        world.gates[usize::from(!in_source)].break_at(!in_source, bad);
        world.slow(true);
        let copy = list(Format::Lid1, &[cscd(0, B512), cscd(1, B512)], &[blocks(0, 1, 6000, 0, 0)]);
        let key = world.start_copy(0, A, &copy);
        let reply = world.finish(&mut rng, 0, key);
        world.slow(false);
        reply.check(SenseKey::COPY_ABORTED, Asc::THIRD_PARTY_DEVICE_FAILURE);
        let status = world.ask_lid1(0, A, copy_in::RECEIVE_COPY_STATUS_LID1, 1).good();
        let status = CopyStatus1::parse(&status).unwrap();
        assert_eq!((status.status, status.segments_processed), (ManagerStatus::FAILED, 0));
        world.gates[1].break_at(false, u64::MAX);
        let after = world.dump(1);
        let mut written = 0;
        for (at, block) in after.chunks(512).enumerate() {
            let place = at * 512..at * 512 + 512;
            if *block == source[place.clone()] {
                written += 512;
            } else {
                assert!(*block == before[place], "seed {seed}: block {at} is of neither");
            }
        }
        assert_eq!(status.transfer_count, written, "seed {seed}");
        assert!(u64::from(written) < 6000 << 9);
    }
}

#[test]
fn what_the_failing_unit_said_is_forwarded_in_descriptor_format() {
    for (writes, from) in [(false, 1), (true, 2)] {
        let mut world = World::new(&SIZES);
        world.gates[usize::from(writes)].break_at(writes, 700 << 9);
        // D_SENSE in the control mode page, by MODE SENSE(6) and MODE SELECT(6).
        let mut control = world.run(0, A, &[0x1a, 0x08, 0x0a, 0, 255, 0], 255, &[]).good();
        (control[0], control[2]) = (0, 0);
        control[6] |= 0x04;
        let len = u8::try_from(control.len()).unwrap();
        let reply = world.run(0, A, &[0x15, 0x10, 0, 0, len, 0], 0, &control);
        assert_eq!(reply.status, Status::GOOD, "{reply:?}");
        let copy = list(Format::Lid1, &[cscd(0, B512), cscd(1, B512)], &[blocks(0, 1, 1000, 0, 0)]);
        let sense = world.copy(0, A, &copy).sense_bytes;
        assert_eq!(sense[..4], [0x72, 0x0a, 0x0d, 0x01]);
        let forwarded = &sense[16..];
        assert_eq!(forwarded[..4], [0x0c, 22, from, 2]);
        let (asc, ascq) = if writes { (0x0c, 0) } else { (0x11, 0) };
        assert_eq!(forwarded[4..8], [0x72, 3, asc, ascq]);
        // A write that failed may have changed any part of its range.
        let named: u64 = if writes { 0 } else { 700 };
        assert_eq!(forwarded[16..24], named.to_be_bytes(), "the bad block");
        let details = world.ask_lid1(0, A, copy_in::RECEIVE_COPY_FAILURE_DETAILS_LID1, 1).good();
        assert_eq!(details[56..60], [2, 0, 0, u8::try_from(sense.len()).unwrap()]);
        assert_eq!(details[60..], sense);
    }
}
