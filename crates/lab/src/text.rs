//! Numbers in sentences.

use crate::statistics::Change;

/// Formats a percentage with three digits at most: `0.4`, `12`.
pub(crate) fn percent(value: f64) -> String {
    let value = if value.abs() < 0.05 { 0.0 } else { value };
    if value.abs() >= 10.0 { format!("{value:.0}") } else { format!("{value:.1}") }
}

/// Formats what a change costs with its interval:
/// `0.4 % of the throughput (95 % confidence interval: 0.1 to 0.7 %)`.
pub(crate) fn cost(change: &Change) -> String {
    let cost = percent(-change.percent);
    if !(change.low.is_finite() && change.high.is_finite()) {
        return format!("{cost} % of the throughput (one round, so no confidence interval)");
    }
    let (low, high) = (percent(-change.high), percent(-change.low));
    format!("{cost} % of the throughput (95 % confidence interval: {low} to {high} %)")
}

/// Formats a change with its interval: `+4.1 % (2.0 to 6.2 %)`. An interval that tells nothing is left out.
pub(crate) fn change(change: &Change) -> String {
    let sign = if percent(change.percent).starts_with(['-', '0']) { "" } else { "+" };
    let text = format!("{sign}{} %", percent(change.percent));
    match change.high - change.low {
        width if !width.is_finite() => format!("{text} (one round, so no confidence interval)"),
        width if width > WIDTH_MAX => format!("{text} (very uncertain)"),
        _ => format!("{text} ({} to {} %)", percent(change.low), percent(change.high)),
    }
}

/// An interval that is wider than this, in percent, tells nothing.
const WIDTH_MAX: f64 = 100.0;

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

/// As [`counted`], of a count that may be longer than an index.
pub(crate) fn counted_u64(count: u64, noun: &str) -> String {
    counted(usize::try_from(count).unwrap_or(usize::MAX), noun)
}

/// Returns words with a capital first letter, as a sentence begins.
pub(crate) fn capitalized(words: &str) -> String {
    let mut letters = words.chars();
    letters.next().map_or_else(String::new, |first| first.to_uppercase().chain(letters).collect())
}
