//! Peers that accept nothing, and hosts that are gone.

use base::state_machine::DisconnectReason;
use base::time::Instant;

use super::{Connections, State};
use crate::tcp_acked::{self, Awaited};

/// How often within the time that a peer or a host may take its progress is checked.
const LOOKS: u32 = 4;

/// The progress of a peer at a given time.
#[derive(Clone, Copy)]
pub(super) struct Seen {
    at: Instant,
    acknowledged: Option<u64>,
    batches: u64,
}

impl Connections {
    /// Checks every connection that is sending, and ends those whose peer accepted nothing for too long.
    pub(super) fn end_stalled(&mut self, now: Instant) {
        self.look_at = None;
        let Some(stall) = self.stall else { return };
        for number in self.table.numbers() {
            let Some(conn) = self.table.get_mut(number) else { continue };
            if !conn.sending || conn.is_own || conn.state != State::Open {
                conn.seen = None;
                continue;
            }
            self.look_at = Some(now.after(stall / LOOKS));
            let acknowledged = tcp_acked::bytes_acked(&conn.socket);
            match conn.seen {
                Some(seen) if (seen.acknowledged, seen.batches) == (acknowledged, conn.batches) => {
                    if now.since(seen.at) >= stall {
                        self.end(number, DisconnectReason::Stalled);
                    }
                }
                _ => conn.seen = Some(Seen { at: now, acknowledged, batches: conn.batches }),
            }
        }
    }

    /// Ends the owner's own connections whose host is gone: it owes an acknowledgement and sends nothing. A
    /// host that answers keeps its connection, whatever its program does: only the state machine knows what a
    /// request may take. The system itself would give up after a quarter of an hour.
    pub(super) fn end_without_host(&mut self, now: Instant) {
        self.hosts_at = None;
        for number in self.table.numbers() {
            let Some(conn) = self.table.get_mut(number).filter(|conn| conn.is_own) else { continue };
            let Some(awaited) = Awaited::on(&conn.socket) else { continue };
            if conn.host_silence.observe(now, awaited) >= self.host_silence_max {
                self.end(number, DisconnectReason::TimedOut);
            } else {
                self.watch_hosts(now);
            }
        }
    }

    pub(super) fn watch_hosts(&mut self, now: Instant) {
        self.hosts_at.get_or_insert(now.after(self.host_silence_max / LOOKS));
    }

    /// Schedules the progress check of connections that are sending.
    pub(super) fn watch(&mut self, now: Instant) {
        if self.look_at.is_none() {
            self.look_at = self.stall.map(|stall| now.after(stall / LOOKS));
        }
    }
}
