//! RESERVE, RELEASE, PERSISTENT RESERVE IN and OUT, and what reservations do to other commands.

use alloc::boxed::Box;
use alloc::rc::Rc;
use alloc::vec::Vec;

use base::fault_injection::{self, Bug};
use scsi::pr::{BasicList, MoveList, ReservationType, service_action_in, service_action_out};
use scsi::sense::{Asc, Sense, SenseKey};
use scsi::status::Status;

use super::{data, length_error, whole};
use crate::contract::{NexusId, RelativePort};
use crate::pr::out::{Request, World};
use crate::pr::{Change, NexusName, PersistentReservations, Refusal};
use crate::server::Core;
use crate::table::Row;
use crate::task::TaskInfo;
use crate::verdict::Verdict;

/// The longest parameter list of PERSISTENT RESERVE OUT: room for 64 of the longest TransportIDs (CVE-2024-39281 was a
/// length that was believed).
const MAX_LIST: u32 = 16 << 10;

impl Core {
    /// Returns the verdict with which a reservation stops a command.
    pub(crate) fn reservation_stops(&self, task: &TaskInfo, row: &Row) -> Option<Verdict> {
        let spc = &self.spc;
        if spc.pr.is_lost() && !PersistentReservations::passes_while_lost(&task.cdb) {
            return Some(Verdict::Check(LOST));
        }
        if spc.reserve.holder().is_none() && spc.pr.kind().is_none() {
            return None;
        }
        let class = row.conflict.of(&task.cdb);
        let reserved = spc.reserve.holder().is_some_and(|holder| class.with_reserve(holder == task.nexus));
        let stopped = reserved || spc.pr.stops(class, spc.standing(task.nexus));
        stopped.then_some(Verdict::Status(Status::RESERVATION_CONFLICT))
    }
}

/// What is answered while saved reservations could not be read (SPC-5 §5.14.5.4).
const LOST: Sense = Sense::new(SenseKey::DATA_PROTECT, Asc::PERSISTENT_RESERVATION_INFORMATION_LOST);

pub(super) fn reserve(_: &mut Core, _: &TaskInfo) -> Verdict {
    let then = |core: &mut Core, task: &TaskInfo, _: &[u8]| {
        let standing = core.spc.standing(task.nexus);
        Verdict::Status(core.spc.reserve.reserve(task.nexus, standing, &core.spc.pr))
    };
    Verdict::InTurn { list: Vec::new(), then }
}

pub(super) fn release(_: &mut Core, _: &TaskInfo) -> Verdict {
    let then = |core: &mut Core, task: &TaskInfo, _: &[u8]| {
        let standing = core.spc.standing(task.nexus);
        Verdict::Status(core.spc.reserve.release(task.nexus, standing, &core.spc.pr))
    };
    Verdict::InTurn { list: Vec::new(), then }
}

pub(super) fn persistent_reserve_in(core: &mut Core, task: &TaskInfo) -> Verdict {
    let pr = &core.spc.pr;
    let bytes = match action(task) {
        service_action_in::READ_KEYS => pr.keys().encode(),
        service_action_in::READ_RESERVATION => pr.reservation().encode(),
        service_action_in::REPORT_CAPABILITIES => pr.capabilities().encode().to_vec(),
        _ => pr.full_status().encode(),
    };
    data(bytes, u32::from(task.cdb.u16(7)))
}

pub(super) fn persistent_reserve_out(_: &mut Core, task: &TaskInfo) -> Verdict {
    let len = task.cdb.u32(5);
    let basic = u32::try_from(BasicList::LEN).unwrap_or(0);
    let fits = match action(task) {
        service_action_out::REGISTER | service_action_out::REGISTER_AND_MOVE => {
            (basic..=MAX_LIST).contains(&len)
        }
        _ => len == basic,
    };
    if fits { Verdict::Parameters { len, then: persistent_reserve_out_list } } else { length_error() }
}

fn persistent_reserve_out_list(_: &mut Core, task: &TaskInfo, list: &[u8]) -> Verdict {
    match whole(list, task.cdb.u32(5)) {
        Ok(list) => Verdict::InTurn { list: Vec::from(list), then: persistent_reserve_out_in_turn },
        Err(verdict) => verdict,
    }
}

/// Decides on a copy of the registrations, which takes the place of those in force when it is stored.
fn persistent_reserve_out_in_turn(core: &mut Core, task: &TaskInfo, list: &[u8]) -> Verdict {
    if core.spc.reserve.holder().is_some() {
        // A RESERVE came while the list was on its way.
        return Verdict::Status(Status::RESERVATION_CONFLICT);
    }
    let request = match request(task, list) {
        Ok(request) => request,
        Err(sense) => return Verdict::Check(sense),
    };
    let Some(from) = core.nexuses.find(task.nexus).map(|state| NexusName::of(&state.nexus)) else {
        return Verdict::Status(Status::RESERVATION_CONFLICT);
    };
    let target_ports: Vec<RelativePort> = core.facts.config.ports.iter().map(|port| port.relative).collect();
    let initiator_ports: Vec<Rc<[u8]>> =
        core.nexuses.iter().map(|state| Rc::clone(&state.nexus.initiator_port)).collect();
    let world = World { target_ports: &target_ports, initiator_ports: &initiator_ports };
    let mut new = core.spc.pr.clone();
    let change = match new.out(&from, request, world) {
        Ok(change) => change,
        Err(Refusal::Conflict) => return Verdict::Status(Status::RESERVATION_CONFLICT),
        Err(Refusal::Check(sense)) => return Verdict::Check(sense),
    };
    if !change.save {
        return changed(core, new, &change);
    }
    let state = core.spc.to_save_with(&new);
    if fault_injection::is_injected(Bug::ReserveUnsaved) {
        core.spc.pr = new.clone();
        core.refresh_standings();
    }
    let then = move |core: &mut Core, _: &TaskInfo, saved| {
        if saved { changed(core, new, &change) } else { not_saved() }
    };
    Verdict::Save { state, then: Box::new(then) }
}

/// Puts changed registrations in force and carries out what the change asks of the rest of the unit.
fn changed(core: &mut Core, new: PersistentReservations, change: &Change) -> Verdict {
    core.spc.pr = new;
    core.refresh_standings();
    for (nexus, asc) in &change.attentions {
        core.nexuses.attend_ports(&nexus.initiator_port, nexus.target_port, *asc);
    }
    abort_tasks(core, &change.abort)
}

/// Aborts the tasks of preempted nexuses, lifts their prevention of medium removal, and then answers.
fn abort_tasks(core: &mut Core, victims: &[NexusName]) -> Verdict {
    if victims.is_empty() {
        return Verdict::Good;
    }
    let is_hit = |name: &NexusName| victims.contains(name);
    let hit = core.nexuses.iter().filter(|state| is_hit(&NexusName::of(&state.nexus)));
    let nexuses: Vec<NexusId> = hit.map(|state| state.nexus.id).collect();
    for nexus in &nexuses {
        core.spc.removal.allow(*nexus);
    }
    Verdict::AbortOthers { nexuses, then: Box::new(Verdict::Good) }
}

/// Answers a command whose change could not be saved: nothing has changed.
pub(super) const fn not_saved() -> Verdict {
    Verdict::Check(Sense::new(SenseKey::HARDWARE_ERROR, Asc::INTERNAL_TARGET_FAILURE))
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
