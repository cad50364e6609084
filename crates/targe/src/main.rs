//! The `targe` binary: every subcommand is a thin call into the crate that does the work. The interface that
//! users rely on (words, output formats, exit codes) is defined here and in DESIGN's command line.
//!
//! Data goes to stdout, messages to stderr. Exit codes: 0 success, 1 the operation failed, 2 bad usage or
//! configuration.
#![forbid(unsafe_code)]

// The macros of the standard library panic when stderr cannot be written, because its reader is gone or the
// disk is full, so that a command would end without its result. These hide them in every module below, and
// lose the message.
macro_rules! eprint {
    ($($text:tt)*) => {
        $crate::message(format_args!($($text)*))
    };
}

macro_rules! eprintln {
    ($($text:tt)*) => {
        $crate::message(format_args!("{}\n", format_args!($($text)*)))
    };
}

mod admin;
mod attach;
mod bench;
mod change;
mod changer;
mod check;
mod cli;
mod confirm;
mod conform;
mod connect;
mod csi;
mod daemon_socket;
mod disc;
mod discover;
#[cfg(test)]
mod documented;
mod edit;
mod help;
mod info;
mod lab;
mod luks;
mod maintain;
mod manual;
mod passwd;
#[cfg(feature = "planted")]
mod planted;
mod progress;
mod proxy;
mod read_write;
mod reservation;
mod serve;
mod service;
mod session;
mod shell;
mod signals;
mod tables;
mod tape;
mod terminal;
mod top;
mod trace;
mod upgrade;
mod verify;
mod version;
mod ways_in;

use std::fmt;
use std::io::{self, Write};
use std::process::ExitCode;
use std::sync::OnceLock;

use clap::error::ErrorKind;

use cli::Command;

/// How a command failed.
#[derive(Debug)]
enum Failure {
    /// The operation failed.
    Failed(String),
    /// Bad usage.
    Misused(String),
    /// The report on a configuration with mistakes; each of its lines gives its own place in the file.
    Misconfigured(String),
}

fn main() -> ExitCode {
    #[cfg(feature = "planted")]
    if let Err(why) = planted::plant_from_environment() {
        eprintln!("targe: {why}");
        return ExitCode::from(2);
    }
    let cli = match help::parse() {
        Err(error) if error.kind() == ErrorKind::DisplayVersion => {
            version::print(&error.to_string());
            return report(printed());
        }
        parsed => parsed.unwrap_or_else(|error| error.exit()),
    };
    let done = match cli.command {
        Command::Serve(args) => serve::run(*args),
        Command::Check(args) => check::run(&args),
        Command::Status(args) => admin::status(&args),
        Command::Sessions(args) => admin::sessions(&args),
        Command::Luns(args) => admin::luns(&args),
        Command::Top(args) => top::run(&args),
        Command::Apply(args) => change::apply(&args),
        Command::Target(command) => edit::target(command),
        Command::Lun(command) => edit::lun(command),
        Command::Acl(command) => edit::acl(command),
        Command::User(command) => edit::user(command),
        Command::Session(command) => session::run(command),
        Command::Reservation(command) => reservation::run(command),
        Command::Trace(args) => trace::run(&args),
        Command::Upgrade(args) => upgrade::run(&args),
        Command::Discover(args) => discover::run(&args),
        Command::Info(args) => info::run(&args),
        Command::Read(args) => read_write::read(&args),
        Command::Write(args) => read_write::write(&args),
        Command::Bench(args) => bench::run(&args),
        Command::Verify(args) => verify::run(&args),
        Command::Attach(args) => attach::run(&args),
        Command::Luks(args) => luks::run(&args),
        Command::Passwd(args) => passwd::run(&args),
        Command::Tape(args) => tape::run(&args),
        Command::Changer(args) => changer::run(&args),
        Command::Disc(args) => disc::run(&args),
        Command::Proxy(args) => proxy::run(&args),
        Command::Csi(args) => csi::run(*args),
        Command::Lab(args) => lab::run(&args),
        Command::Conform(args) => conform::run(args),
        Command::Completions(args) => manual::completions(&args),
        Command::Man(args) => manual::man(&args),
        Command::Help(args) => help::run(&args),
    };
    signals::wait_for_signal_exit();
    report(done.and_then(|()| printed()))
}

/// Prints why a command failed, if it did. Returns the exit code.
fn report(done: Result<(), Failure>) -> ExitCode {
    let (code, message) = match done {
        Ok(()) => return ExitCode::SUCCESS,
        Err(Failure::Failed(message)) => (1, message),
        Err(Failure::Misused(message)) => (2, message),
        Err(Failure::Misconfigured(report)) => {
            eprint!("{report}");
            return ExitCode::from(2);
        }
    };
    let message = message.trim_end();
    if message.contains('\n') {
        eprintln!("{message}");
    } else if !message.is_empty() {
        eprintln!("targe: {message}");
    }
    ExitCode::from(code)
}

/// Prints a message, if stderr takes it.
fn message(text: fmt::Arguments<'_>) {
    let _ = io::stderr().write_fmt(text);
}

/// The first error of a write to stdout.
static UNPRINTED: OnceLock<io::Error> = OnceLock::new();

/// Prints data. [`printed`] reports an error at the end.
fn print(text: &str) {
    let mut out = io::stdout().lock();
    if let Err(error) = out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        let _ = UNPRINTED.set(error);
    }
}

/// Returns an error unless everything was printed. A reader that closed the pipe early (`targe luns | head
/// -1`) is no error.
fn printed() -> Result<(), Failure> {
    match UNPRINTED.get() {
        Some(error) if error.kind() != io::ErrorKind::BrokenPipe => {
            Err(Failure::Failed(format!("cannot write to stdout: {error}")))
        }
        _ => Ok(()),
    }
}
