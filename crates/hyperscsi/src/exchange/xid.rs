//! The exchange numbers (XIDs).
//!
//! XIDs count from 1 in each of two packet number spaces: one for protected and one for unprotected requests.
//! The top bit distinguishes the spaces. So a forged unprotected request, to a logical unit that may be
//! reached without protection, uses up no XID of a protected one. XIDs wrap; zero is skipped, as it stands
//! for no exchange.

use alloc::boxed::Box;
use alloc::vec::Vec;

/// How far the XIDs of received requests may lie apart.
pub const WINDOW: u32 = 4096;

/// The bit that is set in the XID of an exchange whose request is protected.
pub const XID_PROTECTED_BIT: u32 = 1 << 31;

const COUNT: u32 = XID_PROTECTED_BIT - 1;

/// The packet number space of an exchange.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum PnSpace {
    /// Unprotected requests.
    Open = 0,
    /// Requests with an authentication tag.
    Sealed = 1,
}

impl PnSpace {
    /// Both packet number spaces.
    pub const ALL: [Self; 2] = [Self::Open, Self::Sealed];

    /// Returns the packet number space of an XID.
    pub const fn of(xid: u32) -> Self {
        if xid & XID_PROTECTED_BIT == 0 { Self::Open } else { Self::Sealed }
    }

    /// Returns the packet number space of frames with or without an authentication tag.
    pub const fn of_frame(protected: bool) -> Self {
        if protected { Self::Sealed } else { Self::Open }
    }

    /// Returns the index of the packet number space in a table of two.
    pub const fn index(self) -> usize {
        self as usize
    }

    /// Returns the number before the first XID of the packet number space.
    pub const fn start(self) -> u32 {
        match self {
            Self::Open => 0,
            Self::Sealed => XID_PROTECTED_BIT,
        }
    }
}

/// Returns the XID that follows `xid` in its packet number space.
pub const fn next_xid(xid: u32) -> u32 {
    let count = (xid & COUNT).wrapping_add(1) & COUNT;
    (xid & XID_PROTECTED_BIT) | if count == 0 { 1 } else { count }
}

/// Returns the XID that is `steps` behind `xid` in its packet number space.
pub const fn xid_plus(xid: u32, steps: u32) -> u32 {
    // Both are below 2^31, so the sum fits. Zero is skipped where the number wraps.
    let count = (xid & COUNT) + (steps & COUNT);
    (xid & XID_PROTECTED_BIT) | if count > COUNT { count - COUNT } else { count }
}

/// Returns how far `xid` lies ahead of `from`, in the same packet number space; `None` if it does not.
pub const fn xid_ahead(xid: u32, from: u32) -> Option<u32> {
    let distance = (xid & COUNT).wrapping_sub(from & COUNT) & COUNT;
    if distance == 0 || distance > COUNT / 2 { None } else { Some(distance) }
}

/// The XIDs of one packet number space that were received.
#[derive(Debug)]
pub struct ReceivedXids {
    /// All XIDs up to this one were received.
    low: u32,
    /// The received XIDs behind `low`: one bit for each, at the XID modulo the window.
    bits: Box<[u64; WORDS]>,
    ahead: u32,
}

const WORDS: usize = (WINDOW / 64) as usize;

/// Whether an XID was received before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum XidStatus {
    /// It was not received.
    New,
    /// It was received before.
    Duplicate,
    /// It is beyond the window.
    Beyond,
}

impl ReceivedXids {
    /// Returns the record of a packet number space in which no XID was received.
    pub fn new(class: PnSpace) -> Self {
        Self { low: class.start(), bits: Box::new([0; WORDS]), ahead: 0 }
    }

    /// Records every XID up to `low` as received.
    #[cfg(test)]
    pub(crate) const fn begin_behind(&mut self, low: u32) {
        self.low = low;
    }

    /// Returns the received XIDs behind [`Self::low`], as ranges: how far the first and the last of each lie
    /// ahead of it.
    pub(crate) fn ahead(&self) -> Vec<(u32, u32)> {
        let mut runs: Vec<(u32, u32)> = Vec::new();
        let distances = if self.ahead > 0 { 1..=WINDOW } else { 1..=0 };
        for distance in distances.filter(|distance| self.bit(xid_plus(self.low, *distance))) {
            match runs.last_mut().filter(|(_, last)| last + 1 == distance) {
                Some((_, last)) => *last = distance,
                None => runs.push((distance, distance)),
            }
        }
        runs
    }

    /// Returns the record of a packet number space in which everything up to `low` and the ranges ahead of it
    /// were received; `None` if they cannot be of this packet number space.
    pub(crate) fn resume(class: PnSpace, low: u32, ahead: &[(u32, u32)]) -> Option<Self> {
        if PnSpace::of(low) != class {
            return None;
        }
        let mut own = Self { low, ..Self::new(class) };
        let mut next = 1;
        for (first, last) in ahead {
            if *first < next || last < first || *last > WINDOW {
                return None;
            }
            (*first..=*last).for_each(|distance| own.set(xid_plus(low, distance), true));
            own.ahead += last - first + 1;
            next = last + 1;
        }
        // The first one ahead is missing, or `low` would be larger.
        (!own.bit(next_xid(low))).then_some(own)
    }

    /// Returns the last XID up to which all were received.
    pub const fn low(&self) -> u32 {
        self.low
    }

    /// Returns the status of an XID of this packet number space.
    pub fn status_of(&self, xid: u32) -> XidStatus {
        match xid_ahead(xid, self.low) {
            _ if xid & COUNT == 0 => XidStatus::Duplicate,
            None => XidStatus::Duplicate,
            Some(distance) if distance > WINDOW => XidStatus::Beyond,
            Some(_) if self.bit(xid) => XidStatus::Duplicate,
            Some(_) => XidStatus::New,
        }
    }

    /// Records that an XID was received. Its status must have been `New`.
    pub fn take(&mut self, xid: u32) {
        self.set(xid, true);
        self.ahead += 1;
        while self.ahead > 0 && self.bit(next_xid(self.low)) {
            self.low = next_xid(self.low);
            self.set(self.low, false);
            self.ahead -= 1;
        }
    }

    /// Returns whether all XIDs up to `xid` were received.
    pub const fn reached(&self, xid: u32) -> bool {
        xid_ahead(xid, self.low).is_none()
    }

    fn bit(&self, xid: u32) -> bool {
        let (word, mask) = bit_position(xid);
        self.bits.get(word).is_some_and(|bits| bits & mask != 0)
    }

    fn set(&mut self, xid: u32, on: bool) {
        let (word, mask) = bit_position(xid);
        if let Some(bits) = self.bits.get_mut(word) {
            if on { *bits |= mask } else { *bits &= !mask }
        }
    }
}

const fn bit_position(xid: u32) -> (usize, u64) {
    let at = xid % WINDOW;
    ((at / 64) as usize, 1 << (at % 64))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_wrap_within_their_class_and_leave_zero_out() {
        for class in PnSpace::ALL {
            let last = class.start() | COUNT;
            assert_eq!(next_xid(class.start()), class.start() + 1);
            assert_eq!(next_xid(last), class.start() + 1);
            assert_eq!(PnSpace::of(next_xid(last)), class);
            assert_eq!((xid_ahead(next_xid(last), last), xid_ahead(last, next_xid(last))), (Some(2), None));
        }
    }

    #[test]
    fn each_number_is_new_once_in_any_order_and_across_the_wrap() {
        for class in PnSpace::ALL {
            let mut arrived = ReceivedXids::new(class);
            arrived.low = class.start() | (COUNT - 1000);
            let mut xids = alloc::vec![next_xid(arrived.low)];
            for _ in 1..3000 {
                xids.push(next_xid(*xids.last().unwrap()));
            }
            // Odd ones first, so that there are gaps everywhere.
            for xid in xids.iter().skip(1).step_by(2).chain(xids.iter().step_by(2)) {
                assert_eq!(arrived.status_of(*xid), XidStatus::New, "{xid:x}");
                arrived.take(*xid);
                assert_eq!(arrived.status_of(*xid), XidStatus::Duplicate, "{xid:x}");
            }
            assert_eq!(arrived.low(), *xids.last().unwrap());
            assert_eq!(arrived.ahead, 0);
            assert!(arrived.bits.iter().all(|bits| *bits == 0));
            assert!(
                xids.iter()
                    .all(|xid| arrived.status_of(*xid) == XidStatus::Duplicate && arrived.reached(*xid))
            );
        }
    }

    #[test]
    fn what_lies_too_far_ahead_is_told_apart() {
        let mut arrived = ReceivedXids::new(PnSpace::Open);
        assert_eq!(arrived.status_of(WINDOW), XidStatus::New);
        assert_eq!(arrived.status_of(WINDOW + 1), XidStatus::Beyond);
        assert_eq!(arrived.status_of(0), XidStatus::Duplicate);
        arrived.take(1);
        assert_eq!(arrived.status_of(WINDOW + 1), XidStatus::New);
        assert!(arrived.reached(1) && !arrived.reached(2));
    }
}
