//! Rounds: each of them measures every cell of an experiment once, and within a cell its contestants directly
//! one after the other, in an order that rotates.

use crate::experiment::{Control, LabError};
use crate::report::Ended;

/// A cell of a round, and the progress of the run.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Place {
    pub(crate) round: usize,
    /// The index of the cell.
    pub(crate) at: usize,
    /// The measurements before this cell, and all of the run.
    pub(crate) done: usize,
    pub(crate) total: usize,
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
    pub(crate) fn seed(&self, of_plan: u64) -> u64 {
        round_seed(of_plan, self.round)
    }
}

/// Returns the seed of a round.
pub(crate) fn round_seed(of_plan: u64, round: usize) -> u64 {
    of_plan.wrapping_add(u64::try_from(round).unwrap_or(0))
}

/// Returns the order of so many contestants in a cell of a round.
pub(crate) fn order(count: usize, round: usize, at: usize) -> Vec<usize> {
    let mut order: Vec<usize> = (0..count).collect();
    order.rotate_left((round + at) % count.max(1));
    order
}

/// Measures round after round: calls `measure` for each cell, which has so many contestants.
///
/// # Errors
/// Those of `measure`, unless the run was stopped.
pub(crate) fn measure_all(
    rounds: u32,
    contestants: &[usize],
    control: &mut Control<'_>,
    mut measure: impl FnMut(Place, &mut Control<'_>) -> Result<(), LabError>,
) -> Result<Ended, LabError> {
    let rounds = usize::try_from(rounds).unwrap_or(usize::MAX);
    let total = rounds.saturating_mul(contestants.iter().sum());
    let mut done = 0;
    for round in 0..rounds {
        for (at, count) in contestants.iter().enumerate() {
            let is_measured = measure(Place { round, at, done, total }, control);
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
    for (step, index) in order(contestants.len(), place.round, place.at).into_iter().enumerate() {
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

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, Ordering};

    use super::*;

    #[test]
    fn every_contestant_is_first_in_its_turn() {
        let firsts: Vec<usize> = (0..4).map(|round| order(3, round, 1)[0]).collect();
        assert_eq!(firsts, [1, 2, 0, 1]);
        assert_eq!(order(3, 2, 0), [2, 0, 1]);
        assert!(order(0, 5, 5).is_empty());
        assert_eq!(round_seed(u64::MAX, 2), 1);
    }

    #[test]
    fn a_stop_ends_the_rounds_and_hides_the_failure_that_it_caused() {
        let stop = AtomicBool::new(false);
        let mut control = Control { stop: &stop, progress: &mut |_| () };
        let mut places = Vec::new();
        let ended = measure_all(2, &[3, 1], &mut control, |place, _| {
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
            measure_all(2, &[1], &mut control, |_, _| Err(LabError::Plan("a call failed".to_owned())));
        assert_eq!(failed.unwrap_err().to_string(), "a call failed");
    }

    #[test]
    fn a_round_that_is_not_complete_leaves_no_samples() {
        let place = Place { round: 1, at: 0, done: 6, total: 9 };
        let mut contestants: Vec<(char, Vec<usize>)> = ['a', 'b', 'c'].map(|name| (name, Vec::new())).into();
        let measure = |done, name| Ok(if name == 'c' { Turn::Skipped } else { Turn::Measured(done) });
        measure_cell(place, &mut contestants, measure).unwrap();
        assert_eq!(contestants, [('a', vec![8]), ('b', vec![6]), ('c', vec![])]);
        let before = contestants.clone();
        let measure = |done, name| Ok(if name == 'a' { Turn::Stopped } else { Turn::Measured(done) });
        measure_cell(place, &mut contestants, measure).unwrap();
        assert_eq!(contestants, before);
    }
}
