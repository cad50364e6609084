//! The advice for a path, by a rule.

use crate::statistics::Change;

/// Below this cost in percent of throughput, digests are worth having without a second thought.
const CHEAP_BELOW: f64 = 2.0;
/// Above this cost, the user must weigh it against the risk.
const DEAR_ABOVE: f64 = 10.0;

/// What to do about both digests on a path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Advice {
    /// They cost less than 2 %.
    Enable,
    /// They cost 2 to 10 %.
    EnableUnlessThroughputCounts,
    /// They cost more than 10 %.
    Weigh,
    /// They cost nothing that could be measured, but the measurement is too coarse to tell 2 % from nothing.
    MeasureLonger,
}

/// Returns the advice for a change of throughput that both digests cause.
pub(super) fn advise(change: &Change) -> Advice {
    let cost = -change.percent;
    let is_open = !change.significant && (-change.low).max(-change.high) >= CHEAP_BELOW;
    match cost {
        _ if is_open => Advice::MeasureLonger,
        cost if cost < CHEAP_BELOW => Advice::Enable,
        cost if cost <= DEAR_ABOVE => Advice::EnableUnlessThroughputCounts,
        _ => Advice::Weigh,
    }
}

impl Advice {
    /// Returns the advice as a sentence about digests of this name. The cost follows it.
    pub(super) fn sentence(self, digests: &str) -> String {
        match self {
            Self::Enable => format!("use {digests}"),
            Self::EnableUnlessThroughputCounts => {
                format!("use {digests}, unless the last percent of throughput counts more than corrupt data")
            }
            Self::Weigh => format!("weigh the cost of {digests} against the risk of corrupt data"),
            Self::MeasureLonger => {
                "this run gives no advice; run it again with more rounds, on a machine that does nothing else"
                    .to_owned()
            }
        }
    }
}

/// Tells what digests are and what they buy.
pub(super) const BENEFIT: &str = "Digests are checksums (CRC32C) that iSCSI adds to the header and to the data of each \
     PDU. They detect corruption that the checksums of Ethernet and TCP miss: in switches, adapters, drivers and \
     memory. Leave them off only where a layer above checks the data, such as a file system with checksums.";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn advice_follows_the_cost() {
        let change = |percent: f64, half: f64| Change {
            percent,
            low: percent - half,
            high: percent + half,
            p: 0.5,
            significant: percent.abs() > half,
        };
        for (change, advice) in [
            (change(-0.4, 0.2), Advice::Enable),
            (change(-0.4, 1.0), Advice::Enable),
            (change(1.0, 0.5), Advice::Enable),
            (change(-1.99, 0.1), Advice::Enable),
            (change(-2.0, 0.1), Advice::EnableUnlessThroughputCounts),
            (change(-10.0, 1.0), Advice::EnableUnlessThroughputCounts),
            (change(-10.1, 1.0), Advice::Weigh),
            (change(-0.4, 5.0), Advice::MeasureLonger),
            (change(-12.0, 30.0), Advice::MeasureLonger),
            (change(-12.0, f64::INFINITY), Advice::MeasureLonger),
        ] {
            assert_eq!(advise(&change), advice, "{change:?}");
        }
    }
}
