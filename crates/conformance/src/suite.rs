//! Tables of cases: the selection of cases, their results and the summary.

use std::fmt::Write as _;
use std::time::{Duration, Instant};

use crate::transcript::Record;
use crate::verdict::{Outcome, Stop, Verdict};

/// A case, which works on a fixture `C`.
pub(crate) struct Case<C: ?Sized> {
    /// The stable name of the case.
    pub(crate) id: &'static str,
    /// The clause of RFC 7143, or of another document, that the case judges by.
    pub(crate) clause: &'static str,
    pub(crate) title: &'static str,
    /// Whether the case overwrites blocks of the unit.
    pub(crate) writes: bool,
    pub(crate) run: fn(&mut C) -> Outcome,
}

/// Makes a case that does not write to the unit.
pub(crate) const fn case<C: ?Sized>(
    id: &'static str,
    clause: &'static str,
    title: &'static str,
    run: fn(&mut C) -> Outcome,
) -> Case<C> {
    Case { id, clause, title, writes: false, run }
}

/// Makes a case that overwrites blocks of the unit.
pub(crate) const fn writing<C: ?Sized>(
    id: &'static str,
    clause: &'static str,
    title: &'static str,
    run: fn(&mut C) -> Outcome,
) -> Case<C> {
    Case { id, clause, title, writes: true, run }
}

/// The description of a case, without its code.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CaseInfo {
    /// The stable name of the case.
    pub id: &'static str,
    /// The clause that the case judges by.
    pub clause: &'static str,
    /// What the case shows.
    pub title: &'static str,
}

impl<C: ?Sized> Case<C> {
    pub(crate) const fn entry(&self) -> CaseInfo {
        CaseInfo { id: self.id, clause: self.clause, title: self.title }
    }
}

/// Which cases to run: all, or those that match one of the patterns. A pattern after `!` excludes cases. `*`
/// stands for any characters, `?` for one.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Selection {
    patterns: Vec<String>,
}

impl Selection {
    /// Selects the cases that match these patterns; without patterns, all.
    pub fn new(patterns: &[String]) -> Self {
        let patterns = patterns.iter().flat_map(|pattern| pattern.split(',')).map(str::to_owned).collect();
        Self { patterns }
    }

    /// Returns whether a case is selected.
    pub fn takes(&self, id: &str) -> bool {
        let names = |pattern: &str| matches(pattern.as_bytes(), id.as_bytes());
        let mut wanted = self.patterns.iter().filter(|pattern| !pattern.starts_with('!')).peekable();
        let unwanted = self.patterns.iter().filter_map(|pattern| pattern.strip_prefix('!')).any(names);
        !unwanted && (wanted.peek().is_none() || wanted.any(|pattern| names(pattern)))
    }

    /// Returns the first pattern that matches none of `ids`: most likely a typing error.
    pub fn idle<'a>(&'a self, ids: &[CaseInfo]) -> Option<&'a str> {
        let names_one = |pattern: &&String| {
            ids.iter().any(|entry| matches(pattern.trim_start_matches('!').as_bytes(), entry.id.as_bytes()))
        };
        self.patterns.iter().find(|pattern| !names_one(pattern)).map(String::as_str)
    }
}

fn matches(pattern: &[u8], text: &[u8]) -> bool {
    match (pattern.split_first(), text.split_first()) {
        (None, None) => true,
        (Some((b'*', rest)), _) => {
            matches(rest, text) || text.split_first().is_some_and(|(_, text)| matches(pattern, text))
        }
        (Some((b'?', pattern)), Some((_, text))) => matches(pattern, text),
        (Some((expected, pattern)), Some((byte, text))) => expected == byte && matches(pattern, text),
        _ => false,
    }
}

/// The result of one case.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CaseResult {
    /// The case.
    pub entry: CaseInfo,
    /// The verdict.
    pub verdict: Verdict,
    /// The reason of a failure or skip; for a pass, a remark if there is one.
    pub why: String,
    /// The transcript: the PDUs that were sent and received.
    pub record: Vec<String>,
    /// The duration of the case.
    pub took: Duration,
}

impl CaseResult {
    /// Makes the result from the outcome of a case.
    pub(crate) fn of(entry: CaseInfo, outcome: Outcome, record: &Record, began: Instant) -> Self {
        let (verdict, why) = match outcome {
            Ok(()) => (Verdict::Pass, record.take_remark().unwrap_or_default()),
            Err(Stop::Fail(why)) => (Verdict::Fail, why),
            Err(Stop::Skip(why)) => (Verdict::Skip, why),
        };
        Self { entry, verdict, why, record: record.lines(), took: began.elapsed() }
    }

    /// Adds to the reason.
    pub(crate) fn add_note(&mut self, note: Option<String>) {
        let Some(note) = note else { return };
        if !self.why.is_empty() {
            self.why.push_str("; ");
        }
        self.why.push_str(&note);
    }

    /// Returns the case in one line: verdict, id, title, clause and reason.
    pub fn line(&self) -> String {
        let CaseInfo { id, clause, title } = self.entry;
        let mut line = format!("{} {id}: {title} [{clause}]", self.verdict.word().to_uppercase());
        if !self.why.is_empty() {
            // Writing to a string does not fail.
            let _ = write!(line, ": {}", self.why);
        }
        line
    }
}

/// The number of cases with each verdict.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Summary {
    /// How many passed.
    pub passed: usize,
    /// How many failed.
    pub failed: usize,
    /// How many were skipped.
    pub skipped: usize,
}

impl Summary {
    /// Counts the verdicts.
    pub fn of(results: &[CaseResult]) -> Self {
        let count = |verdict| results.iter().filter(|result| result.verdict == verdict).count();
        Self { passed: count(Verdict::Pass), failed: count(Verdict::Fail), skipped: count(Verdict::Skip) }
    }
}

impl std::fmt::Display for Summary {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} passed, {} failed, {} skipped", self.passed, self.failed, self.skipped)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_name_cases() {
        for (pattern, id, named) in [
            ("ffp-t-1.1", "ffp-t-1.1", true),
            ("ffp-t-1.1", "ffp-t-11.1", false),
            ("ffp-t-16.*", "ffp-t-16.3.1", true),
            ("*chap*", "login-chap", true),
            ("chap-?", "chap-1", true),
            ("chap-?", "chap-12", false),
            ("", "x", false),
            ("a,b*", "bcd", true),
            ("!chap-*", "login-c", true),
            ("!chap-*", "chap-1", false),
            ("ffp-*,!ffp-t-1.*", "ffp-t-1.2", false),
        ] {
            assert_eq!(Selection::new(&[pattern.to_owned()]).takes(id), named, "{pattern} {id}");
        }
        assert!(Selection::new(&[]).takes("anything"));
    }

    #[test]
    fn a_pattern_that_names_nothing_is_found() {
        let entries = [CaseInfo { id: "a-1", clause: "", title: "" }];
        assert_eq!(Selection::new(&["a-*,b-*".to_owned()]).idle(&entries), Some("b-*"));
        assert_eq!(Selection::new(&["a-?".to_owned()]).idle(&entries), None);
    }
}
