//! What a seed stands for: how many initiators, what kind of path and media, which keys, which mix of operations.

use std::fmt;

use base::rng::Rng;
use base::time::Duration;
use base::units::BlockSize;
use iscsi::initiator::contract::{Limits as SessionLimits, Retry};
use iscsi::negotiate::{DigestPolicy, KeyPolicy};
use iscsi::target::engine::Limits;
use netem::odds::{Odds, Span};
use netem::stream::StreamPlan;

use crate::media::MediumPlan;

/// Which transport carries the commands.
#[derive(Clone, Debug)]
pub enum Transport {
    /// None: initiators call the units directly. Nothing is hidden behind a protocol.
    Direct,
    /// iSCSI.
    Iscsi(Box<IscsiPlan>),
}

/// Both ends of iSCSI, and the path between them.
#[derive(Clone, Debug)]
pub struct IscsiPlan {
    /// What initiators offer.
    pub initiator_keys: KeyPolicy,
    /// What the target agrees to.
    pub target_keys: KeyPolicy,
    /// How many connections a session is to have.
    pub connections: u16,
    /// How many portals the target has, all of one group.
    pub portals: u8,
    /// How patient sessions are.
    pub retry: Retry,
    /// What sessions wait for.
    pub session_limits: SessionLimits,
    /// What the target waits for, and keeps.
    pub limits: Limits,
    /// The way to the target.
    pub forward: StreamPlan,
    /// The way back.
    pub backward: StreamPlan,
    /// How long it takes to connect.
    pub connect_within: Span,
    /// How many of a thousand attempts to connect fail.
    pub connects_fail_per_mille: u64,
    /// How many times each initiator declares another MaxRecvDataSegmentLength in full feature phase.
    pub declares: u32,
    /// What a socket holds.
    pub socket_bytes: usize,
}

/// A world to be run.
#[derive(Clone, Debug)]
pub struct Scenario {
    /// Where it comes from.
    pub seed: u64,
    /// What carries commands.
    pub transport: Transport,
    /// How many initiators.
    pub initiators: usize,
    /// How many units.
    pub units: u16,
    /// Length of a logical block.
    pub block_size: BlockSize,
    /// Length of a unit in blocks. Few, so that accesses meet.
    pub blocks: u64,
    /// What the media are like.
    pub medium: MediumPlan,
    /// How many orders each initiator sends.
    pub orders: u64,
    /// How many of them it keeps open.
    pub depth: usize,
    /// The longest transfer in blocks.
    pub transfer_max: u64,
    /// How long an initiator waits between two orders.
    pub think: Span,
    /// One order in so many is a task management function; zero for none.
    pub manages_one_in: u64,
    /// One order in so many concerns reservations; zero for none.
    pub reserves_one_in: u64,
    /// How often the power of the target is cut.
    pub crashes: u32,
    /// One step in so many an initiator's nexus is lost, in a transport that has no path of its own.
    pub nexus_losses: u32,
}

impl Scenario {
    /// Returns the world of a seed.
    pub fn of(seed: u64) -> Self {
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
            effect: Span::between(micros(effect / 20), micros(effect)),
            answer: Span::between(micros(0), micros(answer)),
            fails_one_in: *pick(&mut rng, &[0, 0, 200, 40]),
            block_len: usize::try_from(block_size.bytes()).unwrap(),
        };
        Self {
            seed,
            transport: if rng.chance(1, 5) {
                Transport::Direct
            } else {
                Transport::Iscsi(Box::new(IscsiPlan::of(&mut rng)))
            },
            initiators: 1 + usize::try_from(rng.below(3)).unwrap(),
            units: 1 + u16::try_from(rng.below(2)).unwrap(),
            block_size,
            blocks,
            medium,
            orders: 60 + rng.below(100),
            depth: 1 + usize::try_from(rng.below(24)).unwrap(),
            transfer_max: *pick(&mut rng, &[1, 4, 16, 40]),
            think: Span::between(Duration::ZERO, micros(*pick(&mut rng, &[1, 300, 5_000]))),
            manages_one_in: *pick(&mut rng, &[0, 60, 25]),
            reserves_one_in: *pick(&mut rng, &[0, 0, 30]),
            crashes: if volatile { u32::try_from(rng.below(3)).unwrap() } else { 0 },
            nexus_losses: u32::try_from(rng.below(4)).unwrap(),
        }
    }
}

impl Scenario {
    /// Returns how long it may take until all that can be open is carried over the slowest of links, twice as long to be
    /// fair.
    pub fn backlog(&self) -> Duration {
        let Transport::Iscsi(plan) = &self.transport else { return Duration::ZERO };
        let orders = u64::try_from(self.depth * self.initiators).unwrap_or(u64::MAX);
        let bytes = orders * self.transfer_max * u64::from(self.block_size.bytes());
        let round = plan.forward.delay.to + plan.backward.delay.to;
        // One burst, or what the socket holds, for each time there and back.
        let burst = plan.initiator_keys.max_burst_length.min(plan.target_keys.max_burst_length);
        let step = u64::from(burst).min(u64::try_from(plan.socket_bytes).unwrap_or(u64::MAX)).max(1);
        let rounds = u32::try_from(bytes.div_ceil(step)).unwrap_or(u32::MAX);
        round.saturating_mul(rounds).saturating_mul(2)
    }

    /// Returns whether initiators end tasks of others.
    pub const fn aborts(&self) -> bool {
        self.manages_one_in > 0 || self.reserves_one_in > 0
    }
}

impl IscsiPlan {
    fn of(rng: &mut Rng) -> Self {
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
                patience,
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
                data_within: seconds(10),
                repair_after: Duration::from_millis(*pick(rng, &[100, 700, 2000])),
                ..Limits::default()
            },
            forward: way(rng, faults),
            backward: way(rng, faults),
            connect_within: Span::between(Duration::from_micros(50), Duration::from_millis(3)),
            connects_fail_per_mille: *pick(rng, &[0, 0, 100, 400]),
            socket_bytes: *pick(rng, &[2 << 10, 64 << 10, 1 << 20]),
            declares: *pick(rng, &[0, 0, 3, 30]),
        }
    }
}

/// Keys at random, without those that the caller decides about.
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

/// One direction at random, with `faults` times one fault in ten thousand units of each kind that the dice choose.
fn way(rng: &mut Rng, faults: u32) -> StreamPlan {
    let mut odds = |weight: u32| {
        if rng.chance(1, 2) { Odds(faults * weight) } else { Odds::NEVER }
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
    plan.stall_for = Span::between(Duration::from_millis(1), Duration::from_secs(8));
    let micros = *pick(rng, &[0, 100, 2000, 20_000]);
    plan.delay = Span::between(Duration::from_micros(micros / 10), Duration::from_micros(micros));
    plan.bytes_per_s = *pick(rng, &[0, 0, 100_000_000, 2_000_000]);
    plan.piece_len_max = *pick(rng, &[0, 0, 30, 700, 9000]);
    plan.spare_opening = rng.chance(2, 3);
    plan.faults_max = *pick(rng, &[1, 5, 1000]);
    plan
}

/// Picks one of several.
pub fn pick<'a, T>(rng: &mut Rng, from: &'a [T]) -> &'a T {
    &from[usize::try_from(rng.below(u64::try_from(from.len()).unwrap())).unwrap()]
}

impl fmt::Display for Scenario {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self:?}")
    }
}
