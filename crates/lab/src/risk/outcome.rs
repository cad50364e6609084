//! What became of a trial, and the counts of a cell of the matrix.

use std::ops::AddAssign;

use crate::corrupter::Seen;
use initiator::SessionStats;

/// What became of one damaged PDU. Every trial has exactly one outcome.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Outcome {
    /// An end detected the damage and repaired it: GOOD, with the right data.
    Recovered,
    /// An end detected the damage, and the command or the session failed.
    Reported,
    /// Nothing was detected, and all data is right.
    Harmless,
    /// The data that was read, or a block on the medium, is wrong, and nobody was told.
    Wrong,
}

impl Outcome {
    /// Every outcome.
    pub const ALL: [Self; 4] = [Self::Recovered, Self::Reported, Self::Harmless, Self::Wrong];

    /// Returns the name in reports.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Recovered => "detected and recovered",
            Self::Reported => "detected and reported",
            Self::Harmless => "silent and harmless",
            Self::Wrong => "silent and wrong",
        }
    }
}

/// What can be seen of a trial from outside, whatever the target is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Facts {
    /// Whether the command and the session ended well.
    pub is_good: bool,
    /// Whether an end reacted to an error.
    pub is_detected: bool,
    /// Whether data that was reported as read or written is wrong: in the result of a READ that ended with
    /// GOOD, in the blocks of a WRITE that ended with GOOD, or in a block that the command did not name.
    pub is_wrong: bool,
}

impl Facts {
    /// Returns the outcome. Wrong data that nobody was told of decides, whatever else was detected: a failed
    /// command does not tell that another block was overwritten.
    pub const fn outcome(self) -> Outcome {
        match (self.is_wrong, self.is_good, self.is_detected) {
            (true, _, _) => Outcome::Wrong,
            (false, false, _) => Outcome::Reported,
            (false, true, true) => Outcome::Recovered,
            (false, true, false) => Outcome::Harmless,
        }
    }

    /// Returns whether the facts of a trial without a fault are a false alarm. A response that only came too
    /// late is none.
    pub const fn is_alarm(&self, timed_out: bool) -> bool {
        self.is_detected || self.is_wrong || !self.is_good && !timed_out
    }
}

/// Returns whether the initiator's counters or the wire show that an end detected an error. `before` and
/// `after` are the counters of one session.
pub fn is_detected(before: &SessionStats, after: &SessionStats, seen: &Seen) -> bool {
    let counts = |stats: &SessionStats| {
        stats.header_digest_errors
            + stats.data_digest_errors
            + stats.data_snacks
            + stats.status_snacks
            + stats.retries
            + stats.rejects
            + stats.reassigns
            + stats.replays
            + stats.connections_lost
            + stats.sessions_rebuilt
            + stats.sessions_continued
    };
    counts(after) > counts(before) || seen.is_reaction()
}

/// The counts of a cell of the matrix, or of one kind of fault.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Damaged PDUs.
    pub injected: u64,
    /// [`Outcome::Recovered`].
    pub recovered: u64,
    /// [`Outcome::Reported`].
    pub reported: u64,
    /// [`Outcome::Harmless`].
    pub harmless: u64,
    /// [`Outcome::Wrong`].
    pub wrong: u64,
    /// Trials in which a connection was closed or the session ended.
    pub dropped: u64,
    /// Trials whose fault found no PDU to damage.
    pub missed: u64,
    /// Trials without a fault.
    pub controls: u64,
    /// Trials without a fault in which an error was detected or reported, or data was wrong. A timeout alone
    /// is not one: a busy machine is late without any damage.
    pub false_alarms: u64,
    /// Trials, with a fault or without, in which the target did not respond in time.
    pub timed_out: u64,
    /// Wrong blocks at the end that no trial explains.
    pub unexplained: u64,
}

impl Counts {
    /// Counts a trial with a fault that was injected.
    pub const fn count(&mut self, outcome: Outcome, dropped: bool) {
        self.injected += 1;
        self.dropped += dropped as u64;
        match outcome {
            Outcome::Recovered => self.recovered += 1,
            Outcome::Reported => self.reported += 1,
            Outcome::Harmless => self.harmless += 1,
            Outcome::Wrong => self.wrong += 1,
        }
    }

    /// Returns how many trials had an outcome.
    pub const fn of(&self, outcome: Outcome) -> u64 {
        match outcome {
            Outcome::Recovered => self.recovered,
            Outcome::Reported => self.reported,
            Outcome::Harmless => self.harmless,
            Outcome::Wrong => self.wrong,
        }
    }

    /// Returns whether every injected fault has exactly one outcome.
    pub const fn is_exact(&self) -> bool {
        self.injected == self.recovered + self.reported + self.harmless + self.wrong
    }
}

impl AddAssign for Counts {
    fn add_assign(&mut self, other: Self) {
        self.injected += other.injected;
        self.recovered += other.recovered;
        self.reported += other.reported;
        self.harmless += other.harmless;
        self.wrong += other.wrong;
        self.dropped += other.dropped;
        self.missed += other.missed;
        self.controls += other.controls;
        self.false_alarms += other.false_alarms;
        self.timed_out += other.timed_out;
        self.unexplained += other.unexplained;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_combination_of_facts_has_its_outcome() {
        for (is_wrong, is_good, is_detected, outcome) in [
            (false, true, true, Outcome::Recovered),
            (false, false, true, Outcome::Reported),
            (false, false, false, Outcome::Reported),
            (false, true, false, Outcome::Harmless),
            (true, true, false, Outcome::Wrong),
            (true, true, true, Outcome::Wrong),
            (true, false, true, Outcome::Wrong),
            (true, false, false, Outcome::Wrong),
        ] {
            assert_eq!(Facts { is_good, is_detected, is_wrong }.outcome(), outcome);
        }
    }

    #[test]
    fn a_timeout_is_no_alarm_and_damage_is_one_even_with_a_timeout() {
        let (good, late) = (Facts { is_good: true, ..Facts::default() }, Facts::default());
        assert!(!good.is_alarm(false) && !late.is_alarm(true));
        assert!(late.is_alarm(false), "a command that failed");
        for timed_out in [false, true] {
            assert!(Facts { is_detected: true, ..good }.is_alarm(timed_out));
            assert!(Facts { is_wrong: true, ..late }.is_alarm(timed_out));
        }
    }

    #[test]
    fn any_counter_or_sign_on_the_wire_is_a_detection() {
        let (none, quiet) = (SessionStats::default(), Seen::default());
        assert!(!is_detected(&none, &none, &quiet));
        let traffic = SessionStats { tasks: 5, done: 5, pdus_in: 9, data_acks: 2, ..none };
        assert!(!is_detected(&none, &traffic, &quiet), "traffic is no detection");
        let digest = SessionStats { data_digest_errors: 1, ..none };
        assert!(is_detected(&none, &digest, &quiet) && !is_detected(&digest, &digest, &quiet));
        assert!(is_detected(&none, &none, &Seen { rejects: vec![2], ..Seen::default() }));
        assert!(is_detected(&none, &none, &Seen { closed_by_target: 1, ..Seen::default() }));
    }
}
