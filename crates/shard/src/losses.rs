//! What sessions would lose by another configuration, for an operator who is about to apply it.

use alloc::string::String;
use alloc::vec::Vec;

use device::contract::NexusId;
use security::Level;
use target::nexus::MapEntry;
use target::transport_id::nexus_of;

use crate::config::ShardConfig;
use crate::shard::{HYPERSCSI, ISCSI, Shard};

/// A session that another configuration would end or take LUNs from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SessionLoss {
    /// The target's name.
    pub target: String,
    /// The initiator's name.
    pub initiator: String,
    /// The initiator's part of the session identifier (ISID).
    pub isid: [u8; 6],
    /// Whether the session would end.
    pub ends: bool,
    /// The LUNs that it sees now and would no longer see.
    pub luns: Vec<u16>,
    /// The protection that its next login would need, if that is more than the session has.
    pub login_needs: Option<Level>,
}

impl Shard {
    /// Returns the sessions that [`Self::apply`] of another configuration would end or take LUNs from, and
    /// those whose initiators could not log in again with the protection that they have.
    pub fn losses(&self, mut config: ShardConfig) -> Vec<SessionLoss> {
        config.sort();
        let iscsi = self.transports.iscsi.sessions();
        let iscsi = iscsi.map(|view| (nexus_of(ISCSI, view.session), view.isid.0));
        let frames = self.transports.hyperscsi.sessions();
        let frames = frames.map(|view| (nexus_of(HYPERSCSI, view.session), view.isid));
        iscsi.chain(frames).filter_map(|(id, isid)| self.loss_of(&config, id, isid)).collect()
    }

    fn loss_of(&self, config: &ShardConfig, id: NexusId, isid: [u8; 6]) -> Option<SessionLoss> {
        let entry = self.target.nexus(id)?;
        let (map, level) = (self.map_of(config, entry), entry.level());
        let stays = |seen: &MapEntry| {
            map.iter()
                .flatten()
                .any(|new| (new.number, new.unit) == (seen.number, seen.unit) && new.min_level <= level)
        };
        let luns: Vec<u16> = entry.seen().filter(|seen| !stays(seen)).map(|seen| seen.number).collect();
        let required = |config: &ShardConfig| {
            let target = config.target_of(entry.target()).filter(|_| entry.session().0 == ISCSI)?;
            Some(target.keys.min_protection).filter(|required| *required > level)
        };
        // A session that is below the present requirement is cut off already.
        let login_needs = required(config).filter(|_| required(&self.config).is_none());
        let ends = map.is_none();
        let is_loss = ends || !luns.is_empty() || login_needs.is_some();
        is_loss.then(|| SessionLoss {
            target: self
                .config
                .target_of(entry.target())
                .map_or_else(String::new, |target| target.name.as_str().into()),
            initiator: entry.initiator().into(),
            isid,
            ends,
            luns,
            login_needs,
        })
    }
}
