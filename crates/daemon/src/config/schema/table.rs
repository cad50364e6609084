//! The types that the schema of the configuration is written in.

/// A table of the configuration.
#[derive(Debug)]
pub(crate) struct Section {
    /// The name of the table in messages: `unknown key "sise" in lun`.
    pub(crate) noun: &'static str,
    /// The purpose of the table, for the reference.
    pub(crate) doc: &'static str,
    /// Its keys, in the order of the reference.
    pub(crate) keys: &'static [Key],
}

/// One key.
#[derive(Debug)]
pub(crate) struct Key {
    pub(crate) name: &'static str,
    pub(crate) kind: Kind,
    pub(crate) absent: Absent,
    pub(crate) doc: &'static str,
}

/// The effect of leaving out a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Absent {
    /// It is a mistake: the key is required.
    Required,
    /// The key has this default, written as in a LUN spec.
    Value(&'static str),
    /// This text describes the effect.
    Told(&'static str),
}

/// The type of a value.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Kind {
    /// A string of at most `len_max` bytes.
    Text { len_max: usize },
    /// `true` or `false`.
    Switch,
    /// A whole number in this range.
    Count { min: u64, max: u64 },
    /// A size in bytes in this range: a string with a binary unit, or a number.
    Size { min: u64, max: u64 },
    /// A span of time in this range of milliseconds.
    Span { min_ms: u64, max_ms: u64 },
    /// One of these words.
    Choice(&'static [&'static str]),
    /// A path; a relative one starts at the directory of the configuration file.
    Path,
    /// A list of strings.
    Texts { what: &'static str },
    /// Several of these words, best first.
    Choices(&'static [&'static str]),
    /// A list of LUNs: numbers, or tables of this section.
    Mappings(&'static Section),
    /// One table.
    Table(&'static Section),
    /// Any number of tables.
    Tables(&'static Section),
}

impl Section {
    /// Finds a key.
    pub(crate) fn key(&self, name: &str) -> Option<&'static Key> {
        self.keys.iter().find(|key| key.name == name)
    }
}

/// Makes a key of a table.
pub(super) const fn key(name: &'static str, kind: Kind, absent: Absent, doc: &'static str) -> Key {
    Key { name, kind, absent, doc }
}
