//! The commands of initiators: random commands, each with its effect on blocks.

use std::collections::BTreeMap;

use base::rng::Rng;
use base::units::Lba;
use oracle::block_header::{BlockHeader, Generation, Sequence, WriterId};
use oracle::history::{BlockSignature, Change, Content, Planned};
use oracle::pattern::Pattern;
use scsi::copy::ListId;
use scsi::copy::cscd::{Cscd, CscdId};
use scsi::copy::list::{CopyList, Format, ListIdUsage};
use scsi::copy::segment::SegmentAction;

use crate::oracle_adapter::{Effect, OracleAdapter};
use crate::reservations::commands;
use crate::scenario::{Scenario, pick};
use crate::transport::{Attribute, ScsiCommand};
use crate::units;

/// The command generator of one initiator.
#[derive(Debug)]
pub struct Workload {
    writer: WriterId,
    sequence: u64,
    rng: Rng,
    block_len: usize,
    units: u16,
    blocks: u64,
    transfer_max: u64,
    reserves_one_in: u64,
    reserves_old_ones: bool,
    repeats_changes: bool,
    initiator: usize,
    pattern: Pattern,
    /// Whether the media lose unflushed writes when the power is cut.
    volatile: bool,
    /// The generation of each block that this initiator wrote, so that the block can be made again.
    generations: BTreeMap<BlockSignature, Generation>,
}

/// A run of blocks of one unit.
#[derive(Clone, Copy, Debug)]
struct Extent {
    unit: u16,
    lba: Lba,
    blocks: u64,
}

impl Workload {
    /// Makes the command generator of an initiator.
    pub fn new(scenario: &Scenario, initiator: usize, seed: u64) -> Self {
        let mut rng = Rng::from_seed(seed);
        Self {
            writer: WriterId(u32::try_from(initiator + 1).unwrap()),
            sequence: 0,
            block_len: scenario.medium.block_len,
            units: scenario.units,
            blocks: scenario.blocks,
            transfer_max: scenario.transfer_max,
            reserves_one_in: scenario.reserves_one_in,
            reserves_old_ones: scenario.reserves_old_ones,
            repeats_changes: scenario.repeats_changes,
            initiator,
            pattern: *pick(&mut rng, &Pattern::ALL),
            volatile: scenario.medium.volatile,
            generations: BTreeMap::new(),
            rng,
        }
    }

    /// Makes the next command.
    pub fn next(&mut self, oracle: &OracleAdapter) -> (ScsiCommand, Effect) {
        if self.reserves_one_in > 0 && self.rng.chance(1, self.reserves_one_in) {
            let unit = u16::try_from(self.rng.below(self.units.into())).unwrap();
            let old_ones = self.reserves_old_ones;
            let order = commands::next(&mut self.rng, oracle, self.initiator, unit, old_ones);
            return (order, Effect::Nothing);
        }
        let at = self.extent();
        let (mut order, meaning) = match self.rng.below(100) {
            0..34 => self.read(at),
            34..68 => self.write(oracle, at),
            68..74 => self.flush(at),
            74..80 => self.write_same(oracle, at),
            80..84 => self.unmap(oracle, at),
            84..89 => self.compare_and_write(oracle, at),
            89..92 => self.verify(oracle, at),
            92..95 => self.copy(oracle, at),
            _ => self.question(at),
        };
        order.attribute = *pick(
            &mut self.rng,
            &[
                Attribute::Simple,
                Attribute::Simple,
                Attribute::Simple,
                Attribute::Ordered,
                Attribute::HeadOfQueue,
            ],
        );
        order.immediate = self.rng.chance(1, 40);
        order.replay |= self.repeats_changes && may_run_twice(order.cdb[0]);
        (order, meaning)
    }

    fn extent(&mut self) -> Extent {
        // Half of all accesses go to the first twelve blocks.
        let blocks = if self.rng.chance(1, 2) { self.blocks.min(12) } else { self.blocks };
        let len = (1 + self.rng.below(self.transfer_max)).min(blocks);
        let lba = Lba(self.rng.below(blocks - len + 1));
        Extent { unit: u16::try_from(self.rng.below(self.units.into())).unwrap(), lba, blocks: len }
    }

    fn read(&mut self, at: Extent) -> (ScsiCommand, Effect) {
        let fua = u8::from(self.rng.chance(1, 8)) << 3;
        let cdb = self.transfer([0x08, 0x28, 0xa8, 0x88], fua, at);
        let mut order = order(at.unit, &cdb, Vec::new(), self.bytes(at.blocks));
        order.replay = self.rng.chance(1, 2);
        let Extent { unit, lba, blocks } = at;
        (order, Effect::Read { unit, lba, blocks })
    }

    fn write(&mut self, oracle: &OracleAdapter, at: Extent) -> (ScsiCommand, Effect) {
        let fua = self.rng.chance(1, 4);
        let verify = self.rng.chance(1, 12);
        let opcodes = if verify { [0x2e, 0x2e, 0xae, 0x8e] } else { [0x0a, 0x2a, 0xaa, 0x8a] };
        let mut cdb = self.transfer(opcodes, if verify { 0 } else { u8::from(fua) << 3 }, at);
        // The six-byte CDB has no FUA bit.
        let fua = fua && !verify && cdb[0] != 0x0a;
        if verify && self.rng.chance(1, 2) {
            cdb[1] |= 2;
        }
        let data = self.signed(oracle, at);
        let content = Planned::Signed(self.writer, Sequence(self.sequence));
        let change = self.change(oracle, at, content, fua);
        (order(at.unit, &cdb, data, 0), Effect::Change(vec![change]))
    }

    fn flush(&mut self, at: Extent) -> (ScsiCommand, Effect) {
        let opcode = *pick(&mut self.rng, &[0x35, 0x91]);
        let mut cdb = vec![0; if opcode == 0x35 { 10 } else { 16 }];
        cdb[0] = opcode;
        (order(at.unit, &cdb, Vec::new(), 0), Effect::Flush(at.unit))
    }

    fn write_same(&mut self, oracle: &OracleAdapter, at: Extent) -> (ScsiCommand, Effect) {
        let long = self.rng.chance(1, 2);
        let mut cdb = if long { long_cdb(0x93, at) } else { medium_cdb(0x41, at) };
        let no_data = long && self.rng.chance(1, 3);
        let zeros = no_data || self.rng.chance(1, 3);
        cdb[1] |= u8::from(no_data) | u8::from(zeros && self.rng.chance(1, 2)) << 3;
        let one = Extent { blocks: 1, ..at };
        let (data, content) = if zeros {
            (vec![0; if no_data { 0 } else { self.block_len }], Planned::Zero)
        } else {
            let data = self.signed(oracle, one);
            let (device, sequence) = (oracle.device(at.unit), Sequence(self.sequence));
            (data, Planned::Same(BlockSignature { device, lba: at.lba, writer: self.writer, sequence }))
        };
        let change = self.change(oracle, at, content, false);
        (order(at.unit, &cdb, data, 0), Effect::Change(vec![change]))
    }

    fn unmap(&mut self, oracle: &OracleAdapter, at: Extent) -> (ScsiCommand, Effect) {
        let mut list = vec![0, 22, 0, 16, 0, 0, 0, 0];
        list.extend(at.lba.0.to_be_bytes());
        list.extend(u32::try_from(at.blocks).unwrap().to_be_bytes());
        list.extend([0; 4]);
        let change = Change { optional: true, ..self.change(oracle, at, Planned::Zero, false) };
        let cdb = [0x42, 0, 0, 0, 0, 0, 0, 0, 24, 0];
        (order(at.unit, &cdb, list, 0), Effect::Change(vec![change]))
    }

    fn compare_and_write(&mut self, oracle: &OracleAdapter, at: Extent) -> (ScsiCommand, Effect) {
        let at = Extent { blocks: at.blocks.min(4), ..at };
        let (mut data, expected) = self.guess(oracle, at);
        data.extend(self.signed(oracle, at));
        let fua = self.rng.chance(1, 4);
        let mut cdb = long_cdb(0x89, at);
        cdb[1] |= u8::from(fua) << 3;
        cdb[10..14].copy_from_slice(&[0, 0, 0, u8::try_from(at.blocks).unwrap()]);
        let content = Planned::Signed(self.writer, Sequence(self.sequence));
        let change = self.change(oracle, at, content, fua);
        (order(at.unit, &cdb, data, 0), Effect::CompareAndWrite(change, expected))
    }

    fn verify(&mut self, oracle: &OracleAdapter, at: Extent) -> (ScsiCommand, Effect) {
        let at = Extent { blocks: at.blocks.min(4), ..at };
        let (data, expected) = self.guess(oracle, at);
        let mut cdb = long_cdb(0x8f, at);
        cdb[1] |= 2;
        let Extent { unit, lba, .. } = at;
        (order(unit, &cdb, data, 0), Effect::Verify { unit, lba, expected })
    }

    fn copy(&mut self, oracle: &OracleAdapter, at: Extent) -> (ScsiCommand, Effect) {
        // The copy goes from the lower half of the unit to the upper half. No copied block is ever copied
        // back, so a signed block in the address that it belongs to was written there and not copied there.
        let half = self.blocks / 2;
        let blocks = at.blocks.min(half);
        let at = Extent { lba: Lba(self.rng.below(half - blocks + 1)), blocks, ..at };
        let to = Extent {
            unit: u16::try_from(self.rng.below(self.units.into())).unwrap(),
            lba: Lba(half + self.rng.below(self.blocks - half - blocks + 1)),
            blocks,
        };
        let cscd = |unit: u16| Cscd {
            device_type: 0,
            code_set: 1,
            kind: 3,
            association: 0,
            designator: units::naa(unit),
            pad: false,
            block_len: u32::try_from(self.block_len).unwrap(),
            null: false,
        };
        let mut list = CopyList {
            format: Format::Lid1,
            list_id: ListId(0),
            usage: ListIdUsage::Unnamed,
            priority: 0,
            cscds: vec![cscd(at.unit), cscd(to.unit)],
            segments: Vec::new(),
            inline: Vec::new(),
        };
        list.push(SegmentAction::Blocks {
            counts_destination: true,
            keep_residual: false,
            source: CscdId(0),
            destination: CscdId(1),
            count: u16::try_from(at.blocks).unwrap(),
            source_lba: at.lba,
            destination_lba: to.lba,
        });
        let data = list.to_bytes();
        let mut cdb = [0; 16];
        cdb[0] = 0x83;
        cdb[10..14].copy_from_slice(&u32::try_from(data.len()).unwrap().to_be_bytes());
        let content = Planned::CopyOf(oracle.device(at.unit), at.lba);
        let change = self.change(oracle, to, content, false);
        (order(at.unit, &cdb, data, 0), Effect::Change(vec![change]))
    }

    /// Makes a command that accesses no block.
    fn question(&mut self, at: Extent) -> (ScsiCommand, Effect) {
        let (cdb, len): (&[u8], u32) = *pick(
            &mut self.rng,
            &[
                (&[0x00, 0, 0, 0, 0, 0][..], 0),
                (&[0x12, 0, 0, 0, 96, 0], 96),
                (&[0x12, 1, 0x83, 1, 0, 0], 256),
                (&[0x25, 0, 0, 0, 0, 0, 0, 0, 0, 0], 8),
                (&[0x9e, 0x10, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 32, 0, 0], 32),
                (&[0x9e, 0x12, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 200, 0, 0], 200),
                (&[0xa0, 0, 0, 0, 0, 0, 0, 0, 0, 64, 0, 0], 64),
                (&[0x1a, 0, 0x3f, 0, 255, 0], 255),
                (&[0x5e, 0, 0, 0, 0, 0, 0, 1, 0, 0], 256),
                (&[0xff, 0, 0, 0, 0, 0], 16),
            ],
        );
        (order(at.unit, cdb, Vec::new(), len), Effect::Nothing)
    }

    /// Guesses the contents of blocks, mostly correctly. Returns the bytes, and the contents that they
    /// represent.
    fn guess(&mut self, oracle: &OracleAdapter, at: Extent) -> (Vec<u8>, Vec<Content>) {
        let mut data = Vec::new();
        let mut contents = Vec::new();
        for lba in at.lba.0..at.lba.0 + at.blocks {
            // Only blocks of zeros and blocks that this initiator wrote can be made again; the guess for
            // other blocks is wrong.
            let one = Extent { lba: Lba(lba), blocks: 1, ..at };
            let likely = oracle.history().expected_content(oracle.device(at.unit), Lba(lba));
            if likely.contains(&Content::Zero) || self.rng.chance(1, 2) {
                data.resize(data.len() + self.block_len, 0);
                contents.push(Content::Zero);
            } else {
                let block = likely.first().and_then(|content| self.remake(oracle, at.unit, *content));
                let (block, content) = block.unwrap_or_else(|| {
                    let block = self.signed(oracle, one);
                    let (device, sequence) = (oracle.device(at.unit), Sequence(self.sequence));
                    (
                        block,
                        Content::Signed(BlockSignature {
                            device,
                            lba: Lba(lba),
                            writer: self.writer,
                            sequence,
                        }),
                    )
                });
                data.extend(block);
                contents.push(content);
            }
        }
        (data, contents)
    }

    /// Signs the same block again. This is possible because everything in a block header follows from its
    /// signature.
    fn remake(&self, oracle: &OracleAdapter, unit: u16, content: Content) -> Option<(Vec<u8>, Content)> {
        let Content::Signed(mark) = content else { return None };
        (mark.device == oracle.device(unit) && mark.writer == self.writer).then(|| {
            let mut block = vec![0; self.block_len];
            self.block_header(mark, *self.generations.get(&mark)?).sign(&mut block).unwrap();
            Some((block, content))
        })?
    }

    fn signed(&mut self, oracle: &OracleAdapter, at: Extent) -> Vec<u8> {
        self.sequence += 1;
        let mut data = vec![0; self.block_len * usize::try_from(at.blocks).unwrap()];
        for (lba, block) in (at.lba.0..).zip(data.chunks_mut(self.block_len)) {
            let device = oracle.device(at.unit);
            let (lba, sequence) = (Lba(lba), Sequence(self.sequence));
            let mark = BlockSignature { device, lba, writer: self.writer, sequence };
            let generation = oracle.history().next_generation(device, lba);
            self.generations.insert(mark, generation);
            self.block_header(mark, generation).sign(block).unwrap();
        }
        data
    }

    const fn block_header(&self, mark: BlockSignature, generation: Generation) -> BlockHeader {
        let BlockSignature { device, lba, writer, sequence } = mark;
        let (time_ns, seed, pattern) = (0, writer.0, self.pattern);
        BlockHeader { device, lba, generation, writer, sequence, time_ns, seed, pattern }
    }

    fn change(&self, oracle: &OracleAdapter, at: Extent, content: Planned, fua: bool) -> Change {
        let device = oracle.device(at.unit);
        let stable = fua || !self.volatile;
        Change { device, lba: at.lba, blocks: at.blocks, content, stable, optional: false }
    }

    fn bytes(&self, blocks: u64) -> u32 {
        u32::try_from(blocks).unwrap() * u32::try_from(self.block_len).unwrap()
    }

    /// Makes a READ or WRITE with a CDB of one of the four lengths.
    fn transfer(&mut self, opcodes: [u8; 4], flags: u8, at: Extent) -> Vec<u8> {
        let which = usize::try_from(self.rng.below(4)).unwrap();
        let lba = u32::try_from(at.lba.0).unwrap().to_be_bytes();
        let blocks = u32::try_from(at.blocks).unwrap().to_be_bytes();
        let opcode = opcodes[which];
        match opcode >> 5 {
            0 => vec![opcode, lba[1] & 0x1f, lba[2], lba[3], blocks[3], 0],
            1 => vec![opcode, flags, lba[0], lba[1], lba[2], lba[3], 0, blocks[2], blocks[3], 0],
            5 => [&[opcode, flags][..], &lba, &blocks, &[0, 0]].concat(),
            _ => [&[opcode, flags][..], &[0; 4], &lba, &blocks, &[0, 0]].concat(),
        }
    }
}

fn order(unit: u16, cdb: &[u8], data_out: Vec<u8>, data_in_len: u32) -> ScsiCommand {
    let attribute = Attribute::Simple;
    ScsiCommand { unit, cdb: cdb.to_vec(), data_out, data_in_len, attribute, immediate: false, replay: false }
}

/// Returns whether a block layer lets its initiator repeat a command that changes blocks: WRITE, WRITE SAME
/// and UNMAP leave the same after a second execution.
const fn may_run_twice(opcode: u8) -> bool {
    matches!(opcode, 0x0a | 0x2a | 0xaa | 0x8a | 0x41 | 0x93 | 0x42)
}

fn long_cdb(opcode: u8, at: Extent) -> Vec<u8> {
    let blocks = u32::try_from(at.blocks).unwrap().to_be_bytes();
    [&[opcode, 0][..], &at.lba.0.to_be_bytes(), &blocks, &[0, 0]].concat()
}

fn medium_cdb(opcode: u8, at: Extent) -> Vec<u8> {
    let lba = u32::try_from(at.lba.0).unwrap().to_be_bytes();
    let blocks = u16::try_from(at.blocks).unwrap().to_be_bytes();
    [&[opcode, 0][..], &lba, &[0], &blocks, &[0]].concat()
}
