//! What a seed makes of a world of tapes.

use base::rng::Rng;
use base::time::Duration;
use netem::probability::DurationRange;

use crate::scenario::{IscsiPlan, pick};

/// How many initiators, drives, slots, mail slots and cartridges there are.
pub(super) const INITIATORS: usize = 2;
pub(super) const DRIVES: usize = 2;
pub(super) const SLOTS: usize = 3;
pub(super) const MAIL_SLOTS: usize = 1;
pub(super) const CARTRIDGES: usize = 3;

/// The unit of the changer. The drives follow.
pub(super) const CHANGER: usize = 0;

/// Returns the name of a cartridge, which is its bar code too.
pub(super) fn name_of(cartridge: usize) -> String {
    format!("C{cartridge:05}L8")
}

/// The parameters of a world.
#[derive(Clone, Debug)]
pub struct TapePlan {
    /// The seed that they are drawn from.
    pub seed: u64,
    /// How many commands each initiator sends.
    pub commands: u64,
    /// How many commands an initiator keeps open.
    pub depth: usize,
    /// How long an initiator waits between two commands.
    pub think: DurationRange,
    /// One in this many operations is a task management function; zero for none.
    pub manages_one_in: u64,
    /// One in this many commands is one of the changer.
    pub moves_one_in: u64,
    /// How often the process is killed or the power is cut.
    pub crashes: u32,
    /// Whether it is the power: what was not flushed can be lost then.
    pub is_power: bool,
    /// How many I_T nexuses are lost.
    pub nexus_losses: u32,
    /// The time from the submission of a file operation to its effect, and from there to its completion.
    pub effect: DurationRange,
    /// See `effect`.
    pub answer: DurationRange,
    /// The longest record in bytes.
    pub record_len_max: u32,
    /// How long data of a WRITE take at most: a cartridge can be exchanged meanwhile.
    pub data_within: Duration,
    /// One in this many commands of drives is a MODE SELECT or MODE SENSE; zero for none.
    pub modes_one_in: u64,
    /// iSCSI between initiators and units; `None`: initiators call the units directly.
    pub iscsi: Option<Box<IscsiPlan>>,
}

impl TapePlan {
    /// Returns whether hosts set block lengths and use blocks of that length: those that have one command
    /// open at a time. The others could not know the length that is in force when a command arrives.
    pub(super) const fn has_fixed_blocks(&self) -> bool {
        self.modes_one_in > 0 && self.depth == 1
    }

    /// Returns the world of a seed.
    pub fn of(seed: u64) -> Self {
        let mut rng = Rng::from_seed(seed ^ 0x7461_7065_6c69_6272);
        let micros = Duration::from_micros;
        let effect = *pick(&mut rng, &[0, 300, 5_000, 40_000]);
        let answer = *pick(&mut rng, &[0, 200, 5_000]);
        Self {
            seed,
            commands: 40 + rng.below(60),
            depth: 1 + usize::try_from(rng.below(2)).unwrap(),
            think: DurationRange::between(Duration::ZERO, micros(*pick(&mut rng, &[1, 300, 5_000]))),
            manages_one_in: *pick(&mut rng, &[0, 40, 15]),
            moves_one_in: *pick(&mut rng, &[40, 12, 5]),
            crashes: u32::try_from(rng.below(4)).unwrap(),
            is_power: rng.chance(2, 3),
            nexus_losses: u32::try_from(rng.below(4)).unwrap(),
            effect: DurationRange::between(micros(effect / 20), micros(effect)),
            answer: DurationRange::between(Duration::ZERO, micros(answer)),
            record_len_max: *pick(&mut rng, &[300, 5_000, 60_000]),
            data_within: micros(*pick(&mut rng, &[200, 200, 100_000])),
            modes_one_in: *pick(&mut rng, &[0, 12, 6]),
            iscsi: None,
        }
    }

    /// Returns the world of a seed in which iSCSI carries the commands.
    pub fn iscsi(seed: u64) -> Self {
        let mut rng = Rng::from_seed(seed ^ 0x7461_7065_6973_6373);
        let iscsi = IscsiPlan::of(&mut rng);
        let plain = Self::of(seed);
        Self {
            commands: 30 + rng.below(40),
            crashes: if rng.chance(1, 2) { 0 } else { plain.crashes },
            record_len_max: *pick(&mut rng, &[300, 5_000, 20_000]),
            iscsi: Some(Box::new(iscsi)),
            ..plain
        }
    }
}
