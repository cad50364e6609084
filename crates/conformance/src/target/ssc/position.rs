//! REWIND, SPACE, LOCATE, READ POSITION and ERASE.

use crate::cdb::{SenseData, stream};
use crate::suite::writing;
use crate::verdict::Outcome;
use crate::wire::word;

use super::super::Test;
use super::super::device::{Expected, asc, byte, double, half, key};
use super::super::fixture::Fixture;
use super::super::task::Done;
use super::blocks::{at_end_of_data, at_filemark, is_at_end};
use super::{BLOCK_U32, Tape, six, space};

/// BOP in byte 0 of READ POSITION.
const BEGINNING: u8 = 0x80;

#[rustfmt::skip]
pub(super) const CASES: &[Test] = &[
    writing("ssc-rewind", "SSC-4, REWIND", "REWIND leads to the beginning of the partition", rewind),
    writing("ssc-rewind-immediate", "SSC-4, REWIND", "REWIND with IMMED leads there too", rewind_immediate),
    writing("ssc-position-beginning", "SSC-4, READ POSITION", "BOP is set at the beginning of the partition alone", bop),
    writing("ssc-position-short", "SSC-4, READ POSITION, short form", "the short form counts objects", short),
    writing("ssc-position-long", "SSC-4, READ POSITION, long form", "the long form counts filemarks too", long),
    writing("ssc-position-extended", "SSC-4, READ POSITION, extended form", "the extended form counts objects", extended),
    writing("ssc-position-form", "SSC-4, READ POSITION", "a reserved form is refused", reserved_form),
    writing("ssc-space-blocks", "SSC-4, SPACE(6)", "SPACE counts blocks in both directions", blocks),
    writing("ssc-space-blocks-mark", "SSC-4, SPACE(6)", "a filemark ends SPACE over blocks behind it", blocks_mark),
    writing("ssc-space-back-mark", "SSC-4, SPACE(6)", "backwards a filemark ends it before it", back_mark),
    writing("ssc-space-blocks-end", "SSC-4, SPACE(6)", "the end of data ends SPACE over blocks", blocks_end),
    writing("ssc-space-marks", "SSC-4, SPACE(6)", "SPACE counts filemarks in both directions", marks),
    writing("ssc-space-marks-end", "SSC-4, SPACE(6)", "the end of data ends SPACE over filemarks", marks_end),
    writing("ssc-space-beginning", "SSC-4, SPACE(6)", "the beginning of the partition ends SPACE", beginning),
    writing("ssc-space-end", "SSC-4, SPACE(6)", "SPACE leads to the end of data, where a write appends", end),
    writing("ssc-space-nothing", "SSC-4, SPACE(6)", "a count of 0 moves nothing", nothing),
    writing("ssc-space-code", "SSC-4, SPACE(6)", "a reserved code is refused", reserved_code),
    writing("ssc-space-16", "SSC-4, SPACE(16)", "SPACE(16) counts with 64 bits and a sign", space_16),
    writing("ssc-locate", "SSC-4, LOCATE(10)", "LOCATE leads to an object in both directions", locate),
    writing("ssc-locate-end", "SSC-4, LOCATE(10)", "the end of data ends LOCATE", locate_end),
    writing("ssc-locate-partition", "SSC-4, LOCATE(10)", "a partition that does not exist is refused", partition),
    writing("ssc-locate-16", "SSC-4, LOCATE(16)", "LOCATE(16) leads to an object", locate_16),
    writing("ssc-locate-16-file", "SSC-4, LOCATE(16)", "LOCATE(16) leads to a file", locate_file),
    writing("ssc-locate-16-end", "SSC-4, LOCATE(16)", "LOCATE(16) leads to the end of data", locate_to_end),
    writing("ssc-erase", "SSC-4, ERASE(6)", "ERASE with LONG ends the data at the position", erase),
];

fn rewind(fixture: &mut Fixture) -> Outcome {
    let mut tape = Tape::blank(fixture)?;
    tape.lay_out("bb")?;
    tape.rewind()?;
    tape.reads_block("READ(6) after REWIND", 0)
}

fn bop(fixture: &mut Fixture) -> Outcome {
    let mut tape = Tape::blank(fixture)?;
    tape.lay_out("bb")?;
    let flags = byte(&tape.short_position()?, 0);
    require!(flags & BEGINNING == 0, "behind two blocks BOP is set: {flags:02x}");
    tape.rewind()?;
    let flags = byte(&tape.short_position()?, 0);
    require!(flags & BEGINNING != 0, "at the beginning BOP is not set: {flags:02x}");
    tape.stands_at("after REWIND", 0)
}

fn rewind_immediate(fixture: &mut Fixture) -> Outcome {
    let mut tape = Tape::blank(fixture)?;
    tape.lay_out("bb")?;
    tape.device.ask(&[0x01, 1, 0, 0, 0, 0])?.good("REWIND with IMMED")?;
    tape.device.need_ready()?;
    tape.reads_block("READ(6) after REWIND with IMMED", 0)
}

fn short(fixture: &mut Fixture) -> Outcome {
    let mut tape = Tape::blank(fixture)?;
    tape.lay_out("bbbfb")?;
    let data = tape.short_position()?;
    require!(byte(&data, 0) & 0x82 == 0, "BOP or PERR is set: {:02x}", byte(&data, 0));
    require!(byte(&data, 1) == 0, "expected partition 0, came {}", byte(&data, 1));
    require!(word(&data, 4) == 5, "expected first object 5, came {}", word(&data, 4));
    // The last object is valid if the buffer holds a known number of objects.
    let held = u32::from_be_bytes([0, byte(&data, 13), byte(&data, 14), byte(&data, 15)]);
    let last = word(&data, 8);
    if byte(&data, 0) & 0x20 == 0 {
        require!(last + held == 5, "the last object is {last} and {held} are in the buffer, behind object 5");
    }
    Ok(())
}

fn long(fixture: &mut Fixture) -> Outcome {
    let mut tape = Tape::blank(fixture)?;
    tape.lay_out("bfbfb")?;
    let done = tape.device.get(&[0x34, 0x06, 0, 0, 0, 0, 0, 0, 0, 0], 32)?;
    let data = done.good("READ POSITION, LONG FORM")?.data;
    require!(data.len() == 32, "it returns {} bytes, not 32", data.len());
    require!(byte(&data, 0) & 0x8c == 0, "BOP, MPU or LONU is set: {:02x}", byte(&data, 0));
    require!(word(&data, 4) == 0, "expected partition 0, came {}", word(&data, 4));
    require!(double(&data, 8) == 5, "expected object 5, came {}", double(&data, 8));
    require!(double(&data, 16) == 2, "expected 2 filemarks, came {}", double(&data, 16));
    Ok(())
}

fn extended(fixture: &mut Fixture) -> Outcome {
    let mut tape = Tape::blank(fixture)?;
    tape.lay_out("bfbfb")?;
    let done = tape.device.get(&[0x34, 0x08, 0, 0, 0, 0, 0, 0, 32, 0], 32)?;
    let data = done.optional_form("the extended form")?.good("READ POSITION, EXTENDED FORM")?.data;
    require!(data.len() == 32, "it returns {} bytes, not 32", data.len());
    require!(half(&data, 2) == 0x1c, "expected ADDITIONAL LENGTH 1Ch, came {:x}h", half(&data, 2));
    require!(byte(&data, 1) == 0, "expected partition 0, came {}", byte(&data, 1));
    require!(double(&data, 8) == 5, "expected first object 5, came {}", double(&data, 8));
    let done = tape.device.get(&[0x34, 0x08, 0, 0, 0, 0, 0, 0, 16, 0], 32)?;
    let cut = done.good("READ POSITION, EXTENDED FORM, of 16 bytes")?.data;
    require!(cut.len() == 16, "an allocation length of 16 returns {} bytes", cut.len());
    Ok(())
}

fn reserved_form(fixture: &mut Fixture) -> Outcome {
    let mut tape = Tape::blank(fixture)?;
    let done = tape.device.get(&[0x34, 0x1f, 0, 0, 0, 0, 0, 0, 0, 0], 32)?;
    done.refused("READ POSITION, SERVICE ACTION 1Fh", key::ILLEGAL_REQUEST, asc::INVALID_FIELD_IN_CDB)
}

fn blocks(fixture: &mut Fixture) -> Outcome {
    let mut tape = Tape::blank(fixture)?;
    tape.lay_out("bbbbb")?;
    tape.space(space::BLOCKS, -4)?.good("SPACE(6) of -4 blocks")?;
    tape.reads_block("READ(6) after SPACE(6) of -4 blocks", 1)?;
    tape.space(space::BLOCKS, 2)?.good("SPACE(6) of 2 blocks")?;
    tape.reads_block("READ(6) after SPACE(6) of 2 blocks", 4)
}

fn blocks_mark(fixture: &mut Fixture) -> Outcome {
    let mut tape = Tape::blank(fixture)?;
    tape.lay_out("bbfb")?;
    tape.rewind()?;
    let expected =
        Expected { key: key::NO_SENSE, code: asc::FILEMARK, bits: stream::FILEMARK, information: 3 };
    tape.space(space::BLOCKS, 5)?.reports("SPACE(6) of 5 blocks, a filemark behind 2", expected)?;
    tape.reads_block("READ(6) behind the filemark", 3)
}

/// Returns the sense data of SPACE backwards, with INFORMATION as a number without a sign: the standard has
/// the difference of two counts, which some drives report as a negative number.
fn unsigned(tape: &Tape, done: &Done) -> Option<SenseData> {
    let sense = SenseData::read(&done.sense)?;
    if sense.information.is_some_and(|information| information < 0) {
        tape.device.remark("INFORMATION is negative");
    }
    Some(SenseData { information: sense.information.map(i64::abs), ..sense })
}

/// Fails unless the next READ meets a filemark.
fn reads_filemark(tape: &mut Tape) -> Outcome {
    let done = tape.read(0, BLOCK_U32)?;
    done.reports("READ(6) before the filemark", at_filemark(BLOCK_U32.into()))
}

fn back_mark(fixture: &mut Fixture) -> Outcome {
    let mut tape = Tape::blank(fixture)?;
    tape.lay_out("bbfbb")?;
    let done = tape.space(space::BLOCKS, -4)?;
    done.refused("SPACE(6) of -4 blocks, a filemark before 2", key::NO_SENSE, asc::FILEMARK)?;
    let sense = unsigned(&tape, &done).map(|sense| (sense.bits, sense.information));
    require!(
        sense == Some((stream::FILEMARK, Some(2))),
        "expected FILEMARK and INFORMATION 2, came {sense:02x?}"
    );
    reads_filemark(&mut tape)
}

fn blocks_end(fixture: &mut Fixture) -> Outcome {
    let mut tape = Tape::blank(fixture)?;
    tape.lay_out("bbb")?;
    tape.rewind()?;
    tape.space(space::BLOCKS, 9)?.reports("SPACE(6) of 9 blocks, 3 before the end", at_end_of_data(6))?;
    is_at_end(&mut tape)
}

fn marks(fixture: &mut Fixture) -> Outcome {
    let mut tape = Tape::blank(fixture)?;
    tape.lay_out("bbfbfb")?;
    tape.rewind()?;
    tape.space(space::FILEMARKS, 2)?.good("SPACE(6) of 2 filemarks")?;
    tape.reads_block("READ(6) behind the second filemark", 5)?;
    tape.space(space::FILEMARKS, -1)?.good("SPACE(6) of -1 filemark")?;
    reads_filemark(&mut tape)?;
    tape.reads_block("READ(6) behind the second filemark", 5)
}

fn marks_end(fixture: &mut Fixture) -> Outcome {
    let mut tape = Tape::blank(fixture)?;
    tape.lay_out("bfbfb")?;
    tape.rewind()?;
    let done = tape.space(space::FILEMARKS, 5)?;
    done.reports("SPACE(6) of 5 filemarks, 2 before the end", at_end_of_data(3))?;
    is_at_end(&mut tape)
}

fn beginning(fixture: &mut Fixture) -> Outcome {
    let mut tape = Tape::blank(fixture)?;
    tape.lay_out("bbb")?;
    let done = tape.space(space::BLOCKS, -9)?;
    done.refused("SPACE(6) of -9 blocks, 3 behind the beginning", key::NO_SENSE, asc::BEGINNING_OF_MEDIUM)?;
    let sense = unsigned(&tape, &done).map(|sense| (sense.bits, sense.information));
    require!(sense == Some((stream::EOM, Some(6))), "expected EOM and INFORMATION 6, came {sense:02x?}");
    tape.reads_block("READ(6) at the beginning", 0)
}

fn end(fixture: &mut Fixture) -> Outcome {
    let mut tape = Tape::blank(fixture)?;
    tape.lay_out("bfb")?;
    tape.rewind()?;
    tape.space(space::END_OF_DATA, 0)?.good("SPACE(6) to the end of data")?;
    tape.write(&super::content(3))?.good("WRITE(6) at the end of data")?;
    tape.space(space::BLOCKS, -2)?.good("SPACE(6) of -2 blocks")?;
    tape.reads_block("READ(6) of the block before the one appended", 2)?;
    tape.reads_block("READ(6) of the block appended", 3)
}

fn nothing(fixture: &mut Fixture) -> Outcome {
    let mut tape = Tape::blank(fixture)?;
    tape.lay_out("bbb")?;
    tape.space(space::BLOCKS, -2)?.good("SPACE(6) of -2 blocks")?;
    for code in [space::BLOCKS, space::FILEMARKS] {
        tape.space(code, 0)?.good("SPACE(6) of nothing")?;
    }
    tape.reads_block("READ(6) after SPACE(6) of nothing", 1)
}

fn reserved_code(fixture: &mut Fixture) -> Outcome {
    let mut tape = Tape::blank(fixture)?;
    tape.lay_out("bb")?;
    tape.space(space::BLOCKS, -1)?.good("SPACE(6) of -1 block")?;
    let done = tape.space(7, 1)?;
    done.refused("SPACE(6), CODE 7", key::ILLEGAL_REQUEST, asc::INVALID_FIELD_IN_CDB)?;
    tape.reads_block("READ(6) after the refusal", 1)
}

fn space_16(fixture: &mut Fixture) -> Outcome {
    let mut tape = Tape::blank(fixture)?;
    tape.lay_out("bbb")?;
    let cdb = |count: i64| {
        let [a, b, c, d, e, f, g, h] = count.to_be_bytes();
        [0x91, space::BLOCKS, 0, 0, a, b, c, d, e, f, g, h, 0, 0, 0, 0]
    };
    tape.device.ask(&cdb(-2))?.optional("SPACE(16)")?.good("SPACE(16) of -2 blocks")?;
    tape.reads_block("READ(6) after SPACE(16) of -2 blocks", 1)
}

fn locate(fixture: &mut Fixture) -> Outcome {
    let mut tape = Tape::blank(fixture)?;
    tape.lay_out("bbfbb")?;
    tape.locate(1)?.good("LOCATE(10) of object 1")?;
    tape.reads_block("READ(6) after LOCATE(10) of object 1", 1)?;
    tape.locate(4)?.good("LOCATE(10) of object 4")?;
    tape.reads_block("READ(6) after LOCATE(10) of object 4", 4)
}

fn locate_end(fixture: &mut Fixture) -> Outcome {
    let mut tape = Tape::blank(fixture)?;
    tape.lay_out("bb")?;
    tape.rewind()?;
    let done = tape.locate(1000)?;
    done.refused("LOCATE(10) behind the end of data", key::BLANK_CHECK, asc::END_OF_DATA)?;
    is_at_end(&mut tape)
}

fn partition(fixture: &mut Fixture) -> Outcome {
    let mut tape = Tape::blank(fixture)?;
    tape.lay_out("b")?;
    let done = tape.device.ask(&[0x2b, 0x02, 0, 0, 0, 0, 0, 0, 200, 0])?;
    done.refused("LOCATE(10) in partition 200", key::ILLEGAL_REQUEST, asc::INVALID_FIELD_IN_CDB)?;
    is_at_end(&mut tape)
}

/// LOCATE(16) with this destination type.
fn locate_cdb(kind: u8, number: u8) -> [u8; 16] {
    [0x92, kind << 3, 0, 0, 0, 0, 0, 0, 0, 0, 0, number, 0, 0, 0, 0]
}

fn locate_16(fixture: &mut Fixture) -> Outcome {
    let mut tape = Tape::blank(fixture)?;
    tape.lay_out("bbfbb")?;
    tape.device.ask(&locate_cdb(0, 3))?.optional("LOCATE(16)")?.good("LOCATE(16) of object 3")?;
    tape.reads_block("READ(6) after LOCATE(16) of object 3", 3)
}

fn locate_file(fixture: &mut Fixture) -> Outcome {
    let mut tape = Tape::blank(fixture)?;
    tape.lay_out("bbfbfb")?;
    let done = tape.device.ask(&locate_cdb(1, 1))?;
    done.optional_form("LOCATE(16) of files")?.good("LOCATE(16) of file 1")?;
    tape.reads_block("READ(6) after LOCATE(16) of file 1", 3)
}

fn locate_to_end(fixture: &mut Fixture) -> Outcome {
    let mut tape = Tape::blank(fixture)?;
    tape.lay_out("bbfb")?;
    tape.rewind()?;
    let done = tape.device.ask(&locate_cdb(3, 0))?;
    done.optional_form("LOCATE(16) of the end of data")?.good("LOCATE(16) of the end of data")?;
    is_at_end(&mut tape)
}

fn erase(fixture: &mut Fixture) -> Outcome {
    let mut tape = Tape::blank(fixture)?;
    tape.lay_out("bbb")?;
    tape.space(space::BLOCKS, -2)?.good("SPACE(6) of -2 blocks")?;
    tape.device.ask(&six(0x19, 1, 0))?.optional("ERASE(6)")?.good("ERASE(6) with LONG")?;
    tape.rewind()?;
    tape.reads_block("READ(6) before the position of ERASE(6)", 0)?;
    is_at_end(&mut tape)
}
