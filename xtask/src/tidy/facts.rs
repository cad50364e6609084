//! What the documents claim about the repository: a relative link leads to a file, and every `make NAME` they
//! tell the reader to type is a target of the Makefile.

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

/// Targets of inline links, `](target)`.
fn links(line: &str) -> impl Iterator<Item = &str> {
    line.split("](").skip(1).filter_map(|rest| rest.split_once(')')).map(|(link, _)| link)
}

fn is_relative(link: &str) -> bool {
    !link.contains("://") && !link.starts_with('#') && !link.starts_with("mailto:")
}

fn leads_somewhere(tree: &Tree, from: &str, link: &str) -> bool {
    let link = link.split('#').next().unwrap_or_default();
    let mut parts: Vec<&str> = from.split('/').collect();
    parts.pop();
    for part in link.split('/') {
        match part {
            ".." => {
                if parts.pop().is_none() {
                    return false;
                }
            }
            "" | "." => {}
            name => parts.push(name),
        }
    }
    let place = parts.join("/");
    let folder = format!("{place}/");
    tree.text(&place).is_some() || place.is_empty() || tree.paths().any(|path| path.starts_with(&folder))
}

/// Names in "`make NAME`" (in backticks) and in "$ make NAME" (a transcript).
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
        let tree = planted(&[(path, text), ("Makefile", makefile), ("docs/config.md", ""), ("src/a.rs", "")]);
        check(&tree).into_iter().map(|finding| finding.what).collect()
    }

    #[test]
    fn accepts_links_that_lead_somewhere() {
        let text = "[a](docs/config.md#luns) [b](src) [c](https://example.org/x) [d](#here)\n";
        assert!(found("README.md", text).is_empty());
        assert!(found("docs/x.md", "[up](../src/a.rs) [side](config.md)\n").is_empty());
    }

    #[test]
    fn finds_links_that_lead_nowhere() {
        assert_eq!(found("README.md", "[a](docs/gone.md)\n").len(), 1);
        assert_eq!(found("docs/x.md", "[a](../../outside.md)\n").len(), 1);
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
