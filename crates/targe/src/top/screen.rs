//! The terminal: lines on its alternate screen, and the keys that are pressed.

use std::io::{self, Stdout, Write as _};
use std::time::Duration;

use crossterm::event::{Event, KeyCode, KeyEventKind, KeyModifiers, poll, read};
use crossterm::style::{Attribute, SetAttribute};
use crossterm::terminal::{
    BeginSynchronizedUpdate, Clear, ClearType, EndSynchronizedUpdate, EnterAlternateScreen,
    LeaveAlternateScreen, disable_raw_mode, enable_raw_mode, size,
};
use crossterm::{cursor, execute, queue, style};
use signal_hook::consts::{SIGHUP, SIGINT, SIGQUIT, SIGTERM};
use signal_hook::iterator::Signals;
use signal_hook::low_level::emulate_default_handler;

/// What the user wants.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Key {
    Quit,
    /// LUNs or sessions.
    Switch,
    /// Another order.
    Order,
    Up,
    Down,
    PageUp,
    PageDown,
    /// Only draw again: the size changed, or the key means nothing.
    Nothing,
}

/// A line, and whether it is a heading.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Line {
    pub(crate) text: String,
    pub(crate) is_heading: bool,
}

/// The terminal, which is as it was before when this is dropped or a signal ends the process.
#[derive(Debug)]
pub(crate) struct Screen {
    out: Stdout,
}

impl Screen {
    pub(crate) fn open() -> io::Result<Self> {
        let mut signals = Signals::new([SIGINT, SIGTERM, SIGHUP, SIGQUIT])?;
        std::thread::Builder::new().name("terminal".to_owned()).spawn(move || {
            if let Some(signal) = signals.forever().next() {
                give_back(&mut io::stdout());
                let _ = emulate_default_handler(signal);
                std::process::exit(128 + signal);
            }
        })?;
        enable_raw_mode()?;
        let mut screen = Self { out: io::stdout() };
        execute!(screen.out, EnterAlternateScreen, cursor::Hide)?;
        Ok(screen)
    }

    /// Returns the width and the height in characters.
    #[expect(clippy::unused_self, reason = "the size is known while the screen is open")]
    pub(crate) fn size(&self) -> io::Result<(usize, usize)> {
        let (width, height) = size()?;
        Ok((usize::from(width), usize::from(height)))
    }

    /// Draws lines, which must be no longer and no more than the screen shows.
    pub(crate) fn show(&mut self, lines: &[Line]) -> io::Result<()> {
        queue!(self.out, BeginSynchronizedUpdate)?;
        for (row, line) in (0..).zip(lines) {
            queue!(self.out, cursor::MoveTo(0, row))?;
            if line.is_heading {
                queue!(self.out, SetAttribute(Attribute::Reverse))?;
            }
            queue!(self.out, style::Print(&line.text), SetAttribute(Attribute::Reset))?;
            queue!(self.out, Clear(ClearType::UntilNewLine))?;
        }
        let rows = u16::try_from(lines.len()).unwrap_or(u16::MAX);
        queue!(self.out, cursor::MoveTo(0, rows), Clear(ClearType::FromCursorDown), EndSynchronizedUpdate)?;
        self.out.flush()
    }

    /// Waits for a key.
    #[expect(clippy::unused_self, reason = "keys are read while the screen is open")]
    pub(crate) fn key(&mut self, within: Duration) -> io::Result<Option<Key>> {
        if !poll(within)? {
            return Ok(None);
        }
        let Event::Key(key) = read()? else { return Ok(Some(Key::Nothing)) };
        if key.kind == KeyEventKind::Release {
            return Ok(Some(Key::Nothing));
        }
        let control = key.modifiers.contains(KeyModifiers::CONTROL);
        Ok(Some(match key.code {
            KeyCode::Char('c') if control => Key::Quit,
            KeyCode::Char('q') | KeyCode::Esc => Key::Quit,
            KeyCode::Tab => Key::Switch,
            KeyCode::Char('s') => Key::Order,
            KeyCode::Up => Key::Up,
            KeyCode::Down => Key::Down,
            KeyCode::PageUp => Key::PageUp,
            KeyCode::PageDown => Key::PageDown,
            _ => Key::Nothing,
        }))
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        give_back(&mut self.out);
    }
}

/// Makes the terminal as it was before.
fn give_back(out: &mut Stdout) {
    // Where this fails there is no terminal any more.
    let _ = execute!(out, cursor::Show, LeaveAlternateScreen);
    let _ = disable_raw_mode();
}
