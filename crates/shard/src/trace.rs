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
    /// The addresses of the initiator's ports.
    pub peers: Vec<Mac>,
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
                peers: view.paths.iter().map(|path| path.address.mac).collect(),
            })
            .collect()
    }
}
