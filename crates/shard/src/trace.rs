//! Traces of sessions: which connections and frames belong to the sessions that an operator names.

use alloc::sync::Arc;
use alloc::vec::Vec;

use base::ether::{EtherPort, Mac};
use iscsi::trace::PduTrace;

use crate::shard::Shard;

/// The names by which frames of a HyperSCSI session are recognised.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FrameSession {
    /// The SID in frames to the initiator, which the initiator chose.
    pub initiator_sid: u32,
    /// The SID in frames to this target.
    pub target_sid: u32,
    /// The addresses of the initiator's ports, of paths that are validated.
    pub peers: Vec<Mac>,
}

impl FrameSession {
    /// Returns whether a frame to this target with this SID belongs to the session.
    pub fn has_received(&self, sid: u32) -> bool {
        self.target_sid == sid
    }

    /// Returns whether a frame to this address with this SID belongs to the session. Initiators choose their
    /// SIDs, so those of two can be the same.
    pub fn has_sent(&self, sid: u32, to: Mac) -> bool {
        self.initiator_sid == sid && self.peers.contains(&to)
    }
}

impl Shard {
    /// Shows `trace` the PDUs of the iSCSI sessions that it selects. Returns how many it selects now.
    pub fn start_trace(&mut self, trace: Arc<dyn PduTrace>) -> usize {
        self.transports.iscsi.start_trace(trace)
    }

    /// Drops the traces that have ended.
    pub fn drop_ended_traces(&mut self) {
        self.transports.iscsi.drop_ended_traces();
    }

    /// Returns the address of a port that is up.
    pub fn mac(&self, port: EtherPort) -> Option<Mac> {
        self.ports.get(&port).map(|state| state.mac)
    }

    /// Returns the HyperSCSI sessions that `is_wanted` selects by the names of target and initiator and by
    /// ISID.
    pub fn frame_sessions_of(&self, is_wanted: impl Fn(&str, &str, [u8; 6]) -> bool) -> Vec<FrameSession> {
        let sessions = self.transports.hyperscsi.sessions();
        let wanted = sessions.filter(|view| is_wanted(view.target, view.initiator, view.isid));
        wanted
            .map(|view| FrameSession {
                initiator_sid: view.sids.0,
                target_sid: view.sids.1,
                peers: view
                    .paths
                    .iter()
                    .filter(|path| path.is_validated)
                    .map(|path| path.address.mac)
                    .collect(),
            })
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use alloc::vec;

    use super::*;

    #[test]
    fn a_sent_frame_belongs_to_the_session_that_has_both_its_sid_and_its_address() {
        let (first, second) = (Mac([2, 0, 0, 0, 0, 1]), Mac([2, 0, 0, 0, 0, 2]));
        let session = FrameSession { initiator_sid: 7, target_sid: 8, peers: vec![first] };
        assert!(session.has_sent(7, first) && session.has_received(8));
        assert!(!session.has_sent(7, second), "another initiator chose the same SID");
        assert!(!session.has_sent(8, first) && !session.has_received(7));
    }
}
