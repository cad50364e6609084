//! Cases on tape drives: SSC-4, a case for each rule.
//!
//! Every case that moves the position is a writing one: the next write of another program would begin
//! elsewhere. A case begins at the beginning of the partition in variable-length blocks and leaves the drive
//! so, with what it wrote.

mod blocks;
mod medium;
mod parameters;
mod position;

use crate::entropy::pattern;
use crate::verdict::Outcome;
use crate::wire::word;

use super::Test;
use super::changes::Change;
use super::device::{Device, byte};
use super::fixture::Fixture;
use super::pages::ModeParameters;
use super::task::Done;

pub(super) const TABLES: &[&[Test]] = &[blocks::CASES, position::CASES, parameters::CASES, medium::CASES];

/// The length of the blocks that most cases write.
const BLOCK: usize = 600;
const BLOCK_U32: u32 = 600;

/// CODE of SPACE.
mod space {
    pub(super) const BLOCKS: u8 = 0;
    pub(super) const FILEMARKS: u8 = 1;
    pub(super) const END_OF_DATA: u8 = 3;
}

/// The write protect bit in the device-specific parameter.
const WRITE_PROTECT: u8 = 0x80;
/// MEDIUM TYPE of a write-once cartridge, in attribute 0408h.
const WRITE_ONCE: u8 = 0x80;

/// A tape drive with a cartridge.
struct Tape {
    device: Device,
}

impl Tape {
    /// Logs in to a drive that is ready.
    fn attach(fixture: &mut Fixture) -> Outcome<Self> {
        let mut device = Device::attach(fixture)?;
        device.need_ready()?;
        Ok(Self { device })
    }

    /// Logs in to a drive whose cartridge can be overwritten, sets variable-length blocks and rewinds.
    fn blank(fixture: &mut Fixture) -> Outcome<Self> {
        let mut tape = Self::attach(fixture)?;
        let mode = tape.device.mode_6(0)?;
        need!(mode.device_specific & WRITE_PROTECT == 0, "the cartridge is write-protected");
        need!(!tape.is_write_once()?, "the cartridge can be written once only");
        // The case overwrites the cartridge from its beginning, where it leaves the tape.
        tape.device.will_change(Change::Position(0));
        if mode.block_len() != 0 {
            tape.set_block_len(&mode, 0)?.good("MODE SELECT(6) of block length 0")?;
        }
        tape.rewind()?;
        Ok(tape)
    }

    /// Logs in to a drive that is ready, and notes the position for the return.
    fn keeping_position(fixture: &mut Fixture) -> Outcome<Self> {
        let mut tape = Self::attach(fixture)?;
        // A drive that does not report its position fails other cases.
        if let Ok(position) = tape.short_position() {
            tape.device.will_change(Change::Position(word(&position, 4)));
        }
        Ok(tape)
    }

    /// Returns whether the cartridge is one that can be written once, as its memory tells.
    fn is_write_once(&mut self) -> Outcome<bool> {
        let done = self.device.get(&[0x8c, 0, 0, 0, 0, 0, 0, 0, 0x04, 0x08, 0, 0, 0, 32, 0, 0], 32)?;
        Ok(done.is_good() && byte(&done.data, 4) == 0x04 && byte(&done.data, 9) == WRITE_ONCE)
    }

    /// Runs `case` with fixed-length blocks of this length, and sets variable-length blocks again.
    fn with_block_len(&mut self, len: u32, case: impl FnOnce(&mut Self) -> Outcome) -> Outcome {
        let mode = self.device.mode_6(0)?;
        self.set_block_len(&mode, len)?.good("MODE SELECT(6) of a block length")?;
        let outcome = case(self);
        // The reason why the case failed is told, rather than that of the return.
        let restored = self.set_block_len(&mode, 0)?.good("MODE SELECT(6) of block length 0");
        outcome.and(restored.map(drop))
    }

    /// Sends MODE SELECT(6) with the current header and block descriptor, and another block length.
    fn set_block_len(&mut self, mode: &ModeParameters, len: u32) -> Outcome<Done> {
        let [_, a, b, c] = len.to_be_bytes();
        let density = byte(&mode.block_descriptor, 0);
        let list = [0, 0, mode.device_specific & 0x7f, 8, density, 0, 0, 0, 0, a, b, c];
        self.will_change_mode(mode);
        self.device.put(&[0x15, 0x10, 0, 0, 12, 0], &list)
    }

    /// Registers that the next command changes the mode parameters from these.
    fn will_change_mode(&self, mode: &ModeParameters) {
        let len = u8::try_from(mode.block_descriptor.len()).unwrap_or(0);
        let list = [&[0, 0, mode.device_specific & 0x7f, len][..], &mode.block_descriptor].concat();
        self.device.will_change(Change::Mode(list));
    }

    fn rewind(&mut self) -> Outcome {
        self.device.ask(&[0x01, 0, 0, 0, 0, 0])?.good("REWIND").map(drop)
    }

    /// WRITE(6) of a variable-length block.
    fn write(&mut self, data: &[u8]) -> Outcome<Done> {
        let len = u32::try_from(data.len()).unwrap_or(u32::MAX);
        self.device.put(&six(0x0a, 0, len), data)
    }

    /// READ(6) of a variable-length block with these flags.
    fn read(&mut self, flags: u8, len: u32) -> Outcome<Done> {
        self.device.get(&six(0x08, flags, len), len)
    }

    fn write_filemarks(&mut self, count: u32) -> Outcome {
        self.device.ask(&six(0x10, 0, count))?.good("WRITE FILEMARKS(6)").map(drop)
    }

    /// Writes what `layout` says: a block for each `b`, a filemark for each `f`. Block n of the partition,
    /// filemarks counted, holds [`content`] of n.
    fn lay_out(&mut self, layout: &str) -> Outcome {
        for (number, object) in (0u32..).zip(layout.chars()) {
            match object {
                'f' => self.write_filemarks(1)?,
                _ => drop(self.write(&content(number))?.good("WRITE(6)")?),
            }
        }
        Ok(())
    }

    /// SPACE(6).
    fn space(&mut self, code: u8, count: i32) -> Outcome<Done> {
        self.device.ask(&six(0x11, code, count.cast_unsigned()))
    }

    /// LOCATE(10) of an object in the partition.
    fn locate(&mut self, object: u32) -> Outcome<Done> {
        let [a, b, c, d] = object.to_be_bytes();
        self.device.ask(&[0x2b, 0, 0, a, b, c, d, 0, 0, 0])
    }

    /// Returns the data of READ POSITION, SHORT FORM.
    fn short_position(&mut self) -> Outcome<Vec<u8>> {
        let done = self.device.get(&[0x34, 0, 0, 0, 0, 0, 0, 0, 0, 0], 20)?;
        let data = done.good("READ POSITION, SHORT FORM")?.data;
        require!(data.len() == 20, "READ POSITION, SHORT FORM returns {} bytes, not 20", data.len());
        Ok(data)
    }

    /// Fails unless the next object is the one with this number.
    fn stands_at(&mut self, what: &str, object: u32) -> Outcome {
        let data = self.short_position()?;
        let came = word(&data, 4);
        require!(came == object, "{what}: expected position {object}, came {came}");
        Ok(())
    }

    /// Reads block n as [`Self::lay_out`] wrote it.
    fn reads_block(&mut self, what: &str, number: u32) -> Outcome {
        let done = self.read(0, BLOCK_U32)?.good(what)?;
        require!(done.data == content(number), "{what}: the block is not block {number}");
        Ok(())
    }
}

/// Returns a CDB of six bytes with a field of three bytes.
fn six(operation: u8, flags: u8, field: u32) -> [u8; 6] {
    let [_, a, b, c] = field.to_be_bytes();
    [operation, flags, a, b, c, 0]
}

/// Returns what block n of a layout holds.
fn content(number: u32) -> Vec<u8> {
    pattern(u64::from(number) + 1, BLOCK)
}
