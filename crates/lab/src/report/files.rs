//! The files of a report: written as a whole each, and read back.

use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};

use serde::Deserialize;

use super::model::{Report, SCHEMA};
use super::{csv, html};

/// The files of a report.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Files {
    /// The report for a browser, one file without references to others.
    pub html: PathBuf,
    /// One line for each sample.
    pub csv: PathBuf,
    /// The report for programs: [`Report`] as JSON.
    pub json: PathBuf,
    /// The plan of the run.
    pub plan: PathBuf,
}

/// Why a report cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum ReadError {
    /// The system cannot read the file.
    #[error("{path}: {why}", path = path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// The error.
        why: io::Error,
    },
    /// The file is something else.
    #[error("{path}: this is not a result.json of an experiment: {why}", path = path.display())]
    NotReport {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        why: String,
    },
    /// A newer version of this program wrote the file.
    #[error(
        "{path}: this report has version {schema}, and this program reads versions up to {SCHEMA}",
        path = path.display()
    )]
    Newer {
        /// The file.
        path: PathBuf,
        /// The version of the report.
        schema: u64,
    },
}

impl Report {
    /// Writes `report.html`, `samples.csv`, `result.json` and `plan.toml` into `dir`, which is created if
    /// needed. Each file appears as a whole, and replaces an earlier one of its name.
    ///
    /// # Errors
    /// If the directory or a file cannot be written; the error names which. The files before it are written.
    pub fn write(&self, dir: &Path) -> io::Result<Files> {
        fs::create_dir_all(dir).map_err(|error| with_path(dir, &error))?;
        let json = serde_json::to_string_pretty(self).map_err(io::Error::other)?;
        Ok(Files {
            json: replace(dir, "result.json", &json)?,
            csv: replace(dir, "samples.csv", &csv::samples(self))?,
            plan: replace(dir, "plan.toml", &self.plan)?,
            html: replace(dir, "report.html", &html::page(self))?,
        })
    }

    /// Reads a `result.json`, or that of a directory.
    ///
    /// # Errors
    /// If the file cannot be read, is no report, is longer than [`LEN_MAX`] or comes from a newer version of
    /// this program.
    pub fn read(path: &Path) -> Result<Self, ReadError> {
        let path = if path.is_dir() { path.join("result.json") } else { path.to_owned() };
        let not_report = |why: String| ReadError::NotReport { path: path.clone(), why };
        let bytes = read_bounded(&path).map_err(|why| ReadError::Io { path: path.clone(), why })?;
        let Some(bytes) = bytes else {
            return Err(not_report(format!("it is longer than {LEN_MAX} bytes")));
        };
        let head: Head = serde_json::from_slice(&bytes).map_err(|error| not_report(error.to_string()))?;
        if head.schema > u64::from(SCHEMA) {
            return Err(ReadError::Newer { path, schema: head.schema });
        }
        serde_json::from_slice(&bytes).map_err(|error| not_report(error.to_string()))
    }
}

/// The longest report that is read: about a million samples with their circumstances, ten times over.
pub const LEN_MAX: u64 = 256 << 20;

/// What all versions of a report have.
#[derive(Deserialize)]
struct Head {
    schema: u64,
}

/// Returns `None` if the file is longer than [`LEN_MAX`].
fn read_bounded(path: &Path) -> io::Result<Option<Vec<u8>>> {
    let mut bytes = Vec::new();
    File::open(path)?.take(LEN_MAX + 1).read_to_end(&mut bytes)?;
    Ok(u64::try_from(bytes.len()).is_ok_and(|len| len <= LEN_MAX).then_some(bytes))
}

/// Writes a temporary file beside the file, and renames it: a reader sees the old content or the new one.
fn replace(dir: &Path, name: &str, content: &str) -> io::Result<PathBuf> {
    let path = dir.join(name);
    let temporary = dir.join(format!(".{name}.{}", std::process::id()));
    let written = write_synced(&temporary, content).and_then(|()| fs::rename(&temporary, &path));
    written.map_err(|error| {
        let _ = fs::remove_file(&temporary);
        with_path(&path, &error)
    })?;
    Ok(path)
}

fn write_synced(path: &Path, content: &str) -> io::Result<()> {
    let mut file = File::create(path)?;
    file.write_all(content.as_bytes())?;
    file.sync_data()
}

fn with_path(path: &Path, error: &io::Error) -> io::Error {
    io::Error::new(error.kind(), format!("{}: {error}", path.display()))
}
