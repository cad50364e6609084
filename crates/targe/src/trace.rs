//! `targe trace`: writes the capture that the daemon makes of sessions to a file.

use std::fs::{self, File, OpenOptions};
use std::io::{self, BufRead, BufReader, ErrorKind, Read, Write};
use std::net::Shutdown;
use std::os::unix::fs::{FileTypeExt, OpenOptionsExt};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use clap::Args;
use daemon::admin::api::{Method, Request};
use daemon::admin::change_api::SessionSelector;
use daemon::admin::trace_api::{TraceEnd, TraceRequest, TraceStarted};

use crate::change::call;
use crate::{Failure, daemon_socket, signals};

#[derive(Debug, Args)]
pub(crate) struct TraceArgs {
    /// Record the sessions of this initiator, as `targe sessions` shows it
    #[arg(long, value_name = "INITIATOR")]
    session: String,
    /// Only its sessions with this target
    #[arg(long, value_name = "IQN")]
    target: Option<String>,
    /// Only its session with this ISID
    #[arg(long, value_name = "HEX")]
    isid: Option<String>,
    /// Write the capture (pcapng) to this file, which must not exist; to stdout if it is -
    #[arg(long, value_name = "FILE")]
    out: PathBuf,
    /// Record at most this many bytes of each data segment
    #[arg(long, value_name = "BYTES")]
    snap: Option<u32>,
    /// End after this many PDUs and frames
    #[arg(long, value_name = "N")]
    count: Option<u64>,
    /// End after this many seconds
    #[arg(long, value_name = "SECONDS")]
    time: Option<u64>,
    /// Wait for logins, and go on when no session is left
    #[arg(long)]
    follow: bool,
    /// Record what sessions with TLS or an AEAD digest carry, without that protection
    #[arg(long)]
    plain: bool,
    /// Memory of the daemon for what is not yet written, in MiB
    #[arg(long, value_name = "MIB", default_value_t = 16)]
    buffer: u32,
    /// The daemon's admin socket [default: that of a daemon without a configuration]
    #[arg(long, value_name = "PATH")]
    socket: Option<PathBuf>,
}

/// How long the daemon may take to end a capture after a signal. Without one, it can be silent for ever.
const END_MAX: Duration = Duration::from_secs(30);

/// How often a signal is looked for.
const LOOK: Duration = Duration::from_millis(200);

pub(crate) fn run(args: &TraceArgs) -> Result<(), Failure> {
    let ends = signals::flag()?;
    let mut connection = daemon_socket::connect(args.socket.as_deref())?;
    let mut out = Output::create(&args.out)?;
    let request = TraceRequest {
        sessions: SessionSelector {
            initiator: args.session.clone(),
            target: args.target.clone(),
            isid: args.isid.clone(),
        },
        plain: args.plain,
        follow: args.follow,
        snap: args.snap,
        count: args.count,
        seconds: args.time,
        buffer_mib: Some(args.buffer),
    };
    let request = Request { trace: Some(request), ..Request::new(Method::Trace) };
    let TraceStarted { sessions } = match call(&mut connection, &request) {
        Ok(started) => started,
        Err(failure) => {
            out.remove();
            return Err(failure);
        }
    };
    eprintln!("targe: {sessions} sessions are traced; Ctrl-C ends the trace");
    let TraceEnd { recorded, dropped, reason } = copy(connection.into_stream(), &mut out, &ends)?;
    let lost = match dropped {
        0 => String::new(),
        some => format!(", {some} dropped because {} was written too slowly", args.out.display()),
    };
    eprintln!("targe: {recorded} PDUs and frames recorded{lost}: {reason}");
    Ok(())
}

/// Copies the capture to the output, until the daemon or a signal ends it.
fn copy(
    mut stream: BufReader<UnixStream>,
    out: &mut Output,
    ends: &Arc<AtomicBool>,
) -> Result<TraceEnd, Failure> {
    let broken = |error: io::Error| {
        let why = match error.kind() {
            ErrorKind::UnexpectedEof => "the daemon has ended".to_owned(),
            _ => error.to_string(),
        };
        Failure::Failed(format!("the trace broke off, and the capture contains what came before: {why}"))
    };
    let looks = stream.get_ref().set_read_timeout(Some(LOOK));
    looks.map_err(broken)?;
    let mut source = Interruptible { stream: &mut stream, ends, ended: None };
    loop {
        let mut len = [0; 4];
        source.read_exact(&mut len).map_err(broken)?;
        let len = u64::from(u32::from_be_bytes(len));
        if len == 0 {
            break;
        }
        let written = out.copy_from((&mut source).take(len), len);
        written
            .map_err(|error| Failure::Failed(format!("cannot write to {}: {error}", out.path.display())))?;
    }
    out.flush()?;
    let mut line = String::new();
    BufReader::new(source).take(1 << 16).read_line(&mut line).map_err(broken)?;
    serde_json::from_str(&line).map_err(|error| broken(error.into()))
}

/// Reads from the daemon, and asks it to end the capture once a signal has come.
struct Interruptible<'s> {
    stream: &'s mut BufReader<UnixStream>,
    ends: &'s AtomicBool,
    ended: Option<Instant>,
}

impl Read for Interruptible<'_> {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        loop {
            if self.ended.is_none() && self.ends.load(Ordering::SeqCst) {
                self.ended = Some(Instant::now());
                self.stream.get_ref().shutdown(Shutdown::Write)?;
            }
            match self.stream.read(buf) {
                Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {
                    if self.ended.is_some_and(|ended| ended.elapsed() > END_MAX) {
                        return Err(error);
                    }
                }
                read => return read,
            }
        }
    }
}

/// The file of the capture, or stdout.
struct Output {
    path: PathBuf,
    /// Whether this command has made the file.
    is_new: bool,
    file: Box<dyn Write>,
}

impl Output {
    /// Creates the file, which only its owner can read. A pipe or a device may exist already.
    fn create(path: &Path) -> Result<Self, Failure> {
        let of = |is_new, file: Box<dyn Write>| Self { path: path.to_path_buf(), is_new, file };
        if path == Path::new("-") {
            return Ok(of(false, Box::new(io::stdout())));
        }
        let failed = |error: io::Error| Failure::Failed(format!("cannot create {}: {error}", path.display()));
        let is_special = fs::metadata(path)
            .is_ok_and(|known| known.file_type().is_fifo() || known.file_type().is_char_device());
        if is_special {
            return Ok(of(false, Box::new(OpenOptions::new().write(true).open(path).map_err(failed)?)));
        }
        let made: io::Result<File> = OpenOptions::new().write(true).create_new(true).mode(0o600).open(path);
        match made {
            Ok(file) => Ok(of(true, Box::new(file))),
            Err(error) if error.kind() == ErrorKind::AlreadyExists => {
                Err(Failure::Failed(format!("{} exists already", path.display())))
            }
            Err(error) => Err(failed(error)),
        }
    }

    /// Removes the file again, into which nothing was written.
    fn remove(&self) {
        if self.is_new {
            let _ = fs::remove_file(&self.path);
        }
    }

    fn copy_from(&mut self, mut source: impl Read, len: u64) -> io::Result<()> {
        match io::copy(&mut source, &mut self.file)? {
            copied if copied == len => self.file.flush(),
            _ => Err(ErrorKind::UnexpectedEof.into()),
        }
    }

    fn flush(&mut self) -> Result<(), Failure> {
        let flushed = self.file.flush();
        flushed.map_err(|error| Failure::Failed(format!("cannot write to {}: {error}", self.path.display())))
    }
}
