//! Records which LUKS2 header each encrypted disk had when it was served last. So a blank medium that has
//! taken the place of the disk does not become an empty disk with the name of the former one, and a disk
//! whose configuration has lost its `encrypt` is not served as it is.
//!
//! `units/WORLD-WIDE-NAME.luks` in the state directory has two lines: the version with the UUID of the header
//! in quotes, and the path in quotes. A record for another path does not apply to the medium. A record that
//! cannot be parsed applies to any path.

use std::fs;
use std::io::ErrorKind;

use super::quoted;
use crate::config::Unit;
use crate::luks;
use crate::serve::state::{self, StateDir, StateError};

/// The version of the record.
const VERSION: &str = "1";

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct HeaderRecord {
    /// The UUID in quotes.
    uuid: String,
    /// The path in quotes.
    path: String,
}

/// What the state directory says of the header of a unit.
enum Found {
    Nothing,
    Header(HeaderRecord),
    Unreadable,
}

impl HeaderRecord {
    /// Returns the record of a unit's medium in its present state; `None` if it has no header.
    pub(super) fn of(unit: &Unit) -> Option<Self> {
        let path = unit.medium.path().filter(|_| unit.encrypt.is_some())?;
        let uuid = luks::header_of(path).ok()?.uuid();
        Some(Self { uuid: quoted_text(&uuid), path: quoted(path) })
    }

    /// Records the header of a unit's medium, if it has changed.
    pub(super) fn save(&self, unit: &Unit, state: &StateDir) -> Result<(), StateError> {
        match Self::find(unit, state) {
            Found::Header(known) if known == *self => return Ok(()),
            Found::Header(known) => crate::warning!(
                "{}: {} has the LUKS2 header {}, and had {} when it was served last: it is another disk",
                unit.label,
                self.path,
                self.uuid,
                known.uuid
            ),
            Found::Nothing | Found::Unreadable => {}
        }
        state::replace(&state.header_file(unit.identity.naa), self.encode().as_bytes())
    }

    fn find(unit: &Unit, state: &StateDir) -> Found {
        let Some(path) = unit.medium.path() else { return Found::Nothing };
        match fs::read_to_string(state.header_file(unit.identity.naa)) {
            Ok(text) => match Self::parse(&text) {
                Some(record) if record.path != quoted(path) => Found::Nothing,
                Some(record) => Found::Header(record),
                None => Found::Unreadable,
            },
            Err(error) if error.kind() == ErrorKind::NotFound => Found::Nothing,
            Err(_) => Found::Unreadable,
        }
    }

    fn parse(text: &str) -> Option<Self> {
        let (first, path) = text.strip_suffix('\n')?.split_once('\n')?;
        let (version, uuid) = first.split_once(' ')?;
        let record = Self { uuid: uuid.to_owned(), path: path.to_owned() };
        (version == VERSION).then_some(record)
    }

    fn encode(&self) -> String {
        let Self { uuid, path } = self;
        format!("{VERSION} {uuid}\n{path}\n")
    }
}

/// Returns how the medium of a unit was encrypted when targe served it last; `None` if it was not.
fn former(unit: &Unit, state: &StateDir) -> Option<String> {
    match HeaderRecord::find(unit, state) {
        Found::Nothing => None,
        Found::Header(record) => Some(format!("the LUKS2 header {}", record.uuid)),
        Found::Unreadable => Some("a LUKS2 header with an unknown UUID".to_owned()),
    }
}

/// Checks that a medium which is to be served as it is was not encrypted when targe served it last.
///
/// # Errors
/// A fragment that says what to do.
pub(in crate::serve) fn check_plain(unit: &Unit, state: &StateDir) -> Result<(), String> {
    let Some((former, path)) = former(unit, state).zip(unit.medium.path()) else { return Ok(()) };
    Err(format!(
        "{} was encrypted when it was served last, with {former}: name the file with its secret (encrypt = …), or \
         remove {} to serve what is there as it is",
        path.display(),
        state.header_file(unit.identity.naa).display()
    ))
}

/// Checks that a medium without a LUKS2 header had none when targe served it last: only then may it get one.
///
/// # Errors
/// A fragment that says what to do.
pub(in crate::serve) fn check_new(unit: &Unit, state: &StateDir) -> Result<(), String> {
    let Some((former, path)) = former(unit, state).zip(unit.medium.path()) else { return Ok(()) };
    Err(format!(
        "{} has no LUKS2 header, and the disk that was served from there had {former}; restore that disk, or remove {} \
         to begin with an empty disk, if it is blank",
        path.display(),
        state.header_file(unit.identity.naa).display()
    ))
}

fn quoted_text(text: &str) -> String {
    format!("{text:?}")
}

/// Forgets the header of a unit that an operator has removed.
pub(super) fn forget(unit: &Unit, state: &StateDir) {
    if let Found::Header(_) = HeaderRecord::find(unit, state) {
        state.forget_header(unit.identity.naa);
    }
}

#[cfg(test)]
mod tests {
    use std::fs::{File, OpenOptions};
    use std::os::unix::fs::{FileExt, PermissionsExt};
    use std::path::Path;

    use super::super::{note_removed, save_opened};
    use super::*;
    use crate::scratch::Scratch;
    use crate::serve::media::tests::config;
    use crate::serve::media::{self, FileRollback};

    const LEN: u64 = 17 << 20;

    fn make_blank(path: &Path) {
        File::create(path).unwrap().set_len(LEN).unwrap();
    }

    #[test]
    fn a_blank_medium_is_not_formatted_in_the_place_of_an_encrypted_disk_without_the_operators_word() {
        let scratch = Scratch::new();
        let state = StateDir::open(&scratch.path().join("state")).unwrap();
        let (path, secret) = (scratch.path().join("disk.img"), scratch.path().join("secret"));
        fs::write(&secret, "a secret of more than thirty-two bytes").unwrap();
        fs::set_permissions(&secret, PermissionsExt::from_mode(0o600)).unwrap();
        let config = config(scratch.path(), "type = \"file\", path = \"disk.img\", encrypt = \"secret\"");
        let unit = &config.units[0];
        let open = || media::open(unit, &state, &mut FileRollback::default(), None).map(drop);
        let kept = state.header_file(unit.identity.naa);
        make_blank(&path);
        open().unwrap();
        assert!(luks::is_image(&path) && !kept.exists());
        save_opened(config.units.iter(), &state).unwrap();
        open().unwrap();
        let before = fs::read(&path).unwrap();

        make_blank(&path);
        let uuid = HeaderRecord::parse(&fs::read_to_string(&kept).unwrap()).unwrap().uuid;
        let why = open().unwrap_err().to_string();
        let told = format!(
            "disk.img has no LUKS2 header, and the disk that was served from there had the LUKS2 header {uuid}; "
        );
        assert!(why.contains(&told) && why.contains(&format!("or remove {}", kept.display())), "{why}");
        assert!(!luks::is_image(&path), "nothing is written");
        // The disk itself comes back.
        fs::write(&path, &before).unwrap();
        open().unwrap();
        // A header that was being written, too, is only completed on a new disk.
        make_blank(&path);
        OpenOptions::new().write(true).open(&path).unwrap().write_all_at(b"damaged", 0).unwrap();
        assert!(open().is_err());
        // The record of another path says nothing of this one, and a damaged one forbids everything.
        make_blank(&path);
        fs::write(&kept, "damaged").unwrap();
        assert!(open().unwrap_err().to_string().contains("a LUKS2 header with an unknown UUID"));
        fs::write(&kept, "1 \"u\"\n\"/other\"\n").unwrap();
        open().unwrap();
        // The operator's word: the record is removed, or the LUN.
        save_opened(config.units.iter(), &state).unwrap();
        for is_lun in [false, true] {
            make_blank(&path);
            open().unwrap_err();
            if is_lun {
                let mut none = config.clone();
                none.units.clear();
                note_removed(&config, &none, &state).unwrap();
                assert!(!kept.exists());
            } else {
                fs::remove_file(&kept).unwrap();
            }
            open().unwrap();
            save_opened(config.units.iter(), &state).unwrap();
        }
    }

    #[test]
    fn a_disk_that_was_encrypted_is_not_served_as_it_is_without_the_operators_word() {
        let scratch = Scratch::new();
        let state = StateDir::open(&scratch.path().join("state")).unwrap();
        let (path, secret) = (scratch.path().join("disk.img"), scratch.path().join("secret"));
        fs::write(&secret, b"a secret of more than thirty-two bytes").unwrap();
        fs::set_permissions(&secret, PermissionsExt::from_mode(0o600)).unwrap();
        let lun = "type = \"file\", path = \"disk.img\"";
        let encrypted = config(scratch.path(), &format!("{lun}, encrypt = \"secret\""));
        let plain = config(scratch.path(), lun);
        let unit = &encrypted.units[0];
        let open = |unit| media::open(unit, &state, &mut FileRollback::default(), None).map(drop);
        make_blank(&path);
        // A disk that was never encrypted.
        open(&plain.units[0]).unwrap();
        save_opened(plain.units.iter(), &state).unwrap();
        open(&plain.units[0]).unwrap();
        open(unit).unwrap();
        save_opened(encrypted.units.iter(), &state).unwrap();
        open(unit).unwrap();
        let error = open(&plain.units[0]).unwrap_err();
        let (why, kept) = (error.to_string(), state.header_file(unit.identity.naa));
        assert!(
            why.contains("disk.img was encrypted when it was served last, with the LUKS2 header \""),
            "{why}"
        );
        assert!(why.contains(&format!("remove {} to serve", kept.display())), "{why}");
        assert!(error.is_fault(), "everything else is served");
        fs::remove_file(&kept).unwrap();
        open(&plain.units[0]).unwrap();
    }

    #[test]
    fn a_record_is_read_as_it_was_written_and_nothing_else_is_one() {
        let mut rng = base::rng::Rng::from_seed(1);
        for _ in 0..2000 {
            let [uuid, path] = [0; 2].map(|_| format!("{:?}", crate::serve::hostile_names::text(&mut rng)));
            let record = HeaderRecord { uuid, path };
            assert_eq!(HeaderRecord::parse(&record.encode()), Some(record));
        }
        for text in ["", "1", "1 \"u\"", "1 \"u\"\n\"/a\"", "2 \"u\"\n\"/a\"\n"] {
            assert_eq!(HeaderRecord::parse(text), None, "{text}");
        }
    }
}
