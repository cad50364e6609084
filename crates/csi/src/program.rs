//! Programs of the host, such as mkfs and mount.

use std::fs::File;
use std::io::Read;
use std::path::Path;
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use crate::error::{CsiError, CsiResult};

/// How long a program may take, unless the caller says otherwise. Callers of CSI wait two minutes.
pub(crate) const SPAN_MAX: Duration = Duration::from_secs(100);
/// How often a program is looked after.
const LOOK_AGAIN: Duration = Duration::from_millis(10);
/// How much of the output is kept.
const OUTPUT_MAX: u64 = 1 << 16;
/// How much of the output a message shows.
const SHOWN_MAX: usize = 300;

/// What a program said, and its exit code.
pub(crate) struct Done {
    pub(crate) code: i32,
    pub(crate) said: String,
}

/// Runs a program, whatever its exit code. `words` are the program and its arguments.
pub(crate) fn run(words: &[&str]) -> CsiResult<Done> {
    run_within(words, SPAN_MAX)
}

/// The path by which a program opens the file that it was given as its standard input.
pub(crate) const OWN_INPUT: &str = "/proc/self/fd/0";

/// Runs a program on a file that is open, whatever its exit code.
pub(crate) fn run_on(words: &[&str], file: File) -> CsiResult<Done> {
    run_with(words, SPAN_MAX, Stdio::from(file))
}

/// Runs a program that may take as long as `span`, whatever its exit code.
pub(crate) fn run_within(words: &[&str], span: Duration) -> CsiResult<Done> {
    run_with(words, span, Stdio::null())
}

fn run_with(words: &[&str], span: Duration, input: Stdio) -> CsiResult<Done> {
    let [program, arguments @ ..] = words else { return Err(CsiError::internal("no program is named")) };
    let unable =
        |error: std::io::Error| CsiError::internal(format!("cannot run {program} on this node: {error}"));
    let mut child = Command::new(program)
        .args(arguments)
        .env("LC_ALL", "C")
        .stdin(input)
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .map_err(unable)?;
    let outputs = [
        child.stdout.take().map(|pipe| thread::spawn(move || read(pipe))),
        child.stderr.take().map(|pipe| thread::spawn(move || read(pipe))),
    ];
    let began = Instant::now();
    let status = loop {
        match child.try_wait().map_err(unable)? {
            Some(status) => break status,
            None if began.elapsed() < span => thread::sleep(LOOK_AGAIN),
            None => {
                // It may wait for a disk, and end when the disk answers or fails.
                let _ = child.kill();
                thread::spawn(move || child.wait());
                return Err(CsiError::aborted(format!(
                    "{program} did not end within {} s; the disk may not answer",
                    span.as_secs()
                )));
            }
        }
    };
    let said: Vec<String> =
        outputs.into_iter().flatten().map(|reader| reader.join().unwrap_or_default()).collect();
    Ok(Done { code: status.code().unwrap_or(-1), said: said.concat() })
}

/// Runs a program that has to succeed. Returns its output.
pub(crate) fn run_well(words: &[&str]) -> CsiResult<String> {
    let done = run(words)?;
    if done.code == 0 {
        return Ok(done.said);
    }
    let shown = end_of(&done.said.trim().replace('\n', "; "));
    Err(CsiError::internal(format!("{} failed ({}): {shown}", words.first().unwrap_or(&""), done.code)))
}

/// Returns the end of a text, where programs say why they failed.
pub(crate) fn end_of(text: &str) -> String {
    match text.char_indices().rev().nth(SHOWN_MAX) {
        Some((at, _)) => format!("…{}", text.get(at..).unwrap_or_default()),
        None => text.to_owned(),
    }
}

/// Returns a path as an argument.
pub(crate) fn text(path: &Path) -> CsiResult<&str> {
    path.to_str().ok_or_else(|| CsiError::invalid(format!("{} is not UTF-8", path.display())))
}

fn read(mut pipe: impl Read) -> String {
    let mut bytes = Vec::new();
    // This thread reads and drops the rest, so that the program does not wait.
    let _ = (&mut pipe).take(OUTPUT_MAX).read_to_end(&mut bytes);
    let _ = std::io::copy(&mut pipe, &mut std::io::sink());
    String::from_utf8_lossy(&bytes).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn programs_say_why_they_fail() {
        assert_eq!(run_well(&["echo", "a"]).unwrap(), "a\n");
        let done = run(&["sh", "-c", "echo b >&2; exit 3"]).unwrap();
        assert_eq!((done.code, done.said.as_str()), (3, "b\n"));
        let error = run_well(&["sh", "-c", "echo b; exit 3"]).unwrap_err();
        assert_eq!(error.message, "sh failed (3): b");
        assert!(run(&["a-program-that-is-not-there"]).is_err());
    }
}
