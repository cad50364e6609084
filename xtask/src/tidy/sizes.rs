//! Checks the length of files. No file may have more than 1000 lines. A source file should have at most 600
//! lines before its tests. A longer one is listed in `xtask/ratchet.toml` with its present length, and may
//! only become shorter. Tests of more than 200 lines have a file of their own.

use toml::{Table, Value};

use super::tree::{Finding, Tree};

const LINES_MAX: usize = 1000;
const SOURCE_LINES_AIM: usize = 600;
const INLINE_TEST_LINES_MAX: usize = 200;
const RATCHET: &str = "xtask/ratchet.toml";

pub(super) fn check(tree: &Tree) -> Vec<Finding> {
    let ratchet = match tree.text(RATCHET).unwrap_or_default().parse::<Table>() {
        Ok(ratchet) => ratchet,
        Err(why) => return vec![Finding::whole(RATCHET, format!("not TOML: {why}"))],
    };
    let mut findings = Vec::new();
    for (path, text) in tree.ending_in(&[".rs", ".py", ".c", ".sh"]) {
        let (source, tests) = lengths(path, text);
        let total = source.saturating_add(tests);
        if total > LINES_MAX {
            findings.push(Finding::whole(path, format!("{total} lines; the wall is {LINES_MAX}")));
        }
        let allowed =
            ratchet.get(path).and_then(Value::as_integer).and_then(|lines| usize::try_from(lines).ok());
        match allowed {
            None if source > SOURCE_LINES_AIM => findings.push(Finding::whole(
                path,
                format!(
                    "{source} lines before its tests; split it along states or PDUs (aim {SOURCE_LINES_AIM})"
                ),
            )),
            Some(allowed) if source > allowed => findings.push(Finding::whole(
                path,
                format!("grew to {source} lines; {RATCHET} lets it only shrink from {allowed}"),
            )),
            Some(_) if source <= SOURCE_LINES_AIM => {
                findings.push(Finding::whole(
                    RATCHET,
                    format!("`{path}` has {source} lines now: drop its entry"),
                ));
            }
            _ => {}
        }
        if tests > INLINE_TEST_LINES_MAX && source > 0 {
            let what = format!("{tests} lines of tests inside; move them to a tests.rs of their own");
            findings.push(Finding::whole(path, what));
        }
    }
    for path in ratchet.keys().filter(|path| tree.text(path).is_none()) {
        findings.push(Finding::whole(RATCHET, format!("`{path}` is gone: drop its entry")));
    }
    findings
}

/// Returns the number of lines before the tests, and of lines of tests. A test file (`tests.rs`, or any file
/// under `tests/`) consists of tests only.
fn lengths(path: &str, text: &str) -> (usize, usize) {
    let is_citation =
        |line: &&str| line.trim_start().starts_with("//=") || line.trim_start().starts_with("//#");
    let lines = || text.lines().filter(|line| !is_citation(line));
    let total = lines().count();
    if path.ends_with(".rs") && (path.ends_with("/tests.rs") || path.contains("/tests/")) {
        return (0, total);
    }
    let mut above = lines().zip(lines().skip(1));
    let source = above.position(|(line, next)| line == "#[cfg(test)]" && next.ends_with("mod tests {"));
    let source = source.unwrap_or(total);
    (source, total.saturating_sub(source))
}

#[cfg(test)]
mod tests {
    use super::super::tree::planted;
    use super::*;

    fn lines(count: usize) -> String {
        "//\n".repeat(count)
    }

    fn found(path: &str, text: &str, ratchet: &str) -> Vec<String> {
        let tree = planted(&[(path, text), (RATCHET, ratchet)]);
        check(&tree).into_iter().map(|finding| finding.what).collect()
    }

    #[test]
    fn accepts_a_file_at_the_aim_and_finds_one_line_more() {
        assert!(found("crates/a/src/b.rs", &lines(600), "").is_empty());
        assert_eq!(found("crates/a/src/b.rs", &lines(601), "").len(), 1);
    }

    #[test]
    fn counts_only_the_lines_before_the_tests_towards_the_aim() {
        let text = format!("{}#[cfg(test)]\nmod tests {{\n{}}}\n", lines(550), lines(150));
        assert!(found("crates/a/src/b.rs", &text, "").is_empty());
        let text = format!("{}#[cfg(test)]\nmod tests {{\n{}}}\n", lines(50), lines(250));
        assert_eq!(found("crates/a/src/b.rs", &text, "").len(), 1);
    }

    #[test]
    fn does_not_count_citations() {
        let text = format!("{}//= rfc7143#section-4\n    //# MUST\n", lines(600));
        assert!(found("crates/a/src/b.rs", &text, "").is_empty());
    }

    #[test]
    fn lets_a_ratcheted_file_shrink_and_never_grow() {
        let ratchet = "\"crates/a/src/b.rs\" = 700\n";
        assert!(found("crates/a/src/b.rs", &lines(700), ratchet).is_empty());
        assert_eq!(found("crates/a/src/b.rs", &lines(701), ratchet).len(), 1);
        assert_eq!(found("crates/a/src/b.rs", &lines(600), ratchet).len(), 1, "stale entry");
        assert_eq!(found("crates/a/src/c.rs", &lines(10), ratchet).len(), 1, "entry without file");
    }

    #[test]
    fn holds_the_wall_for_tests_and_scripts_too() {
        assert!(found("crates/a/src/b/tests.rs", &lines(1000), "").is_empty());
        assert_eq!(found("crates/a/src/b/tests.rs", &lines(1001), "").len(), 1);
        assert_eq!(found("tests/foreign/x.py", &lines(601), "").len(), 1);
    }
}
