//! Append-only mode with ALLOW OVERWRITE, and the programmable early warning.

use super::*;

const APPEND: (SenseKey, Asc) = (SenseKey::DATA_PROTECT, Asc::WRITE_APPEND_ERROR);

/// Returns the list of MODE SELECT(10) with the device configuration extension page.
fn list(write_mode: u8, early_warning_mb: u16) -> Vec<u8> {
    let [high, low] = early_warning_mb.to_be_bytes();
    let mut list = vec![0, 0, 0, 0x10, 0, 0, 0, 0, 0x50, 1, 0, 28, 0, write_mode, high, low];
    list.resize(40, 0);
    list
}

impl Rig {
    pub(super) fn configure(&mut self, write_mode: u8, early_warning_mb: u16) -> Reply {
        self.run(A, &[0x55, 0x10, 0, 0, 0, 0, 0, 0, 40, 0], 0, &list(write_mode, early_warning_mb))
    }

    pub(super) fn allow(&mut self, what: u8, object: u8) -> Reply {
        self.run(A, &[0x82, 0, what, 0, 0, 0, 0, 0, 0, 0, 0, object, 0, 0, 0, 0], 0, &[])
    }
}

#[test]
fn nothing_is_overwritten_unless_that_is_allowed() {
    let (mut rig, _) = with(Kind::USUAL);
    rig.configure(0x10, 0).good();
    assert_eq!(rig.query(&[0x5a, 8, 0x10, 1, 0, 0, 0, 0, 255, 0])[8..16], [0x50, 1, 0, 28, 0, 0x10, 0, 0]);
    for number in 0..3 {
        rig.write_block(&pattern(100, number)).good();
    }
    rig.mark(1).good();
    rig.rewind();
    rig.write_block(&pattern(50, 9)).stopped(APPEND, 0, Some(50));
    rig.mark(2).stopped(APPEND, 0, Some(2));
    rig.mark(0).good();
    rig.run(A, &[0x19, 0, 0, 0, 0, 0], 0, &[]).check(APPEND.0, APPEND.1);
    rig.run(A, &[0x04, 0, 0, 0, 0, 0], 0, &[]).check(APPEND.0, APPEND.1);
    rig.run(A, &[0x0b, 0, 0, 0x80, 0, 0], 0, &[]).check(APPEND.0, APPEND.1);
    // Allowed for another position, and for one that the drive has left.
    rig.allow(1, 1).illegal(Asc::SEQUENTIAL_POSITIONING_ERROR);
    rig.allow(1, 0).good();
    rig.read_block(100).good();
    rig.rewind();
    rig.write_block(&pattern(50, 9)).stopped(APPEND, 0, Some(50));
    rig.allow(3, 0).illegal(Asc::INVALID_FIELD_IN_CDB);
    rig.allow(2, 0).good();
    rig.write_block(&pattern(50, 9)).stopped(APPEND, 0, Some(50));
    // Behind the first block it is allowed once.
    rig.read_block(100).good();
    rig.allow(1, 1).good();
    rig.write_block(&pattern(50, 9)).good();
    rig.write_block(&pattern(60, 9)).good();
    rig.rewind();
    assert_eq!(rig.read_block(100).good(), pattern(100, 0));
    assert_eq!(rig.read_block(50).good(), pattern(50, 9));
    rig.write_block(&pattern(50, 9)).stopped(APPEND, 0, Some(50));
    // A format is allowed too.
    rig.rewind();
    rig.allow(2, 0).good();
    rig.run(A, &[0x04, 0, 0, 0, 0, 0], 0, &[]).good();
    rig.write_block(&pattern(50, 9)).good();
}

#[test]
fn the_mode_begins_at_the_beginning_and_ends_without_a_cartridge() {
    let (mut rig, _) = with(Kind::USUAL);
    rig.write_block(&pattern(100, 1)).good();
    rig.configure(0x10, 0).illegal(Asc::INVALID_FIELD_IN_PARAMETER_LIST);
    rig.rewind();
    rig.configure(0x20, 0).illegal(Asc::INVALID_FIELD_IN_PARAMETER_LIST);
    rig.configure(0x10, 0).good();
    rig.configure(0x10, 7).good();
    rig.configure(0, 7).illegal(Asc::INVALID_FIELD_IN_PARAMETER_LIST);
    rig.run(A, &[0x1b, 0, 0, 0, 0, 0], 0, &[]).good();
    rig.configure(0, 7).good();
    rig.run(A, &[0x1b, 0, 0, 0, 1, 0], 0, &[]).good();
    rig.write_block(&pattern(50, 9)).good();
}

#[test]
fn the_programmable_early_warning_comes_once() {
    let (mut rig, _) = with(Kind { capacity: 64 << 20, ..Kind::USUAL });
    let early = (SenseKey::NO_SENSE, Asc::PROGRAMMABLE_EARLY_WARNING);
    rig.configure(0, 20).good();
    assert_eq!(rig.query(&[0x5a, 8, 0x10, 1, 0, 0, 0, 0, 255, 0])[12..16], [0, 0, 0, 20]);
    let block = pattern(1 << 20, 1);
    let flags = |rig: &mut Rig| rig.query(&[0x34, 0, 0, 0, 0, 0, 0, 0, 0, 0])[0] & 0x41;
    let (mut early_at, mut end_at) = (None, None);
    for number in 1..64 {
        let was = flags(&mut rig);
        let reply = rig.write_block(&block);
        let now = flags(&mut rig);
        match reply.sense {
            None => assert_eq!(was, now, "block {number}"),
            Some(sense) if sense == early => {
                assert_eq!((was, now, early_at.replace(number)), (0, 1, None));
                reply.stopped(early, EOM, Some(0));
            }
            Some(_) => {
                reply.stopped(WARNING, EOM, Some(0));
                assert_eq!(now, 0x41);
                end_at = Some(number);
                break;
            }
        }
    }
    // The early warning is 4 MiB before the end, and the zone has 20 MB.
    let (early_at, end_at) = (early_at.unwrap(), end_at.unwrap());
    assert!((18..=20).contains(&(end_at - early_at)), "{early_at} {end_at}");
}

/// A write that begins before both warnings and ends behind them.
#[test]
fn the_programmable_early_warning_comes_before_the_early_warning() {
    let flags = |rig: &mut Rig| rig.query(&[0x34, 0, 0, 0, 0, 0, 0, 0, 0, 0])[0] & 0x41;
    let early = (SenseKey::NO_SENSE, Asc::PROGRAMMABLE_EARLY_WARNING);
    for early_warning_mb in [0, 1] {
        let (mut rig, _) = with(Kind { capacity: 16 << 20, ..Kind::USUAL });
        rig.configure(0, early_warning_mb).good();
        rig.write_block(&pattern(6 << 20, 1)).good();
        let reply = rig.write_block(&pattern(7 << 20, 2));
        if early_warning_mb == 0 {
            reply.stopped(WARNING, EOM, Some(0));
            assert_eq!(flags(&mut rig), 0x40, "BPEW needs PEWS");
        } else {
            reply.stopped(early, EOM, Some(0));
            assert_eq!(flags(&mut rig), 0x41);
            rig.write_block(&[1; 10]).stopped(WARNING, EOM, Some(0));
        }
    }
}
