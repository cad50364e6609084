//! A configuration as a tree of values with source spans. The tree is the same for TOML and for the flags of
//! a command line.

use std::collections::BTreeMap;
use std::sync::Arc;

use toml::de::{DeTable, DeValue};

use super::schema::{Kind, Section};
use super::source_span::{ConfigReport, LineIndex, Located, SourceSpan};

/// A value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum RawValue {
    /// A string.
    Text(String),
    /// A whole number; `None` when it does not fit 64 bits.
    Integer(Option<i64>),
    /// `true` or `false`.
    Switch(bool),
    /// An array.
    List(Vec<Located<RawValue>>),
    /// A table.
    Table(Tree),
    /// A value that no key accepts: a float or a date.
    Odd(&'static str),
}

impl RawValue {
    /// Returns the name of this type of value for messages.
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
    /// The source span of the table's beginning.
    pub(crate) span: SourceSpan,
    /// The values by key, each key with its own source span.
    pub(crate) entries: BTreeMap<String, Entry>,
}

/// A key and its value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Entry {
    pub(crate) key_span: SourceSpan,
    pub(crate) value: Located<RawValue>,
}

impl Tree {
    pub(crate) const fn new(span: SourceSpan) -> Self {
        Self { span, entries: BTreeMap::new() }
    }

    /// Sets a key. The key gets the source span of its value.
    pub(crate) fn set(&mut self, key: &str, value: Located<RawValue>) {
        self.entries.insert(key.to_owned(), Entry { key_span: value.span.clone(), value });
    }

    /// Copies from `below` the keys that this table does not have.
    pub(crate) fn underlay(&mut self, below: &Self) {
        for (key, entry) in &below.entries {
            self.entries.entry(key.clone()).or_insert_with(|| entry.clone());
        }
    }

    /// Appends a table to the list under `key`.
    pub(crate) fn push(&mut self, key: &str, table: Self) {
        let span = table.span.clone();
        let entry = self.entries.entry(key.to_owned()).or_insert_with(|| Entry {
            key_span: span.clone(),
            value: Located::new(RawValue::List(Vec::new()), span.clone()),
        });
        if let RawValue::List(list) = &mut entry.value.value {
            list.push(Located::new(RawValue::Table(table), span));
        }
    }
}

/// Parses TOML. Syntax errors are added to the report; the values that could be read are returned all the
/// same.
pub(crate) fn from_toml(text: &str, report: &mut ConfigReport) -> Tree {
    let index = LineIndex::new(text);
    let (table, errors) = DeTable::parse_recoverable(text);
    for error in errors {
        let offset = error.span().map_or(0, |span| span.start);
        report.damage(&index.span_at(offset), error.message());
    }
    tree(&table, &index)
}

fn tree(table: &toml::Spanned<DeTable<'_>>, index: &LineIndex<'_>) -> Tree {
    let mut tree = Tree::new(index.span_at(table.span().start));
    for (key, value) in table.get_ref().iter() {
        let value = Located::new(raw(value, index), index.span_at(value.span().start));
        tree.entries
            .insert(key.get_ref().to_string(), Entry { key_span: index.span_at(key.span().start), value });
    }
    tree
}

fn raw(value: &toml::Spanned<DeValue<'_>>, index: &LineIndex<'_>) -> RawValue {
    match value.get_ref() {
        DeValue::String(text) => RawValue::Text(text.to_string()),
        DeValue::Integer(number) => {
            RawValue::Integer(i64::from_str_radix(number.as_str(), number.radix()).ok())
        }
        DeValue::Boolean(on) => RawValue::Switch(*on),
        DeValue::Float(_) => RawValue::Odd("a fraction"),
        DeValue::Datetime(_) => RawValue::Odd("a date"),
        DeValue::Array(list) => RawValue::List(
            list.iter().map(|v| Located::new(raw(v, index), index.span_at(v.span().start))).collect(),
        ),
        DeValue::Table(table) => {
            RawValue::Table(tree(&toml::Spanned::new(value.span(), table.clone()), index))
        }
    }
}

/// Converts a word of a command line, or a default, to the value that a key of this kind has in TOML. A word
/// that does not fit stays a string, so that the reader reports the mistake.
pub(crate) fn from_word(word: &str, kind: Kind, span: &SourceSpan) -> Located<RawValue> {
    let text = |word: &str| Located::new(RawValue::Text(word.to_owned()), span.clone());
    match kind {
        Kind::Switch => match word {
            "true" | "yes" | "on" => Located::new(RawValue::Switch(true), span.clone()),
            "false" | "no" | "off" => Located::new(RawValue::Switch(false), span.clone()),
            _ => text(word),
        },
        Kind::Count { .. } => match word.parse() {
            Ok(number) => Located::new(RawValue::Integer(Some(number)), span.clone()),
            Err(_) => text(word),
        },
        Kind::Choices(_) | Kind::Texts { .. } => {
            Located::new(RawValue::List(word.split_whitespace().map(text).collect()), span.clone())
        }
        _ => text(word),
    }
}

/// Returns the defaults of a section as a table.
pub(crate) fn defaults(section: &Section) -> Tree {
    let mut tree = Tree::new(SourceSpan::Default);
    for key in section.keys {
        if let super::schema::Absent::Value(word) = key.absent {
            tree.set(key.name, from_word(word, key.kind, &SourceSpan::Default));
        }
    }
    tree
}

/// Returns the source span of a flag as given on the command line.
pub(crate) fn flag_span(flag: &str, value: &str) -> SourceSpan {
    SourceSpan::Flag(Arc::from(format!("{flag} {value}")))
}
