//! Nothing is written to a device without a word: `--write`, or a yes on the terminal.

use std::io::{IsTerminal, Write};

use crate::Failure;

/// Asks whether `what` may be done, unless the command line has said so. Standard input may be the data, so the
/// question is put to the terminal itself.
pub(crate) fn ask(given: bool, what: &str) -> Result<(), Failure> {
    if given {
        return Ok(());
    }
    let refused = || Failure::Misused(format!("{what}: say --write to do this without a terminal to ask on"));
    if !std::io::stderr().is_terminal() {
        return Err(refused());
    }
    let mut terminal =
        std::fs::File::options().read(true).write(true).open("/dev/tty").map_err(|_| refused())?;
    // If the question does not get there, neither does an answer.
    let _ = write!(terminal, "targe: {what}. Go on? [y/N] ");
    let mut answer = String::new();
    let _ = std::io::BufRead::read_line(&mut std::io::BufReader::new(terminal), &mut answer);
    match answer.trim() {
        "y" | "Y" | "yes" => Ok(()),
        _ => Err(Failure::Failed("nothing was written".to_owned())),
    }
}
