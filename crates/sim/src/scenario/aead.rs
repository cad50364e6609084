//! Worlds whose iSCSI connections have an AEAD digest.

use base::rng::Rng;
use iscsi::aead::AeadDigest;
use netem::probability::Probability;

use super::{IscsiPlan, pick};

impl IscsiPlan {
    /// Draws whether the connections have an AEAD digest: in a quarter of the worlds. The digest has a random
    /// stream of its own, so that the other parameters of a seed are the same without it. Half of the worlds
    /// whose data is strained damage so much of it that it looks like the work of somebody on the way.
    pub(super) fn draw_aead(&mut self, seed: u64, is_strained: bool) {
        let mut rng = Rng::from_seed(seed ^ 0x6165_6164);
        if !rng.chance(1, 4) {
            return;
        }
        self.aead = Some((*pick(&mut rng, &AeadDigest::ALL), *pick(&mut rng, &[1, 20, 1000])));
        if is_strained && rng.chance(1, 2) {
            for way in [&mut self.forward, &mut self.backward] {
                way.corrupt_data = Probability(300_000);
            }
        }
    }
}
