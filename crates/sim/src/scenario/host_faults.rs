//! What happens to the hosts of HyperSCSI: they stand still or crash, and the target is upgraded.

use base::rng::Rng;
use base::time::Duration;
use netem::probability::DurationRange;

use super::pick;

/// A host stands still for a while: it neither reads its ports nor sends.
#[derive(Clone, Copy, Debug)]
pub struct Sleep {
    /// The host, modulo the number of hosts: 0 is the target, and the initiators follow.
    pub who: usize,
    /// When, counted from the start of the run.
    pub after: Duration,
    /// For how long.
    pub span: Duration,
}

/// The crash of an initiator.
#[derive(Clone, Copy, Debug)]
pub struct Death {
    /// The initiator, modulo the number of initiators.
    pub who: usize,
    /// When, counted from the start of the run.
    pub after: Duration,
}

/// A live upgrade: another target takes over the sessions and the units, if they become idle in time.
#[derive(Clone, Copy, Debug)]
pub struct Upgrade {
    /// When, counted from the start of the run.
    pub after: Duration,
    /// How long the target may take to become idle.
    pub patience: Duration,
    /// How long nobody serves the sessions.
    pub pause: Duration,
    /// Whether the attempt fails in the end, so that the old target goes on.
    pub fails: bool,
}

impl Upgrade {
    /// Draws the upgrades of a world: some in two of five.
    pub(super) fn draw(seed: u64) -> Vec<Self> {
        let mut rng = Rng::from_seed(seed ^ 0x75_7067_7261_6465);
        let count = *pick(&mut rng, &[0, 0, 0, 1, 4]);
        let draw = |_| {
            let mut span =
                |millis| DurationRange::between(Duration::ZERO, Duration::from_millis(millis)).pick(&mut rng);
            let (after, pause) = (span(1500), span(450));
            let patience = Duration::from_millis(*pick(&mut rng, &[400, 3000]));
            Self { after, patience, pause, fails: rng.chance(1, 4) }
        };
        (0..count).map(draw).collect()
    }
}
