//! The settings that each nexus has of its own: the block length and logical block protection.

use super::*;
use crate::contract::Tmf;

/// "123456789" with its CRC32C.
const GUARDED: &[u8] = b"123456789\x83\x92\x06\xe3";

/// CRC32C with LBP_W and LBP_R, in a parameter list of MODE SELECT(10).
fn protection() -> Vec<u8> {
    let mut list = vec![0, 0, 0, 0x10, 0, 0, 0, 0, 0x4a, 0xf0, 0, 28, 2, 4, 0xc0];
    list.resize(8 + 32, 0);
    list
}

impl Rig {
    fn block_len_of(&mut self, nexus: NexusId) -> Vec<u8> {
        self.run(nexus, &[0x1a, 0, 0, 0, 12, 0], 12, &[]).good()[9..].to_vec()
    }

    /// Returns the method, the length of guards, and LBP_W with LBP_R.
    fn protection_of(&mut self, nexus: NexusId) -> Vec<u8> {
        self.run(nexus, &[0x5a, 8, 0x0a, 0xf0, 0, 0, 0, 0, 255, 0], 255, &[]).good()[12..15].to_vec()
    }

    fn protect_blocks(&mut self, nexus: NexusId) {
        self.run(nexus, &[0x55, 0x10, 0, 0, 0, 0, 0, 0, 40, 0], 0, &protection()).good();
    }

    #[track_caller]
    fn has_defaults(&mut self, nexus: NexusId) {
        assert_eq!(self.block_len_of(nexus), [0; 3]);
        assert_eq!(self.protection_of(nexus), [0; 3]);
    }
}

#[test]
fn a_block_length_is_that_of_the_nexus_that_has_set_it() {
    let mut rig = tape();
    rig.set_block_len(512);
    rig.test_ready(B).good();
    assert_eq!(rig.block_len_of(A), [0, 2, 0]);
    assert_eq!(rig.block_len_of(B), [0; 3]);
    let data = pattern(1024, 1);
    let write = cdb_6(op::WRITE_6, 1, 2);
    rig.run(B, &write, 0, &data).illegal(Asc::INVALID_FIELD_IN_CDB);
    rig.run(A, &write, 0, &data).good();
    rig.rewind();
    rig.run(B, &cdb_6(op::READ_6, 1, 1), 512, &[]).illegal(Asc::INVALID_FIELD_IN_CDB);
    // SILI: only a host with a block length hears that the block is longer.
    let short = cdb_6(op::READ_6, 2, 100);
    rig.run(A, &short, 100, &[]).stopped(WRONG_LENGTH, ILI, Some(412_u32.wrapping_neg()));
    assert_eq!(rig.run(B, &short, 100, &[]).good(), data[512..612]);
}

#[test]
fn blocks_have_guards_for_the_host_that_has_asked_for_them_only() {
    let (mut rig, _) = with(Kind::USUAL);
    rig.protect_blocks(A);
    rig.test_ready(B).good();
    rig.write_block(GUARDED).good();
    rig.run(B, &cdb_6(op::WRITE_6, 0, 9), 0, b"abcdefghi").good();
    rig.rewind();
    let read = cdb_6(op::READ_6, 2, 20);
    assert_eq!(rig.run(B, &read, 20, &[]).good(), b"123456789");
    let block = rig.run(A, &read, 20, &[]).good();
    assert_eq!((block.len(), &block[..9]), (13, &b"abcdefghi"[..]));
    rig.rewind();
    assert_eq!(rig.run(A, &read, 20, &[]).good(), GUARDED);
    // VERIFY counts the guards of the host that sends it.
    rig.rewind();
    rig.run(A, &cdb_6(op::VERIFY_6, 0, 13), 0, &[]).good();
    rig.run(B, &cdb_6(op::VERIFY_6, 0, 9), 0, &[]).good();
}

#[test]
fn the_settings_of_a_nexus_end_with_it() {
    let (mut rig, _) = with(Kind::USUAL);
    for id in [A, B] {
        rig.protect_blocks(id);
    }
    rig.set_block_len(512);
    rig.unit.nexus_lost(Instant::ORIGIN, A);
    rig.unit.nexus_established(Instant::ORIGIN, crate::testing::nexus(A));
    rig.test_ready(A).check(SenseKey::UNIT_ATTENTION, Asc::I_T_NEXUS_LOSS_OCCURRED);
    rig.has_defaults(A);
    assert_eq!(rig.protection_of(B), [2, 4, 0xc0], "the other nexus keeps its own");
    rig.protect_blocks(A);
    rig.set_block_len(512);
    rig.manage(A, Tmf::NexusReset);
    rig.test_ready(A).check(SenseKey::UNIT_ATTENTION, Asc::I_T_NEXUS_LOSS_OCCURRED);
    rig.has_defaults(A);
    assert_eq!(rig.protection_of(B), [2, 4, 0xc0]);
    rig.unit.reset(Instant::ORIGIN, crate::unit::Reset::LogicalUnit);
    rig.test_ready(B);
    rig.has_defaults(B);
}

#[test]
fn the_buffered_mode_is_that_of_all_hosts() {
    let mut rig = tape();
    let list = [0, 0, 0, 8, 0, 0, 0, 0, 0, 0, 2, 0];
    rig.run(A, &[0x15, 0x10, 0, 0, 12, 0], 0, &list).good();
    rig.test_ready(B).check(SenseKey::UNIT_ATTENTION, Asc::MODE_PARAMETERS_CHANGED);
    assert_eq!(rig.run(B, &[0x1a, 0, 0, 0, 12, 0], 12, &[]).good()[2..], [0, 8, 0x5e, 0, 0, 0, 0, 0, 0, 0]);
}

#[test]
fn the_mode_page_policy_says_which_page_each_nexus_has() {
    let mut rig = tape();
    let page = rig.query(&[0x12, 1, 0x87, 0, 255, 0]);
    assert_eq!(page, [1, 0x87, 0, 8, 0x0a, 0xf0, 3, 0, 0x3f, 0xff, 0, 0]);
}
