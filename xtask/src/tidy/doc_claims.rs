//! Checks the claims of the documents about the repository: a relative link leads to a file, its anchor to a
//! heading of that file, and every `make NAME` that a document tells the reader to type is a target of the
//! Makefile.

use std::collections::BTreeSet;

use super::tree::{Finding, Tree};

pub(super) fn check(tree: &Tree) -> Vec<Finding> {
    let targets = tree.text("Makefile").map(make_targets).unwrap_or_default();
    let mut findings = Vec::new();
    for (path, text) in tree.ending_in(&[".md"]) {
        for (index, line) in text.lines().enumerate() {
            for link in links(line).filter(|link| is_relative(link)) {
                if !leads_somewhere(tree, path, link) {
                    findings.push(Finding::at(path, index, format!("`{link}` leads nowhere")));
                } else if !has_anchor(tree, path, link) {
                    findings.push(Finding::at(path, index, format!("`{link}` names no heading")));
                }
            }
            for name in commands(line).filter(|name| !targets.contains(name)) {
                findings.push(Finding::at(path, index, format!("the Makefile has no target `{name}`")));
            }
        }
    }
    findings
}

fn make_targets(makefile: &str) -> BTreeSet<&str> {
    let rules = makefile.lines().filter(|line| !line.starts_with(['\t', '#', ' ', '.']));
    let rules = rules.filter_map(|line| line.split_once(':').filter(|(_, rest)| !rest.starts_with('=')));
    rules.flat_map(|(names, _)| names.split_whitespace()).collect()
}

/// Returns the targets of inline links, `](target)`.
fn links(line: &str) -> impl Iterator<Item = &str> {
    line.split("](").skip(1).filter_map(|rest| rest.split_once(')')).map(|(link, _)| link)
}

fn is_relative(link: &str) -> bool {
    !link.contains("://") && !link.starts_with("mailto:")
}

fn leads_somewhere(tree: &Tree, from: &str, link: &str) -> bool {
    let Some(file) = linked_file(from, link) else { return false };
    let folder = format!("{file}/");
    tree.text(&file).is_some() || file.is_empty() || tree.paths().any(|path| path.starts_with(&folder))
}

/// Returns whether the page that `link` names has the heading that the link's anchor names. Anchors of other
/// files are not checked.
fn has_anchor(tree: &Tree, from: &str, link: &str) -> bool {
    let Some((_, anchor)) = link.split_once('#') else { return true };
    let page = linked_file(from, link).filter(|file| file.ends_with(".md"));
    let Some(text) = page.and_then(|file| tree.text(&file)) else { return true };
    headings(text).any(|heading| anchor_of(heading) == anchor)
}

/// Returns the path, from the root, of the file that `link` in the file `from` names, without an anchor.
/// Returns `None` if the file lies outside of the repository.
fn linked_file(from: &str, link: &str) -> Option<String> {
    let link = link.split('#').next().unwrap_or_default();
    if link.is_empty() {
        return Some(from.to_owned());
    }
    let mut parts: Vec<&str> = from.split('/').collect();
    parts.pop();
    for part in link.split('/') {
        match part {
            ".." => {
                parts.pop()?;
            }
            "" | "." => {}
            name => parts.push(name),
        }
    }
    Some(parts.join("/"))
}

/// Returns the text of each heading of a page. A `#` within a code block starts no heading.
fn headings(text: &str) -> impl Iterator<Item = &str> {
    let mut in_code = false;
    text.lines().filter_map(move |line| {
        if line.trim_start().starts_with("```") {
            in_code = !in_code;
        }
        let title = line.trim_start_matches('#');
        (!in_code && title.len() < line.len()).then(|| title.trim())
    })
}

/// Returns the anchor that GitHub and others derive from a heading: lower case, hyphens for spaces, no
/// punctuation.
fn anchor_of(heading: &str) -> String {
    let kept = heading.chars().filter(|c| c.is_alphanumeric() || matches!(c, ' ' | '-' | '_'));
    kept.flat_map(char::to_lowercase).map(|c| if c == ' ' { '-' } else { c }).collect()
}

/// Returns the names in "`make NAME`" (in backticks) and in "$ make NAME" (a transcript).
fn commands(line: &str) -> impl Iterator<Item = &str> {
    let quoted = line.split('`').skip(1).step_by(2).filter_map(|code| code.strip_prefix("make "));
    let typed = line.trim_start().strip_prefix("$ make ");
    quoted.chain(typed).filter_map(|rest| rest.split_whitespace().next()).filter(|name| is_name(name))
}

fn is_name(word: &str) -> bool {
    !word.is_empty() && word.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-')
}

#[cfg(test)]
mod tests {
    use super::super::tree::planted;
    use super::*;

    fn found(path: &str, text: &str) -> Vec<String> {
        let makefile = "NAME := x\n.PHONY: demo test\ndemo: build\n\tcargo run\ntest test-qemu: build\n";
        let page = "# Top\n```\n# not a heading\n```\n### `[luns]`, and 2 more\n";
        let tree =
            planted(&[(path, text), ("Makefile", makefile), ("docs/config.md", page), ("src/a.rs", "")]);
        check(&tree).into_iter().map(|finding| finding.what).collect()
    }

    #[test]
    fn accepts_links_that_lead_somewhere() {
        let text =
            "## Here\n[a](docs/config.md#luns-and-2-more) [b](src) [c](https://example.org/x) [d](#here)\n";
        assert!(found("README.md", text).is_empty());
        assert!(found("docs/x.md", "[up](../src/a.rs) [side](config.md)\n").is_empty());
    }

    #[test]
    fn finds_links_that_lead_nowhere() {
        assert_eq!(found("README.md", "[a](docs/gone.md)\n").len(), 1);
        assert_eq!(found("docs/x.md", "[a](../../outside.md)\n").len(), 1);
    }

    #[test]
    fn finds_anchors_that_name_no_heading() {
        assert_eq!(found("README.md", "[a](docs/config.md#gone)\n").len(), 1);
        assert_eq!(found("README.md", "[a](docs/config.md#not-a-heading)\n").len(), 1);
        assert_eq!(found("README.md", "# Here\n[a](#there)\n").len(), 1);
        assert!(found("README.md", "[a](src/a.rs#L7)\n").is_empty());
    }

    #[test]
    fn knows_the_targets_of_the_makefile() {
        assert!(
            found("README.md", "Run `make demo`, then `make test-qemu`.\n\n    $ make test\n").is_empty()
        );
        assert_eq!(found("README.md", "Run `make coffee`.\n").len(), 1);
        assert_eq!(found("README.md", "    $ make tea\n").len(), 1);
    }
}
