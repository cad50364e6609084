//! Checks that the root of the repository has the files that readers and tools look for there, and few other
//! entries.

use std::collections::BTreeSet;

use super::tree::{Finding, Tree};

/// The most entries in the root, beside the files in `COMMUNITY_FILES`.
const ROOT_ENTRIES_MAX: usize = 16;

/// Files that a repository is expected to have in its root, under exactly these names. They do not count as
/// entries.
const COMMUNITY_FILES: &[&str] =
    &["README.md", "LICENSE-APACHE", "LICENSE-MIT", "CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md"];

pub(super) fn check(tree: &Tree) -> Vec<Finding> {
    let missing = COMMUNITY_FILES.iter().filter(|name| tree.text(name).is_none());
    let mut findings: Vec<Finding> =
        missing.map(|name| Finding::whole(name, "missing: a repository has this file in its root")).collect();
    let entries: BTreeSet<&str> = tree.paths().filter_map(|path| path.split('/').next()).collect();
    let counted: Vec<&str> = entries.into_iter().filter(|entry| !COMMUNITY_FILES.contains(entry)).collect();
    if counted.len() > ROOT_ENTRIES_MAX {
        let list = counted.join(" ");
        findings.push(Finding::whole(
            ".",
            format!("{} entries in the root, at most {ROOT_ENTRIES_MAX}: {list}", counted.len()),
        ));
    }
    findings
}

#[cfg(test)]
mod tests {
    use super::super::tree::planted;
    use super::*;

    fn community_files() -> Vec<(&'static str, &'static str)> {
        COMMUNITY_FILES.iter().map(|name| (*name, "")).collect()
    }

    #[test]
    fn counts_folders_once_and_finds_the_seventeenth_entry() {
        let names: Vec<String> = (0..16).map(|n| format!("entry{n}")).collect();
        let mut files = community_files();
        files.extend(names.iter().map(|name| (name.as_str(), "")));
        files.push(("entry15/a", ""));
        files.push(("entry15/b", ""));
        assert!(check(&planted(&files)).is_empty());
        files.push(("one-more", ""));
        assert_eq!(check(&planted(&files)).len(), 1);
    }

    #[test]
    fn finds_every_missing_community_file() {
        for missing in COMMUNITY_FILES {
            let files: Vec<_> = community_files().into_iter().filter(|(name, _)| name != missing).collect();
            let findings = check(&planted(&files));
            assert_eq!(findings.len(), 1, "{missing}");
            assert_eq!(findings.first().map(|finding| finding.path.as_str()), Some(*missing));
        }
    }
}
