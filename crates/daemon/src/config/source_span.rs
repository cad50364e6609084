//! Source spans of values, and the mistakes found at them.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::fs::File;
use std::io::ErrorKind;
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::answers::Place;
use crate::is_medium_fault;

/// The place where a value was written.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum SourceSpan {
    /// In the configuration file; line and column count from 1, the column in characters.
    File {
        /// The line.
        line: u32,
        /// The column.
        column: u32,
    },
    /// On the command line: the flag and its value, as given.
    Flag(Arc<str>),
    /// Nowhere: the value is a default.
    Default,
}

/// A value and its source span.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Located<T> {
    pub(crate) value: T,
    pub(crate) span: SourceSpan,
}

impl<T> Located<T> {
    pub(crate) const fn new(value: T, span: SourceSpan) -> Self {
        Self { value, span }
    }

    pub(crate) fn map<U>(self, f: impl FnOnce(T) -> U) -> Located<U> {
        Located { value: f(self.value), span: self.span }
    }
}

/// One mistake.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ConfigError {
    /// The source span of the mistake; `None` when it concerns the file as a whole.
    pub span: Option<SourceSpan>,
    /// The description of the mistake, as a fragment without full stop.
    pub message: String,
}

/// All mistakes and warnings of one configuration.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ConfigReport {
    /// The file, as the user named it; `None` for a configuration built from flags.
    pub file: Option<PathBuf>,
    /// The mistakes. A configuration with mistakes cannot be used.
    pub errors: BTreeSet<ConfigError>,
    /// The warnings. They do not keep the configuration from being used.
    pub warnings: BTreeSet<ConfigError>,
    /// The subset of `errors` which say that a medium cannot be used in its present state.
    of_media: BTreeMap<ConfigError, UnusableMedium>,
    /// What else is known of the reading.
    reading: Box<Reading>,
    /// Whether the text has syntax errors, so that a value that seems missing may only be unreadable.
    damaged: bool,
}

/// What is known of the reading of a configuration, apart from its mistakes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Reading {
    /// The label of the unit whose medium is examined.
    unit: Option<String>,
    /// Why the world-wide names that are derived here can differ from those that the daemon derives, if they
    /// can.
    unknown_names: Option<String>,
    /// The paths of media and secrets that do not answer.
    silent: BTreeSet<PathBuf>,
    /// The subset of the mistakes which say that a file does not answer without which nothing can be served,
    /// and the path of each.
    awaited: BTreeMap<ConfigError, PathBuf>,
}

/// Why a medium cannot be used, for those who may use the configuration all the same.
#[derive(Clone, Debug, PartialEq, Eq)]
struct UnusableMedium {
    /// The label of its unit.
    unit: Option<String>,
    is_absent: bool,
}

impl ConfigReport {
    pub(crate) fn new(file: Option<PathBuf>) -> Self {
        Self { file, ..Self::default() }
    }

    /// Returns whether the configuration can be used.
    pub fn is_clean(&self) -> bool {
        self.errors.is_empty()
    }

    /// Returns whether there are mistakes, and each of them is that a medium cannot be used in its present
    /// state. What the operator wrote is right then.
    pub(crate) fn has_only_media_errors(&self) -> bool {
        !self.errors.is_empty() && self.errors.iter().all(|error| self.of_media.contains_key(error))
    }

    /// Sets the unit that the mistakes about media are of from now on.
    pub(crate) fn examine_unit(&mut self, label: Option<String>) {
        self.reading.unit = label;
    }

    /// Records that a medium cannot be used in its present state.
    pub(crate) fn medium_error(&mut self, span: &SourceSpan, message: impl Into<String>) {
        self.add_medium(span, message.into(), false);
    }

    /// Records that the medium at a path, or one whose secret has that path, cannot be used: it is not there,
    /// it fails, or it is not what it should be.
    pub(crate) fn unusable_medium(&mut self, path: &Path, span: &SourceSpan, why: String) {
        let is_absent = match path.metadata() {
            Err(error) => error.kind() == ErrorKind::NotFound || is_medium_fault(&error),
            Ok(facts) if facts.is_file() || facts.file_type().is_block_device() => {
                File::open(path).is_err_and(|error| is_medium_fault(&error))
            }
            Ok(_) => false,
        };
        self.add_medium(span, why, is_absent);
    }

    /// Records that a medium, or the secret of one, does not answer. It can still come.
    pub(crate) fn silent_medium(&mut self, path: &Path, span: &SourceSpan) {
        self.reading.silent.insert(path.to_owned());
        self.add_medium(span, format!("{} does not answer", path.display()), true);
    }

    /// Records that the folder of a tape library does not answer. Nobody knows which drives it has.
    pub(crate) fn silent_library(&mut self, path: &Path, span: &SourceSpan) {
        let message = format!("{} does not answer", path.display());
        self.add_medium(span, message.clone(), false);
        self.reading.awaited.insert(ConfigError { span: Some(span.clone()), message }, path.to_owned());
    }

    /// Records that the number of a LUN depends on the drives of a library that cannot be read. If a library
    /// does not answer, its answer can give the number.
    pub(crate) fn unknown_number(&mut self, span: &SourceSpan, message: &str) {
        let error = ConfigError { span: Some(span.clone()), message: message.to_owned() };
        if let Some(library) = self.reading.awaited.values().next().cloned() {
            self.reading.awaited.insert(error.clone(), library);
        }
        self.errors.insert(error);
    }

    /// Records that a file which the configuration needs does not answer.
    pub(crate) fn silent_file(&mut self, path: &Path, span: &SourceSpan) {
        let message = format!("{} does not answer", path.display());
        let error = ConfigError { span: Some(span.clone()), message };
        self.reading.awaited.insert(error.clone(), path.to_owned());
        self.errors.insert(error);
    }

    /// Returns whether a file does not answer that is in the directory of this one.
    pub(crate) fn awaits_directory_of(&self, path: &Path) -> bool {
        self.reading.awaited.values().any(|silent| Place::of(silent).name() == Place::of(path).name())
    }

    /// Returns the paths that do not answer and without which nothing can be served, if there are any.
    pub(crate) fn awaited(&self) -> BTreeSet<PathBuf> {
        self.reading.awaited.values().cloned().collect()
    }

    /// Returns whether there are mistakes, and each of them is that storage is not there, fails or does not
    /// answer. What the operator wrote can be right then.
    pub(crate) fn has_only_absent_storage(&self) -> bool {
        let is_absent = |error: &ConfigError| {
            let medium = self.of_media.get(error);
            medium.is_some_and(|medium| medium.is_absent) || self.reading.awaited.contains_key(error)
        };
        !self.errors.is_empty() && self.errors.iter().all(is_absent)
    }

    /// Returns the paths of media and secrets that do not answer.
    pub(crate) const fn silent(&self) -> &BTreeSet<PathBuf> {
        &self.reading.silent
    }

    /// Adds what was found of a medium of the unit that is examined.
    pub(crate) fn add(&mut self, found: Self) {
        let unit = &self.reading.unit;
        let of_media = found.of_media.into_iter();
        self.of_media
            .extend(of_media.map(|(error, medium)| (error, UnusableMedium { unit: unit.clone(), ..medium })));
        self.errors.extend(found.errors);
        self.warnings.extend(found.warnings);
        self.reading.silent.extend(found.reading.silent);
        self.reading.awaited.extend(found.reading.awaited);
    }

    /// Records why the derived world-wide names can differ from those of the daemon.
    pub(crate) fn names_are_unknown(&mut self, why: String) {
        self.reading.unknown_names = Some(why);
    }

    /// Returns why the derived world-wide names can differ from those of the daemon, if they can.
    pub fn unknown_names(&self) -> Option<&str> {
        self.reading.unknown_names.as_deref()
    }

    fn add_medium(&mut self, span: &SourceSpan, message: String, is_absent: bool) {
        let error = ConfigError { span: Some(span.clone()), message };
        let medium = UnusableMedium { unit: self.reading.unit.clone(), is_absent };
        self.of_media.insert(error.clone(), medium);
        self.errors.insert(error);
    }

    /// Returns whether there are mistakes, and each of them is that a medium is not there or fails. It can
    /// still come.
    pub(crate) fn has_only_absent_media(&self) -> bool {
        !self.errors.is_empty()
            && self.errors.iter().all(|error| self.of_media.get(error).is_some_and(|medium| medium.is_absent))
    }

    /// Returns the report with the mistakes about media as warnings.
    pub(crate) fn with_media_warnings(mut self) -> Self {
        let media = std::mem::take(&mut self.of_media);
        self.errors.retain(|error| !media.contains_key(error));
        self.warnings.extend(media.into_keys());
        self
    }

    /// Makes warnings of the mistakes about media that `accepts` allows, by the label of the unit and whether
    /// the medium is not there.
    pub(crate) fn accept_media(&mut self, accepts: impl Fn(&str, bool) -> bool) {
        self.of_media.retain(|error, medium| {
            let is_accepted = medium.unit.as_deref().is_some_and(|unit| accepts(unit, medium.is_absent));
            if is_accepted {
                self.errors.remove(error);
                let label = medium.unit.as_deref().unwrap_or_default();
                let message =
                    format!("{label} stays as it is, although its medium cannot be used: {}", error.message);
                self.warnings.insert(ConfigError { span: error.span.clone(), message });
            }
            !is_accepted
        });
    }

    /// Records a mistake.
    pub(crate) fn error(&mut self, span: &SourceSpan, message: impl Into<String>) {
        self.errors.insert(ConfigError { span: Some(span.clone()), message: message.into() });
    }

    /// Records that something is missing, unless the text has syntax errors: the value may be in the
    /// unreadable part.
    pub(crate) fn missing(&mut self, span: &SourceSpan, message: impl Into<String>) {
        if !self.damaged {
            self.error(span, message);
        }
    }

    /// Records a syntax error.
    pub(crate) fn damage(&mut self, span: &SourceSpan, message: impl Into<String>) {
        self.damaged = true;
        self.error(span, message);
    }

    /// Records a mistake without a source span.
    pub(crate) fn whole(&mut self, message: impl Into<String>) {
        self.errors.insert(ConfigError { span: None, message: message.into() });
    }

    /// Records a warning.
    pub(crate) fn warn(&mut self, span: &SourceSpan, message: impl Into<String>) {
        self.warnings.insert(ConfigError { span: Some(span.clone()), message: message.into() });
    }

    /// Returns the warnings without the prefix `warning: `, for a log whose lines have a level.
    pub fn warning_lines(&self) -> impl Iterator<Item = String> {
        self.warnings.iter().map(|warning| self.line(warning, ""))
    }

    fn line(&self, error: &ConfigError, kind: &str) -> String {
        let span = match (&error.span, &self.file) {
            (Some(SourceSpan::Flag(flag)), _) => format!("{flag}: "),
            (Some(SourceSpan::File { line, column }), Some(file)) => {
                format!("{}:{line}:{column}: ", file.display())
            }
            (_, Some(file)) => format!("{}: ", file.display()),
            (_, None) => String::new(),
        };
        format!("{span}{kind}{}", error.message)
    }
}

/// Formats one line each, mistakes first: `targe.toml:12:9: unknown key "sise" in lun (did you mean
/// "size"?)`.
impl fmt::Display for ConfigReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for error in &self.errors {
            writeln!(f, "{}", self.line(error, ""))?;
        }
        for warning in &self.warnings {
            writeln!(f, "{}", self.line(warning, "warning: "))?;
        }
        Ok(())
    }
}

impl std::error::Error for ConfigReport {}

/// Converts byte offsets of a text to lines and columns.
pub(crate) struct LineIndex<'a> {
    text: &'a str,
    /// The byte offset at which each line starts.
    starts: Vec<usize>,
}

impl<'a> LineIndex<'a> {
    pub(crate) fn new(text: &'a str) -> Self {
        let starts =
            std::iter::once(0).chain(text.match_indices('\n').map(|(newline, _)| newline + 1)).collect();
        Self { text, starts }
    }

    /// Returns the source span of the character at a byte offset.
    pub(crate) fn span_at(&self, offset: usize) -> SourceSpan {
        let line = self.starts.partition_point(|&start| start <= offset);
        let start = line.checked_sub(1).and_then(|row| self.starts.get(row)).copied().unwrap_or(0);
        let column = self.text.get(start..offset).map_or(0, |before| before.chars().count()) + 1;
        SourceSpan::File {
            line: u32::try_from(line).unwrap_or(u32::MAX),
            column: u32::try_from(column).unwrap_or(u32::MAX),
        }
    }
}

/// Returns ` (did you mean "…"?)` with the closest of `known` if one is close to `word`, else an empty
/// string.
pub(crate) fn did_you_mean<'k>(word: &str, known: impl IntoIterator<Item = &'k str>) -> String {
    let best = known.into_iter().map(|name| (distance(word, name), name)).min();
    match best {
        Some((distance, name)) if distance <= 1 + name.len() / 4 => format!(" (did you mean \"{name}\"?)"),
        _ => String::new(),
    }
}

/// Returns the number of single-character edits (insert, delete, replace) that turn `a` into `b`, the
/// Levenshtein distance. Case does not matter.
fn distance(a: &str, b: &str) -> usize {
    let mut row: Vec<usize> = (0..=b.chars().count()).collect();
    for (i, from) in a.chars().enumerate() {
        let mut diagonal = i;
        let mut left = i + 1;
        for (cell, to) in row.iter_mut().skip(1).zip(b.chars()) {
            let replaced = diagonal + usize::from(!from.eq_ignore_ascii_case(&to));
            diagonal = *cell;
            left = replaced.min(left + 1).min(diagonal + 1);
            *cell = left;
        }
        if let Some(first) = row.first_mut() {
            *first = i + 1;
        }
    }
    row.last().copied().unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_lines_and_characters_from_one() {
        let index = LineIndex::new("a\nbé c\n\nx");
        for (offset, line, column) in
            [(0, 1, 1), (2, 2, 1), (3, 2, 2), (5, 2, 3), (8, 3, 1), (9, 4, 1), (10, 4, 2)]
        {
            assert_eq!(index.span_at(offset), SourceSpan::File { line, column }, "{offset}");
        }
    }

    #[test]
    fn edit_distance_of_near_and_far_words() {
        for (a, b, expected) in [
            ("size", "size", 0),
            ("sise", "size", 1),
            ("sze", "size", 1),
            ("", "abc", 3),
            ("kitten", "sitting", 3),
        ] {
            assert_eq!(distance(a, b), expected, "{a} {b}");
            assert_eq!(distance(b, a), expected, "{b} {a}");
        }
    }

    #[test]
    fn suggests_only_near_words() {
        assert_eq!(did_you_mean("sise", ["path", "size"]), " (did you mean \"size\"?)");
        assert_eq!(did_you_mean("colour", ["path", "size"]), "");
    }
}
