//! A target whose initiators are named by the numbers that a test of the device suite gives them, and reach
//! it over the in-process transport alone.

use std::collections::{BTreeMap, VecDeque};

use base::buffer::{Bytes, DataList};
use base::time::Instant;
use device::contract::{Access, Command, Nexus, NexusId, TaskKey, Tmf, TmfKey, TmfOutcome};
use device::unit::Reset;
use scsi::status::{Status, TaskAttribute};
use security::Level;
use target::nexus::{MapEntry, NexusInfo, TargetNumber};
use target::route::SessionEvent;
use target::target::Target;
use target::transport_id::nexus_of;
use target::units::UnitId;
use transport::command::TaskAttribute as WireAttribute;
use transport::target::{Event, SessionId, TaskRef};
use transport::task_management::{TmfFunction, TmfResult};

use crate::contract::{SenseBytes, UnitEvent};
use crate::transport::{InProcessTransport, Request, SessionEnd, TaskEnd, Ticket};
use crate::world::{FIRST, Table};

/// The initiator that requests the resets for which a test names no initiator.
const ADMINISTRATOR: NexusId = NexusId(0xad);

/// A target, its transport, and what the initiators have under way.
#[derive(Default)]
pub(crate) struct Testbed {
    pub(crate) target: Target,
    transports: Table,
    sessions: BTreeMap<NexusId, SessionId>,
    tasks: BTreeMap<TaskKey, Task>,
    /// The handle of each task, also of those that ended.
    handles: BTreeMap<TaskKey, TaskRef>,
    /// The key and the unit of each task management request.
    tmfs: BTreeMap<Ticket, (TmfKey, u32)>,
    /// What the initiators and the owner of the target find next, and the number of the unit.
    events: VecDeque<(u32, UnitEvent)>,
}

/// A task, as its initiator knows it.
#[derive(Clone, Copy)]
struct Task {
    ticket: Ticket,
    unit: u32,
    /// The length of the longer one of the initiator's buffers.
    expected: usize,
}

impl Testbed {
    fn transport(&mut self) -> &mut InProcessTransport {
        self.transports.of(FIRST)
    }

    /// Logs an initiator in, or gives an initiator that is logged in another LUN map.
    pub(crate) fn establish(&mut self, now: Instant, nexus: Nexus, map: Vec<MapEntry>) {
        if self.sessions.contains_key(&nexus.id) {
            return self.remap(now, nexus.id, map);
        }
        let info = NexusInfo {
            target: TargetNumber(0),
            initiator: nexus.initiator_name,
            initiator_port: nexus.initiator_port,
            realm: None,
            user: None,
            target_port: nexus.target_port,
            rfc_7144_functions: nexus.rfc_7144_functions,
            level: Level::Encrypt,
        };
        let session = self.transport().login(&info.initiator, info.target.0);
        self.transport().hold_data_out(session, true);
        self.sessions.insert(nexus.id, session);
        let Some(Event::SessionUp(up)) = self.transport().events.pop_front() else { panic!("no session") };
        assert_eq!((up.session, up.target), (session, 0));
        self.target.session_up(now, FIRST, session, info, map);
        self.process_pending(now);
    }

    pub(crate) fn remap(&mut self, now: Instant, id: NexusId, map: Vec<MapEntry>) {
        self.target.remap(now, nexus_of(FIRST, self.sessions[&id]), map);
        self.process_pending(now);
    }

    /// Ends the session of an initiator without a logout.
    pub(crate) fn lose(&mut self, now: Instant, id: NexusId) {
        if let Some(session) = self.sessions.remove(&id) {
            self.transport().end_session(session, SessionEnd::Lost);
        }
        self.process_dropped(now);
    }

    /// Sends a command to the unit with this number, which is also its LUN. `data` is as much of its data as
    /// the initiator has ready: all or nothing. The bytes that the transport does not send with the command
    /// wait for [`Self::data_out`].
    pub(crate) fn execute(&mut self, now: Instant, unit: u32, command: &Command, data: &[u8]) {
        let (session, key) = (self.sessions[&command.nexus], command.key);
        let len = |len: u32| usize::try_from(len).unwrap();
        let (room, out_len) = (len(command.data_in_len), len(command.data_out_len));
        let attribute = match command.attribute {
            TaskAttribute::Simple => WireAttribute::SIMPLE,
            TaskAttribute::Ordered => WireAttribute::ORDERED,
            TaskAttribute::HeadOfQueue => WireAttribute::HEAD_OF_QUEUE,
            TaskAttribute::Aca => WireAttribute::ACA,
        };
        let transport = self.transports.of(FIRST);
        transport.command_level = Some(command.level);
        transport.hold_data_out(session, false);
        let request =
            Request { lun: lun_of(unit), attribute, cdb: command.cdb.bytes(), out_len, out: data, room };
        let ticket = transport.send_command(session, request);
        transport.hold_data_out(session, true);
        let handle = transport.task_of(ticket).unwrap();
        self.tasks.insert(key, Task { ticket, unit, expected: room.max(out_len) });
        let former = self.handles.insert(key, handle);
        assert!(former.is_none(), "a transport does not use the name of a task for another task");
        self.process_pending(now);
    }

    /// Sends Data-Out, even for a task that has ended.
    pub(crate) fn data_out(&mut self, now: Instant, key: TaskKey, offset: u32, data: DataList) {
        let task = self.handles[&key];
        self.transport().events.push_back(Event::DataOut { task, offset, data });
        self.process_pending(now);
    }

    /// Has the transport drop a task.
    pub(crate) fn drop_task(&mut self, now: Instant, key: TaskKey) {
        if let Some(task) = self.tasks.get(&key) {
            self.transports.of(FIRST).drop_tasks(|dropped| dropped.ticket == task.ticket);
        }
        self.process_dropped(now);
    }

    /// Has the transport end all tasks of an initiator for a LUN.
    pub(crate) fn clear_tasks(&mut self, now: Instant, id: NexusId, unit: u32) {
        let session = self.sessions[&id];
        self.transport().clear_tasks(session, lun_of(unit));
        self.process_pending(now);
    }

    /// Has an initiator that no test names reset a unit.
    pub(crate) fn reset(&mut self, now: Instant, unit: u32, why: Reset) {
        if !self.sessions.contains_key(&ADMINISTRATOR) {
            let all = self.target.units().into_iter().map(|report| report.unit);
            let map = all.map(|unit| entry(unit.0, Access::ReadWrite)).collect();
            self.establish(now, crate::testing::nexus(ADMINISTRATOR), map);
        }
        let function = match why {
            Reset::LogicalUnit => Tmf::LogicalUnitReset,
            Reset::Target => Tmf::TargetReset,
        };
        self.manage(now, ADMINISTRATOR, unit, None, function);
    }

    /// Requests a task management function. Its outcome is reported if `key` is given.
    pub(crate) fn manage(
        &mut self,
        now: Instant,
        id: NexusId,
        unit: u32,
        key: Option<TmfKey>,
        function: Tmf,
    ) {
        let ticket_of = |key| Some(self.tasks.get(&key).map_or(Ticket::default(), |task| task.ticket));
        let (function, of) = match function {
            Tmf::AbortTask(key) => (TmfFunction::ABORT_TASK, ticket_of(key)),
            Tmf::QueryTask(key) => (TmfFunction::QUERY_TASK, ticket_of(key)),
            Tmf::AbortTaskSet => (TmfFunction::ABORT_TASK_SET, None),
            Tmf::ClearTaskSet => (TmfFunction::CLEAR_TASK_SET, None),
            Tmf::ClearAca => (TmfFunction::CLEAR_ACA, None),
            Tmf::LogicalUnitReset => (TmfFunction::LOGICAL_UNIT_RESET, None),
            Tmf::TargetReset => (TmfFunction::TARGET_WARM_RESET, None),
            Tmf::NexusReset => (TmfFunction::I_T_NEXUS_RESET, None),
            Tmf::QueryTaskSet => (TmfFunction::QUERY_TASK_SET, None),
            Tmf::QueryAsynchronousEvent => (TmfFunction::QUERY_ASYNCHRONOUS_EVENT, None),
        };
        let session = self.sessions[&id];
        let ticket = self.transport().send_tmf(session, function, lun_of(unit), of);
        self.tmfs.extend(key.map(|key| (ticket, (key, unit))));
        self.process_pending(now);
    }

    /// Moves events between the transport and the units until neither has any, and collects what the
    /// initiators and the owner of the target find afterwards.
    pub(crate) fn process_pending(&mut self, now: Instant) {
        self.route(now);
        self.collect();
    }

    /// Does this after the transport dropped tasks. A unit that has just begun another of them may answer it
    /// before it hears that this one is gone too.
    fn process_dropped(&mut self, now: Instant) {
        self.route(now);
        self.transport().ignored = 0;
        self.collect();
    }

    fn route(&mut self, now: Instant) {
        loop {
            while let Some(event) = self.transport().events.pop_front() {
                match self.target.handle_event(now, FIRST, event, &mut self.transports) {
                    Some(SessionEvent::Down { session, .. }) => {
                        assert!(self.target.session_down(now, FIRST, session, false).is_some());
                    }
                    Some(SessionEvent::Up(up)) => panic!("{up:?}"),
                    Some(SessionEvent::Notice(never)) => match never {},
                    None => {}
                }
            }
            if self.target.drain_unit(now, &mut self.transports) {
                continue;
            }
            let Some(save) = self.target.poll_save() else { break };
            let event = UnitEvent::SaveState { ticket: save.ticket, state: save.state };
            self.events.push_back((save.unit.0, event));
        }
    }

    fn collect(&mut self) {
        let transport = self.transports.of(FIRST);
        assert_eq!(transport.ignored, 0, "the target made a call for a task or a request that is over");
        for (key, task) in &self.tasks {
            for (offset, len) in transport.open_fetches(task.ticket).into_iter().flat_map(|all| all.drain(..))
            {
                self.events.push_back((task.unit, UnitEvent::FetchDataOut { key: *key, offset, len }));
            }
        }
        for (ticket, end) in transport.task_ends.drain(..) {
            let found = self.tasks.iter().find(|(_, task)| task.ticket == ticket);
            let key = *found.expect("the task of an initiator").0;
            let Some(task) = self.tasks.remove(&key) else { continue };
            let response = match end {
                TaskEnd::Gone => continue,
                TaskEnd::Aborted => {
                    self.events.push_back((task.unit, UnitEvent::Aborted { key }));
                    continue;
                }
                TaskEnd::Response(response) => response,
            };
            if !response.data.is_empty() {
                let data = Bytes::copied_from(&response.data).into();
                self.events.push_back((task.unit, UnitEvent::DataIn { key, offset: 0, data }));
            }
            let transferable = i64::try_from(task.expected).unwrap() + response.residual;
            let sense = if response.sense.is_empty() { None } else { Some(SenseBytes(response.sense)) };
            let event = UnitEvent::CommandComplete {
                key,
                status: Status(response.status),
                sense,
                transferable: u64::try_from(transferable).unwrap(),
            };
            self.events.push_back((task.unit, event));
        }
        for (ticket, result) in std::mem::take(&mut transport.tmf_results) {
            let Some((key, unit)) = self.tmfs.remove(&ticket) else { continue };
            let outcome = match result {
                TmfResult::COMPLETE => TmfOutcome::Complete,
                TmfResult::SUCCEEDED => TmfOutcome::Succeeded,
                TmfResult::NO_TASK => TmfOutcome::NoSuchTask,
                TmfResult::NOT_SUPPORTED => TmfOutcome::NotSupported,
                TmfResult::NOT_AUTHORIZED => TmfOutcome::NotAuthorized,
                other => panic!("{other:?}"),
            };
            self.events.push_back((unit, UnitEvent::TmfComplete { key, outcome }));
        }
    }

    pub(crate) fn poll(&mut self) -> Option<(u32, UnitEvent)> {
        self.events.pop_front()
    }
}

/// Returns the entry of a LUN map that gives access to a unit under the LUN of its number.
pub(crate) fn entry(unit: u32, access: Access) -> MapEntry {
    MapEntry { number: unit.try_into().unwrap(), unit: UnitId(unit), access, min_level: Level::None }
}

const fn lun_of(unit: u32) -> u64 {
    (unit as u64) << 48
}
