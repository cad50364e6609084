//! Measures: loads the disks of one target over each protocol.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use initiator::{Geometry, Url};
use iscsi::negotiate::DigestPolicy;
use netem::probability::Probability;
use nix::sys::resource::{UsageWho, getrusage};

use super::aoe::{self, AoeLoad};
use super::copies::{CopyFolder, CopyStage};
use super::plan::{HyperScsiPlan, STRIPE_LUNS, Workload};
use super::samples::{Bounds, Cell, Disturbance, Protocol, Sample};
use crate::bed::{Bed, LinkPlan, OtherTraffic, Relay, frame_rate, is_not_permitted, packets_sent, to_f64};
use crate::bench::{BenchPlan, BenchReport, Job, Negotiated};
use crate::client_load::{self, seconds};
use crate::experiment::LabError;
use crate::target_process::{ServedTarget, TargetProcess, encrypted_group, voluntary_switches};
use crate::targets::disk_directory;

/// LUN 0 is the one disk, and those behind it are the stripe. Lengths in bytes.
const DISK_LEN: u64 = 128 << 20;
const STRIPE_LUN_LEN: u64 = 16 << 20;

/// The group of the target's HyperSCSI port.
const GROUP: &str = "lab";

/// Without an answer of the target, the disk of a LUN fails, so that no copy waits for ever.
const WITHOUT_ANSWER: &str = "timeout=10";

/// The commands that fill the disks.
const FILL_BLOCK: u32 = 1 << 20;
const FILL_DEPTH: usize = 8;

/// The link of the relayed hosts while the disks are filled: one with a limit, since the relay forwards
/// single frames.
const FILL_LINK: LinkPlan = LinkPlan { rate_bits: Some(1_000_000_000), ..LinkPlan::DEFAULT };

/// The duration of a calibration by TCP, and of one by bare frames, of a link with a rate limit: what waits
/// in the buffers of a socket at the start is less than 1 % of what it counts at 1 Gbit/s.
const CALIBRATION: Duration = Duration::from_secs(2);
/// The same of a link without one, which is compared with nothing.
const UNLIMITED_CALIBRATION: Duration = Duration::from_millis(600);

/// Where frames are lost, a measurement takes so many times longer: single timeouts make it uneven.
const LONGER_WITH_LOSS: f64 = 3.0;

/// The hosts without a relay, and those with one.
pub(super) struct TestPaths {
    program: PathBuf,
    direct: TestPath,
    relayed: Option<(TestPath, Relay)>,
    /// The loss of the relay and its seed.
    loss: Option<(f64, u64)>,
}

/// Two hosts and the target on one of them.
struct TestPath {
    // The target ends before its host.
    target: ServedTarget,
    bed: Bed,
    /// The name of the target in URLs.
    name: String,
    disk: Geometry,
    stripe: Geometry,
    /// The target of ATA over Ethernet, and the link that it was started on: it asks for the MTU once.
    vblade: Option<(LinkPlan, TargetProcess)>,
}

/// The result of a measurement.
pub(super) struct Found {
    pub(super) sample: Sample,
    pub(super) connections_lost: u64,
    pub(super) engine: String,
    pub(super) negotiated: Vec<Negotiated>,
}

impl TestPaths {
    /// Opens the path without a relay.
    pub(super) fn open(
        program: &Path,
        plan: &HyperScsiPlan,
        folder: Option<&CopyFolder>,
        stop: &AtomicBool,
    ) -> Result<Self, LabError> {
        let bed = Bed::create().map_err(explain_rights)?;
        let luns = folder.map(CopyFolder::luns);
        let has_stripe = plan.workload.iter().chain(&plan.disturbed_workload).any(Workload::is_striped);
        let files = luns.as_ref().map_or([].as_slice(), |luns| luns);
        let direct = TestPath::open(bed, program, (has_stripe, files), stop)?;
        Ok(Self { program: program.to_owned(), direct, relayed: None, loss: None })
    }

    /// Gives the path of a workload its link and its loss. The relay is created when it is used first.
    pub(super) fn prepare(
        &mut self,
        plan: &HyperScsiPlan,
        cell: &Cell,
        seed: u64,
        stop: &AtomicBool,
    ) -> Result<(), LabError> {
        let Disturbance::Loss(percent) = cell.disturbance else { return self.direct.shape(cell) };
        if self.relayed.is_none() {
            let (mut bed, mut relay) = Bed::create_relayed().map_err(explain_rights)?;
            bed.shape(FILL_LINK)?;
            relay.lose(Probability::NEVER, seed)?;
            let has_stripe = plan.disturbed_workload.iter().any(Workload::is_striped);
            let path = TestPath::open(bed, &self.program, (has_stripe, &[]), stop)?;
            self.relayed = Some((path, relay));
        }
        if let Some((path, relay)) = &mut self.relayed {
            path.shape(cell)?;
            if self.loss != Some((percent, seed)) {
                self.loss = Some((percent, seed));
                relay.lose(probability(percent), seed)?;
            }
        }
        Ok(())
    }

    /// Measures what the link of the path without a relay carries bare.
    pub(super) fn bounds(&self) -> Result<Bounds, LabError> {
        let bed = &self.direct.bed;
        let is_limited = bed.link().rate_bits.is_some();
        let span = if is_limited { CALIBRATION } else { UNLIMITED_CALIBRATION };
        let (tcp, frames) = (bed.calibrate(span.as_secs_f64())?, frame_rate(bed, 0, span)?);
        let memory = usize::try_from(DISK_LEN).unwrap_or(0);
        let disk_frames = if is_limited { None } else { Some(frame_rate(bed, memory, span)?) };
        Ok(Bounds { link: bed.link(), tcp, frames, disk_frames })
    }

    /// Returns what the copies of files use.
    pub(super) fn copy_stage<'a>(&'a mut self, folder: &'a CopyFolder) -> CopyStage<'a> {
        let TestPath { target, bed, name, .. } = &mut self.direct;
        let [first, second] = [STRIPE_LUNS + 1, STRIPE_LUNS + 2];
        let iscsi = target.url(u16::try_from(second).unwrap_or(0));
        let urls = [
            format!("hyperscsi://{GROUP}@eth0/{name}/{first}?{WITHOUT_ANSWER}"),
            format!("{iscsi}?header_digest=none&data_digest=none&{WITHOUT_ANSWER}"),
        ];
        CopyStage { folder, program: &self.program, bed, target, urls }
    }

    /// Measures a workload once. Returns none if it was stopped, and why it failed if it did.
    pub(super) fn measure(
        &mut self,
        plan: &HyperScsiPlan,
        cell: &Cell,
        protocol: Protocol,
        seed: u64,
        stop: &AtomicBool,
    ) -> Result<Option<Found>, LabError> {
        let path = match (&mut self.relayed, cell.disturbance) {
            (Some((path, _)), Disturbance::Loss(_)) => path,
            _ => &mut self.direct,
        };
        if protocol == Protocol::Aoe {
            return path.measure_aoe(plan, cell, seed, stop);
        }
        let mut load = path.load(cell.workload, protocol)?;
        (load.warmup, load.time) = durations(plan, cell);
        load.seed = seed;
        path.measure(&load, cell, stop)
    }
}

impl TestPath {
    /// Starts the target and fills its disks, the stripe only if it is used. The LUNs behind the stripe are
    /// these files.
    fn open(
        bed: Bed,
        program: &Path,
        (has_stripe, files): (bool, &[PathBuf]),
        stop: &AtomicBool,
    ) -> Result<Self, LabError> {
        let stripe = std::iter::repeat_n(STRIPE_LUN_LEN, stripe_luns());
        let disks: Vec<u64> = std::iter::once(DISK_LEN).chain(stripe).collect();
        let target = ServedTarget::start_group(bed.target(), program, (&disks, files), GROUP)?;
        let name = target.url(0).split('/').nth(3).unwrap_or_default().to_owned();
        let geometry = |lun| bed.initiator().run(|| client_load::geometry_of(&url_of(&target.url(lun))?))?;
        let (disk, stripe) = (geometry(0)?, geometry(1)?);
        let path = Self { target, bed, name, disk, stripe, vblade: None };
        path.fill(0..1, DISK_LEN, stop)?;
        if has_stripe {
            path.fill(1..STRIPE_LUNS + 1, STRIPE_LUN_LEN, stop)?;
        }
        Ok(path)
    }

    /// Writes every block of some LUNs: blocks that were never written cost less to read.
    fn fill(&self, luns: std::ops::Range<u32>, len: u64, stop: &AtomicBool) -> Result<(), LabError> {
        let jobs = luns.map(|lun| self.job(lun, Protocol::Iscsi, FILL_DEPTH));
        let jobs = jobs.collect::<Result<Vec<Job>, LabError>>()?;
        let mut plan = client_load::load(jobs, FILL_BLOCK, FILL_DEPTH);
        plan.random = false;
        (plan.random, plan.read_percent, plan.count) = (false, 0, Some(len / u64::from(FILL_BLOCK)));
        let report = self.bed.initiator().run(|| crate::bench::run(&plan, stop))?;
        report.map(drop).map_err(|why| LabError::Target(format!("cannot fill the disks: {why}")))
    }

    fn shape(&mut self, cell: &Cell) -> Result<(), LabError> {
        let link = cell.link_plan();
        if self.bed.link() == link { Ok(()) } else { self.bed.shape(link) }
    }

    fn load(&self, workload: Workload, protocol: Protocol) -> Result<BenchPlan, LabError> {
        let depth = usize::try_from(workload.depth).unwrap_or(1);
        let luns = if workload.access.striped { 1..STRIPE_LUNS + 1 } else { 0..1 };
        let jobs = luns.map(|lun| self.job(lun, protocol, depth)).collect::<Result<Vec<Job>, LabError>>()?;
        let mut load = client_load::load(jobs, workload.bytes_per_command(), depth);
        load.random = workload.access.random;
        load.read_percent = if workload.access.read { 100 } else { 0 };
        Ok(load)
    }

    fn job(&self, lun: u32, protocol: Protocol, depth: usize) -> Result<Job, LabError> {
        let number = u16::try_from(lun).unwrap_or(0);
        let text = match protocol {
            Protocol::HyperScsi => format!("hyperscsi://{GROUP}@eth0/{}/{lun}", self.name),
            Protocol::Encrypted => {
                let (group, query) = (encrypted_group(GROUP), self.target.encrypted_query());
                format!("hyperscsi://{group}@eth0/{}/{lun}{query}", self.name)
            }
            Protocol::Iscsi | Protocol::IscsiDigests | Protocol::Aoe => self.target.url(number),
        };
        let mut url = url_of(&text)?;
        url.endpoint.options.patience.get_or_insert(client_load::PATIENCE);
        let digest = match protocol {
            Protocol::IscsiDigests => DigestPolicy::RequireCrc32c,
            _ => DigestPolicy::RequireNone,
        };
        if matches!(protocol, Protocol::Iscsi | Protocol::IscsiDigests) {
            url.endpoint.options.keys.header_digest = digest;
            url.endpoint.options.keys.data_digest = digest;
        }
        client_load::job(&url, if lun == 0 { &self.disk } else { &self.stripe }, depth)
    }

    fn measure(
        &mut self,
        load: &BenchPlan,
        cell: &Cell,
        stop: &AtomicBool,
    ) -> Result<Option<Found>, LabError> {
        // Other traffic goes the way of the data.
        let sender = if cell.workload.access.read { self.bed.target() } else { self.bed.initiator() };
        let other = match cell.disturbance {
            Disturbance::Traffic(percent) => Some(OtherTraffic::start(&self.bed, sender, percent)?),
            _ => None,
        };
        let before = self.counts(self.target.processor_time(), self.target.process())?;
        let measured = self.bed.initiator().run(|| crate::bench::run(load, stop))?;
        let traffic = other.as_ref().map(OtherTraffic::percent);
        let spent = self.counts(self.target.processor_time(), self.target.process())?.since(&before);
        drop(other);
        let report = measured.map_err(|why| self.failed(&why.to_string()))?;
        if stop.load(Ordering::Relaxed) {
            return Ok(None);
        }
        if let Some(why) = &report.failure {
            return Err(self.failed(why));
        }
        let sample = sample(&report, &spent, cell.workload, traffic);
        let sample = sample.ok_or_else(|| self.failed("no command ended within the measurement"))?;
        let BenchReport { connections_lost, engine, negotiated, .. } = report;
        Ok(Some(Found { sample, connections_lost, engine, negotiated }))
    }

    /// Measures a workload over ATA over Ethernet.
    fn measure_aoe(
        &mut self,
        plan: &HyperScsiPlan,
        cell: &Cell,
        seed: u64,
        stop: &AtomicBool,
    ) -> Result<Option<Found>, LabError> {
        let link = self.bed.link();
        if self.vblade.as_ref().is_none_or(|(served, _)| *served != link) {
            self.vblade = None;
            let (parent, _) = disk_directory();
            self.vblade = Some((link, aoe::serve(self.bed.target(), &parent, DISK_LEN)?));
        }
        let (warmup, time) = durations(plan, cell);
        let filled = aoe::filled(cell.workload, link.rate_bits);
        let load = AoeLoad { workload: cell.workload, disk: DISK_LEN, warmup, time, seed, filled };
        let Some((_, vblade)) = &mut self.vblade else { return Ok(None) };
        let usage = |vblade: &TargetProcess| (vblade.processor_time(), vblade.process());
        let begun = usage(vblade);
        let before = self.counts(begun.0, begun.1)?;
        let report = self.bed.initiator().run(|| aoe::run(&load, stop))?;
        let Some((_, vblade)) = &mut self.vblade else { return Ok(None) };
        let report = report.map_err(|why| {
            let end = vblade.end();
            LabError::Target(end.map_or_else(|| why.to_string(), |end| format!("{end} ({why})")))
        })?;
        let (time, process) = usage(vblade);
        let spent = self.counts(time, process)?.since(&before);
        if stop.load(Ordering::Relaxed) {
            return Ok(None);
        }
        let sample = sample(&report, &spent, cell.workload, None);
        let sample =
            sample.ok_or_else(|| LabError::Target("no command ended within the measurement".to_owned()))?;
        Ok(Some(Found { sample, connections_lost: 0, engine: String::new(), negotiated: Vec::new() }))
    }

    /// Returns what a target of this host and the initiator used so far.
    fn counts(&self, target: std::io::Result<Duration>, process: u32) -> Result<Counts, LabError> {
        let system =
            |why: std::io::Error| LabError::System { what: "read the target's usage".to_owned(), why };
        let own = getrusage(UsageWho::RUSAGE_SELF).map_err(|why| system(why.into()))?;
        let own = u64::try_from(own.voluntary_context_switches()).unwrap_or(0);
        Ok(Counts {
            target: target.map_err(system)?,
            switches: voluntary_switches(process) + own,
            packets: packets_sent(self.bed.initiator())? + packets_sent(self.bed.target())?,
        })
    }

    fn failed(&mut self, why: &str) -> LabError {
        LabError::Target(self.target.end().map_or_else(|| why.to_owned(), |end| format!("{end} ({why})")))
    }
}

/// Returns how long a workload is loaded before its measurement and in it. While the commands of the start
/// fill the link, it is not in the state that is measured.
pub(super) fn durations(plan: &HyperScsiPlan, cell: &Cell) -> (Duration, Duration) {
    let under_way = to_f64((u64::from(cell.workload.depth) * u64::from(cell.workload.block)) << 3);
    let filled = cell.link_plan().rate_bits.map_or(0.0, |bits| under_way / to_f64(bits));
    let longer = if matches!(cell.disturbance, Disturbance::Loss(_)) { LONGER_WITH_LOSS } else { 1.0 };
    (
        seconds(plan.warmup.max(WARMUP_FILLS * filled)),
        seconds((plan.seconds * longer).max(MEASURED_FILLS * filled)),
    )
}

/// How often the commands under way pass a shaped link at least before the measurement and in it.
const WARMUP_FILLS: f64 = 2.0;
const MEASURED_FILLS: f64 = 6.0;

/// What both ends used so far; of processor time, only the target.
struct Counts {
    target: Duration,
    switches: u64,
    packets: u64,
}

impl Counts {
    const fn since(&self, before: &Self) -> Self {
        Self {
            target: self.target.saturating_sub(before.target),
            switches: self.switches.saturating_sub(before.switches),
            packets: self.packets.saturating_sub(before.packets),
        }
    }
}

/// Reads a sample from a benchmark and from what its commands took, warm-up included. Returns none if no
/// command ended.
fn sample(report: &BenchReport, spent: &Counts, workload: Workload, traffic: Option<f64>) -> Option<Sample> {
    let total = report.total();
    let gb = to_f64(report.commands) * f64::from(workload.bytes_per_command()) / 1e9;
    if report.commands == 0 || report.bytes_moved <= 0.0 || report.seconds <= 0.0 {
        return None;
    }
    let us = |span: Duration| span.as_secs_f64() * 1e6;
    Some(Sample {
        throughput: report.bytes_moved / report.seconds / 1e6,
        p50: (total.count > 0).then(|| us(total.latency.percentile(5000))),
        p99: total.latency.tail_percentile(9900).map(us),
        processor: report.cpu_s / (report.bytes_moved / 1e9) + spent.target.as_secs_f64() / gb,
        switches: to_f64(spent.switches) / gb,
        packets: to_f64(spent.packets) / gb,
        traffic,
    })
}

fn stripe_luns() -> usize {
    usize::try_from(STRIPE_LUNS).unwrap_or(0)
}

/// Converts percent, which the plan limits to 50.
fn probability(percent: f64) -> Probability {
    #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "0 to 500 000")]
    let per_million = (percent * 1e4).round() as u32;
    Probability(per_million)
}

fn url_of(text: &str) -> Result<Url, LabError> {
    Url::parse(text).map_err(|why| LabError::Target(why.to_string()))
}

fn explain_rights(why: LabError) -> LabError {
    if !is_not_permitted(&why) {
        return why;
    }
    LabError::Plan(format!(
        "{why}: this experiment makes two hosts and the link between them, which needs root (CAP_SYS_ADMIN, \
         CAP_NET_ADMIN and CAP_NET_RAW)"
    ))
}
