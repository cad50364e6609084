//! The steps of a live upgrade on the thread of a reactor.

use std::fs::File;
use std::io;
use std::net::SocketAddr;

use base::state_machine::{AcceptInfo, ConnId, PortalId};
use base::time::Instant;
use shard::handover::{Exported, ShardBusy, ShardState};
use target::units::UnitId;

use super::ReactorShard;
use super::kinds::{disk_of, downcast, is};
use crate::serve::media::disc::DiscDrive;
use crate::serve::media::handed_over::{MovedMedium, MovingMedium, Obstacle, TakenChunks};
use crate::serve::media::ram::Memory;
use crate::serve::media::tape::Tape;

/// The most bytes of memory that a reactor leaves to be copied while the sessions are frozen: what takes a
/// small part of the time that they may be.
const MEMORY_REST_MAX: u64 = 32 << 20;

/// The sessions and units of a reactor, as they move to another process.
#[derive(Debug)]
pub(in crate::serve) struct ExportedReactor {
    pub(in crate::serve) shard: ShardState,
    /// The connections of each session.
    pub(in crate::serve) connections: Vec<Vec<(ConnId, Arrival)>>,
    /// The media that move with the sessions.
    pub(in crate::serve) media: Vec<MovingMedium>,
}

/// How a connection of an initiator arrived. The driver has a local socket for one inside TLS, which does not
/// tell these addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::serve) struct Arrival {
    pub(in crate::serve) portal: PortalId,
    pub(in crate::serve) local: SocketAddr,
    pub(in crate::serve) peer: SocketAddr,
}

impl Arrival {
    pub(super) const fn of(info: &AcceptInfo) -> Self {
        Self { portal: info.portal, local: info.local, peer: info.peer }
    }
}

impl From<ShardBusy> for Obstacle {
    fn from(busy: ShardBusy) -> Self {
        Self { sentence: busy.to_string(), can_end: busy.can_end() }
    }
}

impl ReactorShard {
    /// Returns other descriptors of the files and devices that are served, and what each is.
    pub(in crate::serve) fn media_files(&self) -> io::Result<Vec<(MovedMedium, File)>> {
        let disks = self.media.iter().filter_map(|(id, medium)| {
            let disk = disk_of(medium.as_ref())?;
            let moved = match self.naa(*id).filter(|_| is::<DiscDrive>(medium.as_ref())) {
                Some(drive) => MovedMedium::Disc { drive: drive.to_string(), disc: disk.info().moved_disc() },
                None => MovedMedium::File,
            };
            Some(disk.try_clone_file().map(|file| (moved, file)))
        });
        let libraries = self.libraries.iter().filter_map(|(id, library)| {
            let changer = self.naa(*id)?.to_string();
            Some(library.duplicate_lock().map(|lock| (MovedMedium::Library { changer }, lock)))
        });
        disks.chain(libraries).collect()
    }

    /// Returns why the units cannot move to another process, if they cannot: what no wait ends, if there is
    /// such a reason.
    pub(in crate::serve) fn obstacle(&self) -> Option<Obstacle> {
        let pending = || {
            let id = self.pending_discs.keys().next()?;
            let label = self.runtime.unit(*id).map(|unit| unit.label.as_str()).unwrap_or_default();
            Some(format!("{label}: its disc is to be replaced when it is saved; try again"))
        };
        let media = self.media.values().filter_map(|medium| medium.obstacle());
        media
            .chain(self.nbd.obstacle())
            .chain(pending().map(Obstacle::lasting))
            .min_by_key(|obstacle| obstacle.can_end)
    }

    /// Stops the command windows, so that the sessions become idle.
    pub(in crate::serve) fn freeze(&mut self, now: Instant) {
        self.shard.freeze(now);
    }

    /// Opens the command windows again, or for the first time in this process: then devices may get commands,
    /// too.
    pub(in crate::serve) fn thaw(&mut self, now: Instant) {
        for (id, medium) in &self.media {
            medium.start(Box::new(self.wake(*id)));
        }
        self.shard.thaw(now);
    }

    /// Lets go of the devices of other processes. Returns the connections to block devices, which the caller
    /// ends.
    pub(in crate::serve) fn leave_processes(&self) -> Vec<ConnId> {
        self.media.values().for_each(|medium| medium.leave_process());
        self.nbd.connections_to_devices()
    }

    /// Begins no HyperSCSI handshake from now on, or does again.
    pub(in crate::serve) fn pause_handshakes(&mut self, is_paused: bool) {
        self.shard.pause_handshakes(is_paused);
    }

    /// Returns which server or process does not answer, if one does not.
    pub(in crate::serve) fn away(&self) -> Option<String> {
        self.nbd.away().or_else(|| self.media.values().find_map(|medium| medium.away()))
    }

    /// Returns how many logins, discoveries and handshakes would be lost with this process, and how many
    /// flushes of [`Self::flush_exports`] have not ended.
    pub(in crate::serve) fn unmovable(&self) -> usize {
        self.shard.unmovable() + self.nbd.flushing()
    }

    /// Closes the connections that have not logged in, and those of discovery sessions.
    pub(in crate::serve) fn end_unmovable(&mut self, now: Instant) {
        self.shard.end_unmovable(now);
    }

    /// Flushes what hosts have written to exports, so that less is left to flush while the sessions are
    /// frozen.
    pub(in crate::serve) fn flush_exports(&self) {
        self.nbd.prepare_handover(true);
    }

    /// Begins to copy the memory of LUNs. Returns whether there is any.
    pub(in crate::serve) fn begin_memory_move(&self) -> io::Result<bool> {
        self.memories().try_for_each(|(_, memory)| memory.begin_move())?;
        Ok(self.memories().next().is_some())
    }

    /// Takes chunks back that were copied, and returns the next ones, of about `len_max` bytes; `None` when
    /// it has been through the memory of all LUNs. Then it begins anew.
    pub(in crate::serve) fn move_memory(
        &self,
        copied: Option<(UnitId, TakenChunks)>,
        len_max: u64,
    ) -> Option<(UnitId, TakenChunks)> {
        let from = copied.as_ref().map_or(UnitId(0), |(id, _)| *id);
        if let Some((id, taken)) = copied
            && let Some(memory) = self.medium::<Memory>(id)
        {
            memory.moved(taken);
        }
        let mut memories = self.memories().filter(|(id, _)| *id >= from);
        memories.find_map(|(id, memory)| Some((id, memory.next_to_move(len_max)?)))
    }

    /// Returns the memory of LUNs, in the order of the units.
    fn memories(&self) -> impl Iterator<Item = (UnitId, &Memory)> {
        self.media.iter().filter_map(|(id, medium)| Some((*id, downcast::<Memory>(medium.as_ref())?)))
    }

    /// Returns how many bytes of the memory of LUNs are still to be copied.
    pub(in crate::serve) fn memory_to_move(&self) -> u64 {
        self.memories().map(|(_, memory)| memory.len_to_move()).sum()
    }

    /// Ends the copying: the memory of LUNs stays in this process.
    pub(in crate::serve) fn end_memory_move(&self) {
        self.memories().for_each(|(_, memory)| memory.end_move());
    }

    /// Makes durable what keeps tape drives and exports from moving. Call this as often as [`Self::busy`].
    pub(in crate::serve) fn prepare_handover(&mut self, now: Instant) {
        self.nbd.prepare_handover(false);
        for (id, _) in self.media.iter().filter(|(_, medium)| is::<Tape>(medium.as_ref())) {
            self.shard.prepare_handover(now, *id);
        }
    }

    /// Returns what is under way, if anything is.
    pub(in crate::serve) fn busy(&self) -> Option<Obstacle> {
        let passing = |sentence| Some(Obstacle { sentence, can_end: true });
        if let Some((_, removed)) = self.retiring.first() {
            return passing(format!("{} was removed and still has I/O under way", removed.label));
        }
        let of_shard = self.shard.busy();
        // Commands are under way because of a server that is away.
        if of_shard.as_ref().is_none_or(ShardBusy::can_end)
            && let Some(away) = self.away()
        {
            return passing(away);
        }
        if let Some(busy) = of_shard {
            return Some(busy.into());
        }
        let media = self.media.values().filter_map(|medium| medium.busy());
        media.chain(self.nbd.closing().map(Obstacle::from)).min_by_key(|busy| busy.can_end)
    }

    /// Returns the sessions and units. The driver must be parked.
    ///
    /// # Errors
    /// What is under way.
    pub(in crate::serve) fn export(&mut self, now: Instant) -> Result<ExportedReactor, Obstacle> {
        if let Some(why) = self.busy() {
            return Err(why);
        }
        // Only now nothing more can fail: a flush that failed meanwhile must not be forgotten.
        if let Some(obstacle) = self.obstacle() {
            return Err(obstacle);
        }
        if self.memory_to_move() > MEMORY_REST_MAX {
            return Err("hosts write to memory faster than it is copied".into());
        }
        let moving = self
            .media
            .iter()
            .filter_map(|(id, medium)| medium.export(&self.naa(*id)?.to_string()).transpose());
        let media = moving.collect::<Result<_, _>>();
        let media = media.map_err(Obstacle::lasting)?;
        let Exported { state: shard, connections } = self.shard.export(now)?;
        // Every connection of an initiator has arrived through a portal.
        let arrival = |conn: ConnId| Some((conn, *self.arrivals.get(&conn)?));
        let arrived = |conns: Vec<ConnId>| conns.into_iter().filter_map(arrival).collect();
        let connections = connections.into_iter().map(arrived).collect();
        Ok(ExportedReactor { shard, connections, media })
    }

    /// Takes over the sessions and units of another process. The driver must be parked.
    ///
    /// # Errors
    /// A sentence that says what does not fit.
    pub(in crate::serve) fn resume(
        &mut self,
        now: Instant,
        state: &ShardState,
        connections: &[Vec<ConnId>],
    ) -> Result<(), String> {
        // An interface that this process does not serve has no port here. One that is down has.
        let interfaces = &self.runtime.interfaces;
        let mut state = state.clone();
        state.map_ports(|port| interfaces.iter().any(|(known, _)| *known == port).then_some(port));
        self.shard.resume(now, &state, connections).map_err(|error| error.to_string())
    }

    /// Returns the count of binding changes.
    pub(in crate::serve) fn binding_changes(&self) -> u64 {
        self.shard.binding_changes()
    }
}
