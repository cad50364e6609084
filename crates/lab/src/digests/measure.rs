//! Measures: logs in with each setting of the digests and loads the LUN.

use std::sync::atomic::AtomicBool;
use std::time::Duration;

use initiator::endpoint::Scheme;
use initiator::{Client, Error, Geometry, OpenOptions, Url, block_on};
use iscsi::negotiate::{Digest, DigestPolicy};

use super::Subject;
use super::plan::DigestsPlan;
use super::samples::{Cell, Sample};
use crate::bed::{Bed, Calibration, Echo, LinkPlan, echo_rate};
use crate::bench::{BenchReport, Job};
use crate::client_load::{
    self, PATIENCE, explain_rights, geometry_of, load, run_on, seconds, unreachable_target,
};
use crate::experiment::LabError;
use crate::plan::Digests;
use crate::signature::{SIGNATURE_LEN, signature};
use crate::target_process::ServedTarget;

/// The RAM disk of a bed, in bytes.
const DISK_LEN: u64 = 256 << 20;

/// The commands that fill it: long ones, so that it takes a fraction of a second.
const FILL_BLOCK: u32 = 1 << 20;
const FILL_DEPTH: usize = 8;

/// What to do without the rights to make a bed.
const OTHERWISE: &str = ", or name a target: targe lab digests iscsi://HOST/IQN/LUN";

/// The duration of a calibration of a link with a rate limit, in seconds: what waits in the buffers of a
/// socket at the start is less than 1 % of what it counts at 1 Gbit/s.
const CALIBRATION_S: f64 = 2.0;
/// The duration of a calibration of a link without one, which is compared with nothing.
const UNLIMITED_CALIBRATION_S: f64 = 0.7;
/// The duration of a bare echo.
const ECHO: Duration = Duration::from_millis(200);

/// The path that is measured, and the LUN at its end.
pub(super) struct TestPath {
    // The target ends before its host.
    target: Option<ServedTarget>,
    bed: Option<Bed>,
    url: Url,
    geometry: Geometry,
}

/// What varies between the measurements of a workload.
#[derive(Clone, Copy, Debug)]
pub(super) struct Setting {
    pub(super) digests: Digests,
    /// The rate of a paced load, in commands per second.
    pub(super) rate: Option<f64>,
    pub(super) seed: u64,
}

impl TestPath {
    /// Opens the path. On a bed, the RAM disk is written full, since blocks that were never written cost less
    /// to read.
    pub(super) fn open(subject: &Subject, plan: &DigestsPlan, stop: &AtomicBool) -> Result<Self, LabError> {
        match subject {
            Subject::Bed { program } => {
                let bed = Bed::create().map_err(|why| explain_rights(why, OTHERWISE))?;
                let target = ServedTarget::start(Some(bed.target()), program, &[format!("ram:{DISK_LEN}")])?;
                let url = Url::parse(&target.url(0)).map_err(|why| LabError::Target(why.to_string()))?;
                let path = Self::of(Some(target), Some(bed), url)?;
                path.fill(stop)?;
                Ok(path)
            }
            Subject::Url { url, write, force } => {
                let path = Self::of(None, None, Url::clone(url))?;
                path.check(plan, *write && !*force)?;
                Ok(path)
            }
        }
    }

    fn of(target: Option<ServedTarget>, bed: Option<Bed>, mut url: Url) -> Result<Self, LabError> {
        if url.endpoint.transport.scheme() != Scheme::Iscsi {
            return Err(LabError::Plan(format!(
                "{url}: digests belong to iSCSI; the URL must begin with iscsi://"
            )));
        }
        url.endpoint.options.patience.get_or_insert(PATIENCE);
        let geometry = run_on(bed.as_ref(), || geometry_of(&url))??;
        Ok(Self { target, bed, url, geometry })
    }

    /// Refuses what the unit cannot do, and, if `cautious`, to write to a disk that holds data.
    fn check(&self, plan: &DigestsPlan, cautious: bool) -> Result<(), LabError> {
        let writes = plan.mix.iter().any(|mix| mix.writes());
        if writes && self.geometry.write_protected {
            return Err(LabError::Plan(format!("mix: {} is write protected; plan reads only", self.url)));
        }
        let block_bytes = self.geometry.block_size().bytes();
        let longest = u64::from(self.geometry.transfer_max) * u64::from(block_bytes);
        for block in &plan.block {
            if !block.is_multiple_of(block_bytes) || u64::from(*block) > longest.min(self.geometry.bytes()) {
                return Err(LabError::Plan(format!(
                    "block: {block} bytes: {} takes multiples of {block_bytes} bytes up to {longest}",
                    self.url
                )));
            }
        }
        if writes && cautious { self.refuse_data() } else { Ok(()) }
    }

    fn refuse_data(&self) -> Result<(), LabError> {
        let mut first =
            vec![0; usize::try_from(self.geometry.bytes()).unwrap_or(usize::MAX).min(SIGNATURE_LEN)];
        let read = Client::new().and_then(|client| {
            block_on(async {
                let disk = OpenOptions::new().open(&client, &self.url).await?;
                let read = disk.read_at(0, &mut first).await;
                let _ = disk.session().log_out().await;
                read
            })
        });
        read.map_err(|why| unreachable_target(&why))?;
        match signature(&first) {
            Some(what) => Err(LabError::Plan(format!(
                "{} holds {what}: writes would destroy it; --force writes all the same",
                self.url
            ))),
            None => Ok(()),
        }
    }

    /// Writes every block of the RAM disk.
    fn fill(&self, stop: &AtomicBool) -> Result<(), LabError> {
        let count = DISK_LEN / u64::from(FILL_BLOCK);
        let job = self.job(Digests::None, FILL_DEPTH)?;
        let mut plan = load(vec![job], FILL_BLOCK, FILL_DEPTH);
        (plan.random, plan.read_percent, plan.count) = (false, 0, Some(count));
        let report = run_on(self.bed.as_ref(), || crate::bench::run(&plan, stop))?;
        report.map(drop).map_err(|why| LabError::Target(format!("cannot fill the disk: {why}")))
    }

    /// Logs in and offers both values of each digest, the wanted one first. Returns the reason if the target
    /// chooses the other one.
    pub(super) fn offers(&self, digests: Digests) -> Result<Result<(), String>, LabError> {
        let prefer = |on: bool| if on { DigestPolicy::PreferCrc32c } else { DigestPolicy::PreferNone };
        let url = self.with_digests(digests, prefer);
        let agreed = run_on(self.bed.as_ref(), || negotiated(&url))?;
        let (header, data) = agreed.map_err(|why| unreachable_target(&why))?;
        if (header == Digest::Crc32c, data == Digest::Crc32c) == (digests.header(), digests.data()) {
            return Ok(Ok(()));
        }
        Ok(Err(format!("it answers HeaderDigest={} and DataDigest={}", header.name(), data.name())))
    }

    fn with_digests(&self, digests: Digests, policy: impl Fn(bool) -> DigestPolicy) -> Url {
        let mut url = self.url.clone();
        url.endpoint.options.keys.header_digest = policy(digests.header());
        url.endpoint.options.keys.data_digest = policy(digests.data());
        url
    }

    /// Returns a session that has exactly these digests, or none at all.
    fn job(&self, digests: Digests, depth: usize) -> Result<Job, LabError> {
        let require = |on: bool| if on { DigestPolicy::RequireCrc32c } else { DigestPolicy::RequireNone };
        let url = self.with_digests(digests, require);
        client_load::job(&url, &self.geometry, depth)
    }

    /// Measures a workload once, paced if there is a rate in commands per second. Returns none if it was
    /// stopped or the load was so low that no command ended, and why it failed if it did.
    pub(super) fn measure(
        &mut self,
        plan: &DigestsPlan,
        cell: &Cell,
        setting: Setting,
        stop: &AtomicBool,
    ) -> Result<Option<(Sample, BenchReport)>, LabError> {
        let Setting { digests, rate, seed } = setting;
        let depth = usize::try_from(cell.depth).unwrap_or(1);
        let mut load = load(vec![self.job(digests, depth)?], cell.block, depth);
        load.read_percent = cell.mix.0;
        (load.time, load.warmup) = (seconds(plan.seconds), seconds(plan.warmup));
        (load.seed, load.rate) = (seed, rate);
        let before = self.target_time();
        let measured = run_on(self.bed.as_ref(), || crate::bench::run(&load, stop))?;
        let spent = before.zip(self.target_time()).map(|(before, after)| after.saturating_sub(before));
        let report = measured.map_err(|why| self.failed(&why.to_string()))?;
        if stop.load(std::sync::atomic::Ordering::Relaxed) {
            return Ok(None);
        }
        if let Some(why) = &report.failure {
            return Err(self.failed(why));
        }
        let sample = Sample::of(&report, cell.block, spent);
        match sample {
            None if rate.is_none() => Err(self.failed("no command ended within the measurement")),
            sample => Ok(sample.map(|sample| (sample, report))),
        }
    }

    fn target_time(&self) -> Option<Duration> {
        self.target.as_ref().and_then(|target| target.processor_time().ok())
    }

    fn failed(&mut self, why: &str) -> LabError {
        let end = self.target.as_mut().and_then(ServedTarget::end);
        LabError::Target(end.map_or_else(|| why.to_owned(), |end| format!("{end} ({why})")))
    }

    /// Gives the bed this link. Returns its calibration if `fresh`: the link was not calibrated before.
    pub(super) fn set_link(&mut self, link: LinkPlan, fresh: bool) -> Result<Option<Calibration>, LabError> {
        let Some(bed) = &mut self.bed else { return Ok(None) };
        if bed.link() != link {
            bed.shape(link)?;
        }
        let seconds = if link.rate_bits.is_some() { CALIBRATION_S } else { UNLIMITED_CALIBRATION_S };
        if fresh { bed.calibrate(seconds).map(Some) } else { Ok(None) }
    }

    /// Measures the bare echo of a workload's block length and depth; a path to a URL has none.
    pub(super) fn echo(&self, cell: &Cell) -> Result<Option<Echo>, LabError> {
        let Some(bed) = &self.bed else { return Ok(None) };
        let [block, depth] = [cell.block, cell.depth].map(|number| usize::try_from(number).unwrap_or(1));
        echo_rate(bed, block, depth, ECHO).map(Some)
    }
}

/// Logs in and returns the header digest and the data digest that were negotiated.
fn negotiated(url: &Url) -> Result<(Digest, Digest), Error> {
    let client = Client::new()?;
    block_on(async {
        let session = OpenOptions::new().log_in(&client, url).await?;
        let connections = session.connections().await?;
        let _ = session.log_out().await;
        let first = connections.first().map(|view| view.parameters).unwrap_or_default();
        Ok((first.header_digest, first.data_digest))
    })
}
