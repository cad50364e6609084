//! Tests discovery on a real network: a pair of virtual interfaces (veth) in its own network namespace.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "all of this is test code, where a panic is the verdict"
)]

use std::process::Command;
use std::sync::mpsc::channel;

use base::ether::{EtherPort, FrameBatch, FrameMachine, PortState, ReceivedFrame};
use base::state_machine::NoStreams;
use base::time::Instant;
use drivers::config::Config;
use drivers::ether::{PortConfig, PortSocket};
use drivers::reactor::Reactor;
use hyperscsi::ETHERTYPE;
use hyperscsi::discovery::DiscoveryServer;
use hyperscsi::frame::Header;
use hyperscsi::login::directory::{Export, TargetAccess, TargetDirectory};
use hyperscsi::pdu::discovery::ExportedLun;
use hyperscsi::pdu::name::{GroupName, Name};
use security::Level;
use targe_initiator::discover::{HyperScsiDiscovery, Wait, search};
use targe_initiator::endpoint::Endpoint;
use targe_initiator::{Client, block_on};

/// The environment variable that is set in the test's own network namespace.
const INSIDE: &str = "TARGE_TEST_IN_NAMESPACE";

#[test]
fn targets_of_the_group_are_found_on_the_wire_and_no_others() {
    if std::env::var_os(INSIDE).is_some() {
        return inside();
    }
    let myself = std::env::current_exe().unwrap();
    let test = "targets_of_the_group_are_found_on_the_wire_and_no_others";
    let possible = Command::new("unshare").args(["-n", "ip", "link", "show", "lo"]).output();
    if !possible.is_ok_and(|output| output.status.success()) {
        println!("skipped: network namespaces need root, `unshare` and `ip`");
        return;
    }
    let mut within = Command::new("unshare");
    within.arg("-n").arg(myself).args(["--exact", test, "--nocapture"]).env(INSIDE, "1");
    let status = within.status().unwrap();
    assert!(status.success());
}

fn inside() {
    ip("link add ours type veth peer name theirs");
    ip("link set ours mtu 9000 up");
    ip("link set theirs mtu 4000 up");
    serve("theirs", [1; 16]);
    let found = look("backup");
    let [neighbour] = &found.targets[..] else { panic!("{found:?}") };
    assert_eq!(&*neighbour.found.target, "iqn.2026-11.com.example:disk");
    assert_eq!((neighbour.found.frame_max, neighbour.interface.as_str()), (4000, "ours"));
    let units: Vec<String> = neighbour.units.iter().map(|(url, level)| format!("{url} {level}")).collect();
    assert_eq!(
        units,
        [
            "hyperscsi://backup@ours/iqn.2026-11.com.example:disk/0 none",
            "hyperscsi://backup@ours/iqn.2026-11.com.example:disk/7 encrypt",
        ]
    );
    assert!(found.disputed.is_empty() && found.interfaces_down.is_empty());
    assert!(look("another").targets.is_empty(), "nothing is exported to that group");
    // Another server claims the same target.
    serve("theirs", [2; 16]);
    let found = look("backup");
    assert_eq!(found.targets.len(), 2);
    assert_eq!(found.disputed.len(), 1);
    sessions_that_cannot_be_say_why();
    ip("link set ours down");
    assert_eq!(look("backup").interfaces_down, ["ours"]);
    let missing = Endpoint::parse("hyperscsi://backup@missing").unwrap();
    let why = search(&missing, Wait::WhileNew, &mut |_| ()).unwrap_err().to_string();
    assert_eq!(why, "there is no interface `missing`");
}

/// Checks the errors of sessions that cannot be opened. The servers here answer discovery, but no handshake.
fn sessions_that_cannot_be_say_why() {
    let client = Client::new().unwrap();
    let fails = |url: &str| block_on(client.open(url)).unwrap_err().report().to_string();
    let target = "iqn.2026-11.com.example:disk";
    for (url, why) in [
        (format!("hyperscsi://backup@missing/{target}/0"), "there is no interface `missing`"),
        // The interface exists, and is down.
        (format!("hyperscsi://backup@lo/{target}/0?connect_timeout=1"), "interface lo is not up"),
        (format!("hyperscsi://backup@ours/{target}/0?protection=encrypt"), "needs the group's password"),
        (
            format!("hyperscsi://backup%secret@ours/{target}/0?connect_timeout=1"),
            "no server answered that exports this target to this group",
        ),
    ] {
        let told = fails(&url);
        assert!(
            told.contains(why) && told.starts_with("cannot log in to hyperscsi://backup@"),
            "{url}: {told}"
        );
    }
}

fn look(group: &str) -> HyperScsiDiscovery {
    let place = Endpoint::parse(&format!("hyperscsi://{group}@ours")).unwrap();
    let mut heard = Vec::new();
    let found = search(&place, Wait::WhileNew, &mut |one| heard.push(one.found.clone())).unwrap();
    assert_eq!(heard.len(), found.targets.len(), "each is told as it comes, once");
    found
}

fn ip(arguments: &str) {
    assert!(Command::new("ip").args(arguments.split(' ')).status().unwrap().success(), "ip {arguments}");
}

/// Answers discovery on an interface, on a thread of its own which ends with the process.
fn serve(interface: &'static str, instance: [u8; 16]) {
    let (ready, is_ready) = channel();
    std::thread::spawn(move || {
        let mut reactor = Reactor::<Server>::new(&Config::default()).unwrap();
        let port = PortSocket::open(PortConfig::new(interface, ETHERTYPE)).unwrap();
        reactor.open_port(EtherPort(0), port).unwrap();
        let mut server =
            Server { answerer: DiscoveryServer::new(reactor.now()), directory: TestDirectory(instance) };
        ready.send(()).unwrap();
        loop {
            reactor.run_once(&mut server, None).unwrap();
        }
    });
    is_ready.recv().unwrap();
}

struct TestDirectory([u8; 16]);

impl TargetDirectory for TestDirectory {
    fn instance(&self) -> [u8; 16] {
        self.0
    }

    fn target_access(&self, _: EtherPort, _: &GroupName, _: &Name) -> Option<TargetAccess> {
        None
    }

    fn export_behind(&self, _: EtherPort, group: &GroupName, after: Option<&Name>) -> Option<Export> {
        let lun = |number: u64, level| ExportedLun { lun: number << 48, level };
        (&**group == "backup" && after.is_none()).then(|| Export {
            target: Name::new("iqn.2026-11.com.example:disk").unwrap(),
            authenticates: true,
            luns: vec![lun(0, Level::None), lun(7, Level::Encrypt)],
            macs: Vec::new(),
        })
    }

    fn sid_taken(&self, _: u32) -> bool {
        false
    }
}

struct Server {
    answerer: DiscoveryServer,
    directory: TestDirectory,
}

impl FrameMachine for Server {
    fn port_up(&mut self, _: Instant, port: EtherPort, state: &PortState, _: [u8; 32]) {
        self.answerer.port_up(port, state);
    }

    fn frame_received(&mut self, now: Instant, frame: ReceivedFrame<'_>) {
        if let Ok((header, _)) = Header::parse(frame.payload) {
            self.answerer.frame_received(
                now,
                &self.directory,
                (frame.port, frame.source),
                &header,
                frame.payload,
            );
        }
    }

    fn poll_port(&mut self) -> Option<EtherPort> {
        self.answerer.poll_port()
    }

    fn transmit_frames(&mut self, _: Instant, port: EtherPort, out: &mut FrameBatch) {
        self.answerer.transmit(port, out);
    }
}

impl NoStreams for Server {}
