//! How long frames waited at a port before they were read. The kernel delivers with each frame the time at
//! which it received it.
//!
//! A reader that had to wait for a processor would otherwise count that time as network delay.

#![allow(
    unsafe_code,
    reason = "a header of ancillary data has padding in some C libraries, which only zeroing can set"
)]

use std::mem::{offset_of, size_of};
use std::time::{Duration, SystemTime};

/// No frame waits longer than this where a reactor reads. A longer age means that the clock was set
/// meanwhile.
const AGE_MAX: Duration = Duration::from_secs(1);

/// Memory for the ancillary data that the kernel delivers with a frame.
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct RxTimestamp {
    head: libc::cmsghdr,
    when: libc::timespec,
}

// The kernel puts the data after the header, aligned. SAFETY: it only computes.
const _: () = assert!(offset_of!(RxTimestamp, when) == unsafe { libc::CMSG_LEN(0) } as usize);

impl Default for RxTimestamp {
    /// Contains no time.
    fn default() -> Self {
        // SAFETY: both are plain integers, for which all bits zero is a value.
        unsafe { std::mem::zeroed() }
    }
}

impl RxTimestamp {
    /// Makes the kernel write here when it fills what `header` refers to. The value must not move until then.
    pub(crate) const fn point(&mut self, header: &mut libc::msghdr) {
        header.msg_control = std::ptr::from_mut(self).cast();
        header.msg_controllen = size_of::<Self>() as _;
    }

    /// Returns how long the frame waited. `now` is the present time of the wall clock, which the kernel uses
    /// as well.
    pub(crate) fn age(&self, now: SystemTime) -> Duration {
        let told = (self.head.cmsg_level, self.head.cmsg_type) == (libc::SOL_SOCKET, libc::SCM_TIMESTAMPNS);
        let since = u64::try_from(self.when.tv_sec).ok().zip(u32::try_from(self.when.tv_nsec).ok());
        let Some((seconds, nanos)) = since.filter(|_| told) else { return Duration::ZERO };
        age(Duration::from_secs(seconds) + Duration::from_nanos(nanos.into()), now)
    }
}

/// Returns how long a frame waited that was received at `came`, a time of the wall clock since the epoch.
pub(super) fn age(came: Duration, now: SystemTime) -> Duration {
    let came = SystemTime::UNIX_EPOCH.checked_add(came);
    let age = came.and_then(|came| now.duration_since(came).ok()).unwrap_or_default();
    if age > AGE_MAX { Duration::ZERO } else { age }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn arrival(seconds: i64, nanos: i64) -> RxTimestamp {
        let mut arrival = RxTimestamp::default();
        (arrival.head.cmsg_level, arrival.head.cmsg_type) = (libc::SOL_SOCKET, libc::SCM_TIMESTAMPNS);
        arrival.when = libc::timespec { tv_sec: seconds, tv_nsec: nanos };
        arrival
    }

    #[test]
    fn the_age_is_what_went_by_and_nothing_where_nothing_is_told_or_the_clock_was_set() {
        let now = SystemTime::UNIX_EPOCH + Duration::from_micros(5_000_000_300);
        let age = |arrival: RxTimestamp| arrival.age(now).as_micros();
        assert_eq!(age(arrival(5000, 100_000)), 200);
        assert_eq!(age(arrival(4999, 500_000_000)), 500_300);
        assert_eq!(age(RxTimestamp::default()), 0, "not told");
        assert_eq!(age(arrival(5001, 0)), 0, "set back meanwhile");
        assert_eq!(age(arrival(4000, 0)), 0, "set forth meanwhile");
        assert_eq!(age(arrival(-1, 0)), 0);
    }
}
