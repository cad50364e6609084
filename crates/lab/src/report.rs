//! The report of an experiment: what was measured, on what machine, what it means, and how to run it again.
//!
//! An experiment builds a [`Report`]. The report is the same whether the experiment was completed or ended
//! early; [`Ended`] tells.

pub mod model;

pub use model::*;
