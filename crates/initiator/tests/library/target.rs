//! Runs a target of ours on a thread of this process, for as long as the process lives.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::OnceLock;
use std::sync::mpsc::channel;

use daemon::config::{Environment, Flags};

const NAME: &str = "iqn.2001-04.com.example:library";

/// Returns the URL of a RAM disk of 8 MiB that no other test uses.
pub(crate) fn url(lun: u16) -> String {
    static TARGET: OnceLock<SocketAddr> = OnceLock::new();
    let address = TARGET.get_or_init(start);
    format!("iscsi://{address}/{NAME}/{lun}")
}

fn start() -> SocketAddr {
    let folder = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(format!("library-{}", std::process::id()));
    let flags = Flags {
        listen: vec!["127.0.0.1:0".to_owned()],
        target: Some(NAME.to_owned()),
        // LUN 7 sends no response for tasks that another nexus has aborted, as most targets do.
        luns: (0..26)
            .map(|lun| if [7, 17].contains(&lun) { "ram:8M,tas=false" } else { "ram:8M" }.to_owned())
            .collect(),
        state_dir: Some(folder),
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
