//! EXTENDED COPY: the cases of libiscsi's suite, and more.

use alloc::vec::Vec;

use base::rng::Rng;
use base::units::{BlockSize, Lba};
use scsi::copy::cscd::{Cscd, CscdId};
use scsi::copy::list::{Format, ListIdUsage};
use scsi::copy::segment::SegmentAction;
use scsi::copy::{ListId, copy_in};
use scsi::sense::{Asc, SenseKey};
use scsi::status::Status;
use security::Level;

use super::world::{LID4, LID4_IMMEDIATE, MIB_512, World, blocks, cscd, in_cdb, list, named, out_cdb};
use crate::contract::{Access, InquiryOverrides, SpcLevel, UnitConfig};
use crate::testing::{A, B};

const B512: BlockSize = BlockSize::B512;

fn bytes(count: u64) -> usize {
    usize::try_from(count << 9).unwrap()
}

#[test]
fn copies_within_a_unit_and_between_units_in_both_formats() {
    for format in [Format::Lid1, LID4] {
        for to in [0, 1] {
            let mut rng = Rng::from_seed(7);
            let mut world = World::new(&[MIB_512, MIB_512]);
            let source = world.fill(&mut rng, 0);
            let units = [cscd(0, B512), cscd(1, B512)];
            let steps = [blocks(0, to, 1000, 3, 1010), blocks(0, to, 1, 2047, 0)];
            world.copy(0, A, &list(format, &units, &steps)).good();
            let copied = world.dump(usize::from(to));
            assert!(copied[bytes(1010)..bytes(2010)] == source[bytes(3)..bytes(1003)]);
            assert!(copied[..512] == source[bytes(2047)..]);
        }
    }
}

/// `Units::deliver` compares the level of each call.
#[test]
fn calls_have_the_protection_of_their_command_also_in_the_background() {
    for (level, format) in [
        (Level::None, LID4),
        (Level::Integrity, Format::Lid1),
        (Level::Encrypt, LID4),
        (Level::Encrypt, LID4_IMMEDIATE),
    ] {
        let mut world = World::new(&[MIB_512, MIB_512]);
        let source = world.fill(&mut Rng::from_seed(3), 0);
        world.protect(level);
        world.copy(0, A, &list(format, &[cscd(0, B512), cscd(1, B512)], &[blocks(0, 1, 8, 0, 0)])).good();
        assert!(world.get(1, 0, 8) == source[..4096], "{level} {format:?}");
    }
}

#[test]
fn the_receiving_unit_can_be_named_by_its_code_and_need_not_take_part() {
    let mut rng = Rng::from_seed(8);
    let mut world = World::new(&[MIB_512, MIB_512, MIB_512]);
    let source = world.fill(&mut rng, 0);
    let own = CscdId::COPY_MANAGER_UNIT.0;
    world.copy(0, A, &list(LID4, &[cscd(1, B512)], &[blocks(own, 0, 8, 0, 0)])).good();
    assert!(world.get(1, 0, 8) == source[..4096]);
    let units = [cscd(1, B512), cscd(2, B512)];
    world.copy(0, A, &list(LID4, &units, &[blocks(0, 1, 8, 0, 100)])).good();
    assert!(world.get(2, 100, 8) == source[..4096]);
}

#[test]
fn destination_blocks_are_counted_where_dc_says_so() {
    let mut world = World::new(&[MIB_512, (BlockSize::B4096, 256)]);
    let source = world.fill(&mut Rng::from_seed(1), 0);
    let units = [cscd(0, B512), cscd(1, BlockSize::B4096)];
    let step = |counts_destination, count| SegmentAction::Blocks {
        counts_destination,
        keep_residual: false,
        source: CscdId(0),
        destination: CscdId(1),
        count,
        source_lba: Lba(8),
        destination_lba: Lba(2),
    };
    world.copy(0, A, &list(LID4, &units, &[step(true, 2)])).good();
    assert!(world.get(1, 2, 2) == source[4096..4096 * 3]);
    world.copy(0, A, &list(LID4, &units, &[step(false, 24)])).good();
    assert!(world.get(1, 2, 3) == source[4096..4096 * 4]);
    let odd = world.copy(0, A, &list(LID4, &units, &[step(false, 25)]));
    odd.check(SenseKey::COPY_ABORTED, Asc::UNEXPECTED_INEXACT_SEGMENT);
}

#[test]
fn bytes_may_start_inside_a_source_block_and_fill_whole_destination_blocks() {
    let step = |len, source_offset, destination_offset| SegmentAction::Bytes {
        keep_residual: false,
        source: CscdId(0),
        destination: CscdId(1),
        len,
        source_lba: Lba(1),
        destination_lba: Lba(5),
        source_offset,
        destination_offset,
    };
    let mut world = World::new(&[MIB_512, MIB_512]);
    let source = world.fill(&mut Rng::from_seed(1), 0);
    let units = [cscd(0, B512), cscd(1, B512)];
    world.copy(0, A, &list(Format::Lid1, &units, &[step(1024, 100, 0)])).good();
    assert!(world.get(1, 5, 2) == source[612..612 + 1024]);
    for (len, source_offset, destination_offset, asc) in [
        (1000, 0, 0, Asc::UNEXPECTED_INEXACT_SEGMENT),
        (1024, 0, 1, Asc::UNEXPECTED_INEXACT_SEGMENT),
        (1024, 512, 0, Asc::INVALID_FIELD_IN_PARAMETER_LIST),
        ((256 << 20) + 512, 0, 0, Asc::INVALID_FIELD_IN_PARAMETER_LIST),
    ] {
        let step = step(len, source_offset, destination_offset);
        world.copy(0, A, &list(LID4, &units, &[step])).check(SenseKey::COPY_ABORTED, asc);
    }
}

#[test]
fn an_empty_parameter_list_and_empty_segments_are_no_error() {
    let mut world = World::new(&[MIB_512]);
    for action in [0, 1] {
        world.run(0, A, &out_cdb(action, 0), 0, &[]).good();
    }
    world.copy(0, A, &list(Format::Lid1, &[cscd(0, B512)], &[])).good();
    world.copy(0, A, &list(Format::Lid1, &[cscd(0, B512)], &[blocks(0, 0, 0, 0, 0)])).good();
    assert_eq!(world.gates[0].writes(), 0);
}

#[test]
fn a_list_cut_short_is_a_length_error_whatever_is_missing() {
    let mut world = World::new(&[MIB_512]);
    let whole = list(Format::Lid1, &[cscd(0, B512)], &[blocks(0, 0, 8, 0, 100)]).to_bytes();
    for len in 1..whole.len() {
        let reply = world.run(0, A, &out_cdb(0, len), 0, &whole[..len]);
        reply.illegal(Asc::PARAMETER_LIST_LENGTH_ERROR);
    }
    // The initiator announces the whole list and sends less.
    let reply = world.run(0, A, &out_cdb(0, whole.len()), 0, &whole[..40]);
    reply.illegal(Asc::PARAMETER_LIST_LENGTH_ERROR);
    assert_eq!(world.gates[0].writes(), 0);
}

#[test]
fn descriptors_beyond_the_limits_that_are_reported_are_refused() {
    let mut world = World::new(&[MIB_512]);
    let reported = world.run(0, A, &in_cdb(copy_in::RECEIVE_COPY_OPERATING_PARAMETERS, 512), 512, &[]).good();
    let limits = scsi::copy::results::OperatingParameters::parse(&reported).unwrap().limits;
    let units = |count: u16| -> Vec<Cscd> { (0..count).map(|_| cscd(0, B512)).collect() };
    let steps = |count: u32| -> Vec<SegmentAction> { (0..count).map(|_| blocks(0, 0, 1, 0, 9)).collect() };
    let (cscds, segments) = (limits.cscds_max, u32::from(limits.segments_max));
    world.copy(0, A, &list(Format::Lid1, &units(cscds), &steps(segments))).good();
    world
        .copy(0, A, &list(Format::Lid1, &units(cscds + 1), &steps(1)))
        .illegal(Asc::TOO_MANY_TARGET_DESCRIPTORS);
    world
        .copy(0, A, &list(Format::Lid1, &units(1), &steps(segments + 1)))
        .illegal(Asc::TOO_MANY_SEGMENT_DESCRIPTORS);
    let fit = (limits.descriptors_len_max - u32::from(cscds + 1) * 32) / 28;
    world
        .copy(0, A, &list(Format::Lid1, &units(cscds + 1), &steps(fit + 1)))
        .illegal(Asc::PARAMETER_LIST_LENGTH_ERROR);
    let long = world.run(0, A, &out_cdb(0, 1 << 30), 0, &[0; 64]);
    long.illegal(Asc::PARAMETER_LIST_LENGTH_ERROR);
}

#[test]
fn unknown_descriptor_types_are_refused_before_anything_is_copied() {
    let mut world = World::new(&[MIB_512]);
    let whole = list(Format::Lid1, &[cscd(0, B512)], &[blocks(0, 0, 8, 0, 100), blocks(0, 0, 8, 0, 200)]);
    for (at, value, asc) in [
        (16, 0xe0, Asc::UNSUPPORTED_TARGET_DESCRIPTOR_TYPE),
        (16, 0xe5, Asc::UNSUPPORTED_TARGET_DESCRIPTOR_TYPE),
        (16, 0xff, Asc::UNSUPPORTED_TARGET_DESCRIPTOR_TYPE),
        (48 + 28, 0x03, Asc::UNSUPPORTED_SEGMENT_DESCRIPTOR_TYPE),
        (48 + 28, 0xbe, Asc::UNSUPPORTED_SEGMENT_DESCRIPTOR_TYPE),
        (12, 0x01, Asc::INLINE_DATA_LENGTH_EXCEEDED),
    ] {
        let mut bytes = whole.to_bytes();
        bytes[at] = value;
        let reply = world.run(0, A, &out_cdb(0, bytes.len()), 0, &bytes);
        reply.illegal(asc);
    }
    assert_eq!(world.gates[0].writes(), 0);
}

#[test]
fn a_segment_that_cannot_be_done_aborts_the_copy_at_its_number() {
    let mut world = World::new(&[MIB_512]);
    let end = 2048;
    for (step, asc, field) in [
        (blocks(0, 1, 8, 0, 100), Asc::UNREACHABLE_COPY_TARGET, 6),
        (blocks(9, 0, 8, 0, 100), Asc::UNREACHABLE_COPY_TARGET, 4),
        (blocks(0, 0, 2048, 0, end - 1), Asc::NONE, 20),
        (blocks(0, 0, 8, end, 0), Asc::NONE, 12),
        (blocks(0, 0, 8, u64::MAX, 0), Asc::NONE, 12),
        (blocks(0, 0, 8, 0, u64::MAX - 3), Asc::NONE, 20),
    ] {
        let good = blocks(0, 0, 1, 0, 1);
        let reply = world.copy(0, A, &list(Format::Lid1, &[cscd(0, B512)], &[good, good, step]));
        reply.check(SenseKey::COPY_ABORTED, asc);
        assert_eq!(reply.sense_bytes[8..12], [0, 0, 0, 2], "segment number");
        assert_eq!(reply.sense_bytes[15..18], [0xa0, 0, field], "segment pointer");
    }
}

#[test]
fn the_type_of_unit_identifier_is_ignored_as_spc_4_has_it() {
    let mut world = World::new(&[MIB_512]);
    let mut bytes = list(Format::Lid1, &[cscd(0, B512)], &[blocks(0, 0, 8, 0, 100)]).to_bytes();
    bytes[17] = 0xa0;
    world.run(0, A, &out_cdb(0, bytes.len()), 0, &bytes).good();
}

#[test]
fn a_descriptor_that_belies_its_unit_is_refused() {
    let mut world = World::new(&[MIB_512]);
    for (unit, asc) in [
        (Cscd { device_type: 1, ..cscd(0, B512) }, Asc::INCORRECT_COPY_TARGET_DEVICE_TYPE),
        (Cscd { block_len: 4096, ..cscd(0, B512) }, Asc::INVALID_FIELD_IN_PARAMETER_LIST),
        (Cscd { association: 1, ..cscd(0, B512) }, Asc::COPY_TARGET_DEVICE_NOT_REACHABLE),
        (Cscd { kind: 2, ..cscd(0, B512) }, Asc::COPY_TARGET_DEVICE_NOT_REACHABLE),
        (Cscd { designator: [0x60; 16].to_vec(), ..cscd(0, B512) }, Asc::COPY_TARGET_DEVICE_NOT_REACHABLE),
    ] {
        let reply = world.copy(0, A, &list(Format::Lid1, &[unit], &[blocks(0, 0, 8, 0, 100)]));
        reply.check(SenseKey::COPY_ABORTED, asc);
    }
    let silent = Cscd { block_len: 0, ..cscd(0, B512) };
    world.copy(0, A, &list(Format::Lid1, &[silent], &[blocks(0, 0, 8, 0, 100)])).good();
}

#[test]
fn verifying_a_unit_tells_whether_it_can_be_reached() {
    let mut world = World::new(&[MIB_512, MIB_512]);
    let verify = SegmentAction::Verify { source: CscdId(0), test_unit_ready: true };
    let step = |unit| list(LID4, &[cscd(unit, B512)], &[verify]);
    world.copy(0, A, &step(1)).good();
    world.show(A, &[0]);
    world.copy(0, A, &step(1)).check(SenseKey::COPY_ABORTED, Asc::COPY_TARGET_DEVICE_NOT_REACHABLE);
}

/// CVE-2020-28374, CVE-2021-3139: a copy reaches no unit that its nexus does not see.
#[test]
fn a_unit_that_the_nexus_does_not_see_is_neither_read_nor_written() {
    let mut world = World::new(&[MIB_512, MIB_512]);
    let mut rng = Rng::from_seed(3);
    let (own, hidden) = (world.fill(&mut rng, 0), world.fill(&mut rng, 1));
    world.show(B, &[0]);
    let units = [cscd(0, B512), cscd(1, B512)];
    for step in [blocks(1, 0, 8, 0, 0), blocks(0, 1, 8, 0, 0), blocks(1, 1, 8, 0, 8)] {
        let reply = world.copy(0, B, &list(LID4, &units, &[step]));
        reply.check(SenseKey::COPY_ABORTED, Asc::COPY_TARGET_DEVICE_NOT_REACHABLE);
    }
    assert!(world.dump(0) == own && world.dump(1) == hidden);
    world.copy(0, A, &list(LID4, &units, &[blocks(1, 0, 8, 0, 0)])).good();
}

#[test]
fn what_may_not_be_written_is_not_written_by_a_copy_either() {
    let mut world = World::new(&[MIB_512, MIB_512]);
    let before = world.fill(&mut Rng::from_seed(3), 1);
    world.grant(1, B, Access::ReadOnly);
    let units = [cscd(0, B512), cscd(1, B512)];
    let reply = world.copy(0, B, &list(LID4, &units, &[blocks(0, 1, 8, 0, 0)]));
    reply.check(SenseKey::COPY_ABORTED, Asc::THIRD_PARTY_DEVICE_FAILURE);
    assert!(world.dump(1) == before);
    world.copy(0, B, &list(LID4, &units, &[blocks(1, 0, 8, 0, 0)])).good();
    assert!(world.get(0, 0, 8) == before[..4096]);
}

#[test]
fn a_reservation_stops_copies_as_it_stops_commands() {
    // RESERVE(6) of the other nexus on the destination, then on the source.
    for reserved in [0, 1] {
        let mut world = World::new(&[MIB_512, MIB_512, MIB_512]);
        world.run(reserved, B, &[0x16, 0, 0, 0, 0, 0], 0, &[]).good();
        let units = [cscd(0, B512), cscd(1, B512)];
        let copy = list(LID4, &units, &[blocks(0, 1, 8, 0, 0)]);
        let reply = world.copy(2, A, &copy);
        reply.check(SenseKey::COPY_ABORTED, Asc::THIRD_PARTY_DEVICE_FAILURE);
        assert_eq!(world.gates[1].writes(), 0);
        world.copy(2, B, &copy).good();
        let direct = world.copy(reserved, A, &copy);
        assert_eq!(direct.status, Status::RESERVATION_CONFLICT);
    }
}

#[test]
fn a_list_identifier_in_use_is_refused_to_its_nexus_only() {
    let mut world = World::new(&[MIB_512]);
    let mut rng = Rng::from_seed(1);
    let copy = list(Format::Lid1, &[cscd(0, B512)], &[blocks(0, 0, 8, 0, 100)]);
    world.slow(true);
    let first = world.start_copy(0, A, &copy);
    world.copy(0, A, &copy).illegal(Asc::OPERATION_IN_PROGRESS);
    let mut unnamed = copy.clone();
    (unnamed.list_id, unnamed.usage) = (ListId(0), ListIdUsage::Unnamed);
    let others =
        [world.start_copy(0, B, &copy), world.start_copy(0, A, &unnamed), world.start_copy(0, A, &unnamed)];
    world.finish(&mut rng, 0, first).good();
    for other in others {
        world.finish(&mut rng, 0, other).good();
    }
    world.slow(false);
    world.copy(0, A, &copy).good();
}

#[test]
fn copies_beyond_those_that_are_reported_meet_busy() {
    let mut world = World::new(&[MIB_512]);
    let mut rng = Rng::from_seed(1);
    let mut copy = list(Format::Lid1, &[cscd(0, B512)], &[blocks(0, 0, 8, 0, 100)]);
    (copy.list_id, copy.usage) = (ListId(0), ListIdUsage::Unnamed);
    let reported = world.run(0, A, &in_cdb(copy_in::RECEIVE_COPY_OPERATING_PARAMETERS, 512), 512, &[]).good();
    let concurrent = scsi::copy::results::OperatingParameters::parse(&reported).unwrap().concurrent;
    assert_eq!(concurrent, 32);
    world.slow(true);
    let keys: Vec<_> = (0..concurrent).map(|_| world.start_copy(0, A, &copy)).collect();
    assert_eq!(world.copy(0, A, &copy).status, Status::BUSY);
    for key in keys {
        world.finish(&mut rng, 0, key).good();
    }
    world.slow(false);
    world.copy(0, A, &copy).good();
}

/// libiscsi ExtendedCopy.ValidTgtDescr, for a unit of SPC-3.
#[test]
fn a_unit_of_spc_3_knows_the_type_of_unit_identifier_and_null_devices() {
    let mut world = World::new(&[MIB_512]);
    let claims = InquiryOverrides { level: SpcLevel::Spc3, ..InquiryOverrides::default() };
    world.reconfigure(0, UnitConfig { overrides: claims, ..named(0, B512) });
    world.run(0, A, &[0; 6], 0, &[]).check(SenseKey::UNIT_ATTENTION, Asc::INQUIRY_DATA_HAS_CHANGED);
    let bytes = list(Format::Lid1, &[cscd(0, B512)], &[blocks(0, 0, 8, 0, 100)]).to_bytes();
    world.run(0, A, &out_cdb(0, bytes.len()), 0, &bytes).good();
    for (flags, key, asc) in [
        (0xc0, SenseKey::ILLEGAL_REQUEST, Asc::INVALID_FIELD_IN_PARAMETER_LIST),
        (0x40, SenseKey::ILLEGAL_REQUEST, Asc::INVALID_FIELD_IN_PARAMETER_LIST),
        (0x20, SenseKey::COPY_ABORTED, Asc::UNREACHABLE_COPY_TARGET),
    ] {
        let mut bytes = bytes.clone();
        bytes[17] = flags;
        world.run(0, A, &out_cdb(0, bytes.len()), 0, &bytes).check(key, asc);
    }
    let reply = world.copy(0, A, &list(LID4, &[cscd(0, B512)], &[blocks(0, 0, 8, 0, 100)]));
    reply.check(SenseKey::ILLEGAL_REQUEST, Asc::INVALID_FIELD_IN_CDB);
}
