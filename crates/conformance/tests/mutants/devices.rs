//! The units other than disks that cases run on: the media, and which case runs on which.

use std::fmt::Write as _;
use std::path::Path;

use cartridge::label::{Blank, Label, SEGMENT_LEN};
use cartridge::library::{Counts, Element, Library};
use cartridge::profile::Profile;

/// What a target serves as LUN 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Disk,
    DiskWithChap,
    Tape,
    ProtectedTape,
    WriteOnceTape,
    Changer,
    Cd,
    Dvd,
}

impl Kind {
    pub(crate) const ALL: [Self; 8] = [
        Self::Disk,
        Self::DiskWithChap,
        Self::Tape,
        Self::ProtectedTape,
        Self::WriteOnceTape,
        Self::Changer,
        Self::Cd,
        Self::Dvd,
    ];

    /// Returns what a case runs on.
    pub(crate) fn of_case(case: &str) -> Self {
        match case {
            "ssc-write-protect" => Self::ProtectedTape,
            "mmc-structure" => Self::Dvd,
            _ if case.starts_with("chap-") => Self::DiskWithChap,
            _ if case.starts_with("ssc-worm-") => Self::WriteOnceTape,
            _ if case.starts_with("ssc-") => Self::Tape,
            _ if case.starts_with("smc-") => Self::Changer,
            _ if case.starts_with("mmc-") => Self::Cd,
            _ => Self::Disk,
        }
    }

    /// Returns the name, as a part of the name of its targets.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Disk => "open",
            Self::DiskWithChap => "chap",
            Self::Tape => "tape",
            Self::ProtectedTape => "protected-tape",
            Self::WriteOnceTape => "worm-tape",
            Self::Changer => "changer",
            Self::Cd => "cd",
            Self::Dvd => "dvd",
        }
    }

    /// Makes the medium of a lane in a folder. Returns the lines of its LUN.
    pub(crate) fn make(self, folder: &Path, lane: usize) -> String {
        let path = folder.join(format!("{}-{lane}", self.name()));
        let mut lines = String::from("lun = 0\n");
        let kind = match self {
            Self::Disk | Self::DiskWithChap => return lines + "type = \"ram\"\nsize = 1048576\n",
            Self::Tape | Self::ProtectedTape | Self::WriteOnceTape => {
                make_cartridge(&path, "T00001L8", self == Self::WriteOnceTape);
                "tape"
            }
            Self::Changer => {
                make_library(&path);
                "changer"
            }
            Self::Cd | Self::Dvd => {
                // No two sectors are alike.
                let sectors = (0..SECTORS).flat_map(|number| [number.to_be_bytes(); 512].concat());
                std::fs::write(&path, sectors.collect::<Vec<u8>>()).unwrap();
                "disc"
            }
        };
        // Writing to a string does not fail.
        let _ = writeln!(lines, "type = {kind:?}\npath = {:?}", path.to_str().unwrap());
        lines += match self {
            Self::ProtectedTape => "ro = true\n",
            Self::Cd => "profile = \"cd\"\n",
            Self::Dvd => "profile = \"dvd\"\n",
            _ => "",
        };
        lines
    }
}

/// The sectors of a disc.
const SECTORS: u32 = 512;
/// The capacity of a cartridge: a few commands fill it.
const CAPACITY: u64 = 8 << 20;

fn make_cartridge(path: &Path, barcode: &str, is_worm: bool) {
    let blank = Blank {
        profile: Profile::Lto8,
        is_worm,
        barcode: barcode.to_owned(),
        capacity: CAPACITY,
        partitions: Vec::new(),
        segment_len: SEGMENT_LEN,
        date: *b"20261129",
        entropy: std::array::from_fn(|at| barcode.as_bytes()[at % barcode.len()]),
    };
    std::fs::create_dir(path).unwrap();
    std::fs::write(path.join("label"), Label::blank(&blank).unwrap().file()).unwrap();
}

/// Makes a library with two drives, eight slots of which four are full, and two mail slots.
fn make_library(path: &Path) {
    let counts = Counts { drives: 2, slots: 8, mail_slots: 2 };
    let mut library = Library::new("LIB00001".to_owned(), Profile::Lto8, counts).unwrap();
    std::fs::create_dir(path).unwrap();
    for number in 1..=4 {
        let name = format!("T{number:05}L8");
        make_cartridge(&path.join(&name), &name, false);
        library.put(Element::Slot(number), &name, &name).unwrap();
    }
    std::fs::write(path.join("library"), library.encode()).unwrap();
}
