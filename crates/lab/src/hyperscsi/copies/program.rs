//! Programs that a copy needs, each of which runs to its end or to its limit.

use std::ffi::OsStr;
use std::io::{self, Read};
use std::os::unix::process::CommandExt as _;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, pidfd_open};

use crate::experiment::LabError;
use crate::targets::search_path;

/// How often a waiting run checks whether the experiment is to stop.
const STOP_INTERVAL: Duration = Duration::from_millis(100);

/// The most bytes of the messages of a program that an error contains.
const MESSAGES_MAX: u64 = 900;

/// Runs a program on the host and in the mount namespace of the calling thread, and waits for its end. Kills
/// the program when it takes longer than `within`, or when the experiment is to stop.
///
/// # Errors
/// [`LabError::Target`] if the program fails or is killed, with what it printed.
pub(super) fn run<'a>(
    program: &str,
    arguments: impl IntoIterator<Item = &'a OsStr>,
    within: Duration,
    stop: &AtomicBool,
) -> Result<(), LabError> {
    let mut command = Command::new(program);
    command.env("PATH", search_path()).args(arguments);
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
    // Ctrl-C at a terminal ends the experiment, which ends the program.
    command.process_group(0);
    let system = |why| LabError::System { what: format!("run {program}"), why };
    let mut child = command.spawn().map_err(system)?;
    let waited = wait(&mut child, within, stop);
    if !matches!(waited, Ok(Some(_))) {
        // It may have ended meanwhile.
        let _ = child.kill();
        let _ = child.wait();
    }
    let mut failed = |what: &str| LabError::Target(format!("{program} {what}: {}", messages(&mut child)));
    match waited.map_err(system)? {
        Some(status) if status.success() => Ok(()),
        Some(status) => Err(failed(&format!("fails ({status})"))),
        None if stop.load(Ordering::Relaxed) => Err(failed("was stopped")),
        None => Err(failed(&format!("does not end within {} s", within.as_secs()))),
    }
}

/// Waits for the end of a process. Returns none if it does not end in time, or if the experiment is to stop.
fn wait(child: &mut Child, within: Duration, stop: &AtomicBool) -> io::Result<Option<ExitStatus>> {
    let deadline = Instant::now() + within;
    let process = pidfd_open(Pid::from_child(child), PidfdFlags::empty())?;
    loop {
        let left = deadline.saturating_duration_since(Instant::now()).min(STOP_INTERVAL);
        let left = Timespec::try_from(left).map_err(|_| io::ErrorKind::InvalidInput)?;
        // A signal that interrupts this is seen below.
        let _ = poll(&mut [PollFd::new(&process, PollFlags::IN)], Some(&left));
        if let Some(status) = child.try_wait()? {
            return Ok(Some(status));
        }
        if Instant::now() >= deadline || stop.load(Ordering::Relaxed) {
            return Ok(None);
        }
    }
}

/// Returns what a program that has ended printed, in one line.
fn messages(child: &mut Child) -> String {
    let mut text = Vec::new();
    let read = child.stderr.take().map(|messages| messages.take(MESSAGES_MAX).read_to_end(&mut text));
    let text = String::from_utf8_lossy(&text);
    let words: Vec<&str> = text.split_whitespace().collect();
    match read {
        Some(Ok(_)) if !words.is_empty() => words.join(" "),
        _ => "it printed no message".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LONG: Duration = Duration::from_secs(600);

    fn shell(commands: &str, within: Duration, stop: bool) -> Result<(), String> {
        let arguments = ["-c", commands].map(OsStr::new);
        run("sh", arguments, within, &AtomicBool::new(stop)).map_err(|why| why.to_string())
    }

    #[test]
    fn a_program_that_fails_tells_its_messages() {
        assert_eq!(shell("exit 0", LONG, false), Ok(()));
        let why = shell("echo the disk >&2; echo is full >&2; exit 3", LONG, false).unwrap_err();
        assert_eq!(why, "sh fails (exit status: 3): the disk is full");
        let why = shell("kill -KILL $$", LONG, false).unwrap_err();
        assert!(why.contains("signal: 9") && why.ends_with("it printed no message"), "{why}");
        let why = run("/none", [], LONG, &AtomicBool::new(false)).unwrap_err().to_string();
        assert!(why.contains("run /none"), "{why}");
    }

    #[test]
    fn a_program_that_does_not_end_is_killed_at_its_limit() {
        let why = shell("echo waiting >&2; exec sleep 1000", Duration::from_secs(5), false).unwrap_err();
        assert_eq!(why, "sh does not end within 5 s: waiting");
    }

    #[test]
    fn a_stop_ends_a_program_at_once() {
        let why = shell("exec sleep 1000", LONG, true).unwrap_err();
        assert!(why.starts_with("sh was stopped: "), "{why}");
    }
}
