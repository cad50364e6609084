//! FORMAT MEDIUM and SET CAPACITY.

use super::*;

const GB: u64 = 1_000_000_000;
const SIZE: u64 = 100 * GB;

/// Returns in MiB what is in MB.
fn mebibytes<const COUNT: usize>(megabytes: [u64; COUNT]) -> [u64; COUNT] {
    megabytes.map(|count| (count * 1_000_000) >> 20)
}

fn page(additional: u8, flags: u8, units: u8, sizes: [u16; 4]) -> Vec<u8> {
    let mut list = vec![0, 0, 0x10, 0, 0x11, 14, 3, additional, flags, 3, units, 0];
    sizes.iter().for_each(|size| list.extend_from_slice(&size.to_be_bytes()));
    list
}

impl Rig {
    fn select_partitions(&mut self, list: &[u8]) -> Reply {
        self.run(A, &[0x15, 0x10, 0, 0, u8::try_from(list.len()).unwrap(), 0], 0, list)
    }

    fn format(&mut self, layout: u8) -> Reply {
        self.run(A, &[0x04, 0, layout, 0, 0, 0], 0, &[])
    }

    /// Returns the capacities of the partitions by attribute 0001h, in MiB.
    fn capacities(&mut self) -> Vec<u64> {
        let mut capacities = Vec::new();
        for partition in 0..4 {
            let reply = self.run(A, &[0x8c, 0, 0, 0, 0, 0, 0, partition, 0, 1, 0, 0, 0, 17, 0, 0], 17, &[]);
            if reply.sense.is_some() {
                break;
            }
            capacities.push(u64::from_be_bytes(reply.data[9..17].try_into().unwrap()));
        }
        capacities
    }

    #[track_caller]
    fn locate(&mut self, partition: u8) -> Reply {
        self.run(A, &[0x92, 2, 0, partition, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0], 0, &[])
    }
}

fn blank() -> (Rig, Folder) {
    with(Kind { capacity: SIZE, ..Kind::USUAL })
}

#[test]
fn a_cartridge_is_divided_as_the_page_says() {
    let (mut rig, folder) = blank();
    rig.write_block(&pattern(100, 1)).good();
    rig.mark(1).good();
    rig.rewind();
    // As LTFS sends it.
    rig.select_partitions(&page(1, 0x3c, 9, [1, 0xffff, 0, 0])).good();
    rig.test_ready(B).check(SenseKey::UNIT_ATTENTION, Asc::MODE_PARAMETERS_CHANGED);
    let set = [0x11, 14, 3, 1, 0x3c, 3, 9, 0, 0, 1, 0xff, 0xff, 0, 0, 0, 0];
    assert_eq!(rig.query(&[0x1a, 8, 0x11, 0, 255, 0])[4..], set);
    assert_eq!(rig.capacities(), mebibytes([100_000]), "only FORMAT MEDIUM divides");
    assert_eq!(rig.read_block(100).good(), pattern(100, 1));
    rig.rewind();
    rig.format(1).good();
    rig.test_ready(B).check(SenseKey::UNIT_ATTENTION, Asc::MODE_PARAMETERS_CHANGED);
    assert_eq!(rig.capacities(), mebibytes([1_000, 99_000]));
    let now = [0x11, 14, 3, 1, 0x1c, 3, 9, 0, 0, 1, 0, 99, 0, 0, 0, 0];
    assert_eq!(rig.query(&[0x1a, 8, 0x11, 0, 255, 0])[4..], now);
    assert_eq!(rig.position(), (0, 0, 0));
    rig.read_block(100).stopped(END_OF_DATA, 0, Some(100));
    rig.locate(1).good();
    rig.write_block(&pattern(200, 2)).good();
    rig.mark(1).good();
    let mut rig = Rig::with(drive(), Box::new(folder.after_power_loss()));
    rig.locate(1).good();
    assert_eq!(rig.read_block(200).good(), pattern(200, 2));
    // Formatted again without a page, it has the same partitions; by default one.
    rig.format(1).illegal(Asc::POSITION_PAST_BEGINNING_OF_MEDIUM);
    rig.locate(0).good();
    rig.format(2).good();
    assert_eq!(rig.capacities(), mebibytes([1_000, 99_000]));
    rig.locate(1).good();
    rig.read_block(200).stopped(END_OF_DATA, 0, Some(200));
    rig.locate(0).good();
    rig.run(A, &[0x04, 1, 0, 0, 0, 0], 0, &[]).good();
    assert_eq!(rig.capacities(), mebibytes([100_000]));
    rig.locate(1).illegal(Asc::INVALID_FIELD_IN_CDB);
}

#[test]
fn four_partitions_and_those_of_the_drive() {
    let (mut rig, _) = blank();
    rig.select_partitions(&page(3, 0x3c, 9, [10, 20, 30, 40])).good();
    rig.format(1).good();
    assert_eq!(rig.capacities(), mebibytes([10_000, 20_000, 30_000, 40_000]));
    rig.select_partitions(&page(3, 0x44, 9, [0; 4])).good();
    rig.format(2).good();
    assert_eq!(rig.capacities(), mebibytes([25_000; 4]));
    rig.select_partitions(&page(1, 0x84, 9, [0; 4])).good();
    rig.format(1).good();
    assert_eq!(rig.capacities(), mebibytes([50_000; 2]));
    // As Linux sends it: with the sizes of two partitions only.
    let mut short = page(1, 0x3c, 9, [0xffff, 3, 0, 0]);
    short.truncate(16);
    short[5] = 10;
    rig.select_partitions(&short).good();
    rig.format(1).good();
    assert_eq!(rig.capacities(), mebibytes([97_000, 3_000]));
    rig.select_partitions(&page(1, 0x84, 9, [0; 4])).good();
    rig.format(1).good();
    // A page is forgotten when the cartridge is unloaded.
    rig.select_partitions(&page(3, 0x44, 9, [0; 4])).good();
    rig.run(A, &[0x1b, 0, 0, 0, 0, 0], 0, &[]).good();
    rig.run(A, &[0x1b, 0, 0, 0, 1, 0], 0, &[]).good();
    rig.format(1).good();
    assert_eq!(rig.capacities(), mebibytes([50_000; 2]));
}

#[test]
fn wrong_pages_and_commands_change_nothing() {
    let (mut rig, _) = blank();
    rig.write_block(&pattern(100, 1)).good();
    rig.rewind();
    let wrong = [
        page(4, 0x3c, 9, [1; 4]),
        page(1, 0x3c, 9, [60, 60, 0, 0]),
        page(1, 0xbc, 9, [1, 1, 0, 0]),
        page(1, 0x38, 9, [1, 1, 0, 0]),
        page(1, 0x3c, 0x19, [1, 1, 0, 0]),
    ];
    for list in wrong {
        rig.select_partitions(&list).illegal(Asc::INVALID_FIELD_IN_PARAMETER_LIST);
    }
    for cdb in [[0x04, 0, 3, 0, 0, 0], [0x04, 2, 0, 0, 0, 0], [0x04, 0, 0, 0, 1, 0], [0x0b, 0, 0, 0, 0, 0]] {
        rig.run(A, &cdb, 0, &[]).illegal(Asc::INVALID_FIELD_IN_CDB);
    }
    assert_eq!(rig.read_block(100).good(), pattern(100, 1));
    rig.format(0).illegal(Asc::POSITION_PAST_BEGINNING_OF_MEDIUM);
    rig.run(A, &[0x0b, 0, 0, 0xff, 0xff, 0], 0, &[]).illegal(Asc::POSITION_PAST_BEGINNING_OF_MEDIUM);
}

#[test]
fn protected_cartridges_are_not_formatted() {
    let (mut rig, _) = with(Kind { is_worm: true, ..Kind::USUAL });
    for cdb in [[0x04, 0, 0, 0, 0, 0], [0x0b, 0, 0, 0x80, 0, 0]] {
        rig.run(A, &cdb, 0, &[]).check(SenseKey::DATA_PROTECT, Asc::WORM_OVERWRITE_ATTEMPTED);
    }
    let mut list = page(1, 0x44, 9, [0; 4]);
    list[6] = 0;
    rig.select_partitions(&list).illegal(Asc::INVALID_FIELD_IN_PARAMETER_LIST);
    let folder = Folder::new(Kind::USUAL);
    let config = UnitConfig { read_only: true, ..drive() };
    let mut rig = Rig::with(config, Box::new(folder));
    rig.format(0).check(SenseKey::DATA_PROTECT, Asc::WRITE_PROTECTED);
}

#[test]
fn set_capacity_takes_a_part_of_the_cartridge() {
    let (mut rig, _) = blank();
    rig.select_partitions(&page(3, 0x44, 9, [0; 4])).good();
    rig.format(1).good();
    rig.run(A, &[0x0b, 0, 0, 0x80, 0, 0], 0, &[]).good();
    assert_eq!(rig.capacities(), [47_684], "half of it and a little more");
    rig.run(A, &[0x0b, 1, 0, 0xff, 0xff, 0], 0, &[]).good();
    assert_eq!(rig.capacities(), mebibytes([100_000]));
}

#[test]
fn a_format_that_fails_leaves_the_cartridge_as_it_was() {
    let (mut rig, folder) = blank();
    rig.write_block(&pattern(100, 1)).good();
    rig.mark(1).good();
    rig.rewind();
    folder.fail(Faults { label: Some(Fault::NoSpace), ..Faults::default() });
    rig.select_partitions(&page(3, 0x44, 9, [0; 4])).good();
    let failed = rig.format(1);
    assert_eq!(failed.sense.map(|(key, _)| key), Some(SenseKey::VOLUME_OVERFLOW));
    let mut rig = Rig::with(drive(), Box::new(folder.after_power_loss()));
    assert_eq!(rig.capacities(), mebibytes([100_000]));
    assert_eq!(rig.read_block(100).good(), pattern(100, 1));
}
