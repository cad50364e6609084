//! Routes events from the engines to the units that they concern, and back.

use alloc::string::String;
use alloc::vec::Vec;

use base::buffer::{Bytes, DataList};
use base::time::Instant;
use device::contract::{Command, NexusId, SenseBytes, UnitEvent};
use hyperscsi::target::contract as hyperscsi_target;
use iscsi::pdu::scsi_command::TaskAttribute as WireAttribute;
use iscsi::target::contract::{self as iscsi_target, Event, SessionUp};
use scsi::cdb::Cdb;
use scsi::lun::Lun;
use scsi::sense::{Asc, Sense};
use scsi::status::{Status, TaskAttribute};

use crate::admin::{SaveRequest, ShardEvent};
use crate::config::UnitId;
use crate::nexus::{LunLookup, NexusEntry};
use crate::shard::Shard;
use crate::tmf::TmfRequest;
use crate::transport::{SessionRef, TaskRef, TmfRef};

impl Shard {
    /// Routes one event of the iSCSI engine.
    pub(crate) fn route_iscsi(&mut self, now: Instant, event: Event) {
        match event {
            Event::SessionUp(up) => self.session_up(now, &up),
            Event::Command(command) => {
                let (session, task) = (SessionRef::Iscsi(command.session), TaskRef::Iscsi(command.task));
                let attribute = attribute_of(command.attribute);
                let lens = (command.data_in_len, command.data_out_len);
                let order = (attribute, command.priority);
                self.command(now, (session, command.lun), task, order, &command.cdb, lens);
            }
            Event::DataOut { task, offset, data } => self.data_out(now, TaskRef::Iscsi(task), offset, data),
            Event::Tmf(request) => self.route_tmf(now, &TmfRequest::of_iscsi(&request)),
            Event::TaskGone { task } => self.task_gone(now, TaskRef::Iscsi(task)),
            Event::TasksCleared { session, lun } => self.tasks_cleared(now, SessionRef::Iscsi(session), lun),
            Event::SessionDown { session, why } => {
                // While the target shuts down, initiators log out because the target requested it.
                let deliberate = why == iscsi_target::SessionEnd::LoggedOut && !self.draining;
                let session = SessionRef::Iscsi(session);
                let peer = self.nexuses.get(session.nexus()).and_then(|entry| entry.peer);
                if let Some((initiator, target)) = self.session_down(now, session, deliberate) {
                    self.push_event(ShardEvent::SessionDown { initiator, target, peer, why });
                }
            }
        }
    }

    /// Routes one event of the HyperSCSI engine.
    pub(crate) fn route_hyperscsi(&mut self, now: Instant, event: hyperscsi_target::Event) {
        match event {
            hyperscsi_target::Event::SessionUp(up) => self.hyperscsi_session_up(now, &up),
            hyperscsi_target::Event::Command(command) => {
                let (session, task) =
                    (SessionRef::HyperScsi(command.session), TaskRef::HyperScsi(command.task));
                // HyperSCSI has the task attribute codes of iSCSI.
                let attribute = attribute_of(WireAttribute(command.attribute.0));
                let lens = (command.data_in_len, command.data_out_len);
                let order = (attribute, command.priority);
                self.command(now, (session, command.lun), task, order, &command.cdb, lens);
            }
            hyperscsi_target::Event::DataOut { task, offset, data } => {
                self.data_out(now, TaskRef::HyperScsi(task), offset, data);
            }
            hyperscsi_target::Event::Tmf(request) => self.route_tmf(now, &TmfRequest::of_hyperscsi(&request)),
            hyperscsi_target::Event::TaskGone { task } => self.task_gone(now, TaskRef::HyperScsi(task)),
            hyperscsi_target::Event::Path { session, port, peer, news } => {
                let entry = self.nexuses.get(SessionRef::HyperScsi(session).nexus());
                if let Some(initiator) = entry.map(|entry| entry.initiator.as_str().into()) {
                    self.push_event(ShardEvent::Path { initiator, port, peer, news });
                }
            }
            hyperscsi_target::Event::SessionDown { session, why } => {
                let deliberate = why == hyperscsi_target::SessionEnd::LoggedOut && !self.draining;
                let session = SessionRef::HyperScsi(session);
                if let Some((initiator, target)) = self.session_down(now, session, deliberate) {
                    self.push_event(ShardEvent::HyperScsiSessionDown { initiator, target, why });
                }
            }
        }
    }

    fn data_out(&mut self, now: Instant, task: TaskRef, offset: u32, data: DataList) {
        if let Some(unit) = self.owner(task).and_then(|unit| self.units.mark_dirty(unit)) {
            unit.data_out(now, task.key(), offset, Ok(data));
        }
    }

    fn task_gone(&mut self, now: Instant, task: TaskRef) {
        if let Some(unit) = self.disown(task).and_then(|unit| self.units.mark_dirty(unit)) {
            unit.task_gone(now, task.key());
        }
    }

    /// Has the unit behind a LUN report to a nexus that the end of an iSCSI connection terminated its tasks.
    fn tasks_cleared(&mut self, now: Instant, session: SessionRef, lun: u64) {
        let nexus = session.nexus();
        let unit = self.nexuses.get(nexus).and_then(|entry| entry.unit_at(Lun(lun)));
        if let Some(unit) = unit.and_then(|unit| self.units.mark_dirty(unit)) {
            //= rfc7143#section-11.14.5
            //# After the tasks are terminated, the target MUST report a Unit Attention condition on the next
            //# command processed on any connection for each affected I_T_L nexus with the status of CHECK
            //# CONDITION, the ASC/ASCQ value of 47h/7Fh ("SOME COMMANDS CLEARED BY ISCSI PROTOCOL EVENT"),
            //# etc.; see [SPC3].
            unit.tasks_cleared(now, nexus, Asc::SOME_COMMANDS_CLEARED_BY_ISCSI_PROTOCOL_EVENT);
        }
    }

    fn session_up(&mut self, now: Instant, up: &SessionUp) {
        let entry = self.config.target(up.target).and_then(|target| NexusEntry::of_iscsi(up, target));
        let peer = self.engine.peer(up.session);
        let Some(mut entry) = entry.filter(|_| !self.draining) else {
            // The configuration changed during the login, or the target shuts down.
            self.engine.close_session(now, up.session);
            return;
        };
        entry.peer = peer;
        let id = self.nexuses.insert(entry);
        self.push_event(ShardEvent::SessionUp {
            initiator: up.initiator.as_str().into(),
            target: up.target_name.as_str().into(),
            peer,
            user: up.user.clone(),
        });
        self.establish_nexus(now, id);
    }

    fn hyperscsi_session_up(&mut self, now: Instant, up: &hyperscsi_target::SessionUp) {
        let target = self.config.target_called(&up.target);
        let entry = target.and_then(|target| NexusEntry::of_hyperscsi(up, target));
        if self.draining {
            return self.frames.shut_session(now, up.session);
        }
        let Some(entry) = entry else {
            return self.frames.close_session(now, up.session);
        };
        let id = self.nexuses.insert(entry);
        self.push_event(ShardEvent::HyperScsiSessionUp {
            initiator: (*up.initiator).into(),
            target: (*up.target).into(),
            group: (*up.group).into(),
            peer: up.peer,
            port: up.port,
            authenticated: up.authenticated,
        });
        self.establish_nexus(now, id);
    }

    /// Makes the LUN map of a new nexus, and notifies every unit in it.
    fn establish_nexus(&mut self, now: Instant, id: NexusId) {
        let Some(entry) = self.nexuses.get_mut(id) else { return };
        self.bindings.session_begins(&entry.name);
        if let Some(target) = self.config.targets.iter().find(|target| target.id == entry.target) {
            entry.remap(target, &self.bindings, |unit| self.units.disk_of(unit));
        }
        self.report_withheld(id, &[]);
        let Some(entry) = self.nexuses.get(id) else { return };
        for unit in entry.units() {
            if let (Some(nexus), Some(unit)) = (entry.seen_by(id, unit), self.units.mark_dirty(unit)) {
                unit.nexus_established(now, nexus);
            }
        }
    }

    /// Removes a nexus. `deliberately` is whether its initiator has logged out and no longer uses the LUNs.
    /// Returns the names of the initiator and, if it still exists, of the target, for display.
    fn session_down(
        &mut self,
        now: Instant,
        session: SessionRef,
        deliberately: bool,
    ) -> Option<(String, Option<String>)> {
        let id = session.nexus();
        let entry = self.nexuses.remove(id)?;
        self.bindings.session_ended(&entry.name, deliberately);
        self.pending_tmfs.forget(id);
        for unit in entry.units() {
            if let Some(unit) = self.units.mark_dirty(unit) {
                unit.nexus_lost(now, id);
            }
        }
        let target = self.config.target(entry.target).map(|target| target.name.as_str().into());
        Some((entry.initiator.as_str().into(), target))
    }

    fn command(
        &mut self,
        now: Instant,
        (session, lun): (SessionRef, u64),
        task: TaskRef,
        (attribute, priority): (TaskAttribute, u8),
        cdb: &[u8],
        (data_in_len, data_out_len): (u32, u32),
    ) {
        let nexus = session.nexus();
        let found = self.nexuses.get(nexus).and_then(|entry| entry.find(Lun(lun)));
        let Some(cdb) = Cdb::from_bytes(cdb) else {
            return self.refuse(task, &Sense::illegal(Asc::INVALID_COMMAND_OPERATION_CODE));
        };
        if let Some(LunLookup::Unbound(unit)) = found
            && self.units.get(unit).is_some()
            && let Some(entry) = self.nexuses.get_mut(nexus)
        {
            entry.bind_lun(Lun(lun), &mut self.bindings);
        }
        let unit = found.map(|(LunLookup::Bound(unit) | LunLookup::Unbound(unit))| unit);
        let Some((id, unit)) = unit.and_then(|id| Some((id, self.units.mark_dirty(id)?))) else {
            return self.answer_no_lun(nexus, task, &cdb, data_in_len);
        };
        self.owners.own(task, id);
        let key = task.key();
        unit.execute(now, Command { nexus, key, attribute, priority, cdb, data_in_len, data_out_len });
    }

    /// Responds to a command for a LUN without a logical unit (SPC-5 §5.12, §6.6, §6.33).
    fn answer_no_lun(&mut self, nexus: NexusId, task: TaskRef, cdb: &Cdb, data_in_len: u32) {
        let luns = self.nexuses.get(nexus).map(NexusEntry::luns).unwrap_or_default();
        let answer = device::no_lun::respond(cdb, luns, data_in_len);
        if !answer.data.is_empty() {
            self.data_in(task, 0, Bytes::copied_from(&answer.data).into());
        }
        self.finish(task, answer.status, answer.sense.as_ref(), answer.transferable);
    }

    fn refuse(&mut self, task: TaskRef, sense: &Sense) {
        self.finish(task, Status::CHECK_CONDITION, Some(&SenseBytes::new(sense, false)), 0);
    }

    fn data_in(&mut self, task: TaskRef, offset: u32, data: DataList) {
        match task {
            TaskRef::Iscsi(task) => self.engine.data_in(task, offset, data),
            TaskRef::HyperScsi(task) => self.frames.data_in(task, offset, data),
        }
    }

    fn finish(&mut self, task: TaskRef, status: Status, sense: Option<&SenseBytes>, transferable: u64) {
        let (status, sense) = (status.0, sense.map(SenseBytes::bytes).unwrap_or_default());
        match task {
            TaskRef::Iscsi(task) => {
                self.engine.finish(task, iscsi_target::Finish { status, sense, transferable })
            }
            TaskRef::HyperScsi(task) => {
                self.frames.finish(task, hyperscsi_target::Finish { status, sense, transferable })
            }
        }
    }

    /// Ends a session.
    pub(crate) fn close(&mut self, now: Instant, session: SessionRef) {
        match session {
            SessionRef::Iscsi(session) => self.engine.close_session(now, session),
            SessionRef::HyperScsi(session) => self.frames.close_session(now, session),
        }
    }

    /// Routes all events of one unit.
    pub(crate) fn drain_unit_events(&mut self, now: Instant, id: UnitId) {
        while let Some(event) = self.units.poll(id) {
            self.route_unit_event(now, id, event);
        }
        self.units.note_deadline(id);
    }

    fn route_unit_event(&mut self, now: Instant, id: UnitId, event: UnitEvent) {
        match event {
            UnitEvent::FetchDataOut { key, offset, len } => match TaskRef::of(key) {
                TaskRef::Iscsi(task) => self.engine.fetch(task, offset, len),
                TaskRef::HyperScsi(task) => self.frames.fetch(task, offset, len),
            },
            UnitEvent::DataIn { key, offset, data } => self.data_in(TaskRef::of(key), offset, data),
            UnitEvent::CommandComplete { key, status, sense, transferable } => {
                let task = TaskRef::of(key);
                self.disown(task);
                self.finish(task, status, sense.as_ref(), transferable);
            }
            UnitEvent::Aborted { key } => {
                let task = TaskRef::of(key);
                self.disown(task);
                match task {
                    TaskRef::Iscsi(task) => self.engine.abort(task),
                    TaskRef::HyperScsi(task) => self.frames.abort(task),
                }
            }
            UnitEvent::TmfComplete { key, outcome } => self.tmf_complete(now, key, outcome),
            UnitEvent::SaveState { ticket, state } => {
                let Some(incarnation) = self.units.incarnation(id) else { return };
                let ticket = u64::from(incarnation) << 32 | ticket & u64::from(u32::MAX);
                self.saves.push_back(SaveRequest { unit: self.units.given(id), ticket, state });
            }
            UnitEvent::ThirdPartyCall(call) => self.route_third_party(now, id, call),
            UnitEvent::ThirdPartyReply { caller, result } => {
                if let Some(unit) = self.units.find(caller.unit).and_then(|id| self.units.mark_dirty(id)) {
                    unit.third_party_reply(now, caller.call, result);
                }
            }
        }
    }

    pub(crate) fn owner(&self, task: TaskRef) -> Option<UnitId> {
        self.owners.get(task)
    }

    fn disown(&mut self, task: TaskRef) -> Option<UnitId> {
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
    fn get(&self, task: TaskRef) -> Option<UnitId> {
        let (frames, at) = task.slot();
        *(if frames { &self.hyperscsi } else { &self.iscsi }).get(at)?
    }

    fn take(&mut self, task: TaskRef) -> Option<UnitId> {
        let (frames, at) = task.slot();
        (if frames { &mut self.hyperscsi } else { &mut self.iscsi }).get_mut(at)?.take()
    }

    /// Records that a unit has a new number.
    pub(crate) fn rename(&mut self, old: UnitId, new: UnitId) {
        let owners = self.iscsi.iter_mut().chain(&mut self.hyperscsi);
        owners.filter(|owner| **owner == Some(old)).for_each(|owner| *owner = Some(new));
    }

    fn own(&mut self, task: TaskRef, unit: UnitId) {
        let (frames, at) = task.slot();
        let owners = if frames { &mut self.hyperscsi } else { &mut self.iscsi };
        while owners.len() <= at {
            owners.push(None);
        }
        if let Some(slot) = owners.get_mut(at) {
            *slot = Some(unit);
        }
    }
}

/// Sends responses to task management requests.
impl Shard {
    pub(crate) fn answer_tmf(&mut self, tmf: TmfRef, result: iscsi::pdu::tmf_response::TmfResult) {
        match tmf {
            TmfRef::Iscsi(tmf) => self.engine.finish_tmf(tmf, result),
            // HyperSCSI has the response codes of iSCSI.
            TmfRef::HyperScsi(tmf) => {
                self.frames.finish_tmf(tmf, hyperscsi::pdu::reply::ManageResult(result.0))
            }
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
