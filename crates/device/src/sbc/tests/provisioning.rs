//! WRITE SAME, UNMAP and GET LBA STATUS.

use alloc::boxed::Box;
use alloc::vec;
use alloc::vec::Vec;

use crate::contract::{InquiryOverrides, UnitConfig};
use crate::testing::{A, BLOCKS, Reply, Rig, cdb_10, cdb_16, cdb_32, config, pattern};
use base::buffer::PAGE;
use scsi::opcode as op;
use scsi::opcode::variable_length as long;
use scsi::sense::Asc;
use store::ram::Ram;

/// The deallocation unit of the medium in memory, in blocks.
const CHUNK: u64 = 128;

fn thick() -> Rig {
    Rig::with(UnitConfig { thin: false, ..config() }, Box::new(Ram::new(BLOCKS * 512)))
}

/// Returns every form of WRITE SAME with these flags.
fn same(flags: u8, lba: u32, blocks: u16) -> Vec<Vec<u8>> {
    let mut forms = vec![
        cdb_16(op::WRITE_SAME_16, flags, lba.into(), blocks.into()).to_vec(),
        cdb_32(long::WRITE_SAME_32, flags, lba.into(), blocks.into()).to_vec(),
    ];
    if flags & 1 == 0 {
        forms.push(cdb_10(op::WRITE_SAME_10, flags, lba, blocks).to_vec());
    }
    forms
}

fn unmap(rig: &mut Rig, ranges: &[(u64, u32)]) -> Reply {
    let list = unmap_list(ranges);
    rig.run(A, &unmap_cdb(list.len()), 0, &list)
}

fn unmap_cdb(len: usize) -> [u8; 10] {
    let [high, low] = u16::try_from(len).unwrap().to_be_bytes();
    [op::UNMAP, 0, 0, 0, 0, 0, 0, high, low, 0]
}

fn unmap_list(ranges: &[(u64, u32)]) -> Vec<u8> {
    let descriptors = u16::try_from(ranges.len() * 16).unwrap();
    let mut list = (descriptors + 6).to_be_bytes().to_vec();
    list.extend(descriptors.to_be_bytes());
    list.extend([0; 4]);
    for (lba, blocks) in ranges {
        list.extend(lba.to_be_bytes());
        list.extend(blocks.to_be_bytes());
        list.extend([0; 4]);
    }
    list
}

/// Returns (first block, blocks, provisioning status) of every descriptor.
fn status(rig: &mut Rig, lba: u64, allocation: u32) -> Vec<(u64, u32, u8)> {
    let cdb = cdb_16(op::SERVICE_ACTION_IN_16, 0x12, lba, allocation);
    let data = rig.run(A, &cdb, usize::try_from(allocation).unwrap(), &[]).good();
    decode(&data)
}

fn decode(data: &[u8]) -> Vec<(u64, u32, u8)> {
    let len = u32::from_be_bytes(data[..4].try_into().unwrap());
    assert_eq!(usize::try_from(len).unwrap() + 4, data.len());
    data[8..]
        .as_chunks::<16>()
        .0
        .iter()
        .map(|d| {
            (
                u64::from_be_bytes(d[..8].try_into().unwrap()),
                u32::from_be_bytes(d[8..12].try_into().unwrap()),
                d[12],
            )
        })
        .collect()
}

#[test]
fn a_block_is_written_all_over_a_range() {
    let mut rig = Rig::new();
    for (salt, form) in (1..).zip(same(0, 3, 700)) {
        let block = pattern(512, salt);
        let reply = rig.run(A, &form, 0, &block);
        assert_eq!(reply.transferable, 512);
        reply.good();
        assert!(rig.read(3, 700) == block.repeat(700));
    }
    assert_eq!(rig.read(2, 1), [0; 512]);
    assert_eq!(rig.read(703, 1), [0; 512]);
}

#[test]
fn more_than_a_part_is_written_part_by_part() {
    let mut rig = Rig::new();
    let block = pattern(512, 5);
    rig.run(A, &cdb_16(op::WRITE_SAME_16, 0, 1, 4000), 0, &block).good();
    assert!(rig.read(1, 4000) == block.repeat(4000));
}

#[test]
fn no_blocks_means_all_to_the_end() {
    let mut rig = Rig::new();
    let block = pattern(512, 5);
    let lba = u32::try_from(BLOCKS).unwrap() - 9;
    for form in same(0, lba, 0) {
        rig.write(lba.into(), &[0; 9 * 512]);
        rig.run(A, &form, 0, &block).good();
        assert_eq!(rig.read(lba.into(), 9), block.repeat(9));
    }
    assert_eq!(rig.read(u64::from(lba) - 1, 1), [0; 512]);
    for form in same(0, u32::try_from(BLOCKS).unwrap() + 1, 0) {
        rig.run(A, &form, 0, &block).illegal(Asc::LBA_OUT_OF_RANGE);
    }
    let short = UnitConfig { transfer_blocks_max: 100, ..config() };
    let mut rig = Rig::with(short, Box::new(Ram::new(BLOCKS * 512)));
    for form in same(0, 0, 0).iter().chain(&same(0, 0, 101)) {
        rig.run(A, form, 0, &block).illegal(Asc::INVALID_FIELD_IN_CDB);
    }
    for form in same(0, 0, 100) {
        rig.run(A, &form, 0, &block).good();
    }
}

#[test]
fn a_buffer_that_is_not_one_block_is_refused() {
    let mut rig = Rig::new();
    for flags in [0, 8] {
        for form in same(flags, 0, 1) {
            for sent in [0, 256, 1024] {
                let reply = rig.run(A, &form, 0, &vec![0; sent]);
                reply.illegal(Asc::INVALID_FIELD_IN_COMMAND_INFORMATION_UNIT);
            }
        }
    }
}

#[test]
fn unmapping_zeros_frees_storage_and_unmapping_anything_else_writes_it() {
    let mut rig = Rig::new();
    let blocks = u16::try_from(CHUNK).unwrap();
    for (flags, block, freed) in [
        (0x08, vec![0; 512], true),
        (0x09, vec![], true),
        (0x00, vec![0; 512], false),
        (0x01, vec![], false),
        (0x08, pattern(512, 1), false),
    ] {
        for form in same(flags, 0, blocks) {
            rig.write(0, &vec![0xff; usize::from(blocks) * 512]);
            rig.run(A, &form, 0, &block).good();
            let expected = if block.is_empty() { vec![0; 512] } else { block.clone() };
            assert!(rig.read(0, u32::from(blocks)) == expected.repeat(usize::from(blocks)));
            assert_eq!(status(&mut rig, 0, 24)[0].2, u8::from(freed), "{flags:x}");
        }
    }
}

#[test]
fn flags_that_make_no_sense_are_refused() {
    let mut rig = Rig::new();
    for form in
        same(0x10, 0, 1).iter().chain(&same(0x11, 0, 1)).chain(&same(0x20, 0, 1)).chain(&same(0x04, 0, 1))
    {
        rig.run(A, form, 0, &[0; 512]).illegal(Asc::INVALID_FIELD_IN_CDB);
    }
    let mut rig = thick();
    for form in same(0x08, 0, 1).iter().chain(&same(0x18, 0, 1)) {
        rig.run(A, form, 0, &[0; 512]).illegal(Asc::INVALID_FIELD_IN_CDB);
    }
    for form in same(0, 0, 1) {
        rig.run(A, &form, 0, &[0; 512]).good();
    }
}

#[test]
fn unmapped_blocks_read_as_zeros() {
    let mut rig = Rig::new();
    rig.write(0, &[0xff; 512 * 512]);
    unmap(&mut rig, &[(0, 1), (5, 0), (10, 3), (128, 256)]).good();
    let data = rig.read(0, 512);
    for (lba, block) in data.as_chunks::<512>().0.iter().enumerate() {
        let freed = lba == 0 || (10..13).contains(&lba) || (128..384).contains(&lba);
        assert_eq!(*block == [0; 512], freed, "{lba}");
    }
    assert_eq!(status(&mut rig, 0, 1000)[..3], [(0, 128, 0), (128, 256, 1), (384, 128, 0)]);
}

#[test]
fn descriptors_are_all_checked_before_any_is_done() {
    let mut rig = Rig::new();
    rig.write(0, &[1; 512]);
    unmap(&mut rig, &[(0, 1), (BLOCKS, 1)]).illegal(Asc::LBA_OUT_OF_RANGE);
    unmap(&mut rig, &[(0, 1), (u64::MAX, 2)]).illegal(Asc::LBA_OUT_OF_RANGE);
    assert_eq!(rig.read(0, 1), [1; 512]);
    unmap(&mut rig, &[(BLOCKS, 0)]).good();
    unmap(&mut rig, &[(BLOCKS + 1, 0)]).illegal(Asc::LBA_OUT_OF_RANGE);
}

#[test]
fn parameter_lists_of_every_length_are_judged() {
    let mut rig = Rig::new();
    let list = unmap_list(&[(0, 1)]);
    rig.run(A, &unmap_cdb(0), 0, &[]).good();
    for len in 1..list.len() {
        rig.run(A, &unmap_cdb(len), 0, &list[..len]).illegal(Asc::PARAMETER_LIST_LENGTH_ERROR);
        rig.run(A, &unmap_cdb(list.len()), 0, &list[..len]).illegal(Asc::PARAMETER_LIST_LENGTH_ERROR);
    }
    unmap(&mut rig, &[]).good();
    unmap(&mut rig, &[(1, 0); 256]).good();
    unmap(&mut rig, &[(1, 0); 257]).illegal(Asc::INVALID_FIELD_IN_PARAMETER_LIST);
    // More blocks than MAXIMUM UNMAP LBA COUNT, regardless of the medium.
    unmap(&mut rig, &[(0, u32::MAX)]).illegal(Asc::INVALID_FIELD_IN_PARAMETER_LIST);
    // A remainder shorter than a descriptor is ignored.
    let mut odd = list.clone();
    odd[3] = 15;
    rig.write(0, &[1; 512]);
    rig.run(A, &unmap_cdb(odd.len()), 0, &odd).good();
    assert_eq!(rig.read(0, 1), [1; 512]);
}

#[test]
fn blocks_are_neither_said_to_be_anchored_nor_anchored() {
    let mut rig = Rig::new();
    let page = rig.run(A, &[op::INQUIRY, 1, 0xb2, 0, 64, 0], 64, &[]).good();
    assert_eq!(page[5] & 0x02, 0, "ANC_SUP");
    rig.write(0, &[1; 512]);
    let list = unmap_list(&[(0, 1)]);
    let mut cdb = unmap_cdb(list.len());
    cdb[1] = 1;
    rig.run(A, &cdb, 0, &list).illegal(Asc::INVALID_FIELD_IN_CDB);
    for flags in [0x10, 0x18] {
        for form in same(flags, 0, 1) {
            rig.run(A, &form, 0, &[0; 512]).illegal(Asc::INVALID_FIELD_IN_CDB);
        }
    }
    assert_eq!(rig.read(0, 1), [1; 512]);
}

#[test]
fn a_fully_provisioned_unit_has_no_unmap_and_all_its_blocks() {
    let mut rig = thick();
    unmap(&mut rig, &[(0, 1)]).illegal(Asc::INVALID_COMMAND_OPERATION_CODE);
    assert_eq!(status(&mut rig, 5, 24), [(5, u32::try_from(BLOCKS).unwrap() - 5, 0)]);
}

#[test]
fn status_starts_where_asked_and_stops_where_there_is_no_room() {
    let mut rig = Rig::new();
    for chunk in [0, 2, 4] {
        rig.write(chunk * CHUNK, &[1; 512]);
    }
    assert_eq!(status(&mut rig, 5, 24), [(5, 123, 0)]);
    assert_eq!(status(&mut rig, 5, 40), [(5, 123, 0), (128, 128, 1)]);
    let long = cdb_32(long::GET_LBA_STATUS_32, 0, 5, 1000);
    let all = decode(&rig.run(A, &long, 1000, &[]).good());
    assert_eq!(all[0], (5, 123, 0));
    assert_eq!(all.iter().map(|(_, blocks, _)| u64::from(*blocks)).sum::<u64>(), BLOCKS - 5);
    let mut scanned = long;
    scanned[23] = 200;
    assert_eq!(decode(&rig.run(A, &scanned, 1000, &[]).good()), [(5, 123, 0), (128, 77, 1)]);
    // An allocation length below one descriptor: the data is cut.
    let short = rig.run(A, &cdb_16(op::SERVICE_ACTION_IN_16, 0x12, 0, 8), 8, &[]);
    assert_eq!(short.good().len(), 8);
    for lba in [BLOCKS, BLOCKS + 1, 1 << 63, u64::MAX] {
        rig.run(A, &cdb_16(op::SERVICE_ACTION_IN_16, 0x12, lba, 24), 24, &[]).illegal(Asc::LBA_OUT_OF_RANGE);
    }
}

#[test]
fn blocks_larger_than_what_the_medium_frees_are_mapped_if_any_of_them_is() {
    // Chunks of 64 KiB and blocks of 64 KiB, on a medium whose chunks do not start with its blocks.
    let config = UnitConfig { block_size: base::units::BlockSize::from_bytes(65536).unwrap(), ..config() };
    let mut rig = Rig::with(config, Box::new(Ram::new(16 * 65536)));
    rig.write(3, &vec![1; 16 * PAGE]);
    assert_eq!(status(&mut rig, 0, 1000), [(0, 3, 1), (3, 1, 0), (4, 12, 1)]);
}

#[test]
fn no_blocks_can_be_refused() {
    let claims = InquiryOverrides { write_same_to_end: false, ..InquiryOverrides::default() };
    let mut rig = Rig::with(UnitConfig { overrides: claims, ..config() }, Box::new(Ram::new(BLOCKS * 512)));
    let block = pattern(512, 5);
    for flags in [0, 0x08] {
        for form in same(flags, 0, 0) {
            rig.run(A, &form, 0, &block).illegal(Asc::INVALID_FIELD_IN_CDB);
        }
        for form in same(flags, 9, 1) {
            rig.run(A, &form, 0, &block).good();
        }
    }
    // Also without a Data-Out buffer.
    rig.run(A, &cdb_16(op::WRITE_SAME_16, 1, 0, 0), 0, &[]).illegal(Asc::INVALID_FIELD_IN_CDB);
    assert_eq!(rig.read(0, 9), vec![0; 9 * 512]);
    assert_eq!(rig.read(9, 1), block);
    let page = rig.run(A, &[op::INQUIRY, 1, 0xb0, 0, 64, 0], 64, &[]).good();
    assert_eq!(page[4], 1, "WSNZ");
}

#[test]
fn a_unit_that_promises_no_zeros_says_so_everywhere_and_still_keeps_what_was_sent() {
    let claims = InquiryOverrides { unmapped_zeros: false, ..InquiryOverrides::default() };
    let mut rig = Rig::with(UnitConfig { overrides: claims, ..config() }, Box::new(Ram::new(BLOCKS * 512)));
    let capacity = rig.run(A, &cdb_16(op::SERVICE_ACTION_IN_16, 0x10, 0, 32), 32, &[]).good();
    assert_eq!(capacity[14] & 0xc0, 0x80, "LBPME without LBPRZ");
    let page = rig.run(A, &[op::INQUIRY, 1, 0xb2, 0, 64, 0], 64, &[]).good();
    assert_eq!(page[5], 0xe0, "LBPU, LBPWS, LBPWS10, no LBPRZ, no ANC_SUP");
    let list = unmap_list(&[(0, 8)]);
    let mut anchored = unmap_cdb(list.len());
    anchored[1] = 1;
    rig.run(A, &anchored, 0, &list).illegal(Asc::INVALID_FIELD_IN_CDB);
    rig.run(A, &cdb_16(op::WRITE_SAME_16, 0x18, 0, 8), 0, &[0; 512]).illegal(Asc::INVALID_FIELD_IN_CDB);
    unmap(&mut rig, &[(0, 8)]).good();
    // A block that is not all zeros is written even with the UNMAP bit.
    let block = pattern(512, 5);
    for form in same(0x08, 4, 300) {
        rig.run(A, &form, 0, &block).good();
        assert!(rig.read(4, 300) == block.repeat(300));
    }
}
