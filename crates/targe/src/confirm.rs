//! Asks for consent before a command writes to a device: `--write`, or a yes on the terminal.

use std::io::{IsTerminal, Write};

use crate::Failure;

/// Asks whether to do `what`, unless `given` is set because the command line has consent. Standard input may
/// be the data, so the terminal itself is asked.
pub(crate) fn ask(given: bool, what: &str) -> Result<(), Failure> {
    if given {
        return Ok(());
    }
    let refused =
        || Failure::Misused(format!("{what}: without a terminal to confirm on, this needs --write"));
    if !std::io::stderr().is_terminal() {
        return Err(refused());
    }
    let mut terminal =
        std::fs::File::options().read(true).write(true).open("/dev/tty").map_err(|_| refused())?;
    // If the question cannot be written, no answer can be read either.
    let _ = write!(terminal, "targe: {what}. Continue? [y/N] ");
    let mut answer = String::new();
    let _ = std::io::BufRead::read_line(&mut std::io::BufReader::new(terminal), &mut answer);
    match answer.trim() {
        "y" | "Y" | "yes" => Ok(()),
        _ => Err(Failure::Failed("nothing was written".to_owned())),
    }
}
