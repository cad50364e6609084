//! Checks that the messages and log lines that the documents quote are those of the source. A quotation is a
//! code span that reads as a sentence: four words or more, three of them plain lower-case words, and neither
//! a command line nor code. What stands for a value in it (a number, a name, an ellipsis) is not compared;
//! the runs of plain words between are, two or more in a row.

use super::tree::{Finding, Tree};

/// What begins a command line.
const COMMANDS: [&str; 9] =
    ["targe", "sudo", "make", "cargo", "podman", "docker", "kubectl", "systemctl", "iscsiadm"];

/// Pages that tell what was measured, in the words of their day.
const PAST: [&str; 3] = ["docs/results/", "docs/lab/reports/", "docs/conformance/"];

/// Messages of other programs.
const FOREIGN: [&str; 13] = [
    "Cannot find any appendable volumes",
    "Device … has size of … which is smaller than corresponding PV size",
    "Error writing final EOF to tape. Volume … may not be readable",
    "Filesystem must be larger than 300MB",
    "Forcing release of rx task",
    "Incorrect data encryption key",
    "Unable to decrypt data",
    "double free or corruption",
    "free(): invalid next size",
    "iSCSI login failed due to authorization failure",
    "malloc(): corrupted top size",
    "mt: /dev/nst0: No medium found",
    "resolved realpath … is not a block device",
];

pub(super) fn check(tree: &Tree) -> Vec<Finding> {
    let pages = tree.ending_in(&[".md"]).filter(|(path, _)| {
        let is_page = path.starts_with("docs/")
            || ["README.md", "SECURITY.md", "crates/initiator/README.md"].contains(path);
        is_page && !PAST.iter().any(|past| path.starts_with(past))
    });
    let source = source(tree);
    let mut findings = Vec::new();
    for (path, text) in pages {
        for (line, span) in code_spans(text) {
            if !is_quotation(&span) || FOREIGN.contains(&span.as_str()) {
                continue;
            }
            for words in plain_runs(&span).into_iter().filter(|words| !source.contains(words)) {
                findings.push(Finding::at(path, line, format!("`{span}`: no message contains \"{words}\"")));
            }
        }
    }
    findings
}

/// Returns the code of all crates, with the pieces of a string over several lines as one.
fn source(tree: &Tree) -> String {
    let files = tree.ending_in(&[".rs", ".js", ".html"]).filter(|(path, _)| path.starts_with("crates/"));
    let mut source = String::new();
    for (_, text) in files {
        for line in text.lines().map(str::trim).filter(|line| !line.starts_with("//")) {
            match line.strip_suffix('\\') {
                Some(begun) => source.push_str(begun),
                None => {
                    source.push_str(line);
                    source.push('\n');
                }
            }
        }
    }
    source.replace("\\\"", "\"")
}

/// Returns the code spans of a page outside of code blocks, each with the line on which its paragraph begins.
fn code_spans(text: &str) -> Vec<(usize, String)> {
    let (mut spans, mut paragraph, mut start, mut in_block) = (Vec::new(), String::new(), 0, false);
    let mut flush = |paragraph: &mut String, start| {
        let codes = paragraph.split('`').skip(1).step_by(2);
        spans.extend(codes.map(|code| (start, code.to_owned())));
        paragraph.clear();
    };
    for (index, line) in text.lines().map(str::trim).enumerate() {
        let is_fence = line.starts_with("```");
        if is_fence || line.is_empty() || line.starts_with(['|', '#']) || line.starts_with("- ") {
            flush(&mut paragraph, start);
        }
        in_block ^= is_fence;
        if is_fence || in_block || line.is_empty() {
            continue;
        }
        if paragraph.is_empty() {
            start = index;
        } else {
            paragraph.push(' ');
        }
        paragraph.push_str(line);
    }
    flush(&mut paragraph, start);
    spans
}

fn is_quotation(span: &str) -> bool {
    let words: Vec<&str> = span.split_whitespace().collect();
    let is_code = span.contains(['=', '|', '{', '<', '>']) || span.contains("::") || span.contains("//");
    let has_flag = words.iter().any(|word| word.len() > 1 && word.starts_with('-'));
    let is_command = words.first().is_some_and(|first| COMMANDS.contains(first));
    let plain = words.iter().filter(|word| plain(word).is_some()).count();
    words.len() >= 4 && plain >= 3 && !is_code && !has_flag && !is_command
}

/// Returns a word of lower-case letters without the punctuation after it.
fn plain(word: &str) -> Option<&str> {
    let bare = word.strip_suffix([',', '.', ':', ';']).unwrap_or(word);
    let is_plain = bare.starts_with(|first: char| first.is_ascii_lowercase())
        && bare.chars().all(|letter| letter.is_ascii_lowercase() || matches!(letter, '\'' | '-'));
    is_plain.then_some(bare)
}

/// Returns the runs of at least two plain words, which end at a value and at punctuation.
fn plain_runs(span: &str) -> Vec<String> {
    let (mut runs, mut run) = (Vec::new(), Vec::new());
    for word in span.split_whitespace() {
        match plain(word) {
            Some(bare) => {
                run.push(bare);
                if bare.len() < word.len() {
                    runs.push(std::mem::take(&mut run));
                }
            }
            None => runs.push(std::mem::take(&mut run)),
        }
    }
    runs.push(run);
    runs.into_iter().filter(|run| run.len() >= 2).map(|run| run.join(" ")).collect()
}

#[cfg(test)]
mod tests {
    use super::super::tree::planted;
    use super::*;

    fn found(text: &str) -> Vec<String> {
        let code = "// the disk has gone away for good\nerror!(\"{label}: the disk \\\n    has no more \\\"space\\\" on {name}\");\n";
        let tree = planted(&[("docs/serve.md", text), ("crates/a/src/lib.rs", code)]);
        check(&tree).into_iter().map(|finding| finding.what).collect()
    }

    #[test]
    fn accepts_what_the_source_says() {
        assert!(found("The log says `LUN 0: the disk has no more \"space\" on /dev/vda`.\n").is_empty());
        assert!(found("It says `… the disk\nhas no more …`, and `has no` is no sentence.\n").is_empty());
        assert!(
            found("```\nit says: the disk is on the moon\n```\n`targe lun set the disk is --on`\n")
                .is_empty()
        );
    }

    #[test]
    fn finds_messages_that_are_no_longer_there() {
        assert_eq!(
            found("| `the disk has less space` | buy one |\n"),
            ["`the disk has less space`: no message contains \"the disk has less space\""]
        );
        assert_eq!(found("`the disk has gone away`, a comment says\n").len(), 1);
    }
}
