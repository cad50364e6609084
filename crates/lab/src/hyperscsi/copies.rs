//! Copies of files to and from file systems: on a disk of this machine, on LUNs that `targe attach` makes
//! disks of, and on an NFS server.
//!
//! Each disk is a file in memory with ext4 on it. A copy to a file system counts once it is on the disk
//! (syncfs(2), and over NFS the COMMIT of each file). Before a copy from one, nothing of the files is in the
//! page cache of the machine that reads the disk. The experiment compares the data that it reads with the
//! data that it wrote.

mod disks;
mod measure;
mod nfs;
mod program;
#[cfg(test)]
pub(super) mod tests;

use crate::bed::{LinkPlan, to_f64};
use crate::plan::Link;
use crate::report::{Better, Metric};

use super::carrier::Carrier;
use super::plan::{FileSet, HyperScsiPlan};

pub(super) use measure::{CopyFolder, CopyStage, measure_all};

/// Which way the files go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Direction {
    /// From memory to the file system.
    To,
    /// From the file system to memory.
    From,
}

/// A set of files on a link.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct CopyCell {
    pub(super) link: Link,
    pub(super) mtu: u32,
    pub(super) files: FileSet,
}

/// The result of copying a set of files once. A GB is 10⁹ bytes of the files.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct CopySample {
    /// MB/s, a million bytes.
    pub(super) throughput: f64,
    /// Processor seconds per GB of all processes that take part. Threads of the kernel are no part of it.
    pub(super) processor: f64,
    /// Packets that the interfaces of both hosts sent, per GB; none without a network.
    pub(super) packets: Option<f64>,
    /// System calls of all processes that take part, per GB; none if the kernel does not count them.
    pub(super) system_calls: Option<f64>,
}

/// A set of files on a link, and its samples.
#[derive(Clone, Debug)]
pub(super) struct CopySamples {
    pub(super) cell: CopyCell,
    /// For each carrier, one sample for each round: to the file system, and from it.
    pub(super) carriers: Vec<(Carrier, [Vec<CopySample>; 2])>,
}

/// All copies of a run.
#[derive(Clone, Debug, Default)]
pub(super) struct Copies {
    pub(super) cells: Vec<CopySamples>,
    /// What was not measured, or no longer, and why.
    pub(super) absent: Vec<(Carrier, String)>,
    /// How a LUN became a disk; empty before there was one.
    pub(super) device: String,
}

impl Direction {
    pub(super) const BOTH: [Self; 2] = [Self::To, Self::From];

    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::To => "to the disk",
            Self::From => "from the disk",
        }
    }

    /// Returns the place of its samples.
    const fn index(self) -> usize {
        match self {
            Self::To => 0,
            Self::From => 1,
        }
    }
}

impl CopyCell {
    /// Returns the sets of files of a plan. Those on one link with one MTU follow each other.
    pub(super) fn all(plan: &HyperScsiPlan) -> Vec<Self> {
        let mut cells = Vec::new();
        for link in &plan.copy_link {
            for mtu in &plan.mtu {
                let cell = |files: &FileSet| Self { link: *link, mtu: *mtu, files: *files };
                cells.extend(plan.copy.iter().map(cell));
            }
        }
        cells
    }

    pub(super) const fn link_plan(&self) -> LinkPlan {
        self.link.with_mtu(self.mtu)
    }

    /// Returns the name of the path in tables and captions.
    pub(super) fn path(&self) -> String {
        format!("{}, MTU {}", self.link.name(), self.mtu)
    }

    /// Returns the payload in MB/s that full Ethernet frames leave of the rate of a shaped link. It is the
    /// same for every protocol.
    pub(super) fn link_bound(&self) -> Option<f64> {
        let mtu = f64::from(self.mtu);
        self.link_plan().rate_bits.map(|bits| to_f64(bits) / 8e6 * mtu / (mtu + 38.0))
    }
}

/// A quantity of copies: its name, its unit, which values are better, and its value in a sample.
type Quantity = (&'static str, &'static str, Better, fn(&CopySample) -> Option<f64>);

const QUANTITIES: [Quantity; 4] = [
    ("throughput of a copy", "MB/s", Better::Higher, |sample| Some(sample.throughput)),
    ("processor time of a copy", "s/GB", Better::Lower, |sample| Some(sample.processor)),
    ("packets of a copy", "1/GB", Better::Lower, |sample| sample.packets),
    ("system calls of a copy", "1/GB", Better::Lower, |sample| sample.system_calls),
];

impl CopySamples {
    fn new(cell: CopyCell) -> Self {
        Self { cell, carriers: Carrier::ALL.map(|carrier| (carrier, [Vec::new(), Vec::new()])).into() }
    }

    /// Returns the values of one quantity with one carrier, in the order of the rounds.
    pub(super) fn values(
        &self,
        carrier: Carrier,
        direction: Direction,
        of: impl Fn(&CopySample) -> Option<f64>,
    ) -> Vec<f64> {
        let found = self.carriers.iter().find(|(one, _)| *one == carrier);
        let samples = found.and_then(|(_, both)| both.get(direction.index()));
        samples.map_or_else(Vec::new, |samples| samples.iter().filter_map(of).collect())
    }

    /// Returns for each round the percent of the local disk's throughput that a carrier reaches.
    pub(super) fn of_local(&self, carrier: Carrier, direction: Direction) -> Vec<f64> {
        self.shares(carrier, direction, |local| local)
    }

    /// Returns for each round the percent that a carrier reaches of what the slower of the local disk and the
    /// link allows.
    pub(super) fn of_slower(&self, carrier: Carrier, direction: Direction) -> Vec<f64> {
        let link = self.cell.link_bound().unwrap_or(f64::INFINITY);
        self.shares(carrier, direction, |local| local.min(link))
    }

    /// Returns for each round what the slower of the local disk and the link allows.
    pub(super) fn allowed(&self, direction: Direction) -> Vec<f64> {
        let link = self.cell.link_bound().unwrap_or(f64::INFINITY);
        let local = self.values(Carrier::Local, direction, |sample| Some(sample.throughput));
        local.into_iter().map(|local| local.min(link)).collect()
    }

    fn shares(&self, carrier: Carrier, direction: Direction, base: impl Fn(f64) -> f64) -> Vec<f64> {
        let [local, remote] = [Carrier::Local, carrier]
            .map(|one| self.values(one, direction, |sample| Some(sample.throughput)));
        local.iter().zip(&remote).map(|(local, remote)| 100.0 * remote / base(*local)).collect()
    }
}

impl Copies {
    pub(super) fn new(plan: &HyperScsiPlan) -> Self {
        let cells = CopyCell::all(plan).into_iter().map(CopySamples::new).collect();
        Self { cells, ..Self::default() }
    }

    /// Returns whether anything was copied.
    pub(super) fn has_samples(&self) -> bool {
        self.cells.iter().any(|samples| samples.carriers.iter().any(|(_, [to, _])| !to.is_empty()))
    }

    /// Records why a carrier is not measured, unless that is known.
    fn leave_out(&mut self, carrier: Carrier, why: String) {
        if self.absent.iter().all(|(known, _)| *known != carrier) {
            self.absent.push((carrier, why));
        }
    }

    /// Returns everything as metrics. A quantity that some rounds lack is left out.
    pub(super) fn metrics(&self) -> Vec<Metric> {
        let mut metrics = Vec::new();
        for samples in &self.cells {
            for (carrier, direction) in
                Carrier::ALL.into_iter().flat_map(|carrier| Direction::BOTH.map(|way| (carrier, way)))
            {
                let circumstances = [
                    ("link", samples.cell.link.to_string()),
                    ("MTU", samples.cell.mtu.to_string()),
                    ("files", samples.cell.files.to_string()),
                    ("direction", direction.name().to_owned()),
                    ("protocol", carrier.name().to_owned()),
                ];
                let rounds = samples.values(carrier, direction, |sample| Some(sample.throughput)).len();
                for (quantity, unit, better, of) in QUANTITIES {
                    let values = samples.values(carrier, direction, of);
                    if rounds > 0 && values.len() == rounds {
                        let circumstances = circumstances.clone();
                        metrics.push(Metric {
                            circumstances: circumstances.map(|(name, value)| (name.to_owned(), value)).into(),
                            quantity: quantity.to_owned(),
                            unit: unit.to_owned(),
                            better,
                            samples: values,
                            resolution: None,
                        });
                    }
                }
            }
        }
        metrics
    }
}
