//! Packet numbers that credit does not bound: where a path's numbers begin, and how far those of a silent
//! peer may jump.

use super::Path;

/// How far the packet numbers of a former path went, in both spaces.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct PnHorizon {
    /// The last numbers that were sent, and the largest that were received.
    pub(crate) out: [u64; 2],
    pub(crate) come: [u64; 2],
    /// The largest numbers that may have been sent by the peer: numbers of lost frames count as used.
    pub(crate) granted: [u64; 2],
}

impl Path {
    /// Returns whether a received frame may have a packet number as large as `pn`. A peer that was not heard
    /// for long sends only probes, and may have sent any number of them. So a jump is allowed on a silent
    /// path, in the one space in which the session's frames travel: with keys, that is the space in which
    /// only the peer can make frames.
    pub(crate) fn admits(&self, space_index: usize, pn: u64, keyed: bool) -> bool {
        let far = (self.down || self.unheard) && space_index == usize::from(keyed) && pn < FAR_MAX;
        pn > 0 && (far || self.spaces.get(space_index).is_some_and(|space| space.incoming.grant.admits(pn)))
    }

    /// Returns whether a frame about the path or the session may be sent on the path now.
    pub(crate) fn may_speak(&self, keyed: bool) -> bool {
        self.spaces.get(usize::from(keyed)).is_some_and(|space| space.outgoing.has_room())
    }

    /// Returns how far the path's packet numbers went.
    pub(crate) fn pn_horizon(&self) -> PnHorizon {
        PnHorizon {
            out: self.spaces.each_ref().map(|space| space.outgoing.next() - 1),
            come: self.spaces.each_ref().map(|space| space.incoming.largest()),
            granted: self.spaces.each_ref().map(|space| space.incoming.grant.limit()),
        }
    }
}

/// How far packet numbers may jump: further than any session gets, and far enough from the end of the numbers
/// that limits fit behind them.
pub(crate) const FAR_MAX: u64 = 1 << 55;

#[cfg(test)]
mod tests {
    use base::ether::{EtherPort, Mac, PortState};
    use base::time::Instant;

    use super::*;
    use crate::connection::ConnectionConfig;
    use crate::path::PathAddress;
    use crate::path::credit::BEYOND_MAX;
    use crate::pdu::ack::PN_COUNT_MASK;
    use crate::pdu::parameters::Parameters;

    #[test]
    fn a_number_that_is_used_again_goes_on_where_it_was_however_much_of_that_was_lost() {
        let now = Instant(5);
        let state = PortState { mac: Mac([2; 6]), mtu: 1500, receive_slots: 512 };
        let address = PathAddress { port: EtherPort(0), mac: Mac([4; 6]) };
        let plan = ConnectionConfig::new(&Parameters::DEFAULT, &Parameters::DEFAULT, 512, [0; 16], [0; 8]);
        let pn_horizon = PnHorizon { out: [700, 800], come: [1000, 2000], granted: [9000, 9500] };
        let mut path = Path::new(now, (3, &pn_horizon), address, &state, &plan, 1);
        assert_eq!(path.spaces.each_ref().map(|space| space.outgoing.next()), [701, 801]);
        assert_eq!(path.spaces.each_ref().map(|space| space.outgoing.credit()), [32, 32]);
        assert_eq!(path.pn_horizon().granted, pn_horizon.granted);
        for (space_index, old) in [(0, 1000), (1, 2000)] {
            let come = &path.spaces[space_index].incoming;
            assert!(!come.is_new(old) && !come.is_new(1) && come.is_new(old + 1));
        }
        // Numbers that the other end may have sent before without any arriving count as used.
        let far = |path: &Path, space_index| {
            let limit = pn_horizon.granted[space_index] + BEYOND_MAX;
            (path.admits(space_index, limit, true), path.admits(space_index, limit + 1, true))
        };
        assert_eq!([far(&path, 0), far(&path, 1)], [(true, false); 2]);
        // The peer may have sent any number of probes. Only the peer can make frames in that space.
        path.unheard = true;
        assert_eq!([far(&path, 0), far(&path, 1)], [(true, false), (true, true)]);
        assert!(!path.admits(0, 0, false) && path.admits(0, 1 << 50, false));
        assert!(!path.admits(0, PN_COUNT_MASK, false) && !path.admits(1, PN_COUNT_MASK, true));
    }
}
