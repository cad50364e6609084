//! The mutants of targets.

use crate::mutant::Mutant;

pub(crate) use changer::on_element_descriptors;

mod changer;
mod chap;
mod data;
mod disc;
mod login;
mod management;
mod pages;
mod recovery;
mod session;
mod tape;
mod text;

/// Returns the rows of all tables.
pub(crate) fn mutants() -> impl Iterator<Item = &'static Mutant> {
    let tables = [
        data::MUTANTS,
        management::MUTANTS,
        recovery::MUTANTS,
        session::MUTANTS,
        text::MUTANTS,
        login::MUTANTS,
        chap::MUTANTS,
        tape::MUTANTS,
        changer::MUTANTS,
        disc::MUTANTS,
    ];
    tables.into_iter().flatten()
}
