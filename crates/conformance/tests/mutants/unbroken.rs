//! The cases that no mutant breaks, and why.

/// Cases on a target; a pattern that ends with `*` names all cases that begin so.
pub(crate) const OF_TARGETS: &[(&str, &str)] = &[];

/// Cases on an initiator.
pub(crate) const OF_INITIATORS: &[(&str, &str)] =
    &[("ffp-i-15.2", "the true initiator pings only after many seconds")];

/// Cases that run with their mutants alone: with the true peer they take too long for a test that runs with
/// every change. `make conform` runs them with it.
pub(crate) const SLOW: &[&str] = &[
    // The target pings after a silence of many seconds. The mutants send a ping of their own.
    "ffp-t-15.2",
];
