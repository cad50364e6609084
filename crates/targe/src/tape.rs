//! `targe tape`: virtual tape cartridges in folders.

use std::fmt::Write as _;
use std::fs::File;
use std::io::Read as _;
use std::path::{Path, PathBuf};

use cartridge::Cartridge;
use cartridge::blocking;
use cartridge::command::{Command, Destination, LoadReport, Outcome};
use cartridge::error::Error;
use cartridge::label::{Blank, Label, SEGMENT_LEN};
use cartridge::profile::Profile;
use cartridge::tap::TapForm;
use clap::{Args, Subcommand};

use crate::Failure;

mod files;
mod image;
mod list;
mod transfer;
mod verify;

use files::Folder;

#[derive(Debug, Args)]
pub(crate) struct TapeArgs {
    #[command(subcommand)]
    action: Action,
}

#[derive(Debug, Subcommand)]
enum Action {
    /// Make a blank cartridge in a new folder
    Create(CreateArgs),
    /// List the partitions of a cartridge, and their files between filemarks
    Ls {
        /// The folder of the cartridge
        #[arg(value_name = "DIR")]
        dir: PathBuf,
        /// Print one JSON object
        #[arg(long)]
        json: bool,
    },
    /// Read a whole cartridge, check all checksums, and say which objects are damaged
    Verify {
        /// The folder of the cartridge
        #[arg(value_name = "DIR")]
        dir: PathBuf,
        /// Print one JSON object
        #[arg(long)]
        json: bool,
    },
    /// Write the records and filemarks of a SIMH tape image to a cartridge
    Import(ImportArgs),
    /// Write the records and filemarks of a partition to a new SIMH tape image
    Export(ExportArgs),
}

#[derive(Debug, Args)]
struct CreateArgs {
    /// The folder to make
    #[arg(value_name = "DIR")]
    dir: PathBuf,
    /// The generation: lto5, lto6, lto7, lto8 or lto9
    #[arg(long, value_name = "NAME", default_value = "lto8", value_parser = profile)]
    profile: Profile,
    /// Make a WORM cartridge, on which nothing that is written can be changed
    #[arg(long)]
    worm: bool,
    /// The bar code: up to 32 letters and digits; of 8, the last two are the media identifier, such as L8
    #[arg(long, value_name = "CODE", default_value = "")]
    barcode: String,
    /// The capacity [default: that of the generation]
    #[arg(long, value_name = "SIZE", value_parser = size)]
    capacity: Option<u64>,
    /// The sizes of the partitions, separated by commas; one can be `rest` [default: one partition]
    #[arg(long, value_name = "SIZES", value_delimiter = ',')]
    partitions: Vec<String>,
}

#[derive(Debug, Args)]
struct ImportArgs {
    /// The folder of the cartridge
    #[arg(value_name = "DIR")]
    dir: PathBuf,
    /// The tape image
    #[arg(value_name = "FILE")]
    file: PathBuf,
    /// Write to this partition
    #[arg(long, value_name = "N", default_value_t = 0)]
    partition: u8,
    /// The form of the image: simh, e11 or tpc [default: simh or e11, whichever fits]
    #[arg(long, value_name = "FORM", value_parser = form)]
    form: Option<TapForm>,
    /// Write behind what is in the partition
    #[arg(long)]
    append: bool,
    /// Replace what is in the partition
    #[arg(long, conflicts_with = "append")]
    overwrite: bool,
    /// Compress the records
    #[arg(long)]
    compress: bool,
}

#[derive(Debug, Args)]
struct ExportArgs {
    /// The folder of the cartridge
    #[arg(value_name = "DIR")]
    dir: PathBuf,
    /// The tape image to make
    #[arg(value_name = "FILE")]
    file: PathBuf,
    /// Read this partition
    #[arg(long, value_name = "N", default_value_t = 0)]
    partition: u8,
    /// The form of the image: simh, e11 or tpc
    #[arg(long, value_name = "FORM", default_value = "simh", value_parser = form)]
    form: TapForm,
}

pub(crate) fn run(args: &TapeArgs) -> Result<(), Failure> {
    match &args.action {
        Action::Create(args) => create(args),
        Action::Ls { dir, json } => list::list(dir, *json),
        Action::Verify { dir, json } => verify::verify(dir, *json),
        Action::Import(args) => transfer::import(args),
        Action::Export(args) => transfer::export(args),
    }
}

/// A loaded cartridge in its folder.
struct Tape {
    name: String,
    cartridge: Cartridge,
    folder: Folder,
    report: LoadReport,
}

impl Tape {
    fn load(dir: &Path, is_writable: bool) -> Result<Self, Failure> {
        let name = dir.display().to_string();
        let folder =
            Folder::open(dir, is_writable).map_err(|why| Failure::Failed(format!("{name}: {why}")))?;
        let report = LoadReport::default();
        let mut tape = Self { name, cartridge: Cartridge::new(), folder, report };
        if let Outcome::Loaded(report) = tape.run(Command::Load { is_writable })? {
            tape.report = report;
        }
        Ok(tape)
    }

    fn try_run(&mut self, command: Command) -> Result<Outcome, Error> {
        blocking::run(&mut self.cartridge, &mut self.folder, command)
    }

    fn run(&mut self, command: Command) -> Result<Outcome, Failure> {
        self.try_run(command).map_err(|error| self.failure(&error))
    }

    fn failure(&mut self, error: &Error) -> Failure {
        let cause = match (self.folder.error.take(), error) {
            (
                Some(cause),
                Error::StorageFull | Error::WriteLost { .. } | Error::Read(_) | Error::LabelWrite(_),
            ) => {
                format!(" ({cause})")
            }
            _ => String::new(),
        };
        Failure::Failed(format!("{}: {error}{cause}", self.name))
    }

    fn label(&self) -> Result<&Label, Failure> {
        self.cartridge.label().ok_or_else(|| Failure::Failed(format!("{}: not loaded", self.name)))
    }

    fn partitions(&self) -> u8 {
        (0..=u8::MAX).find(|number| self.cartridge.partition(*number).is_none()).unwrap_or(u8::MAX)
    }

    fn locate(&mut self, partition: u8, destination: Destination) -> Result<(), Failure> {
        self.run(Command::Locate { partition, destination }).map(drop)
    }
}

fn create(args: &CreateArgs) -> Result<(), Failure> {
    let capacity = args.capacity.unwrap_or_else(|| args.profile.capacity());
    let partitions = partition_sizes(&args.partitions, capacity).map_err(Failure::Misused)?;
    expect_barcode(&args.barcode, args.profile, args.worm).map_err(Failure::Misused)?;
    create_with(&args.dir, (args.profile, args.worm), &args.barcode, (capacity, partitions))
}

/// Makes a blank cartridge with one partition.
pub(crate) fn create_blank(
    dir: &Path,
    profile: Profile,
    barcode: &str,
    capacity: u64,
) -> Result<(), Failure> {
    create_with(dir, (profile, false), barcode, (capacity, Vec::new()))
}

fn create_with(
    dir: &Path,
    (profile, is_worm): (Profile, bool),
    barcode: &str,
    (capacity, partitions): (u64, Vec<u64>),
) -> Result<(), Failure> {
    let name = dir.display();
    let mut entropy = [0; 48];
    File::open("/dev/urandom")
        .and_then(|mut random| random.read_exact(&mut entropy))
        .map_err(|error| Failure::Failed(format!("/dev/urandom: {error}")))?;
    let blank = Blank {
        profile,
        is_worm,
        barcode: barcode.to_owned(),
        capacity,
        partitions,
        segment_len: SEGMENT_LEN,
        date: today(),
        entropy,
    };
    let label = Label::blank(&blank).map_err(|error| Failure::Misused(error.to_string()))?;
    Folder::create(dir, &label).map_err(|error| Failure::Failed(format!("{name}: {error}")))
}

/// Tells on stderr what loading found behind the last checkpoint.
fn note_recovery(tape: &Tape) {
    for (number, part) in tape.report.partitions.iter().enumerate() {
        if part.recovered > 0 {
            eprintln!(
                "targe: {}: partition {number} was not unloaded; {} objects were found behind its last checkpoint",
                tape.name, part.recovered
            );
        }
        if part.is_end_unreadable {
            eprintln!(
                "targe: {}: partition {number}: what is behind the last object cannot be read",
                tape.name
            );
        }
    }
}

pub(crate) fn size(text: &str) -> Result<u64, String> {
    daemon::config::parse_size(text)
}

pub(crate) fn profile(text: &str) -> Result<Profile, String> {
    Profile::of_name(text).ok_or_else(|| "expected lto5, lto6, lto7, lto8 or lto9".to_owned())
}

fn form(text: &str) -> Result<TapForm, String> {
    TapForm::of_name(text).ok_or_else(|| "expected simh, e11 or tpc".to_owned())
}

/// Parses the sizes of partitions, of which one can be `rest`.
fn partition_sizes(texts: &[String], capacity: u64) -> Result<Vec<u64>, String> {
    let mut sizes = Vec::new();
    for text in texts {
        sizes.push(if text == "rest" { None } else { Some(size(text)?) });
    }
    if sizes.iter().filter(|size| size.is_none()).count() > 1 {
        return Err("only one partition can be the rest".to_owned());
    }
    let fixed = sizes.iter().flatten().try_fold(0_u64, |sum, size| sum.checked_add(*size));
    let rest = fixed.and_then(|fixed| capacity.checked_sub(fixed));
    let rest = rest.ok_or_else(|| "the partitions are larger than the cartridge".to_owned())?;
    Ok(sizes.into_iter().map(|size| size.unwrap_or(rest)).collect())
}

fn expect_barcode(barcode: &str, profile: Profile, is_worm: bool) -> Result<(), String> {
    if barcode.len() > cartridge::label::BARCODE_LEN_MAX
        || !barcode.bytes().all(|byte| byte.is_ascii_uppercase() || byte.is_ascii_digit())
    {
        return Err("a bar code has up to 32 upper-case letters and digits".to_owned());
    }
    let expected = profile.media_id(is_worm);
    let of_another = Profile::ALL.into_iter().flat_map(|other| [other.media_id(false), other.media_id(true)]);
    match barcode.get(6..).filter(|_| barcode.len() == 8) {
        Some(id) if id != expected && of_another.into_iter().any(|other| other == id) => {
            let kind = if is_worm { "WORM cartridge" } else { "cartridge" };
            Err(format!("the bar code ends in {id}, and that of this {kind} ends in {expected}"))
        }
        _ => Ok(()),
    }
}

/// Returns the day in UTC as `YYYYMMDD`.
fn today() -> [u8; 8] {
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
    let (year, month, day) = civil_date(since.as_secs() / 86_400);
    let text = format!("{year:04}{month:02}{day:02}");
    *text.as_bytes().first_chunk().unwrap_or(b"19700101")
}

/// Returns year, month and day of a day since 1970 (Hinnant, "chrono-compatible low-level date algorithms").
fn civil_date(days: u64) -> (u64, u64, u64) {
    let days = days + 719_468;
    let (era, of_era) = (days / 146_097, days % 146_097);
    let year = (of_era - of_era / 1460 + of_era / 36_524 - of_era / 146_096) / 365;
    let of_year = of_era - (365 * year + year / 4 - year / 100);
    let month = (5 * of_year + 2) / 153;
    let day = of_year - (153 * month + 2) / 5 + 1;
    let month = if month < 10 { month + 3 } else { month - 9 };
    (era * 400 + year + u64::from(month <= 2), month, day)
}

fn hex(bytes: &[u8]) -> String {
    let mut text = String::new();
    for byte in bytes {
        let _ = write!(text, "{byte:02x}");
    }
    text
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::MetadataExt as _;

    use super::*;

    #[test]
    fn one_partition_can_be_the_rest() {
        let sizes = |texts: &[&str]| {
            let texts: Vec<String> = texts.iter().map(|text| (*text).to_owned()).collect();
            partition_sizes(&texts, 10 << 30)
        };
        assert_eq!(sizes(&[]), Ok(Vec::new()));
        assert_eq!(sizes(&["1G", "rest"]), Ok(vec![1 << 30, 9 << 30]));
        assert!(sizes(&["rest", "rest"]).is_err() && sizes(&["11G"]).is_err() && sizes(&["x"]).is_err());
    }

    #[test]
    fn a_bar_code_names_the_medium_that_it_is_on() {
        assert_eq!(expect_barcode("A00001L8", Profile::Lto8, false), Ok(()));
        assert_eq!(expect_barcode("A00001LY", Profile::Lto8, true), Ok(()));
        assert_eq!(expect_barcode("VAULT77", Profile::Lto8, false), Ok(()));
        assert!(expect_barcode("A00001L7", Profile::Lto8, false).unwrap_err().contains("ends in L8"));
        assert!(expect_barcode("a00001L8", Profile::Lto8, false).is_err());
    }

    #[test]
    fn only_the_owner_can_access_a_cartridge_and_an_exported_image() {
        let scratch = std::env::temp_dir().join(format!("targe-tape-{}", std::process::id()));
        std::fs::create_dir(&scratch).unwrap();
        let (dir, image) = (scratch.join("cartridge"), scratch.join("image.tap"));
        create_blank(&dir, Profile::Lto8, "", 1 << 30).map_err(|_| ()).unwrap();
        let mut tape = Tape::load(&dir, true).map_err(|_| ()).unwrap();
        let data = base::buffer::DataList::from(base::buffer::Bytes::copied_from(b"of a host"));
        let record = cartridge::command::Record { data, ..cartridge::command::Record::default() };
        tape.run(Command::Write(record)).map_err(|_| ()).unwrap();
        tape.run(Command::Synchronize).map_err(|_| ()).unwrap();
        drop(tape);
        let exported =
            ExportArgs { dir: dir.clone(), file: image.clone(), partition: 0, form: TapForm::Simh };
        transfer::export(&exported).map_err(|_| ()).unwrap();
        let mode = |path: &Path| path.metadata().unwrap().mode() & 0o777;
        let files: Vec<PathBuf> = dir.read_dir().unwrap().map(|entry| entry.unwrap().path()).collect();
        let modes: Vec<u32> = files.iter().map(|path| mode(path)).collect();
        assert_eq!((mode(&dir), modes, mode(&image)), (0o700, vec![0o600; 2], 0o600), "{files:?}");
        std::fs::remove_dir_all(&scratch).unwrap();
    }

    #[test]
    fn days_are_those_of_the_calendar() {
        assert_eq!(civil_date(0), (1970, 1, 1));
        assert_eq!(civil_date(19_782), (2024, 2, 29));
        assert_eq!(civil_date(20_782), (2026, 11, 25));
    }
}
