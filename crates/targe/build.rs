//! Records the commit that is built, for `targe --version` and the reports of the laboratory.
//!
//! The first that is known counts: `TARGE_COMMIT` in the environment, a hash with or without the date of the
//! commit behind it; what `git archive` wrote to `commit.txt`; the commit that is checked out.

use std::path::Path;
use std::process::Command;

/// How many digits of the hash are told.
const DIGITS: usize = 12;

fn main() {
    println!("cargo::rerun-if-env-changed=TARGE_COMMIT");
    for file in ["HEAD", "logs/HEAD"] {
        // Cargo would rebuild each time for a file that does not exist.
        if let Some(path) = git(&["rev-parse", "--git-path", file]).filter(|path| Path::new(path).exists()) {
            println!("cargo::rerun-if-changed={path}");
        }
    }
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rerun-if-changed=commit.txt");
    let commit = from_environment().or_else(from_archive).or_else(from_git).unwrap_or_default();
    let mut words = commit.split_whitespace();
    let told = words.next().map_or_else(
        || "built without git".to_owned(),
        |hash| format!("commit {}", hash.get(..DIGITS).unwrap_or(hash)),
    );
    println!("cargo::rustc-env=TARGE_COMMIT={told}");
    println!("cargo::rustc-env=TARGE_COMMIT_DATE={}", words.next().unwrap_or_default());
    for (name, variable) in [("TARGE_BUILT_FOR", "TARGET"), ("TARGE_PROFILE", "PROFILE")] {
        println!("cargo::rustc-env={name}={}", std::env::var(variable).unwrap_or_default());
    }
}

fn from_environment() -> Option<String> {
    std::env::var("TARGE_COMMIT").ok().filter(|commit| !commit.trim().is_empty())
}

/// Returns what `git archive` put in the place of the format in `commit.txt`.
fn from_archive() -> Option<String> {
    std::fs::read_to_string("commit.txt").ok().filter(|text| !text.starts_with('$'))
}

fn from_git() -> Option<String> {
    // The sources may lie unpacked in a repository of something else.
    let is_ours = git(&["rev-parse", "--show-prefix"]).is_some_and(|prefix| prefix == "crates/targe/");
    is_ours.then(|| git(&["log", "-1", "--format=%H %cs"])).flatten()
}

fn git(arguments: &[&str]) -> Option<String> {
    let output = Command::new("git").args(arguments).output().ok()?;
    let text = String::from_utf8(output.stdout).ok().filter(|_| output.status.success())?;
    Some(text.trim().to_owned())
}
