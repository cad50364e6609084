//! How the connections of exports move to another process.

use ::nbd::client::Unmovable;
use ::nbd::handshake::ExportInfo;
use base::state_machine::ConnId;
use target::units::UnitId;

use super::{Inner, NbdExports};

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

    /// Returns which server does not answer, if one does not.
    pub(in crate::serve) fn away(&self) -> Option<String> {
        self.find_unmovable(|inner, why| {
            let is_away = why == Unmovable::Away && inner.withheld.is_none();
            is_away.then(|| format!("{}: {} does not answer", inner.label, inner.address))
        })
    }

    /// Returns which server could not flush, if one could not.
    pub(in crate::serve) fn flush_failed(&self) -> Option<String> {
        self.find_unmovable(|inner, why| {
            let Inner { label, address, .. } = inner;
            let has_failed = why == Unmovable::FlushFailed;
            has_failed.then(|| format!("{label}: {address} could not make durable what hosts wrote"))
        })
    }

    /// Returns what is under way, if anything is.
    pub(in crate::serve) fn busy(&self) -> Option<String> {
        let mut ends = self.exports.values().filter(|export| !self.is_current(export)).map(|export| {
            let inner = export.0.borrow();
            format!("{} was removed, and its connection to {} ends", inner.label, inner.address)
        });
        let working = |inner: &Inner, why| {
            let Inner { client, label, address, .. } = inner;
            let what = if client.is_up() { "has requests under way" } else { "is being connected to" };
            (why == Unmovable::Working).then(|| format!("{label}: {address} {what}"))
        };
        ends.next().or_else(|| self.find_unmovable(working))
    }

    /// Returns why another process cannot serve an export as this one does, if that is so.
    pub(in crate::serve) fn obstacle(&self) -> Option<String> {
        let of_export = |inner: &Inner| {
            if let Some(why) = inner.withheld.as_deref().or_else(|| inner.loss.obstacle()) {
                return Some(why.to_owned());
            }
            let why = "writes to it were lost, and only this process reports that to its hosts";
            (inner.client.unmovable() == Some(Unmovable::LostChanges)).then(|| why.to_owned())
        };
        self.exports.values().filter(|export| self.is_current(export)).find_map(|export| {
            let inner = export.0.borrow();
            Some(format!("{}: {}", inner.label, of_export(&inner)?))
        })
    }

    /// Returns what is said of the first export of a unit that cannot move to another process.
    fn find_unmovable(&self, say: impl Fn(&Inner, Unmovable) -> Option<String>) -> Option<String> {
        self.exports.values().filter(|export| self.is_current(export)).find_map(|export| {
            let inner = export.0.borrow();
            say(&inner, inner.client.unmovable()?)
        })
    }

    /// Returns each export: its unit, what was negotiated, and the connection, if that can move. None is
    /// busy.
    pub(in crate::serve) fn moving(&self) -> impl Iterator<Item = (UnitId, ExportInfo, Option<ConnId>)> {
        self.exports.values().map(|export| {
            let inner = export.0.borrow();
            (inner.unit, *inner.client.info(), inner.connection.filter(|_| !inner.is_device()))
        })
    }

    /// Returns the connections to devices of other processes.
    pub(in crate::serve) fn connections_to_devices(&self) -> Vec<ConnId> {
        let exports = self.exports.values().map(|export| export.0.borrow());
        exports.filter(|inner| inner.is_device()).filter_map(|inner| inner.connection).collect()
    }
}
