//! The group whose members may read the state of the daemon over the admin socket.

use std::path::Path;

use super::super::source_span::{ConfigReport, Located};

/// Where the system has the names of its groups. Groups of a directory service are named by their numbers.
const GROUPS: &str = "/etc/group";

/// Returns the number of the group.
pub(super) fn resolve(written: Option<&Located<String>>, report: &mut ConfigReport) -> Option<u32> {
    let at = written?;
    let found = at.value.parse().ok().or_else(|| number_of(&at.value, Path::new(GROUPS)));
    // The system takes the highest number for "no change".
    let found = found.filter(|number| *number != u32::MAX);
    if found.is_none() {
        let message = format!("\"{}\" is no group of {GROUPS}, and no number of a group", at.value);
        report.error(&at.span, message);
    }
    found
}

/// Returns the number of a group in a file of the form `NAME:PASSWORD:NUMBER:MEMBERS`.
fn number_of(name: &str, file: &Path) -> Option<u32> {
    let text = std::fs::read_to_string(file).ok()?;
    let mut groups = text.lines().map(|line| line.split(':'));
    let mut group = groups.find_map(|mut fields| (fields.next() == Some(name)).then_some(fields))?;
    group.nth(1)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn groups_are_found_by_name() {
        let scratch = crate::scratch::Scratch::new();
        let file = scratch.path().join("group");
        std::fs::write(&file, "root:x:0:\nstaff:x:50:anna,bert\nbroken\nother:x:no:\n").unwrap();
        assert_eq!(number_of("staff", &file), Some(50));
        assert_eq!(number_of("root", &file), Some(0));
        for name in ["sta", "anna", "broken", "other", ""] {
            assert_eq!(number_of(name, &file), None, "{name}");
        }
    }
}
