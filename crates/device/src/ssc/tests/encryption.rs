//! SECURITY PROTOCOL IN and OUT, and what data encryption does to WRITE and READ.

use super::*;

use crate::testing::nexus;

pub(super) const KEY: [u8; 32] = [0x11; 32];
const OTHER: [u8; 32] = [0x22; 32];

const CHANGED: Asc = Asc::DATA_ENCRYPTION_PARAMETERS_CHANGED;
const UNABLE: (SenseKey, Asc) = (SenseKey::DATA_PROTECT, Asc::UNABLE_TO_DECRYPT_DATA);
const UNENCRYPTED: (SenseKey, Asc) =
    (SenseKey::DATA_PROTECT, Asc::UNENCRYPTED_DATA_ENCOUNTERED_WHILE_DECRYPTING);
const WRONG_KEY: (SenseKey, Asc) = (SenseKey::DATA_PROTECT, Asc::INCORRECT_DATA_ENCRYPTION_KEY);

/// SCOPE in byte 4.
const PUBLIC: u8 = 0x00;
const LOCAL: u8 = 0x20;
pub(super) const ALL: u8 = 0x40;
const LOCK: u8 = 0x01;

/// Modes of encryption and decryption.
const OFF: (u8, u8) = (0, 0);
pub(super) const ENCRYPT: (u8, u8) = (2, 2);
const MIXED: (u8, u8) = (2, 3);
const RAW: (u8, u8) = (1, 1);

/// Returns a drive that encrypts, and its folder.
pub(super) fn encrypting(kind: Kind) -> (Rig, Folder) {
    let (mut rig, folder) = with(kind);
    rig.unit.seed(&[5; 32]);
    (rig, folder)
}

/// Returns the page Set Data Encryption.
pub(super) fn page(
    control: u8,
    flags: u8,
    (encryption, decryption): (u8, u8),
    key: &[u8],
    kads: &[u8],
) -> Vec<u8> {
    let mut page = vec![0, 0x10, 0, 0, control, flags, encryption, decryption, 1, 0, 0];
    page.extend_from_slice(&[0; 7]);
    page.extend_from_slice(&u16::try_from(key.len()).unwrap().to_be_bytes());
    page.extend_from_slice(key);
    page.extend_from_slice(kads);
    let len = u16::try_from(page.len() - 4).unwrap().to_be_bytes();
    page[2..4].copy_from_slice(&len);
    page
}

impl Rig {
    #[track_caller]
    pub(super) fn security_out(&mut self, nexus: NexusId, list: &[u8]) -> Reply {
        let [a, b] = u16::try_from(list.len()).unwrap().to_be_bytes();
        self.run(nexus, &[0xb5, 0x20, 0, 0x10, 0, 0, 0, 0, a, b, 0, 0], 0, list)
    }

    /// Sets a key for all nexuses.
    #[track_caller]
    fn set_key(&mut self, modes: (u8, u8), key: &[u8]) {
        self.security_out(A, &page(ALL, 0, modes, key, &[])).good();
    }

    #[track_caller]
    pub(super) fn security_in(&mut self, nexus: NexusId, code: u8) -> Vec<u8> {
        self.run(nexus, &[0xa2, 0x20, 0, code, 0, 0, 0, 0, 0x20, 0, 0, 0], 8192, &[]).good()
    }

    /// Returns COMPRESSION STATUS with ENCRYPTION STATUS, and the flags, of the block at the position.
    #[track_caller]
    fn next_block(&mut self) -> (u8, u8) {
        let data = self.security_in(A, 0x21);
        assert_eq!(u64::from_be_bytes(data[4..12].try_into().unwrap()), self.position().1);
        (data[12], data[14])
    }
}

#[test]
fn the_pages_are_those_of_the_standard() {
    let (mut rig, _) = encrypting(Kind::USUAL);
    let protocols = rig.run(A, &[0xa2, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0], 256, &[]).good();
    assert_eq!(protocols, [0, 0, 0, 0, 0, 0, 0, 2, 0, 0x20]);
    assert_eq!(rig.run(A, &[0xa2, 0, 0, 1, 0, 0, 0, 0, 1, 0, 0, 0], 256, &[]).good(), [0; 4]);
    let supported = [0, 0, 0, 16, 0, 0, 0, 1, 0, 0x10, 0, 0x11, 0, 0x12, 0, 0x20, 0, 0x21, 0, 0x30];
    assert_eq!(rig.security_in(A, 0x00), supported);
    assert_eq!(rig.security_in(A, 0x01), [0, 1, 0, 2, 0, 0x10]);
    let mut capabilities = vec![0, 0x10, 0, 40, 1];
    capabilities.extend_from_slice(&[0; 15]);
    capabilities.extend_from_slice(&[1, 0, 0, 20, 0xba, 0x1c, 0, 32, 0, 12, 0, 32, 0x29]);
    capabilities.extend_from_slice(&[0, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0x14]);
    assert_eq!(rig.security_in(A, 0x10), capabilities);
    assert_eq!(rig.security_in(A, 0x11), [0, 0x11, 0, 1, 0]);
    assert_eq!(rig.security_in(A, 0x12), [0, 0x12, 0, 12, 1, 7, 0, 7, 0, 0, 0, 0, 0, 0, 0, 0]);
    let random = [rig.security_in(A, 0x30), rig.security_in(A, 0x30)];
    assert_eq!(random[0][..4], [0, 0x30, 0, 32]);
    assert_eq!(random[0].len(), 36);
    assert_ne!(random[0], random[1]);
    // A length in units of 512 bytes, and one that is too short.
    let cdb = |units, len| [0xa2, 0x20, 0, 0x01, units, 0, 0, 0, 0, len, 0, 0];
    assert_eq!(rig.run(A, &cdb(0x80, 1), 512, &[]).good().len(), 6);
    assert_eq!(rig.run(A, &cdb(0, 5), 512, &[]).good(), [0, 1, 0, 2, 0]);
    for (protocol, code) in [(0x20, 0x31), (0x20, 2), (0, 2), (0x21, 0), (0xef, 0)] {
        let cdb = [0xa2, protocol, 0, code, 0, 0, 0, 0, 1, 0, 0, 0];
        rig.run(A, &cdb, 256, &[]).illegal(Asc::INVALID_FIELD_IN_CDB);
    }
    // Without random numbers there is no encryption.
    tape().run(A, &cdb(0, 5), 512, &[]).illegal(Asc::INVALID_COMMAND_OPERATION_CODE);
}

#[test]
fn the_status_is_that_of_the_parameters_in_use() {
    let (mut rig, _) = encrypting(Kind::USUAL);
    let mut off = vec![0, 0x20, 0, 20, 0, 0, 0, 0, 0, 0, 0, 0, 0x10];
    off.extend_from_slice(&[0; 11]);
    assert_eq!(rig.security_in(A, 0x20), off);
    let kads = [0, 0, 0, 3, b'k', b'e', b'y', 1, 0, 0, 2, 7, 8];
    let mut list = page(ALL, 0x40, MIXED, &KEY, &kads);
    list[10] = 2;
    rig.security_out(A, &list).good();
    let mut on = vec![0, 0x20, 0, 33, 0x42, 2, 3, 1, 0, 0, 0, 1, 0x13, 2];
    on.extend_from_slice(&[0; 10]);
    on.extend_from_slice(&kads);
    assert_eq!(rig.security_in(A, 0x20), on);
    on[4] = 0x02;
    assert_eq!(rig.security_in(B, 0x20), on, "B uses what is shared");
    rig.write_block(&pattern(100, 1)).good();
    assert_eq!(rig.security_in(A, 0x20)[12], 0x1b, "the cartridge holds encrypted records");
    rig.set_key(OFF, &[]);
    rig.test_ready(B).check(SenseKey::UNIT_ATTENTION, CHANGED);
    let status = rig.security_in(A, 0x20);
    assert_eq!(status[4..13], [0x42, 0, 0, 0, 0, 0, 0, 2, 0x18]);
}

#[test]
fn blocks_come_back_with_their_key_only() {
    for is_compressing in [false, true] {
        let (mut rig, folder) = encrypting(Kind::USUAL);
        if is_compressing {
            let list = [0, 0, 0x10, 0, 0x0f, 14, 0x80, 0x80, 0, 0, 0, 1, 0, 0, 0, 1, 0, 0, 0, 0];
            let mut list = list;
            list[6] = 0xc0;
            rig.run(A, &[0x15, 0x10, 0, 0, 20, 0], 0, &list).good();
            rig.test_ready(B).check(SenseKey::UNIT_ATTENTION, Asc::MODE_PARAMETERS_CHANGED);
        }
        let text = vec![b'x'; 5000];
        rig.write_block(&text).good();
        rig.set_key(ENCRYPT, &KEY);
        rig.write_block(&text).good();
        rig.mark(1).good();
        let stored = folder.after_power_loss();
        let plain = if is_compressing { 0 } else { 5000 / 16 };
        assert_eq!(stored.count_of(&[b'x'; 16]), plain, "the second block is not readable");
        rig.rewind();
        let compressed = if is_compressing { 0x40 } else { 0x30 };
        assert_eq!(rig.next_block(), (compressed | 3, 0));
        rig.read_block(5000).stopped(UNENCRYPTED, 0, Some(5000));
        assert_eq!(rig.position().1, 0, "the position stays before the block");
        rig.set_key(MIXED, &KEY);
        assert_eq!(rig.read_block(5000).good(), text);
        assert_eq!(rig.next_block(), (compressed | 5, 1));
        rig.set_key(MIXED, &OTHER);
        assert_eq!(rig.next_block(), (compressed | 6, 1));
        rig.read_block(5000).stopped(WRONG_KEY, 0, Some(5000));
        rig.set_key(OFF, &[]);
        assert_eq!(rig.next_block(), (compressed | 6, 1));
        rig.read_block(5000).stopped(UNABLE, 0, Some(5000));
        assert_eq!(rig.position().1, 1, "the position stays before the block");
        rig.set_key((0, 2), &KEY);
        assert_eq!(rig.read_block(5000).good(), text);
        assert_eq!(rig.next_block(), (0x22, 0), "a filemark is no block");
        rig.read_block(10).stopped(FILEMARK, MARK, Some(10));
        assert_eq!(rig.next_block(), (0x22, 0), "nor is the end of data");
    }
}

#[test]
fn lengths_are_those_of_the_plain_data() {
    let (mut rig, _) = encrypting(Kind::USUAL);
    rig.set_key(MIXED, &KEY);
    rig.write_block(&pattern(300, 1)).good();
    rig.rewind();
    let short = rig.read_block(1000);
    short.stopped(WRONG_LENGTH, ILI, Some(700));
    assert_eq!(short.data, pattern(300, 1));
    rig.set_block_len(100);
    rig.rewind();
    let blocks: Vec<u8> = (0..4).flat_map(|seed| pattern(100, seed)).collect();
    rig.run(A, &cdb_6(op::WRITE_6, 1, 4), 0, &blocks).good();
    rig.rewind();
    assert_eq!(rig.run(A, &cdb_6(op::READ_6, 1, 4), 400, &[]).good(), blocks);
    // The first two of four can be read, and the position is behind them.
    rig.rewind();
    rig.run(A, &cdb_6(op::SPACE_6, 0, 2), 0, &[]).good();
    rig.set_key(MIXED, &OTHER);
    rig.run(A, &cdb_6(op::WRITE_6, 1, 2), 0, &blocks[..200]).good();
    rig.set_key(MIXED, &KEY);
    rig.rewind();
    let part = rig.run(A, &cdb_6(op::READ_6, 1, 4), 400, &[]);
    part.stopped(WRONG_KEY, 0, Some(2));
    assert_eq!(part.data, blocks[..200]);
    assert_eq!(rig.position().1, 2);
    rig.run(A, &cdb_6(op::VERIFY_6, 1, 1), 0, &[]).stopped(WRONG_KEY, 0, Some(1));
}

#[test]
fn a_record_survives_a_restart_and_its_key_does_not() {
    let (mut rig, folder) = encrypting(Kind::USUAL);
    rig.set_key(MIXED, &KEY);
    rig.write_block(&pattern(70_000, 1)).good();
    rig.mark(1).good();
    let mut rig = Rig::with(drive(), Box::new(folder.after_power_loss()));
    rig.unit.seed(&[6; 32]);
    rig.read_block(70_000).stopped(UNABLE, 0, Some(70_000));
    rig.set_key(MIXED, &KEY);
    assert_eq!(rig.read_block(70_000).good(), pattern(70_000, 1));
    // 0224h: the first encrypted object.
    let data = rig.query(&[0x8c, 0, 0, 0, 0, 0, 0, 0, 0x02, 0x24, 0, 0, 1, 0, 0, 0]);
    assert_eq!(data[4..17], [2, 0x24, 0x80, 0, 8, 0, 0, 0, 0, 0, 0, 0, 0]);
}

#[test]
fn raw_blocks_are_copied_without_a_key() {
    let (mut rig, _) = encrypting(Kind::USUAL);
    let kads = [0, 0, 0, 3, b'k', b'e', b'y'];
    // RDMC 10b: raw reads are allowed.
    rig.security_out(A, &page(ALL, 0x20, MIXED, &KEY, &kads)).good();
    rig.write_block(&pattern(1000, 1)).good();
    rig.rewind();
    rig.set_key(RAW, &[]);
    let raw = rig.read_block(1000 + 51).good();
    assert_eq!(raw[..8], [1, 4, 0, 51, 0, 0, 3, 0xe8]);
    rig.write_block(&raw).good();
    rig.space(0, -1).good();
    let data = rig.security_in(A, 0x21);
    assert_eq!(data[12..16], [0x36, 1, 2, 0], "written in EXTERNAL mode");
    assert_eq!(data[16..], [0, 1, 0, 3, b'k', b'e', b'y']);
    rig.set_key(MIXED, &KEY);
    assert_eq!(rig.read_block(1000).good(), pattern(1000, 1));
    // CEEM 10b: records that were written in EXTERNAL mode are refused.
    rig.space(0, -1).good();
    rig.security_out(A, &page(ALL, 0x80, MIXED, &KEY, &[])).good();
    assert_eq!(rig.next_block().0, 0x36);
    rig.read_block(1000).stopped(UNABLE, 0, Some(1000));
    rig.security_out(A, &page(ALL, 0xc0, MIXED, &KEY, &[])).good();
    assert_eq!(rig.read_block(1000).good(), pattern(1000, 1));
    // What was written without RDMC is not read in RAW mode, and what is no raw block is not written.
    rig.set_key(MIXED, &KEY);
    rig.write_block(&pattern(1000, 1)).good();
    rig.space(0, -1).good();
    rig.set_key(RAW, &[]);
    rig.read_block(2000).stopped(UNABLE, 0, Some(2000));
    let refused = rig.write_block(&pattern(1000, 1));
    refused.check(SenseKey::DATA_PROTECT, Asc::SECURITY_ERROR);
    assert_eq!(rig.position().1, 2);
}

#[test]
fn scopes_are_those_of_the_standard() {
    let (mut rig, _) = encrypting(Kind::USUAL);
    rig.security_in(B, 0x20);
    rig.security_out(A, &page(LOCAL, 0, MIXED, &KEY, &[])).good();
    assert_eq!(rig.security_in(A, 0x20)[4..12], [0x21, 2, 3, 1, 0, 0, 0, 1]);
    assert_eq!(rig.security_in(B, 0x20)[4..8], [0, 0, 0, 0], "the key of A is its own");
    rig.write_block(&pattern(100, 1)).good();
    rig.rewind();
    rig.run(B, &cdb_6(op::READ_6, 0, 100), 100, &[]).check(UNABLE.0, UNABLE.1);
    // B shares a key, and A does not use it.
    rig.security_out(B, &page(ALL, 0, MIXED, &OTHER, &[])).good();
    assert_eq!(rig.security_in(A, 0x20)[4..12], [0x21, 2, 3, 1, 0, 0, 0, 1]);
    assert_eq!(rig.read_block(100).good(), pattern(100, 1));
    rig.security_out(A, &page(PUBLIC, 0, OFF, &[], &[])).good();
    assert_eq!(rig.security_in(A, 0x20)[4..12], [0x02, 2, 3, 1, 0, 0, 0, 2]);
    // A shares another one: B is told, and uses it.
    rig.security_out(A, &page(ALL, 0, ENCRYPT, &KEY, &[])).good();
    rig.test_ready(B).check(SenseKey::UNIT_ATTENTION, CHANGED);
    assert_eq!(rig.security_in(B, 0x20)[4..12], [0x02, 2, 2, 1, 0, 0, 0, 3]);
    rig.test_ready(A).good();
    // A key of a nexus that is lost is gone.
    rig.security_out(B, &page(LOCAL, 0, MIXED, &OTHER, &[])).good();
    rig.unit.nexus_lost(Instant::ORIGIN, B);
    rig.unit.nexus_established(Instant::ORIGIN, nexus(B));
    rig.test_ready(B).check(SenseKey::UNIT_ATTENTION, Asc::I_T_NEXUS_LOSS_OCCURRED);
    assert_eq!(rig.security_in(B, 0x20)[4..8], [0x02, 2, 2, 1]);
    // A logical unit reset keeps keys, a hard reset forgets them.
    rig.unit.reset(Instant::ORIGIN, crate::unit::Reset::LogicalUnit);
    rig.test_ready(A);
    assert_eq!(rig.security_in(A, 0x20)[4..8], [0x42, 2, 2, 1]);
    rig.unit.reset(Instant::ORIGIN, crate::unit::Reset::Target);
    rig.test_ready(A);
    assert_eq!(rig.security_in(A, 0x20)[5..8], [0, 0, 0]);
}

#[test]
fn a_locked_nexus_does_not_write_with_the_key_of_another() {
    let (mut rig, _) = encrypting(Kind::USUAL);
    rig.security_out(A, &page(ALL | LOCK, 0, MIXED, &KEY, &[])).good();
    rig.write_block(&pattern(100, 1)).good();
    rig.security_out(B, &page(ALL, 0, MIXED, &OTHER, &[])).good();
    rig.test_ready(A).check(SenseKey::UNIT_ATTENTION, CHANGED);
    let changed = (SenseKey::DATA_PROTECT, Asc::DATA_ENCRYPTION_KEY_INSTANCE_COUNTER_HAS_CHANGED);
    rig.write_block(&pattern(100, 1)).stopped(changed, 0, Some(100));
    rig.rewind();
    rig.read_block(100).stopped(WRONG_KEY, 0, Some(100));
    rig.security_out(A, &page(PUBLIC, 0, OFF, &[], &[])).good();
    rig.write_block(&pattern(100, 1)).good();
}

#[test]
fn keys_are_forgotten_when_they_shall_be() {
    const CKOD: u8 = 0x04;
    const CKORP: u8 = 0x02;
    const CKORL: u8 = 0x01;
    let mode_of = |rig: &mut Rig| rig.security_in(A, 0x20)[5];
    let pr_out = |rig: &mut Rig, nexus, action: u8, list: [u64; 2]| {
        let list = [list[0].to_be_bytes(), list[1].to_be_bytes(), [0; 8]].concat();
        rig.run(nexus, &[0x5f, action, 1, 0, 0, 0, 0, 0, 24, 0], 0, &list).good();
    };
    // Unloading.
    let (mut rig, _) = encrypting(Kind::USUAL);
    rig.security_in(B, 0x20);
    rig.security_out(A, &page(ALL, CKOD, MIXED, &KEY, &[])).good();
    rig.test_ready(B).check(SenseKey::UNIT_ATTENTION, CHANGED);
    rig.run(A, &[0x1b, 0, 0, 0, 0, 0], 0, &[]).good();
    rig.test_ready(B).check(SenseKey::UNIT_ATTENTION, CHANGED);
    assert_eq!(mode_of(&mut rig), 0);
    let refused = rig.security_out(A, &page(ALL, CKOD, MIXED, &KEY, &[]));
    refused.illegal(Asc::INVALID_FIELD_IN_PARAMETER_LIST);
    rig.security_out(A, &page(ALL, 0, MIXED, &KEY, &[])).good();
    rig.test_ready(B).check(SenseKey::UNIT_ATTENTION, CHANGED);
    rig.run(A, &[0x1b, 0, 0, 0, 1, 0], 0, &[]).good();
    rig.run(A, &[0x1b, 0, 0, 0, 0, 0], 0, &[]).good();
    assert_eq!(mode_of(&mut rig), 2, "a key without CKOD stays");
    // The loss of a reservation: of RESERVE, and of a persistent one.
    for flag in [CKORL, CKORP] {
        let (mut rig, _) = encrypting(Kind::USUAL);
        let refused = rig.security_out(A, &page(ALL, flag, MIXED, &KEY, &[]));
        refused.illegal(Asc::INVALID_FIELD_IN_PARAMETER_LIST);
        rig.run(A, &[0x16, 0, 0, 0, 0, 0], 0, &[]).good();
        rig.security_out(A, &page(ALL, flag, MIXED, &KEY, &[])).good();
        rig.run(A, &[0x17, 0, 0, 0, 0, 0], 0, &[]).good();
        assert_eq!(mode_of(&mut rig), if flag == CKORL { 0 } else { 2 });
        // Registered by both, reserved by A, preempted by B.
        pr_out(&mut rig, A, 0, [0, 1]);
        pr_out(&mut rig, B, 0, [0, 2]);
        pr_out(&mut rig, A, 1, [1, 0]);
        rig.security_out(A, &page(ALL, flag, MIXED, &KEY, &[])).good();
        assert_eq!(mode_of(&mut rig), 2);
        pr_out(&mut rig, B, 4, [2, 1]);
        rig.test_ready(A).check(SenseKey::UNIT_ATTENTION, Asc::REGISTRATIONS_PREEMPTED);
        rig.test_ready(A).check(SenseKey::UNIT_ATTENTION, CHANGED);
        assert_eq!(mode_of(&mut rig), 0, "preempted");
    }
}

#[test]
fn wrong_lists_change_nothing() {
    let (mut rig, _) = encrypting(Kind::USUAL);
    let good = page(ALL, 0, MIXED, &KEY, &[]);
    let change = |at: usize, to: u8| {
        let mut list = good.clone();
        list[at] = to;
        list
    };
    let long = |kind: u8, len: u8| {
        let value = vec![7; usize::from(len)];
        page(ALL, 0, MIXED, &KEY, &[&[kind, 0, 0, len][..], &value].concat())
    };
    let lists = [
        change(1, 0x11),
        change(4, 0x60),
        change(5, 0x10),
        change(5, 0x08),
        change(6, 3),
        change(7, 4),
        change(8, 0),
        change(8, 2),
        change(9, 1),
        change(10, 3),
        page(ALL, 0, MIXED, &KEY[..31], &[]),
        page(ALL, 0, MIXED, &[], &[]),
        page(ALL, 0, (2, 0), &[], &[]),
        long(0, 33),
        long(1, 13),
        long(2, 12),
        long(3, 4),
        page(ALL, 0, MIXED, &KEY, &[1, 0, 0, 1, 7, 0, 0, 0, 1, 7]),
        page(ALL, 0, MIXED, &KEY, &[0, 0, 0, 1, 7, 0, 0, 0, 1, 7]),
    ];
    for list in lists {
        let reply = rig.security_out(A, &list);
        reply.illegal(Asc::INVALID_FIELD_IN_PARAMETER_LIST);
    }
    for len in 1..good.len() {
        rig.security_out(A, &good[..len]).illegal(Asc::PARAMETER_LIST_LENGTH_ERROR);
    }
    for cut in [page(ALL, 0, MIXED, &KEY, &[0, 0, 0]), page(ALL, 0, MIXED, &KEY, &[0, 0, 0, 5, 1])] {
        rig.security_out(A, &cut).illegal(Asc::PARAMETER_LIST_LENGTH_ERROR);
    }
    assert_eq!(rig.security_in(A, 0x20)[4..12], [0; 8]);
    rig.security_out(A, &[]).good();
    rig.run(A, &[0xb5, 0x20, 0, 0x11, 0, 0, 0, 0, 0, 4, 0, 0], 0, &[0; 4]).illegal(Asc::INVALID_FIELD_IN_CDB);
    rig.run(A, &[0xb5, 0, 0, 0x10, 0, 0, 0, 0, 0, 4, 0, 0], 0, &[0; 4]).illegal(Asc::INVALID_FIELD_IN_CDB);
    // Padding behind the page, as in a length of units of 512 bytes.
    let mut padded = good;
    padded.resize(512, 0);
    rig.run(A, &[0xb5, 0x20, 0, 0x10, 0x80, 0, 0, 0, 0, 1, 0, 0], 0, &padded).good();
    assert_eq!(rig.security_in(A, 0x20)[4..8], [0x42, 2, 3, 1]);
}

#[test]
fn a_record_that_somebody_changed_is_not_believed() {
    let (mut rig, folder) = encrypting(Kind::USUAL);
    rig.set_key(MIXED, &KEY);
    rig.write_block(&pattern(1000, 1)).good();
    rig.mark(1).good();
    rig.rewind();
    // A byte of the encrypted data: the checksum of the cartridge finds it first.
    rig.run(A, &[0x1b, 0, 0, 0, 0, 0], 0, &[]).good();
    folder.damage(64 + 64 + 48 + 10);
    let mut rig = Rig::with(drive(), Box::new(folder.after_power_loss()));
    rig.unit.seed(&[6; 32]);
    rig.set_key(MIXED, &KEY);
    rig.read_block(1000).check(SenseKey::MEDIUM_ERROR, Asc::UNRECOVERED_READ_ERROR);
    // A host that copies blocks without a key can change them, and the tag tells.
    rig.security_out(A, &page(ALL, 0x20, MIXED, &KEY, &[])).good();
    rig.write_block(&pattern(1000, 1)).good();
    rig.space(0, -1).good();
    rig.set_key(RAW, &[]);
    let mut raw = rig.read_block(1000 + 48).good();
    raw[500] ^= 1;
    rig.write_block(&raw).good();
    rig.space(0, -1).good();
    rig.set_key(MIXED, &KEY);
    let forged = (SenseKey::DATA_PROTECT, Asc::CRYPTOGRAPHIC_INTEGRITY_VALIDATION_FAILED);
    rig.read_block(1000).stopped(forged, 0, Some(1000));
}

#[test]
fn a_preemption_of_others_leaves_keys_alone() {
    const CKORP: u8 = 0x02;
    let (mut rig, _) = encrypting(Kind::USUAL);
    let third = NexusId(7);
    rig.unit.nexus_established(Instant::ORIGIN, nexus(third));
    rig.test_ready(third).check(SenseKey::UNIT_ATTENTION, Asc::POWER_ON_RESET_OR_BUS_DEVICE_RESET);
    let pr_out = |rig: &mut Rig, nexus, action: u8, list: [u64; 2]| {
        let list = [list[0].to_be_bytes(), list[1].to_be_bytes(), [0; 8]].concat();
        rig.run(nexus, &[0x5f, action, 1, 0, 0, 0, 0, 0, 24, 0], 0, &list).good();
    };
    for (nexus, key) in [(A, 1), (B, 2), (third, 3)] {
        pr_out(&mut rig, nexus, 0, [0, key]);
    }
    pr_out(&mut rig, A, 1, [1, 0]);
    rig.security_out(A, &page(LOCAL, CKORP, MIXED, &KEY, &[])).good();
    pr_out(&mut rig, A, 2, [1, 0]);
    pr_out(&mut rig, B, 1, [2, 0]);
    pr_out(&mut rig, third, 4, [3, 2]);
    rig.test_ready(A).good();
    assert_eq!(rig.security_in(A, 0x20)[4..8], [0x21, 2, 3, 1]);
    // Its own reservation is preempted.
    pr_out(&mut rig, third, 2, [3, 0]);
    pr_out(&mut rig, A, 1, [1, 0]);
    pr_out(&mut rig, third, 4, [3, 1]);
    assert_eq!(rig.test_ready(A).sense, Some((SenseKey::UNIT_ATTENTION, Asc::REGISTRATIONS_PREEMPTED)));
    rig.test_ready(A).check(SenseKey::UNIT_ATTENTION, CHANGED);
    assert_eq!(rig.security_in(A, 0x20)[4..8], [0; 4]);
}

#[test]
fn a_lock_counts_what_the_nexus_itself_uses() {
    const CKOD: u8 = 0x04;
    let (mut rig, _) = encrypting(Kind::USUAL);
    let lock = page(PUBLIC | LOCK, 0, OFF, &[], &[]);
    rig.security_out(A, &lock).good();
    let status = rig.security_in(A, 0x20);
    // B sets a key of its own, and it is forgotten.
    rig.security_out(B, &page(LOCAL, CKOD, MIXED, &KEY, &[])).good();
    rig.write_block(&pattern(100, 1)).good();
    rig.run(A, &[0x1b, 0, 0, 0, 0, 0], 0, &[]).good();
    rig.run(A, &[0x1b, 0, 0, 0, 1, 0], 0, &[]).good();
    rig.write_block(&pattern(100, 1)).good();
    assert_eq!(rig.security_in(A, 0x20), status);
    // B shares a key, and it is forgotten: both concern A.
    let changed = (SenseKey::DATA_PROTECT, Asc::DATA_ENCRYPTION_KEY_INSTANCE_COUNTER_HAS_CHANGED);
    rig.run(B, &[0; 6], 0, &[]);
    rig.run(B, &[0; 6], 0, &[]);
    rig.security_out(B, &page(ALL, CKOD, MIXED, &KEY, &[])).good();
    rig.test_ready(A).check(SenseKey::UNIT_ATTENTION, CHANGED);
    rig.write_block(&pattern(100, 1)).stopped(changed, 0, Some(100));
    rig.run(B, &[0x1b, 0, 0, 0, 0, 0], 0, &[]).good();
    rig.run(B, &[0x1b, 0, 0, 0, 1, 0], 0, &[]).good();
    while rig.test_ready(A).sense.is_some() {}
    rig.write_block(&pattern(100, 1)).stopped(changed, 0, Some(100));
    rig.security_out(A, &lock).good();
    rig.write_block(&pattern(100, 1)).good();
    // Its own key is forgotten.
    rig.security_out(A, &page(LOCAL | LOCK, CKOD, MIXED, &KEY, &[])).good();
    rig.run(B, &[0x1b, 0, 0, 0, 0, 0], 0, &[]).good();
    rig.run(B, &[0x1b, 0, 0, 0, 1, 0], 0, &[]).good();
    while rig.test_ready(A).sense.is_some() {}
    rig.write_block(&pattern(100, 1)).stopped(changed, 0, Some(100));
}

#[test]
fn a_nexus_that_may_only_read_loses_the_key_of_its_reservation() {
    const CKORL: u8 = 0x01;
    let (mut rig, _) = encrypting(Kind::USUAL);
    rig.run(A, &[0x16, 0, 0, 0, 0, 0], 0, &[]).good();
    rig.security_out(A, &page(ALL, CKORL, MIXED, &KEY, &[])).good();
    let access = crate::contract::Access::ReadOnly;
    rig.unit.nexus_changed(Instant::ORIGIN, crate::contract::Nexus { access, ..nexus(A) });
    rig.test_ready(A).check(SenseKey::UNIT_ATTENTION, CHANGED);
    rig.test_ready(A).check(SenseKey::UNIT_ATTENTION, Asc::MODE_PARAMETERS_CHANGED);
    assert_eq!(rig.security_in(A, 0x20)[5], 0);
}

#[test]
fn verify_stays_before_a_block_that_it_cannot_decrypt() {
    let (mut rig, _) = encrypting(Kind::USUAL);
    rig.set_key(MIXED, &KEY);
    for _ in 0..2 {
        rig.write_block(&pattern(100, 1)).good();
    }
    rig.mark(1).good();
    rig.set_key(MIXED, &OTHER);
    for (flags, count, left) in [(0, 100, Some(100)), (0x08, 1, Some(1)), (0x20, 0, None)] {
        rig.rewind();
        rig.run(A, &cdb_6(op::VERIFY_6, flags, count), 0, &[]).stopped(WRONG_KEY, 0, left);
        assert_eq!(rig.position().1, 0);
    }
}
