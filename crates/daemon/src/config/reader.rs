//! Reads one section of a tree: unknown keys, wrong kinds and values out of range become mistakes; what is right comes
//! out typed.

use std::path::PathBuf;
use std::time::Duration;

use super::document::{Raw, Tree, defaults};
use super::place::{At, Place, Report, did_you_mean};
use super::schema::{Absent, Key, Kind, Section};
use super::units;

/// Reads the keys of one table. Every key of the section must be asked for once; a test sees to it.
pub(crate) struct Reader<'r> {
    section: &'static Section,
    tree: Tree,
    report: &'r mut Report,
    left: Vec<&'static str>,
}

impl<'r> Reader<'r> {
    /// Opens a table of a section: reports unknown keys and missing ones, and fills in the defaults.
    pub(crate) fn open(section: &'static Section, mut tree: Tree, report: &'r mut Report) -> Self {
        for (name, entry) in &tree.entries {
            if section.key(name).is_none() {
                let hint = did_you_mean(name, section.keys.iter().map(|key| key.name));
                report.mistake(&entry.key_place, format!("unknown key \"{name}\" in {}{hint}", section.noun));
            }
        }
        for key in section.keys {
            if key.absent == Absent::Required && !tree.entries.contains_key(key.name) {
                report.missing(&tree.place, format!("{} has no \"{}\"", section.noun, key.name));
            }
        }
        tree.underlay(&defaults(section));
        let left = section.keys.iter().map(|key| key.name).collect();
        Self { section, tree, report, left }
    }

    /// Returns where the table begins.
    pub(crate) fn place(&self) -> &Place {
        &self.tree.place
    }

    /// Returns the place at which a key is given in the text.
    pub(crate) fn given(&self, name: &str) -> Option<Place> {
        let entry = self.tree.entries.get(name)?;
        (entry.value.place != Place::Default).then(|| entry.key_place.clone())
    }

    /// Takes a string.
    pub(crate) fn text(&mut self, name: &'static str) -> Option<At<String>> {
        let (key, value) = self.take(name)?;
        let place = value.place.clone();
        match (value.value, key.kind) {
            (Raw::Text(text), Kind::Text { len_max }) => {
                if text.len() > len_max {
                    self.report.mistake(&place, format!("\"{name}\" is longer than {len_max} bytes"));
                    None
                } else if text.contains(char::is_control) {
                    self.report.mistake(&place, format!("\"{name}\" contains a control character"));
                    None
                } else if text.is_empty() {
                    self.report.mistake(&place, format!("\"{name}\" is empty"));
                    None
                } else {
                    Some(At::new(text, place))
                }
            }
            (other, _) => self.wrong(name, "a string", &other, &place),
        }
    }

    /// Takes a switch.
    pub(crate) fn switch(&mut self, name: &'static str) -> Option<At<bool>> {
        let (_, value) = self.take(name)?;
        match value.value {
            Raw::Switch(on) => Some(At::new(on, value.place)),
            other => self.wrong(name, "true or false", &other, &value.place),
        }
    }

    /// Takes a whole number within its range.
    pub(crate) fn count(&mut self, name: &'static str) -> Option<At<u64>> {
        let (key, value) = self.take(name)?;
        let Kind::Count { min, max } = key.kind else { return None };
        match value.value {
            Raw::Integer(number) => match number.and_then(|n| u64::try_from(n).ok()) {
                Some(number) if (min..=max).contains(&number) => Some(At::new(number, value.place)),
                _ => {
                    self.report.mistake(&value.place, format!("\"{name}\" must be {min} to {max}"));
                    None
                }
            },
            other => self.wrong(name, "a whole number", &other, &value.place),
        }
    }

    /// Takes a whole number of at most 16 bits; its range in the schema must say so.
    pub(crate) fn count16(&mut self, name: &'static str) -> Option<At<u16>> {
        self.count(name).map(|at| at.map(|number| u16::try_from(number).unwrap_or(u16::MAX)))
    }

    /// Takes a size in bytes within its range.
    pub(crate) fn size(&mut self, name: &'static str) -> Option<At<u64>> {
        let (key, value) = self.take(name)?;
        let Kind::Size { min, max } = key.kind else { return None };
        let bytes = match value.value {
            Raw::Text(text) => units::size(&text),
            Raw::Integer(number) => number.and_then(|n| u64::try_from(n).ok()).ok_or_else(|| {
                format!("\"{name}\" must be {} to {}", units::show_size(min), units::show_size(max))
            }),
            other => return self.wrong(name, "a size such as \"10G\"", &other, &value.place),
        };
        match bytes {
            Ok(bytes) if (min..=max).contains(&bytes) => Some(At::new(bytes, value.place)),
            Ok(_) => {
                let (min, max) = (units::show_size(min), units::show_size(max));
                self.report.mistake(&value.place, format!("\"{name}\" must be {min} to {max}"));
                None
            }
            Err(why) => {
                self.report.mistake(&value.place, why);
                None
            }
        }
    }

    /// Takes a span of time within its range.
    pub(crate) fn span(&mut self, name: &'static str) -> Option<At<Duration>> {
        let (key, value) = self.take(name)?;
        let Kind::Span { min_ms, max_ms } = key.kind else { return None };
        let text = match value.value {
            Raw::Text(text) => text,
            other => return self.wrong(name, "a span of time such as \"5s\"", &other, &value.place),
        };
        let range = Duration::from_millis(min_ms)..=Duration::from_millis(max_ms);
        match units::span(&text) {
            Ok(span) if range.contains(&span) => Some(At::new(span, value.place)),
            Ok(_) => {
                let message = format!("\"{name}\" must be {:?} to {:?}", range.start(), range.end());
                self.report.mistake(&value.place, message);
                None
            }
            Err(why) => {
                self.report.mistake(&value.place, why);
                None
            }
        }
    }

    /// Takes one of the words of a choice. Numbers stand for the words that spell them.
    pub(crate) fn choice(&mut self, name: &'static str) -> Option<At<&'static str>> {
        let (key, value) = self.take(name)?;
        let Kind::Choice(words) = key.kind else { return None };
        let word = match value.value {
            Raw::Text(word) => word,
            Raw::Integer(Some(number)) => number.to_string(),
            other => return self.wrong(name, "a word", &other, &value.place),
        };
        self.word_of(name, words, &word, &value.place).map(|word| At::new(word, value.place))
    }

    /// Takes several words of a choice, without repetition.
    pub(crate) fn choices(&mut self, name: &'static str) -> Option<Vec<&'static str>> {
        let (key, value) = self.take(name)?;
        let Kind::Choices(words) = key.kind else { return None };
        let mut taken = Vec::new();
        for word in self.strings(name, value)? {
            match self.word_of(name, words, &word.value, &word.place) {
                Some(found) if taken.contains(&found) => {
                    self.report.mistake(&word.place, format!("\"{found}\" is given twice"));
                }
                Some(found) => taken.push(found),
                None => {}
            }
        }
        Some(taken)
    }

    /// Takes a list of strings, or a single one.
    pub(crate) fn texts(&mut self, name: &'static str) -> Option<Vec<At<String>>> {
        let (_, value) = self.take(name)?;
        self.strings(name, value)
    }

    /// Takes a list of strings that must not be empty.
    pub(crate) fn some_texts(&mut self, name: &'static str) -> Option<Vec<At<String>>> {
        let place = self.given(name);
        let texts = self.texts(name)?;
        if let (true, Some(place)) = (texts.is_empty(), place) {
            self.report.mistake(&place, format!("\"{name}\" is an empty list"));
        }
        Some(texts)
    }

    /// Takes a path.
    pub(crate) fn path(&mut self, name: &'static str) -> Option<At<PathBuf>> {
        let (_, value) = self.take(name)?;
        match value.value {
            Raw::Text(text) if text.is_empty() || text.contains('\0') => {
                self.report.mistake(&value.place, format!("\"{name}\" is not a path"));
                None
            }
            Raw::Text(text) => Some(At::new(PathBuf::from(text), value.place)),
            other => self.wrong(name, "a path in quotes", &other, &value.place),
        }
    }

    /// Takes a table.
    pub(crate) fn table(&mut self, name: &'static str) -> Option<Tree> {
        let (_, value) = self.take(name)?;
        match value.value {
            Raw::Table(tree) => Some(tree),
            other => self.wrong(name, &format!("one table, as in [{name}]"), &other, &value.place),
        }
    }

    /// Takes tables, in the order given. A list without any is a mistake.
    pub(crate) fn tables(&mut self, name: &'static str) -> Vec<Tree> {
        let Some((_, value)) = self.take(name) else { return Vec::new() };
        let wanted = format!("tables, as in [[{name}]]");
        match value.value {
            Raw::List(list) if list.is_empty() => {
                self.report.mistake(&value.place, format!("\"{name}\" is an empty list"));
                Vec::new()
            }
            Raw::List(list) => list
                .into_iter()
                .filter_map(|item| match item.value {
                    Raw::Table(tree) => Some(tree),
                    other => self.wrong(name, &wanted, &other, &item.place),
                })
                .collect(),
            other => {
                self.wrong::<()>(name, &wanted, &other, &value.place);
                Vec::new()
            }
        }
    }

    /// Takes a list whose items may be of several kinds.
    pub(crate) fn list(&mut self, name: &'static str) -> Option<Vec<At<Raw>>> {
        let (_, value) = self.take(name)?;
        match value.value {
            Raw::List(list) => Some(list),
            other => self.wrong(name, "a list", &other, &value.place),
        }
    }

    fn take(&mut self, name: &'static str) -> Option<(&'static Key, At<Raw>)> {
        let key = self.section.key(name);
        debug_assert!(key.is_some(), "{name} is not in the schema of {}", self.section.noun);
        self.left.retain(|left| *left != name);
        Some((key?, self.tree.entries.remove(name)?.value))
    }

    fn wrong<T>(&mut self, name: &str, wanted: &str, found: &Raw, place: &Place) -> Option<T> {
        let shown = match found {
            Raw::Text(word) => format!("\"{word}\""),
            other => other.noun().to_owned(),
        };
        self.report.mistake(place, format!("\"{name}\" must be {wanted}, not {shown}"));
        None
    }

    fn word_of(
        &mut self,
        name: &str,
        words: &'static [&'static str],
        word: &str,
        place: &Place,
    ) -> Option<&'static str> {
        let found = words.iter().find(|known| known.eq_ignore_ascii_case(word)).copied();
        if found.is_none() {
            let hint = did_you_mean(word, words.iter().copied());
            let list = words.join(", ");
            self.report.mistake(place, format!("\"{name}\" must be one of {list}, not \"{word}\"{hint}"));
        }
        found
    }

    fn strings(&mut self, name: &str, value: At<Raw>) -> Option<Vec<At<String>>> {
        let items = match value.value {
            Raw::List(list) => list,
            Raw::Text(_) => vec![value],
            other => return self.wrong(name, "a list of strings", &other, &value.place),
        };
        let strings = items.into_iter().filter_map(|item| match item.value {
            Raw::Text(text) => Some(At::new(text, item.place)),
            other => self.wrong(name, "a list of strings", &other, &item.place),
        });
        Some(strings.collect())
    }
}

impl Drop for Reader<'_> {
    /// A key that the schema promises and nobody reads would be silently without effect.
    fn drop(&mut self) {
        debug_assert!(
            self.left.is_empty() || std::thread::panicking(),
            "keys of {} that nobody reads: {:?}",
            self.section.noun,
            self.left
        );
    }
}
