//! A configuration as a tree of values with places, whatever it was written in: TOML, or the flags of a command line.

use std::collections::BTreeMap;
use std::sync::Arc;

use toml::de::{DeTable, DeValue};

use super::place::{At, LineIndex, Place, Report};
use super::schema::{Kind, Section};

/// A value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Raw {
    /// A string.
    Text(String),
    /// A whole number; `None` when it does not fit 64 bits.
    Integer(Option<i64>),
    /// `true` or `false`.
    Switch(bool),
    /// An array.
    List(Vec<At<Raw>>),
    /// A table.
    Table(Tree),
    /// Something that no key takes: a float or a date.
    Odd(&'static str),
}

impl Raw {
    /// Returns what a message calls it.
    pub(crate) const fn noun(&self) -> &'static str {
        match self {
            Self::Text(_) => "a string",
            Self::Integer(_) => "a number",
            Self::Switch(_) => "true or false",
            Self::List(_) => "a list",
            Self::Table(_) => "a table",
            Self::Odd(noun) => noun,
        }
    }
}

/// A table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Tree {
    /// Where it begins.
    pub(crate) place: Place,
    /// Its values by key, each key with its own place.
    pub(crate) entries: BTreeMap<String, Entry>,
}

/// A key and its value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Entry {
    pub(crate) key_place: Place,
    pub(crate) value: At<Raw>,
}

impl Tree {
    pub(crate) const fn new(place: Place) -> Self {
        Self { place, entries: BTreeMap::new() }
    }

    /// Sets a key, at the place of its value.
    pub(crate) fn set(&mut self, key: &str, value: At<Raw>) {
        self.entries.insert(key.to_owned(), Entry { key_place: value.place.clone(), value });
    }

    /// Takes the keys of `below` that are not given here.
    pub(crate) fn underlay(&mut self, below: &Self) {
        for (key, entry) in &below.entries {
            self.entries.entry(key.clone()).or_insert_with(|| entry.clone());
        }
    }

    /// Appends a table to the list under `key`.
    pub(crate) fn push(&mut self, key: &str, table: Self) {
        let place = table.place.clone();
        let entry = self.entries.entry(key.to_owned()).or_insert_with(|| Entry {
            key_place: place.clone(),
            value: At::new(Raw::List(Vec::new()), place.clone()),
        });
        if let Raw::List(list) = &mut entry.value.value {
            list.push(At::new(Raw::Table(table), place));
        }
    }
}

/// Reads TOML. Damage goes to the report; what could be read is returned all the same.
pub(crate) fn from_toml(text: &str, report: &mut Report) -> Tree {
    let index = LineIndex::new(text);
    let (table, errors) = DeTable::parse_recoverable(text);
    for error in errors {
        let offset = error.span().map_or(0, |span| span.start);
        report.damage(&index.place(offset), error.message());
    }
    tree(&table, &index)
}

fn tree(table: &toml::Spanned<DeTable<'_>>, index: &LineIndex<'_>) -> Tree {
    let mut tree = Tree::new(index.place(table.span().start));
    for (key, value) in table.get_ref().iter() {
        let value = At::new(raw(value, index), index.place(value.span().start));
        tree.entries
            .insert(key.get_ref().to_string(), Entry { key_place: index.place(key.span().start), value });
    }
    tree
}

fn raw(value: &toml::Spanned<DeValue<'_>>, index: &LineIndex<'_>) -> Raw {
    match value.get_ref() {
        DeValue::String(text) => Raw::Text(text.to_string()),
        DeValue::Integer(number) => Raw::Integer(i64::from_str_radix(number.as_str(), number.radix()).ok()),
        DeValue::Boolean(on) => Raw::Switch(*on),
        DeValue::Float(_) => Raw::Odd("a fraction"),
        DeValue::Datetime(_) => Raw::Odd("a date"),
        DeValue::Array(list) => {
            Raw::List(list.iter().map(|v| At::new(raw(v, index), index.place(v.span().start))).collect())
        }
        DeValue::Table(table) => Raw::Table(tree(&toml::Spanned::new(value.span(), table.clone()), index)),
    }
}

/// Turns a word of a command line, or a default, into the value that a key of this kind takes in TOML. A word that
/// does not fit stays a string, so that the reader says what is wrong with it.
pub(crate) fn from_word(word: &str, kind: Kind, place: &Place) -> At<Raw> {
    let text = |word: &str| At::new(Raw::Text(word.to_owned()), place.clone());
    match kind {
        Kind::Switch => match word {
            "true" | "yes" | "on" => At::new(Raw::Switch(true), place.clone()),
            "false" | "no" | "off" => At::new(Raw::Switch(false), place.clone()),
            _ => text(word),
        },
        Kind::Count { .. } => match word.parse() {
            Ok(number) => At::new(Raw::Integer(Some(number)), place.clone()),
            Err(_) => text(word),
        },
        Kind::Choices(_) | Kind::Texts { .. } => {
            At::new(Raw::List(word.split_whitespace().map(text).collect()), place.clone())
        }
        _ => text(word),
    }
}

/// Returns the defaults of a section as a table.
pub(crate) fn defaults(section: &Section) -> Tree {
    let mut tree = Tree::new(Place::Default);
    for key in section.keys {
        if let super::schema::Absent::Value(word) = key.absent {
            tree.set(key.name, from_word(word, key.kind, &Place::Default));
        }
    }
    tree
}

/// Returns the place of a flag as given on the command line.
pub(crate) fn flag_place(flag: &str, value: &str) -> Place {
    Place::Flag(Arc::from(format!("{flag} {value}")))
}
