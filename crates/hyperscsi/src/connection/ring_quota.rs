//! What a session may have of the rings in which ports keep frames until they are read: told by the owner for each port, and
//! divided among the windows of all that comes in there, so that they never add up to more. And how far exchanges may go.

use base::ether::EtherPort;

use super::Connection;
use crate::aead::Level;
use crate::exchange::xid::xid_ahead;
use crate::path::credit::WINDOW_MIN;

impl Connection {
    /// Sets how many frames of a port's receive ring are this session's.
    pub fn set_ring_quota(&mut self, port: EtherPort, share: u64) {
        match self.shares.iter_mut().find(|(known, _)| *known == port) {
            Some((_, known)) => *known = share,
            None => self.shares.push((port, share)),
        }
        self.share_out(port);
    }

    /// Returns how many windows share what the session has of a port's receive ring: one for each space of each path.
    pub fn windows_at(&self, port: EtherPort) -> usize {
        self.paths.iter().filter(|path| path.address.port == port).count() * self.spaces_used()
    }

    /// Returns whether a path came or went since this was last asked, so that rings are to be divided anew.
    pub const fn take_rewindowed(&mut self) -> bool {
        core::mem::replace(&mut self.rewindowed, false)
    }

    /// Returns in how many packet number spaces frames can come.
    fn spaces_used(&self) -> usize {
        if self.keyed && self.plan.levels.has(Level::None) { 2 } else { 1 }
    }

    fn share_at(&self, port: EtherPort) -> u64 {
        let told = self.shares.iter().find(|(known, _)| *known == port);
        told.map_or(self.plan.ring_quota, |(_, share)| *share)
    }

    /// Returns whether one more path over a port would leave every window there enough to work with.
    pub(super) fn has_share_for_path(&self, port: EtherPort) -> bool {
        let windows = u64::try_from(self.windows_at(port) + self.spaces_used()).unwrap_or(u64::MAX);
        self.share_at(port) / windows >= WINDOW_MIN
    }

    /// Divides the session's part of a port's receive ring among the windows there.
    pub(super) fn share_out(&mut self, port: EtherPort) {
        let windows = u64::try_from(self.windows_at(port).max(1)).unwrap_or(u64::MAX);
        let share = self.share_at(port) / windows;
        for path in self.paths.iter_mut().filter(|path| path.address.port == port) {
            path.spaces.iter_mut().for_each(|space| space.incoming.grant.set_share(share));
        }
    }

    /// Sets the largest exchange that the peer may begin, in the spaces of unprotected and of protected frames. A limit
    /// never goes back, 0 is none. It is told with the next acknowledgement, or at once if it rose by much.
    pub fn set_xid_limits(&mut self, limits: [u32; 2]) {
        for (own, limit) in self.xid_limits.iter_mut().zip(limits) {
            if *own == 0 || (limit != 0 && xid_ahead(limit, *own).is_some()) {
                *own = limit;
            }
        }
    }

    /// Returns the largest exchange that the peer allows, in the spaces of unprotected and of protected frames.
    pub const fn peer_xid_limits(&self) -> [u32; 2] {
        self.peer_xid_limits
    }
}
