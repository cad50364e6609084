//! The root of the repository stays small enough to be read at a glance.

use std::collections::BTreeSet;

use super::tree::{Finding, Tree};

const ROOT_ENTRIES_MAX: usize = 16;

pub(super) fn check(tree: &Tree) -> Vec<Finding> {
    let entries: BTreeSet<&str> = tree.paths().filter_map(|path| path.split('/').next()).collect();
    if entries.len() <= ROOT_ENTRIES_MAX {
        return Vec::new();
    }
    let list = entries.iter().copied().collect::<Vec<_>>().join(" ");
    vec![Finding::whole(
        ".",
        format!("{} entries in the root, at most {ROOT_ENTRIES_MAX}: {list}", entries.len()),
    )]
}

#[cfg(test)]
mod tests {
    use super::super::tree::planted;
    use super::*;

    #[test]
    fn counts_folders_once_and_finds_the_seventeenth_entry() {
        let names: Vec<String> = (0..16).map(|n| format!("entry{n}")).collect();
        let mut files: Vec<(&str, &str)> = names.iter().map(|name| (name.as_str(), "")).collect();
        files.push(("entry15/a", ""));
        files.push(("entry15/b", ""));
        assert!(check(&planted(&files)).is_empty());
        files.push(("one-more", ""));
        assert_eq!(check(&planted(&files)).len(), 1);
    }
}
