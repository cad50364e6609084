//! Which bytes of a read were answered.

use alloc::vec::Vec;

use super::error::ProtocolError;

/// The most separate runs of bytes while a read is incomplete. A server that answers in order needs one.
const RUNS_MAX: usize = 256;

/// The runs of bytes that were answered: sorted, apart from each other, not empty.
#[derive(Debug, Default)]
pub(super) struct Coverage(Vec<(u32, u32)>);

impl Coverage {
    /// Adds a run, as its start and its length, whose end the caller has checked.
    pub(super) fn add(&mut self, start: u32, len: u32) -> Result<(), ProtocolError> {
        let end = start.saturating_add(len);
        let after = self.0.partition_point(|(run_start, _)| *run_start < start);
        let before = after.checked_sub(1);
        let run = |at: Option<usize>| at.and_then(|at| self.0.get(at)).copied();
        let (left, right) = (run(before), run(Some(after)));
        if left.is_some_and(|(_, left_end)| left_end > start)
            || right.is_some_and(|(right_start, _)| right_start < end)
        {
            return Err(ProtocolError::ChunksOverlap);
        }
        let joins_left = left.filter(|(_, left_end)| *left_end == start);
        let joins_right = right.filter(|(right_start, _)| *right_start == end);
        match (joins_left, joins_right) {
            (None, None) if self.0.len() >= RUNS_MAX => return Err(ProtocolError::TooManyChunks),
            (None, None) => self.0.insert(after, (start, end)),
            (Some((left_start, _)), None) => self.set(before, (left_start, end)),
            (None, Some((_, right_end))) => self.set(Some(after), (start, right_end)),
            (Some((left_start, _)), Some((_, right_end))) => {
                self.set(before, (left_start, right_end));
                self.0.remove(after);
            }
        }
        Ok(())
    }

    /// Returns whether all of the first `len` bytes were answered.
    pub(super) fn is_whole(&self, len: u32) -> bool {
        self.0.as_slice() == [(0, len)]
    }

    fn set(&mut self, at: Option<usize>, run: (u32, u32)) {
        if let Some(place) = at.and_then(|at| self.0.get_mut(at)) {
            *place = run;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::vec;

    use base::rng::Rng;

    use super::*;

    #[test]
    fn runs_in_any_order_make_a_whole_and_none_is_accepted_twice() {
        let seed = 0x00c0_4e4a_u64;
        let mut rng = Rng::from_seed(seed);
        for round in 0..500 {
            let mut runs: Vec<(u32, u32)> = Vec::new();
            let mut at = 0;
            while at < 300 {
                let len = u32::try_from(1 + rng.below(40)).unwrap();
                runs.push((at, len));
                at += len;
            }
            for last in (1..runs.len()).rev() {
                let other = usize::try_from(rng.below(u64::try_from(last + 1).unwrap())).unwrap();
                runs.swap(last, other);
            }
            let mut coverage = Coverage::default();
            for (count, (start, len)) in runs.iter().enumerate() {
                assert!(!coverage.is_whole(at), "seed {seed}, round {round}");
                coverage.add(*start, *len).unwrap();
                for (start, len) in runs.iter().take(count + 1) {
                    let inside = start + u32::try_from(rng.below(u64::from(*len))).unwrap();
                    let twice = coverage.add(inside, 1);
                    assert_eq!(twice, Err(ProtocolError::ChunksOverlap), "seed {seed}, round {round}");
                }
            }
            assert!(coverage.is_whole(at), "seed {seed}, round {round}");
        }
    }

    #[test]
    fn a_read_in_very_many_pieces_is_refused() {
        let mut coverage = Coverage::default();
        let result: Vec<_> =
            (0..=RUNS_MAX).map(|run| coverage.add(u32::try_from(run * 2).unwrap(), 1)).collect();
        assert_eq!(result.iter().position(Result::is_err), Some(RUNS_MAX));
        assert_eq!(result.last(), Some(&Err(ProtocolError::TooManyChunks)));
        assert_eq!(vec![(0, 1), (2, 3)], coverage.0[..2]);
    }
}
