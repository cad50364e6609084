//! READ, WRITE, WRITE FILEMARKS and VERIFY: lengths, filemarks, and the end of data.

use transport::initiator::Residual;

use crate::cdb::stream;
use crate::suite::{case, writing};
use crate::verdict::Outcome;

use super::super::Test;
use super::super::device::{Device, Expected, asc, byte, half, key, triple};
use super::super::fixture::Fixture;
use super::{BLOCK_U32, Tape, content, six, space};

const FIXED: u8 = 0x01;
const SILI: u8 = 0x02;

#[rustfmt::skip]
pub(super) const CASES: &[Test] = &[
    case("ssc-inquiry", "SSC-4, INQUIRY", "a tape drive has removable media", inquiry),
    case("ssc-block-limits", "SSC-4, READ BLOCK LIMITS", "the limits make sense", block_limits),
    writing("ssc-write-read", "SSC-4, READ(6), WRITE(6)", "a variable-length block comes back", write_read),
    writing("ssc-short-block", "SSC-4, READ(6)", "a shorter block is ILI with a positive difference", short_block),
    writing("ssc-long-block", "SSC-4, READ(6)", "a longer block is ILI with a negative difference", long_block),
    writing("ssc-sili-short", "SSC-4, READ(6)", "with SILI a shorter block is GOOD", sili_short),
    writing("ssc-sili-long", "SSC-4, READ(6)", "with SILI and no block length a longer block is GOOD", sili_long),
    writing("ssc-sili-long-mode", "SSC-4, READ(6)", "with SILI and a block length a longer block is ILI", sili_mode),
    writing("ssc-sili-fixed", "SSC-4, READ(6)", "SILI with FIXED is refused", sili_fixed),
    writing("ssc-fixed-no-length", "SSC-4, READ(6), WRITE(6)", "FIXED without a block length is refused", no_length),
    writing("ssc-fixed", "SSC-4, READ(6), WRITE(6)", "fixed-length blocks come back", fixed),
    writing("ssc-fixed-wrong-length", "SSC-4, READ(6)", "among fixed-length blocks another length is ILI", fixed_ili),
    writing("ssc-fixed-filemark", "SSC-4, READ(6)", "a filemark tells how many blocks are left", fixed_filemark),
    writing("ssc-fixed-end", "SSC-4, READ(6)", "the end of data tells how many blocks are left", fixed_end),
    writing("ssc-filemark", "SSC-4, READ(6)", "a filemark ends READ behind it", filemark),
    writing("ssc-end-of-data", "SSC-4, READ(6)", "READ at the end of data is BLANK CHECK", end_of_data),
    writing("ssc-read-nothing", "SSC-4, READ(6)", "a transfer length of 0 reads nothing", read_nothing),
    writing("ssc-write-nothing", "SSC-4, WRITE(6)", "a transfer length of 0 writes nothing", write_nothing),
    writing("ssc-overwrite", "SSC-4, WRITE(6)", "a write ends the data behind it", overwrite),
    writing("ssc-long-write", "SSC-4, WRITE(6)", "a block longer than the limit is refused", long_write),
    writing("ssc-read-write-16", "SSC-4, READ(16), WRITE(16)", "the 16-byte forms use the position", sixteen),
    writing("ssc-filemarks", "SSC-4, WRITE FILEMARKS(6)", "each filemark is an object", filemarks),
    writing("ssc-filemarks-none", "SSC-4, WRITE FILEMARKS(6)", "no filemarks are no object", no_filemarks),
    writing("ssc-filemarks-16", "SSC-4, WRITE FILEMARKS(16)", "the 16-byte form writes filemarks", filemarks_16),
    writing("ssc-verify", "SSC-4, VERIFY(6)", "VERIFY passes over a block of this length", verify),
    writing("ssc-verify-length", "SSC-4, VERIFY(6)", "VERIFY of another length is ILI", verify_length),
    writing("ssc-verify-filemark", "SSC-4, VERIFY(6)", "VERIFY ends behind a filemark", verify_filemark),
];

fn inquiry(fixture: &mut Fixture) -> Outcome {
    let mut device = Device::attach(fixture)?;
    let data = device.get(&[0x12, 0, 0, 0, 96, 0], 96)?.good("INQUIRY")?.data;
    require!(byte(&data, 1) & 0x80 != 0, "RMB is 0: byte 1 is {:02x}", byte(&data, 1));
    Ok(())
}

/// Returns the longest and the shortest block.
fn limits(device: &mut Device) -> Outcome<(u32, u16)> {
    let data = device.get(&[0x05, 0, 0, 0, 0, 0], 6)?.good("READ BLOCK LIMITS")?.data;
    require!(data.len() == 6, "READ BLOCK LIMITS returns {} bytes, not 6", data.len());
    Ok((triple(&data, 1), half(&data, 4)))
}

fn block_limits(fixture: &mut Fixture) -> Outcome {
    let (longest, shortest) = limits(&mut Device::attach(fixture)?)?;
    let makes_sense = longest == 0 || u32::from(shortest) <= longest;
    require!(makes_sense, "the shortest block has {shortest} bytes, the longest {longest}");
    Ok(())
}

fn write_read(fixture: &mut Fixture) -> Outcome {
    let mut tape = Tape::blank(fixture)?;
    tape.lay_out("bb")?;
    tape.rewind()?;
    tape.reads_block("READ(6) of block 0", 0)?;
    tape.reads_block("READ(6) of block 1", 1)
}

/// The sense data of a block of another length than requested.
const fn wrong_length(information: i64) -> Expected {
    Expected { key: key::NO_SENSE, code: 0, bits: stream::ILI, information }
}

fn short_block(fixture: &mut Fixture) -> Outcome {
    let mut tape = Tape::blank(fixture)?;
    tape.lay_out("bb")?;
    tape.rewind()?;
    let done = tape.read(0, BLOCK_U32 + 900)?;
    done.reports("READ(6) of 900 bytes too many", wrong_length(900))?;
    require!(done.data == content(0), "the block does not come with the report: {} bytes", done.data.len());
    require!(
        done.residual == Residual::Underflow(900),
        "expected a residual underflow of 900, came {:?}",
        done.residual
    );
    tape.reads_block("READ(6) behind the block", 1)
}

fn long_block(fixture: &mut Fixture) -> Outcome {
    let mut tape = Tape::blank(fixture)?;
    tape.lay_out("bb")?;
    tape.rewind()?;
    let done = tape.read(0, 100)?;
    done.reports("READ(6) of 500 bytes too few", wrong_length(-500))?;
    require!(
        Some(done.data.as_slice()) == content(0).get(..100),
        "the first 100 bytes of the block do not come with the report"
    );
    tape.reads_block("READ(6) behind the block", 1)
}

fn sili_short(fixture: &mut Fixture) -> Outcome {
    let mut tape = Tape::blank(fixture)?;
    tape.lay_out("bb")?;
    tape.rewind()?;
    let done = tape.read(SILI, BLOCK_U32 + 900)?.good("READ(6) with SILI of 900 bytes too many")?;
    require!(done.data == content(0), "the block is not that which was written");
    require!(
        done.residual == Residual::Underflow(900),
        "expected a residual underflow of 900, came {:?}",
        done.residual
    );
    tape.reads_block("READ(6) behind the block", 1)
}

fn sili_long(fixture: &mut Fixture) -> Outcome {
    let mut tape = Tape::blank(fixture)?;
    tape.lay_out("bb")?;
    tape.rewind()?;
    let done = tape.read(SILI, 100)?.good("READ(6) with SILI of 500 bytes too few")?;
    require!(Some(done.data.as_slice()) == content(0).get(..100), "these are not its first 100 bytes");
    tape.reads_block("READ(6) behind the block", 1)
}

fn sili_mode(fixture: &mut Fixture) -> Outcome {
    let mut tape = Tape::blank(fixture)?;
    tape.lay_out("bb")?;
    tape.rewind()?;
    tape.with_block_len(512, |tape| {
        tape.read(SILI, 100)?.reports("READ(6) with SILI of 500 bytes too few", wrong_length(-500))?;
        tape.reads_block("READ(6) behind the block", 1)
    })
}

fn sili_fixed(fixture: &mut Fixture) -> Outcome {
    let mut tape = Tape::blank(fixture)?;
    tape.lay_out("b")?;
    tape.rewind()?;
    tape.with_block_len(BLOCK_U32, |tape| {
        let done = tape.device.get(&six(0x08, FIXED | SILI, 1), BLOCK_U32)?;
        done.refused("READ(6) with FIXED and SILI", key::ILLEGAL_REQUEST, asc::INVALID_FIELD_IN_CDB)?;
        tape.reads_block("READ(6) after the refusal", 0)
    })
}

fn no_length(fixture: &mut Fixture) -> Outcome {
    let mut tape = Tape::blank(fixture)?;
    tape.lay_out("b")?;
    tape.rewind()?;
    let done = tape.device.get(&six(0x08, FIXED, 1), 512)?;
    done.refused("READ(6) with FIXED", key::ILLEGAL_REQUEST, asc::INVALID_FIELD_IN_CDB)?;
    let done = tape.device.put(&six(0x0a, FIXED, 1), &[0; 512])?;
    done.refused("WRITE(6) with FIXED", key::ILLEGAL_REQUEST, asc::INVALID_FIELD_IN_CDB)?;
    tape.reads_block("READ(6) behind the refusals", 0)
}

fn fixed(fixture: &mut Fixture) -> Outcome {
    let mut tape = Tape::blank(fixture)?;
    let data = [content(0), content(1), content(2)].concat();
    tape.with_block_len(BLOCK_U32, |tape| {
        tape.device.put(&six(0x0a, FIXED, 3), &data)?.good("WRITE(6) of 3 fixed-length blocks")?;
        tape.rewind()?;
        let done = tape.device.get(&six(0x08, FIXED, 3), 3 * BLOCK_U32)?;
        let done = done.good("READ(6) of 3 fixed-length blocks")?;
        require!(done.data == data, "the blocks are not those that were written");
        tape.rewind()?;
        tape.reads_block("READ(6) without FIXED of a block that was written with it", 0)
    })
}

fn fixed_ili(fixture: &mut Fixture) -> Outcome {
    let mut tape = Tape::blank(fixture)?;
    tape.lay_out("bb")?;
    tape.write(&[7; 100])?.good("WRITE(6)")?;
    tape.lay_out("b")?;
    tape.rewind()?;
    tape.with_block_len(BLOCK_U32, |tape| {
        let done = tape.device.get(&six(0x08, FIXED, 4), 4 * BLOCK_U32)?;
        done.reports("READ(6) of 4 blocks, the third too short", wrong_length(2))?;
        let first = [content(0), content(1)].concat();
        require!(done.data.starts_with(&first), "the first two blocks do not come with the report");
        tape.reads_block("READ(6) behind the block of another length", 0)
    })
}

/// The sense data of a command that meets a filemark.
pub(super) const fn at_filemark(information: i64) -> Expected {
    Expected { key: key::NO_SENSE, code: asc::FILEMARK, bits: stream::FILEMARK, information }
}

/// The sense data of a command that meets the end of data.
pub(super) const fn at_end_of_data(information: i64) -> Expected {
    Expected { key: key::BLANK_CHECK, code: asc::END_OF_DATA, bits: 0, information }
}

/// Fails unless the next READ meets the end of data. A case of its own judges the rest of the sense data.
pub(super) fn is_at_end(tape: &mut Tape) -> Outcome {
    let done = tape.read(0, BLOCK_U32)?;
    let is_blank = done.sense_code().is_some_and(|(key, _)| key == key::BLANK_CHECK);
    require!(is_blank, "READ(6) at the end of data: expected BLANK CHECK, came {}", done.shown());
    Ok(())
}

fn fixed_filemark(fixture: &mut Fixture) -> Outcome {
    let mut tape = Tape::blank(fixture)?;
    tape.lay_out("bbfb")?;
    tape.rewind()?;
    tape.with_block_len(BLOCK_U32, |tape| {
        let done = tape.device.get(&six(0x08, FIXED, 5), 5 * BLOCK_U32)?;
        done.reports("READ(6) of 5 blocks, a filemark behind 2", at_filemark(3))?;
        let first = [content(0), content(1)].concat();
        require!(done.data == first, "the two blocks do not come with the report");
        tape.reads_block("READ(6) behind the filemark", 3)
    })
}

fn fixed_end(fixture: &mut Fixture) -> Outcome {
    let mut tape = Tape::blank(fixture)?;
    tape.lay_out("bb")?;
    tape.rewind()?;
    tape.with_block_len(BLOCK_U32, |tape| {
        let done = tape.device.get(&six(0x08, FIXED, 5), 5 * BLOCK_U32)?;
        done.reports("READ(6) of 5 blocks, 2 before the end of data", at_end_of_data(3))?;
        is_at_end(tape)
    })
}

fn filemark(fixture: &mut Fixture) -> Outcome {
    let mut tape = Tape::blank(fixture)?;
    tape.lay_out("bfb")?;
    tape.rewind()?;
    tape.reads_block("READ(6) before the filemark", 0)?;
    let done = tape.read(0, BLOCK_U32)?;
    done.reports("READ(6) of a filemark", at_filemark(BLOCK_U32.into()))?;
    require!(done.data.is_empty(), "{} bytes come with a filemark", done.data.len());
    tape.reads_block("READ(6) behind the filemark", 2)
}

fn end_of_data(fixture: &mut Fixture) -> Outcome {
    let mut tape = Tape::blank(fixture)?;
    tape.lay_out("b")?;
    for _ in 0..2 {
        let done = tape.read(0, BLOCK_U32)?;
        done.reports("READ(6) at the end of data", at_end_of_data(BLOCK_U32.into()))?;
    }
    Ok(())
}

fn read_nothing(fixture: &mut Fixture) -> Outcome {
    let mut tape = Tape::blank(fixture)?;
    tape.lay_out("bb")?;
    tape.rewind()?;
    tape.device.ask(&six(0x08, 0, 0))?.good("READ(6) of 0 bytes")?;
    tape.reads_block("READ(6) after READ(6) of 0 bytes", 0)
}

fn write_nothing(fixture: &mut Fixture) -> Outcome {
    let mut tape = Tape::blank(fixture)?;
    tape.lay_out("bb")?;
    tape.rewind()?;
    tape.device.ask(&six(0x0a, 0, 0))?.good("WRITE(6) of 0 bytes")?;
    tape.reads_block("READ(6) after WRITE(6) of 0 bytes", 0)
}

fn overwrite(fixture: &mut Fixture) -> Outcome {
    let mut tape = Tape::blank(fixture)?;
    tape.lay_out("bbfb")?;
    tape.rewind()?;
    tape.lay_out("b")?;
    is_at_end(&mut tape)
}

fn long_write(fixture: &mut Fixture) -> Outcome {
    let mut tape = Tape::blank(fixture)?;
    let (longest, _) = limits(&mut tape.device)?;
    need!(longest != 0 && longest < 0xff_ffff, "every length that fits into the CDB is allowed");
    let len = longest + 1;
    let data = vec![0; usize::try_from(len).unwrap_or(0)];
    let done = tape.device.put(&six(0x0a, 0, len), &data)?;
    done.refused("WRITE(6) of a longer block", key::ILLEGAL_REQUEST, asc::INVALID_FIELD_IN_CDB)?;
    tape.lay_out("b")?;
    tape.rewind()?;
    tape.reads_block("READ(6) of the block that was written after the refusal", 0)
}

fn sixteen(fixture: &mut Fixture) -> Outcome {
    let mut tape = Tape::blank(fixture)?;
    let [high, low] = 600u16.to_be_bytes();
    let transfer = |operation: u8| [operation, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, high, low, 0];
    let done = tape.device.put(&transfer(0x8a), &content(0))?;
    done.optional("WRITE(16)")?.good("WRITE(16)")?;
    tape.rewind()?;
    let done = tape.device.get(&transfer(0x88), BLOCK_U32)?.optional("READ(16)")?.good("READ(16)")?;
    require!(done.data == content(0), "the block is not that which was written");
    is_at_end(&mut tape)
}

fn filemarks(fixture: &mut Fixture) -> Outcome {
    let mut tape = Tape::blank(fixture)?;
    tape.lay_out("b")?;
    tape.write_filemarks(3)?;
    tape.space(space::FILEMARKS, -3)?.good("SPACE(6) of -3 filemarks")?;
    tape.space(space::BLOCKS, -1)?.good("SPACE(6) of -1 block")?;
    tape.reads_block("READ(6) of the block before them", 0)
}

fn no_filemarks(fixture: &mut Fixture) -> Outcome {
    let mut tape = Tape::blank(fixture)?;
    tape.lay_out("b")?;
    tape.write_filemarks(0)?;
    is_at_end(&mut tape)?;
    tape.space(space::BLOCKS, -1)?.good("SPACE(6) of -1 block")?;
    tape.reads_block("READ(6) of the block before no filemarks", 0)
}

fn filemarks_16(fixture: &mut Fixture) -> Outcome {
    let mut tape = Tape::blank(fixture)?;
    let done = tape.device.ask(&[0x80, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 2, 0])?;
    done.optional("WRITE FILEMARKS(16)")?.good("WRITE FILEMARKS(16)")?;
    tape.rewind()?;
    tape.space(space::FILEMARKS, 2)?.good("SPACE(6) of 2 filemarks")?;
    is_at_end(&mut tape)
}

/// VERIFY(6) of a variable-length block.
fn verify_cdb(len: u32) -> [u8; 6] {
    six(0x13, 0, len)
}

fn verify(fixture: &mut Fixture) -> Outcome {
    let mut tape = Tape::blank(fixture)?;
    tape.lay_out("bb")?;
    tape.rewind()?;
    tape.device.ask(&verify_cdb(BLOCK_U32))?.optional("VERIFY(6)")?.good("VERIFY(6)")?;
    tape.reads_block("READ(6) behind the block", 1)
}

fn verify_length(fixture: &mut Fixture) -> Outcome {
    let mut tape = Tape::blank(fixture)?;
    tape.lay_out("bb")?;
    tape.rewind()?;
    let done = tape.device.ask(&verify_cdb(BLOCK_U32 + 900))?.optional("VERIFY(6)")?;
    done.reports("VERIFY(6) of 900 bytes too many", wrong_length(900))?;
    tape.reads_block("READ(6) behind the block", 1)
}

fn verify_filemark(fixture: &mut Fixture) -> Outcome {
    let mut tape = Tape::blank(fixture)?;
    tape.lay_out("fb")?;
    tape.rewind()?;
    let done = tape.device.ask(&verify_cdb(BLOCK_U32))?.optional("VERIFY(6)")?;
    done.reports("VERIFY(6) of a filemark", at_filemark(BLOCK_U32.into()))?;
    tape.reads_block("READ(6) behind the filemark", 1)
}
