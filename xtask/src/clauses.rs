//! Which clauses of RFC 7143 the code and the tests cite. `docs/clauses/rfc7143.toml` lists the sentences of
//! its sections 4, 6, 7, 8 and 11 that say MUST, REQUIRED or SHALL. Each needs a citation at the code that
//! obeys it and one in a test (`//= type=test`), or a reason why it has none: `exception` when it binds no
//! code here, `untested` when no test can show it. The report is `docs/clauses/README.md`.

use std::fmt::Write;
use std::fs;
use std::process::ExitCode;

use toml::{Table, Value};

use crate::tidy::citations::{Quotation, quotations};
use crate::tidy::tree::{Finding, Tree, git};

const DOCUMENT: &str = "rfc7143";
const CHAPTERS: &[&str] = &["4", "6", "7", "8", "11"];
const LIST: &str = "docs/clauses/rfc7143.toml";
const REPORT: &str = "docs/clauses/README.md";

/// Runs `cargo xtask clauses [--check | --write]`.
pub(crate) fn main(option: Option<&str>) -> ExitCode {
    let read = Tree::of_repository().and_then(|tree| List::read(&tree).map(|list| (tree, list)));
    let (tree, list) = match read {
        Ok(read) => read,
        Err(why) => return failure(&why),
    };
    match option {
        None => print!("{}", list.table()),
        Some("--check") => {
            let findings = check(&tree);
            findings.iter().for_each(|finding| println!("{finding}"));
            return if findings.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE };
        }
        Some("--write") => {
            if let Err(why) = write(&list.report()) {
                return failure(&format!("{REPORT}: {why}"));
            }
        }
        Some(other) => return failure(&format!("unknown option `{other}`")),
    }
    ExitCode::SUCCESS
}

fn failure(why: &str) -> ExitCode {
    eprintln!("clauses: {why}");
    ExitCode::from(2)
}

fn write(report: &str) -> Result<(), String> {
    let root = git(&["rev-parse", "--show-toplevel"])?;
    fs::write(format!("{}/{REPORT}", root.trim_end()), report).map_err(|why| why.to_string())
}

/// Compares the citations with the list, the list's reasons with the citations, and the report with both.
pub(crate) fn check(tree: &Tree) -> Vec<Finding> {
    let list = match List::read(tree) {
        Ok(list) => list,
        Err(why) => return vec![Finding::whole(LIST, why)],
    };
    let mut findings = list.unmatched.clone();
    for clause in &list.clauses {
        let what = match () {
            () if clause.exception.is_some() && clause.code => "is cited at code: drop its `exception`",
            () if clause.exception.is_some() && clause.test => "is cited by a test: drop its `exception`",
            () if clause.untested.is_some() && clause.test => "is cited by a test: drop its `untested`",
            () => continue,
        };
        findings
            .push(Finding::whole(LIST, format!("section {}: \"{}\" {what}", clause.section, clause.text)));
    }
    let open = list.clauses.iter().filter(|clause| clause.is_open()).count();
    if open > list.open_max {
        let what =
            format!("{open} clauses lack their code or their test; `open_max` allows {}", list.open_max);
        findings.push(Finding::whole(LIST, what));
    } else if open < list.open_max {
        findings.push(Finding::whole(LIST, format!("{open} clauses are open: lower `open_max` to that")));
    }
    if tree.text(REPORT) != Some(list.report().as_str()) {
        findings.push(Finding::whole(REPORT, "out of date; run `cargo xtask clauses --write`"));
    }
    findings
}

/// One sentence of the RFC.
struct Clause {
    section: String,
    text: String,
    exception: Option<String>,
    untested: Option<String>,
    code: bool,
    test: bool,
}

impl Clause {
    fn is_open(&self) -> bool {
        self.exception.is_none() && !(self.code && (self.test || self.untested.is_some()))
    }
}

/// The clauses with what is cited of them.
struct List {
    open_max: usize,
    clauses: Vec<Clause>,
    /// Citations that belong to none or to several of the clauses.
    unmatched: Vec<Finding>,
}

impl List {
    fn read(tree: &Tree) -> Result<Self, String> {
        let table = tree.text(LIST).ok_or("missing")?.parse::<Table>().map_err(|why| why.to_string())?;
        let open_max = table.get("open_max").and_then(Value::as_integer);
        let open_max = open_max.and_then(|number| usize::try_from(number).ok()).ok_or("no `open_max`")?;
        let entries = table.get("clause").and_then(Value::as_array).ok_or("no `[[clause]]`")?;
        let clauses = entries.iter().map(clause).collect::<Option<Vec<_>>>();
        let clauses = clauses.ok_or("a clause without `section` or `text`")?;
        let mut list = Self { open_max, clauses, unmatched: Vec::new() };
        for (path, text) in tree.ending_in(&[".rs"]).filter(|(path, _)| path.starts_with("crates/")) {
            for quotation in quotations(text, DOCUMENT) {
                if let Err(what) = list.cite(&quotation) {
                    list.unmatched.push(Finding::at(path, quotation.line, what));
                }
            }
        }
        Ok(list)
    }

    /// Marks the clauses that a quotation is a part of or contains.
    fn cite(&mut self, quotation: &Quotation<'_>) -> Result<(), String> {
        let section = quotation.section;
        if !section.split('.').next().is_some_and(|chapter| CHAPTERS.contains(&chapter)) {
            return Ok(());
        }
        let words = normal(&quotation.words);
        let of_section = self.clauses.iter_mut().filter(|clause| clause.section == section);
        let (whole, part): (Vec<_>, Vec<_>) = of_section
            .filter(|clause| words.contains(&clause.text) || clause.text.contains(&words))
            .partition(|clause| words.contains(&clause.text));
        if whole.is_empty() && part.len() > 1 {
            return Err(format!("{} clauses of section {section} say this: quote more", part.len()));
        }
        if whole.is_empty() && part.is_empty() {
            return Err(format!("section {section} of {LIST} has no clause that says this"));
        }
        if whole.is_empty() && !["MUST", "REQUIRED", "SHALL"].iter().any(|word| words.contains(word)) {
            return Err("quotes a clause without its MUST".to_owned());
        }
        let cited = if whole.is_empty() { part } else { whole };
        for clause in cited {
            clause.code |= matches!(quotation.kind, "" | "implication");
            clause.test |= quotation.kind == "test";
        }
        Ok(())
    }

    /// Returns the counts of each section.
    fn table(&self) -> String {
        let mut text = "| section | clauses | cited at code | cited by tests | excepted | left |\n|---|---|---|---|---|---|\n".to_owned();
        for sections in self.clauses.chunk_by(|one, next| one.section == next.section) {
            let section = sections.first().map_or("", |clause| &clause.section);
            row(&mut text, section, sections);
        }
        row(&mut text, "all", &self.clauses);
        text
    }

    fn report(&self) -> String {
        let mut text = format!(
            "# RFC 7143, clause by clause\n\n\
            Sections 4, 6, 7, 8 and 11 of RFC 7143 say MUST, REQUIRED or SHALL in these sentences; section 8 has none. A clause is\n\
            done when it is quoted at the code that obeys it and in a test that fails without it, or when\n\
            [rfc7143.toml](rfc7143.toml) gives a reason for its absence. `cargo xtask clauses --write` writes this page from the\n\
            citations (`//= rfc7143#section-…`); `cargo xtask tidy` fails when it is out of date.\n\n{}",
            self.table()
        );
        let mut list = |title: &str, reason: &dyn Fn(&Clause) -> Option<String>| {
            _ = write!(text, "\n## {title}\n\n");
            for clause in &self.clauses {
                if let Some(reason) = reason(clause) {
                    _ = writeln!(
                        text,
                        "- {}: \"{}\"{}",
                        clause.section,
                        escaped(&clause.text),
                        escaped(&reason)
                    );
                }
            }
        };
        list("Clauses with an exception", &|clause| clause.exception.as_ref().map(|why| format!(" {why}")));
        list("Clauses that no test can show", &|clause| {
            clause.untested.as_ref().map(|why| format!(" {why}"))
        });
        list("Clauses that are left", &|clause| {
            clause.is_open().then(|| match (clause.code, clause.test) {
                (true, _) => " No test cites it.".to_owned(),
                (_, true) => " No code cites it.".to_owned(),
                _ => String::new(),
            })
        });
        text
    }
}

fn row(text: &mut String, name: &str, clauses: &[Clause]) {
    let count = |which: fn(&Clause) -> bool| clauses.iter().filter(|clause| which(clause)).count();
    let code = count(|clause| clause.code);
    let test = count(|clause| clause.test);
    let excepted = count(|clause| clause.exception.is_some() || clause.untested.is_some());
    let left = count(Clause::is_open);
    _ = writeln!(text, "| {name} | {} | {code} | {test} | {excepted} | {left} |", clauses.len());
}

fn clause(entry: &Value) -> Option<Clause> {
    let field = |name: &str| entry.get(name).and_then(Value::as_str).map(str::to_owned);
    let (exception, untested) = (field("exception"), field("untested"));
    let text = normal(&field("text")?);
    Some(Clause { section: field("section")?, text, exception, untested, code: false, test: false })
}

/// Joins what a line break separated: words by one space, the parts of a hyphenated word by none.
fn normal(text: &str) -> String {
    let mut joined = String::new();
    for word in text.split_whitespace() {
        let hyphenated = joined.strip_suffix('-').is_some_and(|head| head.ends_with(char::is_alphanumeric));
        if !joined.is_empty() && !hyphenated {
            joined.push(' ');
        }
        joined.push_str(word);
    }
    joined
}

fn escaped(text: &str) -> String {
    text.replace('*', "\\*").replace('<', "\\<")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tidy::tree::planted;

    /// Two clauses in section 4.1, one in 4.2, with more lines for the last; findings without that of the
    /// report.
    fn found(code: &str, open_max: usize, more: &str) -> Vec<String> {
        let list = format!(
            "open_max = {open_max}\n[[clause]]\nsection = \"4.1\"\ntext = \"A third-party role MUST act.\"\n\
            [[clause]]\nsection = \"4.1\"\ntext = \"A target MUST NOT act.\"\n\
            [[clause]]\nsection = \"4.2\"\ntext = \"It MUST be.\"\n{more}"
        );
        let bare = planted(&[(LIST, &list), ("crates/a/src/b.rs", code)]);
        let report = List::read(&bare).unwrap().report();
        let tree = planted(&[(LIST, &list), ("crates/a/src/b.rs", code), (REPORT, &report)]);
        check(&tree).into_iter().map(|finding| finding.what).collect()
    }

    const BOTH: &str = "//= rfc7143#section-4.2\n//# It MUST be.\nfn f() {}\n\
        //= rfc7143#section-4.2\n//= type=test\n//# It MUST\n//# be.\n";

    #[test]
    fn counts_a_clause_as_done_when_code_and_test_cite_it() {
        assert!(found(BOTH, 2, "").is_empty());
        assert_eq!(found(BOTH, 3, "").len(), 1, "the number shrinks");
        assert_eq!(found("//= rfc7143#section-4.2\n//# It MUST be.\n", 2, "").len(), 1, "no test");
        assert!(found("//= rfc7143#section-4.2\n//# It MUST be.\n", 2, "untested = \"Never.\"\n").is_empty());
        assert!(found("", 2, "exception = \"Binds others.\"\n").is_empty());
        assert!(found("//= rfc7143#section-13.9\n//# It MUST be.\n", 3, "").is_empty(), "another chapter");
    }

    #[test]
    fn finds_a_reason_that_a_citation_makes_stale() {
        assert_eq!(found(BOTH, 2, "exception = \"Binds others.\"\n").len(), 1);
        assert_eq!(found(BOTH, 2, "untested = \"Never.\"\n").len(), 1);
    }

    #[test]
    fn accepts_a_part_of_a_clause_and_what_contains_clauses() {
        assert!(found("//= rfc7143#section-4.1\n//# third-\n//# party role MUST\n", 3, "").is_empty());
        let all = "//= rfc7143#section-4.1\n//# A third-party role MUST act. A target MUST NOT act.\n";
        assert!(found(all, 3, "").is_empty());
        let twice = format!("{all}fn f() {{}}\n{}", all.replace("4.1\n", "4.1 type=test\n"));
        assert!(found(&twice, 1, "").is_empty());
    }

    #[test]
    fn finds_a_citation_that_belongs_to_no_clause_or_to_several() {
        for words in ["It MUST act.", "MUST", "A target"] {
            assert_eq!(found(&format!("//= rfc7143#section-4.1\n//# {words}\n"), 3, "").len(), 1, "{words}");
        }
        assert_eq!(found("//= rfc7143#section-4.3\n//# It MUST be.\n", 3, "").len(), 1);
    }

    #[test]
    fn finds_a_report_that_is_out_of_date() {
        let list = "open_max = 1\n[[clause]]\nsection = \"4.1\"\ntext = \"It MUST.\"\n";
        assert_eq!(check(&planted(&[(LIST, list), (REPORT, "# Old\n")])).len(), 1);
        assert_eq!(check(&planted(&[(LIST, "open_max = 1\n")])).len(), 1, "no clauses");
    }
}
