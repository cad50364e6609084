//! Tests the events of paths on a real network: two pairs of virtual interfaces (veth) in a network namespace
//! of its own, and a target of ours.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "all of this is test code, where a panic is the verdict"
)]

use std::path::PathBuf;
use std::process::Command;
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

use daemon::config::{Environment, Flags};
use targe_initiator::blocking::Client;
use targe_initiator::{Event, OpenOptions, Path};

/// The environment variable that is set in the test's own network namespace.
const INSIDE: &str = "TARGE_TEST_IN_NAMESPACE";
const NAME: &str = "iqn.2001-04.com.example:paths";
/// A test that takes this long hangs.
const HANG: Duration = Duration::from_secs(60);

#[test]
fn a_pair_of_ports_goes_down_and_up_as_a_connection_does() {
    if std::env::var_os(INSIDE).is_some() {
        return inside();
    }
    let possible = Command::new("unshare").args(["-n", "ip", "link", "show", "lo"]).output();
    if !possible.is_ok_and(|output| output.status.success()) {
        println!("skipped: network namespaces need root, `unshare` and `ip`");
        return;
    }
    let test = "a_pair_of_ports_goes_down_and_up_as_a_connection_does";
    let mut within = Command::new("unshare");
    within.arg("-n").arg(std::env::current_exe().unwrap()).args(["--exact", test, "--nocapture"]);
    assert!(within.env(INSIDE, "1").status().unwrap().success());
}

/// An event, as far as the test compares it.
#[derive(Debug, PartialEq)]
enum Seen {
    Up,
    PathUp(String),
    PathDown(String),
    Recovering,
    Down,
}

fn inside() {
    for number in 0..2 {
        ip(&format!("link add ours{number} type veth peer name theirs{number}"));
        ip(&format!("link set ours{number} up"));
        ip(&format!("link set theirs{number} up"));
    }
    serve();
    let (tell, events) = channel();
    let options = OpenOptions::new().watch(move |event| {
        let name = |path: &Path| match path {
            Path::Ports { interface, .. } => interface.clone(),
            other => panic!("{other:?}"),
        };
        let seen = match event {
            Event::Up(_) => Seen::Up,
            Event::PathUp { path, .. } => Seen::PathUp(name(path)),
            Event::PathDown { path, .. } => Seen::PathDown(name(path)),
            Event::Recovering => Seen::Recovering,
            Event::Down(_) => Seen::Down,
            _ => return true,
        };
        eprintln!("{event:?}");
        tell.send(seen).unwrap();
        true
    });
    let client = Client::new().unwrap();
    let disk = client.open_with(options, format!("hyperscsi://lab@ours0/{NAME}/0?paths=ours1")).unwrap();
    assert_eq!(next(&events), Seen::Up);
    let mut up = [next(&events), next(&events)];
    up.sort_by_key(|seen| format!("{seen:?}"));
    assert_eq!(up, [Seen::PathUp("ours0".to_owned()), Seen::PathUp("ours1".to_owned())]);
    assert_eq!(disk.session().paths().wait().unwrap().len(), 2);
    // One path is lost and comes back; the session stays.
    ip("link set theirs1 down");
    assert_eq!(next(&events), Seen::PathDown("ours1".to_owned()));
    disk.write_at(0, &[7; 512]).unwrap();
    assert_eq!(disk.session().paths().wait().unwrap().len(), 1);
    ip("link set theirs1 up");
    assert_eq!(next(&events), Seen::PathUp("ours1".to_owned()));
    let mut block = [0; 512];
    disk.read_at(0, &mut block).unwrap();
    assert_eq!(block, [7; 512]);
    // The same with the port at this end.
    ip("link set ours0 down");
    assert_eq!(next(&events), Seen::PathDown("ours0".to_owned()));
    disk.read_at(0, &mut block).unwrap();
    ip("link set ours0 up");
    assert_eq!(next(&events), Seen::PathUp("ours0".to_owned()));
    disk.log_out().unwrap();
    let mut downs = [next(&events), next(&events)];
    downs.sort_by_key(|seen| format!("{seen:?}"));
    assert_eq!(downs, [Seen::PathDown("ours0".to_owned()), Seen::PathDown("ours1".to_owned())]);
    assert_eq!(next(&events), Seen::Down);
}

fn next(events: &Receiver<Seen>) -> Seen {
    events.recv_timeout(HANG).unwrap()
}

fn ip(arguments: &str) {
    assert!(Command::new("ip").args(arguments.split(' ')).status().unwrap().success(), "ip {arguments}");
}

/// Serves a RAM disk on the other ends, on a thread which ends with the process.
fn serve() {
    let folder = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(format!("paths-{}", std::process::id()));
    let flags = Flags {
        interfaces: vec!["theirs0".to_owned(), "theirs1".to_owned()],
        groups: vec!["lab".to_owned()],
        target: Some(NAME.to_owned()),
        luns: vec!["ram:8M".to_owned()],
        state_dir: Some(folder),
        log: Some("error".to_owned()),
        ..Flags::default()
    };
    let (tell, told) = channel();
    std::thread::spawn(move || {
        let around = Environment::from_process().unwrap();
        daemon::serve::serve(flags, around, |_| tell.send(()).unwrap()).unwrap();
    });
    told.recv_timeout(HANG).unwrap();
}
