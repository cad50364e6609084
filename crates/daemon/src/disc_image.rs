//! Images of writable discs for the command line and the drives: makes them, and reads their records.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;

use device::disc_record::{DiscRecord, SECTOR_LEN, TRAILER_LEN, Track, WritableKind};

use crate::os_error;

/// What `targe disc ls` tells of an image.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DiscDescription {
    /// The name of the kind of disc.
    pub medium: &'static str,
    /// The capacity in bytes.
    pub capacity: u64,
    /// How many bytes can be read.
    pub readable: u64,
    /// The state of the disc: `blank`, `formatted`, `appendable` or `complete`.
    pub state: &'static str,
    /// The tracks of a disc that is written sequentially.
    pub tracks: Vec<TrackDescription>,
}

/// A track that was written or reserved.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TrackDescription {
    /// The number of the session, from 1.
    pub session: u16,
    /// The first sector.
    pub start: u32,
    /// How many sectors are written.
    pub sectors: u32,
    /// Whether nothing can be added.
    pub is_closed: bool,
}

/// Returns the names of the kinds of writable discs.
pub fn kinds() -> impl Iterator<Item = &'static str> {
    WritableKind::ALL.into_iter().map(WritableKind::name)
}

/// Makes the image of a blank disc, durably: a sparse file that only its owner can access.
///
/// # Errors
/// A sentence.
pub fn create(path: &Path, kind: &str, capacity: Option<u64>) -> Result<(), String> {
    let kind = WritableKind::ALL.into_iter().find(|known| known.name() == kind);
    let kind = kind.ok_or_else(|| format!("expected {}", kinds().collect::<Vec<_>>().join(", ")))?;
    let usual = u64::from(kind.usual_capacity()) * SECTOR_LEN;
    let bytes = capacity.unwrap_or(usual);
    let sectors = u32::try_from(bytes / SECTOR_LEN).unwrap_or(u32::MAX);
    let record = DiscRecord::blank(kind, sectors).ok().filter(|_| bytes.is_multiple_of(SECTOR_LEN));
    let mut record = record.ok_or_else(|| {
        let block = u64::from(kind.blocking()) * SECTOR_LEN / 1024;
        format!("the capacity of a {} is a multiple of {block} KiB, and at most {usual} bytes", kind.name())
    })?;
    let failed = |error: io::Error| format!("cannot create {}: {}", path.display(), os_error(&error));
    let made = OpenOptions::new().read(true).write(true).create_new(true).mode(0o600).open(path);
    let file = made.map_err(failed)?;
    let written = write_blank(&file, path, &mut record);
    if written.is_err() {
        // The error reported is enough for the operator to find a file that is left over.
        let _ = std::fs::remove_file(path);
    }
    written.map_err(failed)
}

fn write_blank(file: &File, path: &Path, record: &mut DiscRecord) -> io::Result<()> {
    let end = u64::from(record.capacity) * SECTOR_LEN;
    file.write_all_at(&record.new_trailer(), end)?;
    file.sync_all()?;
    let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty());
    File::open(parent.unwrap_or(Path::new(".")))?.sync_all()
}

/// Describes the image of a writable disc.
///
/// # Errors
/// A sentence, if it cannot be read or is not one.
pub fn describe(path: &Path) -> Result<DiscDescription, String> {
    let record = record_of(path)?;
    let record = record.ok_or_else(|| format!("{} is not the image of a writable disc", path.display()))?;
    let bytes = |sectors: u32| u64::from(sectors) * SECTOR_LEN;
    let track = |track: &Track| TrackDescription {
        session: track.session,
        start: track.start,
        sectors: track.next - track.start,
        is_closed: track.is_closed,
    };
    Ok(DiscDescription {
        medium: record.kind.name(),
        capacity: bytes(record.capacity),
        readable: bytes(record.readable()),
        state: match record.kind.is_sequential() {
            true if record.is_complete => "complete",
            true if record.is_blank() => "blank",
            true => "appendable",
            false if record.formatted == 0 => "blank",
            false => "formatted",
        },
        tracks: record
            .tracks()
            .iter()
            .filter(|track| !track.is_empty() || track.end.is_some())
            .map(track)
            .collect(),
    })
}

/// Returns the record of the image at a path, if it is one of a writable disc.
///
/// # Errors
/// A sentence, if it cannot be read or is damaged.
pub(crate) fn record_of(path: &Path) -> Result<Option<DiscRecord>, String> {
    let failed = |error: io::Error| format!("cannot read {}: {}", path.display(), os_error(&error));
    let file = File::open(path).map_err(failed)?;
    let len = file.metadata().map_err(failed)?.len();
    let Some(trailer) = trailer(&file, len).map_err(failed)? else { return Ok(None) };
    DiscRecord::of_trailer(&trailer, len).map_err(|why| format!("cannot use {}: {why}", path.display()))
}

/// Returns whether there is the image of a writable disc at a path.
pub(crate) fn is_writable(path: &Path) -> bool {
    record_of(path).is_ok_and(|record| record.is_some())
}

/// Returns the last bytes of a file, if it is long enough to be the image of a writable disc.
pub(crate) fn trailer(file: &File, len: u64) -> io::Result<Option<Vec<u8>>> {
    let mut bytes = vec![0; TRAILER_LEN];
    let Some(at) = len.checked_sub(u64::try_from(TRAILER_LEN).unwrap_or(u64::MAX)) else { return Ok(None) };
    file.read_exact_at(&mut bytes, at)?;
    Ok(Some(bytes))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::MetadataExt;

    use super::*;
    use crate::scratch::Scratch;

    #[test]
    fn an_image_is_made_once_and_described() {
        let scratch = Scratch::new();
        let path = scratch.path().join("disc.iso");
        create(&path, "bd-re", Some(64 << 20)).unwrap();
        let expected = DiscDescription {
            medium: "bd-re",
            capacity: 64 << 20,
            readable: 0,
            state: "blank",
            tracks: Vec::new(),
        };
        assert_eq!(describe(&path), Ok(expected));
        assert_eq!(path.metadata().unwrap().mode() & 0o777, 0o600);
        let again = create(&path, "bd-re", None).unwrap_err();
        assert!(again.ends_with("file exists"), "{again}");
        let iso = scratch.path().join("plain.iso");
        std::fs::write(&iso, [0; 4096]).unwrap();
        assert!(describe(&iso).unwrap_err().ends_with("is not the image of a writable disc"));
        assert!(!is_writable(&iso) && is_writable(&path));
    }

    #[test]
    fn wrong_kinds_and_capacities_make_no_file() {
        let scratch = Scratch::new();
        let path = scratch.path().join("disc.iso");
        for (kind, capacity) in
            [("cd-rw", None), ("dvd+rw", Some(1)), ("dvd+rw", Some(30 << 30)), ("bd-re", Some(32 << 10))]
        {
            assert!(create(&path, kind, capacity).is_err(), "{kind}, {capacity:?}");
            assert!(!path.exists());
        }
    }

    #[test]
    fn a_damaged_record_is_told() {
        let scratch = Scratch::new();
        let path = scratch.path().join("disc.iso");
        create(&path, "dvd+rw", Some(1 << 20)).unwrap();
        let file = File::options().write(true).open(&path).unwrap();
        file.write_all_at(&[0xff], (1 << 20) + 20).unwrap();
        let why = record_of(&path).unwrap_err();
        assert!(why.ends_with("the record of its tracks at the end of the file is damaged"), "{why}");
    }
}
