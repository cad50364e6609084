//! Checks citations of a standard in the code: `//= rfc7143#section-4.2` opens one, `//= type=…` qualifies
//! it, `//# …` quotes. A citation without a section, or a quotation without a citation, is a finding.
//!
//! The project's own specifications are in [`OWN`]: `//= hyperscsi#section-10.2` cites `docs/hyperscsi.md`.
//! There the section must exist, with a heading that begins with its number, and must contain the quoted
//! text.
//! Each MUST of a document that is wholly implemented must be quoted where it is obeyed or tested.

use std::collections::BTreeSet;

use super::tree::{Finding, Tree};

/// The project's own specifications.
const OWN: &[Own] = &[
    Own { name: "hyperscsi", path: "docs/hyperscsi.md", is_complete: true },
    Own { name: "iscsi-aead", path: "docs/iscsi-aead.md", is_complete: false },
];

struct Own {
    /// The name in citations.
    name: &'static str,
    path: &'static str,
    /// Whether each MUST must be quoted.
    is_complete: bool,
}

const KINDS: &[&str] = &["test", "implication", "exception"];

pub(super) fn check(tree: &Tree) -> Vec<Finding> {
    let mut findings: Vec<Finding> = OWN.iter().flat_map(|own| quoted(tree, own)).collect();
    let own = OWN.iter().map(|own| (own, tree.text(own.path).map(sections).unwrap_or_default()));
    let own: Vec<(&Own, BTreeSet<&str>)> = own.collect();
    for (path, text) in tree.ending_in(&[".rs"]) {
        let mut cited = false;
        for (index, line) in text.lines().map(str::trim_start).enumerate() {
            if let Some(citation) = line.strip_prefix("//=") {
                match complaint(citation.trim(), cited, &own) {
                    Some(what) => findings.push(Finding::at(path, index, what)),
                    None => cited = true,
                }
            } else if line.starts_with("//#") {
                if !cited {
                    findings.push(Finding::at(
                        path,
                        index,
                        "a quotation without `//= document#section-…` above it",
                    ));
                }
            } else {
                cited = false;
            }
        }
    }
    findings
}

fn complaint(citation: &str, cited: bool, own: &[(&Own, BTreeSet<&str>)]) -> Option<String> {
    if let Some(kind) = citation.strip_prefix("type=") {
        let known = KINDS.contains(&kind);
        return match (cited, known) {
            (true, true) => None,
            (false, _) => Some("`type=` without a citation above it".to_owned()),
            (true, false) => Some(format!("unknown type `{kind}`; known: {}", KINDS.join(", "))),
        };
    }
    let Some((document, place)) = citation.split_once('#') else {
        return Some(format!("`{citation}` names no `#section-…`"));
    };
    let number = place.strip_prefix("section-").or_else(|| place.strip_prefix("appendix-"));
    if let Some((own, sections)) = own.iter().find(|(own, _)| own.name == document) {
        let known = number.is_some_and(|number| sections.contains(number));
        return (!known).then(|| format!("`{citation}` names no section of {}", own.path));
    }
    let named = number.is_some_and(|number| number.starts_with(|c: char| c.is_ascii_alphanumeric()));
    let rfc =
        document.strip_prefix("rfc").is_some_and(|n| !n.is_empty() && n.bytes().all(|b| b.is_ascii_digit()));
    (!named || !rfc).then(|| format!("`{citation}` is not `rfcN#section-N` or `rfcN#appendix-X`"))
}

/// Compares the quotations of one of the project's own specifications with its text.
fn quoted(tree: &Tree, own: &Own) -> Vec<Finding> {
    let Some(text) = tree.text(own.path) else { return Vec::new() };
    let mut sections = bodies(text);
    let mut findings = Vec::new();
    for (path, text) in tree.ending_in(&[".rs"]) {
        for Quotation { line, section, words, .. } in quotations(text, own.name) {
            let Some(body) = sections.iter_mut().find(|body| body.number == section) else { continue };
            match body.text.match_indices(&words).map(|(at, _)| at).collect::<Vec<_>>() {
                places if places.is_empty() => {
                    findings.push(Finding::at(path, line, format!("section {section} does not say this")));
                }
                places => {
                    body.quoted.extend(places.into_iter().map(|at| at..at.saturating_add(words.len())));
                }
            }
        }
    }
    for body in sections.iter().filter(|_| own.is_complete) {
        for (at, _) in body.text.match_indices("MUST") {
            if !body.quoted.iter().any(|range| range.contains(&at)) {
                let rest = body.text.get(at..).unwrap_or_default();
                let words = rest.split(' ').take(8).collect::<Vec<_>>().join(" ");
                let what = format!("section {}: nobody quotes \"{words} …\"", body.number);
                findings.push(Finding::whole(own.path, what));
            }
        }
    }
    findings
}

/// A section of the project's own specification.
struct Body<'a> {
    number: &'a str,
    /// The text of the section in one line.
    text: String,
    /// The quoted ranges of the text.
    quoted: Vec<std::ops::Range<usize>>,
}

fn bodies(text: &str) -> Vec<Body<'_>> {
    let mut bodies: Vec<Body<'_>> = Vec::new();
    for line in text.lines() {
        let heading = line.strip_prefix("## ").or(line.strip_prefix("### "));
        if let Some(heading) = heading {
            let heading = heading.strip_prefix("Appendix ").unwrap_or(heading);
            let number = heading.split_once(". ").map_or(heading, |(number, _)| number);
            bodies.push(Body { number, text: String::new(), quoted: Vec::new() });
        } else if let Some(body) = bodies.last_mut() {
            for word in line.split_whitespace() {
                body.text.push_str(word);
                body.text.push(' ');
            }
        }
    }
    bodies
}

/// What a file quotes of a document at one place.
pub(crate) struct Quotation<'a> {
    /// The index of the last line of the quotation.
    pub(crate) line: usize,
    pub(crate) section: &'a str,
    /// What stands after `type=`; empty for a citation at the code that obeys.
    pub(crate) kind: &'a str,
    /// The words in one line.
    pub(crate) words: String,
}

/// Returns what a file quotes of `document`.
pub(crate) fn quotations<'a>(text: &'a str, document: &str) -> Vec<Quotation<'a>> {
    let mut quotations: Vec<Quotation<'a>> = Vec::new();
    let mut cited: Option<(&str, &str)> = None;
    for (index, line) in text.lines().map(str::trim_start).enumerate() {
        if let Some(citation) = line.strip_prefix("//=") {
            match citation.trim().strip_prefix("type=") {
                Some(kind) => cited = cited.map(|(section, _)| (section, kind)),
                None => {
                    let place = citation.trim().split_once("#section-").filter(|(name, _)| *name == document);
                    cited = place.map(|(_, section)| section.split_once(" type=").unwrap_or((section, "")));
                }
            }
        } else if let Some(words) = line.strip_prefix("//#") {
            let Some((section, kind)) = cited else { continue };
            let words = words.split_whitespace().collect::<Vec<_>>().join(" ");
            match quotations.last_mut() {
                Some(last) if last.line.saturating_add(1) == index => {
                    last.line = index;
                    last.words.push(' ');
                    last.words.push_str(&words);
                }
                _ => quotations.push(Quotation { line: index, section, kind, words }),
            }
        } else {
            cited = None;
        }
    }
    quotations
}

/// Returns the numbers that the headings of a document begin with: `## 4. …`, `### 4.2. …`, `## Appendix A.
/// …`.
fn sections(text: &str) -> BTreeSet<&str> {
    let headings = text.lines().filter_map(|line| line.strip_prefix("## ").or(line.strip_prefix("### ")));
    let numbers = headings.map(|heading| heading.strip_prefix("Appendix ").unwrap_or(heading));
    numbers.filter_map(|heading| heading.split_once(". ")).map(|(number, _)| number).collect()
}

#[cfg(test)]
mod tests {
    use super::super::tree::planted;
    use super::*;

    fn found(text: &str) -> usize {
        check(&planted(&[("crates/a/src/b.rs", text)])).len()
    }

    #[test]
    fn accepts_a_citation_with_section_type_and_quotation() {
        assert_eq!(
            found("//= rfc7143#section-4.2.2.1\n//= type=test\n    //# MUST\n    //# NOT\nfn f() {}\n"),
            0
        );
        assert_eq!(found("//= rfc7143#appendix-A\n"), 0);
    }

    #[test]
    fn finds_a_citation_without_section() {
        for citation in ["rfc7143", "rfc7143#4.2", "rfc7143#section-", "7143#section-4", "rfc#section-4"] {
            assert_eq!(found(&format!("//= {citation}\n")), 1, "{citation}");
        }
    }

    #[test]
    fn finds_a_citation_of_a_section_that_our_own_specification_does_not_have() {
        let document = "# x\n\n## 4. Payloads\n\n### 4.10. Parameters\n\n## Appendix A. Vectors\n";
        let found = |citation: &str| {
            let code = format!("//= {citation}\n");
            check(&planted(&[("crates/a/src/b.rs", &code), (OWN[0].path, document)])).len()
        };
        for citation in ["hyperscsi#section-4", "hyperscsi#section-4.10", "hyperscsi#appendix-A"] {
            assert_eq!(found(citation), 0, "{citation}");
        }
        for citation in ["hyperscsi#section-4.1", "hyperscsi#section-5", "hyperscsi#4", "hyperscsi"] {
            assert_eq!(found(citation), 1, "{citation}");
        }
    }

    #[test]
    fn finds_what_our_own_specification_does_not_say_and_a_must_that_nobody_quotes() {
        let document =
            "# x\n\nMUST is a word.\n\n## 1. One\n\nIt MUST\nbe so.\n\n### 1.1. More\n\nIt MUST NOT.\n";
        let found = |code: &str| {
            let code = format!("{code}//= hyperscsi#section-1.1\n//# It MUST NOT\n");
            check(&planted(&[("crates/a/src/b.rs", &code), (OWN[0].path, document)])).len()
        };
        assert_eq!(found("//= hyperscsi#section-1\n//= type=test\n//# It MUST\n//# be so\nfn f() {}\n"), 0);
        assert_eq!(found("//= hyperscsi#section-1\n//# It MUST be so. Not\n"), 2, "said otherwise");
        assert_eq!(found("//= hyperscsi#section-1\n//# be so.\n"), 1, "the rest of it");
        assert_eq!(found(""), 1);
    }

    #[test]
    fn finds_a_wrong_quotation_of_a_specification_of_which_not_every_must_is_quoted_yet() {
        let document = "## 1. One\n\nIt MUST be so. It MUST stay.\n";
        let found = |quotation: &str| {
            let code = format!("//= iscsi-aead#section-1\n//# {quotation}\n");
            check(&planted(&[("crates/a/src/b.rs", &code), (OWN[1].path, document)])).len()
        };
        assert_eq!(found("It MUST be so."), 0);
        assert_eq!(found("It MUST be other."), 1);
    }

    #[test]
    fn finds_a_quotation_or_type_that_belongs_to_nothing() {
        assert_eq!(found("//# MUST\n"), 1);
        assert_eq!(found("//= type=test\n"), 1);
        assert_eq!(found("//= rfc7143#section-4\n//= type=maybe\n"), 1);
        assert_eq!(found("//= rfc7143#section-4\nfn f() {}\n//# MUST\n"), 1);
    }
}
