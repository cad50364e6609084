//! The tracked files as text, and the findings of a rule.

use std::collections::BTreeMap;
use std::fmt;
use std::fs;
use std::path::PathBuf;
use std::process::Command;

/// Every tracked file, with its path relative to the root and `/` between the parts. A file that is not UTF-8
/// has its path here and no text.
#[derive(Debug, Default)]
pub(crate) struct Tree {
    files: BTreeMap<String, String>,
}

impl Tree {
    /// Reads the files that git tracks in the repository around the current directory, as they are in the
    /// work tree.
    pub(crate) fn of_repository() -> Result<Self, String> {
        let root = PathBuf::from(git(&["rev-parse", "--show-toplevel"])?.trim_end());
        let listing = git(&["-C", &root.to_string_lossy(), "ls-files", "-z"])?;
        let mut files = BTreeMap::new();
        for path in listing.split('\0').filter(|path| !path.is_empty()) {
            // A file that was deleted without a commit is still listed; it has no content to check.
            if let Ok(bytes) = fs::read(root.join(path)) {
                files.insert(path.to_owned(), String::from_utf8(bytes).unwrap_or_default());
            }
        }
        Ok(Self { files })
    }

    pub(crate) fn len(&self) -> usize {
        self.files.len()
    }

    pub(crate) fn paths(&self) -> impl Iterator<Item = &str> {
        self.files.keys().map(String::as_str)
    }

    pub(crate) fn text(&self, path: &str) -> Option<&str> {
        self.files.get(path).map(String::as_str)
    }

    /// Returns the files whose names end in one of `endings`, in the order of their paths.
    pub(crate) fn ending_in<'a>(&'a self, endings: &'a [&str]) -> impl Iterator<Item = (&'a str, &'a str)> {
        self.files
            .iter()
            .filter(|(path, _)| endings.iter().any(|ending| path.ends_with(ending)))
            .map(|(path, text)| (path.as_str(), text.as_str()))
    }
}

pub(crate) fn git(arguments: &[&str]) -> Result<String, String> {
    let output =
        Command::new("git").args(arguments).output().map_err(|why| format!("cannot run git: {why}"))?;
    if !output.status.success() {
        return Err(format!(
            "git {}: {}",
            arguments.join(" "),
            String::from_utf8_lossy(&output.stderr).trim_end()
        ));
    }
    String::from_utf8(output.stdout).map_err(|_| "git printed a path that is not UTF-8".to_owned())
}

/// A place where a rule is broken.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Finding {
    pub(crate) path: String,
    /// The number of the line, counted from 1; 0 means the file as a whole.
    pub(crate) line: usize,
    pub(crate) what: String,
}

impl Finding {
    /// Returns a finding about line number `index + 1`, as `enumerate` over lines counts.
    pub(crate) fn at(path: &str, index: usize, what: impl Into<String>) -> Self {
        Self { path: path.to_owned(), line: index.saturating_add(1), what: what.into() }
    }

    pub(crate) fn whole(path: &str, what: impl Into<String>) -> Self {
        Self { path: path.to_owned(), line: 0, what: what.into() }
    }
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.line {
            0 => write!(f, "{}: {}", self.path, self.what),
            line => write!(f, "{}:{line}: {}", self.path, self.what),
        }
    }
}

#[cfg(test)]
pub(crate) fn planted(files: &[(&str, &str)]) -> Tree {
    Tree { files: files.iter().map(|(path, text)| ((*path).to_owned(), (*text).to_owned())).collect() }
}
