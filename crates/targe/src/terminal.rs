//! Reads secrets: from the terminal, which does not display them, or from standard input.

use std::fs::File;
use std::io::{self, Write as _};
use std::os::fd::AsFd;

use rustix::io::{Errno, read};
use rustix::termios::{LocalModes, OptionalActions, Termios, tcgetattr, tcsetattr};
use signal_hook::consts::{SIGHUP, SIGINT, SIGQUIT, SIGTERM};
use signal_hook::iterator::Signals;
use signal_hook::low_level::emulate_default_handler;
use zeroize::Zeroizing;

/// The longest line that is kept, in bytes: longer than any secret, so that a longer line is no secret
/// either.
const LINE_LEN_MAX: usize = 4096;

/// Reads up to the end of the line, or of the input. One byte is read at a time, so that what follows the
/// line stays in the input, and no buffer keeps the secret.
pub(crate) fn line_of(input: impl AsFd) -> io::Result<Zeroizing<Vec<u8>>> {
    // The whole capacity is allocated at once, because a growing buffer would leave copies of the secret in
    // memory.
    let mut line = Zeroizing::new(Vec::with_capacity(LINE_LEN_MAX));
    let mut byte = Zeroizing::new([0]);
    loop {
        match read(&input, &mut *byte) {
            Ok(0) => break,
            Ok(_) if *byte == *b"\n" => break,
            Ok(_) if line.len() == LINE_LEN_MAX => {
                return Err(io::Error::new(io::ErrorKind::InvalidData, "the line is too long"));
            }
            Ok(_) => line.extend_from_slice(byte.as_slice()),
            Err(Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
    }
    if line.last() == Some(&b'\r') {
        line.pop();
    }
    Ok(line)
}

/// The terminal, which displays nothing of what is typed until this is dropped or a signal ends the process.
pub(crate) struct HiddenTerminal {
    terminal: File,
    usual: Termios,
}

impl HiddenTerminal {
    /// Opens the terminal. Afterwards the signals that end the process restore it first.
    pub(crate) fn open() -> io::Result<Self> {
        let terminal = File::options().read(true).write(true).open("/dev/tty")?;
        let usual = tcgetattr(&terminal)?;
        let mut signals = Signals::new([SIGINT, SIGTERM, SIGHUP, SIGQUIT])?;
        let (at_signal, shown) = (terminal.try_clone()?, usual.clone());
        std::thread::Builder::new().name("terminal".to_owned()).spawn(move || {
            if let Some(signal) = signals.forever().next() {
                let _ = tcsetattr(&at_signal, OptionalActions::Flush, &shown);
                let _ = emulate_default_handler(signal);
                std::process::exit(128 + signal);
            }
        })?;
        let mut hidden = usual.clone();
        hidden.local_modes.remove(LocalModes::ECHO);
        tcsetattr(&terminal, OptionalActions::Flush, &hidden)?;
        Ok(Self { terminal, usual })
    }

    /// Asks a question, and returns the line that the user types.
    pub(crate) fn ask(&mut self, question: &str) -> io::Result<Zeroizing<Vec<u8>>> {
        write!(self.terminal, "{question}")?;
        let line = line_of(&self.terminal);
        // The newline that the user typed was not displayed.
        let _ = writeln!(self.terminal);
        line
    }
}

impl Drop for HiddenTerminal {
    fn drop(&mut self) {
        // Where this fails there is no terminal any more.
        let _ = tcsetattr(&self.terminal, OptionalActions::Flush, &self.usual);
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixStream;

    use super::*;

    fn line(bytes: &[u8]) -> io::Result<Vec<u8>> {
        let (mut to, from) = UnixStream::pair().unwrap();
        to.write_all(bytes).unwrap();
        drop(to);
        line_of(&from).map(|line| line.to_vec())
    }

    #[test]
    fn one_line_is_read_without_its_end() {
        assert_eq!(line(b"correct horse\nmore\n").unwrap(), b"correct horse");
        assert_eq!(line(b"correct horse\r\n").unwrap(), b"correct horse");
        assert_eq!(line(b" no newline ").unwrap(), b" no newline ");
        assert_eq!(line(b"\n").unwrap(), b"");
        assert_eq!(line(b"").unwrap(), b"");
        assert_eq!(line(&[b'x'; 4096]).unwrap().len(), 4096);
        assert!(line(&[b'x'; 4097]).is_err());
    }

    #[test]
    fn what_follows_the_line_stays_in_the_input() {
        let (mut to, from) = UnixStream::pair().unwrap();
        to.write_all(b"first\nsecond\n").unwrap();
        assert_eq!(*line_of(&from).unwrap(), b"first");
        assert_eq!(*line_of(&from).unwrap(), b"second");
    }
}
