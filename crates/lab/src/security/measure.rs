//! Measures: a bare echo and the load of a LUN, through each protection.

use std::fs::File;
use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, mpsc};
use std::time::Duration;

use initiator::endpoint::Endpoint;
use initiator::proxy::{AeadProxy, AeadUpstream};
use initiator::{EnvSecrets, Geometry, Url};
use iscsi::negotiate::DigestPolicy;
use nix::sys::resource::{UsageWho, getrusage};
use nix::sys::time::TimeValLike as _;
use security::Level;

use super::certificate::SelfSigned;
use super::ipsec::Tunnels;
use super::plan::{Access, SecurityPlan};
use super::protection::{
    ENCRYPT, PASSWORD_TARGET_NAME, PORT, PROXY_PORT, Protection, TARGET_NAME, TLS_PORT, USER,
};
use super::records::RecordStream;
use super::samples::{AbsentRow, Cell, Counted, Sample};
use crate::bed::{Bed, Calibration, EchoPlan, Exchange, LinkPlan, TARGET_ADDRESS, echo, to_f64};
use crate::bench::{BenchPlan, Histogram, Job, Negotiated};
use crate::client_load::{self, explain_rights, seconds};
use crate::experiment::LabError;
use crate::target_process::{PrivateDirectory, ServedTarget, SplitTime, split_time};

/// The RAM disk, in bytes, and the commands that fill it.
const DISK_LEN: u64 = 128 << 20;
const FILL_BLOCK: u32 = 1 << 20;
const FILL_DEPTH: usize = 8;

/// The duration of a calibration of the link, in seconds.
const CALIBRATION_S: f64 = 0.7;

/// The random bytes of the password.
const PASSWORD_BYTES: usize = 16;

/// How long a TLS connection and each of its calls may take.
const STALL_MAX: Duration = Duration::from_secs(10);

/// How often the commands under way pass a shaped link at least before the measurement and in it.
const WARMUP_FILLS: f64 = 2.0;
const MEASURED_FILLS: f64 = 6.0;

/// The hosts, the tunnels between them, and the target.
pub(super) struct TestPath {
    // What runs on the hosts ends before them.
    _proxy: Option<AeadProxy>,
    target: ServedTarget,
    pub(super) tunnels: Option<Tunnels>,
    files: LoginFiles,
    bed: Bed,
    geometry: Geometry,
}

/// The files that logins need at both ends, which the directory of the target contains.
#[derive(Debug)]
struct LoginFiles {
    certificate: PathBuf,
    key: PathBuf,
    /// The password of [`USER`], for the initiator.
    password: PathBuf,
    /// The record of that password, for the target.
    users: PathBuf,
}

/// The result of a measurement.
pub(super) struct Found {
    pub(super) sample: Sample,
    pub(super) connections_lost: u64,
    /// The I/O engine of the initiator, and what its session agreed on, if it took part.
    pub(super) session: Option<(String, Vec<Negotiated>)>,
}

impl TestPath {
    /// Makes the hosts and the tunnels, and serves a RAM disk, which is written full, since blocks that were
    /// never written cost less to read.
    pub(super) fn open(program: &Path, plan: &SecurityPlan, stop: &AtomicBool) -> Result<Self, LabError> {
        let bed = Bed::create().map_err(|why| explain_rights(why, ""))?;
        let has_tunnel = plan.protection.iter().any(|protection| protection.tunnel().is_some());
        let tunnels = if has_tunnel { Some(Tunnels::open(&bed, stop)?) } else { None };
        let system = |what: &str| {
            let what = what.to_owned();
            move |why: io::Error| LabError::System { what, why }
        };
        let directory = PrivateDirectory::create().map_err(system("create a directory"))?;
        let files = LoginFiles::in_directory(directory.path());
        files.make_certificate().map_err(system("make a certificate"))?;
        files.make_password(program)?;
        let address = SocketAddr::from((TARGET_ADDRESS, PORT));
        let target = ServedTarget::start_configured(
            bed.target(),
            program,
            directory,
            &configuration(&files),
            address,
        )?;
        let url = url_of(&files, Protection::Plain)?;
        let geometry = bed.initiator().run(|| client_load::geometry_of(&url))??;
        let has_proxy = plan.protection.contains(&Protection::AeadProxy);
        let proxy = if has_proxy { Some(bed.initiator().run(|| start_proxy(&files))??) } else { None };
        let path = Self { _proxy: proxy, target, tunnels, files, bed, geometry };
        path.fill(stop)?;
        Ok(path)
    }

    /// Returns which protections of the plan cannot be measured, and why.
    pub(super) fn absent(&self, plan: &SecurityPlan) -> Vec<AbsentRow> {
        let mut absent = Vec::new();
        for protection in plan.protection.iter().copied() {
            let mut failed = self.tunnels.iter().flat_map(|tunnels| &tunnels.absent);
            if let Some((_, why)) = failed.find(|(failed, _)| *failed == protection) {
                absent.push(AbsentRow { protection, why: why.clone() });
            }
        }
        absent
    }

    fn fill(&self, stop: &AtomicBool) -> Result<(), LabError> {
        let mut plan =
            client_load::load(vec![self.job(Protection::Plain, FILL_DEPTH)?], FILL_BLOCK, FILL_DEPTH);
        let count = DISK_LEN / u64::from(FILL_BLOCK);
        (plan.random, plan.read_percent, plan.count) = (false, 0, Some(count));
        let report = self.bed.initiator().run(|| crate::bench::run(&plan, stop))?;
        report.map(drop).map_err(|why| LabError::Target(format!("cannot fill the disk: {why}")))
    }

    /// Gives the bed this link. Returns its calibration if `fresh`: the link was not calibrated before.
    pub(super) fn set_link(&mut self, link: LinkPlan, fresh: bool) -> Result<Option<Calibration>, LabError> {
        if self.bed.link() != link {
            self.bed.shape(link)?;
        }
        if fresh { self.bed.calibrate(CALIBRATION_S).map(Some) } else { Ok(None) }
    }

    /// Measures a workload once. Returns none if it was stopped, and why it failed if it did.
    pub(super) fn measure(
        &mut self,
        plan: &SecurityPlan,
        cell: &Cell,
        protection: Protection,
        seed: u64,
        stop: &AtomicBool,
    ) -> Result<Option<Found>, LabError> {
        let found = match cell.access {
            Access::Socket => self.measure_socket(plan, cell, protection),
            Access::Read | Access::Write => self.measure_iscsi(plan, cell, protection, seed, stop),
        };
        if stop.load(Ordering::Relaxed) {
            return Ok(None);
        }
        found.map(Some).map_err(|why| {
            let end = self.target.end().or_else(|| self.tunnels.as_mut().and_then(Tunnels::end));
            let name = format!("{}, {}: {why}", protection.title(), cell.workload());
            LabError::Target(end.map_or_else(|| name.clone(), |end| format!("{end} ({name})")))
        })
    }

    fn measure_socket(
        &self,
        plan: &SecurityPlan,
        cell: &Cell,
        protection: Protection,
    ) -> Result<Found, LabError> {
        let (warmup, span) = durations(plan, cell);
        let [block, depth] = [cell.block, cell.depth].map(|number| usize::try_from(number).unwrap_or(1));
        let echo_plan = EchoPlan { exchange: Exchange::read(block), depth, warmup, span };
        let (client, server) = self.streams(protection)?;
        let before = self.spent(false)?;
        let (mut latency, mut answers) = (Histogram::default(), 0);
        let answered = |span| {
            latency.record(span);
            answers += 1;
        };
        let report = echo(client, server, echo_plan, answered)
            .map_err(|why| LabError::System { what: "measure a bare echo".to_owned(), why })?;
        let sample = Sample::of(&Counted {
            bytes: to_f64(report.bytes),
            seconds: report.seconds,
            commands: answers,
            latency: &latency,
            bytes_in_all: to_f64(report.bytes_in_all),
            spent: self.spent(false)?.since(before),
        });
        let sample = sample.ok_or_else(nothing_ended)?;
        Ok(Found { sample, connections_lost: 0, session: None })
    }

    /// Returns both ends of a connection through a protection.
    fn streams(&self, protection: Protection) -> Result<(Stream, Stream), LabError> {
        let (client, server) = match protection {
            Protection::Tls => return self.tls_streams(),
            _ => self.bed.connect(protection.target_address())?,
        };
        let level = match protection {
            Protection::AeadEncrypt => Level::Encrypt,
            Protection::AeadIntegrity => Level::Integrity,
            _ => return Ok((Box::new(client), Box::new(server))),
        };
        let pair = RecordStream::pair(client, server, level);
        let (client, server) = pair.map_err(|why| LabError::System { what: "make keys".to_owned(), why })?;
        Ok((Box::new(client), Box::new(server)))
    }

    /// Connects through a TLS portal and a TLS client on the two hosts: those of the target and of the
    /// initiator library, each with its thread.
    fn tls_streams(&self) -> Result<(Stream, Stream), LabError> {
        let failed = |why: tls::TlsError| LabError::Target(format!("TLS: {why}"));
        let system = |why: io::Error| LabError::System { what: "connect by TLS".to_owned(), why };
        let server =
            tls::ServerSettings::read(&self.files.certificate, &self.files.key, None).map_err(failed)?;
        let trusted = tls::ClientSettings::read(Some(&self.files.certificate), None).map_err(failed)?;
        let (sender, accepted) = mpsc::channel();
        let deliver: Arc<tls::Deliver> = Arc::new(move |arrived| drop(sender.send(arrived)));
        let start = || {
            let listener = TcpListener::bind((TARGET_ADDRESS, 0))?;
            Ok((listener.local_addr()?, tls::Portal::start(listener, server, deliver)?))
        };
        let (address, _portal) = self.bed.target().run(start)?.map_err(system)?;
        let name = TARGET_ADDRESS.to_string();
        let connect = || tls::connect(address, &name, &trusted, STALL_MAX, drop);
        let (client, _) = self.bed.initiator().run(connect)?.map_err(failed)?;
        let arrived = accepted.recv_timeout(STALL_MAX).map_err(|_| system(io::ErrorKind::TimedOut.into()))?;
        let server = arrived.map_err(|refused| failed(refused.why))?.socket;
        for end in [&client, &server] {
            let limited =
                end.set_read_timeout(Some(STALL_MAX)).and_then(|()| end.set_write_timeout(Some(STALL_MAX)));
            limited.map_err(system)?;
        }
        Ok((Box::new(client), Box::new(server)))
    }

    fn measure_iscsi(
        &self,
        plan: &SecurityPlan,
        cell: &Cell,
        protection: Protection,
        seed: u64,
        stop: &AtomicBool,
    ) -> Result<Found, LabError> {
        let load = self.load(plan, cell, protection, seed)?;
        let before = self.spent(true)?;
        let report = self.bed.initiator().run(|| crate::bench::run(&load, stop))?;
        let report = report.map_err(|why| LabError::Target(why.to_string()))?;
        if let Some(why) = report.failure {
            return Err(LabError::Target(why));
        }
        let total = report.total();
        let sample = Sample::of(&Counted {
            bytes: report.bytes_moved,
            seconds: report.seconds,
            // The latency of the parts of a block is not that of the block.
            commands: if load.block_bytes == cell.block { total.count } else { 0 },
            latency: &total.latency,
            bytes_in_all: to_f64(report.commands) * f64::from(load.block_bytes),
            spent: self.spent(true)?.since(before),
        });
        let sample = sample.ok_or_else(nothing_ended)?;
        let session = Some((report.engine, report.negotiated));
        Ok(Found { sample, connections_lost: report.connections_lost, session })
    }

    fn load(
        &self,
        plan: &SecurityPlan,
        cell: &Cell,
        protection: Protection,
        seed: u64,
    ) -> Result<BenchPlan, LabError> {
        let most = u64::from(self.geometry.transfer_max) * u64::from(self.geometry.block_size().bytes());
        let (bytes, depth) = split(cell, most);
        let mut load = client_load::load(vec![self.job(protection, depth)?], bytes, depth);
        load.random = false;
        load.read_percent = if cell.access == Access::Read { 100 } else { 0 };
        (load.warmup, load.time) = durations(plan, cell);
        load.seed = seed;
        Ok(load)
    }

    fn job(&self, protection: Protection, depth: usize) -> Result<Job, LabError> {
        client_load::job(&url_of(&self.files, protection)?, &self.geometry, depth)
    }

    /// Returns the processor time so far of this process and of the programs that carry packets, and of the
    /// target if it takes part.
    fn spent(&self, with_target: bool) -> Result<SplitTime, LabError> {
        let own = getrusage(UsageWho::RUSAGE_SELF)
            .map_err(|why| LabError::System { what: "read the usage".to_owned(), why: why.into() })?;
        let seconds =
            |time: nix::sys::time::TimeVal| to_f64(u64::try_from(time.num_microseconds()).unwrap_or(0)) / 1e6;
        let [user, system] = [own.user_time(), own.system_time()].map(seconds);
        let own = SplitTime { user, system, unsure: 0.0 };
        let carriers = self.tunnels.iter().flat_map(Tunnels::processes);
        let target = if with_target { self.target.processes() } else { Vec::new() };
        // A process that has ended is found by the measurement itself.
        let others = carriers.chain(target).filter_map(|process| split_time(process).ok());
        Ok(std::iter::once(own).chain(others).sum())
    }
}

/// One end of a connection.
type Stream = Box<dyn ReadWrite + Send>;

trait ReadWrite: Read + Write {}

impl<S: Read + Write> ReadWrite for S {}

impl LoginFiles {
    fn in_directory(directory: &Path) -> Self {
        let [certificate, key, password, users] =
            ["portal.crt", "portal.key", "password", "users"].map(|name| directory.join(name));
        Self { certificate, key, password, users }
    }

    fn make_certificate(&self) -> io::Result<()> {
        let made = SelfSigned::create(TARGET_ADDRESS).map_err(cipher_library_failed)?;
        std::fs::write(&self.certificate, made.certificate)?;
        write_private(&self.key, &made.key)
    }

    /// Makes a password and, by `program passwd`, its record. The record costs little to check: the login is
    /// within the processor time that is measured.
    fn make_password(&self, program: &Path) -> Result<(), LabError> {
        let system = |why| LabError::System { what: "make a password".to_owned(), why };
        let mut random = [0; PASSWORD_BYTES];
        aws_lc_rs::rand::fill(&mut random).map_err(cipher_library_failed).map_err(system)?;
        let line: String = random.iter().map(|byte| format!("{byte:02x}")).chain(["\n".to_owned()]).collect();
        write_private(&self.password, &line).map_err(system)?;
        let password = File::open(&self.password).map_err(system)?;
        let mut command = Command::new(program);
        command.arg("passwd").arg(&self.users).args(["--user", USER, "--memory", "1M", "--passes", "1"]);
        // Ctrl-C at a terminal ends the experiment in its own way.
        let output = command.process_group(0).stdin(password).output().map_err(system)?;
        if output.status.success() {
            return Ok(());
        }
        let messages = String::from_utf8_lossy(&output.stderr);
        Err(LabError::Target(format!("cannot make a password record: {}", messages.trim())))
    }
}

fn cipher_library_failed(_: aws_lc_rs::error::Unspecified) -> io::Error {
    io::Error::other("the cipher library failed")
}

fn write_private(path: &Path, text: &str) -> io::Result<()> {
    use std::os::unix::fs::OpenOptionsExt as _;
    let mut file = std::fs::OpenOptions::new().write(true).create_new(true).mode(0o600).open(path)?;
    file.write_all(text.as_bytes())
}

/// Starts a proxy on the host of this thread, in this process, so that its processor time is counted.
fn start_proxy(files: &LoginFiles) -> Result<AeadProxy, LabError> {
    let failed = |why: String| LabError::Target(format!("the proxy: {why}"));
    let password = percent_encoded(&files.password);
    let portal = format!("iscsi://{USER}@{TARGET_ADDRESS}:{PORT}?auth=opaque&password_file={password}");
    let endpoint = Endpoint::parse(&portal).map_err(|why| failed(why.to_string()))?;
    let upstream = AeadUpstream::plan(&endpoint, &EnvSecrets, STALL_MAX);
    let upstream = upstream.map_err(|why| failed(why.to_string()))?;
    let mut upstream = upstream.ok_or_else(|| failed("the portal has no password login".to_owned()))?;
    upstream.plan.aead_digests = ENCRYPT;
    let listen = || TcpListener::bind((Ipv4Addr::LOCALHOST, PROXY_PORT));
    // A connection that fails is an error of the measurement itself.
    let started = listen().and_then(|listener| AeadProxy::start(listener, upstream, drop));
    started.map_err(|why| LabError::System { what: "start a proxy".to_owned(), why })
}

/// Returns the configuration of the target process: one portal in the clear, which the tunnels lead to as
/// well, one with TLS, and two targets that export the same disk, without a login and with a password.
fn configuration(files: &LoginFiles) -> String {
    let everywhere = Ipv4Addr::UNSPECIFIED;
    format!(
        "[[portal]]\nlisten = \"{everywhere}:{PORT}\"\n\n[[portal]]\nlisten = \"{everywhere}:{TLS_PORT}\"\n\
         tls_certificate = {:?}\ntls_key = {:?}\n\n[[lun]]\nname = \"disk\"\ntype = \"ram\"\nsize = {DISK_LEN}\n\n\
         [[target]]\nname = \"{TARGET_NAME}\"\n[[target.lun]]\nshare = \"disk\"\n\n\
         [[target]]\nname = \"{PASSWORD_TARGET_NAME}\"\n[target.auth]\npassword_file = {:?}\n\
         [target.session]\nprotection = \"integrity\"\n[[target.lun]]\nshare = \"disk\"\n",
        files.certificate, files.key, files.users
    )
}

/// Returns the URL of the LUN through a protection. No session uses a CRC32C, and those with AEAD digests
/// offer only the digest that is measured.
fn url_of(files: &LoginFiles, protection: Protection) -> Result<Url, LabError> {
    let login = protection.login();
    let query = login
        .query
        .replace("{ca}", &percent_encoded(&files.certificate))
        .replace("{password}", &percent_encoded(&files.password));
    let user = login.user.map(|user| format!("{user}@")).unwrap_or_default();
    let text = format!("iscsi://{user}{}:{}/{}/0?{query}", login.address, login.port, login.target);
    let mut url = Url::parse(text.trim_end_matches('?')).map_err(|why| LabError::Target(why.to_string()))?;
    let options = &mut url.endpoint.options;
    options.patience.get_or_insert(client_load::PATIENCE);
    if login.digests.is_empty() {
        options.keys.header_digest = DigestPolicy::RequireNone;
        options.keys.data_digest = DigestPolicy::RequireNone;
    } else {
        options.keys.aead_digests = login.digests;
    }
    Ok(url)
}

fn percent_encoded(path: &Path) -> String {
    use std::os::unix::ffi::OsStrExt as _;
    let encoded = |byte: &u8| match byte {
        b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'/' | b'.' | b'-' | b'_' => char::from(*byte).to_string(),
        _ => format!("%{byte:02X}"),
    };
    path.as_os_str().as_bytes().iter().map(encoded).collect()
}

fn nothing_ended() -> LabError {
    LabError::Target("no command ended within the measurement".to_owned())
}

/// Returns how long a workload is loaded before its measurement and in it. While the commands of the start
/// fill the link, it is not in the state that is measured.
pub(super) fn durations(plan: &SecurityPlan, cell: &Cell) -> (Duration, Duration) {
    let under_way = to_f64((u64::from(cell.depth) * u64::from(cell.block)) << 3);
    let filled = cell.link_plan().rate_bits.map_or(0.0, |bits| under_way / to_f64(bits));
    (seconds(plan.warmup.max(WARMUP_FILLS * filled)), seconds(plan.seconds.max(MEASURED_FILLS * filled)))
}

/// Returns the bytes of a command and how many commands are under way, if one command moves at most `most`
/// bytes: as hosts do, a longer block is split into commands that are under way together.
fn split(cell: &Cell, most: u64) -> (u32, usize) {
    let bytes = u32::try_from(most).map_or(cell.block, |most| cell.block.min(most));
    let depth = cell.depth * cell.block.div_ceil(bytes.max(1));
    (bytes, usize::try_from(depth).unwrap_or(1))
}

#[cfg(test)]
mod tests {
    use iscsi::aead::AeadDigest;

    use super::*;
    use crate::plan::Link;

    fn files() -> LoginFiles {
        LoginFiles::in_directory(Path::new("/tmp/a directory"))
    }

    #[test]
    fn blocks_beyond_the_longest_command_are_split() {
        let cell =
            |block, depth| Cell { link: Link::Unshaped, mtu: 1500, access: Access::Read, block, depth };
        assert_eq!(split(&cell(4 << 20, 2), 1 << 20), (1 << 20, 8));
        assert_eq!(split(&cell(1 << 20, 8), 1 << 20), (1 << 20, 8));
        assert_eq!(split(&cell(4 << 20, 2), u64::MAX), (4 << 20, 2));
    }

    #[test]
    fn sessions_with_aead_offer_only_the_digest_that_is_measured() {
        for (protection, level, name) in [
            (Protection::AeadEncrypt, Level::Encrypt, "Y-org.targe.aes-256-gcm"),
            (Protection::AeadIntegrity, Level::Integrity, "Y-org.targe.aes-256-gcm.integrity"),
        ] {
            let url = url_of(&files(), protection).unwrap();
            let keys = &url.endpoint.options.keys;
            let names: Vec<_> = keys.aead_digests.iter().copied().map(AeadDigest::name).collect();
            assert_eq!((keys.min_protection, names), (level, vec![name]));
            let password = url.endpoint.options.password_file.as_deref();
            assert_eq!(password, Some("/tmp/a directory/password"));
            assert_eq!(
                url.to_string(),
                format!("iscsi://{USER}@{TARGET_ADDRESS}:{PORT}/{PASSWORD_TARGET_NAME}/0")
            );
        }
    }

    #[test]
    fn other_sessions_have_no_digest_and_no_user() {
        for protection in [Protection::Plain, Protection::Tls, Protection::Ipsec, Protection::Ipsec3Des] {
            let url = url_of(&files(), protection).unwrap();
            let keys = &url.endpoint.options.keys;
            assert_eq!(keys.min_protection, Level::None);
            assert_eq!([keys.header_digest, keys.data_digest], [DigestPolicy::RequireNone; 2]);
            assert!(!url.to_string().contains('@'), "{url}");
        }
    }
}
