//! RESERVE, RELEASE, PERSISTENT RESERVE IN and OUT, and the effect of reservations on other commands.

use alloc::boxed::Box;
use alloc::rc::Rc;
use alloc::vec::Vec;

use scsi::pr::{BasicList, MoveList, ReservationType, service_action_in, service_action_out};
use scsi::sense::{Asc, Sense, SenseKey};
use scsi::status::Status;

use super::{data, length_error, whole};
use crate::contract::{NexusId, RelativePort};
use crate::device_server::DeviceServer;
use crate::device_server::outcome::Outcome;
use crate::device_server::table::Row;
use crate::fault_injection::{self, Bug};
use crate::pr::out::{KnownPorts, Request};
use crate::pr::{Effects, NexusName, PersistentReservations, PrError};
use crate::task::TaskInfo;

/// The longest parameter list of PERSISTENT RESERVE OUT, in bytes: enough for 64 of the longest TransportIDs
/// (CVE-2024-39281 was a length that was not checked).
const MAX_LIST: u32 = 16 << 10;

impl DeviceServer {
    /// Returns the outcome of a command that conflicts with a reservation, or `None` if it does not conflict.
    pub(crate) fn reservation_conflict(&self, task: &TaskInfo, row: &Row) -> Option<Outcome> {
        let spc = &self.spc;
        if spc.pr.is_lost() && !PersistentReservations::passes_while_lost(&task.cdb) {
            return Some(Outcome::CheckCondition(LOST));
        }
        if spc.spc2_reservation.holder().is_none() && spc.pr.kind().is_none() {
            return None;
        }
        let class = row.conflict.of(&task.cdb);
        let reserved = spc
            .spc2_reservation
            .holder()
            .is_some_and(|holder| class.conflicts_with_reserve(holder == task.nexus));
        let stopped = reserved || spc.pr.conflicts(class, spc.pr_role(task.nexus));
        stopped.then_some(Outcome::Status(Status::RESERVATION_CONFLICT))
    }
}

/// The sense data of a command while the saved reservations could not be read (SPC-5 §5.14.5).
const LOST: Sense = Sense::new(SenseKey::DATA_PROTECT, Asc::PERSISTENT_RESERVATION_INFORMATION_LOST);

pub(super) fn reserve(_: &mut DeviceServer, _: &TaskInfo) -> Outcome {
    let then = |server: &mut DeviceServer, task: &TaskInfo, _: &[u8]| {
        let standing = server.spc.pr_role(task.nexus);
        Outcome::Status(server.spc.spc2_reservation.reserve(task.nexus, standing, &server.spc.pr))
    };
    Outcome::QueueStateChange { list: Vec::new(), then }
}

pub(super) fn release(_: &mut DeviceServer, _: &TaskInfo) -> Outcome {
    let then = |server: &mut DeviceServer, task: &TaskInfo, _: &[u8]| {
        let standing = server.spc.pr_role(task.nexus);
        let status = server.spc.spc2_reservation.release(task.nexus, standing, &server.spc.pr);
        server.forget_keys_of_reservations(Some(task.nexus), None);
        Outcome::Status(status)
    };
    Outcome::QueueStateChange { list: Vec::new(), then }
}

pub(super) fn persistent_reserve_in(server: &mut DeviceServer, task: &TaskInfo) -> Outcome {
    let pr = &server.spc.pr;
    let bytes = match action(task) {
        service_action_in::READ_KEYS => pr.keys().encode(),
        service_action_in::READ_RESERVATION => pr.reservation().encode(),
        service_action_in::REPORT_CAPABILITIES => pr.capabilities().encode().to_vec(),
        _ => pr.full_status().encode(),
    };
    data(bytes, u32::from(task.cdb.u16(7)))
}

pub(super) fn persistent_reserve_out(_: &mut DeviceServer, task: &TaskInfo) -> Outcome {
    let len = task.cdb.u32(5);
    let basic = u32::try_from(BasicList::LEN).unwrap_or(0);
    let fits = match action(task) {
        service_action_out::REGISTER | service_action_out::REGISTER_AND_MOVE => {
            (basic..=MAX_LIST).contains(&len)
        }
        _ => len == basic,
    };
    if fits { Outcome::FetchParameterList { len, then: persistent_reserve_out_list } } else { length_error() }
}

fn persistent_reserve_out_list(_: &mut DeviceServer, task: &TaskInfo, list: &[u8]) -> Outcome {
    match whole(list, task.cdb.u32(5)) {
        Ok(list) => Outcome::QueueStateChange { list: Vec::from(list), then: persistent_reserve_out_in_turn },
        Err(outcome) => outcome,
    }
}

/// Decides on a copy of the registrations, which replaces those in force when it is stored.
fn persistent_reserve_out_in_turn(server: &mut DeviceServer, task: &TaskInfo, list: &[u8]) -> Outcome {
    if server.spc.spc2_reservation.holder().is_some() {
        // A RESERVE was executed while the parameter list was being fetched.
        return Outcome::Status(Status::RESERVATION_CONFLICT);
    }
    let request = match request(task, list) {
        Ok(request) => request,
        Err(sense) => return Outcome::CheckCondition(sense),
    };
    let Some(from) = server.nexuses.find(task.nexus).map(|state| NexusName::of(&state.nexus)) else {
        return Outcome::Status(Status::RESERVATION_CONFLICT);
    };
    let target_ports: Vec<RelativePort> = server.info.config.ports.iter().map(|port| port.relative).collect();
    let initiator_ports: Vec<Rc<[u8]>> =
        server.nexuses.iter().map(|state| Rc::clone(&state.nexus.initiator_port)).collect();
    let world = KnownPorts { target_ports: &target_ports, initiator_ports: &initiator_ports };
    let mut new = server.spc.pr.clone();
    let change = match new.out(&from, request, world) {
        Ok(change) => change,
        Err(PrError::Conflict) => return Outcome::Status(Status::RESERVATION_CONFLICT),
        Err(PrError::Check(sense)) => return Outcome::CheckCondition(sense),
    };
    if !change.save {
        return changed(server, task, new, &change);
    }
    let state = server.spc.to_save_with(&new);
    if fault_injection::is_injected(Bug::ReserveUnsaved) {
        server.spc.pr = new.clone();
        server.refresh_pr_roles();
    }
    let then = move |server: &mut DeviceServer, task: &TaskInfo, saved| {
        if saved { changed(server, task, new, &change) } else { not_saved() }
    };
    Outcome::SaveState { state, then: Box::new(then) }
}

/// Applies changed registrations and the effects that the change requires of the rest of the unit.
fn changed(
    server: &mut DeviceServer,
    task: &TaskInfo,
    new: PersistentReservations,
    change: &Effects,
) -> Outcome {
    let before = core::mem::replace(&mut server.spc.pr, new);
    server.refresh_pr_roles();
    for (nexus, asc) in &change.attentions {
        server.nexuses.establish_ua_at_ports(&nexus.initiator_port, nexus.target_port, *asc);
    }
    let is_preempted =
        matches!(action(task), service_action_out::PREEMPT | service_action_out::PREEMPT_AND_ABORT);
    server.forget_keys_of_reservations(Some(task.nexus), is_preempted.then_some(&before));
    abort_tasks(server, &change.abort)
}

/// Aborts the tasks of preempted nexuses, ends their prevention of medium removal, and then answers.
fn abort_tasks(server: &mut DeviceServer, victims: &[NexusName]) -> Outcome {
    if victims.is_empty() {
        return Outcome::Good;
    }
    let is_hit = |name: &NexusName| victims.contains(name);
    let hit = server.nexuses.iter().filter(|state| is_hit(&NexusName::of(&state.nexus)));
    let nexuses: Vec<NexusId> = hit.map(|state| state.nexus.id).collect();
    for nexus in &nexuses {
        server.spc.removal.allow(*nexus);
    }
    Outcome::AbortOthers { nexuses, then: Box::new(Outcome::Good) }
}

/// Returns the outcome of a command whose change could not be saved: nothing has changed.
pub(super) const fn not_saved() -> Outcome {
    Outcome::CheckCondition(Sense::new(SenseKey::HARDWARE_ERROR, Asc::INTERNAL_TARGET_FAILURE))
}

fn action(task: &TaskInfo) -> u16 {
    u16::from(task.cdb.u8(1) & 0x1f)
}

fn request(task: &TaskInfo, list: &[u8]) -> Result<Request, Sense> {
    let scope_and_type = task.cdb.u8(2);
    if action(task) == service_action_out::REGISTER_AND_MOVE {
        return MoveList::parse(list).map(Request::Move);
    }
    let list = BasicList::parse(list)?;
    if action(task) != service_action_out::REGISTER && list.initiator_ports.is_some() {
        return Err(Sense::invalid_parameter(20, Some(3)));
    }
    let (key, victims) = (list.key, list.service_action_key);
    Ok(match action(task) {
        service_action_out::REGISTER => Request::Register(list),
        service_action_out::REGISTER_AND_IGNORE_EXISTING_KEY => Request::RegisterAndIgnore(list),
        service_action_out::RESERVE => Request::Reserve(key, kind(scope_and_type)?),
        service_action_out::RELEASE => Request::Release(key, scope_and_type),
        service_action_out::CLEAR => Request::Clear(key),
        service_action_out::REPLACE_LOST_RESERVATION => Request::ReplaceLost(list, kind(scope_and_type)?),
        action => Request::Preempt {
            key,
            victims,
            new: kind(scope_and_type),
            abort: action == service_action_out::PREEMPT_AND_ABORT,
        },
    })
}

/// Decodes SCOPE, which must be the logical unit, and TYPE.
fn kind(scope_and_type: u8) -> Result<ReservationType, Sense> {
    if scope_and_type >> 4 != 0 {
        return Err(Sense::invalid_cdb(2, Some(7)));
    }
    ReservationType::from_code(scope_and_type).ok_or(Sense::invalid_cdb(2, Some(3)))
}
