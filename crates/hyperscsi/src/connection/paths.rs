//! Adding and removing paths, and their identifiers.
//!
//! An identifier is reused only when none is left that was never used, and no frame of the path that had it
//! can be under way any more. The packet numbers of the new path then continue where those of the old path
//! ended, so that none is used twice.

use alloc::vec::Vec;

use base::ether::{EtherPort, PortState};
use base::time::Instant;

use super::{Connection, ConnectionEvent, PATHS_MAX};
use crate::Role;
use crate::path::{FAR_MAX, Path, PathAddress, PnHorizon};

impl Connection {
    /// Records that a port is up, or that its state changed. The owner of a new connection must report every
    /// port that is up: the peer may open a path over it.
    pub fn port_up(&mut self, now: Instant, port: EtherPort, state: &PortState) {
        let known = self.ports.iter_mut().find(|(known, _)| *known == port);
        let moved = match known {
            Some((_, known)) => core::mem::replace(known, *state).mac != state.mac,
            None => {
                self.ports.push((port, *state));
                false
            }
        };
        if moved && self.role == Role::Initiator {
            // The peer knows these paths by the port's old address. New paths replace them, and also replace
            // paths over this port that were started and never validated.
            let here = self.paths.iter().filter(|path| path.address.port == port);
            let (tried, untried): (Vec<_>, Vec<_>) =
                here.map(|path| (path.id, path.address, path.challenge == 0)).partition(|path| path.2);
            for (_, address, _) in &tried {
                self.start_path(now, *address, state);
            }
            for (id, address, _) in untried {
                if tried.iter().all(|(_, other, _)| *other != address) {
                    self.start_path(now, address, state);
                }
                self.remove_path(now, id);
            }
        }
        for path in self.paths.iter_mut().filter(|path| path.address.port == port) {
            if path.port_up(now, state) {
                self.events.push_back(ConnectionEvent::PathMtu { path: path.id, mtu: path.pmtu.current() });
            }
        }
        self.requeue_from_silent_paths();
    }

    /// Records that a port is down. Paths over the port wait; data that is under way on them moves to other
    /// paths.
    pub fn port_down(&mut self, _now: Instant, port: EtherPort) {
        for path in self.paths.iter_mut().filter(|path| path.address.port == port) {
            path.port_down();
        }
        self.requeue_from_silent_paths();
    }

    /// Adds a path, which is used once the peer has answered on it. Returns its identifier; `None` when there
    /// are too many paths, or the path exists already. If all slots are taken, a path that is down makes
    /// room. Only initiators add paths; a target adds the paths that its initiator opens.
    pub fn add_path(&mut self, now: Instant, address: PathAddress, port: &PortState) -> Option<u8> {
        let known = self.paths.iter().any(|path| path.address == address);
        if known || self.role == Role::Target || !self.make_room(now, address.port) {
            return None;
        }
        self.start_path(now, address, port)
    }

    fn start_path(&mut self, now: Instant, address: PathAddress, port: &PortState) -> Option<u8> {
        let id = self.free_number(now)?;
        self.insert_path(now, id, address, port).step_wanted = true;
        Some(id)
    }

    /// Removes a path, and informs the peer on another path. The last path cannot be removed.
    pub fn remove_path(&mut self, now: Instant, id: u8) {
        if self.paths.len() > 1 && self.paths.iter().any(|path| path.id == id) {
            self.drop_path(now, id);
            if let Some(path) = self.control_path() {
                path.leaves.push(id);
                path.announced = false;
            }
        }
    }

    /// Makes room for one more path over a port by removing paths that are down, the longest silent first.
    /// Returns whether there is room.
    pub(super) fn make_room(&mut self, now: Instant, port: EtherPort) -> bool {
        loop {
            let is_full = self.paths.len() >= self.paths_max();
            if !is_full && self.has_share_for_path(port) {
                return true;
            }
            let given_up = |path: &&Path| path.down && (is_full || path.address.port == port);
            let oldest = self.paths.iter().filter(given_up).min_by_key(|path| path.heard);
            let Some(id) = oldest.map(|path| path.id).filter(|_| self.paths.len() > 1) else { return false };
            self.remove_path(now, id);
        }
    }

    pub(super) fn insert_path(
        &mut self,
        now: Instant,
        id: u8,
        address: PathAddress,
        port: &PortState,
    ) -> &mut Path {
        let pn_horizon = self.pn_horizons.remove(&id).map(|(_, pn_horizon)| pn_horizon).unwrap_or_default();
        let mut path = Path::new(now, (id, &pn_horizon), address, port, &self.plan, self.dice.next_u64());
        path.challenge = self.dice.next_u64().max(1);
        path.unheard = true;
        let at = self.paths.len();
        self.paths.push(path);
        self.rewindowed = true;
        self.share_out(address.port);
        #[expect(clippy::indexing_slicing, reason = "it was pushed just now")]
        &mut self.paths[at]
    }

    pub(super) fn drop_path(&mut self, now: Instant, id: u8) {
        let Some(at) = self.paths.iter().position(|path| path.id == id) else { return };
        let mut path = self.paths.remove(at);
        self.past.add(&path.stats);
        if path.is_waiting() {
            path.requeue_in_flight(&mut self.send_queue);
            // A frame that was under way may be the one that carried the XID limit.
            self.xid_announced = [0; 2];
        }
        self.pn_horizons.insert(id, (now, path.pn_horizon()));
        if let Some(messenger) = self.control_path() {
            messenger.leaves.append(&mut path.leaves);
        }
        self.paths.iter_mut().for_each(|path| path.announced = false);
        self.rewindowed = true;
        self.share_out(path.address.port);
        let carried = path.challenge == 0 && !path.down;
        self.events.push_back(ConnectionEvent::PathGone { path: id, address: path.address, carried });
    }

    /// Returns the path on which to inform the peer of removed paths.
    pub(super) fn control_path(&mut self) -> Option<&mut Path> {
        let at = self.paths.iter().position(Path::is_good);
        let at = at.or_else(|| self.paths.iter().position(Path::is_usable)).unwrap_or(0);
        self.paths.get_mut(at)
    }

    //= hyperscsi#section-8.2
    //# a number that no path of this session ever had; when there is none
    //# left, the one that was given up the longest ago, if that was LOST AFTER ago or more.
    /// Returns the identifier for a new path.
    fn free_number(&self, now: Instant) -> Option<u8> {
        let is_free = |id: &u8| self.paths.iter().all(|path| path.id != *id && !path.leaves.contains(id));
        let unused = (0..=u8::MAX).find(|id| is_free(id) && !self.pn_horizons.contains_key(id));
        let rested = |(_, (left, _)): &(&u8, &(Instant, PnHorizon))| now.since(*left) >= self.plan.lost_after;
        unused.or_else(|| {
            let rested = self.pn_horizons.iter().filter(rested).filter(|(id, _)| is_free(id));
            rested.min_by_key(|(_, (left, _))| *left).map(|(id, _)| *id)
        })
    }

    //= hyperscsi#section-8.2
    //# MUST drop what would begin a path under a number that was given up less than LOST AFTER ago, or whose PN is not
    //# behind all that came under it.
    /// Returns whether a frame with this packet number may begin a path with an identifier that no path has.
    pub(super) fn may_begin(&self, now: Instant, id: u8, space_index: usize, pn: u64) -> bool {
        let last = self.pn_horizons.get(&id).map_or(Some(0), |(left, pn_horizon)| {
            pn_horizon.come.get(space_index).copied().filter(|_| now.since(*left) >= self.plan.lost_after)
        });
        self.role == Role::Target && last.is_some_and(|last| (last + 1..FAR_MAX).contains(&pn))
    }

    fn paths_max(&self) -> usize {
        usize::from(self.plan.paths).clamp(1, PATHS_MAX)
    }
}
