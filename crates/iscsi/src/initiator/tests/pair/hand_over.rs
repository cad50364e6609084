//! The engine of a pair is replaced by another one, to which its sessions move.

use alloc::string::String;
use alloc::sync::Arc;
use alloc::vec::Vec;

use base::state_machine::{ConnId, DisconnectReason};
use base::time::{Duration, Instant};
use transport::initiator::InitiatorTransport as _;
use transport::target::SessionId;

use super::Pair;
use crate::login::directory::TargetId;
use crate::target::engine::Engine;
use crate::target::handover::{Busy, SessionState};
use crate::trace::PduTrace;

/// A session as it moves: its state as a document, and its connections.
pub(in crate::initiator::tests) type Moved = (String, Vec<ConnId>);

impl Pair {
    /// Does one thing: moves bytes, answers a command, or else lets time pass up to the next deadline.
    pub(in crate::initiator::tests) fn one_step(&mut self) {
        self.drain();
        if self.step() {
            return;
        }
        let next = [self.session.poll_timeout(), self.engine.poll_timeout()].into_iter().flatten().min();
        self.now = next.unwrap_or(self.now).max(self.now.after(Duration::from_millis(1)));
        self.session.handle_timeout(self.now);
        self.engine.handle_timeout(self.now);
        self.drain();
    }

    /// Serves the frozen engine until it is idle, for `patience` at most.
    pub(in crate::initiator::tests) fn become_idle(&mut self, patience: Duration) -> Result<(), Busy> {
        let end: Instant = self.now.after(patience);
        let mut steps = 0;
        loop {
            self.drain();
            let Some(busy) = self.engine.busy() else { return Ok(()) };
            if self.now > end {
                return Err(busy);
            }
            self.one_step();
            steps += 1;
            assert!(steps < 1_000_000, "the engine never becomes idle: {busy}");
        }
    }

    /// Exports every session of an idle engine as a document.
    pub(in crate::initiator::tests) fn export(&self) -> Vec<Moved> {
        let sessions: Vec<SessionId> = self.engine.sessions().map(|view| view.session).collect();
        let export = |session| {
            let (state, conns) = self.engine.export(session).unwrap();
            (serde_json::to_string(&state).unwrap(), conns)
        };
        sessions.into_iter().map(export).collect()
    }

    /// Moves the sessions of an idle engine to a new one, which shows `trace` what it sends. Connections that
    /// have not logged in end with the old engine.
    pub(in crate::initiator::tests) fn move_sessions(&mut self, trace: &Arc<dyn PduTrace>) {
        let moved = self.export();
        // The new process may have another configuration.
        self.limits.queue_depth = 1 << self.rng.below(8);
        let mut engine = Engine::new(self.limits, self.pools[1].clone());
        engine.start_trace(Arc::clone(trace));
        let kept: Vec<ConnId> = moved.iter().flat_map(|(_, conns)| conns.iter().copied()).collect();
        let gone: Vec<ConnId> = self.wires.keys().copied().filter(|conn| !kept.contains(conn)).collect();
        for conn in &kept {
            engine.connected(self.now, *conn, &self.wires[conn].arrival.unwrap());
        }
        for (document, conns) in moved {
            let state: SessionState = serde_json::from_str(&document).unwrap();
            assert_eq!(serde_json::to_string(&state).unwrap(), document);
            assert_eq!(state.peers().len(), conns.len());
            engine.resume(self.now, state, TargetId(0), &conns, &self.names).unwrap();
        }
        let old = core::mem::replace(&mut self.engine, engine);
        assert_eq!(old.stats().bugs, 0);
        drop(old);
        for conn in gone {
            self.wires.remove(&conn);
            self.session.disconnected(self.now, conn, DisconnectReason::Failed);
        }
        self.drain();
    }
}
