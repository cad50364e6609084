//! Records which block device a unit had when it was served last. So the disk that has got the name of a
//! device after a restart of the host is not served under the world-wide name of the former one.
//!
//! `units/WORLD-WIDE-NAME.device` in the state directory has two lines: the version with the
//! [`DeviceIdentity`], and the path in quotes. A record for another path does not apply. A device of which
//! the system knows nothing that lasts is served as before.

use std::fs;
use std::path::Path;

use backends::open::FileIdentity;

use super::quoted;
use crate::config::{Medium, Unit};
use crate::serve::device_identity::{Comparison, DeviceIdentity};
use crate::serve::state::{self, StateDir, StateError};

/// The version of the record.
const VERSION: &str = "1";

/// Returns the identity of a unit's block device; `None` if it has none.
pub(super) fn present(unit: &Unit) -> Option<DeviceIdentity> {
    let Medium::Block { path, .. } = &unit.medium else { return None };
    DeviceIdentity::of(FileIdentity::of_path(path).ok()?.0)
}

/// Returns the identity that was recorded for a unit and its present path.
fn find(unit: &Unit, state: &StateDir) -> Option<String> {
    let text = fs::read_to_string(state.device_file(unit.identity.naa)).ok()?;
    let (identity, path) = parse(&text)?;
    (path == quoted(unit.medium.path()?)).then(|| identity.to_owned())
}

/// Returns whether a text is a record.
pub(super) fn is_record(text: &str) -> bool {
    parse(text).is_some_and(|(identity, _)| DeviceIdentity::is_encoded(identity))
}

/// Returns the identity and the path of a record.
fn parse(text: &str) -> Option<(&str, &str)> {
    let (first, path) = text.strip_suffix('\n')?.split_once('\n')?;
    let (version, identity) = first.split_once(' ')?;
    (version == VERSION).then_some((identity, path))
}

/// Returns the text of a record.
fn encode(present: &DeviceIdentity, path: &Path) -> String {
    format!("{VERSION} {}\n{}\n", present.encode(), quoted(path))
}

/// Checks that a unit's block device is not another one than it was served from last.
///
/// # Errors
/// A sentence that says what to do.
pub(super) fn check(unit: &Unit, state: &StateDir) -> Result<(), String> {
    let Some(recorded) = find(unit, state) else { return Ok(()) };
    expect(unit, present(unit).as_ref(), &recorded, state)
}

fn expect(
    unit: &Unit,
    present: Option<&DeviceIdentity>,
    recorded: &str,
    state: &StateDir,
) -> Result<(), String> {
    let Some(present) = present.filter(|present| present.compare(recorded) == Comparison::Other) else {
        return Ok(());
    };
    Err(format!(
        "{}: {} leads to another device ({}) than when it was served last ({recorded}); name the former one by a path \
         that stays, as in /dev/disk/by-id, or remove {} to serve this one",
        unit.label,
        unit.medium,
        present.encode(),
        state.device_file(unit.identity.naa).display()
    ))
}

/// Records the block device of a unit, if it has changed.
pub(super) fn save(unit: &Unit, present: &DeviceIdentity, state: &StateDir) -> Result<(), StateError> {
    let Some(path) = unit.medium.path() else { return Ok(()) };
    if find(unit, state).as_ref() == Some(&present.encode()) {
        return Ok(());
    }
    state::replace(&state.device_file(unit.identity.naa), encode(present, path).as_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scratch::Scratch;
    use crate::serve::hostile_names;
    use crate::serve::media::tests::unit;

    #[test]
    fn hostile_names_are_read_as_they_were_written() {
        let scratch = Scratch::new();
        let mut rng = base::rng::Rng::from_seed(1);
        fs::create_dir_all(scratch.path().join("dm")).unwrap();
        for _ in 0..300 {
            for name in ["wwid", "serial", "dm/uuid", "partition"] {
                fs::write(scratch.path().join(name), hostile_names::text(&mut rng)).unwrap();
            }
            let present = DeviceIdentity::read(scratch.path(), "b1");
            let path = hostile_names::text(&mut rng);
            let text = encode(&present, Path::new(&path));
            assert!(is_record(&text), "{text}");
            assert_eq!(parse(&text), Some((&*present.encode(), &*quoted(Path::new(&path)))));
            assert_ne!(present.compare(&present.encode()), Comparison::Other, "{text}");
        }
    }

    #[test]
    fn another_disk_with_the_name_of_a_device_is_not_served_without_the_operators_word() {
        let scratch = Scratch::new();
        let state = StateDir::open(&scratch.path().join("state")).unwrap();
        let unit = unit(scratch.path(), "type = \"block\", path = \"/dev/sda\"");
        let device = |wwid: &str| {
            fs::write(scratch.path().join("wwid"), wwid).unwrap();
            DeviceIdentity::read(scratch.path(), "b1")
        };
        let [first, other, unknown] = ["naa.5", "naa.6", ""].map(device);
        let kept = state.device_file(unit.identity.naa);
        let record = |identity: &DeviceIdentity, path: &str| {
            let path = quoted(Path::new(path));
            fs::write(&kept, format!("1 {}\n{path}\n", identity.encode())).unwrap();
            find(&unit, &state)
        };
        let recorded = record(&first, "/dev/sda").unwrap();
        assert_eq!(expect(&unit, Some(&first), &recorded, &state), Ok(()));
        let why = expect(&unit, Some(&other), &recorded, &state).unwrap_err();
        assert!(why.contains("naa.5") && why.contains(&format!("or remove {}", kept.display())), "{why}");
        assert_eq!(record(&first, "/dev/sdb"), None);
        let recorded = record(&unknown, "/dev/sda").unwrap();
        assert_eq!(expect(&unit, Some(&other), &recorded, &state), Ok(()), "nothing tells them apart");
    }
}
