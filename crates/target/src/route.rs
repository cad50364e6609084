//! Events on their way: from the engine to the unit that they mean, and back.

use alloc::string::String;
use alloc::vec::Vec;

use base::buffer::{Bytes, DataList};
use base::time::Instant;
use device::contract::{Command, Event as UnitEvent, NexusId, SenseBytes};
use hyperscsi::target::contract as frames;
use iscsi::pdu::scsi_command::TaskAttribute as WireAttribute;
use iscsi::target::contract::{self as stream, Event, SessionUp};
use scsi::cdb::Cdb;
use scsi::lun::Lun;
use scsi::sense::{Asc, Sense};
use scsi::status::{Status, TaskAttribute};

use crate::config::UnitId;
use crate::control::{Notice, SaveRequest};
use crate::manage::Request;
use crate::nexus::{Entry, Found};
use crate::shard::Shard;
use crate::transport::{Session, Task, Tmf};

impl Shard {
    /// Takes one event of the iSCSI engine to where it belongs.
    pub(crate) fn route(&mut self, now: Instant, event: Event) {
        match event {
            Event::SessionUp(up) => self.session_up(now, &up),
            Event::Command(command) => {
                let (session, task) = (Session::Iscsi(command.session), Task::Iscsi(command.task));
                let attribute = attribute_of(command.attribute);
                let lens = (command.data_in_len, command.data_out_len);
                let order = (attribute, command.priority);
                self.command(now, (session, command.lun), task, order, &command.cdb, lens);
            }
            Event::DataOut { task, offset, data } => self.data_out(now, Task::Iscsi(task), offset, data),
            Event::Manage(request) => self.manage(now, &Request::of_iscsi(&request)),
            Event::TaskGone { task } => self.task_gone(now, Task::Iscsi(task)),
            Event::SessionDown { session, why } => {
                // While we shut down, initiators log out because they were asked to.
                let deliberate = why == stream::Down::LoggedOut && !self.draining;
                let session = Session::Iscsi(session);
                let peer = self.nexuses.get(session.nexus()).and_then(|entry| entry.peer);
                if let Some((initiator, target)) = self.session_down(now, session, deliberate) {
                    self.notice(Notice::SessionDown { initiator, target, peer, why });
                }
            }
        }
    }

    /// Takes one event of the HyperSCSI engine to where it belongs.
    pub(crate) fn route_frames(&mut self, now: Instant, event: frames::Event) {
        match event {
            frames::Event::SessionUp(up) => self.frames_session_up(now, &up),
            frames::Event::Command(command) => {
                let (session, task) = (Session::HyperScsi(command.session), Task::HyperScsi(command.task));
                // The numbers are those of iSCSI.
                let attribute = attribute_of(WireAttribute(command.attribute.0));
                let lens = (command.data_in_len, command.data_out_len);
                let order = (attribute, command.priority);
                self.command(now, (session, command.lun), task, order, &command.cdb, lens);
            }
            frames::Event::DataOut { task, offset, data } => {
                self.data_out(now, Task::HyperScsi(task), offset, data);
            }
            frames::Event::Manage(request) => self.manage(now, &Request::of_hyperscsi(&request)),
            frames::Event::TaskGone { task } => self.task_gone(now, Task::HyperScsi(task)),
            frames::Event::Path { session, port, peer, news } => {
                let entry = self.nexuses.get(Session::HyperScsi(session).nexus());
                if let Some(initiator) = entry.map(|entry| entry.initiator.as_str().into()) {
                    self.notice(Notice::Path { initiator, port, peer, news });
                }
            }
            frames::Event::SessionDown { session, why } => {
                let deliberate = why == frames::Down::LoggedOut && !self.draining;
                let session = Session::HyperScsi(session);
                if let Some((initiator, target)) = self.session_down(now, session, deliberate) {
                    self.notice(Notice::FrameSessionDown { initiator, target, why });
                }
            }
        }
    }

    fn data_out(&mut self, now: Instant, task: Task, offset: u32, data: DataList) {
        if let Some(unit) = self.owner(task).and_then(|unit| self.units.stir(unit)) {
            unit.data_out(now, task.key(), offset, Ok(data));
        }
    }

    fn task_gone(&mut self, now: Instant, task: Task) {
        if let Some(unit) = self.disown(task).and_then(|unit| self.units.stir(unit)) {
            unit.task_gone(now, task.key());
        }
    }

    fn session_up(&mut self, now: Instant, up: &SessionUp) {
        let entry = self.config.target(up.target).and_then(|target| Entry::of_iscsi(up, target));
        let peer = self.engine.peer(up.session);
        let Some(mut entry) = entry.filter(|_| !self.draining) else {
            // The configuration changed between the login's first question and its end.
            self.engine.close_session(now, up.session);
            return;
        };
        entry.peer = peer;
        let id = self.nexuses.insert(entry);
        self.notice(Notice::SessionUp {
            initiator: up.initiator.as_str().into(),
            target: up.target_name.as_str().into(),
            peer,
            user: up.user.clone(),
        });
        self.introduce(now, id);
    }

    fn frames_session_up(&mut self, now: Instant, up: &frames::SessionUp) {
        let target = self.config.target_called(&up.target);
        let entry = target.and_then(|target| Entry::of_hyperscsi(up, target));
        if self.draining {
            return self.frames.shut_session(now, up.session);
        }
        let Some(entry) = entry else {
            return self.frames.close_session(now, up.session);
        };
        let id = self.nexuses.insert(entry);
        self.notice(Notice::FrameSessionUp {
            initiator: (*up.initiator).into(),
            target: (*up.target).into(),
            group: (*up.group).into(),
            peer: up.peer,
            port: up.port,
            authenticated: up.authenticated,
        });
        self.introduce(now, id);
    }

    /// Finds out what a new nexus sees, and tells every unit of that about it.
    fn introduce(&mut self, now: Instant, id: NexusId) {
        let Some(entry) = self.nexuses.get_mut(id) else { return };
        self.bindings.session_begins(&entry.name);
        if let Some(target) = self.config.targets.iter().find(|target| target.id == entry.target) {
            entry.remap(target, &self.bindings, |unit| self.units.disk_of(unit));
        }
        self.tell_barred(id, &[]);
        let Some(entry) = self.nexuses.get(id) else { return };
        for unit in entry.units() {
            if let (Some(nexus), Some(unit)) = (entry.seen_by(id, unit), self.units.stir(unit)) {
                unit.nexus_established(now, nexus);
            }
        }
    }

    /// Takes a nexus away, whose initiator let go of it `deliberately` or not. Returns the initiator and, if it is still there,
    /// the target, for people.
    fn session_down(
        &mut self,
        now: Instant,
        session: Session,
        deliberately: bool,
    ) -> Option<(String, Option<String>)> {
        let id = session.nexus();
        let entry = self.nexuses.remove(id)?;
        self.bindings.session_ended(&entry.name, deliberately);
        self.managing.forget(id);
        for unit in entry.units() {
            if let Some(unit) = self.units.stir(unit) {
                unit.nexus_lost(now, id);
            }
        }
        let target = self.config.target(entry.target).map(|target| target.name.as_str().into());
        Some((entry.initiator.as_str().into(), target))
    }

    fn command(
        &mut self,
        now: Instant,
        (session, lun): (Session, u64),
        task: Task,
        (attribute, priority): (TaskAttribute, u8),
        cdb: &[u8],
        (data_in_len, data_out_len): (u32, u32),
    ) {
        let nexus = session.nexus();
        let found = self.nexuses.get(nexus).and_then(|entry| entry.find(Lun(lun)));
        let Some(cdb) = Cdb::from_bytes(cdb) else {
            return self.refuse(task, &Sense::illegal(Asc::INVALID_COMMAND_OPERATION_CODE));
        };
        if let Some(Found::Unopened(unit)) = found
            && self.units.get(unit).is_some()
            && let Some(entry) = self.nexuses.get_mut(nexus)
        {
            entry.open(Lun(lun), &mut self.bindings);
        }
        let unit = found.map(|(Found::Opened(unit) | Found::Unopened(unit))| unit);
        let Some((id, unit)) = unit.and_then(|id| Some((id, self.units.stir(id)?))) else {
            return self.absent(nexus, task, &cdb, data_in_len);
        };
        self.owners.own(task, id);
        let key = task.key();
        unit.execute(now, Command { nexus, key, attribute, priority, cdb, data_in_len, data_out_len });
    }

    /// Answers a command to a LUN behind which there is nothing (SPC-5 §5.12, §6.6, §6.33).
    fn absent(&mut self, nexus: NexusId, task: Task, cdb: &Cdb, data_in_len: u32) {
        let luns = self.nexuses.get(nexus).map(Entry::luns).unwrap_or_default();
        let answer = device::absent::answer(cdb, luns, data_in_len);
        if !answer.data.is_empty() {
            self.data_in(task, 0, Bytes::copied_from(&answer.data).into());
        }
        self.finish(task, answer.status, answer.sense.as_ref(), answer.transferable);
    }

    fn refuse(&mut self, task: Task, sense: &Sense) {
        self.finish(task, Status::CHECK_CONDITION, Some(&SenseBytes::new(sense, false)), 0);
    }

    fn data_in(&mut self, task: Task, offset: u32, data: DataList) {
        match task {
            Task::Iscsi(task) => self.engine.data_in(task, offset, data),
            Task::HyperScsi(task) => self.frames.data_in(task, offset, data),
        }
    }

    fn finish(&mut self, task: Task, status: Status, sense: Option<&SenseBytes>, transferable: u64) {
        let (status, sense) = (status.0, sense.map(SenseBytes::bytes).unwrap_or_default());
        match task {
            Task::Iscsi(task) => self.engine.finish(task, stream::Finish { status, sense, transferable }),
            Task::HyperScsi(task) => self.frames.finish(task, frames::Finish { status, sense, transferable }),
        }
    }

    /// Ends a session.
    pub(crate) fn close(&mut self, now: Instant, session: Session) {
        match session {
            Session::Iscsi(session) => self.engine.close_session(now, session),
            Session::HyperScsi(session) => self.frames.close_session(now, session),
        }
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
            UnitEvent::Fetch { key, offset, len } => match Task::of(key) {
                Task::Iscsi(task) => self.engine.fetch(task, offset, len),
                Task::HyperScsi(task) => self.frames.fetch(task, offset, len),
            },
            UnitEvent::DataIn { key, offset, data } => self.data_in(Task::of(key), offset, data),
            UnitEvent::Finish { key, status, sense, transferable } => {
                let task = Task::of(key);
                self.disown(task);
                self.finish(task, status, sense.as_ref(), transferable);
            }
            UnitEvent::Aborted { key } => {
                let task = Task::of(key);
                self.disown(task);
                match task {
                    Task::Iscsi(task) => self.engine.abort(task),
                    Task::HyperScsi(task) => self.frames.abort(task),
                }
            }
            UnitEvent::Managed { key, outcome } => self.managed(now, key, outcome),
            UnitEvent::Save { ticket, state } => {
                let Some(incarnation) = self.units.incarnation(id) else { return };
                let ticket = u64::from(incarnation) << 32 | ticket & u64::from(u32::MAX);
                self.saves.push_back(SaveRequest { unit: self.units.given(id), ticket, state });
            }
            UnitEvent::Peer(call) => self.peer(now, id, call),
            UnitEvent::PeerDone { caller, result } => {
                if let Some(unit) = self.units.find(caller.unit).and_then(|id| self.units.stir(id)) {
                    unit.peer_answer(now, caller.call, result);
                }
            }
        }
    }

    pub(crate) fn owner(&self, task: Task) -> Option<UnitId> {
        self.owners.get(task)
    }

    fn disown(&mut self, task: Task) -> Option<UnitId> {
        self.owners.take(task)
    }
}

/// The unit that executes each open task.
#[derive(Default)]
pub(crate) struct Owners {
    iscsi: Vec<Option<UnitId>>,
    hyperscsi: Vec<Option<UnitId>>,
}

impl Owners {
    fn get(&self, task: Task) -> Option<UnitId> {
        let (frames, at) = task.place();
        *(if frames { &self.hyperscsi } else { &self.iscsi }).get(at)?
    }

    fn take(&mut self, task: Task) -> Option<UnitId> {
        let (frames, at) = task.place();
        (if frames { &mut self.hyperscsi } else { &mut self.iscsi }).get_mut(at)?.take()
    }

    /// Takes note that a unit has another number.
    pub(crate) fn rename(&mut self, old: UnitId, new: UnitId) {
        let owners = self.iscsi.iter_mut().chain(&mut self.hyperscsi);
        owners.filter(|owner| **owner == Some(old)).for_each(|owner| *owner = Some(new));
    }

    fn own(&mut self, task: Task, unit: UnitId) {
        let (frames, at) = task.place();
        let owners = if frames { &mut self.hyperscsi } else { &mut self.iscsi };
        while owners.len() <= at {
            owners.push(None);
        }
        if let Some(slot) = owners.get_mut(at) {
            *slot = Some(unit);
        }
    }
}

/// Answers task management.
impl Shard {
    pub(crate) fn answer(&mut self, tmf: Tmf, result: iscsi::pdu::tmf_response::TmfResult) {
        match tmf {
            Tmf::Iscsi(tmf) => self.engine.managed(tmf, result),
            // The numbers are those of iSCSI.
            Tmf::HyperScsi(tmf) => self.frames.managed(tmf, hyperscsi::pdu::reply::ManageResult(result.0)),
        }
    }
}

fn attribute_of(attribute: WireAttribute) -> TaskAttribute {
    match attribute {
        WireAttribute::ORDERED => TaskAttribute::Ordered,
        WireAttribute::HEAD_OF_QUEUE => TaskAttribute::HeadOfQueue,
        WireAttribute::ACA => TaskAttribute::Aca,
        _ => TaskAttribute::Simple,
    }
}
