//! The true target: targe's daemon on a thread of this process, with RAM disks and other units.

use std::fmt::Write as _;
use std::net::SocketAddr;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::sync::mpsc::channel;

use conformance::{Credentials, Secret};
use daemon::config::{Environment, Flags};

use crate::devices::Kind;

/// How many cases run at the same time. Each has targets of its own. Most of the time they wait.
pub(crate) const LANES: usize = 10;

/// Returns the address of the daemon, which is started by the first call.
pub(crate) fn address() -> SocketAddr {
    static ADDRESS: OnceLock<SocketAddr> = OnceLock::new();
    *ADDRESS.get_or_init(start)
}

/// Returns the name of the target of a lane that serves this.
pub(crate) fn name(lane: usize, kind: Kind) -> String {
    format!("iqn.2001-04.com.example:{}-{lane}", kind.name())
}

/// The credentials of the initiator, and those of the target.
pub(crate) fn credentials() -> (Credentials, Credentials) {
    let of = |(name, secret): (&str, &str)| Credentials {
        name: name.to_owned(),
        secret: Secret::new(secret.as_bytes()).unwrap(),
    };
    (of(USER), of(TARGET))
}

const USER: (&str, &str) = ("alice", "correct-horse-battery");
const TARGET: (&str, &str) = ("the-target", "staple-battery-horse");

fn start() -> SocketAddr {
    let folder = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(format!("mutants-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let config = folder.join("targe.toml");
    // The file holds secrets, so it must be closed to others.
    let mut options = std::fs::OpenOptions::new();
    let mut file = options.write(true).create(true).truncate(true).mode(0o600).open(&config).unwrap();
    std::io::Write::write_all(&mut file, text(&folder).as_bytes()).unwrap();
    let flags = Flags {
        config: Some(config),
        listen: vec!["127.0.0.1:0".to_owned()],
        socket: Some(folder.join("admin").join("admin.sock")),
        state_dir: Some(folder.join("state")),
        log: Some("error".to_owned()),
        ..Flags::default()
    };
    let (tell, told) = channel();
    std::thread::spawn(move || {
        let around = Environment::from_process().unwrap();
        daemon::serve::serve(flags, around, |started| tell.send(started.listening[0]).unwrap()).unwrap();
    });
    told.recv().unwrap()
}

fn text(folder: &Path) -> String {
    let mut text = String::from(
        "max_connections = 4000\nmax_sessions = 4000\n\
         [session]\nerror_recovery_level = 2\nmax_connections = 16\n",
    );
    for lane in 0..LANES {
        for kind in Kind::ALL {
            // Writing to a string does not fail.
            let _ = writeln!(text, "[[target]]\nname = {:?}\nmax_sessions = 1000", name(lane, kind));
            if kind == Kind::DiskWithChap {
                let _ = writeln!(
                    text,
                    "[target.auth]\nuser = {:?}\nsecret = {:?}\nmutual_user = {:?}\nmutual_secret = {:?}",
                    USER.0, USER.1, TARGET.0, TARGET.1
                );
            }
            text = text + "[[target.lun]]\n" + &kind.make(folder, lane);
        }
    }
    text
}
