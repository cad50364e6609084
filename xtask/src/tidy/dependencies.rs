//! Checks that every package that `Cargo.lock` takes from a registry is in a hand-written list, with its
//! version, and that the list names no other package.

use std::collections::BTreeMap;

use toml::{Table, Value};

use super::tree::{Finding, Tree};

const LOCK: &str = "Cargo.lock";
const LIST: &str = "xtask/dependencies.toml";

pub(super) fn check(tree: &Tree) -> Vec<Finding> {
    let (Some(lock), Some(list)) = (tree.text(LOCK), tree.text(LIST)) else {
        return vec![Finding::whole(LIST, format!("this or {LOCK} is missing"))];
    };
    let locked = match lock.parse::<Table>() {
        Ok(lock) => packages(&lock),
        Err(why) => return vec![Finding::whole(LOCK, why.to_string())],
    };
    let listed = match list.parse::<Table>() {
        Ok(list) => list,
        Err(why) => return vec![Finding::whole(LIST, why.to_string())],
    };
    let mut findings = Vec::new();
    for (package, pinned) in &locked {
        if !listed.contains_key(package) {
            findings.push(Finding::whole(LIST, format!("\"{package}\" is used and not listed")));
        }
        if !pinned {
            findings.push(Finding::whole(LOCK, format!("\"{package}\" has no checksum")));
        }
    }
    for (package, note) in &listed {
        let at = list.lines().position(|line| line.starts_with(&format!("\"{package}\""))).unwrap_or(0);
        if !locked.contains_key(package) {
            findings.push(Finding::at(LIST, at, format!("\"{package}\" is listed and not used")));
        }
        if note.as_str().is_none_or(|note| note.trim().is_empty()) {
            findings.push(Finding::at(LIST, at, format!("nothing says what \"{package}\" is for")));
        }
    }
    findings
}

/// Returns the packages from outside the workspace, with their versions, and whether a checksum pins the
/// content of each.
pub(super) fn packages(lock: &Table) -> BTreeMap<String, bool> {
    let all = lock.get("package").and_then(Value::as_array).into_iter().flatten();
    let named = all.filter(|package| package.get("source").is_some()).filter_map(|package| {
        let text = |key| package.get(key).and_then(Value::as_str);
        Some((format!("{} {}", text("name")?, text("version")?), text("checksum").is_some()))
    });
    named.collect()
}

#[cfg(test)]
mod tests {
    use super::super::tree::planted;
    use super::*;

    const OWN: &str = "[[package]]\nname = \"targe-base\"\nversion = \"0.1.0\"\n";

    fn package(name: &str, version: &str, checksum: &str) -> String {
        format!(
            "[[package]]\nname = \"{name}\"\nversion = \"{version}\"\nsource = \"registry+x\"\n{checksum}\n"
        )
    }

    fn told(lock: &str, list: &str) -> Vec<String> {
        let tree = planted(&[(LOCK, lock), (LIST, list)]);
        check(&tree).into_iter().map(|finding| finding.what).collect()
    }

    #[test]
    fn a_bump_is_a_decision() {
        let pinned = "checksum = \"00\"";
        let lock = format!("{OWN}{}", package("aes", "0.9.4", pinned));
        assert!(told(&lock, "\"aes 0.9.4\" = \"encryption\"\n").is_empty());
        let bumped = format!("{OWN}{}", package("aes", "0.9.5", pinned));
        assert_eq!(
            told(&bumped, "\"aes 0.9.4\" = \"encryption\"\n"),
            ["\"aes 0.9.5\" is used and not listed", "\"aes 0.9.4\" is listed and not used"]
        );
        assert_eq!(told(&lock, "\"aes 0.9.4\" = \" \"\n"), ["nothing says what \"aes 0.9.4\" is for"]);
        let loose = format!("{OWN}{}", package("aes", "0.9.4", ""));
        assert_eq!(told(&loose, "\"aes 0.9.4\" = \"encryption\"\n"), ["\"aes 0.9.4\" has no checksum"]);
    }
}
