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
use crate::nexus::Entry;
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
                if let Some((initiator, target)) = self.session_down(now, Session::Iscsi(session)) {
                    self.notice(Notice::SessionDown { initiator, target, why });
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
                if let Some((initiator, target)) = self.session_down(now, Session::HyperScsi(session)) {
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

    /// Tells every unit that a nexus sees about it.
    fn introduce(&mut self, now: Instant, id: NexusId) {
        let Some(entry) = self.nexuses.get(id) else { return };
        for unit in entry.units() {
            if let (Some(nexus), Some(unit)) = (entry.seen_by(id, unit), self.units.stir(unit)) {
                unit.nexus_established(now, nexus);
            }
        }
    }

    /// Takes a nexus away. Returns the initiator and, if it is still there, the target, for people.
    fn session_down(&mut self, now: Instant, session: Session) -> Option<(String, Option<String>)> {
        let id = session.nexus();
        let entry = self.nexuses.remove(id)?;
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
        let unit = self.nexuses.get(nexus).and_then(|entry| entry.unit_at(Lun(lun)));
        let Some(cdb) = Cdb::from_bytes(cdb) else {
            return self.refuse(task, &Sense::illegal(Asc::INVALID_COMMAND_OPERATION_CODE));
        };
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
