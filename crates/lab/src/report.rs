//! The report of an experiment: what was measured, on what machine, what it means, and how to run it again.
//!
//! An experiment builds a [`Report`]. The report is the same whether the experiment was completed or ended
//! early; [`Ended`] tells. [`Report::write`] writes it for readers and for programs, [`Report::read`] reads
//! it back, and [`compare::compare`] tells what changed between two reports.

pub(crate) mod caveats;
pub(crate) mod cells;
pub mod compare;
mod csv;
pub(crate) mod doubts;
mod files;
mod html;
mod markup;
pub mod model;
pub(crate) mod negotiated;
pub mod number;
mod plot;

#[cfg(test)]
pub(crate) mod testing;
#[cfg(test)]
mod tests;

pub use files::{Files, LEN_MAX, ReadError};
pub use model::*;
