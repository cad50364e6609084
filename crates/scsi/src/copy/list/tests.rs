use alloc::vec;

use base::units::Lba;

use super::super::cscd::CscdId;
use super::*;
use crate::sense::{Asc, Sense, SenseKeySpecific};

const LIMITS: Limits = Limits {
    cscds_max: 4,
    segments_max: 8,
    descriptors_len_max: 384,
    inline_len_max: 0,
    cscd_fields: CscdFields::Spc4,
};

fn unit(seed: u8) -> Cscd {
    Cscd {
        device_type: 0,
        code_set: 1,
        kind: 3,
        association: 0,
        designator: vec![seed; 16],
        pad: false,
        block_len: 512,
        null: false,
    }
}

fn step() -> SegmentAction {
    SegmentAction::Blocks {
        counts_destination: false,
        keep_residual: false,
        source: CscdId(0),
        destination: CscdId(1),
        count: 8,
        source_lba: Lba(16),
        destination_lba: Lba(32),
    }
}

fn list(format: Format, cscds: u8, segments: usize) -> CopyList {
    let mut list = CopyList::new(format, ListId(7));
    list.cscds = (0..cscds).map(unit).collect();
    for _ in 0..segments {
        list.push(step());
    }
    list
}

fn lid4() -> Format {
    Format::Lid4 { immediate: false, sense_on_good: true }
}

fn parse(format: Format, bytes: &[u8]) -> Result<CopyList, CopyError> {
    match format {
        Format::Lid1 => CopyList::parse_lid1(bytes, &LIMITS),
        Format::Lid4 { .. } => CopyList::parse_lid4(bytes, &LIMITS),
    }
}

#[test]
fn lists_of_both_formats_survive_the_wire() {
    for (format, header) in [(Format::Lid1, 16), (lid4(), 48)] {
        let mut sent = list(format, 2, 3);
        sent.priority = 5;
        let bytes = sent.to_bytes();
        let got = parse(format, &bytes).unwrap();
        let places: Vec<usize> = got.segments.iter().map(|segment| segment.at).collect();
        assert_eq!(places, [header + 64, header + 64 + 28, header + 64 + 56]);
        for (segment, place) in sent.segments.iter_mut().zip(places) {
            segment.at = place;
        }
        assert_eq!(got, sent);
    }
}

#[test]
fn the_headers_stand_as_spc_has_them() {
    let mut sent = list(Format::Lid1, 1, 2);
    sent.usage = ListIdUsage::Discard;
    assert_eq!(sent.to_bytes()[..16], [7, 0x10, 0, 32, 0, 0, 0, 0, 0, 0, 0, 56, 0, 0, 0, 0]);
    let bytes = list(lid4(), 1, 2).to_bytes();
    assert_eq!(bytes[..4], [1, 0, 0, 0x20]);
    assert_eq!(bytes[15..24], [2, 0xff, 0, 0, 0, 0, 0, 0, 7]);
    assert_eq!(bytes[42..49], [0, 32, 0, 56, 0, 0, 0xe4]);
}

#[test]
fn a_list_cut_anywhere_is_a_length_error() {
    for format in [Format::Lid1, lid4()] {
        let bytes = list(format, 2, 2).to_bytes();
        for cut in 0..bytes.len() {
            assert_eq!(parse(format, &bytes[..cut]), Err(CopyError::LengthError), "{format:?} cut to {cut}");
        }
    }
}

#[test]
fn too_many_descriptors_and_too_many_bytes_are_told_apart() {
    for (format, cscd_field, header) in [(Format::Lid1, 2, 16), (lid4(), 42, 48)] {
        let many = list(format, 5, 1).to_bytes();
        assert_eq!(parse(format, &many), Err(CopyError::TooManyCscds { byte: cscd_field }));
        let many = list(format, 1, 9).to_bytes();
        assert_eq!(parse(format, &many), Err(CopyError::TooManySegments { byte: header + 32 + 8 * 28 }));
        let long = list(format, 5, 9).to_bytes();
        assert_eq!(parse(format, &long), Err(CopyError::LengthError));
        assert!(parse(format, &list(format, 4, 8).to_bytes()).is_ok());
    }
}

#[test]
fn the_length_field_of_another_descriptor_type_is_never_reached() {
    let mut bytes = list(Format::Lid1, 2, 1).to_bytes();
    bytes[48] = 0xea;
    assert_eq!(parse(Format::Lid1, &bytes), Err(CopyError::UnsupportedCscdType { byte: 48 }));
    let mut bytes = list(Format::Lid1, 1, 1).to_bytes();
    bytes[3] = 31;
    assert_eq!(parse(Format::Lid1, &bytes), Err(CopyError::field(2)));
}

#[test]
fn fields_that_may_not_be_are_pointed_at() {
    let cases: [(Format, usize, u8, CopyError); 8] = [
        (Format::Lid1, 1, 0x08, CopyError::bits(1, 4)),
        (Format::Lid1, 1, 0x18, CopyError::field(0)),
        (Format::Lid1, 15, 1, CopyError::InlineDataTooLong { byte: 12 }),
        (lid4(), 0, 0, CopyError::field(0)),
        (lid4(), 3, 0x40, CopyError::field(2)),
        (lid4(), 16, 0, CopyError::field(16)),
        (lid4(), 1, 0x18, CopyError::field(20)),
        (lid4(), 47, 1, CopyError::InlineDataTooLong { byte: 46 }),
    ];
    for (format, at, value, refusal) in cases {
        let mut bytes = list(format, 2, 2).to_bytes();
        bytes[at] = value;
        assert_eq!(parse(format, &bytes), Err(refusal), "{format:?} byte {at}");
    }
}

#[test]
fn a_refusal_becomes_sense_with_a_pointer_into_the_list() {
    let sense = Sense::from(CopyError::bits(1, 4));
    assert_eq!(sense.asc, Asc::INVALID_FIELD_IN_PARAMETER_LIST);
    let pointer = SenseKeySpecific::FieldPointer { in_cdb: false, bit: Some(4), byte: 1 };
    assert_eq!(sense.specific, Some(pointer));
    assert_eq!(Sense::from(CopyError::LengthError), Sense::illegal(Asc::PARAMETER_LIST_LENGTH_ERROR));
}

#[test]
fn lengths_near_the_largest_number_do_not_wrap() {
    let mut bytes = list(Format::Lid1, 1, 1).to_bytes();
    bytes[8..12].fill(0xff);
    assert_eq!(parse(Format::Lid1, &bytes), Err(CopyError::LengthError));
    bytes[12..16].fill(0xff);
    assert_eq!(parse(Format::Lid1, &bytes), Err(CopyError::InlineDataTooLong { byte: 12 }));
}
