//! Throughput of a cartridge on the files of a folder, beside dd with the same amount in the same run:
//! `cargo run --release -p targe-cartridge --example throughput -- FOLDER [MIB] [ROUNDS]`.
//!
//! Writing copies records of 256 KiB from a file of random bytes to a cartridge, and synchronises once. dd
//! copies the same file with the same block length and one flush. Reading reads the records, or dd its copy.
//! All of it is in the page cache, so the figures show the work of the processor.
#![allow(clippy::print_stdout, reason = "an example")]

use std::collections::BTreeMap;
use std::error::Error;
use std::fs::{self, File, OpenOptions};
use std::io::Write as _;
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command as Process, Stdio};
use std::time::Instant;

use base::buffer::{Buf, DataList};
use base::int_cast::{to_u64, to_usize};
use cartridge::Cartridge;
use cartridge::blocking::{Files, run};
use cartridge::command::{Command, Destination, Outcome, Record};
use cartridge::io::FileId;
use cartridge::label::{Blank, Label, SEGMENT_LEN};
use cartridge::profile::Profile;
use store::api::{Failure, Fault, OpAction, OpOutput};

const RECORD_LEN: usize = 256 << 10;

/// The files of a cartridge in a folder.
struct Folder {
    path: PathBuf,
    files: BTreeMap<FileId, File>,
    operations: u64,
    spare: Option<Buf>,
}

impl Folder {
    fn file(&mut self, file: FileId) -> std::io::Result<&File> {
        if !self.files.contains_key(&file) {
            let mut options = OpenOptions::new();
            let name = match file {
                FileId::Label => "label".to_owned(),
                FileId::Log { partition, segment } => format!("p{partition}-{segment:08}.log"),
            };
            options.read(true).write(true).create(true).truncate(false);
            let opened = options.open(self.path.join(name))?;
            self.files.insert(file, opened);
        }
        self.files.get(&file).ok_or_else(|| std::io::Error::other("no file"))
    }

    fn try_perform(&mut self, file: FileId, action: OpAction) -> std::io::Result<OpOutput> {
        self.operations += 1;
        let spare = if let OpAction::Read { .. } = action { self.spare.take() } else { None };
        let file = self.file(file)?;
        match action {
            OpAction::Read { at, len } => {
                let spare = spare.filter(|spare| spare.capacity() >= len);
                let mut buf = spare.unwrap_or_else(|| Buf::with_capacity(len));
                buf.truncate(0);
                let room = buf.spare_mut().get_mut(..len).unwrap_or_default();
                let read = file.read_at(room, at)?;
                buf.advance(read);
                buf.append_zeros(len - read);
                Ok(OpOutput::Data(buf.freeze().into()))
            }
            OpAction::Write { at, data, .. } => {
                let mut offset = at;
                for part in data.parts() {
                    file.write_all_at(part, offset)?;
                    offset += to_u64(part.len());
                }
                Ok(OpOutput::Done(data))
            }
            OpAction::Flush => {
                file.sync_data()?;
                Ok(OpOutput::Done(DataList::new()))
            }
            _ => Ok(OpOutput::Done(DataList::new())),
        }
    }
}

impl Files for Folder {
    fn perform(&mut self, file: FileId, action: OpAction) -> Result<OpOutput, Failure> {
        self.try_perform(file, action).map_err(|_| Fault::Medium.into())
    }

    fn recycle(&mut self, buf: Buf) {
        self.spare = Some(buf);
    }
}

fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args().skip(1);
    let folder = PathBuf::from(arguments.next().ok_or("FOLDER is missing")?);
    let mib: u64 = arguments.next().map_or(Ok(1024), |mib| mib.parse())?;
    let rounds: u64 = arguments.next().map_or(Ok(5), |rounds| rounds.parse())?;
    let records = (mib << 20) / to_u64(RECORD_LEN);
    let (image, copy, tape) = (folder.join("image"), folder.join("copy"), folder.join("tape"));
    random_file(&image, records)?;
    println!("{:>8} {:>12} {:>10} {:>6}", "", "targe MB/s", "dd MB/s", "ratio");
    for _ in 0..rounds {
        let bare = rate(records, || dd(&image, &copy, &["conv=fdatasync"]))?;
        fs::create_dir(&tape)?;
        let mut files = Folder { path: tape.clone(), files: BTreeMap::new(), operations: 0, spare: None };
        let mut cartridge = blank(&mut files)?;
        files.operations = 0;
        let ours = rate(records, || write(&mut cartridge, &mut files, &image, records))?;
        told("write", ours, bare);
        let (written, bare) = (files.operations, rate(records, || dd(&copy, Path::new("/dev/null"), &[]))?);
        let ours = rate(records, || read(&mut cartridge, &mut files, records))?;
        told("read", ours, bare);
        let read = files.operations - written;
        println!("{written} file operations for {records} records written, {read} for them read");
        fs::remove_dir_all(&tape)?;
        fs::remove_file(&copy)?;
    }
    fs::remove_file(&image)?;
    Ok(())
}

fn blank(files: &mut Folder) -> Result<Cartridge, Box<dyn Error>> {
    let label = Label::blank(&Blank {
        profile: Profile::Lto8,
        is_worm: false,
        barcode: String::new(),
        capacity: 1 << 40,
        partitions: Vec::new(),
        segment_len: SEGMENT_LEN,
        date: *b"20261125",
        entropy: [7; 48],
    })?;
    files.file(FileId::Label)?.write_all_at(&label.file(), 0)?;
    let mut cartridge = Cartridge::new();
    run(&mut cartridge, files, Command::Load { is_writable: true })?;
    Ok(cartridge)
}

fn write(
    cartridge: &mut Cartridge,
    files: &mut Folder,
    image: &Path,
    records: u64,
) -> Result<(), Box<dyn Error>> {
    let image = File::open(image)?;
    let mut buf = Buf::with_capacity(RECORD_LEN);
    for number in 0..records {
        buf.truncate(0);
        let room = buf.spare_mut().get_mut(..RECORD_LEN).unwrap_or_default();
        image.read_exact_at(room, number * to_u64(RECORD_LEN))?;
        buf.advance(RECORD_LEN);
        let bytes = buf.freeze();
        run(cartridge, files, Command::Write(Record { data: bytes.clone().into(), ..Record::default() }))?;
        buf = bytes.try_into_buf().map_err(|_| "the cartridge keeps a record")?;
    }
    run(cartridge, files, Command::Synchronize)?;
    Ok(())
}

fn read(cartridge: &mut Cartridge, files: &mut Folder, records: u64) -> Result<(), Box<dyn Error>> {
    run(cartridge, files, Command::Locate { partition: 0, destination: Destination::Object(0) })?;
    for _ in 0..records {
        match run(cartridge, files, Command::Read)? {
            Outcome::Record(record) if record.data.len() == RECORD_LEN => {}
            other => return Err(format!("{other:?}").into()),
        }
    }
    Ok(())
}

fn dd(from: &Path, to: &Path, options: &[&str]) -> Result<(), Box<dyn Error>> {
    let mut dd = Process::new("dd");
    dd.arg(format!("if={}", from.display())).arg(format!("of={}", to.display()));
    let status = dd.arg(format!("bs={RECORD_LEN}")).args(options).stderr(Stdio::null()).status()?;
    if status.success() { Ok(()) } else { Err("dd failed".into()) }
}

fn random_file(path: &Path, records: u64) -> Result<(), Box<dyn Error>> {
    let mut file = File::create(path)?;
    let mut bytes = vec![0; to_usize(RECORD_LEN)];
    let mut rng = base::rng::Rng::from_seed(1);
    for _ in 0..records {
        rng.fill(&mut bytes);
        file.write_all(&bytes)?;
    }
    Ok(file.sync_all()?)
}

/// Returns how many MB the records had for each second.
fn rate(records: u64, go: impl FnOnce() -> Result<(), Box<dyn Error>>) -> Result<f64, Box<dyn Error>> {
    let start = Instant::now();
    go()?;
    let bytes = u32::try_from(records).map(f64::from)? * 262.144e3;
    Ok(bytes / start.elapsed().as_secs_f64() / 1e6)
}

fn told(what: &str, ours: f64, bare: f64) {
    println!("{what:>8} {ours:>12.0} {bare:>10.0} {:>6.2}", ours / bare);
}
