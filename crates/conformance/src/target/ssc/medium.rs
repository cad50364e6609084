//! Cartridges: load and unload, the end of the partition, and cartridges that must not be overwritten.

use crate::cdb::{SenseData, stream};
use crate::entropy::pattern;
use crate::suite::writing;
use crate::verdict::Outcome;

use super::super::Test;
use super::super::changes::Change;
use super::super::device::{Device, Expected, asc, byte, key};
use super::super::fixture::Fixture;
use super::super::task::Done;
use super::{BLOCK_U32, Tape, WRITE_PROTECT, content, space};

#[rustfmt::skip]
pub(super) const CASES: &[Test] = &[
    writing("ssc-unload", "SSC-4, LOAD UNLOAD", "without its cartridge the drive is not ready", unload),
    writing("ssc-load", "SSC-4, LOAD UNLOAD", "a cartridge is loaded at its beginning, with its data", load),
    writing("ssc-load-attention", "SSC-4, LOAD UNLOAD", "other hosts are told of the cartridge", load_attention),
    writing("ssc-prevent", "SPC-4, PREVENT ALLOW MEDIUM REMOVAL", "a host keeps the cartridge in the drive", prevent),
    writing("ssc-early-warning", "SSC-4, early warning", "behind the early warning a write is done and told of", early_warning),
    writing("ssc-early-warning-mark", "SSC-4, early warning", "and so is a filemark", early_warning_mark),
    writing("ssc-end-of-partition", "SSC-4, end of partition", "a write that does not fit is VOLUME OVERFLOW", overflow),
    writing("ssc-write-protect", "SSC-4, write protection", "a write-protected cartridge is not written", write_protect),
    writing("ssc-worm-append", "SSC-4, WORM mode", "a write-once cartridge takes data behind its last", worm_append),
    writing("ssc-worm-overwrite", "SSC-4, WORM mode", "data on a write-once cartridge is not overwritten", worm_overwrite),
];

/// LOAD UNLOAD: LOAD clear.
const UNLOAD: [u8; 6] = [0x1b, 0, 0, 0, 0, 0];
/// LOAD UNLOAD: LOAD set.
const LOAD: [u8; 6] = [0x1b, 0, 0, 0, 1, 0];

/// LOAD UNLOAD without LOAD.
fn unload_tape(tape: &mut Tape) -> Outcome<Done> {
    tape.device.will_change(Change::Medium(LOAD[4]));
    tape.device.ask(&UNLOAD)
}

fn load_again(tape: &mut Tape) -> Outcome {
    tape.device.ask(&LOAD)?.good("LOAD UNLOAD with LOAD")?;
    tape.device.clear_attentions()?.good("TEST UNIT READY after LOAD UNLOAD with LOAD").map(drop)
}

/// Returns whether a command ended with NOT READY.
fn is_not_ready(done: &Done) -> bool {
    done.sense_code().is_some_and(|(key, _)| key == key::NOT_READY)
}

fn unload(fixture: &mut Fixture) -> Outcome {
    let mut tape = Tape::blank(fixture)?;
    tape.lay_out("b")?;
    unload_tape(&mut tape)?.good("LOAD UNLOAD without LOAD")?;
    let (ready, read) = (tape.device.ask(&[0; 6])?, tape.read(0, BLOCK_U32)?);
    let inquiry = tape.device.get(&[0x12, 0, 0, 0, 36, 0], 36)?;
    load_again(&mut tape)?;
    require!(is_not_ready(&ready), "TEST UNIT READY: expected NOT READY, came {}", ready.shown());
    require!(is_not_ready(&read), "READ(6): expected NOT READY, came {}", read.shown());
    inquiry.good("INQUIRY of an empty drive").map(drop)
}

fn load(fixture: &mut Fixture) -> Outcome {
    let mut tape = Tape::blank(fixture)?;
    tape.lay_out("bb")?;
    unload_tape(&mut tape)?.good("LOAD UNLOAD without LOAD")?;
    load_again(&mut tape)?;
    tape.reads_block("READ(6) after a load", 0)
}

fn load_attention(fixture: &mut Fixture) -> Outcome {
    let mut tape = Tape::blank(fixture)?;
    let mut other = Device::attach(fixture)?;
    unload_tape(&mut tape)?.good("LOAD UNLOAD without LOAD")?;
    load_again(&mut tape)?;
    let what = "TEST UNIT READY of another host after a load";
    other.ask(&[0; 6])?.refused(what, key::UNIT_ATTENTION, asc::MEDIUM_MAY_HAVE_CHANGED)
}

fn prevent(fixture: &mut Fixture) -> Outcome {
    let mut tape = Tape::blank(fixture)?;
    tape.lay_out("b")?;
    tape.device.will_change(Change::Prevention);
    let done = tape.device.ask(&[0x1e, 0, 0, 0, 1, 0])?;
    done.optional("PREVENT ALLOW MEDIUM REMOVAL")?.good("PREVENT ALLOW MEDIUM REMOVAL, prevent")?;
    let done = unload_tape(&mut tape)?;
    let allowed = tape.device.ask(&[0x1e, 0, 0, 0, 0, 0])?.good("PREVENT ALLOW MEDIUM REMOVAL, allow");
    done.refused("LOAD UNLOAD without LOAD", key::ILLEGAL_REQUEST, asc::REMOVAL_PREVENTED)?;
    allowed.map(drop)
}

/// The most that a case writes to reach the end of a partition.
const FILL_MAX: usize = 64 << 20;

/// Writes blocks until one is told of; returns that one's end, and the length of its blocks.
fn fill(tape: &mut Tape) -> Outcome<(Done, usize)> {
    let data = tape.device.get(&[0x05, 0, 0, 0, 0, 0], 6)?.good("READ BLOCK LIMITS")?.data;
    let longest = usize::try_from(super::super::device::triple(&data, 1)).unwrap_or(0);
    let len = if longest == 0 { 1 << 18 } else { longest.min(1 << 18) };
    let block = pattern(1, len);
    for _ in 0..FILL_MAX / len {
        let done = tape.write(&block)?;
        if !done.is_good() {
            return Ok((done, len));
        }
    }
    need!(false, "the cartridge takes {} MiB and more without an early warning", FILL_MAX >> 20);
    fail!("unreachable")
}

/// Fails unless a command was done and told of the early warning.
fn is_warning(what: &str, done: &Done) -> Outcome {
    done.refused(what, key::NO_SENSE, asc::END_OF_MEDIUM)?;
    let sense = SenseData::read(&done.sense);
    let bits = sense.map(|sense| sense.bits);
    require!(bits == Some(stream::EOM), "{what}: expected EOM alone, came {bits:02x?}");
    // Linux takes any other number for data that were not written.
    let information = sense.and_then(|sense| sense.information).unwrap_or(0);
    require!(information == 0, "{what}: INFORMATION is {information}, although everything was written");
    Ok(())
}

fn early_warning(fixture: &mut Fixture) -> Outcome {
    let mut tape = Tape::blank(fixture)?;
    let (done, len) = fill(&mut tape)?;
    is_warning("the first WRITE(6) that is not GOOD", &done)?;
    tape.space(space::BLOCKS, -1)?.good("SPACE(6) of -1 block")?;
    let read = tape.read(0, u32::try_from(len).unwrap_or(u32::MAX))?.good("READ(6) of the block told of")?;
    require!(read.data == pattern(1, len), "the block told of was not written");
    Ok(())
}

fn early_warning_mark(fixture: &mut Fixture) -> Outcome {
    let mut tape = Tape::blank(fixture)?;
    let (done, _) = fill(&mut tape)?;
    need!(is_warning("WRITE(6)", &done).is_ok(), "there is no early warning");
    is_warning("WRITE FILEMARKS(6) behind the early warning", &tape.device.ask(&[0x10, 0, 0, 0, 1, 0])?)
}

fn overflow(fixture: &mut Fixture) -> Outcome {
    let mut tape = Tape::blank(fixture)?;
    let (mut done, len) = fill(&mut tape)?;
    let block = pattern(1, len);
    let mut written = 0;
    while done.sense_code().is_some_and(|(key, _)| key == key::NO_SENSE) {
        need!(written < FILL_MAX, "the partition does not end behind the early warning");
        done = tape.write(&block)?;
        written += len;
    }
    let information = i64::try_from(len).unwrap_or(0);
    let (key, code, bits) = (key::VOLUME_OVERFLOW, asc::END_OF_MEDIUM, stream::EOM);
    done.reports("WRITE(6) that does not fit", Expected { key, code, bits, information })
}

fn write_protect(fixture: &mut Fixture) -> Outcome {
    let mut tape = Tape::keeping_position(fixture)?;
    let is_protected = tape.device.mode_6(0)?.device_specific & WRITE_PROTECT != 0;
    need!(is_protected, "the cartridge is not write-protected");
    tape.rewind()?;
    let done = tape.write(&content(0))?;
    done.refused("WRITE(6)", key::DATA_PROTECT, asc::WRITE_PROTECTED)?;
    let done = tape.device.ask(&[0x10, 0, 0, 0, 1, 0])?;
    done.refused("WRITE FILEMARKS(6)", key::DATA_PROTECT, asc::WRITE_PROTECTED)?;
    let done = tape.device.ask(&[0x19, 1, 0, 0, 0, 0])?;
    if done.sense_code() != Some((key::ILLEGAL_REQUEST, asc::INVALID_OPERATION_CODE)) {
        done.refused("ERASE(6)", key::DATA_PROTECT, asc::WRITE_PROTECTED)?;
    }
    Ok(())
}

/// Writes a block behind the last object of a write-once cartridge; returns the number of that block.
fn append(tape: &mut Tape) -> Outcome<u32> {
    need!(tape.is_write_once()?, "the cartridge can be written more than once");
    tape.space(space::END_OF_DATA, 0)?.good("SPACE(6) to the end of data")?;
    let position = tape.short_position()?;
    let number = crate::wire::word(&position, 4);
    tape.write(&content(number))?.good("WRITE(6) at the end of data")?;
    Ok(number)
}

fn worm_append(fixture: &mut Fixture) -> Outcome {
    let mut tape = Tape::keeping_position(fixture)?;
    append(&mut tape)?;
    let number = append(&mut tape)?;
    tape.write_filemarks(0)?;
    tape.locate(number)?.good("LOCATE(10)")?;
    tape.reads_block("READ(6) of the block appended", number)
}

fn worm_overwrite(fixture: &mut Fixture) -> Outcome {
    let mut tape = Tape::keeping_position(fixture)?;
    let number = append(&mut tape)?;
    append(&mut tape)?;
    tape.write_filemarks(1)?;
    tape.locate(number)?.good("LOCATE(10)")?;
    let done = tape.write(&content(number + 7))?;
    done.refused("WRITE(6) over a block", key::DATA_PROTECT, asc::WORM_OVERWRITE)?;
    let done = tape.device.ask(&[0x19, 1, 0, 0, 0, 0])?;
    let key = done.sense_code().map_or(byte(&done.sense, 0), |(key, _)| key);
    require!(
        !done.is_good() && key == key::DATA_PROTECT,
        "ERASE(6): expected DATA PROTECT, came {}",
        done.shown()
    );
    tape.stands_at("after the refusals", number)?;
    tape.reads_block("READ(6) of the block that was kept", number)
}
