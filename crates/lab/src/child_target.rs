//! A target on 127.0.0.1 as a child process: what experiments measure if no URL is given.

use std::io::{self, BufRead, BufReader};
use std::net::SocketAddr;
use std::os::unix::fs::DirBuilderExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use crate::experiment::LabError;

/// The name of the target.
const TARGET: &str = "iqn.2026-11.example.targe:lab";

/// A running `targe serve`. Dropping it ends the process and removes its files.
#[derive(Debug)]
pub struct ChildTarget {
    child: Child,
    address: SocketAddr,
    _directory: TemporaryDirectory,
}

impl ChildTarget {
    /// Starts `program serve` with one LUN, such as `ram:64M`, on a free port. The environment of the child
    /// is that of this process.
    ///
    /// # Errors
    /// [`LabError::System`] if the process cannot be started, [`LabError::Target`] if it does not serve.
    pub fn start(program: &Path, lun: &str) -> Result<Self, LabError> {
        let system = |what: &str| {
            let what = what.to_owned();
            move |why| LabError::System { what, why }
        };
        let directory = TemporaryDirectory::new().map_err(system("create a temporary directory"))?;
        let log_path = directory.0.join("log");
        let log = std::fs::File::create(&log_path).map_err(system("create a log file"))?;
        let mut child = Command::new(program)
            .args(["serve", "--listen", "127.0.0.1:0", "--target", TARGET, "--lun", lun, "--state-dir"])
            .arg(&directory.0)
            .arg("--socket")
            .arg(directory.0.join("admin.sock"))
            // Ctrl-C on the terminal ends the experiment, which still needs its target.
            .process_group(0)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(log)
            .spawn()
            .map_err(system("start the target"))?;
        let mut line = String::new();
        if let Some(stdout) = child.stdout.take() {
            // At its end the line is empty, which is no address.
            let _ = BufReader::new(stdout).read_line(&mut line);
        }
        let Some(address) = listening(&line) else {
            end(&mut child);
            let log = std::fs::read_to_string(&log_path).unwrap_or_default();
            let last = log.lines().last().unwrap_or("it printed no error");
            return Err(LabError::Target(format!("the target that was started does not listen: {last}")));
        };
        Ok(Self { child, address, _directory: directory })
    }

    /// Returns the URL of the LUN.
    pub fn url(&self) -> String {
        format!("iscsi://{}/{TARGET}/0", self.address)
    }
}

impl Drop for ChildTarget {
    fn drop(&mut self) {
        end(&mut self.child);
    }
}

/// Kills and reaps a process. An error means that it has already ended.
fn end(child: &mut Child) {
    let _ = child.kill();
    let _ = child.wait();
}

/// Reads the address from the first line of the daemon: `targe 0.1.0 listens on 127.0.0.1:3260 (uring)`.
fn listening(line: &str) -> Option<SocketAddr> {
    line.split_once("listens on ")?.1.split_whitespace().next()?.parse().ok()
}

/// A new directory that is removed at the end.
#[derive(Debug)]
struct TemporaryDirectory(PathBuf);

impl TemporaryDirectory {
    fn new() -> io::Result<Self> {
        let mut last = io::Error::from(io::ErrorKind::AlreadyExists);
        for number in 0..NAMES_MAX {
            let name = format!("targe-lab-{}-{number}", std::process::id());
            let path = std::env::temp_dir().join(name);
            // A daemon refuses a directory for its admin socket that others can enter.
            match std::fs::DirBuilder::new().mode(0o700).create(&path) {
                Ok(()) => return Ok(Self(path)),
                Err(error) => last = error,
            }
        }
        Err(last)
    }
}

/// How many names are tried for a directory.
const NAMES_MAX: u32 = 100;

impl Drop for TemporaryDirectory {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_address_is_found_in_the_banner() {
        let line = "targe 0.1.0 listens on 127.0.0.1:40123 (uring)\n";
        assert_eq!(listening(line), Some("127.0.0.1:40123".parse().unwrap()));
        assert_eq!(listening(""), None);
        assert_eq!(listening("targe 0.1.0 listens on eth0 (uring)"), None);
    }

    #[test]
    fn a_program_that_does_not_serve_is_an_error_and_leaves_nothing() {
        let before = |name: &str| name.starts_with(&format!("targe-lab-{}-", std::process::id()));
        assert!(matches!(ChildTarget::start(Path::new("/bin/false"), "ram:1M"), Err(LabError::Target(_))));
        assert!(matches!(ChildTarget::start(Path::new("/none"), "ram:1M"), Err(LabError::System { .. })));
        let entries = std::fs::read_dir(std::env::temp_dir()).unwrap().flatten();
        assert_eq!(entries.filter(|entry| before(&entry.file_name().to_string_lossy())).count(), 0);
    }
}
