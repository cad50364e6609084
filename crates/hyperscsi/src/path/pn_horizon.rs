//! The packet numbers of a path beyond what credit says: where they begin, and how far those may jump that nobody heard.

use super::Path;

/// How far the numbers of a path went that is gone, in both spaces.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct PnHorizon {
    /// The last that were sent, and the largest that came.
    pub(crate) out: [u64; 2],
    pub(crate) come: [u64; 2],
    /// The largest that might have come: what was sent and lost counts as sent.
    pub(crate) granted: [u64; 2],
}

impl Path {
    /// Returns whether a frame may have a number as large as this. Who heard nothing for long sends nothing but probes, and may
    /// have sent any number of them; in the space where all that comes is the peer's, that harms nothing.
    pub(crate) fn admits(&self, space_index: usize, pn: u64, keyed: bool) -> bool {
        let far = (self.down || self.unheard) && space_index == usize::from(keyed) && pn < FAR_MAX;
        pn > 0 && (far || self.spaces.get(space_index).is_some_and(|space| space.incoming.grant.admits(pn)))
    }

    /// Returns whether what concerns the path or the session may be asked or told on it now.
    pub(crate) fn may_speak(&self, keyed: bool) -> bool {
        self.spaces.get(usize::from(keyed)).is_some_and(|space| space.outgoing.has_room())
    }

    /// Returns how far its numbers went.
    pub(crate) fn pn_horizon(&self) -> PnHorizon {
        PnHorizon {
            out: self.spaces.each_ref().map(|space| space.outgoing.next() - 1),
            come: self.spaces.each_ref().map(|space| space.incoming.largest()),
            granted: self.spaces.each_ref().map(|space| space.incoming.grant.limit()),
        }
    }
}

/// How far numbers may jump: more than any life is long, and far enough from where they end that limits fit behind them.
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
        // What the other end may have sent into the void before, it has used up.
        let far = |path: &Path, space_index| {
            let limit = pn_horizon.granted[space_index] + BEYOND_MAX;
            (path.admits(space_index, limit, true), path.admits(space_index, limit + 1, true))
        };
        assert_eq!([far(&path, 0), far(&path, 1)], [(true, false); 2]);
        // Of probes there may have been any number, which only the peer can make up.
        path.unheard = true;
        assert_eq!([far(&path, 0), far(&path, 1)], [(true, false), (true, true)]);
        assert!(!path.admits(0, 0, false) && path.admits(0, 1 << 50, false));
        assert!(!path.admits(0, PN_COUNT_MASK, false) && !path.admits(1, PN_COUNT_MASK, true));
    }
}
