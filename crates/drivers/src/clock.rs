//! The only clock: monotonic nanoseconds since the reactor was created.

use base::time::Instant;

#[derive(Clone, Copy, Debug)]
pub(crate) struct Clock {
    origin: std::time::Instant,
}

impl Clock {
    pub(crate) fn start() -> Self {
        Self { origin: std::time::Instant::now() }
    }

    /// Returns the present time. 64 bits of nanoseconds last for 584 years.
    pub(crate) fn now(&self) -> Instant {
        Instant(u64::try_from(self.origin.elapsed().as_nanos()).unwrap_or(u64::MAX))
    }
}
