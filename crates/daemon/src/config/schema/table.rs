//! What a table of the configuration is made of.

/// A table of the configuration.
#[derive(Debug)]
pub(crate) struct Section {
    /// What a message calls it: `unknown key "sise" in lun`.
    pub(crate) noun: &'static str,
    /// What it is for.
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

/// What happens when a key is not given.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Absent {
    /// It must be given.
    Required,
    /// This value is taken, written as in a LUN spec.
    Value(&'static str),
    /// What happens instead is told in words.
    Told(&'static str),
}

/// What a value looks like.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Kind {
    /// A string of at most so many bytes.
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
    /// A path; a relative one counts from the directory of the configuration file.
    Path,
    /// Strings.
    Texts { what: &'static str },
    /// One of these words, several times, best first.
    Choices(&'static [&'static str]),
    /// LUNs: numbers, or tables of this section.
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

/// Makes a row of a table.
pub(super) const fn key(name: &'static str, kind: Kind, absent: Absent, doc: &'static str) -> Key {
    Key { name, kind, absent, doc }
}
