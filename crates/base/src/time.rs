//! The clock that machines are handed. Only drivers read a real one.

pub use core::time::Duration;

/// A moment, in nanoseconds since an origin that the driver chose (start-up, or the start of a simulation).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Instant(pub u64);

impl Instant {
    /// The driver's origin.
    pub const ORIGIN: Self = Self(0);

    /// Returns the moment `span` later; saturates at the end of time (584 years after the origin).
    #[must_use]
    pub fn after(self, span: Duration) -> Self {
        Self(self.0.saturating_add(u64::try_from(span.as_nanos()).unwrap_or(u64::MAX)))
    }

    /// Returns the moment `span` earlier; the origin when that would be before it.
    #[must_use]
    pub fn before(self, span: Duration) -> Self {
        Self(self.0.saturating_sub(u64::try_from(span.as_nanos()).unwrap_or(u64::MAX)))
    }

    /// Returns how much later this moment is than `earlier`; zero when it is not later.
    #[must_use]
    pub fn since(self, earlier: Self) -> Duration {
        Duration::from_nanos(self.0.saturating_sub(earlier.0))
    }
}

/// Returns the first of several moments, some of which are none.
#[inline]
pub fn soonest<const N: usize>(moments: [Option<Instant>; N]) -> Option<Instant> {
    // The end of time is as good as none, and comparing numbers takes fewer steps than comparing options.
    let first = moments.into_iter().fold(END, |first, at| first.min(at.unwrap_or(END)));
    (first != END).then_some(first)
}

/// Beyond what any clock shows.
const END: Instant = Instant(u64::MAX);
