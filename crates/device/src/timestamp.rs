//! The device clock (SPC-5): milliseconds since the unit was started, or since the time that SET
//! TIMESTAMP set.
//!
//! The unit knows no calendar time. Until an application client sets the clock, it counts from zero and
//! reports that (TIMESTAMP ORIGIN).

use base::time::Instant;

/// The clock of one logical unit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Timestamp {
    /// The value of the clock at `since`.
    value_ms: u64,
    since: Instant,
    origin: u8,
}

/// TIMESTAMP ORIGIN (SPC-5): set to zero at start-up; set by SET TIMESTAMP.
const ORIGIN_START: u8 = 0b000;
const ORIGIN_SET: u8 = 0b010;

impl Timestamp {
    /// The length of the parameter list and of the parameter data.
    pub(crate) const LEN: usize = 12;

    /// Starts the clock at zero.
    pub(crate) const fn started(now: Instant) -> Self {
        Self { value_ms: 0, since: now, origin: ORIGIN_START }
    }

    /// Sets the clock from the parameter list of SET TIMESTAMP; `None` when it is too short.
    pub(crate) fn set(now: Instant, list: &[u8]) -> Option<Self> {
        let [_, _, _, _, value @ .., _, _] = *list.first_chunk::<{ Self::LEN }>()?;
        let [a, b, c, d, e, f] = value;
        let value_ms = u64::from_be_bytes([0, 0, a, b, c, d, e, f]);
        Some(Self { value_ms, since: now, origin: ORIGIN_SET })
    }

    /// Returns the value of the clock in milliseconds, and its origin, for a document that one process hands
    /// over to the next.
    pub(crate) fn export(&self, now: Instant) -> (u64, u8) {
        let Self { value_ms: _, since: _, origin } = self;
        (self.value_at(now), *origin)
    }

    /// Returns the clock of a document; `None` for an origin that does not exist.
    pub(crate) fn restore(now: Instant, (value_ms, origin): (u64, u8)) -> Option<Self> {
        matches!(origin, ORIGIN_START | ORIGIN_SET).then_some(Self { value_ms, since: now, origin })
    }

    fn value_at(&self, now: Instant) -> u64 {
        let passed = u64::try_from(now.since(self.since).as_millis()).unwrap_or(u64::MAX);
        self.value_ms.wrapping_add(passed)
    }

    /// Returns the parameter data of REPORT TIMESTAMP.
    pub(crate) fn report(&self, now: Instant) -> [u8; Self::LEN] {
        let [_, _, a, b, c, d, e, f] = self.value_at(now).to_be_bytes();
        [0, 10, self.origin, 0, a, b, c, d, e, f, 0, 0]
    }
}

#[cfg(test)]
mod tests {
    use base::time::Duration;

    use super::*;

    #[test]
    fn the_clock_runs_from_where_it_was_set() {
        let start = Instant(5_000_000_000);
        let later = start.after(Duration::from_millis(0x1234));
        let clock = Timestamp::started(start);
        assert_eq!(clock.report(later), [0, 10, 0, 0, 0, 0, 0, 0, 0x12, 0x34, 0, 0]);
        let set = Timestamp::set(later, &[0, 0, 0, 0, 1, 2, 3, 4, 5, 6, 0, 0]).unwrap();
        assert_eq!(set.report(later), [0, 10, 2, 0, 1, 2, 3, 4, 5, 6, 0, 0]);
        assert_eq!(set.report(later.after(Duration::from_millis(1)))[9], 7);
        assert_eq!(Timestamp::set(later, &[0; 11]), None);
    }
}
