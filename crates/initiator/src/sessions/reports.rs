//! Adds events to the queue of the owner of sessions, and answers which paths they have.

use iscsi::initiator::contract::{AsyncNotice, ConnectionView};
use scsi::lun::Lun;
use scsi::sense::{Sense, SenseKey};

use super::{DriverEvent, Event, Path, PathError, SessionId, Sessions, TextAnswer};
use crate::protocol::ProtocolSession;

impl Sessions {
    /// Reports an event of a session. A session that is lost or ends has no path, so the ends of its paths
    /// are reported before.
    pub(super) fn report(&mut self, id: SessionId, event: Event) {
        if let (Event::Recovering | Event::Down(_), Some(entry)) = (&event, self.entries.get_mut(&id)) {
            let downs = entry.paths_up.clear();
            self.events.extend(downs.map(|event| DriverEvent::Session { session: id, event }));
        }
        self.events.push_back(DriverEvent::Session { session: id, event });
    }

    /// Returns the paths of a session that are up; `None` if the session has ended.
    pub(crate) fn paths(&self, id: SessionId) -> Option<Vec<Path>> {
        self.entries.get(&id).filter(|entry| entry.down.is_none()).map(|entry| entry.paths_up.list())
    }

    /// Returns the connections of a session, none for one of HyperSCSI; `None` if it was forgotten.
    pub(crate) fn connections(&self, id: SessionId) -> Option<Vec<ConnectionView>> {
        let entry = self.entries.get(&id)?;
        match &entry.session {
            ProtocolSession::Iscsi(session) => Some(session.connections().collect()),
            ProtocolSession::HyperScsi(_) => Some(Vec::new()),
        }
    }

    /// Reports that a path is up.
    pub(super) fn path_up(&mut self, id: SessionId, path: Path) {
        if let Some(event) = self.entries.get_mut(&id).and_then(|entry| entry.paths_up.add(path)) {
            self.report(id, event);
        }
    }

    /// Reports that a path is down, or that an attempt to bring it up failed.
    pub(super) fn path_down(&mut self, id: SessionId, path: Path, why: PathError) {
        if let Some(event) = self.entries.get_mut(&id).and_then(|entry| entry.paths_up.remove(path, why)) {
            self.report(id, event);
        }
    }

    /// Reports the end of a text negotiation.
    pub(super) fn text_done(&mut self, id: SessionId, result: Option<TextAnswer>) {
        self.events.push_back(DriverEvent::TextDone { session: id, result });
    }

    /// Reports the unit attention that an Asynchronous Message contains, if it contains one.
    pub(super) fn note_async_attention(&mut self, id: SessionId, notice: &AsyncNotice) {
        if let Some(sense) = notice.sense.as_deref().and_then(|sense| Sense::parse(sense).ok())
            && sense.key == SenseKey::UNIT_ATTENTION
        {
            self.report(id, Event::UnitAttention { lun: Lun(notice.message.lun), asc: sense.asc });
        }
    }
}

/// Splits the text of an answer into names and values. The session has parsed the text, so it is valid.
pub(super) fn pairs(answer: &[u8]) -> Vec<(String, String)> {
    let text = |bytes| String::from_utf8_lossy(bytes).into_owned();
    let pairs = iscsi::text::parse(answer).unwrap_or_default();
    pairs.iter().map(|pair| (pair.name.to_owned(), text(pair.value))).collect()
}
