//! Routes events from the transports to the units that they concern, and back.

use base::buffer::{Bytes, DataList};
use base::time::Instant;
use device::contract::{Command, NexusId, SenseBytes, TaskKey, UnitEvent};
use device::no_lun::Absence;
use scsi::cdb::Cdb;
use scsi::lun::Lun;
use scsi::sense::{Asc, Sense};
use scsi::status::{Status, TaskAttribute};
use transport::command::TaskAttribute as WireAttribute;
use transport::target as services;
use transport::target::{Event, Finish, Protocol, SessionId, TargetTransport, TaskRef};

use crate::nexus::{LunLookup, NexusEntry};
use crate::target::{SaveRequest, Target};
use crate::transport_id::{TransportId, nexus_of, task_key, task_of};
use crate::transports::Transports;
use crate::units::UnitId;

/// How many slow commands wait to be polled. A unit keeps its next one until there is room.
const MAX_SLOW: usize = 64;

/// What an event of a transport tells of a session. The owner of the target calls
/// [`Target::session_up`] and [`Target::session_down`].
#[derive(Debug)]
pub enum SessionEvent<P: Protocol> {
    /// A session began.
    Up(alloc::boxed::Box<P::SessionUp>),
    /// A session ended.
    Down {
        /// The session.
        session: SessionId,
        /// The reason.
        why: P::SessionEnd,
    },
    /// Something happened that needs no action.
    Notice(P::Notice),
}

impl Target {
    /// Handles an event of a transport. Returns it if it concerns a session as a whole.
    pub fn handle_event<P: Protocol>(
        &mut self,
        now: Instant,
        from: TransportId,
        event: Event<P>,
        transports: &mut dyn Transports,
    ) -> Option<SessionEvent<P>> {
        match event {
            Event::Command(command) => self.execute(now, from, command, transports),
            Event::DataOut { task, offset, data } => {
                if let Some(unit) = self.owners.get(from, task).and_then(|unit| self.units.mark_dirty(unit)) {
                    unit.data_out(now, task_key(from, task), offset, Ok(data));
                }
            }
            Event::Tmf(request) => self.route_tmf(now, from, &request, transports),
            Event::TaskGone { task } => {
                if let Some(unit) = self.owners.take(from, task).and_then(|unit| self.units.mark_dirty(unit))
                {
                    unit.task_gone(now, task_key(from, task));
                }
            }
            Event::TasksCleared { session, lun, code } => {
                self.tasks_cleared(now, nexus_of(from, session), lun, Asc(u16::from_be_bytes(code)));
            }
            Event::SessionUp(up) => return Some(SessionEvent::Up(up)),
            Event::SessionDown { session, why } => return Some(SessionEvent::Down { session, why }),
            Event::Notice(notice) => return Some(SessionEvent::Notice(notice)),
        }
        None
    }

    /// Has the unit behind a LUN report to a nexus that an event of the transport terminated its tasks.
    fn tasks_cleared(&mut self, now: Instant, nexus: NexusId, lun: u64, code: Asc) {
        let unit = self.nexuses.get(nexus).and_then(|entry| entry.unit_at(Lun(lun), entry.level()));
        if let Some(unit) = unit.and_then(|unit| self.units.mark_dirty(unit)) {
            unit.tasks_cleared(now, nexus, code);
        }
    }

    fn execute(
        &mut self,
        now: Instant,
        from: TransportId,
        command: services::Command,
        transports: &mut dyn Transports,
    ) {
        let (nexus, lun) = (nexus_of(from, command.session), Lun(command.lun));
        let Some(transport) = transports.get(from) else { return };
        let found = self.nexuses.get(nexus).and_then(|entry| entry.find(lun, command.level));
        let Some(cdb) = Cdb::from_bytes(&command.cdb) else {
            let sense = SenseBytes::new(&Sense::illegal(Asc::INVALID_COMMAND_OPERATION_CODE), false);
            return finish(transport, command.task, Status::CHECK_CONDITION, Some(&sense), 0);
        };
        if scsi::pr::is_preempt_and_abort(&cdb) {
            transport.fence_response(command.task);
        }
        if let Some(LunLookup::Unbound(unit)) = found
            && self.units.get(unit).is_some()
            && let Some(entry) = self.nexuses.get_mut(nexus)
        {
            self.bindings.record(entry, lun);
        }
        let unit = found.map(|(LunLookup::Bound(unit) | LunLookup::Unbound(unit))| unit);
        let Some((id, unit)) = unit.and_then(|id| Some((id, self.units.mark_dirty(id)?))) else {
            let awaited = |entry: &NexusEntry| entry.awaits_unit(lun, command.level);
            let is_awaited = self.nexuses.get(nexus).is_some_and(awaited);
            let absence = if is_awaited { Absence::WithoutMedium } else { Absence::NotMapped };
            return self.answer_no_lun((nexus, absence), &command, &cdb, transport);
        };
        self.owners.own(from, command.task, id, command.data_out);
        let (attribute, priority, level) = (attribute_of(command.attribute), command.priority, command.level);
        let (data_in_len, data_out_len) = (command.data_in_len, command.data_out_len);
        let key = task_key(from, command.task);
        unit.execute(now, Command { nexus, key, level, attribute, priority, cdb, data_in_len, data_out_len });
    }

    /// Responds to a command for a LUN without a logical unit (SAM-5 §5.11).
    fn answer_no_lun(
        &self,
        (nexus, absence): (NexusId, Absence),
        command: &services::Command,
        cdb: &Cdb,
        transport: &mut dyn TargetTransport,
    ) {
        let luns = self.nexuses.get(nexus).map(NexusEntry::luns).unwrap_or_default();
        let answer = device::no_lun::respond(cdb, luns, absence, command.data_in_len);
        if !answer.data.is_empty() {
            transport.data_in(command.task, 0, Bytes::copied_from(&answer.data).into());
        }
        finish(transport, command.task, answer.status, answer.sense.as_ref(), answer.transferable);
    }

    /// Routes all events of the next unit that has some. Returns whether there was one.
    pub fn drain_unit(&mut self, now: Instant, transports: &mut dyn Transports) -> bool {
        let Some(id) = self.units.next_dirty() else { return false };
        while let Some(event) = self.units.poll(id) {
            self.route_unit_event(now, id, event, transports);
        }
        if !self.data_of_commands.is_empty()
            && let Some(unit) = self.units.mark_dirty(id)
        {
            for (key, offset, data) in self.data_of_commands.drain(..) {
                unit.data_out(now, key, offset, Ok(data.into()));
            }
        }
        self.units.note_deadline(id);
        if self.slow.len() < MAX_SLOW
            && let Some(slow) = self.units.take_slow_command(id)
        {
            self.slow.push_back((id, slow));
        }
        true
    }

    fn route_unit_event(
        &mut self,
        now: Instant,
        id: UnitId,
        event: UnitEvent,
        transports: &mut dyn Transports,
    ) {
        match event {
            UnitEvent::FetchDataOut { key, offset, len } => {
                let (transport, task) = task_of(key);
                if let Some(data) = self.owners.data_of_command(transport, task, offset, len) {
                    self.data_of_commands.push((key, offset, data));
                } else if let Some(transport) = transports.get(transport) {
                    transport.fetch(task, offset, len);
                }
            }
            UnitEvent::DataIn { key, offset, data } => data_in(transports, key, offset, data),
            UnitEvent::CommandComplete { key, status, sense, transferable } => {
                let (transport, task) = task_of(key);
                self.owners.take(transport, task);
                if let Some(transport) = transports.get(transport) {
                    finish(transport, task, status, sense.as_deref(), transferable);
                }
            }
            UnitEvent::Aborted { key } => {
                let (transport, task) = task_of(key);
                self.owners.take(transport, task);
                if let Some(transport) = transports.get(transport) {
                    transport.abort(task);
                }
            }
            UnitEvent::TmfComplete { key, outcome } => self.tmf_complete(now, key, outcome, transports),
            UnitEvent::SaveState { ticket, state } => {
                let Some(incarnation) = self.units.incarnation(id) else { return };
                let ticket = u64::from(incarnation) << 32 | ticket & u64::from(u32::MAX);
                self.saves.push_back(SaveRequest { unit: self.units.given(id), ticket, state });
            }
            UnitEvent::ThirdPartyCall(call) => self.route_third_party(now, id, *call),
            UnitEvent::Library(event) => self.library_events.push_back((self.units.given(id), event)),
            UnitEvent::ThirdPartyReply { caller, result } => {
                if let Some(unit) = self.units.find(caller.unit).and_then(|id| self.units.mark_dirty(id)) {
                    unit.third_party_reply(now, caller.call, result);
                }
            }
        }
    }
}

fn data_in(transports: &mut dyn Transports, key: TaskKey, offset: u32, data: DataList) {
    let (transport, task) = task_of(key);
    if let Some(transport) = transports.get(transport) {
        transport.data_in(task, offset, data);
    }
}

fn finish(
    transport: &mut dyn TargetTransport,
    task: TaskRef,
    Status(status): Status,
    sense: Option<&SenseBytes>,
    transferable: u64,
) {
    let is_unit_attention = sense.is_some_and(SenseBytes::is_unit_attention);
    let sense = sense.map(SenseBytes::bytes).unwrap_or_default();
    transport.finish(task, Finish { status, sense, transferable, is_unit_attention });
}

fn attribute_of(attribute: WireAttribute) -> TaskAttribute {
    match attribute {
        WireAttribute::ORDERED => TaskAttribute::Ordered,
        WireAttribute::HEAD_OF_QUEUE => TaskAttribute::HeadOfQueue,
        WireAttribute::ACA => TaskAttribute::Aca,
        _ => TaskAttribute::Simple,
    }
}
