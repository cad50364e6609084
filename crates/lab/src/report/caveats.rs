//! The caveats that experiments have in common.

use crate::text::{counted, counted_u64};

/// From this load average on, other programs disturb a measurement.
const LOAD_MAX: f64 = 0.5;
/// From so many rounds on, the confidence interval of a median is within the range of the samples.
const ROUNDS_ENOUGH: usize = 6;
/// From this deviation in percent on, a link is not the wire that it stands for.
const DEVIATION_MAX: f64 = 1.0;

/// Warns of other programs on the machine.
pub(crate) fn busy_machine(load_average: f64) -> Option<String> {
    (load_average >= LOAD_MAX).then(|| {
        format!(
            "Other programs used this machine (load average {load_average} at the start), which makes intervals wide."
        )
    })
}

/// Warns of intervals that are the whole range.
pub(crate) fn few_rounds(rounds: usize) -> Option<String> {
    (1..ROUNDS_ENOUGH).contains(&rounds).then(|| {
        format!(
            "With {}, intervals of single values are the whole range of the samples.",
            counted(rounds, "round")
        )
    })
}

/// Warns of figures of an unoptimized program.
pub(crate) fn debug_build() -> Option<String> {
    cfg!(debug_assertions)
        .then(|| "This is a debug build: the figures say nothing about a release build.".to_owned())
}

/// Tells of connections that were lost.
pub(crate) fn connections_lost(count: u64) -> Option<String> {
    (count > 0)
        .then(|| format!("{} broke and came back during measurements.", counted_u64(count, "connection")))
}

/// Warns of a link that is not as fast as a wire. The deviations are in percent, and the largest is told.
pub(crate) fn link_deviation(
    link: &str,
    deviations: impl IntoIterator<Item = Option<f64>>,
) -> Option<String> {
    let worst = deviations.into_iter().flatten().max_by(|a, b| a.abs().total_cmp(&b.abs()));
    let worst = worst.filter(|worst| worst.abs() >= DEVIATION_MAX)?;
    Some(format!(
        "The link {link} deviates by {worst:+.1} % from a wire: the machine was too busy for the shaper."
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn caveats_begin_at_their_limits() {
        assert!(busy_machine(0.49).is_none() && busy_machine(0.5).is_some());
        assert!(few_rounds(0).is_none() && few_rounds(5).is_some() && few_rounds(6).is_none());
        assert!(connections_lost(0).is_none());
        assert_eq!(connections_lost(1).unwrap(), "1 connection broke and came back during measurements.");
        assert!(link_deviation("a", [Some(0.9), None, Some(-0.99)]).is_none());
        assert!(
            link_deviation("a", [Some(0.9), None, Some(-1.2)]).unwrap().contains("link a deviates by -1.2 %")
        );
    }
}
