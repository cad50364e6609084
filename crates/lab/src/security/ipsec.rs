//! Tunnels of IPsec between the hosts of a bed: by the kernel if it has ESP, otherwise by strongSwan's ESP in
//! user space, whose daemon (charon) carries every packet through a TUN interface.

use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use aws_lc_rs::rand::{SecureRandom as _, SystemRandom};

use super::protection::{Protection, TunnelEnds};
use crate::bed::{Bed, INITIATOR_ADDRESS, Namespace, TARGET_ADDRESS};
use crate::experiment::LabError;
use crate::target_process::supervisor::Supervised;
use crate::target_process::{PrivateDirectory, TargetProcess};

/// The tunnels of a bed. Dropping them ends the daemons; what the kernel keeps ends with the hosts.
#[derive(Debug)]
pub(super) struct Tunnels {
    daemons: Vec<TargetProcess>,
    /// What carries the packets, for the report.
    pub(super) carrier: String,
    /// The protections that have no tunnel, and why.
    pub(super) absent: Vec<(Protection, String)>,
}

/// The protections by a tunnel.
const BY_TUNNEL: [Protection; 2] = [Protection::Ipsec, Protection::Ipsec3Des];

impl Tunnels {
    /// Opens the tunnels that this machine can have.
    ///
    /// # Errors
    /// [`LabError::System`] if the hosts cannot have further addresses.
    pub(super) fn open(bed: &Bed, stop: &AtomicBool) -> Result<Self, LabError> {
        for [initiator, target] in BY_TUNNEL.into_iter().filter_map(Protection::tunnel) {
            bed.add_addresses(initiator, target)?;
        }
        let mut tunnels = Self { daemons: Vec::new(), carrier: String::new(), absent: Vec::new() };
        match open_kernel(bed, Protection::Ipsec) {
            Ok(()) => {
                "the kernel's ESP".clone_into(&mut tunnels.carrier);
                if let Err(why) = open_kernel(bed, Protection::Ipsec3Des) {
                    tunnels.absent.push((Protection::Ipsec3Des, format!("the kernel refuses it: {why}")));
                }
            }
            Err(kernel) => match open_strongswan(bed, stop) {
                Ok(daemons) => {
                    tunnels.daemons = daemons;
                    let cubic = use_cubic(bed).err();
                    let note = cubic.map_or_else(String::new, |why| {
                        format!("; TCP through it uses the congestion control of this machine ({why})")
                    });
                    tunnels.carrier = format!(
                        "strongSwan's ESP in user space (kernel-libipsec), since the kernel has none{note}"
                    );
                }
                Err(why) => {
                    let why = format!("the kernel has no ESP ({kernel}), and {why}");
                    tunnels.absent.extend(BY_TUNNEL.map(|protection| (protection, why.clone())));
                }
            },
        }
        for protection in BY_TUNNEL {
            let is_open = tunnels.absent.iter().all(|(absent, _)| *absent != protection);
            if is_open && let Err(why) = bed.connect(protection.target_address()) {
                tunnels.absent.push((protection, format!("no packet passes the tunnel: {why}")));
            }
        }
        Ok(tunnels)
    }

    /// Returns the processes that carry packets.
    pub(super) fn processes(&self) -> Vec<u32> {
        self.daemons.iter().flat_map(TargetProcess::processes).collect()
    }

    /// Returns why a daemon does not run any more.
    pub(super) fn end(&mut self) -> Option<String> {
        self.daemons.iter_mut().find_map(TargetProcess::end).map(|end| format!("strongSwan: {end}"))
    }
}

/// Installs the states and policies of a tunnel on both hosts, by `ip xfrm`.
fn open_kernel(bed: &Bed, protection: Protection) -> Result<(), String> {
    let Some([initiator, target]) = protection.tunnel() else { return Ok(()) };
    let (algorithms, id) = match protection {
        Protection::Ipsec3Des => {
            (format!("auth hmac(sha1) 0x{} enc cbc(des3_ede) 0x{}", random_hex(20)?, random_hex(24)?), 2_u32)
        }
        _ => (format!("aead rfc4106(gcm(aes)) 0x{} 128", random_hex(36)?), 1),
    };
    // Each direction has its own SPI. Both could have their own keys too, but these live for minutes.
    let state = |source, destination, spi: u32| {
        format!(
            "xfrm state add src {source} dst {destination} proto esp spi {spi} reqid {id} mode tunnel {algorithms}\n"
        )
    };
    let states = [
        state(INITIATOR_ADDRESS, TARGET_ADDRESS, SPI_MIN + 2 * id),
        state(TARGET_ADDRESS, INITIATOR_ADDRESS, SPI_MIN + 2 * id + 1),
    ];
    let policy = |[source, destination]: TunnelEnds, direction: &str, [from, to]: TunnelEnds| {
        format!(
            "xfrm policy add src {source}/32 dst {destination}/32 dir {direction} tmpl src {from} dst {to} proto esp \
             reqid {id} mode tunnel\n"
        )
    };
    for (host, [own, other], [here, there]) in [
        (bed.initiator(), [initiator, target], [INITIATOR_ADDRESS, TARGET_ADDRESS]),
        (bed.target(), [target, initiator], [TARGET_ADDRESS, INITIATOR_ADDRESS]),
    ] {
        let commands = [
            states.concat(),
            policy([own, other], "out", [here, there]),
            policy([other, own], "in", [there, here]),
            format!("route add {other}/32 dev eth0 src {own} congctl cubic\n"),
        ];
        ip_batch(host, &commands.concat())?;
    }
    Ok(())
}

/// SPIs below are reserved (RFC 4303 §2.1).
const SPI_MIN: u32 = 256;

/// Lets TCP through the tunnels of strongSwan use CUBIC, as on the link itself: replaces the routes of the
/// daemons by the same with a metric more.
fn use_cubic(bed: &Bed) -> Result<(), String> {
    let route = |[own, other]: TunnelEnds| {
        format!(
            "route replace {other}/32 dev {TUN} table {ROUTE_TABLE} src {own} proto static congctl cubic\n"
        )
    };
    let ends: Vec<TunnelEnds> = BY_TUNNEL.into_iter().filter_map(Protection::tunnel).collect();
    let initiator: String = ends.iter().copied().map(route).collect();
    let target: String = ends.iter().map(|[initiator, target]| route([*target, *initiator])).collect();
    ip_batch(bed.initiator(), &initiator).and_then(|()| ip_batch(bed.target(), &target))
}

/// The interface of kernel-libipsec, and the table of strongSwan's routes.
const TUN: &str = "ipsec0";
const ROUTE_TABLE: u32 = 220;

/// Runs commands of `ip`, which reads them from its standard input: their arguments are keys.
fn ip_batch(host: &Namespace, commands: &str) -> Result<(), String> {
    let run = || {
        let mut command = Command::new("ip");
        command.args(["-batch", "-"]).stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::piped());
        let mut child = command.spawn()?;
        if let Some(mut stdin) = child.stdin.take() {
            // It ends at the first command that fails.
            let _ = stdin.write_all(commands.as_bytes());
        }
        child.wait_with_output()
    };
    let output =
        host.run(run).map_err(|why| why.to_string())?.map_err(|why| format!("cannot run ip: {why}"))?;
    if output.status.success() { Ok(()) } else { Err(first_line(&output.stderr)) }
}

fn first_line(messages: &[u8]) -> String {
    let text = String::from_utf8_lossy(messages);
    let line = text.lines().map(str::trim).find(|line| !line.is_empty());
    line.unwrap_or("it printed no message").to_owned()
}

fn random_hex(bytes: usize) -> Result<String, String> {
    let mut random = vec![0; bytes];
    SystemRandom::new().fill(&mut random).map_err(|_| "there are no random bytes".to_owned())?;
    Ok(random.iter().map(|byte| format!("{byte:02x}")).collect())
}

/// How long a daemon may take to start, and a tunnel to open.
const START_WITHIN: Duration = Duration::from_secs(10);
const POLL_INTERVAL: Duration = Duration::from_millis(50);

/// Where distributions keep the programs of strongSwan.
const FOLDERS: [&str; 5] =
    ["/usr/sbin", "/usr/local/sbin", "/usr/libexec/strongswan", "/usr/lib/strongswan", "/usr/lib/ipsec"];

/// Starts a daemon on each host and opens both tunnels.
fn open_strongswan(bed: &Bed, stop: &AtomicBool) -> Result<Vec<TargetProcess>, String> {
    let find = |name: &str| {
        let found = FOLDERS.iter().map(|folder| Path::new(folder).join(name)).find(|path| path.exists());
        found.ok_or_else(|| format!("strongSwan is not installed: there is no {name}"))
    };
    let (charon, swanctl) = (find("charon-systemd")?, find("swanctl")?);
    let secret = random_hex(32)?;
    let mut daemons = Vec::new();
    for is_initiator in [false, true] {
        let host = if is_initiator { bed.initiator() } else { bed.target() };
        let daemon = Daemon::start(host, &charon, &swanctl, is_initiator, &secret)?;
        daemon.wait_and_load(host, stop)?;
        if is_initiator {
            for child in BY_TUNNEL.map(Protection::name) {
                daemon.control(host, &["--initiate", "--child", child, "--timeout", "10"])?;
            }
        }
        daemons.push(daemon.process);
    }
    Ok(daemons)
}

/// A daemon of strongSwan and its program for commands.
struct Daemon {
    process: TargetProcess,
    swanctl: PathBuf,
    settings: PathBuf,
    connections: PathBuf,
    socket: String,
}

impl Daemon {
    fn start(
        host: &Namespace,
        charon: &Path,
        swanctl: &Path,
        is_initiator: bool,
        secret: &str,
    ) -> Result<Self, String> {
        let directory = PrivateDirectory::create().map_err(|why| why.to_string())?;
        let [settings, connections, vici] =
            ["strongswan.conf", "swanctl.conf", "vici"].map(|name| directory.path().join(name));
        let socket = format!("unix://{}", vici.display());
        std::fs::write(&settings, daemon_settings(&socket))
            .and_then(|()| std::fs::write(&connections, connection_settings(is_initiator, secret)))
            .map_err(|why| why.to_string())?;
        let supervised = Supervised {
            serve: "exec \"$CHARON\"".to_owned(),
            teardown: String::new(),
            variables: vec![
                ("CHARON".to_owned(), charon.display().to_string()),
                ("STRONGSWAN_CONF".to_owned(), settings.display().to_string()),
            ],
        };
        let process = supervised.start(Some(host), directory).map_err(|why| why.to_string())?;
        Ok(Self { process, swanctl: swanctl.to_owned(), settings, connections, socket })
    }

    /// Waits until the daemon answers, and loads the connection.
    fn wait_and_load(&self, host: &Namespace, stop: &AtomicBool) -> Result<(), String> {
        let deadline = Instant::now() + START_WITHIN;
        while let Err(why) = self.control(host, &["--stats"]) {
            if Instant::now() > deadline
                || stop.load(Ordering::Relaxed)
                || self.process.processes().is_empty()
            {
                return Err(format!("strongSwan does not start: {why}; {}", self.process.messages_now()));
            }
            std::thread::sleep(POLL_INTERVAL);
        }
        let file = self.connections.display().to_string();
        self.control(host, &["--load-all", "--noprompt", "--file", &file])
    }

    /// Gives the daemon a command.
    fn control(&self, host: &Namespace, arguments: &[&str]) -> Result<(), String> {
        let run = || {
            let mut command = Command::new(&self.swanctl);
            command.args(arguments).args(["--uri", &self.socket]);
            command.env("STRONGSWAN_CONF", &self.settings).stdin(Stdio::null()).output()
        };
        let output = host.run(run).map_err(|why| why.to_string())?.map_err(|why| why.to_string())?;
        if output.status.success() {
            return Ok(());
        }
        let messages = if output.stderr.is_empty() { &output.stdout } else { &output.stderr };
        Err(format!("swanctl {}: {}", arguments.join(" "), first_line(messages)))
    }
}

/// The settings of a daemon: a socket of its own, and ESP in user space. kernel-netlink is needed for
/// addresses and routes, and stands behind kernel-libipsec, which would not be tried otherwise. The plugins
/// with the fastest ciphers come first.
fn daemon_settings(socket: &str) -> String {
    format!(
        "charon {{
  load = random nonce aesni openssl aes sha1 sha2 hmac kdf gcm kernel-libipsec kernel-netlink socket-default vici
  install_virtual_ip = no
  retransmit_tries = 3
  plugins {{
    vici {{
      socket = {socket}
    }}
    kernel-libipsec {{
      allow_peer_ts = no
    }}
  }}
  filelog {{
    stderr {{
      default = 0
      flush_line = yes
    }}
  }}
}}
charon-systemd {{
  journal {{
    default = -1
  }}
}}
"
    )
}

/// The connection of a host to the other, with a tunnel for each protection.
fn connection_settings(is_initiator: bool, secret: &str) -> String {
    let (own, other) =
        if is_initiator { (INITIATOR_ADDRESS, TARGET_ADDRESS) } else { (TARGET_ADDRESS, INITIATOR_ADDRESS) };
    let tunnel = |protection: Protection| {
        let [initiator, target] = protection.tunnel()?;
        let (own, other) = if is_initiator { (initiator, target) } else { (target, initiator) };
        let proposal = if protection == Protection::Ipsec3Des { "3des-sha1" } else { "aes256gcm16" };
        let name = protection.name();
        Some(format!(
            "      {name} {{
        mode = tunnel
        local_ts = {own}/32
        remote_ts = {other}/32
        esp_proposals = {proposal}
        rekey_time = 0
        start_action = none
      }}
"
        ))
    };
    let tunnels: String = BY_TUNNEL.into_iter().filter_map(tunnel).collect();
    format!(
        "connections {{
  lab {{
    version = 2
    mobike = no
    encap = yes
    local_addrs = {own}
    remote_addrs = {other}
    proposals = aes256-sha256-ecp256
    rekey_time = 0
    local {{
      auth = psk
      id = {own}
    }}
    remote {{
      auth = psk
      id = {other}
    }}
    children {{
{tunnels}    }}
  }}
}}
secrets {{
  ike-lab {{
    id-a = {own}
    id-b = {other}
    secret = {secret}
  }}
}}
"
    )
}
