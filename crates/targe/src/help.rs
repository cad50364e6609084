//! `targe --help`, which lists the subcommands in groups, and `targe help`.

use std::fmt::Write;

use clap::error::ErrorKind;
use clap::{CommandFactory, FromArgMatches};

use crate::Failure;
use crate::cli::{Cli, HelpArgs};

/// The groups of `targe --help`, with their subcommands.
const GROUPS: [(&str, &[&str]); 6] = [
    ("Serve", &["serve", "check", "csi", "proxy"]),
    ("Look at the running daemon", &["status", "sessions", "luns", "top", "trace"]),
    (
        "Change the running daemon",
        &["apply", "target", "lun", "acl", "user", "session", "reservation", "upgrade"],
    ),
    ("Use targets", &["discover", "info", "read", "write", "attach"]),
    ("Measure and test", &["bench", "verify", "conform", "lab"]),
    ("Prepare media and secrets", &["luks", "passwd", "tape", "changer", "disc"]),
];
/// The last group has what is left.
const LAST: &str = "Other commands";

/// Parses the arguments of the process.
pub(crate) fn parse() -> Result<Cli, clap::Error> {
    Cli::from_arg_matches(&grouped().try_get_matches()?)
}

/// Prints the help of a command.
pub(crate) fn run(args: &HelpArgs) -> Result<(), Failure> {
    let given = std::iter::once("targe".into()).chain(args.words.iter().cloned()).chain(["--help".into()]);
    match grouped().try_get_matches_from(given) {
        Err(error) if error.kind() == ErrorKind::DisplayHelp => {
            crate::print(&error.to_string());
            Ok(())
        }
        Err(error) => error.exit(),
        Ok(_) => Err(Failure::Misused("there is no such command".to_owned())),
    }
}

/// The command line, whose help lists the subcommands in groups.
fn grouped() -> clap::Command {
    let command = Cli::command();
    let rows: Vec<_> = command.get_subcommands().filter(|row| !row.is_hide_set()).collect();
    let width = rows.iter().map(|row| row.get_name().len()).max().unwrap_or(0);
    let mut text = "{about-with-newline}\n{usage-heading} {usage}\n".to_owned();
    let is_in_group = |name| GROUPS.iter().any(|(_, names)| names.contains(&name));
    let groups = GROUPS.map(|(title, names)| (title, names.to_vec()));
    let rest = rows.iter().map(|row| row.get_name()).filter(|name| !is_in_group(name)).collect();
    for (title, names) in groups.into_iter().chain([(LAST, rest)]) {
        let _ = write!(text, "\n{title}:\n");
        for row in names.iter().filter_map(|name| rows.iter().find(|row| row.get_name() == *name)) {
            let about = row.get_about().map(ToString::to_string).unwrap_or_default();
            let _ = writeln!(text, "  {:width$}  {about}", row.get_name());
        }
    }
    text.push_str("\nOptions:\n{options}\n\n`targe help COMMAND` describes a command.\n");
    command.help_template(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_help_lists_each_subcommand_in_one_group() {
        let help = grouped().render_help().to_string();
        for row in Cli::command().get_subcommands().filter(|row| !row.is_hide_set()) {
            let begins = format!("  {} ", row.get_name());
            assert_eq!(help.lines().filter(|line| line.starts_with(&begins)).count(), 1, "{begins}\n{help}");
        }
        for (title, names) in GROUPS {
            assert!(help.contains(&format!("\n{title}:\n  {} ", names[0])), "{title}\n{help}");
        }
        assert!(help.contains("--version"), "{help}");
    }
}
