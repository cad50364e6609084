//! Runs every case against mutants: peers that keep all rules but the one that the case is for. The case must
//! fail there, and for that reason; with a peer that keeps all rules it must pass.
//!
//! A mutant is one row of a table: the case, what the verdict must say, and a change of the PDUs of a true
//! peer on their way. [`relay`] takes the streams apart, so that a row sees whole PDUs, and puts right
//! digests on them again. The true target is targe's daemon, and the true initiator targe's library. A case
//! has several mutants where it checks several things. A mutant of a tape drive, changer or disc drive
//! changes the CDBs that reach it, and the data and sense data that it returns. A few rows break no rule but
//! use what a rule allows: there the case must pass.
//!
//! After each case on a tape drive, changer or disc drive the unit must be as the case found it ([`found`]).
//!
//! A case without a mutant stands in [`unbroken`], with its reason. A case with neither fails the test.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::cast_possible_truncation,
    clippy::cast_possible_wrap,
    reason = "all of this is test code, where a panic is the verdict"
)]

mod devices;
mod driven;
mod found;
mod idle;
mod initiators;
mod judge;
mod mutant;
mod pdu;
mod relay;
mod served;
mod targets;
mod unbroken;

use std::collections::BTreeSet;

use conformance::CaseInfo;
use mutant::Mutant;

/// Fails unless every case has a mutant or a reason to have none, and every row names a case.
fn expect_whole(list: &[CaseInfo], mutants: &[&Mutant], unbroken: &[(&str, &str)]) {
    let cases: BTreeSet<&str> = list.iter().map(|case| case.id).collect();
    let broken = mutants.iter().filter(|mutant| mutant.why.is_some());
    let broken: BTreeSet<&str> = broken.map(|mutant| mutant.case).collect();
    let excused: Vec<&str> = unbroken.iter().map(|(pattern, _)| *pattern).collect();
    let is_excused = |case: &str| excused.iter().any(|pattern| names(pattern, case));
    let bare: Vec<_> = cases.iter().filter(|case| !broken.contains(**case) && !is_excused(case)).collect();
    assert!(bare.is_empty(), "cases without a mutant, and without a reason in unbroken.rs: {bare:?}");
    let strange: Vec<_> = broken.difference(&cases).collect();
    assert!(strange.is_empty(), "mutants of cases that do not exist: {strange:?}");
    let needless: Vec<_> =
        excused.iter().filter(|pattern| !cases.iter().any(|case| names(pattern, case))).collect();
    assert!(needless.is_empty(), "reasons for cases that do not exist: {needless:?}");
    let both: Vec<_> = broken.iter().filter(|case| is_excused(case)).collect();
    assert!(both.is_empty(), "cases with mutants and a reason to have none: {both:?}");
}

/// Returns whether a pattern names a case; a pattern that ends with `*` names all cases that begin so.
fn names(pattern: &str, case: &str) -> bool {
    pattern.strip_suffix('*').map_or(pattern == case, |begin| case.starts_with(begin))
}

#[test]
fn every_case_on_a_target_has_a_mutant_or_a_reason_to_have_none() {
    let mutants: Vec<&Mutant> = targets::mutants().collect();
    expect_whole(&conformance::target::list(), &mutants, unbroken::OF_TARGETS);
}

#[test]
fn each_case_on_a_target_fails_with_its_mutants_alone() {
    judge::expect_all(judge::judge_target, targets::mutants().collect());
}

#[test]
fn every_case_on_an_initiator_has_a_mutant_or_a_reason_to_have_none() {
    let mutants: Vec<&Mutant> = initiators::mutants().collect();
    expect_whole(&conformance::initiator::list(), &mutants, unbroken::OF_INITIATORS);
}

#[test]
fn each_case_on_an_initiator_fails_with_its_mutants_alone() {
    judge::expect_all(judge::judge_initiator, initiators::mutants().collect());
}

#[test]
fn is_the_initiator_of_a_case() {
    driven::obey().unwrap();
}
