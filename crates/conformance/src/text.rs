//! Key=value text for the cases. A case can build text that no negotiation produces, and read the text of the
//! peer.

use iscsi::text;

use crate::verdict::Outcome;

/// Pairs in the order in which they were received or will be sent. A key may occur twice.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Keys {
    pairs: Vec<(String, String)>,
}

impl Keys {
    pub(crate) const fn new() -> Self {
        Self { pairs: Vec::new() }
    }

    /// Makes a text of pairs in this order.
    pub(crate) fn of(pairs: &[(&str, &str)]) -> Self {
        Self { pairs: pairs.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect() }
    }

    /// Parses a whole text.
    pub(crate) fn parse(bytes: &[u8]) -> Outcome<Self> {
        match text::parse(bytes) {
            Ok(pairs) => Ok(Self {
                pairs: pairs
                    .into_iter()
                    .map(|pair| (pair.name.to_owned(), String::from_utf8_lossy(pair.value).into_owned()))
                    .collect(),
            }),
            Err(error) => fail!("the text is malformed: {error}"),
        }
    }

    /// Sets a key, at its old position if the key exists.
    pub(crate) fn set(&mut self, name: &str, value: &str) {
        match self.pairs.iter_mut().find(|(known, _)| known == name) {
            Some((_, old)) => value.clone_into(old),
            None => self.push(name, value),
        }
    }

    /// Appends a pair, even if the key exists already.
    pub(crate) fn push(&mut self, name: &str, value: &str) {
        self.pairs.push((name.to_owned(), value.to_owned()));
    }

    pub(crate) fn remove(&mut self, name: &str) {
        self.pairs.retain(|(known, _)| known != name);
    }

    pub(crate) fn append(&mut self, other: Self) {
        self.pairs.extend(other.pairs);
    }

    /// Returns the first value of a key.
    pub(crate) fn value(&self, name: &str) -> Option<&str> {
        self.pairs.iter().find(|(known, _)| known == name).map(|(_, value)| value.as_str())
    }

    /// Returns the first value of a key as a number.
    pub(crate) fn number(&self, name: &str) -> Option<u32> {
        let value = text::value::number(self.value(name)?.as_bytes()).ok()?;
        u32::try_from(value).ok()
    }

    /// Returns all values of a key.
    pub(crate) fn values<'a>(&'a self, name: &'a str) -> impl Iterator<Item = &'a str> {
        self.pairs.iter().filter(move |(known, _)| known == name).map(|(_, value)| value.as_str())
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (&str, &str)> {
        self.pairs.iter().map(|(name, value)| (name.as_str(), value.as_str()))
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.pairs.is_empty()
    }

    /// Returns the text in its wire format, however long or malformed it is.
    pub(crate) fn to_bytes(&self) -> Vec<u8> {
        let mut out = Vec::new();
        for (name, value) in &self.pairs {
            out.extend_from_slice(name.as_bytes());
            out.push(b'=');
            out.extend_from_slice(value.as_bytes());
            out.push(0);
        }
        out
    }
}
