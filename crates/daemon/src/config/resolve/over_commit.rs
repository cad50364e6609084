//! Warns of files that can outgrow the file system that holds them, all together. A thin file takes storage
//! when hosts write, and every LUN of a full file system fails then.

use std::collections::BTreeMap;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use super::super::source_span::{ConfigReport, SourceSpan};

/// The length of the blocks that `st_blocks` counts.
const STAT_BLOCK_LEN: u64 = 512;

/// What the disks of each file system, by its device number, can still take from it.
#[derive(Default)]
pub(super) struct Promises(BTreeMap<u64, FileSystem>);

/// What one file can still take from its file system.
pub(super) struct Promise {
    /// The device number of the file system.
    system: u64,
    directory: PathBuf,
    free: u64,
    whole: u64,
    promised: u64,
    span: SourceSpan,
}

/// A file system with files that are served.
struct FileSystem {
    directory: PathBuf,
    /// The bytes that are free for the daemon's user.
    free: u64,
    /// The bytes that the file system holds.
    whole: u64,
    /// The bytes that the files can still take.
    promised: u64,
    files: usize,
    /// Where the last file is configured.
    span: SourceSpan,
}

impl Extend<Promise> for Promises {
    fn extend<T: IntoIterator<Item = Promise>>(&mut self, promises: T) {
        promises.into_iter().for_each(|promise| self.add(promise));
    }
}

impl Promise {
    /// Returns what a file can still take that hosts can write, and that has or gets this size.
    pub(super) fn of(path: &Path, size: Option<u64>, span: &SourceSpan) -> Option<Self> {
        let directory = path.parent().unwrap_or(path);
        let file = path.metadata().ok();
        let at = file.as_ref().map_or_else(|| directory.metadata().ok(), |file| Some(file.clone()))?;
        let system = rustix::fs::statvfs(if file.is_some() { path } else { directory }).ok()?;
        let (len, taken) =
            file.map_or((0, 0), |file| (file.len(), file.blocks().saturating_mul(STAT_BLOCK_LEN)));
        Some(Self {
            system: at.dev(),
            directory: directory.to_path_buf(),
            free: system.f_bavail.saturating_mul(system.f_frsize),
            whole: system.f_blocks.saturating_mul(system.f_frsize),
            promised: size.unwrap_or(0).max(len).saturating_sub(taken),
            span: span.clone(),
        })
    }
}

impl Promises {
    fn add(&mut self, promise: Promise) {
        let Promise { system, directory, free, whole, promised, span } = promise;
        let known = self.0.entry(system).or_insert_with(|| FileSystem {
            directory,
            free,
            whole,
            promised: 0,
            files: 0,
            span: span.clone(),
        });
        known.promised = known.promised.saturating_add(promised);
        known.files += 1;
        known.span = span;
    }

    /// Warns of each file system that has less free than was promised of it.
    pub(super) fn warn(&self, report: &mut ConfigReport) {
        for system in self.0.values() {
            let FileSystem { directory, free, whole, promised, files, span } = system;
            // Another warning names a single file that is larger than its whole file system.
            let is_named = *files == 1 && promised > whole;
            if promised > free && *whole > 0 && !is_named {
                let files = if *files == 1 { "1 file".to_owned() } else { format!("{files} files") };
                report.warn(
                    span,
                    format!(
                        "{files} on the file system of {} can take {promised} bytes more, and {free} are free: writes \
                         will fail when it is full",
                        directory.display()
                    ),
                );
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scratch::Scratch;

    #[test]
    fn files_that_can_outgrow_their_file_system_together_are_warned_of() {
        let scratch = Scratch::new();
        let system = rustix::fs::statvfs(scratch.path()).unwrap();
        let free = system.f_bavail * system.f_frsize;
        let warnings = |sizes: &[u64]| {
            let (mut promises, mut report) = (Promises::default(), ConfigReport::new(None));
            for (at, size) in sizes.iter().enumerate() {
                let path = scratch.path().join(format!("{at}.img"));
                promises.extend(Promise::of(&path, Some(*size), &SourceSpan::Default));
            }
            promises.warn(&mut report);
            report.warning_lines().collect::<Vec<_>>()
        };
        assert_eq!(warnings(&[free / 4, free / 4]), [""; 0]);
        let [warning] = &warnings(&[free / 4 * 3, free / 4 * 3])[..] else { panic!("no warning") };
        assert!(warning.contains("2 files on the file system of ") && warning.contains(" bytes more, and "));
        // The storage that a file has taken counts neither as free nor as promised.
        std::fs::write(scratch.path().join("0.img"), vec![7; 1 << 20]).unwrap();
        let mut promises = Promises::default();
        promises.extend(Promise::of(&scratch.path().join("0.img"), Some(1 << 20), &SourceSpan::Default));
        assert_eq!(promises.0.values().map(|system| system.promised).sum::<u64>(), 0);
        assert_eq!(warnings(&[system.f_blocks * system.f_frsize * 2]), [""; 0], "another warning says so");
    }
}
