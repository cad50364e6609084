//! How long frames waited at a port before they were read: the kernel tells beside each frame when it took it in.
//!
//! A reader that has to wait for its processor would else take that time for time on the way.

#![allow(
    unsafe_code,
    reason = "a header of ancillary data has padding in some C libraries, which only zeroing can set"
)]

use std::mem::{offset_of, size_of};
use std::time::{Duration, SystemTime};

/// No frame waits longer where anybody reads; who says so had its clock set.
const AGE_MAX: Duration = Duration::from_secs(1);

/// Room for what the kernel tells beside a frame.
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct RxTimestamp {
    head: libc::cmsghdr,
    when: libc::timespec,
}

// The kernel puts what it tells behind the head, aligned.
// SAFETY: it only computes.
const _: () = assert!(offset_of!(RxTimestamp, when) == unsafe { libc::CMSG_LEN(0) } as usize);

impl Default for RxTimestamp {
    /// Says nothing.
    fn default() -> Self {
        // SAFETY: both are plain integers, for which all bits zero is a value.
        unsafe { std::mem::zeroed() }
    }
}

impl RxTimestamp {
    /// Has the kernel write to it when it fills what `header` names. It must stay where it is until then.
    pub(crate) const fn point(&mut self, header: &mut libc::msghdr) {
        header.msg_control = std::ptr::from_mut(self).cast();
        header.msg_controllen = size_of::<Self>() as _;
    }

    /// Returns how long the frame waited; `now` is the present moment by the wall clock, which the kernel uses as well.
    pub(crate) fn age(&self, now: SystemTime) -> Duration {
        let told = (self.head.cmsg_level, self.head.cmsg_type) == (libc::SOL_SOCKET, libc::SCM_TIMESTAMPNS);
        let since = u64::try_from(self.when.tv_sec).ok().zip(u32::try_from(self.when.tv_nsec).ok());
        let Some((seconds, nanos)) = since.filter(|_| told) else { return Duration::ZERO };
        age(Duration::from_secs(seconds) + Duration::from_nanos(nanos.into()), now)
    }
}

/// Returns how long a frame waited that came at a moment since the epoch, as the wall clock counts.
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
