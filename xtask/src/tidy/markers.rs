//! Finds leftovers that should have been removed: markers, debugging aids, disabled tests, lints allowed
//! without a reason, paths of a developer's machine.

use super::tree::{Finding, Tree};

/// Words that mark unfinished work. They are written in two halves so that this file does not find itself.
const MARKERS: &[&str] = &[
    concat!("TO", "DO"),
    concat!("FIX", "ME"),
    concat!("X", "XX"),
    concat!("to", "do!("),
    concat!("unimplemen", "ted!("),
    concat!("db", "g!("),
];
const IGNORED_TEST: &str = concat!("#[ig", "nore");

/// Directories under which a path belongs to a developer's machine.
const MACHINE_ROOTS: &[&str] =
    &[concat!("/wo", "rk/"), concat!("/fa", "rm/"), concat!("/ro", "ot/"), concat!("/ho", "me/")];

pub(super) fn check(tree: &Tree) -> Vec<Finding> {
    let mut findings = Vec::new();
    for path in tree.paths().filter(|path| is_text(path)) {
        let text = tree.text(path).unwrap_or_default();
        for (index, line) in text.lines().enumerate() {
            findings.extend(leftovers(path, line).map(|what| Finding::at(path, index, what)));
        }
        if path.ends_with(".rs") {
            findings.extend(
                allows_without_reason(text)
                    .map(|index| Finding::at(path, index, "a lint is allowed without `reason = \"…\"`")),
            );
        }
    }
    findings
}

fn is_text(path: &str) -> bool {
    path != "Cargo.lock" && ![".bin", ".snap", ".pcap", ".gz"].iter().any(|ending| path.ends_with(ending))
}

fn leftovers<'a>(path: &'a str, line: &'a str) -> impl Iterator<Item = String> + 'a {
    let markers = MARKERS.iter().filter(|marker| has_word(line, marker));
    let markers = markers.map(|marker| format!("leftover `{marker}`"));
    let ignored = path.ends_with(".rs") && line.trim_start().starts_with(IGNORED_TEST);
    let ignored = ignored.then(|| "a test that never runs; delete it or make it run".to_owned());
    let machine = MACHINE_ROOTS.iter().filter(|root| has_word(line, root));
    let machine = machine.map(|root| format!("a path of one machine (`{root}…`)"));
    markers.chain(ignored).chain(machine)
}

/// Returns whether `word` is in `line`, and not as the middle of a longer word or path.
fn has_word(line: &str, word: &str) -> bool {
    let inside = |c: char| c.is_alphanumeric() || c == '_';
    line.match_indices(word).any(|(start, _)| {
        let before = line.get(..start).and_then(|head| head.chars().next_back());
        let after = line.get(start.saturating_add(word.len())..).and_then(|tail| tail.chars().next());
        let joined_before =
            before.is_some_and(|c| inside(c) || (word.starts_with('/') && ".-$})".contains(c)));
        let joined_after = word.ends_with(|c: char| c.is_alphabetic()) && after.is_some_and(inside);
        !joined_before && !joined_after
    })
}

/// Returns the indices of the lines on which an `allow` or `expect` attribute opens that gives no reason
/// before it closes.
fn allows_without_reason(text: &str) -> impl Iterator<Item = usize> + '_ {
    let opens = |line: &str| {
        let line = line.trim_start();
        ["#[allow(", "#![allow(", "#[expect(", "#![expect("].iter().any(|open| line.starts_with(open))
    };
    text.lines().enumerate().filter(move |(_, line)| opens(line)).filter_map(|(index, _)| {
        let mut attribute = String::new();
        for line in text.lines().skip(index) {
            attribute.push_str(line);
            if line.trim_end().ends_with(")]") || attribute.contains(")] ") {
                break;
            }
        }
        (!attribute.contains("reason")).then_some(index)
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
    fn finds_every_marker_once() {
        for marker in MARKERS {
            assert_eq!(found("crates/a/src/b.rs", &format!("fn f() {{ {marker} }}\n")), 1, "{marker}");
            assert_eq!(found("Makefile", &format!("# {marker}: later\n")), 1, "{marker}");
        }
    }

    #[test]
    fn lets_longer_words_be() {
        let longer = format!("mktemp {0}{0}; {1}S\n", MARKERS[2], MARKERS[0]);
        assert_eq!(found("a.sh", &longer), 0);
    }

    #[test]
    fn finds_a_test_switched_off() {
        assert_eq!(found("crates/a/src/b.rs", &format!("    {IGNORED_TEST}]\n")), 1);
        assert_eq!(found("crates/a/src/b.rs", &format!("    {IGNORED_TEST} = \"slow\"]\n")), 1);
    }

    #[test]
    fn finds_paths_of_a_machine_but_not_paths_below_a_variable() {
        for root in MACHINE_ROOTS {
            assert_eq!(found("docs/a.md", &format!("see {root}notes\n")), 1, "{root}");
            assert_eq!(found("docs/a.md", &format!("see $OUT{root}notes and x{root}y\n")), 0, "{root}");
        }
    }

    #[test]
    fn wants_a_reason_for_every_allowed_lint() {
        assert_eq!(found("a.rs", "#[allow(clippy::too_many_lines)]\n"), 1);
        assert_eq!(found("a.rs", "#[allow(clippy::too_many_lines, reason = \"a table\")]\n"), 0);
        assert_eq!(found("a.rs", "#![expect(\n    dead_code,\n    reason = \"used by fuzz\"\n)]\n"), 0);
        assert_eq!(found("a.rs", "#![expect(\n    dead_code,\n)]\n// reason\n"), 1);
    }
}
