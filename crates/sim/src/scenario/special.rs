//! Special worlds, which only a share of the seeds make: LUNs that change while commands run (reloads),
//! memory shortage, media that corrupt data silently, changes that initiators repeat in a new session. A
//! world has at most one of these, so that the cause of a finding is known.

use base::rng::Rng;
use base::time::{Duration, Instant};
use base::units::BlockSize;
use netem::frame::FramePlan;
use netem::probability::{DurationRange, Probability};
use netem::stream::StreamPlan;

use super::{HyperPlan, IscsiPlan, Scenario, TransportPlan, pick};

/// How LUNs and access change while commands run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReloadPlan {
    /// The LUNs in use are 0 to this, exclusive. There are more disks than LUNs ([`Scenario::units`]).
    pub luns: u16,
    /// A reload happens after at most this many commands.
    pub every: u64,
    /// A reload happens after at most this time.
    pub within: Duration,
    /// Whether no reload concerns the last initiator.
    pub still: bool,
    /// Whether nothing but reloads goes wrong: a session may then be lost only by a reload that takes access
    /// away.
    pub calm: bool,
}

/// How media corrupt data silently. Each rate is one operation in so many; zero for none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CorruptionPlan {
    /// A write is misdirected: its data goes to another address, at most [`Self::shift_max`] blocks away.
    pub misdirects_one_in: u64,
    /// See `misdirects_one_in`.
    pub shift_max: u64,
    /// A write is lost: the medium acknowledges it and drops it.
    pub loses_one_in: u64,
    /// Bit rot: bits of one block flip, and stay flipped.
    pub rots_one_in: u64,
    /// A stale read: a read returns what a block held before the last write.
    pub reads_stale_one_in: u64,
    /// Bits of one block flip in the data that a read returns, not on the medium.
    pub flips_one_in: u64,
    /// How many corruptions there are in all, at most.
    pub harms_max: u32,
}

/// Whether worlds are special by default.
pub const SPECIAL: bool = true;

/// Longer than any operation takes in a world without random faults.
const SLOWEST: Duration = Duration::from_secs(5);

/// The denominator of the shares of special worlds.
const SHARE: u64 = 24;

impl Scenario {
    /// Makes a share of the worlds special.
    pub(super) fn make_special(mut self) -> Self {
        self.special = true;
        let mut rng = Rng::from_seed(self.seed ^ 0x7370_6563_6961_6c21);
        match rng.below(SHARE) {
            0..3 if !matches!(self.transport, TransportPlan::Direct) => self.reload(&mut rng),
            3..5 => self.shorten_memory(&mut rng),
            5..7 => self.harm(&mut rng),
            7..9 if !matches!(self.transport, TransportPlan::Direct) => self.repeat(&mut rng),
            _ => {}
        }
        self
    }

    fn reload(&mut self, rng: &mut Rng) {
        let luns = 2 + u16::try_from(rng.below(3)).unwrap();
        let calm = rng.chance(1, 2);
        self.units = luns + 1 + u16::try_from(rng.below(2)).unwrap();
        self.blocks = self.blocks.min(96);
        self.medium.len = self.block_size.len_of(base::units::Blocks(self.blocks)).map_or(0, |len| len.0);
        self.initiators = self.initiators.max(2);
        // The target's nexus bindings do not survive a loss of power.
        self.crashes = 0;
        // The fate of reservations when a unit is removed and its disk is served again is not modelled.
        self.reserves_one_in = 0;
        if rng.chance(1, 2) {
            // No initiator aborts tasks: each task must end by itself.
            self.manages_one_in = 0;
        } else if self.manages_one_in == 0 {
            self.manages_one_in = 40;
        }
        if calm {
            self.transport.calm();
        }
        self.reloads = Some(ReloadPlan {
            luns,
            every: *pick(rng, &[6, 15, 40]),
            within: *pick(rng, &[Duration::from_millis(20), Duration::from_secs(1), Duration::from_secs(4)]),
            still: rng.chance(2, 3),
            calm,
        });
    }

    fn shorten_memory(&mut self, rng: &mut Rng) {
        self.short_memory = true;
        self.initiators = 3;
        self.depth = 24;
        self.transfer_max = 40;
        if rng.chance(2, 3) {
            // One transfer is more than the share of any session while memory is short.
            self.block_size = BlockSize::B4096;
            self.medium.block_len = 4096;
            self.medium.len = self.blocks * 4096;
        }
        self.task_set_max = *pick(rng, &[2, 6, 64]);
        match &mut self.transport {
            TransportPlan::Direct => self.task_set_max = self.task_set_max.min(6),
            TransportPlan::Iscsi(plan) => plan.shorten_memory(rng),
            TransportPlan::HyperScsi(plan) => plan.shorten_memory(rng),
        }
    }

    /// Lets initiators repeat what they wrote, over paths on which sessions are lost, while others write.
    fn repeat(&mut self, rng: &mut Rng) {
        self.repeats_changes = true;
        self.initiators = self.initiators.max(2);
        // The judge of reservations knows no command that runs in two nexuses.
        self.reserves_one_in = 0;
        match &mut self.transport {
            TransportPlan::Direct => {}
            TransportPlan::Iscsi(plan) => {
                for way in [&mut plan.forward, &mut plan.backward] {
                    way.cut = Probability(*pick(rng, &[500, 2_000, 8_000]));
                    way.spare_login = true;
                    way.faults_max = way.faults_max.max(20);
                }
            }
            TransportPlan::HyperScsi(plan) => plan.lose_sessions(rng),
        }
    }

    fn harm(&mut self, rng: &mut Rng) {
        // Otherwise the medium without corruption would have to model what survives a loss of power.
        self.crashes = 0;
        let mut odds = |often: u64| if rng.chance(1, 2) { often } else { 0 };
        let plan = CorruptionPlan {
            misdirects_one_in: odds(15),
            shift_max: 3,
            loses_one_in: odds(15),
            rots_one_in: odds(25),
            reads_stale_one_in: odds(20),
            flips_one_in: odds(40),
            harms_max: 30,
        };
        let quiet = [plan.loses_one_in, plan.rots_one_in, plan.reads_stale_one_in, plan.flips_one_in];
        let misdirects = if quiet == [0; 4] { 15 } else { plan.misdirects_one_in };
        self.medium.corruption = Some(CorruptionPlan { misdirects_one_in: misdirects, ..plan });
    }
}

impl TransportPlan {
    /// Removes every random fault.
    fn calm(&mut self) {
        match self {
            Self::Direct => {}
            Self::Iscsi(plan) => {
                for way in [&mut plan.forward, &mut plan.backward] {
                    let (delay, bytes_per_s, piece_len_max) = (way.delay, way.bytes_per_s, way.piece_len_max);
                    *way = StreamPlan { delay, bytes_per_s, piece_len_max, ..StreamPlan::CLEAN };
                }
                plan.connects_fail_per_mille = 0;
                // Nothing is lost here, and slow PDUs must not be taken for lost.
                plan.session_limits.repair_after = SLOWEST;
                plan.limits.repair_after = SLOWEST;
            }
            Self::HyperScsi(plan) => {
                for way in plan.nets.iter_mut().flat_map(|net| [&mut net.forward, &mut net.backward]) {
                    *way = FramePlan { delay: way.delay, ..FramePlan::CLEAN };
                }
                plan.mtu_changes.clear();
                plan.sleeps.clear();
                plan.deaths.clear();
                plan.upgrades.clear();
                (plan.ring_part, plan.rekeys, plan.strangers) = (1, 0, 0);
                plan.key_frames = [None; 2];
            }
        }
    }
}

impl IscsiPlan {
    /// Gives the target too little memory for the data that its sessions want at a time, and lets hosts stand
    /// still in the middle of data.
    fn shorten_memory(&mut self, rng: &mut Rng) {
        self.limits.data_out_bytes_max = *pick(rng, &[16 << 10, 64 << 10]);
        self.limits.data_in_bytes_max = *pick(rng, &[16 << 10, 64 << 10, 192 << 10]);
        self.limits.unsent_bytes_max = *pick(rng, &[8 << 10, 64 << 10]);
        self.limits.queue_depth = *pick(rng, &[32, 128]);
        self.session_limits.tasks_max = *pick(rng, &[4, 10, 1024]);
        let comes_unasked = rng.chance(1, 2);
        for keys in [&mut self.initiator_keys, &mut self.target_keys] {
            keys.max_burst_length = 1 << 20;
            (keys.immediate_data, keys.initial_r2t) = (comes_unasked, !comes_unasked);
        }
        if rng.chance(1, 2) {
            // Longer than a data sequence may stand still while other sessions wait for its memory.
            self.forward.stall = Probability(*pick(rng, &[5_000, 30_000]));
            self.forward.stall_for = DurationRange::between(Duration::from_secs(5), Duration::from_secs(15));
            self.forward.faults_max = self.forward.faults_max.max(6);
        }
    }
}

impl HyperPlan {
    /// Cuts all paths several times, for longer than sessions last without one. Initiators log in again.
    fn lose_sessions(&mut self, rng: &mut Rng) {
        self.lost_after_ms = 2000;
        (self.retry.timeout, self.retry.attempts, self.retry.first) = (Duration::from_secs(60), 0, true);
        let mut from = Instant(0);
        for _ in 0..1 + rng.below(4) {
            let within = *pick(rng, &[20, 100, 400]);
            from = from.after(Duration::from_millis(1 + rng.below(within)));
            let to = from.after(Duration::from_millis(2500 + rng.below(6000)));
            let ways = self.nets.iter_mut().flat_map(|net| [&mut net.forward, &mut net.backward]);
            ways.for_each(|way| way.cuts.push((from, to)));
            from = to;
        }
    }

    fn shorten_memory(&mut self, rng: &mut Rng) {
        self.room_bytes = *pick(rng, &[8 << 10, 32 << 10, 128 << 10]);
        self.receive_slots = *pick(rng, &[24, 64, 512]);
        self.tasks_max = *pick(rng, &[4, 10, 1024]);
    }
}
