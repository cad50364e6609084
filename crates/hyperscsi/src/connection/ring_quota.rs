//! The ring quota: this session's part of each port's receive ring. The owner sets the quota of each port.
//! The connection divides it among the windows of all paths and packet number spaces over that port, so that
//! their sum never exceeds the quota. Also the XID limits of exchanges.

use base::ether::EtherPort;

use super::Connection;
use crate::exchange::xid::xid_ahead;
use crate::path::credit::WINDOW_MIN;
use security::Level;

impl Connection {
    /// Sets how many frames of a port's receive ring this session may fill.
    pub fn set_ring_quota(&mut self, port: EtherPort, share: u64) {
        match self.shares.iter_mut().find(|(known, _)| *known == port) {
            Some((_, known)) => *known = share,
            None => self.shares.push((port, share)),
        }
        self.share_out(port);
    }

    /// Returns how many windows share the session's quota of a port's receive ring: one for each packet
    /// number space of each path.
    pub fn windows_at(&self, port: EtherPort) -> usize {
        self.paths.iter().filter(|path| path.address.port == port).count() * self.spaces_used()
    }

    /// Returns whether a path was added or removed since the last call, so that the owner must divide the
    /// rings again.
    pub const fn take_rewindowed(&mut self) -> bool {
        core::mem::replace(&mut self.rewindowed, false)
    }

    /// Returns in how many packet number spaces frames can arrive.
    fn spaces_used(&self) -> usize {
        if self.keyed && self.plan.levels.has(Level::None) { 2 } else { 1 }
    }

    fn share_at(&self, port: EtherPort) -> u64 {
        let entry = self.shares.iter().find(|(known, _)| *known == port);
        entry.map_or(self.plan.ring_quota, |(_, share)| *share)
    }

    /// Returns whether one more path over a port would leave every window there large enough to work.
    pub(super) fn has_share_for_path(&self, port: EtherPort) -> bool {
        let windows = u64::try_from(self.windows_at(port) + self.spaces_used()).unwrap_or(u64::MAX);
        self.share_at(port) / windows >= WINDOW_MIN
    }

    /// Divides the session's quota of a port's receive ring among the windows there.
    pub(super) fn share_out(&mut self, port: EtherPort) {
        let windows = u64::try_from(self.windows_at(port).max(1)).unwrap_or(u64::MAX);
        let share = self.share_at(port) / windows;
        for path in self.paths.iter_mut().filter(|path| path.address.port == port) {
            path.spaces.iter_mut().for_each(|space| space.incoming.grant.set_share(share));
        }
    }

    /// Sets the largest XID that the peer may begin, in the packet number spaces of unprotected and of
    /// protected frames. A limit never decreases; 0 means no limit is set. The next acknowledgement carries
    /// it, or a frame of its own at once if it rose by much.
    pub fn set_xid_limits(&mut self, limits: [u32; 2]) {
        for (own, limit) in self.xid_limits.iter_mut().zip(limits) {
            if *own == 0 || (limit != 0 && xid_ahead(limit, *own).is_some()) {
                *own = limit;
            }
        }
    }

    /// Returns the largest XID that the peer allows, in the packet number spaces of unprotected and of
    /// protected frames.
    pub const fn peer_xid_limits(&self) -> [u32; 2] {
        self.peer_xid_limits
    }
}
