//! Words that this project has retired, and comments wider than the code. `docs/GLOSSARY.md` holds the terms
//! that stand in their place, and `CONTRIBUTING.md` how sentences are written.

use super::tree::{Finding, Tree};

/// A retired phrase, and what to write instead. A phrase matches whole words, whatever their case.
const RETIRED: &[(&str, &str)] = &[
    ("takes note", "records"),
    ("whoever", "the noun that is meant"),
    ("affair", "handled by …"),
    ("in hand", "owns"),
    ("laid to rest", "removed, or retired"),
    ("last words", "logout, or closing"),
    ("farewell", "logout"),
    ("errand", "request"),
    ("granule", "logical block length"),
    ("adrift", "detached"),
    ("unasked", "unsolicited"),
    ("the house", "the project, or the fixture"),
    ("the hands", "drivers"),
    ("for people", "for the log, or for display"),
    ("set adrift", "detach"),
];

/// As wide as rustfmt lets code be.
const WIDTH: usize = 110;

/// Pages that may name a retired word: what they describe has it in its name, or they tell what stood before.
const EXEMPT: &[&str] = &["docs/GLOSSARY.md", "docs/results/", "CHANGELOG.md", "xtask/src/tidy/words.rs"];

pub(super) fn check(tree: &Tree) -> Vec<Finding> {
    let mut findings = Vec::new();
    for (path, text) in tree.ending_in(&[".rs", ".md"]) {
        if EXEMPT.iter().any(|exempt| path.starts_with(exempt)) {
            continue;
        }
        let is_code = path.ends_with(".rs");
        let mut fenced = false;
        for (index, line) in text.lines().enumerate() {
            let comment = is_code.then(|| comment_of(line));
            if let Some(said) = comment.unwrap_or(Some(line)) {
                findings.extend(retired(said).map(|what| Finding::at(path, index, what)));
            }
            fenced ^=
                is_code && line.trim_start().trim_start_matches(['/', '!']).trim_start().starts_with("```");
            if is_code && !fenced && is_prose(line) && line.chars().count() > WIDTH {
                findings.push(Finding::at(path, index, format!("a comment wider than {WIDTH} columns")));
            }
        }
    }
    findings
}

/// Returns whether a line is a comment that could be narrower: neither a quotation nor a row of a table, and without a link.
fn is_prose(line: &str) -> bool {
    let Some(comment) = line.trim_start().strip_prefix("//") else { return false };
    let text = comment.trim_start_matches(['/', '!']);
    let is_fixed = comment.starts_with('#') || text.trim_start().starts_with(['|', '=']);
    !is_fixed && !text.contains("://") && text.trim().contains(' ')
}

/// Returns what a line of code says to its reader: its comment, unless it quotes a standard.
fn comment_of(line: &str) -> Option<&str> {
    let at = line.find("//")?;
    let comment = line.get(at..)?;
    (!comment.starts_with("//#") && !comment.starts_with("//=")).then_some(comment)
}

fn retired(said: &str) -> impl Iterator<Item = String> {
    let said = said.to_lowercase();
    RETIRED
        .iter()
        .filter(move |(phrase, _)| has_words(&said, phrase))
        .map(|(phrase, instead)| format!("`{phrase}` is retired: {instead}"))
}

/// Returns whether a phrase stands in a text, and not inside longer words or names.
fn has_words(text: &str, phrase: &str) -> bool {
    let inside = |c: char| c.is_alphanumeric() || c == '_';
    text.match_indices(phrase).any(|(start, _)| {
        let before = text.get(..start).and_then(|head| head.chars().next_back());
        let after = text.get(start.saturating_add(phrase.len())..).and_then(|tail| tail.chars().next());
        !before.is_some_and(inside) && !after.is_some_and(inside)
    })
}

#[cfg(test)]
mod tests {
    use super::super::tree::planted;
    use super::*;

    fn found(path: &str, text: &str) -> usize {
        check(&planted(&[(path, text)])).len()
    }

    #[test]
    fn finds_each_retired_phrase_in_comments_and_pages() {
        for (phrase, _) in RETIRED {
            assert!(found("crates/a/src/b.rs", &format!("    /// It {phrase} of it.\n")) > 0, "{phrase}");
            assert!(found("docs/a.md", &format!("It {} of it.\n", phrase.to_uppercase())) > 0, "{phrase}");
            assert_eq!(found("crates/a/src/b.rs", &format!("let a = \"{phrase}\";\n")), 0, "{phrase}");
            assert_eq!(found("docs/GLOSSARY.md", phrase), 0, "{phrase}");
        }
        assert_eq!(found("docs/a.md", "affairs of unasked_for names\n"), 0);
    }

    #[test]
    fn quotations_of_standards_keep_their_words() {
        assert_eq!(found("crates/a/src/b.rs", "//= rfc7143#section-4\n//# whoever MUST\n"), 0);
    }

    #[test]
    fn finds_comments_wider_than_the_code() {
        let wide = format!("    // {}a\n", "a ".repeat(53));
        assert_eq!(wide.trim_end().chars().count(), 114);
        assert_eq!(found("crates/a/src/b.rs", &wide), 1);
        assert_eq!(found("crates/a/src/b.rs", &wide.replace("a a a", "a")), 0);
        assert_eq!(
            found("crates/a/src/b.rs", &format!("    // https://{wide}")),
            0,
            "a link cannot be broken"
        );
    }
}
