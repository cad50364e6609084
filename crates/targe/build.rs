//! Records the commit that is built, for the reports of the laboratory.

use std::path::Path;
use std::process::Command;

fn main() {
    println!("cargo::rerun-if-env-changed=TARGE_COMMIT");
    for file in ["HEAD", "logs/HEAD"] {
        // Cargo would rebuild each time for a file that does not exist.
        if let Some(path) = git(&["rev-parse", "--git-path", file]).filter(|path| Path::new(path).exists()) {
            println!("cargo::rerun-if-changed={path}");
        }
    }
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rustc-env=TARGE_COMMIT={}", commit());
}

/// Returns the commit: the environment's, or else that of the repository of this workspace.
fn commit() -> String {
    if let Ok(commit) = std::env::var("TARGE_COMMIT") {
        return format!("commit {commit}");
    }
    // The sources may lie unpacked in a repository of something else.
    let is_ours = git(&["rev-parse", "--show-prefix"]).is_some_and(|prefix| prefix == "crates/targe/");
    let commit = is_ours.then(|| git(&["rev-parse", "--short=12", "HEAD"])).flatten();
    commit.map_or_else(|| "built without git".to_owned(), |commit| format!("commit {commit}"))
}

fn git(arguments: &[&str]) -> Option<String> {
    let output = Command::new("git").args(arguments).output().ok()?;
    let text = String::from_utf8(output.stdout).ok().filter(|_| output.status.success())?;
    Some(text.trim().to_owned())
}
