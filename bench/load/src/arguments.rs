//! The command line: words in order, and `--name value` anywhere.

use std::collections::BTreeMap;
use std::str::FromStr;

use crate::Failure;

const SWITCHES: &[&str] = &["random"];

pub(crate) struct Arguments {
    words: std::vec::IntoIter<String>,
    options: BTreeMap<String, String>,
}

impl Arguments {
    pub(crate) fn of_process() -> Self {
        Self::parse(std::env::args().skip(1))
    }

    fn parse(mut given: impl Iterator<Item = String>) -> Self {
        let mut words = Vec::new();
        let mut options = BTreeMap::new();
        while let Some(word) = given.next() {
            match word.strip_prefix("--") {
                Some(name) if SWITCHES.contains(&name) => {
                    options.insert(name.to_owned(), String::new());
                }
                Some(name) => {
                    options.insert(name.to_owned(), given.next().unwrap_or_default());
                }
                None => words.push(word),
            }
        }
        Self { words: words.into_iter(), options }
    }

    pub(crate) fn next_word(&mut self) -> Option<String> {
        self.words.next()
    }

    pub(crate) fn word(&mut self, what: &str) -> Result<String, Failure> {
        self.next_word().ok_or_else(|| format!("{what} is missing").into())
    }

    pub(crate) fn number<T: FromStr>(&self, name: &str) -> Result<T, Failure> {
        let text = self.options.get(name).ok_or_else(|| format!("--{name} is missing"))?;
        text.parse().map_err(|_| format!("--{name} {text} is no number in range").into())
    }

    pub(crate) fn given(&self, name: &str) -> bool {
        self.options.contains_key(name)
    }

    /// `--rw`.
    pub(crate) fn direction(&self) -> Result<Direction, Failure> {
        match self.options.get("rw").map(String::as_str) {
            Some("read") => Ok(Direction::Read),
            Some("write") => Ok(Direction::Write),
            _ => Err("--rw is read or write".into()),
        }
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Direction {
    Read,
    Write,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn takes_words_in_order_and_options_anywhere() {
        let given = ["disk", "--bs", "4096", "1.2.3.4:5", "--random", "iqn", "--rw", "write"];
        let mut arguments = Arguments::parse(given.iter().map(|word| (*word).to_owned()));
        assert_eq!(arguments.word("verb").unwrap(), "disk");
        assert_eq!(arguments.word("address").unwrap(), "1.2.3.4:5");
        assert_eq!(arguments.word("target").unwrap(), "iqn");
        assert!(arguments.word("lun").is_err());
        assert_eq!(arguments.number::<usize>("bs").unwrap(), 4096);
        assert!(arguments.given("random"));
        assert_eq!(arguments.direction().unwrap(), Direction::Write);
    }
}
