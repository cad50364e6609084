//! Rounds: each of them measures every cell of an experiment once, and within a cell its contestants directly
//! one after the other.
//!
//! What a contestant leaves behind (a warm cache, a busy disk, a hot processor) disturbs the one after it.
//! The rounds of a cell therefore take the rows of a Williams square, in which each contestant has each
//! place, and comes directly after each other one, equally often. The seed of the plan draws the names and
//! the order of the rows anew for every cell, so that rounds that do not fill a square favour none over all
//! cells.

use base::rng::Rng;

use crate::experiment::{Control, LabError};
use crate::report::{Ended, Section};

/// A cell of a round, and the progress of the run.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Place {
    pub(crate) round: usize,
    /// The index of the cell.
    pub(crate) at: usize,
    /// The measurements before this cell, and all of the run.
    pub(crate) done: usize,
    pub(crate) total: usize,
    /// The seed of the plan.
    pub(crate) seed: u64,
}

/// The outcome of a contestant's turn.
#[derive(Debug)]
pub(crate) enum Turn<S> {
    Measured(S),
    /// This contestant is not there, and the others go on.
    Skipped,
    /// The run is to end: the round leaves no samples.
    Stopped,
}

impl Place {
    /// Returns the seed of the round: every contestant of a round meets the same addresses and data.
    pub(crate) fn round_seed(&self) -> u64 {
        round_seed(self.seed, self.round)
    }
}

/// Returns the seed of a round.
pub(crate) fn round_seed(of_plan: u64, round: usize) -> u64 {
    of_plan.wrapping_add(u64::try_from(round).unwrap_or(0))
}

/// Returns the order of so many contestants in a cell of a round.
pub(crate) fn order(count: usize, (round, at): (usize, usize), seed: u64) -> Vec<usize> {
    let rows = square_rows(count);
    let number = |index: usize| u64::try_from(index).unwrap_or(0);
    // Rounds beyond the last row of a square begin another one.
    let square = round.checked_div(rows).unwrap_or(0);
    let mut rng = Rng::from_seed(
        seed ^ number(at + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15)
            ^ number(square).wrapping_mul(0xd1b5_4a32_d192_ed03),
    );
    let (names, places) = (shuffled(count, &mut rng), shuffled(rows, &mut rng));
    let row = round.checked_rem(rows).and_then(|row| places.get(row).copied()).unwrap_or(0);
    square_row(count, row).into_iter().filter_map(|index| names.get(index).copied()).collect()
}

/// Describes the order for a report, with the seed that draws it.
pub(crate) fn section(seed: u64) -> Section {
    let text = format!(
        "The rounds of a workload take the rows of a Williams square, in which each contestant comes directly after each \
         other one equally often. The seed {seed} draws the square of every workload anew."
    );
    Section { title: "Order of the measurements".to_owned(), text: vec![text], ..Section::default() }
}

/// Returns the number of rows of a Williams square: it needs two squares of an odd number of contestants.
const fn square_rows(count: usize) -> usize {
    if count > 1 && !count.is_multiple_of(2) { 2 * count } else { count }
}

/// Returns a row of a Williams square: `0, 1, n - 1, 2, n - 2 …`, moved on by the number of the row. The
/// second square of an odd number has the same rows backwards.
fn square_row(count: usize, row: usize) -> Vec<usize> {
    let place = |step: usize| if step.is_multiple_of(2) { count - step / 2 } else { step.div_ceil(2) };
    let mut order: Vec<usize> = (0..count).map(|step| (place(step) + row) % count).collect();
    if row >= count {
        order.reverse();
    }
    order
}

/// Returns the numbers below `count` in a random order (Fisher and Yates).
fn shuffled(count: usize, rng: &mut Rng) -> Vec<usize> {
    let mut numbers: Vec<usize> = (0..count).collect();
    for last in (1..count).rev() {
        let bound = u64::try_from(last + 1).unwrap_or(u64::MAX);
        numbers.swap(last, usize::try_from(rng.below(bound)).unwrap_or(0));
    }
    numbers
}

/// Measures round after round: calls `measure` for each cell, which has so many contestants. The seed is that
/// of the plan.
///
/// # Errors
/// Those of `measure`, unless the run was stopped.
pub(crate) fn measure_all(
    (rounds, seed): (u32, u64),
    contestants: &[usize],
    control: &mut Control<'_>,
    mut measure: impl FnMut(Place, &mut Control<'_>) -> Result<(), LabError>,
) -> Result<Ended, LabError> {
    let rounds = usize::try_from(rounds).unwrap_or(usize::MAX);
    let total = rounds.saturating_mul(contestants.iter().sum());
    let mut done = 0;
    for round in 0..rounds {
        for (at, count) in contestants.iter().enumerate() {
            let is_measured = measure(Place { round, at, done, total, seed }, control);
            // A signal may also have made a system call fail.
            if control.is_stopped() {
                return Ok(Ended::Early(format!("it was stopped in round {} of {rounds}", round + 1)));
            }
            is_measured?;
            done += count;
        }
    }
    Ok(Ended::Complete)
}

/// Measures the contestants of a cell in the order of the round: calls `measure` with the number of
/// measurements before, and adds what it returns to the samples. A round that is not complete leaves none.
///
/// # Errors
/// Those of `measure`.
pub(crate) fn measure_cell<C: Copy, S>(
    place: Place,
    contestants: &mut [(C, Vec<S>)],
    mut measure: impl FnMut(usize, C) -> Result<Turn<S>, LabError>,
) -> Result<(), LabError> {
    let mut fresh = Vec::new();
    for (step, index) in order_of(place, contestants.len()).into_iter().enumerate() {
        let Some((contestant, _)) = contestants.get(index) else { continue };
        match measure(place.done + step, *contestant)? {
            Turn::Measured(sample) => fresh.push((index, sample)),
            Turn::Skipped => {}
            Turn::Stopped => return Ok(()),
        }
    }
    for (index, sample) in fresh {
        if let Some((_, samples)) = contestants.get_mut(index) {
            samples.push(sample);
        }
    }
    Ok(())
}

fn order_of(place: Place, count: usize) -> Vec<usize> {
    order(count, (place.round, place.at), place.seed)
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, Ordering};

    use super::*;

    /// Counts how often each contestant has each place, and comes directly after each other one.
    fn counted(count: usize, orders: impl Iterator<Item = Vec<usize>>) -> (Vec<Vec<u32>>, Vec<Vec<u32>>) {
        let (mut places, mut after) = (vec![vec![0; count]; count], vec![vec![0; count]; count]);
        for order in orders {
            let mut sorted = order.clone();
            sorted.sort_unstable();
            assert!(sorted.into_iter().eq(0..count), "{order:?}");
            order.iter().enumerate().for_each(|(place, one)| places[*one][place] += 1);
            order.windows(2).for_each(|pair| after[pair[1]][pair[0]] += 1);
        }
        (places, after)
    }

    #[test]
    fn a_square_gives_each_contestant_each_place_and_each_predecessor_equally_often() {
        for count in 1..=9 {
            let rows = square_rows(count);
            for (at, square) in [(0, 0), (0, 1), (7, 0)] {
                let rounds = square * rows..(square + 1) * rows;
                let (places, after) = counted(count, rounds.map(|round| order(count, (round, at), 5)));
                let each = u32::try_from(rows / count).unwrap();
                assert!(places.iter().flatten().all(|times| *times == each), "{count}: {places:?}");
                for (one, before) in after.iter().enumerate() {
                    let mut others = before.iter().enumerate().filter(|(other, _)| *other != one);
                    assert!(others.all(|(_, times)| *times == each), "{count}: {after:?}");
                }
            }
        }
        assert!(order(0, (5, 5), 1).is_empty());
        assert_eq!(round_seed(u64::MAX, 2), 1);
    }

    /// Five rounds of six contestants in 24 cells: a rotation leaves four pairs of five in 120 of 144 cases.
    #[test]
    fn rounds_that_fill_no_square_favour_no_predecessor_over_all_cells() {
        for seed in [1, 2, std::process::id().into()] {
            let orders = (0..24).flat_map(|at| (0..5).map(move |round| order(6, (round, at), seed)));
            let (places, after) = counted(6, orders);
            // 120 turns of each: 20 in each place, and 100 of them after one of five others.
            assert!(places.iter().flatten().all(|times| (8..=32).contains(times)), "seed {seed}: {places:?}");
            for (one, before) in after.iter().enumerate() {
                let mut others = before.iter().enumerate().filter(|(other, _)| *other != one);
                assert!(others.all(|(_, times)| (8..=32).contains(times)), "seed {seed}: {after:?}");
            }
        }
    }

    #[test]
    fn the_seed_draws_the_orders() {
        let orders = |seed| (0..4).map(|at| order(5, (0, at), seed)).collect::<Vec<_>>();
        assert_eq!(orders(1), orders(1));
        assert_ne!(orders(1), orders(2));
        assert!(orders(1).windows(2).any(|pair| pair[0] != pair[1]), "cells have orders of their own");
        assert!(section(42).text[0].contains("seed 42"));
    }

    #[test]
    fn a_stop_ends_the_rounds_and_hides_the_failure_that_it_caused() {
        let stop = AtomicBool::new(false);
        let mut control = Control { stop: &stop, progress: &mut |_| () };
        let mut places = Vec::new();
        let ended = measure_all((2, 1), &[3, 1], &mut control, |place, _| {
            places.push((place.round, place.at, place.done, place.total));
            if places.len() == 3 {
                stop.store(true, Ordering::Relaxed);
                return Err(LabError::Plan("a call failed".to_owned()));
            }
            Ok(())
        });
        assert_eq!(places, [(0, 0, 0, 8), (0, 1, 3, 8), (1, 0, 4, 8)]);
        assert_eq!(ended.unwrap(), Ended::Early("it was stopped in round 2 of 2".to_owned()));
        stop.store(false, Ordering::Relaxed);
        let failed =
            measure_all((2, 1), &[1], &mut control, |_, _| Err(LabError::Plan("a call failed".to_owned())));
        assert_eq!(failed.unwrap_err().to_string(), "a call failed");
    }

    #[test]
    fn a_round_that_is_not_complete_leaves_no_samples() {
        let place = Place { round: 1, at: 0, done: 6, total: 9, seed: 3 };
        let turns = order(3, (1, 0), 3);
        let turn = |contestant: usize| 6 + turns.iter().position(|one| *one == contestant).unwrap();
        let mut contestants: Vec<(char, Vec<usize>)> = ['a', 'b', 'c'].map(|name| (name, Vec::new())).into();
        let measure = |done, name| Ok(if name == 'c' { Turn::Skipped } else { Turn::Measured(done) });
        measure_cell(place, &mut contestants, measure).unwrap();
        assert_eq!(contestants, [('a', vec![turn(0)]), ('b', vec![turn(1)]), ('c', vec![])]);
        let before = contestants.clone();
        let measure = |done, name| Ok(if name == 'a' { Turn::Stopped } else { Turn::Measured(done) });
        measure_cell(place, &mut contestants, measure).unwrap();
        assert_eq!(contestants, before);
    }
}
