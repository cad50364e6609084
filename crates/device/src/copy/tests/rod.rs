//! Copies by ROD tokens: POPULATE TOKEN, RECEIVE ROD TOKEN INFORMATION, WRITE USING TOKEN.

use alloc::vec;
use alloc::vec::Vec;

use base::rng::Rng;
use base::units::{BlockSize, Blocks};
use scsi::copy::results::{CopyStatus4, OperationStatus, TransferUnits};
use scsi::copy::rod::{BlockRange, PopulateToken, RodToken, RodType, WriteUsingToken};
use scsi::copy::{copy_in, copy_out};
use scsi::sense::{Asc, SenseKey};
use scsi::status::Status;

use super::world::{MIB_512, World, in_cdb, out_cdb, range};
use crate::contract::{Access, NexusId, TaskKey};
use crate::testing::{A, B, Reply};

const SIZES: [(BlockSize, u64); 2] = [(BlockSize::B512, 6144), (BlockSize::B512, 6144)];

fn populate(ranges: &[BlockRange]) -> PopulateToken {
    PopulateToken { immediate: false, rod_type: None, inactivity_timeout_s: 0, ranges: ranges.to_vec() }
}

fn using(token: &RodToken, offset: u64, ranges: &[BlockRange]) -> WriteUsingToken {
    WriteUsingToken {
        immediate: false,
        delete_token: false,
        offset: Blocks(offset),
        token: token.clone(),
        ranges: ranges.to_vec(),
    }
}

fn cdb(action: u16, list_id: u32, len: usize) -> [u8; 16] {
    let mut cdb = out_cdb(action, len);
    cdb[6..10].copy_from_slice(&list_id.to_be_bytes());
    cdb
}

impl World {
    #[track_caller]
    fn populate(&mut self, unit: usize, id: NexusId, list: &PopulateToken) -> Reply {
        let bytes = list.to_bytes();
        self.run(unit, id, &cdb(copy_out::POPULATE_TOKEN, 9, bytes.len()), 0, &bytes)
    }

    /// Creates a token and fetches it.
    #[track_caller]
    fn token(&mut self, unit: usize, id: NexusId, ranges: &[BlockRange]) -> RodToken {
        self.populate(unit, id, &populate(ranges)).good();
        let (status, tokens) = self.information(unit, id, 9);
        assert_eq!((status.status, status.completion_status), (OperationStatus::COMPLETED, 0));
        tokens[0].clone()
    }

    fn information(&mut self, unit: usize, id: NexusId, list_id: u32) -> (CopyStatus4, Vec<RodToken>) {
        let bytes = self.ask_lid4(unit, id, copy_in::RECEIVE_ROD_TOKEN_INFORMATION, list_id).good();
        CopyStatus4::parse_with_tokens(&bytes).unwrap()
    }

    #[track_caller]
    fn use_token(&mut self, unit: usize, id: NexusId, list: &WriteUsingToken) -> Reply {
        let bytes = list.to_bytes();
        self.run(unit, id, &cdb(copy_out::WRITE_USING_TOKEN, 10, bytes.len()), 0, &bytes)
    }

    fn start_use(&mut self, unit: usize, id: NexusId, list: &WriteUsingToken) -> TaskKey {
        let bytes = list.to_bytes();
        self.start_with(unit, id, &cdb(copy_out::WRITE_USING_TOKEN, 10, bytes.len()), &bytes)
    }
}

fn bytes(ranges: &[BlockRange], medium: &[u8]) -> Vec<u8> {
    let run = |range: &BlockRange| {
        let at = usize::try_from(range.lba.0 << 9).unwrap();
        medium[at..at + usize::try_from(range.blocks.0 << 9).unwrap()].to_vec()
    };
    ranges.iter().flat_map(run).collect()
}

#[test]
fn a_token_moves_its_blocks_within_a_unit_and_to_another() {
    for to in [0, 1] {
        let mut rng = Rng::from_seed(1);
        let mut world = World::new(&SIZES);
        let source = world.fill(&mut rng, 0);
        let from = [range(100, 700), range(0, 0), range(10, 30), range(2000, 1000)];
        let token = world.token(0, A, &from);
        let (status, _) = world.information(0, A, 9);
        assert_eq!((status.service_action, status.units), (0x10, TransferUnits::LOGICAL_BLOCKS));
        assert_eq!(status.transfer_count, 1730);
        // In two halves, as initiators do that compare the token's size with the optimal transfer count.
        let into = [range(4000, 800), range(5500, 65), range(3900, 0)];
        world.use_token(to, A, &using(&token, 0, &into)).good();
        let (status, tokens) = world.information(to, A, 10);
        assert_eq!((status.status, status.transfer_count), (OperationStatus::COMPLETED, 865));
        assert_eq!((status.service_action, tokens.len()), (0x11, 0));
        let rest = [range(3100, 865)];
        world.use_token(to, A, &using(&token, 865, &rest)).good();
        let after = world.dump(to);
        let copied: Vec<u8> =
            [into.as_slice(), &rest].concat().iter().flat_map(|run| bytes(&[*run], &after)).collect();
        assert!(copied == bytes(&from, &source));
    }
}

#[test]
fn a_token_with_less_than_was_asked_for_gives_what_it_has() {
    let mut world = World::new(&[MIB_512, MIB_512]);
    let source = world.fill(&mut Rng::from_seed(1), 0);
    let token = world.token(0, A, &[range(0, 100)]);
    world.use_token(1, A, &using(&token, 90, &[range(0, 4), range(50, 50)])).good();
    let (status, _) = world.information(1, A, 10);
    assert_eq!((status.status, status.transfer_count), (OperationStatus::COMPLETED_PARTIAL_TOKEN, 10));
    assert!(world.get(1, 50, 6) == source[94 << 9..100 << 9]);
    assert!(world.get(1, 56, 50).iter().all(|byte| *byte == 0));
    for offset in [100, 101, u64::MAX] {
        let reply = world.use_token(1, A, &using(&token, offset, &[range(0, 1)]));
        reply.illegal(Asc::INVALID_FIELD_IN_PARAMETER_LIST);
        assert_eq!(reply.sense_bytes[15..18], [0x80, 0, 8]);
    }
}

#[test]
fn the_first_write_to_any_of_its_blocks_revokes_a_token() {
    for (lba, revoked) in [(99, false), (100, true), (131, true), (132, false)] {
        let mut world = World::new(&[MIB_512, MIB_512]);
        let token = world.token(0, A, &[range(100, 32)]);
        world.use_token(1, A, &using(&token, 0, &[range(0, 32)])).good();
        world.put(0, lba, &[7; 512]);
        let reply = world.use_token(1, A, &using(&token, 0, &[range(0, 32)]));
        if revoked {
            reply.illegal(Asc::TOKEN_REVOKED);
            assert_eq!(world.information(1, A, 10).0.status, OperationStatus::FAILED);
        } else {
            reply.good();
        }
    }
}

#[test]
fn a_medium_that_may_have_changed_revokes_every_token() {
    for drains in [true, false] {
        let mut world = World::new(&[MIB_512, MIB_512]);
        let token = world.token(0, A, &[range(100, 32)]);
        world.change_medium(1, A, drains);
        world.use_token(1, A, &using(&token, 0, &[range(0, 32)])).good();
        world.change_medium(0, A, drains);
        world.use_token(1, A, &using(&token, 0, &[range(0, 32)])).illegal(Asc::TOKEN_REVOKED);
        let token = world.token(0, A, &[range(100, 32)]);
        world.use_token(1, A, &using(&token, 0, &[range(0, 32)])).good();
    }
}

#[test]
fn an_unused_token_expires_after_the_time_that_was_asked_for() {
    for (asked, lives) in [(0, 300), (20, 20), (3600, 3600)] {
        let mut world = World::new(&[MIB_512, MIB_512]);
        let list = PopulateToken { inactivity_timeout_s: asked, ..populate(&[range(0, 1)]) };
        world.populate(0, A, &list).good();
        let token = world.information(0, A, 9).1[0].clone();
        world.after(lives);
        world.use_token(1, A, &using(&token, 0, &[range(0, 1)])).good();
        world.after(lives + 1);
        let late = world.use_token(1, A, &using(&token, 0, &[range(0, 1)]));
        late.illegal(Asc::TOKEN_EXPIRED);
    }
}

#[test]
fn what_cannot_be_made_a_token_of_is_refused_with_a_pointer() {
    let mut world = World::new(&[MIB_512]);
    let good = || populate(&[range(0, 8)]);
    for kind in
        [RodType::POINT_IN_TIME_DEFAULT, RodType::POINT_IN_TIME_ANY, RodType::POINT_IN_TIME_CHANGE_VULNERABLE]
    {
        world.populate(0, A, &PopulateToken { rod_type: Some(kind), ..good() }).good();
    }
    for (list, asc, field) in [
        (populate(&[range(2048, 1)]), Asc::LBA_OUT_OF_RANGE, None),
        (populate(&[range(u64::MAX, 8)]), Asc::LBA_OUT_OF_RANGE, None),
        (populate(&[range(0, 8), range(7, 1)]), Asc::INVALID_FIELD_IN_PARAMETER_LIST, Some(32)),
        (populate(&[range(0, 0)]), Asc::INVALID_FIELD_IN_PARAMETER_LIST, Some(14)),
        (populate(&[range(0, 1); 65]), Asc::TOO_MANY_SEGMENT_DESCRIPTORS, Some(14)),
        (
            PopulateToken { inactivity_timeout_s: 3601, ..good() },
            Asc::INVALID_FIELD_IN_PARAMETER_LIST,
            Some(4),
        ),
        (
            PopulateToken { rod_type: Some(RodType::POINT_IN_TIME_PERSISTENT), ..good() },
            Asc::INVALID_FIELD_IN_PARAMETER_LIST,
            Some(8),
        ),
        (
            PopulateToken { rod_type: Some(RodType::ACCESS_UPON_REFERENCE), ..good() },
            Asc::INVALID_FIELD_IN_PARAMETER_LIST,
            Some(8),
        ),
    ] {
        let reply = world.populate(0, A, &list);
        reply.illegal(asc);
        if let Some(field) = field {
            assert_eq!(reply.sense_bytes[15..18], [0x80, 0, field], "{list:?}");
        }
    }
    let mut large = World::new(&[(BlockSize::B512, 600_000)]);
    large.populate(0, A, &populate(&[range(0, 524_288)])).good();
    large
        .populate(0, A, &populate(&[range(0, 524_288), range(524_288, 1)]))
        .illegal(Asc::INVALID_FIELD_IN_PARAMETER_LIST);
}

#[test]
fn tokens_that_are_not_ours_are_told_apart_from_those_that_are_damaged() {
    let mut world = World::new(&[MIB_512, MIB_512, (BlockSize::B4096, 256)]);
    let token = world.token(0, A, &[range(0, 8)]);
    let coarse = world.token(2, A, &[range(0, 8)]);
    let damaged = |at: usize, value: u8| {
        let mut damaged = token.clone();
        damaged.0[at] = value;
        damaged
    };
    for (token, asc) in [
        (damaged(511, token.0[511] ^ 1), Asc::TOKEN_UNKNOWN),
        (damaged(15, token.0[15] ^ 1), Asc::TOKEN_UNKNOWN),
        (damaged(7, 0), Asc::INVALID_TOKEN_LENGTH),
        (damaged(3, 2), Asc::UNSUPPORTED_TOKEN_TYPE),
        (damaged(16, 0xe0), Asc::TOKEN_CORRUPT),
        (damaged(24, 0x50), Asc::TOKEN_UNKNOWN),
        (coarse, Asc::UNSUPPORTED_TOKEN_TYPE),
    ] {
        world.use_token(1, A, &using(&token, 0, &[range(0, 8)])).illegal(asc);
    }
    world.use_token(1, A, &using(&token, 0, &[range(0, 8)])).good();
}

#[test]
fn a_token_of_a_unit_that_the_nexus_does_not_see_is_unknown_to_it() {
    let mut world = World::new(&[MIB_512, MIB_512]);
    world.fill(&mut Rng::from_seed(1), 0);
    let token = world.token(0, A, &[range(0, 8)]);
    world.show(B, &[1]);
    world.use_token(1, B, &using(&token, 0, &[range(0, 8)])).illegal(Asc::TOKEN_UNKNOWN);
    assert_eq!(world.gates[1].writes(), 0);
    // A nexus that sees both units may use a token that another nexus received.
    world.show(B, &[0, 1]);
    world.use_token(1, B, &using(&token, 0, &[range(0, 8)])).good();
}

#[test]
fn tokens_obey_access_and_reservations_of_both_units() {
    let mut world = World::new(&[MIB_512, MIB_512]);
    let token = world.token(0, A, &[range(0, 8)]);
    let list = using(&token, 0, &[range(0, 8)]);
    world.grant(1, B, Access::ReadOnly);
    world.use_token(1, B, &list).check(SenseKey::DATA_PROTECT, Asc::WRITE_PROTECTED);
    // RESERVE(6) by the other nexus.
    world.run(0, B, &[0x16, 0, 0, 0, 0, 0], 0, &[]).good();
    world.use_token(1, A, &list).check(SenseKey::COPY_ABORTED, Asc::THIRD_PARTY_DEVICE_FAILURE);
    assert_eq!(world.populate(0, A, &populate(&[range(0, 8)])).status, Status::RESERVATION_CONFLICT);
    world.run(0, B, &[0x17, 0, 0, 0, 0, 0], 0, &[]).good();
    world.grant(1, B, Access::ReadWrite);
    world.run(1, B, &[0x16, 0, 0, 0, 0, 0], 0, &[]).good();
    assert_eq!(world.use_token(1, A, &list).status, Status::RESERVATION_CONFLICT);
    assert_eq!(world.gates[1].writes(), 0);
}

#[test]
fn a_token_may_be_forgotten_with_its_last_use() {
    let mut world = World::new(&[MIB_512]);
    let token = world.token(0, A, &[range(0, 8)]);
    let all =
        |world: &mut World| world.run(0, A, &in_cdb(copy_in::REPORT_ALL_ROD_TOKENS, 4096), 4096, &[]).good();
    let told = all(&mut world);
    assert_eq!((told.len(), &told[8..]), (104, token.management_part()));
    let list = WriteUsingToken { delete_token: true, ..using(&token, 0, &[range(100, 8)]) };
    world.use_token(0, A, &list).good();
    assert_eq!(all(&mut world), [0, 0, 0, 4, 0, 0, 0, 0]);
    world.use_token(0, A, &list).illegal(Asc::TOKEN_UNKNOWN);
}

#[test]
fn a_unit_without_a_seed_knows_no_tokens_and_says_so() {
    let mut rig = crate::testing::Rig::new();
    for (opcode, action) in [(0x83, 0x10), (0x83, 0x11), (0x84, 7), (0x84, 8)] {
        let mut cdb = [0; 16];
        (cdb[0], cdb[1]) = (opcode, action);
        rig.run(A, &cdb, 0, &[]).illegal(Asc::INVALID_FIELD_IN_CDB);
    }
    let page = rig.run(A, &[0x12, 1, 0x8f, 0x10, 0, 0], 4096, &[]).good();
    let kinds: Vec<u16> = scsi::copy::vpd::descriptors(&page[4..]).map(|(kind, _)| kind).collect();
    assert_eq!(kinds, [0x0001, 0x0004, 0x0008, 0x000c, 0x8001]);
}

/// A token represents its blocks as they were when it was created: with writes at any moment, a copy by it
/// either returns exactly those or fails.
#[test]
fn no_copy_by_a_token_ever_gives_a_later_byte() {
    let (mut kept, mut revoked) = (0, 0);
    for seed in 0..50 {
        let mut rng = Rng::from_seed(seed);
        let mut world = World::new(&SIZES);
        let mut source = world.fill(&mut rng, 0);
        world.slow(true);
        let write = |world: &mut World, rng: &mut Rng| {
            let lba = rng.below(6000);
            let data = super::world::noise(rng, 4096);
            let cdb = crate::testing::cdb_16(scsi::opcode::WRITE_16, 0, lba, 8);
            (usize::try_from(lba << 9).unwrap(), world.start_with(0, B, &cdb, &data), data)
        };
        // A write that is in progress when the token is requested: it takes effect before, since the token
        // waits for it.
        if rng.chance(1, 2) {
            let (at, key, data) = write(&mut world, &mut rng);
            source[at..at + data.len()].copy_from_slice(&data);
            let _under_way = key;
        }
        let list = populate(&[range(500, 2000), range(3000, 500)]).to_bytes();
        let key = world.start_with(0, A, &cdb(copy_out::POPULATE_TOKEN, 9, list.len()), &list);
        // A write that is received while the token waits: it takes effect after.
        let late = rng.chance(1, 4).then(|| write(&mut world, &mut rng));
        world.finish(&mut rng, 0, key).good();
        let token = world.information(0, A, 9).1[0].clone();
        let key = world.start_use(1, A, &using(&token, 0, &[range(0, 2500)]));
        let mut writes = Vec::from_iter(late);
        let reply = loop {
            if let Some(reply) = world.ended(1, key) {
                break reply;
            }
            if writes.is_empty() && rng.chance(1, 20) {
                writes.push(write(&mut world, &mut rng));
            }
            assert!(world.chance(&mut rng), "seed {seed}: stuck");
        };
        world.settle(&mut rng);
        world.slow(false);
        if reply.status == Status::GOOD {
            kept += 1;
            let wanted = bytes(&[range(500, 2000), range(3000, 500)], &source);
            assert!(world.get(1, 0, 2500) == wanted, "seed {seed}");
        } else {
            revoked += 1;
            reply.illegal(Asc::TOKEN_REVOKED);
            let (status, _) = world.information(1, A, 10);
            let len = usize::try_from(status.transfer_count << 9).unwrap();
            let wanted = bytes(&[range(500, 2000), range(3000, 500)], &source);
            assert!(world.dump(1)[..len] == wanted[..len], "seed {seed}: the transfer count lies");
        }
    }
    assert!(kept > 5 && revoked > 5, "{kept} kept, {revoked} revoked: the test tests one thing only");
}

#[test]
fn tokens_in_the_background_are_made_and_used() {
    let mut rng = Rng::from_seed(4);
    let mut world = World::new(&SIZES);
    let source = world.fill(&mut rng, 0);
    world.slow(true);
    let list = PopulateToken { immediate: true, ..populate(&[range(0, 3000)]) };
    world.populate(0, A, &list).good();
    let token = world.information(0, A, 9).1[0].clone();
    let list = WriteUsingToken { immediate: true, ..using(&token, 0, &[range(0, 3000)]) };
    world.use_token(1, A, &list).good();
    let (status, _) = world.information(1, A, 10);
    assert_eq!(status.status, OperationStatus::IN_BACKGROUND);
    world.use_token(1, A, &list).illegal(Asc::OPERATION_IN_PROGRESS);
    world.settle(&mut rng);
    let (status, _) = world.information(1, A, 10);
    assert_eq!((status.status, status.transfer_count), (OperationStatus::COMPLETED, 3000));
    world.slow(false);
    assert!(world.dump(1)[..3000 << 9] == source[..3000 << 9]);
}

#[test]
fn the_zero_token_writes_zeros_and_needs_no_source() {
    let mut world = World::new(&SIZES);
    let before = world.fill(&mut Rng::from_seed(1), 0);
    let (first, second) = (range(10, 3000), range(5000, 1));
    world.use_token(0, A, &using(&RodToken::zeros(), 77, &[first, second])).good();
    let (status, _) = world.information(0, A, 10);
    assert_eq!((status.status, status.transfer_count), (OperationStatus::COMPLETED, 3001));
    let mut wanted = before;
    for run in [first, second] {
        let at = usize::try_from(run.lba.0 << 9).unwrap();
        wanted[at..at + usize::try_from(run.blocks.0 << 9).unwrap()].fill(0);
    }
    assert!(world.dump(0) == wanted);
    world.grant(0, A, Access::ReadOnly);
    let reply = world.use_token(0, A, &using(&RodToken::zeros(), 0, &[range(0, 1)]));
    reply.check(SenseKey::DATA_PROTECT, Asc::WRITE_PROTECTED);
}

#[test]
fn no_two_tokens_are_alike() {
    let mut world = World::new(&[MIB_512, MIB_512]);
    let mut tokens = vec![];
    for unit in [0, 1, 0, 1, 0] {
        tokens.push(world.token(unit, A, &[range(0, 8)]));
    }
    for (at, one) in tokens.iter().enumerate() {
        for other in &tokens[at + 1..] {
            assert!(one.0[480..] != other.0[480..]);
        }
    }
}
