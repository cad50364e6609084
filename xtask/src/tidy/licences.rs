//! Checks that every package that is built in has a licence which a product under MIT and Apache-2.0 can
//! contain. The licence of a package is what its `Cargo.toml` says in cargo's registry, where it is unpacked
//! when it is built for the first time. Packages that are not built on this host have none there, and are not
//! checked.

use std::fs;
use std::path::{Path, PathBuf};

use toml::Table;

use super::dependencies;
use super::tree::{Finding, Tree};

const LIST: &str = "xtask/dependencies.toml";

/// Licences that ask for no more than a notice.
const ALLOWED: [&str; 11] = [
    "0BSD",
    "Apache-2.0",
    "Apache-2.0 WITH LLVM-exception",
    "BSD-2-Clause",
    "BSD-3-Clause",
    "ISC",
    "MIT",
    "MIT-0",
    "Unicode-3.0",
    "Unlicense",
    "Zlib",
];

pub(super) fn check(tree: &Tree) -> Vec<Finding> {
    let lock = tree.text("Cargo.lock").and_then(|lock| lock.parse::<Table>().ok()).unwrap_or_default();
    let folders = registry_folders();
    let mut findings = Vec::new();
    for package in dependencies::packages(&lock).into_keys() {
        let name = package.replacen(' ', "-", 1);
        let manifests = folders.iter().map(|folder| folder.join(&name).join("Cargo.toml"));
        let Some(text) = manifests.into_iter().find_map(|path| fs::read_to_string(path).ok()) else {
            continue;
        };
        if let Some(why) = fault(&text) {
            findings.push(Finding::whole(LIST, format!("\"{package}\": {why}")));
        }
    }
    findings
}

/// Returns the folders in which cargo has unpacked packages, one for each registry.
fn registry_folders() -> Vec<PathBuf> {
    let home = std::env::var_os("CARGO_HOME").map(PathBuf::from);
    let home = home.or_else(|| std::env::var_os("HOME").map(|home| Path::new(&home).join(".cargo")));
    let entries = home.and_then(|home| fs::read_dir(home.join("registry/src")).ok());
    entries.into_iter().flatten().flatten().map(|entry| entry.path()).collect()
}

/// Returns what is wrong with the licence that a manifest names.
fn fault(manifest: &str) -> Option<String> {
    let manifest = manifest.parse::<Table>().ok()?;
    let licence =
        manifest.get("package").and_then(|package| package.get("license")).and_then(|one| one.as_str());
    match licence {
        None => Some("its manifest names no licence".to_owned()),
        Some(licence) if is_allowed(licence) => None,
        Some(licence) => Some(format!("the licence {licence} is not among those that are allowed")),
    }
}

/// Returns whether an SPDX expression can be met by allowed licences. A slash is an old form of OR.
fn is_allowed(expression: &str) -> bool {
    let spaced = expression.replace('/', " OR ").replace('(', " ( ").replace(')', " ) ");
    let words: Vec<&str> = spaced.split_whitespace().collect();
    let mut rest = words.as_slice();
    any_of(&mut rest) && rest.is_empty()
}

/// Reads alternatives, which bind less than what is required together.
fn any_of(rest: &mut &[&str]) -> bool {
    let mut allowed = all_of(rest);
    while let ["OR", tail @ ..] = *rest {
        *rest = tail;
        allowed |= all_of(rest);
    }
    allowed
}

fn all_of(rest: &mut &[&str]) -> bool {
    let mut allowed = one(rest);
    while let ["AND", tail @ ..] = *rest {
        *rest = tail;
        allowed &= one(rest);
    }
    allowed
}

fn one(rest: &mut &[&str]) -> bool {
    match *rest {
        ["(", tail @ ..] => {
            *rest = tail;
            let allowed = any_of(rest);
            let [")", tail @ ..] = *rest else { return false };
            *rest = tail;
            allowed
        }
        [name, "WITH", exception, tail @ ..] => {
            *rest = tail;
            ALLOWED.contains(&format!("{name} WITH {exception}").as_str())
        }
        [name, tail @ ..] => {
            *rest = tail;
            ALLOWED.contains(name)
        }
        [] => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn expressions_are_met_by_allowed_licences() {
        for (expression, allowed) in [
            ("MIT OR Apache-2.0", true),
            ("Apache-2.0/MIT", true),
            ("GPL-3.0-only", false),
            ("GPL-3.0-only OR MIT", true),
            ("GPL-3.0-only AND MIT", false),
            ("(MIT OR GPL-2.0-only) AND Unicode-3.0", true),
            ("ISC AND (Apache-2.0 OR ISC) AND Apache-2.0", true),
            ("Apache-2.0 WITH LLVM-exception OR GPL-2.0-only", true),
            ("Apache-2.0 WITH Classpath-exception-2.0", false),
            ("MIT OR GPL-2.0-only AND GPL-3.0-only", true),
            ("MPL-2.0", false),
            ("MIT OR", true),
            ("(MIT", false),
            ("", false),
        ] {
            assert_eq!(is_allowed(expression), allowed, "{expression}");
        }
    }

    #[test]
    fn a_package_with_another_licence_or_none_is_found() {
        assert_eq!(fault("[package]\nname = \"a\"\nlicense = \"MIT\"\n"), None);
        assert!(fault("[package]\nname = \"a\"\nlicense = \"AGPL-3.0-only\"\n").is_some());
        assert!(fault("[package]\nname = \"a\"\nlicense-file = \"LICENSE\"\n").is_some());
    }
}
