//! `targe tape import` and `targe tape export`.

use std::fs::{File, OpenOptions};
use std::io::{BufWriter, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;

use base::buffer::DataList;
use base::int_cast::{to_u32, to_u64};
use cartridge::command::{Command, Destination, Outcome, Record};
use cartridge::error::Error;
use cartridge::layout::occupied;
use cartridge::tap::TapMark;

use super::image::{Image, ImageObject, Summary};
use super::{ExportArgs, ImportArgs, Tape};
use crate::Failure;
use crate::progress::Progress;

pub(super) fn import(args: &ImportArgs) -> Result<(), Failure> {
    let file = args.file.display();
    let failed = |why: String| Failure::Failed(format!("{file}: {why}"));
    let (mut image, summary) = Image::open(&args.file, args.form).map_err(failed)?;
    let mut tape = Tape::load(&args.dir, true)?;
    let start = start_of_import(&mut tape, args, &summary)?;
    let mut progress = Progress::new(Some(summary.bytes));
    let written = write_image(&mut tape, &mut image, args.compress, &mut progress);
    if let Err(why) = written {
        drop(progress);
        // What was there before stays as it was: only what this command wrote is removed.
        // After a write that was lost, only a new load accepts commands.
        let _ = tape.try_run(Command::Unload);
        let removed = tape
            .try_run(Command::Load { is_writable: true })
            .and_then(|_| tape.try_run(start))
            .and_then(|_| tape.try_run(Command::Erase));
        if let Err(error) = removed {
            eprintln!("{}: a part of the import stays on the cartridge: {error}", tape.name);
        }
        let _ = tape.try_run(Command::Unload);
        return Err(why);
    }
    tape.run(Command::Unload)?;
    progress.finish("imported");
    eprintln!(
        "{} records and {} filemarks of a {} image",
        summary.records,
        summary.filemarks,
        image.form().name()
    );
    Ok(())
}

/// Moves to where the import begins, after checking that it can be done. Returns the command that moves
/// there.
fn start_of_import(tape: &mut Tape, args: &ImportArgs, summary: &Summary) -> Result<Command, Failure> {
    let name = tape.name.clone();
    let failed = |why: String| Failure::Failed(format!("{name}: {why}"));
    let Some(now) = tape.cartridge.partition(args.partition) else {
        return Err(failed(format!("the cartridge has no partition {}", args.partition)));
    };
    let label = tape.label()?;
    let is_blank = now.objects == 0;
    if label.is_write_protected {
        return Err(failed(Error::WriteProtected.to_string()));
    }
    if !is_blank && !args.append && !args.overwrite {
        let why = format!("partition {} is not blank; give --append or --overwrite", args.partition);
        return Err(failed(why));
    }
    if !is_blank && args.overwrite && label.is_worm {
        return Err(failed(Error::Worm.to_string()));
    }
    let used = if args.overwrite { 0 } else { now.end };
    let needed = occupied(used.saturating_add(summary.stored));
    if !args.compress && needed > now.capacity {
        let why = format!("the image needs {needed} bytes of the {} bytes of the partition", now.capacity);
        return Err(failed(why));
    }
    let object = if args.overwrite { 0 } else { now.objects };
    let start = Command::Locate { partition: args.partition, destination: Destination::Object(object) };
    tape.run(start.clone())?;
    Ok(start)
}

fn write_image(
    tape: &mut Tape,
    image: &mut Image,
    is_compressed: bool,
    progress: &mut Progress,
) -> Result<(), Failure> {
    // The buffer of the last record, which the next one reuses.
    let mut spare = None;
    while let Some(object) = image.next(spare.take()).map_err(Failure::Failed)? {
        match object {
            ImageObject::Record(buf) => {
                let bytes = buf.freeze();
                let data = DataList::from(bytes.clone());
                tape.run(Command::Write(Record { data, is_compressed, ..Record::default() }))?;
                progress.add(to_u64(bytes.len()));
                spare = bytes.try_into_buf().ok();
            }
            ImageObject::Filemark => {
                tape.run(Command::WriteFilemarks { count: 1, is_immediate: true })?;
            }
        }
    }
    tape.run(Command::Synchronize).map(drop)
}

pub(super) fn export(args: &ExportArgs) -> Result<(), Failure> {
    let file = args.file.display();
    let mut tape = Tape::load(&args.dir, false)?;
    if args.partition >= tape.partitions() {
        return Err(Failure::Failed(format!(
            "{}: the cartridge has no partition {}",
            tape.name, args.partition
        )));
    }
    let made = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&args.file);
    let out = made.map_err(|error| Failure::Failed(format!("{file}: {error}")))?;
    let exported = write_out(&mut tape, args, out);
    if exported.is_err() {
        // A part of an image would look like a whole one.
        let _ = std::fs::remove_file(&args.file);
    }
    exported
}

fn write_out(tape: &mut Tape, args: &ExportArgs, out: File) -> Result<(), Failure> {
    let file = args.file.display();
    let failed = |error: std::io::Error| Failure::Failed(format!("{file}: {error}"));
    let total = tape.cartridge.partition(args.partition).map(|part| part.end);
    let mut progress = Progress::new(total);
    let mut out = BufWriter::with_capacity(1 << 20, out);
    let form = args.form;
    tape.locate(args.partition, Destination::Object(0))?;
    loop {
        match tape.run(Command::Read)? {
            Outcome::Record(record) if record.encryption != 0 => {
                let object = tape.cartridge.position().object.saturating_sub(1);
                let why = format!(
                    "{}: object {object} is encrypted, and an image holds plain records: read the cartridge \
                     through a drive that has the key, or copy the folder",
                    tape.name
                );
                return Err(Failure::Failed(why));
            }
            Outcome::Record(record) => {
                let len = to_u32(record.data.len());
                if len > form.record_len_max() {
                    let name = form.name();
                    let why =
                        format!("{}: a record of {len} bytes is too long for a {name} image", tape.name);
                    return Err(Failure::Failed(why));
                }
                let mark = form.mark_bytes(TapMark::Record { len, is_bad: false });
                out.write_all(mark.as_bytes()).map_err(failed)?;
                for part in record.data.parts() {
                    out.write_all(part).map_err(failed)?;
                }
                if form.padding(len) > 0 {
                    out.write_all(&[0]).map_err(failed)?;
                }
                if form.has_trailer() {
                    out.write_all(mark.as_bytes()).map_err(failed)?;
                }
                progress.add(u64::from(len));
            }
            Outcome::Filemark => {
                out.write_all(form.mark_bytes(TapMark::Filemark).as_bytes()).map_err(failed)?;
            }
            _ => break,
        }
    }
    out.write_all(form.mark_bytes(TapMark::EndOfMedium).as_bytes()).map_err(failed)?;
    let out = out.into_inner().map_err(|error| failed(error.into_error()))?;
    out.sync_all().map_err(failed)?;
    progress.finish("exported");
    Ok(())
}
