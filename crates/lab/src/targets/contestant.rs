//! A running target: starts it as its rival file says, and measures it.

use std::collections::BTreeMap;
use std::fs;
use std::io::{self, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use initiator::driver::ProtocolPlan;
use initiator::{Geometry, Url};
use iscsi::negotiate::DigestPolicy;
use rustix::process::{Pid, Signal, kill_process_group};

use crate::bed::{Bed, INITIATOR_ADDRESS, Namespace, TARGET_ADDRESS, to_f64};
use crate::bench::{BenchPlan, BenchReport};
use crate::client_load::{PATIENCE, geometry_of, job, load, run_on, seconds};
use crate::experiment::LabError;
use crate::plan::Digests;
use crate::target_process::supervisor::Supervised;
use crate::target_process::{PrivateDirectory, TargetProcess};

use super::conformance::Place;
use super::counting;
use super::plan::{TargetsPlan, Workload};
use super::rival::{Rival, search_path, variables};
use super::samples::{Counts, Sample};

/// The disk of each target, in bytes.
pub(super) const DISK_LEN: u64 = 256 << 20;

/// How long a target may take to start, and its commands to end.
const START_WITHIN: Duration = Duration::from_secs(20);
/// How long the command for the version may take.
const VERSION_WITHIN: Duration = Duration::from_secs(5);
const POLL_INTERVAL: Duration = Duration::from_millis(20);
/// A target that starts is looked at often, since the time until it listens is told.
const LISTEN_INTERVAL: Duration = Duration::from_millis(2);

/// The port of the first target.
const PORT: u16 = 3260;

/// The longest version and error in a report, in characters.
const TEXT_MAX: usize = 900;

/// Where targets run, and with what.
pub(super) struct Stage<'a> {
    pub(super) bed: &'a Bed,
    pub(super) program: &'a Path,
    /// The directory for the disks.
    pub(super) parent: PathBuf,
    pub(super) stop: &'a AtomicBool,
}

/// A running target.
#[derive(Debug)]
pub(super) struct Contestant {
    pub(super) rival: Rival,
    process: TargetProcess,
    address: SocketAddr,
    name: String,
    url: Url,
    geometry: Geometry,
    /// The resident memory before the first load; none of a kernel target.
    pub(super) idle_resident: Option<f64>,
    /// The time from the start of the process to the first connection that it accepts.
    pub(super) listens_after: Duration,
}

impl Contestant {
    /// Starts a target and waits until it serves its disk. `number` is its place among the targets.
    pub(super) fn start(rival: &Rival, stage: &Stage<'_>, number: u16) -> Result<Self, String> {
        let text = |why: &dyn std::fmt::Display| why.to_string();
        let directory = PrivateDirectory::create_in(&stage.parent).map_err(|why| text(&why))?;
        let address = SocketAddr::new(TARGET_ADDRESS.into(), PORT.saturating_add(number));
        // Kernel targets share their names with whatever else the machine serves.
        let name = format!("iqn.2026-01.com.example:{}-{}", rival.name, std::process::id());
        let disk = directory.path().join("disk");
        write_disk(&disk).map_err(|why| format!("cannot write its disk: {why}"))?;
        let values = BTreeMap::from([
            ("ADDRESS", TARGET_ADDRESS.to_string()),
            ("CLIENT", INITIATOR_ADDRESS.to_string()),
            ("PORT", address.port().to_string()),
            ("IQN", name.clone()),
            ("FILE", disk.display().to_string()),
            ("SIZE", DISK_LEN.to_string()),
            ("TARGE", stage.program.display().to_string()),
            ("PATH", search_path()),
        ]);
        let supervised = Supervised {
            serve: rival.file.serve.trim().to_owned(),
            teardown: rival.file.teardown.clone(),
            variables: variables(&values),
        };
        let host = stage.bed.target();
        if !rival.file.prepare.is_empty() {
            run(host, supervised.shell(&rival.file.prepare, &directory), &directory, START_WITHIN)?;
        }
        let started = Instant::now();
        let mut process = supervised.start(Some(host), directory).map_err(|why| text(&why))?;
        let deadline = Instant::now() + START_WITHIN;
        if !rival.file.serve.trim().is_empty() {
            wait_for_port(&mut process, stage, address, deadline)?;
        }
        let listens_after = started.elapsed();
        if !rival.file.setup.is_empty() {
            let directory = process.directory();
            run(host, supervised.shell(&rival.file.setup, directory), directory, START_WITHIN)
                .map_err(|why| process.end().unwrap_or(why))?;
        }
        let url = format!("iscsi://{address}/{name}/{}", rival.file.lun);
        let mut url = Url::parse(&url).map_err(|why| text(&why))?;
        url.endpoint.options.patience.get_or_insert(PATIENCE);
        let geometry = wait_for_disk(&mut process, stage, &url, deadline)?;
        let resident = (!process.processes().is_empty()).then(|| to_f64(process.resident()));
        let rival = rival.clone();
        let idle_resident = resident;
        let contestant = Self { rival, process, address, name, url, geometry, idle_resident, listens_after };
        contestant.pause(true);
        Ok(contestant)
    }

    /// Measures a workload once. Returns none if it was stopped, and why if the target failed.
    pub(super) fn measure(
        &mut self,
        stage: &Stage<'_>,
        plan: &TargetsPlan,
        workload: &Workload,
        seed: u64,
    ) -> Result<Option<(Sample, BenchReport)>, String> {
        self.pause(false);
        let before = self.process.processor_time().ok();
        let report = self.bench(stage, plan, workload, seed);
        let after = self.process.processor_time().ok();
        self.pause(true);
        let Some(report) = report? else { return Ok(None) };
        let spent = before.zip(after).map(|(before, after)| after.saturating_sub(before));
        match Sample::of(&report, workload.block, spent) {
            Some(sample) => Ok(Some((sample, report))),
            None => Err(self.failed("no command ended within the measurement")),
        }
    }

    /// Loads the target while system calls, context switches and memory are counted.
    pub(super) fn count(
        &mut self,
        stage: &Stage<'_>,
        plan: &TargetsPlan,
        workload: &Workload,
        seed: u64,
    ) -> Result<Option<Counts>, String> {
        self.pause(false);
        let counted = counting::count(&self.process, || {
            Ok(self.bench(stage, plan, workload, seed)?.map(|report| report.commands))
        });
        self.pause(true);
        counted.map_err(|why: String| self.failed(&why))
    }

    fn bench(
        &self,
        stage: &Stage<'_>,
        plan: &TargetsPlan,
        workload: &Workload,
        seed: u64,
    ) -> Result<Option<BenchReport>, String> {
        let load = self.plan(plan, workload, seed).map_err(|why| why.to_string())?;
        let bench = || crate::bench::run(&load, stage.stop);
        let report = run_on(Some(stage.bed), bench).map_err(|why| why.to_string())?;
        if stage.stop.load(Ordering::Relaxed) {
            return Ok(None);
        }
        let report = report.map_err(|why| why.to_string())?;
        match report.failure {
            Some(why) => Err(why),
            None => Ok(Some(report)),
        }
    }

    fn plan(&self, plan: &TargetsPlan, workload: &Workload, seed: u64) -> Result<BenchPlan, LabError> {
        let depth = usize::try_from(workload.depth).unwrap_or(1);
        let url = self.with_digests(workload.digests);
        let mut load = load(vec![job(&url, &self.geometry, depth)?], workload.block, depth);
        (load.read_percent, load.random, load.seed) = (workload.mix.0, workload.random, seed);
        (load.time, load.warmup) = (seconds(plan.seconds), seconds(plan.warmup));
        Ok(load)
    }

    fn with_digests(&self, digests: Digests) -> Url {
        let policy = |on: bool| if on { DigestPolicy::RequireCrc32c } else { DigestPolicy::RequireNone };
        let mut url = self.url.clone();
        let keys = &mut url.endpoint.options.keys;
        (keys.header_digest, keys.data_digest) = (policy(digests.header()), policy(digests.data()));
        url
    }

    /// Returns why the target accepts no login with these digests.
    pub(super) fn refuses(&mut self, stage: &Stage<'_>, digests: Digests) -> Option<String> {
        self.pause(false);
        let url = self.with_digests(digests);
        let found = run_on(Some(stage.bed), || geometry_of(&url)).and_then(|found| found);
        self.pause(true);
        found.err().map(|why| shortened(&why.to_string()))
    }

    /// Returns how a session logs in that does nothing.
    pub(super) fn idle_session(&self) -> Result<ProtocolPlan, LabError> {
        Ok(job(&self.url, &self.geometry, 1)?.session)
    }

    /// Returns the resident memory in bytes.
    pub(super) fn resident(&self) -> f64 {
        to_f64(self.process.resident())
    }

    /// Returns why the target failed: its end, if it has ended.
    pub(super) fn failed(&mut self, why: &str) -> String {
        // A target that dies closes its connections a moment before it is gone.
        let deadline = Instant::now() + Duration::from_millis(300);
        loop {
            if let Some(end) = self.process.end() {
                return shortened(&format!("{end} ({why})"));
            }
            if Instant::now() >= deadline {
                return shortened(why);
            }
            std::thread::sleep(POLL_INTERVAL);
        }
    }

    /// Returns why the target is not running any more.
    pub(super) fn end(&mut self) -> Option<String> {
        self.process.end().map(|why| shortened(&why))
    }

    /// Stops a target that takes processor time without load, or lets it continue.
    pub(super) fn pause(&self, paused: bool) {
        if self.rival.file.pause {
            self.process.pause(paused);
        }
    }

    /// Returns where the target is.
    pub(super) fn place(&self) -> Place {
        Place { portal: self.address.to_string(), name: self.name.clone(), lun: self.rival.file.lun }
    }
}

/// Returns the first line of the version, if the command prints one.
pub(super) fn version(rival: &Rival, stage: &Stage<'_>) -> Option<String> {
    let directory = PrivateDirectory::create().ok()?;
    let values = [("TARGE", stage.program.display().to_string()), ("PATH", search_path())];
    let variables = values.map(|(name, value)| (name.to_owned(), value)).into();
    let supervised = Supervised { variables, ..Supervised::default() };
    let command = supervised.shell(&rival.file.version, &directory);
    let text = run(stage.bed.target(), command, &directory, VERSION_WITHIN).ok()?;
    let line = text.lines().map(str::trim).find(|line| !line.is_empty())?;
    Some(shortened(line))
}

/// Writes a disk full: blocks that were never written would cost less to read.
fn write_disk(path: &Path) -> io::Result<()> {
    let mut file = fs::File::create(path)?;
    let chunk = vec![0x5a; 1 << 20];
    for _ in 0..DISK_LEN >> 20 {
        file.write_all(&chunk)?;
    }
    Ok(())
}

/// Runs commands on a host until they end, and returns what they print; the error is what they printed last.
fn run(
    host: &Namespace,
    mut command: Command,
    directory: &PrivateDirectory,
    within: Duration,
) -> Result<String, String> {
    let text = |why: &dyn std::fmt::Display| why.to_string();
    let path = directory.path().join("commands.log");
    let log = fs::File::create(&path).map_err(|why| text(&why))?;
    let errors = log.try_clone().map_err(|why| text(&why))?;
    command.process_group(0).stdin(Stdio::null()).stdout(log).stderr(errors);
    let spawned = host.run(|| command.spawn()).map_err(|why| text(&why))?;
    let mut child = spawned.map_err(|why| text(&why))?;
    let deadline = Instant::now() + within;
    let status = loop {
        match child.try_wait().map_err(|why| text(&why))? {
            Some(status) => break Some(status),
            None if Instant::now() >= deadline => break None,
            None => std::thread::sleep(POLL_INTERVAL),
        }
    };
    let group = i32::try_from(child.id()).ok().and_then(Pid::from_raw);
    if status.is_none() {
        let _ = group.map(|group| kill_process_group(group, Signal::KILL));
        let _ = child.wait();
    }
    let printed = String::from_utf8_lossy(&fs::read(&path).unwrap_or_default()).into_owned();
    let last = printed.lines().rev().find(|line| !line.trim().is_empty()).unwrap_or("no message");
    match status {
        Some(status) if status.success() => Ok(printed),
        Some(status) => Err(shortened(&format!("its commands failed ({status}): {last}"))),
        None => Err(shortened(&format!("its commands took more than {} s: {last}", within.as_secs()))),
    }
}

fn wait_for_port(
    process: &mut TargetProcess,
    stage: &Stage<'_>,
    address: SocketAddr,
    deadline: Instant,
) -> Result<(), String> {
    loop {
        let is_open = || TcpStream::connect_timeout(&address, Duration::from_secs(1)).is_ok();
        if stage.bed.target().run(is_open).map_err(|why| why.to_string())? {
            return Ok(());
        }
        pause_or_give_up(process, stage, deadline, LISTEN_INTERVAL, "it does not listen")?;
    }
}

fn wait_for_disk(
    process: &mut TargetProcess,
    stage: &Stage<'_>,
    url: &Url,
    deadline: Instant,
) -> Result<Geometry, String> {
    loop {
        let why = match run_on(Some(stage.bed), || geometry_of(url)) {
            Ok(Ok(geometry)) if geometry.bytes() >= DISK_LEN => return Ok(geometry),
            Ok(Ok(geometry)) => format!("its disk has {} bytes, not {DISK_LEN}", geometry.bytes()),
            Ok(Err(why)) | Err(why) => why.to_string(),
        };
        pause_or_give_up(process, stage, deadline, POLL_INTERVAL, &why)?;
    }
}

fn pause_or_give_up(
    process: &mut TargetProcess,
    stage: &Stage<'_>,
    deadline: Instant,
    interval: Duration,
    why: &str,
) -> Result<(), String> {
    if let Some(end) = process.end() {
        return Err(shortened(&end));
    }
    if Instant::now() >= deadline || stage.stop.load(Ordering::Relaxed) {
        return Err(shortened(&format!("{why}; {}", process.messages_now())));
    }
    std::thread::sleep(interval);
    Ok(())
}

fn shortened(text: &str) -> String {
    text.chars().take(TEXT_MAX).collect()
}
