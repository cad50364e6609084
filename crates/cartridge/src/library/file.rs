//! The file of a library: lines of ASCII text, of which the last has the CRC32C of those before it.

use alloc::format;
use alloc::string::{String, ToString as _};
use alloc::vec::Vec;
use core::fmt::Write as _;
use core::str::FromStr;

use super::{Counts, Element, Library, LibraryError, StoredCartridge};
use crate::layout::Crc;
use crate::profile::Profile;

/// The version of the format that this release writes.
pub const VERSION: u32 = 1;
/// The longest file: every cartridge has a line of less than 150 bytes.
pub const FILE_LEN_MAX: usize = 512 << 10;

const MAGIC: &str = "targe-library ";
const CHECKSUM: &str = "crc32c ";

/// Why a file is not that of a library.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LibraryFileError {
    /// It is none, or it is too long.
    NotALibrary,
    /// Its version is not known.
    UnknownVersion(u32),
    /// Its checksum is wrong.
    Checksum,
    /// A line has a mistake.
    Line(usize),
    /// A line has a value that a library cannot have.
    Value(usize, LibraryError),
}

impl core::fmt::Display for LibraryFileError {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match self {
            Self::NotALibrary => f.write_str("is not the file of a library"),
            Self::UnknownVersion(version) => {
                write!(f, "has version {version}, and this release reads version {VERSION}")
            }
            Self::Checksum => f.write_str("is damaged: its checksum is wrong"),
            Self::Line(line) => write!(f, "is damaged in line {line}"),
            Self::Value(line, why) => write!(f, "is damaged in line {line}: {why}"),
        }
    }
}

impl core::error::Error for LibraryFileError {}

impl Library {
    /// Returns the file of the library.
    pub fn encode(&self) -> Vec<u8> {
        let Counts { drives, slots, mail_slots } = self.counts();
        let mut text = format!(
            "{MAGIC}{VERSION}\nserial {}\nprofile {}\ndrives {drives}\nslots {slots}\nmail-slots {mail_slots}\n",
            self.serial(),
            self.profile().name(),
        );
        for cartridge in self.cartridges() {
            let barcode = if cartridge.barcode.is_empty() { "-" } else { &cartridge.barcode };
            let source = cartridge.source.map_or_else(|| "-".to_string(), |number| number.to_string());
            let (kind, number) = match cartridge.element {
                Element::Mail(number) if cartridge.is_vaulted => ("vault", number),
                Element::Mail(number) => ("mail", number),
                Element::Drive(number) => ("drive", number),
                Element::Slot(number) => ("slot", number),
            };
            // Writing to a string cannot fail.
            let _ = writeln!(text, "cartridge {} {barcode} {kind} {number} {source}", cartridge.name);
        }
        let checksum = crc(text.as_bytes());
        let _ = writeln!(text, "{CHECKSUM}{checksum:08x}");
        text.into_bytes()
    }

    /// Reads the file of a library.
    ///
    /// # Errors
    /// [`LibraryFileError`]
    pub fn decode(bytes: &[u8]) -> Result<Self, LibraryFileError> {
        let text = core::str::from_utf8(bytes).ok().filter(|text| text.len() <= FILE_LEN_MAX);
        let text = text.ok_or(LibraryFileError::NotALibrary)?;
        let body = checked(text)?;
        let mut lines = Lines { lines: body.split('\n'), number: 0 };
        let version: u32 = lines.value(MAGIC)?;
        if version != VERSION {
            return Err(LibraryFileError::UnknownVersion(version));
        }
        let serial: String = lines.value("serial ")?;
        let profile: String = lines.value("profile ")?;
        let profile = Profile::of_name(&profile).ok_or(LibraryFileError::Line(lines.number))?;
        let counts = Counts {
            drives: lines.value("drives ")?,
            slots: lines.value("slots ")?,
            mail_slots: lines.value("mail-slots ")?,
        };
        let mut library =
            Self::new(serial, profile, counts).map_err(|why| LibraryFileError::Value(lines.number, why))?;
        while let Some(line) = lines.next() {
            let cartridge = cartridge(line).ok_or(LibraryFileError::Line(lines.number))?;
            library.insert(cartridge).map_err(|why| LibraryFileError::Value(lines.number, why))?;
        }
        // One library has one file.
        if library.encode() == bytes { Ok(library) } else { Err(LibraryFileError::Line(lines.number)) }
    }
}

/// Checks the first and the last line; returns the others but for the newline at their end.
fn checked(text: &str) -> Result<&str, LibraryFileError> {
    if !text.starts_with(MAGIC) {
        return Err(LibraryFileError::NotALibrary);
    }
    let trimmed = text.strip_suffix('\n').ok_or(LibraryFileError::Checksum)?;
    let (body, last) = trimmed.rsplit_once('\n').ok_or(LibraryFileError::Checksum)?;
    let covered = text.get(..body.len() + 1).unwrap_or_default();
    let sum = last.strip_prefix(CHECKSUM).and_then(|sum| u32::from_str_radix(sum, 16).ok());
    if sum != Some(crc(covered.as_bytes())) {
        return Err(LibraryFileError::Checksum);
    }
    Ok(body)
}

struct Lines<'a> {
    lines: core::str::Split<'a, char>,
    number: usize,
}

impl<'a> Lines<'a> {
    fn next(&mut self) -> Option<&'a str> {
        let line = self.lines.next()?;
        self.number += 1;
        Some(line)
    }

    /// Reads the value of the next line, which begins with `name`.
    fn value<T: FromStr>(&mut self, name: &str) -> Result<T, LibraryFileError> {
        let line = self.next();
        let value = line.and_then(|line| line.strip_prefix(name)).and_then(|value| value.parse().ok());
        value.ok_or(LibraryFileError::Line(self.number))
    }
}

fn cartridge(line: &str) -> Option<StoredCartridge> {
    let mut words = line.strip_prefix("cartridge ")?.split(' ');
    let (name, barcode, kind, number, source) =
        (words.next()?, words.next()?, words.next()?, words.next()?.parse().ok()?, words.next()?);
    let element = match kind {
        "mail" | "vault" => Element::Mail(number),
        "drive" => Element::Drive(number),
        "slot" => Element::Slot(number),
        _ => return None,
    };
    let source = if source == "-" { None } else { Some(source.parse().ok()?) };
    let barcode = if barcode == "-" { "" } else { barcode };
    words.next().is_none().then(|| StoredCartridge {
        name: name.into(),
        barcode: barcode.into(),
        element,
        source,
        is_vaulted: kind == "vault",
    })
}

fn crc(bytes: &[u8]) -> u32 {
    let mut crc = Crc::new();
    crc.update(bytes);
    crc.value()
}
