//! What a seed stands for: how many initiators, what kind of path and media, which keys, which mix of operations.

use std::fmt;

use base::rng::Rng;
use base::time::Duration;
use base::units::BlockSize;
use netem::odds::Span;

use crate::media::MediumPlan;

/// Which transport carries the commands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Transport {
    /// None: initiators call the units directly. Nothing is hidden behind a protocol.
    Direct,
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
        let effect = *pick(&mut rng, &[0, 0, 300, 5_000, 80_000]);
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
            transport: Transport::Direct,
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

/// Picks one of several.
pub fn pick<'a, T>(rng: &mut Rng, from: &'a [T]) -> &'a T {
    &from[usize::try_from(rng.below(u64::try_from(from.len()).unwrap())).unwrap()]
}

impl fmt::Display for Scenario {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self:?}")
    }
}
