//! Collects what the reactors have counted, by one message for each reactor.

use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::sync::{Mutex, mpsc};

use crate::serve::admin_api::Shared;
use crate::serve::reactor_shard::ReactorShard;
use crate::serve::reactor_shard::counts::Snapshot;

/// How long all reactors together may take to answer.
const REACTORS_MAX: Duration = Duration::from_secs(5);

/// A reactor does not answer, or the daemon stops.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a reactor does not answer")]
pub(in crate::serve) struct NoAnswer;

/// Collects counters for the HTTP server. Requests that arrive while a collection is under way share the one
/// that follows it, so that the reactors answer at most one at a time, however many clients there are.
pub(in crate::serve) struct Collector {
    shared: Arc<Shared>,
    last: Mutex<Option<Collected>>,
}

struct Collected {
    begun: Instant,
    snapshot: Result<Arc<Snapshot>, NoAnswer>,
}

impl Collector {
    pub(in crate::serve) fn new(shared: Arc<Shared>) -> Self {
        Self { shared, last: Mutex::default() }
    }

    /// Returns what was counted, no earlier than this call.
    pub(in crate::serve) async fn collect(&self) -> Result<Arc<Snapshot>, NoAnswer> {
        let asked = Instant::now();
        let mut last = self.last.lock().await;
        if let Some(collected) = last.as_ref().filter(|collected| collected.begun >= asked) {
            return collected.snapshot.clone();
        }
        let begun = Instant::now();
        let snapshot = tokio::time::timeout(REACTORS_MAX, self.ask_reactors()).await;
        let snapshot = snapshot.unwrap_or(Err(NoAnswer)).map(Arc::new);
        *last = Some(Collected { begun, snapshot: snapshot.clone() });
        snapshot
    }

    async fn ask_reactors(&self) -> Result<Snapshot, NoAnswer> {
        let (sender, mut receiver) = mpsc::unbounded_channel();
        for (handle, _) in &self.shared.reactors {
            let sender = sender.clone();
            let posted = handle.post(move |member: &mut ReactorShard, _| {
                let _ = sender.send(member.counts());
            });
            posted.map_err(|_| NoAnswer)?;
        }
        drop(sender);
        let mut counts = Vec::new();
        while let Some(one) = receiver.recv().await {
            counts.push(one);
        }
        // A reactor that ends drops its sender without an answer.
        if counts.len() < self.shared.reactors.len() {
            return Err(NoAnswer);
        }
        Ok(self.shared.snapshot(counts))
    }
}
