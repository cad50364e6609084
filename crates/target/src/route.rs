//! Events on their way: from the engine to the unit that they mean, and back.

use base::buffer::Bytes;
use base::time::Instant;
use device::contract::{Command, Event as UnitEvent, NexusId, SenseBytes, TaskKey};
use iscsi::pdu::scsi_command::TaskAttribute as WireAttribute;
use iscsi::target::contract::{self as wire, Down, Event, Finish, SessionUp, TaskRef};
use scsi::cdb::Cdb;
use scsi::lun::Lun;
use scsi::sense::{Asc, Sense};
use scsi::status::{Status, TaskAttribute};

use crate::config::UnitId;
use crate::control::{Notice, SaveRequest};
use crate::nexus::{Entry, Nexuses};
use crate::shard::Shard;

impl Shard {
    /// Takes one event of the engine to where it belongs.
    pub(crate) fn route(&mut self, now: Instant, event: Event) {
        match event {
            Event::SessionUp(up) => self.session_up(now, &up),
            Event::Command(command) => self.command(now, command),
            Event::DataOut { task, offset, data } => {
                if let Some(unit) = self.owner(task).and_then(|unit| self.units.stir(unit)) {
                    unit.data_out(now, key_of(task), offset, Ok(data));
                }
            }
            Event::Manage(request) => self.manage(now, request),
            Event::TaskGone { task } => {
                if let Some(unit) = self.disown(task).and_then(|unit| self.units.stir(unit)) {
                    unit.task_gone(now, key_of(task));
                }
            }
            Event::SessionDown { session, why } => self.session_down(now, Nexuses::id_of(session), why),
        }
    }

    fn session_up(&mut self, now: Instant, up: &SessionUp) {
        let entry = self.config.target(up.target).and_then(|target| Entry::new(up, target));
        let Some(entry) = entry.filter(|_| !self.draining) else {
            // The configuration changed between the login's first question and its end.
            self.engine.close_session(now, up.session);
            return;
        };
        let id = self.nexuses.insert(entry);
        self.notice(Notice::SessionUp {
            initiator: up.initiator.as_str().into(),
            target: up.target_name.as_str().into(),
            peer: self.engine.peer(up.session),
            user: up.user.clone(),
        });
        self.introduce(now, id);
    }

    /// Tells every unit that a nexus sees about it.
    fn introduce(&mut self, now: Instant, id: NexusId) {
        let Some(entry) = self.nexuses.get(id) else { return };
        for unit in entry.units() {
            if let (Some(nexus), Some(unit)) = (entry.seen_by(id, unit), self.units.stir(unit)) {
                unit.nexus_established(now, nexus);
            }
        }
    }

    fn session_down(&mut self, now: Instant, id: NexusId, why: Down) {
        let Some(entry) = self.nexuses.remove(id) else { return };
        let target = self.config.target(entry.target).map(|target| target.name.as_str().into());
        self.notice(Notice::SessionDown { initiator: entry.initiator.as_str().into(), target, why });
        self.managing.forget(id);
        for unit in entry.units() {
            if let Some(unit) = self.units.stir(unit) {
                unit.nexus_lost(now, id);
            }
        }
    }

    fn command(&mut self, now: Instant, command: wire::Command) {
        let nexus = Nexuses::id_of(command.session);
        let unit = self.nexuses.get(nexus).and_then(|entry| entry.unit_at(Lun(command.lun)));
        let Some(cdb) = Cdb::from_bytes(&command.cdb) else {
            return self.refuse(command.task, &Sense::illegal(Asc::INVALID_COMMAND_OPERATION_CODE));
        };
        let Some((id, unit)) = unit.and_then(|id| Some((id, self.units.stir(id)?))) else {
            return self.absent(nexus, &command, &cdb);
        };
        own(&mut self.owners, command.task, id);
        unit.execute(
            now,
            Command {
                nexus,
                key: key_of(command.task),
                attribute: attribute_of(command.attribute),
                priority: command.priority,
                cdb,
                data_in_len: command.data_in_len,
                data_out_len: command.data_out_len,
            },
        );
    }

    /// Answers a command to a LUN behind which there is nothing (SPC-5 §5.12, §6.6, §6.33).
    fn absent(&mut self, nexus: NexusId, command: &wire::Command, cdb: &Cdb) {
        let luns = self.nexuses.get(nexus).map(Entry::luns).unwrap_or_default();
        let answer = device::absent::answer(cdb, luns, command.data_in_len);
        if !answer.data.is_empty() {
            self.engine.data_in(command.task, 0, Bytes::copied_from(&answer.data).into());
        }
        let sense = answer.sense.as_ref().map(SenseBytes::bytes).unwrap_or_default();
        let (status, transferable) = (answer.status.0, answer.transferable);
        self.engine.finish(command.task, Finish { status, sense, transferable });
    }

    fn refuse(&mut self, task: TaskRef, sense: &Sense) {
        let sense = SenseBytes::new(sense, false);
        let status = Status::CHECK_CONDITION.0;
        self.engine.finish(task, Finish { status, sense: sense.bytes(), transferable: 0 });
    }

    /// Takes every event of one unit to where it belongs.
    pub(crate) fn collect(&mut self, now: Instant, id: UnitId) {
        while let Some(event) = self.units.poll(id) {
            self.deliver(now, id, event);
        }
        self.units.note_deadline(id);
    }

    fn deliver(&mut self, now: Instant, id: UnitId, event: UnitEvent) {
        match event {
            UnitEvent::Fetch { key, offset, len } => self.engine.fetch(task_of(key), offset, len),
            UnitEvent::DataIn { key, offset, data } => self.engine.data_in(task_of(key), offset, data),
            UnitEvent::Finish { key, status, sense, transferable } => {
                let task = task_of(key);
                self.disown(task);
                let sense = sense.as_ref().map(SenseBytes::bytes).unwrap_or_default();
                self.engine.finish(task, Finish { status: status.0, sense, transferable });
            }
            UnitEvent::Aborted { key } => {
                let task = task_of(key);
                self.disown(task);
                self.engine.abort(task);
            }
            UnitEvent::Managed { key, outcome } => self.managed(now, key, outcome),
            UnitEvent::Save { ticket, state } => {
                self.saves.push_back(SaveRequest { unit: id, ticket, state })
            }
            UnitEvent::Peer(call) => self.peer(now, id, call),
            UnitEvent::PeerDone { caller, result } => {
                if let Some(unit) = self.units.stir(UnitId(caller.unit)) {
                    unit.peer_answer(now, caller.call, result);
                }
            }
        }
    }

    pub(crate) fn owner(&self, task: TaskRef) -> Option<UnitId> {
        *self.owners.get(usize::try_from(task.index()).ok()?)?
    }

    fn disown(&mut self, task: TaskRef) -> Option<UnitId> {
        self.owners.get_mut(usize::try_from(task.index()).ok()?)?.take()
    }
}

fn own(owners: &mut alloc::vec::Vec<Option<UnitId>>, task: TaskRef, unit: UnitId) {
    let at = usize::try_from(task.index()).unwrap_or(usize::MAX);
    while owners.len() <= at {
        owners.push(None);
    }
    if let Some(slot) = owners.get_mut(at) {
        *slot = Some(unit);
    }
}

pub(crate) const fn key_of(task: TaskRef) -> TaskKey {
    TaskKey(task.to_bits())
}

const fn task_of(key: TaskKey) -> TaskRef {
    TaskRef::from_bits(key.0)
}

fn attribute_of(attribute: WireAttribute) -> TaskAttribute {
    match attribute {
        WireAttribute::ORDERED => TaskAttribute::Ordered,
        WireAttribute::HEAD_OF_QUEUE => TaskAttribute::HeadOfQueue,
        WireAttribute::ACA => TaskAttribute::Aca,
        _ => TaskAttribute::Simple,
    }
}
