//! Reads one section of a tree. Unknown keys, wrong types and values out of range are reported as mistakes;
//! valid values are returned with their types.

use std::path::PathBuf;
use std::time::Duration;

use super::document::{RawValue, Tree, defaults};
use super::quantity;
use super::schema::{Absent, Key, Kind, Section};
use super::source_span::{ConfigReport, Located, SourceSpan, did_you_mean};

/// Reads the keys of one table. The caller must read every key of the section once; an assertion on drop
/// checks that in debug builds.
pub(crate) struct Reader<'r> {
    section: &'static Section,
    tree: Tree,
    report: &'r mut ConfigReport,
    left: Vec<&'static str>,
}

impl<'r> Reader<'r> {
    /// Opens a table of a section: reports unknown and missing keys, and fills in the defaults.
    pub(crate) fn open(section: &'static Section, mut tree: Tree, report: &'r mut ConfigReport) -> Self {
        for (name, entry) in &tree.entries {
            if section.key(name).is_none() {
                let hint = did_you_mean(name, section.keys.iter().map(|key| key.name));
                report.error(&entry.key_span, format!("unknown key \"{name}\" in {}{hint}", section.noun));
            }
        }
        for key in section.keys {
            if key.absent == Absent::Required && !tree.entries.contains_key(key.name) {
                report.missing(&tree.span, format!("{} has no \"{}\"", section.noun, key.name));
            }
        }
        tree.underlay(&defaults(section));
        let left = section.keys.iter().map(|key| key.name).collect();
        Self { section, tree, report, left }
    }

    /// Returns the source span of the table's beginning.
    pub(crate) fn span(&self) -> &SourceSpan {
        &self.tree.span
    }

    /// Returns the source span of a key if the text gives it.
    pub(crate) fn given(&self, name: &str) -> Option<SourceSpan> {
        let entry = self.tree.entries.get(name)?;
        (entry.value.span != SourceSpan::Default).then(|| entry.key_span.clone())
    }

    /// Reads a string.
    pub(crate) fn text(&mut self, name: &'static str) -> Option<Located<String>> {
        let (key, value) = self.take(name)?;
        let span = value.span.clone();
        match (value.value, key.kind) {
            (RawValue::Text(text), Kind::Text { len_max }) => {
                if text.len() > len_max {
                    self.report.error(&span, format!("\"{name}\" is longer than {len_max} bytes"));
                    None
                } else if text.contains(char::is_control) {
                    self.report.error(&span, format!("\"{name}\" contains a control character"));
                    None
                } else if text.is_empty() {
                    self.report.error(&span, format!("\"{name}\" is empty"));
                    None
                } else {
                    Some(Located::new(text, span))
                }
            }
            (other, _) => self.wrong(name, "a string", &other, &span),
        }
    }

    /// Reads a switch.
    pub(crate) fn switch(&mut self, name: &'static str) -> Option<Located<bool>> {
        let (_, value) = self.take(name)?;
        match value.value {
            RawValue::Switch(on) => Some(Located::new(on, value.span)),
            other => self.wrong(name, "true or false", &other, &value.span),
        }
    }

    /// Reads a whole number within its range.
    pub(crate) fn count(&mut self, name: &'static str) -> Option<Located<u64>> {
        let (key, value) = self.take(name)?;
        let Kind::Count { min, max } = key.kind else { return None };
        match value.value {
            RawValue::Integer(number) => match number.and_then(|n| u64::try_from(n).ok()) {
                Some(number) if (min..=max).contains(&number) => Some(Located::new(number, value.span)),
                _ => {
                    self.report.error(&value.span, format!("\"{name}\" must be {min} to {max}"));
                    None
                }
            },
            other => self.wrong(name, "a whole number", &other, &value.span),
        }
    }

    /// Reads a whole number of at most 16 bits. Its range in the schema must not exceed 16 bits.
    pub(crate) fn count16(&mut self, name: &'static str) -> Option<Located<u16>> {
        self.count(name).map(|at| at.map(|number| u16::try_from(number).unwrap_or(u16::MAX)))
    }

    /// Reads a whole number of at most 32 bits. Its range in the schema must not exceed 32 bits.
    pub(crate) fn count32(&mut self, name: &'static str) -> Option<Located<u32>> {
        self.count(name).map(|at| at.map(|number| u32::try_from(number).unwrap_or(u32::MAX)))
    }

    /// Reads a size in bytes within its range.
    pub(crate) fn size(&mut self, name: &'static str) -> Option<Located<u64>> {
        let (key, value) = self.take(name)?;
        let Kind::Size { min, max } = key.kind else { return None };
        let bytes = match value.value {
            RawValue::Text(text) => quantity::size(&text),
            RawValue::Integer(number) => number.and_then(|n| u64::try_from(n).ok()).ok_or_else(|| {
                format!("\"{name}\" must be {} to {}", quantity::show_size(min), quantity::show_size(max))
            }),
            other => return self.wrong(name, "a size such as \"10G\"", &other, &value.span),
        };
        match bytes {
            Ok(bytes) if (min..=max).contains(&bytes) => Some(Located::new(bytes, value.span)),
            Ok(_) => {
                let (min, max) = (quantity::show_size(min), quantity::show_size(max));
                self.report.error(&value.span, format!("\"{name}\" must be {min} to {max}"));
                None
            }
            Err(why) => {
                self.report.error(&value.span, why);
                None
            }
        }
    }

    /// Reads a span of time within its range.
    pub(crate) fn duration(&mut self, name: &'static str) -> Option<Located<Duration>> {
        let (key, value) = self.take(name)?;
        let Kind::Span { min_ms, max_ms } = key.kind else { return None };
        let text = match value.value {
            RawValue::Text(text) => text,
            other => return self.wrong(name, "a duration such as \"5s\"", &other, &value.span),
        };
        let range = Duration::from_millis(min_ms)..=Duration::from_millis(max_ms);
        match quantity::duration(&text) {
            Ok(span) if range.contains(&span) => Some(Located::new(span, value.span)),
            Ok(_) => {
                let message = format!("\"{name}\" must be {:?} to {:?}", range.start(), range.end());
                self.report.error(&value.span, message);
                None
            }
            Err(why) => {
                self.report.error(&value.span, why);
                None
            }
        }
    }

    /// Reads one of the words of a choice. A number is accepted for the word with its digits.
    pub(crate) fn choice(&mut self, name: &'static str) -> Option<Located<&'static str>> {
        let (key, value) = self.take(name)?;
        let Kind::Choice(words) = key.kind else { return None };
        let word = match value.value {
            RawValue::Text(word) => word,
            RawValue::Integer(Some(number)) => number.to_string(),
            other => return self.wrong(name, "a word", &other, &value.span),
        };
        self.word_of(name, words, &word, &value.span).map(|word| Located::new(word, value.span))
    }

    /// Reads several words of a choice, without repetition.
    pub(crate) fn choices(&mut self, name: &'static str) -> Option<Vec<&'static str>> {
        let (key, value) = self.take(name)?;
        let Kind::Choices(words) = key.kind else { return None };
        let mut taken = Vec::new();
        for word in self.strings(name, value)? {
            match self.word_of(name, words, &word.value, &word.span) {
                Some(found) if taken.contains(&found) => {
                    self.report.error(&word.span, format!("\"{found}\" is given twice"));
                }
                Some(found) => taken.push(found),
                None => {}
            }
        }
        Some(taken)
    }

    /// Reads a list of strings, or a single string.
    pub(crate) fn texts(&mut self, name: &'static str) -> Option<Vec<Located<String>>> {
        let (_, value) = self.take(name)?;
        self.strings(name, value)
    }

    /// Reads a list of strings that must not be empty.
    pub(crate) fn some_texts(&mut self, name: &'static str) -> Option<Vec<Located<String>>> {
        let span = self.given(name);
        let texts = self.texts(name)?;
        if let (true, Some(span)) = (texts.is_empty(), span) {
            self.report.error(&span, format!("\"{name}\" is an empty list"));
        }
        Some(texts)
    }

    /// Reads a path.
    pub(crate) fn path(&mut self, name: &'static str) -> Option<Located<PathBuf>> {
        let (_, value) = self.take(name)?;
        match value.value {
            RawValue::Text(text) if text.is_empty() || text.contains('\0') => {
                self.report.error(&value.span, format!("\"{name}\" is not a path"));
                None
            }
            RawValue::Text(text) => Some(Located::new(PathBuf::from(text), value.span)),
            other => self.wrong(name, "a path in quotes", &other, &value.span),
        }
    }

    /// Reads a table.
    pub(crate) fn table(&mut self, name: &'static str) -> Option<Tree> {
        let (_, value) = self.take(name)?;
        match value.value {
            RawValue::Table(tree) => Some(tree),
            other => self.wrong(name, &format!("one table, as in [{name}]"), &other, &value.span),
        }
    }

    /// Reads tables, in the order given. An empty list is a mistake.
    pub(crate) fn tables(&mut self, name: &'static str) -> Vec<Tree> {
        let Some((_, value)) = self.take(name) else { return Vec::new() };
        let wanted = format!("tables, as in [[{name}]]");
        match value.value {
            RawValue::List(list) if list.is_empty() => {
                self.report.error(&value.span, format!("\"{name}\" is an empty list"));
                Vec::new()
            }
            RawValue::List(list) => list
                .into_iter()
                .filter_map(|item| match item.value {
                    RawValue::Table(tree) => Some(tree),
                    other => self.wrong(name, &wanted, &other, &item.span),
                })
                .collect(),
            other => {
                self.wrong::<()>(name, &wanted, &other, &value.span);
                Vec::new()
            }
        }
    }

    /// Reads a list whose items may have several types.
    pub(crate) fn list(&mut self, name: &'static str) -> Option<Vec<Located<RawValue>>> {
        let (_, value) = self.take(name)?;
        match value.value {
            RawValue::List(list) => Some(list),
            other => self.wrong(name, "a list", &other, &value.span),
        }
    }

    fn take(&mut self, name: &'static str) -> Option<(&'static Key, Located<RawValue>)> {
        let key = self.section.key(name);
        debug_assert!(key.is_some(), "{name} is not in the schema of {}", self.section.noun);
        self.left.retain(|left| *left != name);
        Some((key?, self.tree.entries.remove(name)?.value))
    }

    fn wrong<T>(&mut self, name: &str, wanted: &str, found: &RawValue, span: &SourceSpan) -> Option<T> {
        let shown = match found {
            RawValue::Text(word) => format!("\"{word}\""),
            other => other.noun().to_owned(),
        };
        self.report.error(span, format!("\"{name}\" must be {wanted}, not {shown}"));
        None
    }

    fn word_of(
        &mut self,
        name: &str,
        words: &'static [&'static str],
        word: &str,
        span: &SourceSpan,
    ) -> Option<&'static str> {
        let found = words.iter().find(|known| known.eq_ignore_ascii_case(word)).copied();
        if found.is_none() {
            let hint = did_you_mean(word, words.iter().copied());
            let list = words.join(", ");
            self.report.error(span, format!("\"{name}\" must be one of {list}, not \"{word}\"{hint}"));
        }
        found
    }

    fn strings(&mut self, name: &str, value: Located<RawValue>) -> Option<Vec<Located<String>>> {
        let items = match value.value {
            RawValue::List(list) => list,
            RawValue::Text(_) => vec![value],
            other => return self.wrong(name, "a list of strings", &other, &value.span),
        };
        let strings = items.into_iter().filter_map(|item| match item.value {
            RawValue::Text(text) => Some(Located::new(text, item.span)),
            other => self.wrong(name, "a list of strings", &other, &item.span),
        });
        Some(strings.collect())
    }
}

impl Drop for Reader<'_> {
    /// Checks that every key was read: a key of the schema that no code reads would be silently without
    /// effect.
    fn drop(&mut self) {
        debug_assert!(
            self.left.is_empty() || std::thread::panicking(),
            "keys of {} that nobody reads: {:?}",
            self.section.noun,
            self.left
        );
    }
}
