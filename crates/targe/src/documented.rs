//! Judges the documentation: every command line that it shows is one that this binary takes.

use std::fs;
use std::path::{Path, PathBuf};

use clap::CommandFactory;
use clap::error::{ContextKind, ContextValue, ErrorKind};

use crate::cli::Cli;

/// Languages of code blocks that hold no command lines.
const NOT_SHELL: [&str; 7] = ["rust", "toml", "json", "yaml", "ini", "python", "text"];

/// The first lines of files that begin like a command line, such as `targe ports 1`.
const FORMATS: [&str; 4] = ["bindings", "key", "passwords", "ports"];

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// The pages of the documentation. What has been measured, and the laboratory's reports, keep the commands
/// of their day.
fn pages() -> Vec<PathBuf> {
    let mut found = vec![
        root().join("README.md"),
        root().join("CONTRIBUTING.md"),
        root().join("crates/initiator/README.md"),
    ];
    let mut folders = vec![root().join("docs")];
    while let Some(folder) = folders.pop() {
        if ["docs/results", "docs/lab/reports", "docs/conformance"]
            .iter()
            .any(|left_out| folder.ends_with(left_out))
        {
            continue;
        }
        for entry in fs::read_dir(&folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|extension| extension == "md") {
                found.push(path);
            }
        }
    }
    found
}

/// The words of each simple command of a line for the shell: split at `|`, `;`, `&` and parentheses, without
/// comments and redirections.
fn simple_commands(line: &str) -> Vec<Vec<String>> {
    let (mut commands, mut words, mut word) = (Vec::new(), Vec::new(), None::<String>);
    let (mut quote, mut skips_next) = (None, false);
    let finish = |word: &mut Option<String>, words: &mut Vec<String>, skips_next: &mut bool| {
        if let Some(word) = word.take()
            && !std::mem::take(skips_next)
        {
            words.push(word);
        }
    };
    for letter in line.chars() {
        match (quote, letter) {
            (Some(open), _) if letter == open => quote = None,
            (Some(_), _) => word.get_or_insert_default().push(letter),
            (None, '\'' | '"') => {
                quote = Some(letter);
                word.get_or_insert_default();
            }
            (None, '#') if word.is_none() => break,
            (None, '<' | '>') => {
                // The number of a descriptor stands before it, the name of a file after it.
                if word.as_ref().is_some_and(|word| word.chars().all(|digit| digit.is_ascii_digit())) {
                    word = None;
                }
                finish(&mut word, &mut words, &mut skips_next);
                skips_next = true;
            }
            (None, '|' | ';' | '&' | '(' | ')') => {
                finish(&mut word, &mut words, &mut skips_next);
                skips_next = false;
                commands.push(std::mem::take(&mut words));
            }
            (None, _) if letter.is_whitespace() => finish(&mut word, &mut words, &mut skips_next),
            (None, _) => word.get_or_insert_default().push(letter),
        }
    }
    finish(&mut word, &mut words, &mut skips_next);
    commands.push(words);
    commands
}

/// The arguments of targe in a simple command, if it runs targe.
fn arguments(words: &[String]) -> Option<&[String]> {
    let at = words
        .iter()
        .position(|word| !(word == "sudo" || word == "exec" || word == "time" || word.contains('=')))?;
    let program = words[at].trim_start_matches("$(");
    (program == "targe" || program.ends_with("/targe")).then_some(&words[at + 1..])
}

/// Whether a value stands for another: capitals, an address that its reader replaces, an ellipsis.
fn is_placeholder(value: &str) -> bool {
    value.chars().any(|letter| letter.is_ascii_uppercase()) || value.contains(['…', '$', '<', '{'])
}

/// What is wrong with a command line. `whole` says whether it is to be run as it stands.
fn fault(words: &[String], whole: bool) -> Option<String> {
    // Forms such as `targe lun add|remove …` are no command lines.
    if words.iter().any(|word| word.contains('…') || word.contains("...") || word.starts_with('[')) {
        return None;
    }
    let given = std::iter::once("targe").chain(words.iter().map(String::as_str));
    let error = Cli::command().try_get_matches_from(given).err()?;
    let value = match error.get(ContextKind::InvalidValue) {
        Some(ContextValue::String(value)) => value.as_str(),
        _ => "",
    };
    let accepted = match error.kind() {
        ErrorKind::DisplayHelp | ErrorKind::DisplayVersion => true,
        ErrorKind::InvalidValue | ErrorKind::ValueValidation => {
            is_placeholder(value) || (value.is_empty() && !whole)
        }
        ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand
        | ErrorKind::MissingRequiredArgument
        | ErrorKind::MissingSubcommand
        | ErrorKind::TooFewValues
        | ErrorKind::WrongNumberOfValues => !whole,
        ErrorKind::InvalidSubcommand => match error.get(ContextKind::InvalidSubcommand) {
            Some(ContextValue::String(name)) => {
                is_placeholder(name) || (FORMATS.contains(&name.as_str()) && !whole)
            }
            _ => false,
        },
        _ => false,
    };
    let first = error.to_string().lines().next().unwrap_or_default().to_owned();
    (!accepted).then(|| format!("`targe {}`: {first}", words.join(" ")))
}

/// The command lines in a block of code: those after a prompt if it has prompts, for the others are output.
fn command_lines<'a>(block: &[&'a str]) -> Vec<&'a str> {
    if !block.iter().any(|line| line.starts_with("$ ")) {
        return block
            .iter()
            .map(|line| if line.starts_with("# targe ") { &line[2..] } else { line })
            .collect();
    }
    let (mut lines, mut goes_on) = (Vec::new(), false);
    for line in block {
        if let Some(line) = line.strip_prefix("$ ").or(goes_on.then_some(line)) {
            lines.push(line);
            goes_on = line.ends_with('\\');
        }
    }
    lines
}

/// What is wrong with the command lines of a page, and how many it has.
fn faults(text: &str) -> (Vec<String>, usize) {
    let mut lines = Vec::new();
    let mut block = None::<Vec<&str>>;
    for line in text.lines() {
        if let Some(language) = line.trim().strip_prefix("```") {
            match block.take() {
                Some(block) => {
                    let joined = command_lines(&block).join("\n").replace("\\\n", " ");
                    lines.extend(joined.lines().map(|line| (line.to_owned(), true)));
                }
                None if NOT_SHELL.iter().any(|name| language.starts_with(name)) => block = Some(vec!["$ "]),
                None => block = Some(Vec::new()),
            }
        } else if let Some(block) = &mut block {
            block.push(line.trim());
        } else {
            lines.extend(line.split('`').skip(1).step_by(2).map(|code| (code.to_owned(), false)));
        }
    }
    let runs: Vec<_> = lines
        .iter()
        .flat_map(|(line, whole)| simple_commands(line).into_iter().map(move |words| (words, *whole)))
        .filter_map(|(words, whole)| Some((arguments(&words)?.to_vec(), whole)))
        .collect();
    (runs.iter().filter_map(|(words, whole)| fault(words, *whole)).collect(), runs.len())
}

#[test]
fn every_command_line_of_the_documentation_is_taken() {
    let (mut wrong, mut judged) = (Vec::new(), 0);
    for page in pages() {
        let (found, count) = faults(&fs::read_to_string(&page).unwrap());
        judged += count;
        let name = page.strip_prefix(root()).unwrap().display().to_string();
        wrong.extend(found.into_iter().map(|fault| format!("{name}: {fault}")));
    }
    assert!(judged > 400, "{judged} command lines were found");
    assert!(wrong.is_empty(), "{} of {judged}:\n{}", wrong.len(), wrong.join("\n"));
}

#[test]
fn a_wrong_command_line_is_found() {
    for (text, is_wrong) in [
        ("```\n$ targe status --json\n```\n", false),
        ("```\n$ targe status --jsn\n```\n", true),
        ("```\nsudo targe stats | less\n```\n", true),
        ("```\ncd /tmp && targe discover 192.0.2.7 > out 2> log # lists\n```\n", false),
        ("```\ntarge info\n```\n", true),
        ("```\ntarge bench URL \\\n  --bs 4K\n```\n", false),
        ("```\ntarge bench URL \\\n  --no-such-flag\n```\n", true),
        ("```toml\ntarge nothing\n```\n", false),
        ("`targe info` and `targe lun add`", false),
        ("`targe info --wrong`", true),
        ("targe stats are no code", false),
        ("```\n$ targe -V\ntarge 0.1.0\n```\n", false),
    ] {
        assert_eq!(!faults(text).0.is_empty(), is_wrong, "{text}");
    }
}
