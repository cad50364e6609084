//! `targe tape verify`.

use std::fmt::Write as _;
use std::path::Path;

use base::int_cast::{to_u32, to_u64};
use cartridge::command::{Command, Destination, LabelCopies, Outcome};
use cartridge::error::Error;
use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};

use super::{Tape, hex, note_recovery};
use crate::progress::Progress;
use crate::{Failure, print};

/// What verification found in a partition.
#[derive(Default)]
struct Verified {
    records: u64,
    filemarks: u64,
    bytes: u64,
    /// How many of the records are encrypted.
    encrypted: u64,
    /// The first object and the number of objects of each damaged part.
    damaged: Vec<(u64, u64)>,
    /// Why what is behind the last object cannot be read, if it cannot.
    unreadable_end: Option<Error>,
    digest: String,
}

pub(super) fn verify(dir: &Path, is_json: bool) -> Result<(), Failure> {
    let mut tape = Tape::load(dir, false)?;
    let total = (0..tape.partitions()).filter_map(|number| tape.cartridge.partition(number));
    let mut progress = Progress::new(Some(total.map(|part| part.end).sum()));
    let mut verified = Vec::new();
    for partition in 0..tape.partitions() {
        verified.push(verify_partition(&mut tape, partition, &mut progress)?);
    }
    drop(progress);
    let headers = tape.cartridge.damaged_headers().count();
    let copies = tape.report.label_copies;
    let is_label_damaged = copies == LabelCopies::OneDamaged;
    let is_read = |part: &Verified| part.damaged.is_empty() && part.unreadable_end.is_none();
    let is_whole = verified.iter().all(is_read) && headers == 0 && !is_label_damaged;
    if is_json {
        let parts: Vec<Value> = verified
            .iter()
            .map(|part| {
                let damaged: Vec<Value> = part
                    .damaged
                    .iter()
                    .map(|(first, count)| json!({ "first_object": first, "count": count }))
                    .collect();
                json!({ "records": part.records, "filemarks": part.filemarks, "bytes": part.bytes,
                        "encrypted": part.encrypted,
                        "damaged": damaged, "end_unreadable": part.unreadable_end.is_some(),
                        "sha256": part.digest })
            })
            .collect();
        let value = json!({ "whole": is_whole, "label_copy_damaged": is_label_damaged,
                            "damaged_chunk_headers": headers, "partitions": parts });
        print(&format!("{value:#}\n"));
    } else {
        print(&verification(&verified, headers, is_label_damaged));
        note_recovery(&tape);
    }
    if is_whole { Ok(()) } else { Err(Failure::Failed(format!("{}: the cartridge is damaged", tape.name))) }
}

fn verification(verified: &[Verified], headers: usize, is_label_damaged: bool) -> String {
    let mut text = String::new();
    for (number, part) in verified.iter().enumerate() {
        let _ = writeln!(
            text,
            "partition {number}: {} records with {} bytes, {} filemarks\n  sha256 {}",
            part.records, part.bytes, part.filemarks, part.digest
        );
        if part.encrypted > 0 {
            let _ = writeln!(
                text,
                "  {} records are encrypted: they were checked as they are stored, without a key",
                part.encrypted
            );
        }
        for (first, count) in &part.damaged {
            let _ = match count {
                0 => writeln!(text, "  the log is damaged before object {first}; no object is lost"),
                1 => writeln!(text, "  object {first} is damaged"),
                count => writeln!(text, "  objects {first} to {} are damaged", first + count - 1),
            };
        }
        if let Some(why) = &part.unreadable_end {
            let _ = writeln!(text, "  more objects may be behind the last one: {why}");
        }
    }
    if headers > 0 {
        let _ = writeln!(text, "{headers} chunk headers are damaged; no object is lost by that");
    }
    if is_label_damaged {
        text.push_str("one copy of the label is damaged; the next import repairs it\n");
    }
    text
}

fn verify_partition(tape: &mut Tape, partition: u8, progress: &mut Progress) -> Result<Verified, Failure> {
    let mut verified = Verified::default();
    let mut digest = Sha256::new();
    tape.locate(partition, Destination::Object(0))?;
    loop {
        let before = tape.cartridge.position();
        match tape.try_run(Command::Read) {
            Ok(Outcome::Record(record)) => {
                verified.records += 1;
                verified.bytes += to_u64(record.data.len());
                match record.encryption {
                    0 => digest.update([1]),
                    algorithm => {
                        verified.encrypted += 1;
                        digest.update([3, algorithm]);
                        digest.update(to_u32(record.metadata.len()).to_be_bytes());
                        digest.update(&record.metadata);
                    }
                }
                digest.update(to_u32(record.data.len()).to_be_bytes());
                record.data.parts().iter().for_each(|part| digest.update(&**part));
            }
            Ok(Outcome::Filemark) => {
                verified.filemarks += 1;
                digest.update([2]);
            }
            Ok(Outcome::EndOfData) => break,
            Err(error @ (Error::Damaged { .. } | Error::Read(_))) => {
                let objects = tape.cartridge.partition(partition).map_or(0, |part| part.objects);
                let skipped = tape.run(Command::SkipDamage)?;
                match skipped {
                    Outcome::Skipped { .. } if before.object >= objects => {
                        verified.unreadable_end = Some(error);
                    }
                    Outcome::Skipped { objects } => verified.damaged.push((before.object, objects)),
                    _ => {}
                }
            }
            Ok(other) => return Err(Failure::Failed(format!("{}: unexpected {other:?}", tape.name))),
            Err(error) => return Err(tape.failure(&error)),
        }
        let position = tape.cartridge.position();
        progress.add(position.stored_len().saturating_sub(before.stored_len()));
    }
    verified.digest = hex(&digest.finalize());
    Ok(verified)
}
