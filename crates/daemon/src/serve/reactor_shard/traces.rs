//! The traces of a reactor: iSCSI sessions show their PDUs themselves, HyperSCSI frames are picked out here.

use std::sync::Arc;

use base::ether::{EtherPort, FrameBatch, ReceivedFrame};
use base::pcapng::PacketDirection;
use hyperscsi::frame::SID_AT;
use iscsi::trace::PduTrace as _;
use shard::trace::FrameSession;

use super::ReactorShard;
use crate::serve::recorder::Recorder;

/// A trace of HyperSCSI sessions of this reactor.
#[derive(Debug)]
pub(in crate::serve) struct FrameTrace {
    recorder: Arc<Recorder>,
    sessions: Vec<FrameSession>,
}

impl ReactorShard {
    /// Starts a trace. Returns how many sessions it records.
    pub(in crate::serve) fn start_trace(&mut self, recorder: Arc<Recorder>) -> usize {
        let iscsi = self.shard.start_trace(Arc::clone(&recorder) as _);
        self.frame_traces.push(FrameTrace { recorder, sessions: Vec::new() });
        self.refresh_traces();
        iscsi + self.frame_traces.last().map_or(0, |trace| trace.sessions.len())
    }

    /// Drops the traces that have ended, and looks for HyperSCSI sessions that began or ended.
    pub(in crate::serve) fn refresh_traces(&mut self) {
        self.shard.drop_ended_traces();
        self.frame_traces.retain(|trace| !trace.recorder.has_ended());
        for trace in &mut self.frame_traces {
            let selection = trace.recorder.selection();
            trace.sessions = self
                .shard
                .frame_sessions_of(|target, initiator, isid| selection.has(initiator, Some(target), isid));
            trace.recorder.set_frame_sessions(self.index, trace.sessions.len());
        }
    }

    /// Records a received frame, before it is opened in place.
    #[cold]
    pub(super) fn trace_received(&self, frame: &ReceivedFrame<'_>) {
        let Some((sid, mac)) = sid(frame.payload).zip(self.shard.mac(frame.port)) else { return };
        for trace in &self.frame_traces {
            if trace.sessions.iter().any(|session| session.has_received(sid)) {
                let parts: [&[u8]; 1] = [&*frame.payload];
                trace.recorder.record_frame(PacketDirection::Inbound, (frame.source, mac), &parts);
            }
        }
    }

    /// Records the frames of a batch behind the first `before` ones.
    #[cold]
    pub(super) fn trace_sent(&self, port: EtherPort, batch: &FrameBatch, before: usize) {
        let Some(mac) = self.shard.mac(port) else { return };
        for (to, _, parts) in batch.frames().skip(before) {
            let parts: Vec<&[u8]> = parts.collect();
            let Some(sid) = parts.first().and_then(|header| sid(header)) else { continue };
            for trace in &self.frame_traces {
                if trace.sessions.iter().any(|session| session.has_sent(sid, to)) {
                    trace.recorder.record_frame(PacketDirection::Outbound, (mac, to), &parts);
                }
            }
        }
    }
}

/// Returns the SID in the header of a frame: the receiver's name for the session.
fn sid(frame: &[u8]) -> Option<u32> {
    frame.get(SID_AT.into()..)?.first_chunk().map(|sid| u32::from_be_bytes(*sid))
}
