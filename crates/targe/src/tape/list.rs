//! `targe tape ls`.

use std::fmt::Write as _;
use std::path::Path;

use cartridge::attributes::AttributeFormat;
use cartridge::command::Destination;
use cartridge::layout::occupied;
use serde_json::{Value, json};

use super::{Tape, hex, note_recovery};
use crate::tables::Table;
use crate::{Failure, print};

pub(super) fn list(dir: &Path, is_json: bool) -> Result<(), Failure> {
    let mut tape = Tape::load(dir, false)?;
    let mut partitions = Vec::new();
    for partition in 0..tape.partitions() {
        partitions.push((partition, tape_files(&mut tape, partition)?));
    }
    if is_json {
        let value = description(&tape, &partitions)?;
        print(&format!("{value:#}\n"));
        return Ok(());
    }
    let label = tape.label()?;
    let mut text = String::new();
    let kind = if label.is_worm { ", WORM" } else { "" };
    let protected = if label.is_write_protected { ", write protected" } else { "" };
    let barcode = if label.barcode.is_empty() { "none" } else { &label.barcode };
    let serial = String::from_utf8_lossy(&label.serial);
    let _ = writeln!(text, "cartridge  {}{kind}{protected}", label.profile.name());
    let _ = writeln!(text, "bar code   {barcode}");
    let _ = writeln!(text, "serial     {serial}");
    let _ = writeln!(text, "capacity   {} bytes", label.capacity);
    let _ = writeln!(text, "loads      {}", label.loads);
    let _ = writeln!(text, "written    {} bytes, read {} bytes", label.written.life, label.read.life);
    for (partition, files) in &partitions {
        let Some(now) = tape.cartridge.partition(*partition) else { continue };
        let used = occupied(now.end);
        let _ = writeln!(
            text,
            "\npartition {partition}: {} objects, {} filemarks, {used} of {} bytes used",
            now.objects, now.filemarks, now.capacity
        );
        if let Some(first) = now.first_encrypted.checked_sub(1) {
            let _ = writeln!(text, "the first encrypted object is {first}");
        }
        let mut table = Table::new(&["FILE", "FIRST OBJECT", "RECORDS", "STORED BYTES"]);
        for file in files {
            let cells = [file.number, file.first, file.records, file.stored].map(|cell| cell.to_string());
            table.row(&cells.each_ref().map(String::as_str));
        }
        if !files.is_empty() {
            let _ = write!(text, "{table}");
        }
    }
    print(&text);
    note_recovery(&tape);
    Ok(())
}

/// A file of a tape: the records between two filemarks.
struct TapeFile {
    number: u64,
    first: u64,
    records: u64,
    stored: u64,
}

fn tape_files(tape: &mut Tape, partition: u8) -> Result<Vec<TapeFile>, Failure> {
    let Some(now) = tape.cartridge.partition(partition) else { return Ok(Vec::new()) };
    let mut files = Vec::new();
    tape.locate(partition, Destination::Object(0))?;
    for number in 0..=now.filemarks {
        let start = tape.cartridge.position();
        let is_last = number == now.filemarks;
        let end = if is_last { Destination::EndOfData } else { Destination::Filemark(number + 1) };
        tape.locate(partition, end)?;
        let position = tape.cartridge.position();
        let records = (position.object - start.object) - u64::from(!is_last);
        let stored = position.stored_len() - start.stored_len();
        if !is_last || records > 0 {
            files.push(TapeFile { number, first: start.object, records, stored });
        }
    }
    Ok(files)
}

fn description(tape: &Tape, partitions: &[(u8, Vec<TapeFile>)]) -> Result<Value, Failure> {
    let label = tape.label()?;
    let mut listed = Vec::new();
    for (partition, files) in partitions {
        let Some(now) = tape.cartridge.partition(*partition) else { continue };
        let files: Vec<Value> = files
            .iter()
            .map(|file| {
                json!({ "number": file.number, "first_object": file.first, "records": file.records,
                        "stored_bytes": file.stored })
            })
            .collect();
        let attributes: Vec<Value> = tape
            .cartridge
            .attribute_ids(*partition)
            .into_iter()
            .filter_map(|id| tape.cartridge.attribute(*partition, id))
            .map(|attribute| {
                let value = match attribute.format {
                    AttributeFormat::Binary => hex(&attribute.value),
                    AttributeFormat::Ascii | AttributeFormat::Text => {
                        String::from_utf8_lossy(&attribute.value).trim_end().to_owned()
                    }
                };
                json!({ "id": format!("{:04x}", attribute.id), "read_only": attribute.is_read_only,
                        "value": value })
            })
            .collect();
        listed.push(json!({
            "number": partition, "capacity": now.capacity, "used": occupied(now.end), "objects": now.objects,
            "filemarks": now.filemarks, "files": files, "attributes": attributes,
        }));
    }
    Ok(json!({
        "profile": label.profile.name(), "worm": label.is_worm, "write_protected": label.is_write_protected,
        "barcode": label.barcode, "serial": String::from_utf8_lossy(&label.serial), "uuid": hex(&label.uuid),
        "capacity": label.capacity, "loads": label.loads, "bytes_written": label.written.life,
        "bytes_read": label.read.life, "partitions": listed,
    }))
}
