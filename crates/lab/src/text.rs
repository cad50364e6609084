//! Numbers in sentences.

use crate::statistics::Change;

/// Formats a percentage with three digits at most: `0.4`, `12`.
pub(crate) fn percent(value: f64) -> String {
    let value = if value.abs() < 0.05 { 0.0 } else { value };
    if value.abs() >= 10.0 { format!("{value:.0}") } else { format!("{value:.1}") }
}

/// Formats what a change costs with its interval: `0.4 % of throughput (95 % CI 0.1 to 0.7 %)`.
pub(crate) fn cost(change: &Change) -> String {
    let cost = percent(-change.percent);
    if !(change.low.is_finite() && change.high.is_finite()) {
        return format!("{cost} % of throughput (one round, so no confidence interval)");
    }
    format!("{cost} % of throughput (95 % CI {} to {} %)", percent(-change.high), percent(-change.low))
}

/// Joins words as a list: `a, b and c`.
pub(crate) fn joined(words: &[String]) -> String {
    match words {
        [] => String::new(),
        [one] => one.clone(),
        [first @ .., last] => format!("{} and {last}", first.join(", ")),
    }
}

/// Returns `1 workload` or `2 workloads`.
pub(crate) fn counted(count: usize, noun: &str) -> String {
    if count == 1 { format!("1 {noun}") } else { format!("{count} {noun}s") }
}
