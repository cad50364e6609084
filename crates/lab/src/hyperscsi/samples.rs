//! What was measured: the samples of each workload with each protocol.

use crate::bed::{BareFrames, Calibration, LinkPlan, to_f64};
use crate::plan::Link;
use crate::report::negotiated::Sessions;
use crate::report::{Better, Metric};

use super::copies::Copies;
use super::plan::{HyperScsiPlan, Workload};

/// What carries the commands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Protocol {
    /// HyperSCSI, whose frames always have a CRC32C.
    HyperScsi,
    /// iSCSI without digests.
    Iscsi,
    /// iSCSI with the header digest and the data digest.
    IscsiDigests,
    /// HyperSCSI with encryption, in a group with a password.
    Encrypted,
    /// ATA over Ethernet, which has no checksum but that of the frame.
    Aoe,
}

/// What disturbs the traffic.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Disturbance {
    /// Nothing.
    None,
    /// A relay between the hosts that loses so many percent of the frames.
    Loss(f64),
    /// Frames of 512 bytes beside the data, which take so many percent of the link.
    Traffic(u32),
}

/// A workload on a path.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Cell {
    pub(super) link: Link,
    pub(super) mtu: u32,
    pub(super) workload: Workload,
    pub(super) disturbance: Disturbance,
}

/// The result of one measurement. A GB is 10⁹ bytes of payload.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Sample {
    /// MB/s, a million bytes.
    pub(super) throughput: f64,
    /// Latencies in microseconds; none if too few commands ended in the measurement.
    pub(super) p50: Option<f64>,
    pub(super) p99: Option<f64>,
    /// Processor seconds of both ends per GB.
    pub(super) processor: f64,
    /// Voluntary context switches of both ends per GB.
    pub(super) switches: f64,
    /// Packets that the interfaces of both ends sent, per GB.
    pub(super) packets: f64,
    /// How much of the link other traffic took, in percent, if there was any.
    pub(super) traffic: Option<f64>,
}

/// A workload and its samples.
#[derive(Clone, Debug)]
pub(super) struct CellSamples {
    pub(super) cell: Cell,
    /// For each protocol, one sample for each complete round.
    pub(super) contestants: Vec<(Protocol, Vec<Sample>)>,
}

/// What a link carries without a storage protocol.
#[derive(Clone, Copy, Debug)]
pub(super) struct Bounds {
    pub(super) link: LinkPlan,
    pub(super) tcp: Calibration,
    /// The same frame again and again.
    pub(super) frames: BareFrames,
    /// Different frames out of as much memory as a disk has. Measured only without a rate limit, where they
    /// are the bound of HyperSCSI.
    pub(super) disk_frames: Option<BareFrames>,
}

/// All that a run measured.
#[derive(Clone, Debug, Default)]
pub(super) struct Measured {
    pub(super) cells: Vec<CellSamples>,
    pub(super) bounds: Vec<Bounds>,
    /// What the sessions over each protocol agreed on.
    pub(super) sessions: Sessions,
    /// The I/O engine of the initiator.
    pub(super) engine: String,
    /// Connections that were lost and established again.
    pub(super) connections_lost: u64,
    /// Why ATA over Ethernet is not measured, or no longer.
    pub(super) aoe_absent: Option<String>,
    /// The copies of files.
    pub(super) copies: Copies,
}

impl Protocol {
    /// The protocols that every undisturbed path has.
    pub(super) const ALL: [Self; 3] = [Self::HyperScsi, Self::Iscsi, Self::IscsiDigests];

    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::HyperScsi => "HyperSCSI",
            Self::Iscsi => "iSCSI",
            Self::IscsiDigests => "iSCSI, both digests",
            Self::Encrypted => "HyperSCSI, encrypted",
            Self::Aoe => "ATA over Ethernet",
        }
    }
}

impl Disturbance {
    pub(super) const fn is_none(self) -> bool {
        matches!(self, Self::None)
    }

    pub(super) fn name(self) -> String {
        match self {
            Self::None => "none".to_owned(),
            Self::Loss(percent) => format!("{percent} % of frames lost"),
            Self::Traffic(percent) => format!("{percent} % other traffic"),
        }
    }
}

impl Cell {
    /// Returns the workloads of a plan. Those on one link with one MTU follow each other.
    pub(super) fn all(plan: &HyperScsiPlan) -> Vec<Self> {
        let mut cells = Vec::new();
        for link in &plan.link {
            for mtu in &plan.mtu {
                let cell = |workload: &Workload| Self {
                    link: *link,
                    mtu: *mtu,
                    workload: *workload,
                    disturbance: Disturbance::None,
                };
                cells.extend(plan.workload.iter().map(cell));
            }
        }
        let losses = plan.loss.iter().map(|percent| Disturbance::Loss(*percent));
        let traffic = plan.traffic.iter().map(|percent| Disturbance::Traffic(*percent));
        for disturbance in losses.chain(traffic) {
            let (link, mtu) = (plan.disturbed_link, plan.mtu.first().copied().unwrap_or(1500));
            let cell = |workload: &Workload| Self { link, mtu, workload: *workload, disturbance };
            cells.extend(plan.disturbed_workload.iter().map(cell));
        }
        cells
    }

    /// Returns the protocols that are compared. Digests change nothing of how TCP takes losses.
    pub(super) fn protocols(&self, plan: &HyperScsiPlan) -> Vec<Protocol> {
        if !self.disturbance.is_none() {
            return vec![Protocol::HyperScsi, Protocol::Iscsi];
        }
        let mut protocols = Protocol::ALL.to_vec();
        protocols.extend(plan.encrypt.then_some(Protocol::Encrypted));
        protocols.extend((plan.aoe && !self.workload.access.striped).then_some(Protocol::Aoe));
        protocols
    }

    pub(super) const fn link_plan(&self) -> LinkPlan {
        self.link.with_mtu(self.mtu)
    }

    /// Returns the name of the path in tables and captions.
    pub(super) fn path(&self) -> String {
        let path = format!("{}, MTU {}", self.link.name(), self.mtu);
        if self.disturbance.is_none() { path } else { format!("{path}, {}", self.disturbance.name()) }
    }

    /// Returns the payload in MB/s that the frames of HyperSCSI leave of the link's rate: full frames of 28
    /// bytes of header and 4 of CRC, or 16 of tag with encryption. A link that is not shaped has no such
    /// bound.
    pub(super) fn frame_bound(&self, protocol: Protocol) -> Option<f64> {
        let (mtu, bits) = (f64::from(self.mtu), self.link_plan().rate_bits?);
        let own = 28.0 + if protocol == Protocol::Encrypted { 16.0 } else { 4.0 };
        Some(to_f64(bits) / 8e6 * (mtu - own) / (mtu + 38.0))
    }
}

/// A quantity of samples: its name, its unit, which values are better, and its value in a sample.
type Quantity = (&'static str, &'static str, Better, fn(&Sample) -> Option<f64>);

const QUANTITIES: [Quantity; 7] = [
    ("throughput", "MB/s", Better::Higher, |sample| Some(sample.throughput)),
    ("latency, median", "µs", Better::Lower, |sample| sample.p50),
    ("latency, 99th percentile", "µs", Better::Lower, |sample| sample.p99),
    ("processor time of both ends", "s/GB", Better::Lower, |sample| Some(sample.processor)),
    ("voluntary context switches of both ends", "1/GB", Better::Lower, |sample| Some(sample.switches)),
    ("packets of both ends", "1/GB", Better::Lower, |sample| Some(sample.packets)),
    ("other traffic", "%", Better::Neither, |sample| sample.traffic),
];

impl CellSamples {
    pub(super) fn new(cell: Cell, plan: &HyperScsiPlan) -> Self {
        let protocols = cell.protocols(plan).into_iter();
        Self { cell, contestants: protocols.map(|protocol| (protocol, Vec::new())).collect() }
    }

    /// Returns the values of one quantity with one protocol, in the order of the rounds.
    pub(super) fn values(&self, protocol: Protocol, of: impl Fn(&Sample) -> Option<f64>) -> Vec<f64> {
        let found = self.contestants.iter().find(|(setting, _)| *setting == protocol);
        found.map_or_else(Vec::new, |(_, samples)| samples.iter().filter_map(of).collect())
    }

    /// Returns whether the plan has this protocol here.
    pub(super) fn has(&self, protocol: Protocol) -> bool {
        self.contestants.iter().any(|(setting, _)| *setting == protocol)
    }

    /// Returns the number of complete rounds.
    pub(super) fn rounds(&self) -> usize {
        // A target of ATA over Ethernet may be absent.
        let counted = self.contestants.iter().filter(|(protocol, _)| *protocol != Protocol::Aoe);
        counted.map(|(_, samples)| samples.len()).min().unwrap_or(0)
    }
}

impl Measured {
    /// Returns the payload in MB/s that HyperSCSI can reach in a cell at most: what its frames leave of a
    /// shaped link, and elsewhere what bare frames of a disk have room for.
    pub(super) fn bound(&self, cell: &Cell) -> Option<f64> {
        cell.frame_bound(Protocol::HyperScsi).or_else(|| {
            let bounds = self.bounds.iter().find(|bounds| bounds.link == cell.link_plan())?;
            let mtu = f64::from(cell.mtu);
            Some(bounds.disk_frames?.payload / 1e6 * (mtu - 32.0) / mtu).filter(|bound| *bound > 0.0)
        })
    }

    /// Returns everything as metrics. A quantity that some rounds lack is left out.
    pub(super) fn metrics(&self) -> Vec<Metric> {
        let mut metrics = self.copies.metrics();
        for CellSamples { cell, contestants } in &self.cells {
            for (protocol, samples) in contestants.iter().filter(|(_, samples)| !samples.is_empty()) {
                let circumstances = [
                    ("link", cell.link.to_string()),
                    ("MTU", cell.mtu.to_string()),
                    ("disturbance", cell.disturbance.name()),
                    ("workload", cell.workload.to_string()),
                    ("protocol", protocol.name().to_owned()),
                ];
                // The login of an encrypted session derives keys from the password, which is no cost of its
                // data.
                let counts = |unit: &str| *protocol != Protocol::Encrypted || unit != "s/GB";
                for (quantity, unit, better, of) in QUANTITIES.into_iter().filter(|found| counts(found.1)) {
                    let values: Vec<f64> = samples.iter().filter_map(of).collect();
                    if values.len() == samples.len() {
                        metrics.push(Metric {
                            circumstances: circumstances
                                .clone()
                                .map(|(name, value)| (name.to_owned(), value))
                                .into(),
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
