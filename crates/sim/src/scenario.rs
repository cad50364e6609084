//! The parameters that a seed stands for: the number of initiators, the transport and its faults, the media,
//! the negotiated keys, the mix of operations.

use std::fmt;

use base::rng::Rng;
use base::time::{Duration, Instant};
use base::units::BlockSize;
use hyperscsi::pdu::parameters::Repair;
use iscsi::aead::AeadDigest;
use iscsi::initiator::contract::Limits as SessionLimits;
use iscsi::negotiate::{DigestPolicy, KeyPolicy};
use iscsi::target::engine::Limits;
use netem::frame::FramePlan;
use netem::probability::{DurationRange, Probability};
use netem::stream::StreamPlan;
use security::Level;
use transport::initiator::{Retry, Retry as FrameRetry};

use crate::media::MediumPlan;

mod aead;
mod host_faults;
mod special;

pub use host_faults::{Death, Sleep, Upgrade};
pub use special::{CorruptionPlan, ReloadPlan, SPECIAL};

/// The transport that carries the commands.
#[derive(Clone, Debug)]
pub enum TransportPlan {
    /// No transport: initiators call the units directly. No protocol hides a bug of the device server.
    Direct,
    /// iSCSI.
    Iscsi(Box<IscsiPlan>),
    /// HyperSCSI.
    HyperScsi(Box<HyperPlan>),
}

/// The parameters of both ends of iSCSI, and of the network between them.
#[derive(Clone, Debug)]
pub struct IscsiPlan {
    /// The keys that initiators offer.
    pub initiator_keys: KeyPolicy,
    /// The keys that the target accepts.
    pub target_keys: KeyPolicy,
    /// How many connections a session is to have.
    pub connections: u16,
    /// How many portals the target has, all in one portal group.
    pub portals: u8,
    /// How long, and how often, sessions retry to connect.
    pub retry: Retry,
    /// The timeouts and bounds of sessions.
    pub session_limits: SessionLimits,
    /// The timeouts and bounds of the target.
    pub limits: Limits,
    /// The direction to the target.
    pub forward: StreamPlan,
    /// The direction back to the initiator.
    pub backward: StreamPlan,
    /// How long it takes to connect.
    pub connect_within: DurationRange,
    /// How many of a thousand attempts to connect fail.
    pub connects_fail_per_mille: u64,
    /// How many times each initiator declares another MaxRecvDataSegmentLength in full feature phase;
    /// `declares_within` is the time within which it does so.
    pub declares: u32,
    /// See `declares`.
    pub declares_within: Duration,
    /// How many bytes the buffers of a socket hold.
    pub socket_bytes: usize,
    /// The AEAD digest of all connections, and after how many PDUs its keys change. The login does not
    /// negotiate it: the world gives both ends the keys.
    pub aead: Option<(AeadDigest, u64)>,
}

/// The parameters of both ends of HyperSCSI, and of the Ethernets between them.
#[derive(Clone, Debug)]
pub struct HyperPlan {
    /// Whether the group has a password.
    pub has_password: bool,
    /// The protection level that initiators use of their own accord.
    pub level: Level,
    /// The least protection level that each unit demands.
    pub min_protection: [Level; 2],
    /// How lost frames are repaired.
    pub repair: Repair,
    /// How many commands of a session can be under way.
    pub exchanges: u16,
    /// How many bytes of unsolicited data a write may send.
    pub first_burst: u32,
    /// How many bytes of data the target asks for at a time.
    pub burst_max: u32,
    /// How many bytes of data the target keeps, in each direction.
    pub room_bytes: usize,
    /// After how many milliseconds without a path a session is lost.
    pub lost_after_ms: u32,
    /// How long, and how often, sessions retry to connect.
    pub retry: FrameRetry,
    /// How long discovery and handshake may take.
    pub login_within: Duration,
    /// How many frames a port reports that its receive ring holds.
    pub receive_slots: usize,
    /// How many tasks an initiator accepts at a time.
    pub tasks_max: usize,
    /// How many times each initiator updates its keys before it has to.
    pub rekeys: u32,
    /// After how many frames the target, and initiators, update keys by themselves; `None`: only when they
    /// must.
    pub key_frames: [Option<u64>; 2],
    /// When hosts stand still.
    pub sleeps: Vec<Sleep>,
    /// A receive ring really holds only `receive_slots / ring_part` frames.
    pub ring_part: usize,
    /// When initiators crash; they start again without having logged out.
    pub deaths: Vec<Death>,
    /// How many strangers there are: stations that try to log in and must not succeed.
    pub strangers: usize,
    /// One Ethernet for each path.
    pub nets: Vec<NetPlan>,
    /// When the MTU changes.
    pub mtu_changes: Vec<MtuChange>,
    /// When the target is upgraded.
    pub upgrades: Vec<Upgrade>,
}

/// An Ethernet.
#[derive(Clone, Debug)]
pub struct NetPlan {
    /// The MTU: the longest payload of a frame in bytes.
    pub mtu: usize,
    /// The direction to the target. The times of its cuts count from the start of the run.
    pub forward: FramePlan,
    /// The direction back to the initiator.
    pub backward: FramePlan,
}

/// A change of the MTU.
#[derive(Clone, Debug)]
pub struct MtuChange {
    /// The index of the Ethernet.
    pub net: usize,
    /// When, counted from the start of the run.
    pub after: Duration,
    /// The MTU from then on, in bytes.
    pub mtu: usize,
    /// Whether the ports report the change. Otherwise only a switch between them changed its MTU.
    pub told: bool,
}

/// The parameters of a world.
#[derive(Clone, Debug)]
pub struct Scenario {
    /// The seed that they are drawn from.
    pub seed: u64,
    /// The transport.
    pub transport: TransportPlan,
    /// How many initiators there are.
    pub initiators: usize,
    /// How many units there are.
    pub units: u16,
    /// The logical block length.
    pub block_size: BlockSize,
    /// The length of a unit in blocks. It is small, so that accesses overlap.
    pub blocks: u64,
    /// The properties of the media.
    pub medium: MediumPlan,
    /// How many commands each initiator sends.
    pub orders: u64,
    /// How many commands an initiator keeps open.
    pub depth: usize,
    /// The longest transfer in blocks.
    pub transfer_max: u64,
    /// How long an initiator waits between two commands.
    pub think: DurationRange,
    /// One in this many operations is a task management function; zero for none.
    pub manages_one_in: u64,
    /// One in this many commands concerns reservations; zero for none.
    pub reserves_one_in: u64,
    /// Whether RESERVE(6) and RELEASE(6) are among them.
    pub reserves_old_ones: bool,
    /// How often the power of the target is cut.
    pub crashes: u32,
    /// In direct calls, which have no network that could fail, an initiator's I_T nexus is lost in one of
    /// this many steps.
    pub nexus_losses: u32,
    /// How many tasks a unit accepts at a time.
    pub task_set_max: u16,
    /// Whether the target is short of memory.
    pub short_memory: bool,
    /// Whether initiators may repeat WRITE, WRITE SAME and UNMAP in a new session, as the disks of the
    /// shipped initiator do.
    pub repeats_changes: bool,
    /// How LUNs and access change; `None`: they do not change.
    pub reloads: Option<ReloadPlan>,
    /// Whether special worlds are enabled: a share of all seeds then make special worlds.
    pub special: bool,
}

impl Scenario {
    /// Returns the world of a seed, with iSCSI or without a transport. With `special`, a share of the seeds
    /// make special worlds.
    pub fn of(seed: u64, special: bool) -> Self {
        let plain = Self::plain(seed);
        if special { plain.make_special() } else { plain }
    }

    /// Returns the world of a seed in which HyperSCSI carries the commands.
    pub fn hyperscsi(seed: u64, special: bool) -> Self {
        let mut rng = Rng::from_seed(seed ^ 0x6879_7065_7273_6373);
        let plan = HyperPlan { upgrades: Upgrade::draw(seed), ..HyperPlan::of(&mut rng) };
        let transport = TransportPlan::HyperScsi(Box::new(plan));
        let plain = Self { transport, ..Self::plain(seed) };
        if special { plain.make_special() } else { plain }
    }

    /// Draws the parameters that every world has.
    fn plain(seed: u64) -> Self {
        let mut rng = Rng::from_seed(seed ^ 0x7461_7267_6573_696d);
        let block_size = *pick(&mut rng, &[BlockSize::B512, BlockSize::B512, BlockSize::B4096]);
        let blocks = 48 + rng.below(200);
        let volatile = rng.chance(1, 2);
        let micros = Duration::from_micros;
        let effect = *pick(&mut rng, &[0, 0, 300, 5_000, 80_000, 700_000]);
        let answer = *pick(&mut rng, &[0, 0, 200, 20_000]);
        let len = block_size.len_of(base::units::Blocks(blocks)).map_or(0, |len| len.0);
        let medium = MediumPlan {
            len,
            volatile,
            effect: DurationRange::between(micros(effect / 20), micros(effect)),
            answer: DurationRange::between(micros(0), micros(answer)),
            fails_one_in: *pick(&mut rng, &[0, 0, 200, 40]),
            block_len: usize::try_from(block_size.bytes()).unwrap(),
            corruption: None,
        };
        let mut transport = if rng.chance(1, 5) {
            TransportPlan::Direct
        } else {
            TransportPlan::Iscsi(Box::new(IscsiPlan::of(&mut rng)))
        };
        let mut strain = Rng::from_seed(seed ^ 0x7374_7261_696e);
        let is_strained = strain.chance(1, 10);
        if let (TransportPlan::Iscsi(plan), true) = (&mut transport, is_strained) {
            plan.strain_data(&mut strain);
        }
        if let TransportPlan::Iscsi(plan) = &mut transport {
            plan.draw_aead(seed, is_strained);
        }
        Self {
            seed,
            transport,
            initiators: 1 + usize::try_from(rng.below(3)).unwrap(),
            units: 1 + u16::try_from(rng.below(2)).unwrap(),
            block_size,
            blocks,
            medium,
            orders: 60 + rng.below(100),
            depth: 1 + usize::try_from(rng.below(24)).unwrap(),
            transfer_max: *pick(&mut rng, &[1, 4, 16, 40]),
            think: DurationRange::between(Duration::ZERO, micros(*pick(&mut rng, &[1, 300, 5_000]))),
            manages_one_in: *pick(&mut rng, &[0, 60, 25]),
            reserves_one_in: *pick(&mut rng, &[0, 0, 8]),
            reserves_old_ones: seed.is_multiple_of(4),
            crashes: if volatile { u32::try_from(rng.below(3)).unwrap() } else { 0 },
            nexus_losses: u32::try_from(rng.below(4)).unwrap(),
            task_set_max: 64,
            short_memory: false,
            repeats_changes: false,
            reloads: None,
            special: false,
        }
    }
}

impl Scenario {
    /// Returns an upper bound for the time in which everything that can be open is carried over the slowest
    /// link: twice the estimate, as a margin. Where memory is short, the bound also contains the time that
    /// the medium needs to execute the commands one after another.
    pub fn backlog(&self) -> Duration {
        let orders = u64::try_from(self.depth * self.initiators).unwrap_or(u64::MAX);
        let medium = if self.short_memory {
            let each = self.medium.effect.to + self.medium.answer.to;
            each.saturating_mul(u32::try_from(orders).unwrap_or(u32::MAX))
        } else {
            Duration::ZERO
        };
        self.path_backlog(orders).saturating_add(medium)
    }

    fn path_backlog(&self, orders: u64) -> Duration {
        let bytes = orders * self.transfer_max * u64::from(self.block_size.bytes());
        let plan = match &self.transport {
            TransportPlan::Direct => return Duration::ZERO,
            TransportPlan::Iscsi(plan) => plan,
            TransportPlan::HyperScsi(plan) => return plan.backlog(bytes),
        };
        let round = plan.forward.delay.to + plan.backward.delay.to;
        // In each round trip, one burst is transferred, or as much as the socket holds.
        let burst = plan.initiator_keys.max_burst_length.min(plan.target_keys.max_burst_length);
        let memory = plan.limits.data_out_bytes_max.min(plan.limits.data_in_bytes_max) / 2;
        let step =
            u64::from(burst).min(u64::try_from(plan.socket_bytes.min(memory)).unwrap_or(u64::MAX)).max(1);
        let rounds = u32::try_from(bytes.div_ceil(step)).unwrap_or(u32::MAX);
        round.saturating_mul(rounds).saturating_mul(2)
    }

    /// Returns whether commands to a unit enter its task set in the order in which their initiator sends
    /// them. Commands of HyperSCSI do not, if the target refuses the first ones for lack of protection.
    pub fn keeps_order(&self, unit: u16) -> bool {
        match &self.transport {
            // A LUN leads to different disks over time.
            _ if self.reloads.is_some() => false,
            TransportPlan::Direct | TransportPlan::Iscsi(_) => true,
            TransportPlan::HyperScsi(plan) => !plan.refuses(unit),
        }
    }

    /// Returns whether initiators abort tasks of other initiators.
    pub const fn aborts(&self) -> bool {
        self.manages_one_in > 0 || self.reserves_one_in > 0
    }
}

impl IscsiPlan {
    /// Draws the parameters.
    pub(crate) fn of(rng: &mut Rng) -> Self {
        let level = u8::try_from(rng.below(3)).unwrap();
        let mut initiator_keys = keys(rng);
        let mut target_keys = keys(rng);
        initiator_keys.error_recovery_level = level;
        target_keys.error_recovery_level =
            if rng.chance(1, 8) { u8::try_from(rng.below(3)).unwrap() } else { 2 };
        let seconds = Duration::from_secs;
        let faults = *pick(rng, &[0, 0, 1, 3, 10, 40]);
        let connections = *pick(rng, &[1, 1, 2, 3, 4]);
        target_keys.max_connections = if rng.chance(1, 6) { 1 } else { 8 };
        let patience = seconds(*pick(rng, &[0, 5, 60]));
        Self {
            initiator_keys,
            target_keys,
            connections,
            portals: 1 + u8::try_from(rng.below(2)).unwrap(),
            retry: Retry {
                timeout: patience,
                attempts: *pick(rng, &[0, 0, 3]),
                backoff: Duration::from_millis(100),
                backoff_max: seconds(2),
                first: !patience.is_zero(),
            },
            session_limits: SessionLimits {
                ping_after: seconds(*pick(rng, &[1, 5, 15])),
                pong_within: seconds(5),
                repair_after: Duration::from_millis(*pick(rng, &[50, 300, 1000])),
                ..SessionLimits::default()
            },
            limits: Limits {
                queue_depth: *pick(rng, &[1, 2, 8, 32, 128]),
                immediate_max: *pick(rng, &[2, 8, 32]),
                ping_after: seconds(*pick(rng, &[1, 5, 20])),
                pong_within: seconds(5),
                idle_within: seconds(20),
                data_within: seconds(10),
                repair_after: Duration::from_millis(*pick(rng, &[100, 700, 2000])),
                ..Limits::default()
            },
            forward: way(rng, faults),
            backward: way(rng, faults),
            connect_within: DurationRange::between(Duration::from_micros(50), Duration::from_millis(3)),
            connects_fail_per_mille: *pick(rng, &[0, 0, 100, 400]),
            socket_bytes: *pick(rng, &[2 << 10, 64 << 10, 1 << 20]),
            declares: *pick(rng, &[0, 0, 3, 30]),
            declares_within: Duration::from_secs(10),
            aead: None,
        }
    }

    /// Damages and delays data of both directions all the time, while the length of PDUs changes. Data that
    /// is received in place is thereby received there repeatedly.
    fn strain_data(&mut self, rng: &mut Rng) {
        for keys in [&mut self.initiator_keys, &mut self.target_keys] {
            keys.error_recovery_level = 1 + u8::try_from(rng.below(2)).unwrap();
            (keys.header_digest, keys.data_digest) = (DigestPolicy::PreferCrc32c, DigestPolicy::PreferCrc32c);
            keys.max_recv_data_segment_length = *pick(rng, &[512, 1024, 3000]);
        }
        (self.declares, self.declares_within) = (300, Duration::from_secs(2));
        self.session_limits.repair_after = Duration::from_millis(50);
        self.limits.repair_after = Duration::from_millis(100);
        for way in [&mut self.forward, &mut self.backward] {
            way.corrupt_data = Probability(*pick(rng, &[10_000, 60_000]));
            way.stall = Probability(*pick(rng, &[1_000, 5_000]));
            way.stall_for = DurationRange::between(Duration::from_millis(1), Duration::from_secs(2));
            way.faults_max = 1000;
        }
    }
}

impl HyperPlan {
    fn of(rng: &mut Rng) -> Self {
        let keyed = rng.chance(1, 2);
        let levels = [Level::None, Level::Integrity, Level::Encrypt];
        let mut level = || if keyed { *pick(rng, &levels) } else { Level::None };
        let (level, least) = (level(), [level(), level()]);
        let paths = 1 + usize::from(rng.chance(1, 3));
        let faults = *pick(rng, &[0, 1, 10, 100]);
        let mut nets: Vec<NetPlan> = (0..paths).map(|_| NetPlan::of(rng, faults)).collect();
        let mut mtu_changes = Vec::new();
        if rng.chance(1, 3) {
            let net = usize::try_from(rng.below(paths as u64)).unwrap();
            nets[net].mtu = 9000;
            let told = rng.chance(1, 2);
            let mut after = Duration::ZERO;
            for mtu in [1500, 9000] {
                let span = *pick(rng, &[50, 200, 2000]);
                after += DurationRange::between(Duration::ZERO, Duration::from_millis(span)).pick(rng);
                mtu_changes.push(MtuChange { net, after, mtu, told });
            }
        }
        let seconds = Duration::from_secs;
        let patience = seconds(*pick(rng, &[0, 5, 60]));
        let moment = |rng: &mut Rng, millis: u64| {
            DurationRange::between(Duration::ZERO, Duration::from_millis(millis)).pick(rng)
        };
        let mut sleeps = Vec::new();
        for _ in 0..*pick(rng, &[0, 0, 1, 4]) {
            let longest = *pick(rng, &[2, 20, 300]);
            let who = usize::try_from(rng.below(4)).unwrap();
            sleeps.push(Sleep { who, after: moment(rng, 400), span: moment(rng, longest) });
        }
        let mut deaths = Vec::new();
        for _ in 0..*pick(rng, &[0, 0, 0, 1, 3]) {
            deaths.push(Death { who: usize::try_from(rng.below(3)).unwrap(), after: moment(rng, 400) });
        }
        let key_frames = |rng: &mut Rng| {
            if keyed { *pick(rng, &[None, Some(300), Some(3000)]) } else { None }
        };
        Self {
            key_frames: [key_frames(rng), key_frames(rng)],
            sleeps,
            ring_part: *pick(rng, &[1, 1, 4, 16]),
            deaths,
            strangers: *pick(rng, &[0, 0, 1, 3]),
            upgrades: Vec::new(),
            has_password: keyed,
            level,
            min_protection: least,
            repair: *pick(rng, &[Repair::Selective, Repair::Selective, Repair::Window]),
            exchanges: *pick(rng, &[1, 4, 32, 128, 512]),
            first_burst: *pick(rng, &[0, 700, 8 << 10, 64 << 10]),
            burst_max: *pick(rng, &[512, 5000, 64 << 10, 1 << 20]),
            room_bytes: *pick(rng, &[256 << 10, 1 << 20, 16 << 20, 256 << 20]),
            lost_after_ms: *pick(rng, &[2000, 5000, 30_000]),
            retry: FrameRetry {
                timeout: patience,
                attempts: *pick(rng, &[0, 0, 5]),
                first: !patience.is_zero(),
                ..FrameRetry::default()
            },
            login_within: seconds(*pick(rng, &[3, 10])),
            receive_slots: *pick(rng, &[64, 512, 4096]),
            tasks_max: 1024,
            rekeys: if keyed { *pick(rng, &[0, 1, 4]) } else { 0 },
            nets,
            mtu_changes,
        }
    }

    /// Returns whether a unit demands more protection than initiators use, and refuses their commands.
    pub fn refuses(&self, unit: u16) -> bool {
        self.min_protection.get(usize::from(unit)).is_some_and(|least| self.level < *least)
    }

    /// Returns whether any direction is cut at some time.
    pub fn has_cuts(&self) -> bool {
        self.nets.iter().any(|net| !net.forward.cuts.is_empty() || !net.backward.cuts.is_empty())
    }

    /// Returns how long the transfer of so many bytes may take: twice the time that it takes with two short
    /// frames in each round trip.
    fn backlog(&self, bytes: u64) -> Duration {
        let rounds = self.nets.iter().map(|net| net.forward.delay.to + net.backward.delay.to);
        let round = rounds.max().unwrap_or_default();
        round.saturating_mul(u32::try_from(bytes / 2800 + 1).unwrap_or(u32::MAX)).saturating_mul(2)
    }
}

impl NetPlan {
    /// Draws an Ethernet; at most `faults` frames in a thousand are lost.
    fn of(rng: &mut Rng, faults: u32) -> Self {
        let mtu = *pick(rng, &[1500, 1500, 9000, 9000, 65_535]);
        let micros = *pick(rng, &[5, 50, 500, 3000]);
        let rate = *pick(rng, &[0, 0, 125_000_000, 12_500_000]);
        let queue = *pick(rng, &[0, 40 << 10, 256 << 10]);
        let mut way = || frame_way(rng, faults, micros, rate, queue);
        Self { mtu, forward: way(), backward: way() }
    }
}

/// Draws one direction of an Ethernet.
fn frame_way(rng: &mut Rng, faults: u32, micros: u64, rate: u64, queue: usize) -> FramePlan {
    let delay = DurationRange::between(Duration::from_micros(micros / 2 + 1), Duration::from_micros(micros));
    let mut odds = |parts: u32| if rng.chance(1, 2) { Probability(parts) } else { Probability::NEVER };
    let mut plan = FramePlan {
        delay,
        bytes_per_s: rate,
        queue_len_max: queue,
        loss: odds(faults * 1000),
        burst: odds(faults * 3000),
        duplicate: odds(faults * 200),
        reorder: odds(faults * 500),
        reorder_by: DurationRange::between(delay.from, delay.to.saturating_mul(8)),
        corrupt: odds(faults * 200),
        ..FramePlan::CLEAN
    };
    if rng.chance(1, 5) {
        // Only this direction is cut: frames of the other direction arrive.
        for _ in 0..=rng.below(2) {
            let from = Instant(rng.below(400_000_000));
            let span = *pick(rng, &[10, 1000, 10_000, 45_000]);
            let cut = DurationRange::between(Duration::from_millis(1), Duration::from_millis(span)).pick(rng);
            plan.cuts.push((from, from.after(cut)));
        }
    }
    plan
}

/// Draws keys, without those that the caller decides about.
fn keys(rng: &mut Rng) -> KeyPolicy {
    let digests = [
        DigestPolicy::PreferCrc32c,
        DigestPolicy::PreferCrc32c,
        DigestPolicy::PreferCrc32c,
        DigestPolicy::PreferNone,
    ];
    let max_burst_length = *pick(rng, &[512, 4096, 16 << 10, 256 << 10, 1 << 20]);
    KeyPolicy {
        header_digest: *pick(rng, &digests),
        data_digest: *pick(rng, &digests),
        initial_r2t: rng.chance(1, 3),
        immediate_data: rng.chance(2, 3),
        max_recv_data_segment_length: *pick(rng, &[512, 1024, 5000, 8192, 64 << 10, 256 << 10]),
        max_burst_length,
        first_burst_length: (*pick(rng, &[512, 2000, 8192, 64 << 10])).min(max_burst_length),
        default_time2wait: *pick(rng, &[0, 0, 1, 2]),
        default_time2retain: *pick(rng, &[0, 5, 20, 60]),
        max_outstanding_r2t: *pick(rng, &[1, 1, 2, 8]),
        data_pdu_in_order: rng.chance(1, 2),
        data_sequence_in_order: rng.chance(1, 2),
        protocol_level: *pick(rng, &[1, 2]),
        ..KeyPolicy::default()
    }
}

/// Draws one direction of a stream. Each kind of fault has a weight; its probability is `faults` times this
/// weight, or zero with a chance of one half.
fn way(rng: &mut Rng, faults: u32) -> StreamPlan {
    let mut odds = |weight: u32| {
        if rng.chance(1, 2) { Probability(faults * weight) } else { Probability::NEVER }
    };
    let mut plan = StreamPlan {
        corrupt_header: odds(250),
        corrupt_header_digest: odds(30),
        corrupt_data: odds(150),
        corrupt_data_digest: odds(30),
        drop: odds(60),
        duplicate: odds(40),
        cut: odds(25),
        silence: odds(8),
        stall: odds(50),
        ..StreamPlan::CLEAN
    };
    plan.stall_for = DurationRange::between(Duration::from_millis(1), Duration::from_secs(8));
    let micros = *pick(rng, &[0, 100, 2000, 20_000]);
    plan.delay = DurationRange::between(Duration::from_micros(micros / 10), Duration::from_micros(micros));
    plan.bytes_per_s = *pick(rng, &[0, 0, 100_000_000, 2_000_000]);
    plan.piece_len_max = *pick(rng, &[0, 0, 30, 700, 9000]);
    plan.spare_login = rng.chance(2, 3);
    plan.faults_max = *pick(rng, &[1, 5, 1000]);
    plan
}

/// Picks one element at random.
pub fn pick<'a, T>(rng: &mut Rng, from: &'a [T]) -> &'a T {
    &from[usize::try_from(rng.below(u64::try_from(from.len()).unwrap())).unwrap()]
}

impl fmt::Display for Scenario {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self:?}")
    }
}
