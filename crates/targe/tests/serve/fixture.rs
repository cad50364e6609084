//! A directory for one test, and the daemons that run in it. Both are removed when the test ends.

use std::fs;
use std::io::{BufRead, BufReader, Read};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use serde_json::Value;

/// The longest that any step here may take.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

/// Runs the binary to its end. Returns the exit code, stdout and stderr.
pub(crate) fn targe(args: &[&str]) -> (i32, String, String) {
    Fixture::new().run(args)
}

pub(crate) struct Fixture {
    path: PathBuf,
}

impl Fixture {
    pub(crate) fn new() -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let name = format!("targe-serve-{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
        let path = std::env::temp_dir().join(name);
        fs::create_dir(&path).unwrap();
        Self { path }
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.path.join(name)
    }

    pub(crate) fn write(&self, name: &str, text: &str) {
        fs::write(self.path(name), text).unwrap();
    }

    pub(crate) fn command(&self, args: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_targe"));
        command.args(args).current_dir(&self.path).env_clear();
        command.env("XDG_STATE_HOME", self.path("state")).stdin(Stdio::null());
        // The command must not find other daemons of this host.
        command.env("TARGE_ROOT", &self.path);
        command
    }

    /// Returns what daemons wrote to stderr.
    pub(crate) fn log(&self) -> String {
        fs::read_to_string(self.path("log")).unwrap_or_default()
    }

    /// Waits until daemons have written this to stderr. A thread of its own writes the log, so a line can
    /// follow the answer of a request that was made after it.
    pub(crate) fn await_log(&self, text: &str) {
        let deadline = Instant::now() + PATIENCE;
        while !self.log().contains(text) {
            assert!(Instant::now() < deadline, "{text:?} is not in:\n{}", self.log());
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// Runs the binary to its end. Returns the exit code, stdout and stderr.
    pub(crate) fn run(&self, args: &[&str]) -> (i32, String, String) {
        let output = self.command(args).output().unwrap();
        let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).unwrap();
        (output.status.code().unwrap(), text(&output.stdout), text(&output.stderr))
    }

    /// Starts a daemon and waits until it serves.
    pub(crate) fn serve(&self, args: &[&str]) -> Daemon {
        self.start(self.command(&[&["serve"], args].concat()))
    }

    /// Starts a daemon from a shell, after the shell ran `before`, and waits until the daemon serves.
    pub(crate) fn serve_behind(&self, shell: &[&str], before: &str, args: &[&str]) -> Daemon {
        let mut command = Command::new(shell[0]);
        command.args(&shell[1..]).arg("-c").arg(format!("{before} && exec \"$0\" serve \"$@\""));
        command.arg(env!("CARGO_BIN_EXE_targe")).args(args).current_dir(&self.path).env_clear();
        command.env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin").env("XDG_STATE_HOME", self.path("state"));
        command.stdin(Stdio::null());
        self.start(command)
    }

    fn start(&self, mut command: Command) -> Daemon {
        let log = fs::OpenOptions::new().append(true).create(true).open(self.path("log")).unwrap();
        let mut child = command.stdout(Stdio::piped()).stderr(log).spawn().unwrap();
        let mut stdout = BufReader::new(child.stdout.take().unwrap());
        let mut banner = String::new();
        while !banner.contains("Ctrl-C stops.") {
            assert_ne!(stdout.read_line(&mut banner).unwrap(), 0, "did not start: {banner}{}", self.log());
        }
        std::thread::spawn(move || stdout.read_to_end(&mut Vec::new()));
        let address = banner.split_whitespace().find_map(|word| word.parse().ok()).unwrap();
        Daemon { child, address, banner, state: self.path("state") }
    }
}

impl Drop for Fixture {
    fn drop(&mut self) {
        fs::remove_dir_all(&self.path).unwrap();
    }
}

/// A running daemon. If the test drops it without a stop, it is killed.
pub(crate) struct Daemon {
    child: Child,
    pub(crate) address: SocketAddr,
    pub(crate) banner: String,
    state: PathBuf,
}

impl Daemon {
    /// Sends a request over the admin socket.
    pub(crate) fn ask(&self, what: &str) -> Value {
        let mut command = Command::new(env!("CARGO_BIN_EXE_targe"));
        command.args([what, "--json"]).env_clear().env("XDG_STATE_HOME", &self.state);
        let output = command.output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        serde_json::from_slice(&output.stdout).unwrap()
    }

    pub(crate) fn signal(&self, name: &str) {
        let sent = Command::new("kill").args([format!("-{name}"), self.child.id().to_string()]).status();
        assert!(sent.unwrap().success());
    }

    /// Requests a reload of the configuration. Returns the result.
    pub(crate) fn reload(&self) -> Value {
        let before = self.ask("status")["reloads"].as_u64().unwrap();
        self.signal("HUP");
        let deadline = Instant::now() + PATIENCE;
        loop {
            let status = self.ask("status");
            if status["reloads"].as_u64().unwrap() > before {
                return status["reload"].clone();
            }
            assert!(Instant::now() < deadline, "no reload");
        }
    }

    pub(crate) fn kill(mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    /// Requests the end of the daemon. Returns the exit code, and how long the end took.
    pub(crate) fn stop(self) -> (i32, Duration) {
        assert_eq!(self.ask("status")["bugs"], 0);
        self.signal("TERM");
        self.wait()
    }

    /// Waits for the end of the daemon.
    pub(crate) fn wait(mut self) -> (i32, Duration) {
        let began = Instant::now();
        loop {
            if let Some(status) = self.child.try_wait().unwrap() {
                return (status.code().unwrap(), began.elapsed());
            }
            assert!(began.elapsed() < PATIENCE, "the daemon does not end");
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        if matches!(self.child.try_wait(), Ok(None)) {
            let _ = self.child.kill();
            let _ = self.child.wait();
        }
    }
}
