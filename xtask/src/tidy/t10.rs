//! Compares the citations of T10's standards, as `SBC-4 §5.31`, with `docs/clauses/t10.toml`, which lists the
//! clauses with their titles. A citation stands in a comment, in a row of a table or in a paragraph that
//! names what the clause is about, so that one clause cannot be cited for two things: a clause that is not
//! listed, a text that names none of the words of its clause, two clauses of a document with one title, and a
//! listed clause that nothing cites are findings.

use std::collections::{BTreeMap, BTreeSet};

use toml::{Table, Value};

use super::tree::{Finding, Tree};

const LIST: &str = "docs/clauses/t10.toml";
const DOCUMENTS: &[&str] = &["SAM", "SPC", "SBC", "SSC", "SMC", "MMC", "SAT", "FCP"];

/// The words that name the subject of each clause, in lower case, the title first.
type Clauses = BTreeMap<(String, String), Vec<String>>;

pub(super) fn check(tree: &Tree) -> Vec<Finding> {
    let clauses = match tree.text(LIST).map_or(Ok(Clauses::new()), clauses) {
        Ok(clauses) => clauses,
        Err(why) => return vec![Finding::whole(LIST, why)],
    };
    let mut findings = Vec::new();
    let mut titles = BTreeMap::new();
    for ((document, number), words) in &clauses {
        if let Some(other) = words.first().and_then(|title| titles.insert((document, title), number)) {
            findings.push(Finding::whole(LIST, format!("{document} §{other} and §{number} have one title")));
        }
    }
    let mut unused: BTreeSet<_> = clauses.keys().collect();
    for (path, text) in tree.ending_in(&[".rs", ".md", ".py", ".lua"]).filter(|(path, _)| !is_exempt(path)) {
        let lines: Vec<&str> = text.lines().collect();
        for (index, line) in lines.iter().enumerate() {
            for (document, number) in citations(line) {
                let clause = (document, number);
                let said = match clauses.get_key_value(&clause) {
                    None => Some(format!("is not in {LIST}")),
                    Some((clause, words)) => {
                        unused.remove(clause);
                        let text = around(&lines, index);
                        let named = words.iter().any(|word| text.contains(word));
                        let title = words.first().map_or("", String::as_str);
                        (!named).then(|| format!("is about \"{title}\", which the text does not name"))
                    }
                };
                findings.extend(
                    said.map(|said| Finding::at(path, index, format!("{} §{} {said}", clause.0, clause.1))),
                );
            }
            let next = lines.get(index.saturating_add(1)).map_or("", |line| line.trim_start());
            let parted =
                normal(next).starts_with('§').then(|| documents(line).find(|(_, rest)| rest.is_empty()));
            if let Some(document) = names_table(line).or(parted.flatten().map(|(document, _)| document)) {
                let what = format!("cite a clause of {document}, as `§4.2` in the same line");
                findings.push(Finding::at(path, index, what));
            }
        }
    }
    findings.extend(unused.into_iter().map(|(document, number)| {
        Finding::whole(LIST, format!("nothing cites {document} §{number}: drop it"))
    }));
    findings
}

fn is_exempt(path: &str) -> bool {
    path.starts_with("xtask/") || path.starts_with("docs/results/") || path == "CHANGELOG.md"
}

fn clauses(text: &str) -> Result<Clauses, String> {
    let table = text.parse::<Table>().map_err(|why| why.to_string())?;
    let mut clauses = Clauses::new();
    for (document, entry) in &table {
        entry.get("revision").and_then(Value::as_str).ok_or(format!("{document} has no `revision`"))?;
        let of_document = entry.get("clauses").and_then(Value::as_table);
        for (number, words) in of_document.ok_or(format!("{document} has no `clauses`"))? {
            let words = words.as_array().into_iter().flatten().filter_map(Value::as_str);
            let mut words: Vec<String> = words.map(normal).collect();
            let title = words.first().ok_or(format!("{document} §{number} has no title"))?;
            let name = title.split_once('(').map_or(title.as_str(), |(name, _)| name).trim_end();
            words.push(name.trim_end_matches(" command").to_owned());
            clauses.insert((document.clone(), number.clone()), words);
        }
    }
    Ok(clauses)
}

/// Returns the clauses that a line cites: `SPC-5 §5.14, §6.17; SBC-4 §5.16 to §5.19` are five.
fn citations(line: &str) -> Vec<(String, String)> {
    let mut found = Vec::new();
    for (document, rest) in documents(line) {
        let mut rest = rest.strip_prefix(' ').unwrap_or(rest);
        while let Some(cited) = rest.strip_prefix('§') {
            let end = cited.find(|c: char| !c.is_ascii_alphanumeric() && c != '.').unwrap_or(cited.len());
            let (number, after) = cited.split_at(end);
            found.push((document.to_owned(), number.trim_end_matches('.').to_owned()));
            rest = [", ", " and ", " to "].iter().find_map(|link| after.strip_prefix(link)).unwrap_or("");
        }
    }
    found
}

/// Returns the document of a line that cites a table, an annex or a section in words.
fn names_table(line: &str) -> Option<&str> {
    let forms = [" table ", " tables ", " annex ", " section ", " clause "];
    documents(line).find(|(_, rest)| forms.iter().any(|form| rest.starts_with(form))).map(|(name, _)| name)
}

/// Returns the standards that a line names, each with what follows it.
fn documents(line: &str) -> impl Iterator<Item = (&str, &str)> {
    line.match_indices('-').filter_map(move |(at, _)| {
        let start = at.checked_sub(3)?;
        let name = line.get(start..at).filter(|name| DOCUMENTS.contains(name))?;
        let digit = line.get(at..)?.chars().nth(1).filter(char::is_ascii_digit)?;
        let end = at.saturating_add(1).saturating_add(digit.len_utf8());
        let inside = line.get(..start)?.chars().next_back().is_some_and(char::is_alphanumeric);
        (!inside).then_some((
            line.get(start..start.saturating_add(name.len()).saturating_add(2))?,
            line.get(end..)?,
        ))
    })
}

/// Returns what belongs to a line, in lower case: its row of a table, or the lines around it up to the next
/// empty line, and of a comment only its lines and the one that follows.
fn around(lines: &[&str], index: usize) -> String {
    let line = |at: usize| lines.get(at).map_or("", |line| line.trim_start());
    let is_comment = |at: usize| line(at).starts_with("//") || line(at).starts_with('#');
    let belongs = |at: usize| match () {
        () if line(index).starts_with('|') => false,
        () if is_comment(index) => is_comment(at),
        () => !line(at).is_empty() && !line(at).starts_with('|'),
    };
    let mut first = index;
    while first > 0 && belongs(first.saturating_sub(1)) {
        first = first.saturating_sub(1);
    }
    let mut last = index;
    while belongs(last.saturating_add(1)) {
        last = last.saturating_add(1);
    }
    last = last.saturating_add(usize::from(is_comment(index)));
    (first..=last).map(|at| normal(line(at))).collect::<Vec<_>>().join(" ")
}

/// Returns a text in lower case, without the marks of a comment.
fn normal(text: &str) -> String {
    text.trim_start_matches(['/', '!']).trim().to_lowercase()
}

#[cfg(test)]
mod tests {
    use super::super::tree::planted;
    use super::*;

    const CLAUSES: &str = "[SBC-4]\nrevision = \"r22\"\n[SBC-4.clauses]\n\
        \"5.31\" = [\"START STOP UNIT command\", \"stopped\"]\n\
        \"5.33\" = [\"SYNCHRONIZE CACHE (10) command\"]\n";
    const BOTH: &str = "//! START STOP UNIT\n//! (SBC-4 §5.31) and SYNCHRONIZE CACHE(16) (SBC-4 §5.33).\n";

    fn found(list: &str, code: &str) -> Vec<String> {
        let tree = planted(&[(LIST, list), ("crates/a/src/b.rs", code)]);
        check(&tree).iter().map(ToString::to_string).collect()
    }

    #[test]
    fn accepts_citations_beside_the_subject_of_their_clause() {
        assert!(found(CLAUSES, BOTH).is_empty());
        let range =
            "/// A stopped unit (SBC-4 §5.31 to §5.33)\nfn synchronize_cache() {} // SYNCHRONIZE CACHE\n";
        assert!(found(CLAUSES, range).is_empty(), "the line after a comment counts");
    }

    #[test]
    fn finds_a_clause_that_is_cited_for_something_else() {
        let wrong = format!("{BOTH}\nfn f() {{\n    // SYNCHRONIZE CACHE (SBC-4 §5.31).\n}}\n");
        let findings = found(CLAUSES, &wrong);
        assert_eq!(findings.len(), 1);
        assert!(findings[0].starts_with("crates/a/src/b.rs:5: SBC-4 §5.31 "), "{}", findings[0]);
        let row = "| stopped | START STOP UNIT | SBC-4 §5.31 |\n| cache | flushed | SBC-4 §5.33 |\n";
        let tree = planted(&[(LIST, CLAUSES), ("docs/a.md", row)]);
        assert_eq!(check(&tree).len(), 1, "each row of a table stands alone");
    }

    #[test]
    fn finds_one_subject_under_two_numbers() {
        let list = format!("{CLAUSES}\"5.32\" = [\"START STOP UNIT command\"]\n");
        let code = format!("{BOTH}\n/// START STOP UNIT (SBC-4 §5.32)\n");
        assert_eq!(found(&list, &code), [format!("{LIST}: SBC-4 §5.31 and §5.32 have one title")]);
        assert_eq!(found(CLAUSES, &code).len(), 1, "a number that is not listed");
    }

    #[test]
    fn finds_clauses_that_are_unknown_or_never_cited() {
        assert_eq!(found(CLAUSES, &format!("{BOTH}// SPC-9 §1.2, SBC-4 §5.3\n")).len(), 2);
        assert_eq!(found(CLAUSES, "// START STOP UNIT (SBC-4 §5.31).\n").len(), 1, "5.33 is not cited");
        assert_eq!(found(CLAUSES, &format!("{BOTH}// (SBC-4 table 97)\n")).len(), 1);
        assert_eq!(found(CLAUSES, &format!("{BOTH}// START STOP UNIT (SBC-4\n// §5.31)\n")).len(), 1);
        assert_eq!(found("[SBC-4]\nrevision = \"r22\"\n", "").len(), 1, "no clauses");
    }
}
