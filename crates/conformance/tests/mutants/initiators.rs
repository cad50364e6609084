//! The mutants of initiators.

use crate::mutant::Mutant;

mod answers;
mod data;
mod numbers;

/// Returns the rows of all tables.
pub(crate) fn mutants() -> impl Iterator<Item = &'static Mutant> {
    [numbers::MUTANTS, data::MUTANTS, answers::MUTANTS].into_iter().flatten()
}
