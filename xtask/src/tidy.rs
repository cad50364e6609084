//! Checks the project rules that the compiler and clippy cannot check. Reads only files that git tracks,
//! prints one line per finding (`path:line: what is wrong`), and changes nothing. Each rule is one module,
//! with one function from a [`Tree`] to findings, so that a test can plant a violation in a tree made of
//! strings.

mod abuse;
mod circles;
pub(crate) mod citations;
mod dependencies;
mod doc_claims;
mod footprint;
mod layers;
mod licences;
mod markers;
mod planted;
mod published;
mod quotes;
mod root_entries;
mod sizes;
mod t10;
pub(crate) mod tree;
mod words;

use std::process::ExitCode;

use tree::{Finding, Tree};

/// One rule: its name as printed, and the check.
type Rule = (&'static str, fn(&Tree) -> Vec<Finding>);

const RULES: &[Rule] = &[
    ("layers", layers::check),
    ("sizes", sizes::check),
    ("circles", circles::check),
    ("markers", markers::check),
    ("root_entries", root_entries::check),
    ("citations", citations::check),
    ("t10", t10::check),
    ("doc_claims", doc_claims::check),
    ("quotes", quotes::check),
    ("clauses", crate::clauses::check),
    ("abuse", abuse::check),
    ("planted", planted::check),
    ("published", published::check),
    ("dependencies", dependencies::check),
    ("licences", licences::check),
    ("footprint", footprint::check),
    ("words", words::check),
];

/// Runs every rule on the repository around the current directory, and compares the size of `binary`, if one
/// is given. Exits with 0 when there are no findings, with 1 when there are some, and with 2 when the
/// repository could not be read.
pub(crate) fn main(binary: Option<&str>) -> ExitCode {
    let tree = match Tree::of_repository() {
        Ok(tree) => tree,
        Err(why) => {
            eprintln!("tidy: {why}");
            return ExitCode::from(2);
        }
    };
    let mut found = 0_usize;
    for (name, rule) in RULES {
        for finding in rule(&tree) {
            println!("{finding} [{name}]");
            found = found.saturating_add(1);
        }
    }
    for finding in binary.into_iter().flat_map(|path| footprint::check_binary(&tree, path)) {
        println!("{finding} [footprint]");
        found = found.saturating_add(1);
    }
    println!("tidy: {} files, {} rules, {found} findings", tree.len(), RULES.len());
    if found == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
