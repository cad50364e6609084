//! Checks that building and testing stay cheap: the number of packages from registries, the number of test
//! binaries, and, where a binary is given, its size. `xtask/footprint.toml` has the most of each, and why.

use std::fs;

use toml::{Table, Value};

use super::tree::{Finding, Tree};

const LIST: &str = "xtask/footprint.toml";
const LOCK: &str = "Cargo.lock";

/// Compares the counts of the tree with the list.
pub(super) fn check(tree: &Tree) -> Vec<Finding> {
    let list = match read(tree) {
        Ok(list) => list,
        Err(finding) => return vec![finding],
    };
    let mut findings = Vec::new();
    for (name, row) in &list {
        if row.get("reason").and_then(Value::as_str).is_none_or(|reason| reason.trim().is_empty()) {
            findings.push(Finding::whole(LIST, format!("nothing says why `{name}` may be as large")));
        }
    }
    findings.extend(compare(&list, "packages", packages(tree)));
    findings.extend(compare(&list, "test_binaries", test_binaries(tree)));
    findings
}

/// Compares the size of a stripped binary with the list.
pub(super) fn check_binary(tree: &Tree, path: &str) -> Vec<Finding> {
    let list = match read(tree) {
        Ok(list) => list,
        Err(finding) => return vec![finding],
    };
    match fs::metadata(path) {
        Ok(metadata) => compare(&list, "binary_bytes", metadata.len()),
        Err(why) => vec![Finding::whole(path, why.to_string())],
    }
}

fn read(tree: &Tree) -> Result<Table, Finding> {
    let text = tree.text(LIST).ok_or_else(|| Finding::whole(LIST, "missing"))?;
    text.parse().map_err(|why: toml::de::Error| Finding::whole(LIST, why.to_string()))
}

fn compare(list: &Table, name: &str, count: u64) -> Vec<Finding> {
    let most = list.get(name).and_then(|row| row.get("most")).and_then(Value::as_integer);
    match most.and_then(|most| u64::try_from(most).ok()) {
        None => vec![Finding::whole(LIST, format!("`{name}` has no `most`"))],
        Some(most) if count > most => vec![Finding::whole(
            LIST,
            format!("`{name}` is {count}, and at most {most}: remove some, or raise it with the reason"),
        )],
        Some(_) => Vec::new(),
    }
}

/// Returns how many packages `Cargo.lock` takes from registries.
fn packages(tree: &Tree) -> u64 {
    tree.text(LOCK).map_or(0, |lock| count(lock.lines().filter(|line| line.starts_with("source = "))))
}

/// Returns how many binaries `cargo test` links: one for each library, program and integration test.
fn test_binaries(tree: &Tree) -> u64 {
    count(tree.paths().filter(|path| {
        let parts: Vec<&str> = path.split('/').collect();
        match parts.as_slice() {
            ["crates", _, "src", "lib.rs" | "main.rs"] | ["xtask", "src", "main.rs"] => true,
            ["crates", _, "src", "bin", file] | ["crates", _, "tests", file] => file.ends_with(".rs"),
            ["crates", _, "tests", _, "main.rs"] => true,
            _ => false,
        }
    }))
}

fn count<T>(items: impl Iterator<Item = T>) -> u64 {
    items.fold(0, |count, _| count.saturating_add(1))
}

#[cfg(test)]
mod tests {
    use super::super::tree::planted;
    use super::*;

    const LOCK_TEXT: &str = "[[package]]\nname = \"a\"\n\n[[package]]\nname = \"b\"\nsource = \"registry\"\n";

    fn list(packages: u64, binaries: u64) -> String {
        format!(
            "[packages]\nmost = {packages}\nreason = \"x\"\n[test_binaries]\nmost = {binaries}\nreason = \"x\"\n\
             [binary_bytes]\nmost = 1\nreason = \"x\"\n"
        )
    }

    fn findings(list: &str) -> usize {
        check(&planted(&[
            (LIST, list),
            (LOCK, LOCK_TEXT),
            ("crates/a/src/lib.rs", ""),
            ("crates/a/src/b.rs", ""),
            ("crates/a/tests/whole/main.rs", ""),
            ("crates/a/tests/whole/part.rs", ""),
        ]))
        .len()
    }

    #[test]
    fn finds_what_exceeds_the_list() {
        assert_eq!(findings(&list(1, 2)), 0);
        assert_eq!(findings(&list(0, 2)), 1);
        assert_eq!(findings(&list(1, 1)), 1);
        assert_eq!(findings(&list(1, 2).replace("reason = \"x\"\n[t", "reason = \" \"\n[t")), 1);
        assert_eq!(findings("[packages]\nmost = 1\nreason = \"x\"\n"), 1);
    }

    #[test]
    fn finds_a_binary_that_is_too_large() {
        let text = list(1, 2);
        let tree = planted(&[(LIST, text.as_str())]);
        assert_eq!(check_binary(&tree, "/proc/self/exe").len(), 1);
        assert_eq!(check_binary(&tree, "/nowhere").len(), 1);
        let large = text.replace("most = 1\nreason = \"x\"\n", "most = 100000000000\nreason = \"x\"\n");
        assert_eq!(check_binary(&planted(&[(LIST, large.as_str())]), "/proc/self/exe").len(), 0);
    }
}
