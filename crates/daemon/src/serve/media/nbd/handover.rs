//! How the connections of exports move to another process.

use ::nbd::client::Unmovable;
use base::state_machine::ConnId;

use super::{Inner, NbdExport, NbdExports};
use crate::serve::media::handed_over::{MovingExport, Obstacle};

impl NbdExports {
    /// Flushes what keeps the exports from moving to another process; after a flush that has failed only if
    /// `again`.
    pub(in crate::serve) fn prepare_handover(&self, again: bool) {
        for export in self.exports.values() {
            export.change(|client| client.prepare_handover(again));
        }
    }

    /// Returns how many exports are flushing.
    pub(in crate::serve) fn flushing(&self) -> usize {
        self.exports.values().filter(|export| export.0.borrow().client.is_flushing()).count()
    }

    /// Returns which export of a removed unit is not closed yet, if one is not.
    pub(in crate::serve) fn closing(&self) -> Option<String> {
        let closing = self.exports.values().find(|export| !self.is_current(export))?;
        let inner = closing.0.borrow();
        Some(format!("{} was removed, and its connection to {} ends", inner.label, inner.address))
    }

    /// Returns which server does not answer, if one does not: also one whose unit was removed, and which
    /// operations of hosts still wait for.
    pub(in crate::serve) fn away(&self) -> Option<String> {
        self.exports.values().filter(|export| self.is_current(export)).find_map(NbdExport::unanswering)
    }

    /// Returns why another process cannot serve an export as this one does, if that is so: also one whose
    /// unit was removed.
    pub(in crate::serve) fn obstacle(&self) -> Option<Obstacle> {
        self.exports.values().filter(|export| self.is_current(export)).find_map(NbdExport::why_unmovable)
    }

    /// Returns the connections to devices of other processes.
    pub(in crate::serve) fn connections_to_devices(&self) -> Vec<ConnId> {
        let exports = self.exports.values().map(|export| export.0.borrow());
        exports.filter(|inner| inner.is_device()).filter_map(|inner| inner.connection).collect()
    }
}

impl NbdExport {
    /// Returns that the server does not answer, if it does not.
    pub(super) fn unanswering(&self) -> Option<String> {
        let Inner { client, label, address, withheld, .. } = &*self.0.borrow();
        let is_away = client.unmovable() == Some(Unmovable::Away) && withheld.is_none();
        is_away.then(|| format!("{label}: {address} does not answer"))
    }

    /// Returns what is under way, or that the server could not flush.
    pub(super) fn unfinished(&self) -> Option<Obstacle> {
        let Inner { client, label, address, .. } = &*self.0.borrow();
        let what = match client.unmovable()? {
            Unmovable::FlushFailed => {
                return Some(Obstacle::lasting(format!(
                    "{label}: {address} could not make durable what hosts wrote"
                )));
            }
            Unmovable::Working if client.is_up() => "has requests under way",
            Unmovable::Working => "is being connected to",
            Unmovable::Away | Unmovable::LostChanges => return None,
        };
        Some(format!("{label}: {address} {what}").into())
    }

    /// Returns why another process cannot serve it as this one does, if that is so.
    pub(super) fn why_unmovable(&self) -> Option<Obstacle> {
        let Inner { client, label, withheld, loss, .. } = &*self.0.borrow();
        let lost = "writes to it were lost, and only this process reports that to its hosts";
        let has_lost = client.unmovable() == Some(Unmovable::LostChanges);
        let why = withheld.as_deref().or_else(|| loss.obstacle()).or(has_lost.then_some(lost))?;
        Some(Obstacle::lasting(format!("{label}: {why}")))
    }

    /// Returns what was negotiated, and the connection, if that can move. Nothing is under way.
    pub(super) fn moving(&self, unit: &str) -> MovingExport {
        let inner = self.0.borrow();
        let conn = inner.connection.filter(|_| !inner.is_device());
        MovingExport { unit: unit.to_owned(), info: *inner.client.info(), conn }
    }
}
