//! What a damaged or hostile cartridge can hold, and sequences of commands on it.
//!
//! The input is a list of changes to the files of a small cartridge, then commands. Checksums of the changed
//! parts can be made right again, so that the fields behind them are reached as well.
#![no_main]

use base::buffer::Bytes;
use cartridge::Cartridge;
use cartridge::blocking::run;
use cartridge::command::{Command, Destination, Outcome, Record, SpaceUnit};
use cartridge::error::Error;
use cartridge::io::FileId;
use cartridge::label::{Blank, Label};
use cartridge::layout::{CHUNK_LEN, ChunkHeader, ItemHeader, Seal};
use cartridge::profile::Profile;
use cartridge::testing::MemoryFiles;
use libfuzzer_sys::fuzz_target;

const LOG: FileId = FileId::Log { partition: 0, segment: 0 };
const ENTROPY: [u8; 48] = [3; 48];
const COMMANDS_MAX: usize = 64;

struct Input<'a>(&'a [u8]);

impl Input<'_> {
    fn byte(&mut self) -> Option<u8> {
        let (first, rest) = self.0.split_first()?;
        self.0 = rest;
        Some(*first)
    }

    fn short(&mut self) -> Option<u16> {
        Some(u16::from_be_bytes([self.byte()?, self.byte()?]))
    }

    fn word(&mut self) -> Option<u64> {
        let (first, rest) = self.0.split_first_chunk()?;
        self.0 = rest;
        Some(u64::from_be_bytes(*first))
    }
}

fuzz_target!(|input: &[u8]| {
    let mut input = Input(input);
    let mut files = written();
    let changes = input.byte().unwrap_or(0) % 16;
    for _ in 0..changes {
        if change(&mut files, &mut input).is_none() {
            break;
        }
    }
    let mut tape = Cartridge::new();
    let is_writable = input.byte().unwrap_or(1) & 1 != 0;
    if run(&mut tape, &mut files, Command::Load { is_writable }).is_err() {
        return;
    }
    for _ in 0..COMMANDS_MAX {
        let Some(command) = command(&mut input) else { break };
        let _ = run(&mut tape, &mut files, command);
        let Some(label) = tape.label() else { break };
        assert!(usize::from(tape.position().partition) < label.partitions.len());
    }
    // Reading ends, and skips what is damaged.
    let start = Command::Locate { partition: 0, destination: Destination::Object(0) };
    if run(&mut tape, &mut files, start).is_err() {
        return;
    }
    loop {
        let before = tape.position();
        match run(&mut tape, &mut files, Command::Read) {
            Ok(Outcome::EndOfData) => break,
            Ok(_) => assert!(tape.position().object == before.object + 1),
            Err(Error::Damaged { .. }) => {
                let skipped = run(&mut tape, &mut files, Command::SkipDamage);
                assert!(matches!(skipped, Ok(Outcome::Skipped { .. })), "{skipped:?}");
                assert!(tape.position().stored_len() > before.stored_len(), "no step forward");
            }
            Err(_) => break,
        }
    }
    let _ = run(&mut tape, &mut files, Command::Unload);
});

/// Returns a cartridge with some objects, part of them behind its checkpoint.
fn written() -> MemoryFiles {
    let blank = Blank {
        profile: Profile::Lto8,
        is_worm: false,
        barcode: String::new(),
        capacity: 4 << 20,
        partitions: Vec::new(),
        segment_len: CHUNK_LEN,
        date: *b"20261125",
        entropy: ENTROPY,
    };
    let mut files = MemoryFiles::new(&Label::blank(&blank).expect("a possible label"));
    let mut tape = Cartridge::new();
    let mut go = |command| run(&mut tape, &mut files, command).expect("a whole cartridge");
    go(Command::Load { is_writable: true });
    for len in [100, 3000, 70] {
        let data = Bytes::copied_from(&vec![7; len]).into();
        go(Command::Write(Record { data, is_compressed: len == 3000, ..Record::default() }));
        go(Command::WriteFilemarks { count: 1, is_immediate: false });
    }
    files
}

/// Changes some bytes. Returns nothing at the end of the input.
fn change(files: &mut MemoryFiles, input: &mut Input<'_>) -> Option<()> {
    let kind = input.byte()?;
    let at = usize::from(input.short()?);
    let file = if kind & 1 == 0 { LOG } else { FileId::Label };
    let bytes = files.files.get_mut(&file)?;
    if kind & 2 != 0 {
        bytes.truncate(at);
    }
    for _ in 0..input.byte()? % 16 {
        let value = input.byte()?;
        if let Some(byte) = bytes.get_mut(at) {
            *byte ^= value;
        }
    }
    if kind & 4 != 0 {
        mend(files, file, at, input)?;
    }
    Some(())
}

/// Writes fields with a right checksum.
fn mend(files: &mut MemoryFiles, file: FileId, at: usize, input: &mut Input<'_>) -> Option<()> {
    let seal = Seal::new(ENTROPY.first_chunk()?, 0);
    let bytes = files.files.get_mut(&file)?;
    if file == FileId::Label {
        let mut label = Label::decode(bytes).ok()?;
        let part = label.partitions.first_mut()?;
        let end = input.word()?;
        part.end = end % (5 << 20);
        part.objects = input.word()?;
        part.filemarks = u64::from(input.short()?);
        label.sequence = u64::MAX / 2;
        label.is_unloaded = end >> 63 != 0;
        let copy = label.encode();
        bytes.get_mut(..copy.len())?.copy_from_slice(&copy);
    } else if at < 64 {
        let mut header = ChunkHeader::decode(bytes, &seal, 0)?;
        header.first = input.word()?;
        header.object = input.word()?;
        header.durable = input.word()?;
        header.epoch ^= u32::from(header.durable >> 63 != 0);
        bytes.get_mut(..64)?.copy_from_slice(&header.encode(&seal));
    } else {
        let at = at - at % 64;
        let stream = u64::try_from(at - 64).ok()?;
        let mut header = ItemHeader::decode(bytes.get(at..)?, &seal, stream)?;
        header.object ^= u64::from(input.byte()?);
        header.len ^= u32::from(input.short()?);
        header.stored_len ^= u32::from(input.short()?);
        header.epoch ^= u32::from(input.byte()?);
        header.metadata_len ^= u16::from(input.byte()?);
        header.is_compressed ^= input.byte()? & 1 != 0;
        bytes.get_mut(at..at + 64)?.copy_from_slice(&header.encode(&seal));
    }
    Some(())
}

fn command(input: &mut Input<'_>) -> Option<Command> {
    let count = i64::from(input.byte()?) - 128;
    Some(match input.byte()? % 12 {
        0 | 1 => Command::Read,
        2 => Command::Peek,
        3 => {
            let data = Bytes::copied_from(&vec![1; usize::from(input.short()?)]).into();
            let metadata = vec![2; usize::from(input.byte()?)];
            Command::Write(Record { data, metadata, is_compressed: count < 0, ..Record::default() })
        }
        4 => Command::WriteFilemarks { count: u32::from(input.byte()? % 4), is_immediate: count < 0 },
        5 => Command::Locate {
            partition: input.byte()? % 3,
            destination: if count < 0 {
                Destination::Object(input.word()?)
            } else {
                Destination::Filemark(input.word()?)
            },
        },
        6 => Command::Space { unit: SpaceUnit::Records, count },
        7 => Command::Space { unit: SpaceUnit::Filemarks, count },
        8 => Command::Erase,
        9 => Command::SkipDamage,
        10 => Command::Format { partitions: vec![1 << 20; usize::from(input.byte()? % 5)] },
        _ => Command::SaveLabel,
    })
}
