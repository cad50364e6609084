//! `targe csi`: the driver of the Container Storage Interface.

mod admin;

use std::collections::BTreeMap;
use std::num::NonZeroU32;
use std::path::PathBuf;

use clap::{Args, ValueEnum};
use csi::error::CsiError;
use csi::node::{AttachMethod, Node, NodeSettings};
use csi::server::Driver;
use csi::topology::Topology;
use csi::volumes::{Settings, Volumes};

use self::admin::Daemon;
use crate::{Failure, service};

#[derive(Debug, Args)]
pub(crate) struct CsiArgs {
    /// Serve CSI on this Unix socket
    #[arg(long, value_name = "unix:///PATH")]
    endpoint: String,
    /// Name the driver
    #[arg(long, value_name = "NAME", default_value = "csi.targe.example")]
    driver_name: String,
    /// Say where the volumes can be reached from, such as example.org/zone=a
    #[arg(long, value_name = "KEY=VALUE", value_parser = segment)]
    topology: Vec<(String, String)>,
    /// Let each node have at most this many volumes [default: no limit]
    #[arg(long, value_name = "N")]
    max_volumes: Option<NonZeroU32>,
    #[command(flatten)]
    controller: ControllerArgs,
    #[command(flatten)]
    node: NodeArgs,
}

/// The controller, which makes volumes and asks a running daemon to serve them.
#[derive(Debug, Args)]
#[group(id = "controller_options")]
struct ControllerArgs {
    /// Make volumes, as files in the folder --pool that the running daemon serves
    #[arg(long, requires = "pool", requires = "portal")]
    controller: bool,
    /// Keep the volumes in this folder, which the daemon finds under the same path
    #[arg(long, value_name = "DIR", requires = "controller")]
    pool: Option<PathBuf>,
    /// Tell nodes to reach the daemon at this address
    #[arg(long, value_name = "HOST[:PORT]", requires = "controller", value_parser = portal)]
    portal: Vec<String>,
    /// Begin the names of the volumes' targets with this
    #[arg(
        long,
        value_name = "IQN",
        requires = "controller",
        default_value = "iqn.2026-11.example.targe:csi",
        value_parser = target_prefix
    )]
    target_prefix: String,
    /// The daemon's admin socket [default: that of a daemon without a configuration]
    #[arg(long, value_name = "PATH", requires = "controller")]
    socket: Option<PathBuf>,
}

/// The node, which attaches volumes to this host and mounts them.
#[derive(Debug, Args)]
#[group(id = "node_options")]
struct NodeArgs {
    /// Attach volumes to this host
    #[arg(long)]
    node: bool,
    /// Name the initiator of this host [default: that of /etc/iscsi/initiatorname.iscsi]
    #[arg(long, value_name = "IQN", requires = "node")]
    initiator: Option<String>,
    /// Attach volumes in this way
    #[arg(long, value_name = "WAY", requires = "node", default_value = "auto")]
    attach: Way,
    /// Keep what is attached in this folder, which a reboot must empty
    #[arg(long, value_name = "DIR", requires = "node", default_value = "/run/targe-csi")]
    run_dir: PathBuf,
    /// Run iscsiadm by these words, such as "chroot /host iscsiadm"
    #[arg(long, value_name = "WORDS", requires = "node", default_value = "iscsiadm")]
    iscsiadm: String,
}

/// A way to attach volumes.
#[derive(Clone, Copy, Debug, ValueEnum)]
enum Way {
    /// The first of the others that this host has and that can protect the volume as it requires
    Auto,
    /// The kernel's initiator, by open-iscsi, which encrypts nothing
    Iscsi,
    /// A ublk device of `targe attach`
    Ublk,
    /// A loop device over a file of `targe attach`
    Loop,
}

/// Where open-iscsi keeps the name of this host's initiator.
const INITIATOR_FILE: &str = "/etc/iscsi/initiatorname.iscsi";

impl NodeArgs {
    fn open(self, max_volumes: Option<NonZeroU32>) -> Result<Node, Failure> {
        let iscsiadm: Vec<String> = self.iscsiadm.split_whitespace().map(str::to_owned).collect();
        let protected_method = match self.attach {
            Way::Auto => AttachMethod::best_of_targe(),
            Way::Iscsi => None,
            Way::Ublk => Some(AttachMethod::Ublk),
            Way::Loop => Some(AttachMethod::Loop),
        };
        let method = match self.attach {
            Way::Auto => AttachMethod::best(&iscsiadm).ok_or_else(|| {
                Failure::Failed(
                    "this host has none of these: the kernel's initiator with iscsiadm, ublk (/dev/ublk-control), FUSE \
                     with loop devices"
                        .to_owned(),
                )
            })?,
            Way::Iscsi => AttachMethod::Iscsi,
            Way::Ublk => AttachMethod::Ublk,
            Way::Loop => AttachMethod::Loop,
        };
        let initiator = self.initiator.map_or_else(initiator_of_host, Ok)?;
        let targe = std::env::current_exe()
            .map_err(|error| Failure::Failed(format!("cannot find the program targe itself: {error}")))?;
        let run_dir = self.run_dir;
        let settings =
            NodeSettings { initiator, run_dir, method, protected_method, targe, iscsiadm, max_volumes };
        Node::open(settings).map_err(failed)
    }
}

/// Reads the name of this host's initiator from the file of open-iscsi.
fn initiator_of_host() -> Result<String, Failure> {
    let text = std::fs::read_to_string(INITIATOR_FILE).map_err(|error| {
        Failure::Failed(format!("--initiator is not given, and {INITIATOR_FILE}: {error}"))
    })?;
    let name = text.lines().find_map(|line| line.trim().strip_prefix("InitiatorName="));
    name.map(|name| name.trim().to_owned())
        .ok_or_else(|| Failure::Failed(format!("{INITIATOR_FILE} has no InitiatorName")))
}

pub(crate) fn run(args: CsiArgs) -> Result<(), Failure> {
    let CsiArgs { endpoint, driver_name, topology, max_volumes, controller, node } = args;
    let topology: BTreeMap<String, String> = topology.into_iter().collect();
    let ControllerArgs { pool, portal, target_prefix, socket, .. } = controller;
    if pool.is_none() && !node.node {
        return Err(Failure::Misused("choose --controller, --node or both".to_owned()));
    }
    let open = |pool: PathBuf| {
        let settings = Settings { target_prefix, portals: portal, max_volumes };
        let volumes = Volumes::open(&pool, Box::new(Daemon::new(socket.clone())), settings)?;
        look_for(Daemon::new(socket));
        Ok(volumes)
    };
    let driver = Driver {
        name: driver_name,
        version: env!("CARGO_PKG_VERSION"),
        endpoint,
        topology: Topology(topology),
        controller: pool.map(open).transpose().map_err(failed)?,
        node: node.node.then(|| node.open(max_volumes)).transpose()?,
        ready: service::ready,
    };
    driver.run().map_err(failed)
}

/// Says on stderr if the daemon does not answer. The driver serves all the same: a cluster starts the two in
/// any order. A thread asks, since a daemon can be slow.
fn look_for(daemon: Daemon) {
    let ask = move || {
        if let Err(why) = daemon.expect_answer() {
            eprintln!("targe: {why}; volumes cannot be made, published or removed before it answers");
        }
    };
    if let Err(why) = std::thread::Builder::new().name("daemon".to_owned()).spawn(ask) {
        eprintln!("targe: cannot look for the daemon: {why}");
    }
}

fn failed(error: CsiError) -> Failure {
    Failure::Failed(error.message)
}

/// Parses `KEY=VALUE` of a topology.
fn segment(text: &str) -> Result<(String, String), String> {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte);
    match text.split_once('=') {
        Some((key, value))
            if !key.is_empty()
                && key.bytes().all(|byte| is_plain(byte) || byte == b'/')
                && value.len() <= 63
                && value.bytes().all(is_plain) =>
        {
            Ok((key.to_owned(), value.to_owned()))
        }
        _ => Err("expected KEY=VALUE, such as example.org/zone=a".to_owned()),
    }
}

/// Parses a portal, and gives it a port.
fn portal(text: &str) -> Result<String, String> {
    let has_port = match text.rsplit_once(':') {
        Some((host, port)) => port.parse::<u16>().is_ok() && (!host.contains(':') || host.ends_with(']')),
        None => false,
    };
    let is_host = |byte: u8| byte.is_ascii_alphanumeric() || b"-.:[]".contains(&byte);
    if text.is_empty()
        || !text.bytes().all(is_host)
        || (!has_port && text.contains(':') && !text.ends_with(']'))
    {
        return Err("expected HOST, HOST:PORT or [IPV6]:PORT".to_owned());
    }
    Ok(if has_port { text.to_owned() } else { format!("{text}:3260") })
}

/// The name of a volume's target adds 35 characters.
const PREFIX_LEN_MAX: usize = 223 - 35;

fn target_prefix(text: &str) -> Result<String, String> {
    csi::publish::initiator_name(text)
        .filter(|name| name.len() <= PREFIX_LEN_MAX && name.starts_with("iqn."))
        .ok_or_else(|| "expected a name such as iqn.2026-11.example.san:csi".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn portals_have_ports() {
        for (text, whole) in [
            ("san", "san:3260"),
            ("192.0.2.7:3261", "192.0.2.7:3261"),
            ("[fd00::1]", "[fd00::1]:3260"),
            ("[fd00::1]:1", "[fd00::1]:1"),
        ] {
            assert_eq!(portal(text).unwrap(), whole);
        }
        for text in ["", "fd00::1", "fd00::1:3260", "a,b", "a b", "san:x", "san:70000"] {
            assert!(portal(text).is_err(), "{text}");
        }
    }

    #[test]
    fn segments_and_prefixes_are_checked() {
        assert_eq!(segment("example.org/zone=a").unwrap(), ("example.org/zone".to_owned(), "a".to_owned()));
        for text in ["zone", "=a", "zone=a b"] {
            assert!(segment(text).is_err(), "{text}");
        }
        assert_eq!(target_prefix("IQN.2026-11.example:csi").unwrap(), "iqn.2026-11.example:csi");
        assert!(target_prefix("naa.5000000000000000").is_err());
        assert!(target_prefix(&format!("iqn.2026-11.example:{}", "a".repeat(200))).is_err());
    }
}
