//! Checks the table of abuse cases: each row of `docs/abuse.md` names a test and a file, and the test's doc
//! comment carries the id of the row. Without this check, the table would keep naming tests that were removed
//! long ago.

use super::tree::{Finding, Tree};

const TABLE: &str = "docs/abuse.md";

pub(super) fn check(tree: &Tree) -> Vec<Finding> {
    let lines = tree.text(TABLE).unwrap_or_default().lines().enumerate();
    lines
        .filter_map(|(index, line)| Some((index, Row::parse(line)?)))
        .filter_map(|(index, row)| Some(Finding::at(TABLE, index, row.complaint(tree)?)))
        .collect()
}

struct Row<'a> {
    id: &'a str,
    test: &'a str,
    path: &'a str,
}

impl<'a> Row<'a> {
    /// Parses `| id | case | `test` | [name](../path) |`; returns `None` for other lines.
    fn parse(line: &'a str) -> Option<Self> {
        let mut cells = line.strip_prefix('|')?.split('|').map(str::trim);
        let (id, _, test, link) = (cells.next()?, cells.next()?, cells.next()?, cells.next()?);
        if id == "id" || id.starts_with("---") {
            return None;
        }
        let path = link.split_once("](../").and_then(|(_, rest)| rest.strip_suffix(')'));
        Some(Self { id, test: test.trim_matches('`'), path: path.unwrap_or_default() })
    }

    fn complaint(&self, tree: &Tree) -> Option<String> {
        let Some(text) = tree.text(self.path) else { return Some(format!("`{}` is no file", self.path)) };
        let Some(comment) = doc_comment(text, self.test) else {
            return Some(format!("{} has no test `{}`", self.path, self.test));
        };
        (!comment.contains(self.id))
            .then(|| format!("the comment of `{}` does not name {}", self.test, self.id))
    }
}

/// Returns the doc comment of a function, as one line; `None` when there is no such function.
fn doc_comment(text: &str, name: &str) -> Option<String> {
    let head = format!("fn {name}(");
    let lines: Vec<&str> = text.lines().map(str::trim_start).collect();
    let at = lines.iter().position(|line| line.starts_with(&head))?;
    let above =
        lines.get(..at)?.iter().rev().take_while(|line| line.starts_with("///") || line.starts_with("#["));
    let mut comment: Vec<&str> = above.filter_map(|line| line.strip_prefix("///")).map(str::trim).collect();
    comment.reverse();
    Some(comment.join(" "))
}

#[cfg(test)]
mod tests {
    use super::super::tree::planted;
    use super::*;

    fn found(row: &str) -> Vec<String> {
        let table = format!("| id | abuse case | test | file |\n|---|---|---|---|\n{row}\n");
        let code =
            "/// CVE-1, and what\n/// spdk#2 was.\n#[test]\nfn bounds_it() {}\n\n#[test]\nfn other() {}\n";
        let tree = planted(&[(TABLE, &table), ("crates/a/src/b.rs", code)]);
        check(&tree).into_iter().map(|finding| finding.what).collect()
    }

    #[test]
    fn accepts_rows_whose_test_names_their_id() {
        for id in ["CVE-1", "spdk#2", "what spdk#2"] {
            let row = format!("| {id} | long keys | `bounds_it` | [b](../crates/a/src/b.rs) |");
            assert!(found(&row).is_empty(), "{id}");
        }
        assert!(found("not a row").is_empty());
    }

    #[test]
    fn finds_rows_that_have_rotted() {
        for row in [
            "| CVE-3 | long keys | `bounds_it` | [b](../crates/a/src/b.rs) |",
            "| CVE-1 | long keys | `other` | [b](../crates/a/src/b.rs) |",
            "| CVE-1 | long keys | `gone` | [b](../crates/a/src/b.rs) |",
            "| CVE-1 | long keys | `bounds_it` | [b](../crates/a/src/c.rs) |",
            "| CVE-1 | long keys | `bounds_it` | later |",
        ] {
            assert_eq!(found(row).len(), 1, "{row}");
        }
    }
}
