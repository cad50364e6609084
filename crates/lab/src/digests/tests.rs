//! Reports from synthetic samples.
