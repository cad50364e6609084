//! Direct calls without a transport: initiators call the units. A failure here is not the fault of a
//! protocol.
//!
//! Commands and data take time, I_T nexuses are lost at random, and third-party copies reach every unit.

use std::collections::{BTreeMap, VecDeque};
use std::rc::Rc;

use base::buffer::Pool;
use base::rng::Rng;
use base::time::{Duration, Instant};
use device::contract::{
    Access, Command, Nexus, NexusId, RelativePort, TaskKey, ThirdPartyCaller, ThirdPartyError,
    ThirdPartyUnit, Tmf, TmfKey, TmfOutcome, UnitEvent,
};
use device::library::{LibraryEvent, LibraryInput};
use device::unit::LogicalUnit;
use netem::probability::DurationRange;
use scsi::cdb::Cdb;
use scsi::lun::Lun;
use scsi::status::TaskAttribute;

use super::{Attribute, CommandOutcome, ScsiCommand, TaskManagement, Ticket, Transport, TransportEvent};
use crate::media::{Medium, scattered};
use crate::property::PropertyViolation;
use crate::scenario::Scenario;
use crate::trace::Trace;
use crate::units;

/// The units that initiators call, and what they work on.
pub trait UnitSource {
    /// Makes the units, with the persistent state that each has saved.
    fn build(&mut self, saved: &[Option<Vec<u8>>], pool: &Pool) -> Vec<LogicalUnit>;

    /// Returns whether completions for a unit may be due.
    fn is_ready(&self, unit: usize, now: Instant) -> bool;

    /// Handles what a medium changer or a drive asks of the owner of its library.
    fn library_event(&mut self, _now: Instant, _unit: usize, _event: LibraryEvent) {}

    /// Returns what the owner of a library tells a unit now.
    fn poll_library(&mut self, _now: Instant) -> Option<(usize, LibraryInput)> {
        None
    }

    /// Returns when the owner of a library does the next thing.
    fn next(&self) -> Option<Instant> {
        None
    }
}

/// The disks of a scenario.
struct Disks {
    scenario: Scenario,
    media: Vec<Medium>,
}

impl UnitSource for Disks {
    fn build(&mut self, saved: &[Option<Vec<u8>>], pool: &Pool) -> Vec<LogicalUnit> {
        (0..)
            .zip(&self.media)
            .zip(saved)
            .map(|((number, medium), saved)| {
                units::unit(number, &self.scenario, medium, saved.as_deref(), pool)
            })
            .collect()
    }

    fn is_ready(&self, unit: usize, now: Instant) -> bool {
        self.media[unit].next().is_some_and(|at| at <= now)
    }
}

/// Units, and the initiators that call them.
pub struct Direct {
    source: Box<dyn UnitSource>,
    data_within: Duration,
    units: Vec<LogicalUnit>,
    pool: Pool,
    trace: Trace,
    rng: Rng,
    hosts: Vec<Host>,
    tasks: BTreeMap<Ticket, Task>,
    manages: BTreeMap<Ticket, PendingTmf>,
    saved: Vec<Option<Vec<u8>>>,
    /// Scheduled commands, data and events, in order of arrival.
    queue: BTreeMap<(Instant, u64), Scheduled>,
    number: u64,
    happenings: VecDeque<TransportEvent>,
    next_nexus: u32,
    commands: u64,
    trouble: Instant,
}

struct Host {
    nexus: Option<NexusId>,
    closed: bool,
    /// When its last command arrives: no later command overtakes it.
    last: Instant,
}

struct Task {
    initiator: usize,
    order: ScsiCommand,
    data_in: Vec<u8>,
    /// Whether the command has reached its unit.
    begun: bool,
}

struct PendingTmf {
    initiator: usize,
    /// How many units have not answered.
    left: usize,
    good: bool,
}

enum Scheduled {
    Execute(Ticket),
    DataOut(Ticket, u32, u32),
    Manage(Ticket, NexusId, TaskManagement),
    Saved(usize, u64),
    Lose(usize),
    Return(usize),
}

/// How long commands, functions and answers take at most.
const COMMANDS_WITHIN: Duration = Duration::from_micros(200);

impl Direct {
    /// Makes the disks of a scenario and brings every initiator up.
    pub fn new(scenario: &Scenario, media: Vec<Medium>, trace: Trace, now: Instant, seed: u64) -> Self {
        let source = Disks { scenario: scenario.clone(), media };
        Self::of(
            (Box::new(source), scenario.units.into()),
            (scenario.initiators, scenario.nexus_losses, Duration::from_millis(400)),
            COMMANDS_WITHIN,
            trace,
            now,
            seed,
        )
    }

    /// Makes so many units of a source and brings so many initiators up, which lose so many nexuses within a
    /// time. Data of commands take up to `data_within`.
    pub fn of(
        (source, units): (Box<dyn UnitSource>, usize),
        (initiators, losses, within): (usize, u32, Duration),
        data_within: Duration,
        trace: Trace,
        now: Instant,
        seed: u64,
    ) -> Self {
        let mut direct = Self {
            source,
            data_within,
            saved: vec![None; units],
            units: Vec::new(),
            pool: Pool::new(8 << 20),
            trace,
            rng: Rng::from_seed(seed),
            hosts: (0..initiators).map(|_| Host { nexus: None, closed: false, last: now }).collect(),
            tasks: BTreeMap::new(),
            manages: BTreeMap::new(),
            queue: BTreeMap::new(),
            number: 0,
            happenings: VecDeque::new(),
            next_nexus: 1,
            commands: 0,
            trouble: now,
        };
        direct.build();
        for host in 0..initiators {
            direct.come(now, host);
        }
        for _ in 0..losses {
            let host = usize::try_from(direct.rng.below(direct.hosts.len() as u64)).unwrap();
            let at = now.after(DurationRange::between(Duration::ZERO, within).pick(&mut direct.rng));
            direct.schedule(at, Scheduled::Lose(host));
        }
        direct
    }

    fn build(&mut self) {
        self.units = self.source.build(&self.saved, &self.pool);
    }

    fn schedule(&mut self, at: Instant, step: Scheduled) {
        self.number += 1;
        self.queue.insert((at, self.number), step);
    }

    fn soon(&mut self, now: Instant) -> Instant {
        let span = DurationRange::between(Duration::from_micros(1), COMMANDS_WITHIN);
        now.after(span.pick(&mut self.rng))
    }

    fn come(&mut self, now: Instant, host: usize) {
        let id = NexusId(self.next_nexus);
        self.next_nexus += 1;
        self.hosts[host].nexus = Some(id);
        let luns: Rc<[Lun]> =
            (0..u64::try_from(self.units.len()).unwrap()).map(|number| Lun(number << 48)).collect();
        for unit in &mut self.units {
            let name = format!("iqn.2026-11.org.example:host{host}");
            let mut port = vec![0x45, 0, 0, 0];
            port.extend(format!("{name},i,0x{host:012x}\0").bytes());
            port.resize(port.len().next_multiple_of(4), 0);
            let len = u16::try_from(port.len() - 4).unwrap().to_be_bytes();
            port[2..4].copy_from_slice(&len);
            unit.nexus_established(
                now,
                Nexus {
                    id,
                    initiator_port: port.into(),
                    initiator_name: name.into(),
                    target_port: RelativePort(1),
                    access: Access::ReadWrite,
                    rfc_7144_functions: true,
                    luns: Rc::clone(&luns),
                    limiter: None,
                },
            );
        }
        self.happenings.push_back(TransportEvent::Up { initiator: host, is_new_nexus: true });
    }

    /// Ends the I_T nexus of an initiator; its tasks are lost.
    fn lose(&mut self, now: Instant, host: usize) {
        let Some(id) = self.hosts[host].nexus.take() else { return };
        self.trouble = now;
        self.trace.say(|| format!("initiator {host} loses its nexus"));
        for unit in 0..self.units.len() {
            self.units[unit].nexus_lost(now, id);
            self.handle_unit_events(now);
        }
        let lost: Vec<Ticket> =
            self.tasks.iter().filter(|(_, task)| task.initiator == host).map(|(ticket, _)| *ticket).collect();
        for ticket in lost {
            let begun = self.tasks.get(&ticket).is_some_and(|task| task.begun);
            self.end(ticket, if begun { CommandOutcome::Lost } else { CommandOutcome::Refused });
        }
        let manages: Vec<Ticket> = self
            .manages
            .iter()
            .filter(|(_, open)| open.initiator == host)
            .map(|(ticket, _)| *ticket)
            .collect();
        for ticket in manages {
            self.manages.remove(&ticket);
            self.happenings.push_back(TransportEvent::TmfDone { initiator: host, ticket, answer: None });
        }
        self.happenings
            .push_back(TransportEvent::Down { initiator: host, is_final: self.hosts[host].closed });
    }

    fn end(&mut self, ticket: Ticket, ended: CommandOutcome) {
        if let Some(task) = self.tasks.remove(&ticket) {
            self.happenings.push_back(TransportEvent::Ended { initiator: task.initiator, ticket, ended });
        }
    }

    fn run_scheduled(&mut self, now: Instant, step: Scheduled) {
        match step {
            Scheduled::Execute(ticket) => self.execute(now, ticket),
            Scheduled::DataOut(ticket, offset, len) => {
                let Some(task) = self.tasks.get(&ticket) else { return };
                let from = usize::try_from(offset).unwrap();
                let part = &task.order.data_out[from..from + usize::try_from(len).unwrap()];
                let data = scattered(&mut self.rng, part);
                let unit = usize::from(task.order.unit);
                self.units[unit].data_out(now, TaskKey(ticket.0), offset, Ok(data));
            }
            Scheduled::Manage(ticket, nexus, function) => self.start_manage(now, ticket, nexus, function),
            Scheduled::Saved(unit, ticket) => self.units[unit].state_saved(now, ticket, true),
            Scheduled::Lose(host) => {
                self.lose(now, host);
                if !self.hosts[host].closed {
                    let at = now.after(Duration::from_millis(self.rng.below(20)));
                    self.schedule(at, Scheduled::Return(host));
                }
            }
            Scheduled::Return(host) if self.hosts[host].nexus.is_none() && !self.hosts[host].closed => {
                self.come(now, host)
            }
            Scheduled::Return(_) => {}
        }
    }

    fn execute(&mut self, now: Instant, ticket: Ticket) {
        let Some(task) = self.tasks.get_mut(&ticket) else { return };
        let Some(nexus) = self.hosts[task.initiator].nexus else { return };
        task.begun = true;
        self.commands += 1;
        let order = &task.order;
        let attribute = match order.attribute {
            Attribute::Simple => TaskAttribute::Simple,
            Attribute::Ordered => TaskAttribute::Ordered,
            Attribute::HeadOfQueue => TaskAttribute::HeadOfQueue,
        };
        let command = Command {
            nexus,
            key: TaskKey(ticket.0),
            level: security::Level::None,
            attribute,
            priority: 0,
            cdb: Cdb::from_bytes(&order.cdb).unwrap(),
            data_in_len: order.data_in_len,
            data_out_len: u32::try_from(order.data_out.len()).unwrap(),
        };
        self.units[usize::from(order.unit)].execute(now, command);
    }

    fn start_manage(&mut self, now: Instant, ticket: Ticket, nexus: NexusId, function: TaskManagement) {
        if !self.manages.contains_key(&ticket) {
            return;
        }
        let all: Vec<usize> = (0..self.units.len()).collect();
        let (units, function) = match function {
            TaskManagement::AbortTask(task) | TaskManagement::QueryTask(task) => {
                let unit = self.tasks.get(&task).filter(|task| task.begun).map(|task| task.order.unit.into());
                let key = TaskKey(task.0);
                let query = matches!(function, TaskManagement::QueryTask(_));
                let function = if query { Tmf::QueryTask(key) } else { Tmf::AbortTask(key) };
                (unit.into_iter().collect(), function)
            }
            TaskManagement::AbortTaskSet(unit) => (vec![unit.into()], Tmf::AbortTaskSet),
            TaskManagement::ClearTaskSet(unit) => (vec![unit.into()], Tmf::ClearTaskSet),
            TaskManagement::UnitReset(unit) => (vec![unit.into()], Tmf::LogicalUnitReset),
            TaskManagement::WarmReset | TaskManagement::ColdReset => (all, Tmf::LogicalUnitReset),
        };
        if let Some(open) = self.manages.get_mut(&ticket) {
            open.left = units.len();
        }
        for unit in &units {
            self.units[*unit].execute_tmf(now, nexus, TmfKey(ticket.0), function);
        }
        if units.is_empty() {
            self.managed(ticket, false, 0);
        }
    }

    fn managed(&mut self, ticket: Ticket, good: bool, answers: usize) {
        let Some(open) = self.manages.get_mut(&ticket) else { return };
        open.left -= answers;
        open.good &= good;
        if open.left == 0 {
            let (initiator, answer) = (open.initiator, Some(open.good));
            self.manages.remove(&ticket);
            self.happenings.push_back(TransportEvent::TmfDone { initiator, ticket, answer });
        }
    }

    /// Collects the events of all units until no unit has any.
    fn handle_unit_events(&mut self, now: Instant) {
        let mut quiet = 0;
        while quiet < self.units.len() {
            quiet = 0;
            for unit in 0..self.units.len() {
                let mut said = false;
                while let Some(event) = self.units[unit].poll() {
                    said = true;
                    self.event(now, unit, event);
                }
                quiet += usize::from(!said);
            }
            while let Some((unit, input)) = self.source.poll_library(now) {
                quiet = 0;
                self.units[unit].library_input(now, input);
            }
        }
    }

    fn event(&mut self, now: Instant, unit: usize, event: UnitEvent) {
        match event {
            UnitEvent::FetchDataOut { key, offset, len } => {
                let span = DurationRange::between(Duration::from_micros(1), self.data_within);
                let at = now.after(span.pick(&mut self.rng));
                self.schedule(at, Scheduled::DataOut(Ticket(key.0), offset, len));
            }
            UnitEvent::DataIn { key, offset, data } => {
                let task = self.tasks.get_mut(&Ticket(key.0)).expect("data of a task that is not open");
                assert_eq!(task.data_in.len(), usize::try_from(offset).unwrap(), "data in order");
                let start = task.data_in.len();
                task.data_in.resize(start + data.len(), 0);
                data.copy_to(0, &mut task.data_in[start..]);
                assert!(
                    task.data_in.len() <= usize::try_from(task.order.data_in_len).unwrap(),
                    "data beyond the buffer"
                );
            }
            UnitEvent::CommandComplete { key, status, sense, .. } => {
                let ticket = Ticket(key.0);
                let data = self.tasks.get_mut(&ticket).map(|task| std::mem::take(&mut task.data_in));
                let sense = sense.map(|sense| sense.bytes().to_vec()).unwrap_or_default();
                self.end(
                    ticket,
                    CommandOutcome::Status { status: status.0, sense, data: data.unwrap_or_default() },
                );
            }
            UnitEvent::TmfComplete { key, outcome } => {
                let good = matches!(
                    outcome,
                    TmfOutcome::Complete | TmfOutcome::Succeeded | TmfOutcome::SucceededWith(_)
                );
                self.managed(Ticket(key.0), good, 1);
            }
            UnitEvent::Aborted { key } => self.end(Ticket(key.0), CommandOutcome::Aborted),
            UnitEvent::SaveState { ticket, state } => {
                self.saved[unit] = Some(state);
                let at = self.soon(now);
                self.schedule(at, Scheduled::Saved(unit, ticket));
            }
            UnitEvent::ThirdPartyCall(call) => {
                let caller = ThirdPartyCaller { unit: u32::try_from(unit).unwrap(), call: call.call };
                let named = match &call.unit {
                    ThirdPartyUnit::Lun(lun) => {
                        usize::try_from(lun.0 >> 48).ok().filter(|at| *at < self.units.len())
                    }
                    ThirdPartyUnit::Designator { code_set, kind, designator } => {
                        self.units.iter().position(|unit| unit.is_designated_by(*code_set, *kind, designator))
                    }
                };
                match named {
                    Some(other) => {
                        self.units[other].execute_third_party(now, caller, call.nexus, call.request)
                    }
                    None => {
                        self.units[unit].third_party_reply(now, call.call, Err(ThirdPartyError::NotReachable))
                    }
                }
            }
            UnitEvent::Library(event) => self.source.library_event(now, unit, event),
            UnitEvent::ThirdPartyReply { caller, result } => {
                self.units[usize::try_from(caller.unit).unwrap()].third_party_reply(now, caller.call, result);
            }
        }
    }
}

impl Transport for Direct {
    fn submit(&mut self, now: Instant, initiator: usize, ticket: Ticket, order: ScsiCommand) -> bool {
        if self.hosts[initiator].nexus.is_none() {
            return false;
        }
        self.tasks.insert(ticket, Task { initiator, order, data_in: Vec::new(), begun: false });
        let at = self.soon(now).max(self.hosts[initiator].last);
        self.hosts[initiator].last = at;
        self.schedule(at, Scheduled::Execute(ticket));
        true
    }

    fn task_management(
        &mut self,
        now: Instant,
        initiator: usize,
        ticket: Ticket,
        function: TaskManagement,
    ) -> bool {
        let Some(nexus) = self.hosts[initiator].nexus else { return false };
        self.manages.insert(ticket, PendingTmf { initiator, left: 0, good: true });
        let at = self.soon(now);
        self.schedule(at, Scheduled::Manage(ticket, nexus, function));
        true
    }

    fn poll(&mut self) -> Option<TransportEvent> {
        self.happenings.pop_front()
    }

    fn next_deadline(&self) -> Option<Instant> {
        let queued = self.queue.first_key_value().map(|((at, _), _)| *at);
        let units = self.units.iter().filter_map(LogicalUnit::poll_timeout);
        units.chain(queued).chain(self.source.next()).min()
    }

    fn pending_deadlines(&self) -> String {
        let units: Vec<_> = self.units.iter().map(LogicalUnit::poll_timeout).collect();
        format!("units {units:?}, queue {:?}", self.queue.first_key_value().map(|((at, _), _)| *at))
    }

    fn advance(&mut self, now: Instant) {
        for unit in 0..self.units.len() {
            if self.source.is_ready(unit, now) {
                self.units[unit].store_ready(now);
            }
            if self.units[unit].poll_timeout().is_some_and(|at| at <= now) {
                self.units[unit].handle_timeout(now);
            }
        }
        self.handle_unit_events(now);
        while self.queue.first_key_value().is_some_and(|((at, _), _)| *at <= now) {
            if let Some((_, step)) = self.queue.pop_first() {
                self.run_scheduled(now, step);
                self.handle_unit_events(now);
            }
        }
    }

    fn reset_nexus(&mut self, now: Instant, initiator: usize) {
        self.schedule(now, Scheduled::Lose(initiator));
    }

    fn stop_faults(&mut self, _now: Instant) {
        self.queue.retain(|_, step| !matches!(step, Scheduled::Lose(_)));
    }

    fn close(&mut self, now: Instant) {
        for host in 0..self.hosts.len() {
            self.hosts[host].closed = true;
            self.lose(now, host);
        }
        self.handle_unit_events(now);
    }

    fn crash(&mut self, now: Instant) {
        for host in 0..self.hosts.len() {
            self.lose(now, host);
        }
        self.queue.retain(|_, step| matches!(step, Scheduled::Lose(_)));
        self.build();
        for host in 0..self.hosts.len() {
            let at = self.soon(now);
            self.schedule(at, Scheduled::Return(host));
        }
    }

    fn last_fault(&self) -> Instant {
        self.trouble
    }

    fn busy_reason(&self) -> Option<String> {
        let tasks: u64 = self.units.iter().map(|unit| unit.stats().tasks).sum();
        (tasks > 0).then(|| format!("{tasks} tasks in the units"))
    }

    fn bugs(&self) -> u64 {
        0
    }

    fn take_violations(&mut self) -> Vec<PropertyViolation> {
        Vec::new()
    }

    fn summary(&self) -> String {
        format!("{} commands, {} nexuses", self.commands, self.next_nexus - 1)
    }
}
