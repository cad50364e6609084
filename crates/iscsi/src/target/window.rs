//! The command window of a session (RFC 7143 §4.2.2.1): which CmdSNs it accepts, which requests were received
//! ahead of their turn, and the MaxCmdSN it grants.
//!
//! ExpCmdSN is the next number in order. MaxCmdSN is the highest number that the initiator may use. The
//! distance between them shrinks while commands are open; MaxCmdSN never moves backwards.

use alloc::vec::Vec;
use core::mem;

use super::protocol_error::ProtocolError;
use crate::fault_injection::{self, Bug};
use crate::serial::CmdSn;

/// The command window, with the requests that were received ahead of their turn.
#[derive(Debug)]
pub(crate) struct Window<T> {
    exp: CmdSn,
    max: CmdSn,
    /// How many numbered commands may be open at a time.
    depth: u32,
    /// How many numbered commands before `exp` are open.
    open: u32,
    early: Vec<(CmdSn, T)>,
}

/// How a numbered request fits into the order of the CmdSNs.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum CmdSnOrder<T> {
    /// It is the next in order. More may follow: see [`Window::next_in_order`].
    InOrder(T),
    /// It waits for requests with lower numbers.
    Early,
    /// Its number was already received.
    Duplicate(T),
    /// It lies outside the window.
    OutsideWindow(T),
}

impl<T> Window<T> {
    /// Creates a window with `first` as the next number.
    pub(crate) fn new(first: CmdSn, depth: u32) -> Self {
        let depth = depth.clamp(1, MAX_DEPTH);
        Self { exp: first, max: first.plus(depth).minus(1), depth, open: 0, early: Vec::new() }
    }

    /// Creates a closed window with `first` as the next number.
    pub(crate) fn closed(first: CmdSn, depth: u32) -> Self {
        Self { max: first.minus(1), ..Self::new(first, depth) }
    }

    /// Creates the window of a session that was resumed: the numbers up to `max` were already granted.
    /// Returns `None` if they are more than any window grants.
    pub(crate) fn resumed(exp: CmdSn, max: CmdSn, depth: u32) -> Option<Self> {
        (exp.distance_to(max.next()) <= MAX_DEPTH).then_some(Self { max, ..Self::new(exp, depth) })
    }

    /// Returns how many numbers the initiator may still use.
    pub(crate) const fn granted(&self) -> u32 {
        self.exp.distance_to(self.max.next())
    }

    /// Returns the MaxCmdSN that was granted last.
    pub(crate) const fn granted_max(&self) -> CmdSn {
        self.max
    }

    /// Returns whether no numbered command is open and none was received ahead of its turn.
    pub(crate) const fn is_idle(&self) -> bool {
        self.open == 0 && self.early.is_empty()
    }

    /// Changes how many numbered commands may be open at a time.
    pub(crate) const fn resize(&mut self, depth: u32) {
        self.depth = if depth == 0 {
            1
        } else if depth > MAX_DEPTH {
            MAX_DEPTH
        } else {
            depth
        };
    }

    pub(crate) const fn exp_cmd_sn(&self) -> CmdSn {
        self.exp
    }

    /// Returns MaxCmdSN, never lower than it was before. At most `depth_now` commands are to be open.
    pub(crate) fn max_cmd_sn(&mut self, depth_now: u32) -> CmdSn {
        let room = self.depth.min(depth_now).saturating_sub(self.open);
        //= rfc7143#section-4.2.2.1
        //# The target MUST NOT transmit a MaxCmdSN that is less than ExpCmdSN - 1.
        let max = self.exp.plus(room).minus(1);
        if max.after(self.max) {
            self.max = max;
        }
        self.max
    }

    /// Returns whether the initiator knows only of a closed or nearly closed window.
    pub(crate) fn looks_closed(&self) -> bool {
        self.exp.distance_to(self.max.next()) <= self.depth / 4
    }

    /// Returns whether the initiator knows only of a closed or nearly closed window, and MaxCmdSN can be
    /// higher. At most `depth_now` commands are to be open.
    pub(crate) fn must_be_shown(&self, depth_now: u32) -> bool {
        let room = self.depth.min(depth_now).saturating_sub(self.open);
        self.looks_closed() && self.exp.plus(room).minus(1).after(self.max)
    }

    /// Checks a number without accepting it.
    pub(crate) fn check(&self, sn: CmdSn) -> Result<(), ProtocolError> {
        if fault_injection::is_injected(Bug::ExecuteTwice) {
            Ok(())
        } else if !sn.within(self.exp, self.max) {
            Err(ProtocolError::CmdSnOutsideWindow)
        } else if self.early.iter().any(|(early, _)| *early == sn) {
            Err(ProtocolError::DuplicateCmdSn)
        } else {
            Ok(())
        }
    }

    /// Accepts a numbered request.
    pub(crate) fn receive(&mut self, sn: CmdSn, request: T) -> CmdSnOrder<T> {
        if fault_injection::is_injected(Bug::ExecuteTwice) && sn.before(self.exp) {
            CmdSnOrder::InOrder(request)
        } else if !sn.within(self.exp, self.max) {
            CmdSnOrder::OutsideWindow(request)
        } else if sn == self.exp {
            //= rfc7143#section-4.2.2.1
            //# the iSCSI target layer MUST deliver the commands for execution in the order specified
            //# by the CmdSN.
            //= rfc7143#section-4.2.2.1
            //# A target command response or Data-In PDU with status MUST NOT precede the command
            //# acknowledgment.
            self.exp = sn.next();
            CmdSnOrder::InOrder(request)
        } else if self.early.iter().any(|(early, _)| *early == sn) {
            CmdSnOrder::Duplicate(request)
        } else {
            self.early.push((sn, request));
            CmdSnOrder::Early
        }
    }

    /// Returns the early request whose number is now the next in order.
    pub(crate) fn next_in_order(&mut self) -> Option<T> {
        //= rfc7143#section-4.2.2.1
        //# There MUST NOT be any holes in the acknowledged CmdSN sequence.
        let at = self.early.iter().position(|(sn, _)| *sn == self.exp)?;
        self.exp = self.exp.next();
        Some(self.early.swap_remove(at).1)
    }

    /// Returns whether a request waits because a number before it is missing.
    pub(crate) const fn has_gap(&self) -> bool {
        !self.early.is_empty()
    }

    /// Considers every number before `sn` received (§4.2.3.3, §11.5.1). Returns the early requests among
    /// them, in order. A number outside the window changes nothing.
    pub(crate) fn skip_until(&mut self, sn: CmdSn) -> Vec<T> {
        if !sn.minus(1).within(self.exp, self.max) {
            return Vec::new();
        }
        let exp = mem::replace(&mut self.exp, sn);
        let mut due = Vec::new();
        let mut rest = Vec::new();
        for (early, request) in self.early.drain(..) {
            let list = if early.within(exp, sn.minus(1)) { &mut due } else { &mut rest };
            list.push((early, request));
        }
        self.early = rest;
        due.sort_unstable_by_key(|(early, _)| exp.distance_to(*early));
        due.into_iter().map(|(_, request)| request).collect()
    }

    /// Returns whether the request `sn` can still be received: its number is in the window and not received
    /// yet.
    pub(crate) fn awaits(&self, sn: CmdSn) -> bool {
        sn.within(self.exp, self.max) && self.early.iter().all(|(early, _)| *early != sn)
    }

    /// Removes the early requests for which `is_void` returns true. Their numbers are missing again.
    pub(crate) fn discard(&mut self, mut is_void: impl FnMut(&T) -> bool) -> Vec<T> {
        let (void, kept) = mem::take(&mut self.early).into_iter().partition(|(_, request)| is_void(request));
        self.early = kept;
        let void: Vec<(CmdSn, T)> = void;
        void.into_iter().map(|(_, request)| request).collect()
    }

    /// Returns the early requests.
    pub(crate) fn early(&self) -> impl Iterator<Item = &T> {
        self.early.iter().map(|(_, request)| request)
    }

    /// Returns the early requests, mutably.
    pub(crate) fn early_mut(&mut self) -> impl Iterator<Item = &mut T> {
        self.early.iter_mut().map(|(_, request)| request)
    }

    /// Records that a numbered command before `exp` is open.
    pub(crate) const fn command_started(&mut self) {
        self.open = self.open.saturating_add(1);
    }

    /// Records that such a command ended.
    pub(crate) const fn command_ended(&mut self) {
        self.open = self.open.saturating_sub(1);
    }
}

/// The deepest window: far below 2^31, so that serial numbers compare, and small enough that the linear
/// search of the early requests stays cheap.
pub(crate) const MAX_DEPTH: u32 = 1024;

#[cfg(test)]
mod tests {
    use super::*;

    fn window(first: u32, depth: u32) -> Window<&'static str> {
        Window::new(CmdSn(first), depth)
    }

    #[test]
    fn requests_come_out_in_order_whatever_order_they_came_in() {
        //= rfc7143#section-4.2.2.1
        //= type=test
        //# There MUST NOT be any holes in the acknowledged CmdSN sequence.
        let mut window = window(u32::MAX, 4);
        assert_eq!(window.receive(CmdSn(1), "c"), CmdSnOrder::Early);
        assert_eq!(window.receive(CmdSn(0), "b"), CmdSnOrder::Early);
        assert_eq!(window.receive(CmdSn(1), "again"), CmdSnOrder::Duplicate("again"));
        assert!(window.has_gap());
        assert_eq!(window.receive(CmdSn(u32::MAX), "a"), CmdSnOrder::InOrder("a"));
        assert_eq!(window.next_in_order(), Some("b"));
        assert_eq!(window.next_in_order(), Some("c"));
        assert_eq!(window.next_in_order(), None);
        assert_eq!(window.exp_cmd_sn(), CmdSn(2));
        assert!(!window.has_gap());
    }

    #[test]
    fn numbers_before_and_behind_the_window_are_outside() {
        let mut window = window(10, 2);
        for sn in [9, 12, 10u32.wrapping_sub(1 << 31)] {
            assert_eq!(window.receive(CmdSn(sn), "x"), CmdSnOrder::OutsideWindow("x"), "{sn}");
        }
        assert_eq!(window.receive(CmdSn(11), "x"), CmdSnOrder::Early);
    }

    #[test]
    fn the_window_closes_while_commands_are_open_and_never_moves_back() {
        //= rfc7143#section-4.2.2.1
        //= type=test
        //# The target MUST NOT transmit a MaxCmdSN that is less than ExpCmdSN - 1.
        let mut window = window(1, 2);
        assert_eq!(window.max_cmd_sn(u32::MAX), CmdSn(2));
        for sn in [1, 2] {
            assert_eq!(window.receive(CmdSn(sn), "x"), CmdSnOrder::InOrder("x"));
            window.command_started();
        }
        assert_eq!(window.max_cmd_sn(u32::MAX), CmdSn(2), "closed: MaxCmdSN is ExpCmdSN - 1");
        assert_eq!(window.receive(CmdSn(3), "x"), CmdSnOrder::OutsideWindow("x"));
        window.command_ended();
        assert_eq!(window.max_cmd_sn(u32::MAX), CmdSn(3));
        assert_eq!(window.max_cmd_sn(0), CmdSn(3), "less room later takes nothing back");
        window.command_ended();
        assert_eq!(window.max_cmd_sn(1), CmdSn(3));
        assert_eq!(window.max_cmd_sn(2), CmdSn(4));
    }

    #[test]
    fn plugging_a_gap_releases_what_waited_behind_it() {
        let mut window = window(1, 8);
        for (sn, name) in [(6, "f"), (4, "d"), (2, "b")] {
            assert_eq!(window.receive(CmdSn(sn), name), CmdSnOrder::Early);
        }
        assert!(window.awaits(CmdSn(3)) && !window.awaits(CmdSn(4)) && !window.awaits(CmdSn(0)));
        assert_eq!(window.skip_until(CmdSn(5)), ["b", "d"]);
        assert_eq!(window.exp_cmd_sn(), CmdSn(5));
        assert_eq!(window.skip_until(CmdSn(5)), [""; 0]);
        assert_eq!(window.skip_until(CmdSn(100)), [""; 0]);
        assert_eq!(window.receive(CmdSn(5), "e"), CmdSnOrder::InOrder("e"));
        assert_eq!(window.next_in_order(), Some("f"));
    }

    #[test]
    fn discarded_requests_may_come_again_and_the_others_stay() {
        let mut window = window(1, 8);
        for (sn, name) in [(3, "c"), (2, "b"), (5, "e")] {
            assert_eq!(window.receive(CmdSn(sn), name), CmdSnOrder::Early);
        }
        assert_eq!(window.discard(|name| *name == "b"), ["b"]);
        assert!(window.awaits(CmdSn(2)) && !window.awaits(CmdSn(3)));
        assert_eq!(window.receive(CmdSn(1), "a"), CmdSnOrder::InOrder("a"));
        assert_eq!(window.next_in_order(), None);
        assert_eq!(window.receive(CmdSn(2), "again"), CmdSnOrder::InOrder("again"));
        assert_eq!(window.next_in_order(), Some("c"));
        assert!(window.has_gap());
    }

    #[test]
    fn a_resumed_window_has_granted_at_most_the_deepest() {
        let resumed =
            |granted| Window::<()>::resumed(CmdSn(u32::MAX), CmdSn(u32::MAX).plus(granted).minus(1), 8);
        for granted in [0, 1, 8, MAX_DEPTH] {
            assert_eq!(resumed(granted).map(|window| window.granted()), Some(granted));
        }
        assert!(resumed(MAX_DEPTH + 1).is_none());
    }
}
