//! Reasons not to give a headline: signs that a run measured something else than its contestants.
//!
//! A mean over workloads hides both signs: a base whose rounds spread, and work that costs less than nothing.
//! Neither shows in the confidence interval of the mean. Every sentence of a summary that compares takes its
//! figures from the groups of measurements that [`steady_groups`] returns, and from no others.

use crate::report::Better;
use crate::statistics::{Change, holm};
use crate::text::{change, counted};

/// From this ratio of the fastest round of a base to its slowest on, the base is not one value.
const SPREAD_MAX: f64 = 1.5;

/// Applies the rule for headlines to groups of measurements. `look` returns what a headline of a group is
/// about, and what speaks against it. Returns the groups that headlines may use, and the sentences that stand
/// in place of the headlines of the others.
pub(crate) fn steady_groups<G>(
    groups: impl IntoIterator<Item = G>,
    look: impl Fn(&G) -> (String, Doubts),
) -> (Vec<G>, Vec<String>) {
    let (mut steady, mut withheld) = (Vec::new(), Vec::new());
    for group in groups {
        let (about, doubts) = look(&group);
        match doubts.sentence(&about) {
            Some(doubt) => withheld.push(doubt),
            None => steady.push(group),
        }
    }
    (steady, withheld)
}

/// What speaks against the headline of some workloads.
#[derive(Clone, Debug, Default)]
pub(crate) struct Doubts {
    /// Bases whose rounds spread: the base with its workload, and the ratio of its fastest to its slowest
    /// round.
    spreads: Vec<(String, f64)>,
    /// Changes for the worse or of nothing, if all is well: what was compared, the change, and which values
    /// are better.
    costs: Vec<(String, Change, Better)>,
}

impl Doubts {
    /// Looks at the rounds of a base, which `name` names together with its workload.
    pub(crate) fn look_at_base(&mut self, name: impl FnOnce() -> String, rounds: &[f64]) {
        let finite = || rounds.iter().copied().filter(|round| round.is_finite() && *round > 0.0);
        let (least, most) = (finite().fold(f64::INFINITY, f64::min), finite().fold(0.0, f64::max));
        if most / least >= SPREAD_MAX {
            self.spreads.push((name(), most / least));
        }
    }

    /// Records the change of a rate from less work to more work. The name is `TLS 1.3 than plain, read 4K`.
    pub(crate) fn add_cost(&mut self, name: String, change: Change) {
        self.costs.push((name, change, Better::Higher));
    }

    /// Records the change of a latency from less work to more work, with a name as that of a rate.
    pub(crate) fn add_latency(&mut self, name: String, change: Change) {
        self.costs.push((name, change, Better::Lower));
    }

    /// Returns the costs that are significantly a gain, the largest first.
    fn gains(&self) -> Vec<(&str, Change)> {
        let mut costs: Vec<(&str, Change, Better)> =
            self.costs.iter().map(|(name, change, better)| (name.as_str(), *change, *better)).collect();
        holm(costs.iter_mut().map(|(_, change, _)| change));
        costs.retain(|(_, change, better)| {
            change.significant && (change.percent > 0.0) == (*better == Better::Higher)
        });
        costs.sort_by(|(_, a, _), (_, b, _)| b.percent.abs().total_cmp(&a.percent.abs()));
        costs.into_iter().map(|(name, change, _)| (name, change)).collect()
    }

    /// Returns whether nothing speaks against a headline.
    pub(crate) fn is_empty(&self) -> bool {
        self.spreads.is_empty() && self.gains().is_empty()
    }

    /// Returns the sentence that stands in place of the headline; none without a doubt. `about` is what the
    /// headline would be about.
    pub(crate) fn sentence(&self, about: &str) -> Option<String> {
        let others = |count: usize| match count {
            0 | 1 => String::new(),
            count => format!(", and {} alike", counted(count - 1, "other")),
        };
        let worst = self.spreads.iter().max_by(|(_, a), (_, b)| a.total_cmp(b));
        let spread = worst.map(|(name, ratio)| {
            format!(
                "between the rounds, {name} varied by a factor of {ratio:.1}{}",
                others(self.spreads.len())
            )
        });
        let gains = self.gains();
        let gain = gains.first().map(|(name, gain)| {
            format!(
                "more work was significantly faster than less: {name}, {}{}",
                change(gain),
                others(gains.len())
            )
        });
        let reasons: Vec<String> = spread.into_iter().chain(gain).collect();
        (!reasons.is_empty()).then(|| {
            format!(
                "This run gives no headline for {about}, since the machine was not steady: {}. Run it again with more \
                 rounds, on a machine that does nothing else.",
                reasons.join("; ")
            )
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::statistics::{Pairing, percent_change};

    fn cost(percent: f64, noise: f64) -> Change {
        let base = [100.0, 101.0, 99.0, 100.5, 99.5];
        let signs = [1.0, -1.0, 0.5, -0.5, 0.0];
        let other: Vec<f64> = base
            .iter()
            .zip(signs)
            .map(|(base, sign)| base * (1.0 + percent / 100.0) * (1.0 + sign * noise / 100.0))
            .collect();
        percent_change(&base, &other, Pairing::Paired)
    }

    #[test]
    fn a_base_whose_rounds_spread_is_named_with_the_worst_one() {
        let mut doubts = Doubts::default();
        doubts.look_at_base(|| unreachable!("steady"), &[100.0, 149.0, 120.0, f64::NAN]);
        doubts.look_at_base(|| unreachable!("one round"), &[100.0]);
        doubts.look_at_base(|| unreachable!("no round"), &[]);
        assert!(doubts.is_empty() && doubts.sentence("iSCSI").is_none());
        doubts.look_at_base(|| "plain with write 512".to_owned(), &[100.0, 191.0]);
        doubts.look_at_base(|| "plain with read 1M".to_owned(), &[330.0, 100.0]);
        let text = doubts.sentence("iSCSI on 1 Gbit/s").unwrap();
        assert!(text.starts_with("This run gives no headline for iSCSI on 1 Gbit/s, since"), "{text}");
        assert!(text.contains("plain with read 1M varied by a factor of 3.3, and 1 other alike."), "{text}");
    }

    #[test]
    fn more_work_that_is_significantly_faster_is_named_and_chance_is_not() {
        let mut doubts = Doubts::default();
        for (name, percent) in
            [("TLS than plain", -60.0), ("header than none", 0.3), ("data than none", -0.2)]
        {
            doubts.add_cost(name.to_owned(), cost(percent, 1.0));
        }
        assert!(doubts.is_empty(), "{doubts:?}");
        doubts.add_cost("AEAD than plain with write 4K".to_owned(), cost(29.0, 1.0));
        let text = doubts.sentence("iSCSI").unwrap();
        assert!(
            text.contains(
                "more work was significantly faster than less: AEAD than plain with write 4K, +29 %"
            )
        );
        assert!(!text.contains("varied") && !text.contains("alike"), "{text}");
    }

    #[test]
    fn a_latency_is_a_gain_if_it_falls() {
        for (percent, is_gain) in [(-20.0, true), (20.0, false)] {
            let mut doubts = Doubts::default();
            doubts.add_latency("both digests than none".to_owned(), cost(percent, 1.0));
            assert_eq!(!doubts.is_empty(), is_gain, "{percent}");
        }
    }

    #[test]
    fn groups_with_doubts_are_left_out_with_a_sentence() {
        let look = |rounds: &[f64; 2]| {
            let mut doubts = Doubts::default();
            doubts.look_at_base(|| "plain".to_owned(), rounds);
            (format!("{} MB/s", rounds[0]), doubts)
        };
        let (steady, withheld) = steady_groups([[100.0, 190.0], [100.0, 110.0]], look);
        assert_eq!((steady, withheld.len()), (vec![[100.0, 110.0]], 1));
        assert!(withheld[0].starts_with("This run gives no headline for 100 MB/s, since"), "{withheld:?}");
    }
}
