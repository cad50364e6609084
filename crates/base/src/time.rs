//! The time that state machines are given. Only drivers read a real clock.

pub use core::time::Duration;

/// A point in time, in nanoseconds since an origin that the driver chose (start-up, or the start of a
/// simulation).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Instant(pub u64);

impl Instant {
    /// The origin of the driver.
    pub const ORIGIN: Self = Self(0);

    /// Returns the time `span` later; saturates at the end of time (584 years after the origin).
    #[must_use]
    pub fn after(self, span: Duration) -> Self {
        Self(self.0.saturating_add(u64::try_from(span.as_nanos()).unwrap_or(u64::MAX)))
    }

    /// Returns the time `span` earlier; the origin when that would be before it.
    #[must_use]
    pub fn before(self, span: Duration) -> Self {
        Self(self.0.saturating_sub(u64::try_from(span.as_nanos()).unwrap_or(u64::MAX)))
    }

    /// Returns how much later this time is than `earlier`; zero when it is not later.
    #[must_use]
    pub fn since(self, earlier: Self) -> Duration {
        Duration::from_nanos(self.0.saturating_sub(earlier.0))
    }
}

/// Returns the earliest of several times; `None` entries are ignored.
#[inline]
pub fn soonest<const N: usize>(moments: [Option<Instant>; N]) -> Option<Instant> {
    // The end of time stands for `None`, since comparing numbers takes fewer steps than comparing options.
    let first = moments.into_iter().fold(END, |first, at| first.min(at.unwrap_or(END)));
    (first != END).then_some(first)
}

/// Later than any clock shows.
const END: Instant = Instant(u64::MAX);
