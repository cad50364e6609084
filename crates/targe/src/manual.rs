//! `targe completions` and `targe man`: the files that packages install, generated from the definitions that
//! `--help` prints.

mod config_page;
mod examples;

use std::fs;
use std::io;
use std::path::Path;

use clap::CommandFactory;
use clap_complete::Shell;
use clap_mangen::Man;
use clap_mangen::roff::{Roff, bold, roman};

use crate::Failure;
use crate::cli::{Cli, CompletionShell, CompletionsArgs, ManArgs};
use crate::version::COMMIT_DATE;

/// The exit codes of every subcommand, with their meanings.
const EXIT_CODES: [(&str, &str); 3] = [
    ("0", "The command did what it was asked to do."),
    ("1", "The command failed."),
    ("2", "The command line or the configuration is wrong."),
];

/// Prints the completion script of a shell.
pub(crate) fn completions(args: &CompletionsArgs) -> Result<(), Failure> {
    crate::print(&completion_script(args.shell)?);
    Ok(())
}

fn completion_script(shell: CompletionShell) -> Result<String, Failure> {
    let shell = match shell {
        CompletionShell::Bash => Shell::Bash,
        CompletionShell::Zsh => Shell::Zsh,
        CompletionShell::Fish => Shell::Fish,
    };
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut Cli::command(), "targe", &mut script);
    String::from_utf8(script)
        .map_err(|error| Failure::Failed(format!("the completion script is not UTF-8: {error}")))
}

/// Writes the manual pages of `targe` and of each subcommand to a directory.
pub(crate) fn man(args: &ManArgs) -> Result<(), Failure> {
    let dir = &args.dir;
    write_pages(dir).map_err(|error| {
        Failure::Failed(format!("cannot write the manual pages to {}: {error}", dir.display()))
    })
}

fn write_pages(dir: &Path) -> io::Result<()> {
    fs::create_dir_all(dir)?;
    let mut command = Cli::command();
    // Without it, subcommands do not know their full names.
    command.build();
    fs::write(dir.join(config_page::NAME), config_page::page())?;
    write_page(dir, &command)
}

/// Writes the page of a command and those of its subcommands.
fn write_page(dir: &Path, command: &clap::Command) -> io::Result<()> {
    fs::write(dir.join(format!("{}.1", name(command))), page(command)?)?;
    visible_subcommands(command).try_for_each(|subcommand| write_page(dir, subcommand))
}

fn visible_subcommands(command: &clap::Command) -> impl Iterator<Item = &clap::Command> {
    command.get_subcommands().filter(|subcommand| !subcommand.is_hide_set())
}

/// Returns the name of a command's page, such as `targe-luks-format`.
fn name(command: &clap::Command) -> &str {
    command.get_display_name().unwrap_or_else(|| command.get_name())
}

fn page(command: &clap::Command) -> io::Result<Vec<u8>> {
    let man = Man::new(command.clone())
        .title(name(command).to_uppercase())
        .source(concat!("targe ", env!("CARGO_PKG_VERSION")))
        .manual("targe manual")
        .date(COMMIT_DATE);
    let mut page = Vec::new();
    man.render_title(&mut page)?;
    man.render_name_section(&mut page)?;
    man.render_synopsis_section(&mut page)?;
    man.render_description_section(&mut page)?;
    man.render_options_section(&mut page)?;
    if visible_subcommands(command).next().is_some() {
        man.render_subcommands_section(&mut page)?;
    }
    example_section(command).to_writer(&mut page)?;
    closing_sections(command).to_writer(&mut page)?;
    Ok(page)
}

/// Returns the section with examples: those of the command, or those of its group that begin with its name.
fn example_section(command: &clap::Command) -> Roff {
    let mut roff = Roff::new();
    let page = name(command);
    let words = format!("{} ", page.replace('-', " "));
    let group = page.rsplit_once('-').map_or(&[][..], |(group, _)| examples::of(group));
    let all: Vec<_> = match examples::of(page) {
        [] => group.iter().filter(|(line, _)| line.starts_with(&words)).collect(),
        own => own.iter().collect(),
    };
    if !all.is_empty() {
        roff.control("SH", ["EXAMPLES"]);
    }
    for (line, meaning) in all {
        roff.control("TP", []).text([bold(*line)]).text([roman(*meaning)]);
    }
    roff
}

/// Returns the sections that all pages have at their end.
fn closing_sections(command: &clap::Command) -> Roff {
    let mut roff = Roff::new();
    roff.control("SH", ["EXIT STATUS"]);
    for (code, meaning) in EXIT_CODES {
        roff.control("TP", []).text([bold(code)]).text([roman(meaning)]);
    }
    roff.control("SH", ["SEE ALSO"]);
    if name(command) != "targe" {
        roff.text([bold("targe"), roman("(1)")]);
        roff.control("PP", []);
    }
    roff.text([roman(
        "The pages in the directory docs of the source, and in /usr/share/doc/targe of the package.",
    )]);
    roff
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    /// Returns the names of all pages that a command and its subcommands have.
    fn names(command: &clap::Command, found: &mut BTreeSet<String>) {
        found.insert(format!("{}.1", name(command)));
        visible_subcommands(command).for_each(|subcommand| names(subcommand, found));
    }

    #[test]
    fn every_subcommand_has_a_page() {
        let dir = std::env::temp_dir().join(format!("targe-man-{}", std::process::id()));
        write_pages(&dir).unwrap();
        let written =
            fs::read_dir(&dir).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap());
        let written: BTreeSet<String> = written.collect();
        let serve = fs::read_to_string(dir.join("targe-serve.1")).unwrap();
        fs::remove_dir_all(&dir).unwrap();
        let mut command = Cli::command();
        command.build();
        let mut expected = BTreeSet::new();
        names(&command, &mut expected);
        expected.insert(config_page::NAME.to_owned());
        assert_eq!(written, expected);
        for page in ["targe.1", "targe-serve.1", "targe-luks-format.1", "targe-man.1"] {
            assert!(written.contains(page), "{page}");
        }
        // The page says what the help says, and leaves out what it hides.
        assert!(serve.contains("\\-\\-config"), "{serve}");
        assert!(serve.contains("EXIT STATUS") && !serve.contains("ephemeral"), "{serve}");
    }

    #[test]
    fn every_command_has_examples_that_the_command_line_takes() {
        let mut command = Cli::command();
        command.build();
        for subcommand in visible_subcommands(&command) {
            assert!(!examples::of(name(subcommand)).is_empty(), "{} has no example", name(subcommand));
        }
        for (page, examples) in examples::EXAMPLES {
            for (line, meaning) in *examples {
                let words = line.split_whitespace().take_while(|word| !["<", ">"].contains(word));
                let words = words.map(|word| word.trim_matches('\''));
                let parsed = Cli::command().try_get_matches_from(words);
                assert!(parsed.is_ok(), "{line}: {}", parsed.unwrap_err());
                let command = page.replace('-', " ");
                assert!(line.starts_with(&command) && meaning.ends_with('.'), "{page}: {line}: {meaning}");
            }
        }
        let lun = command.find_subcommand("lun").and_then(|lun| lun.find_subcommand("resize")).unwrap();
        assert!(example_section(lun).to_roff().contains("40G"));
    }

    #[test]
    fn completions_know_every_subcommand() {
        let command = Cli::command();
        for shell in [CompletionShell::Bash, CompletionShell::Zsh, CompletionShell::Fish] {
            let script = completion_script(shell).unwrap();
            let subcommands = visible_subcommands(&command).map(clap::Command::get_name);
            for word in subcommands.chain(["group-password-file"]) {
                assert!(script.contains(word), "{shell:?}: {word}");
            }
        }
    }
}
