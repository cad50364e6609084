//! PERSISTENT RESERVE OUT (SPC-5 §5.14.7 to §5.14.11): every service action as one indivisible step.

use alloc::rc::Rc;
use alloc::vec::Vec;

use scsi::pr::{BasicList, MoveList, ReservationKey, ReservationType};
use scsi::sense::{Asc, Sense, SenseKeySpecific};
use scsi::transport_id::TransportId;

use super::{Effects, Held, MAX_REGISTRANTS, NexusName, PersistentReservations, PrError, PrRole, Registrant};
use crate::contract::RelativePort;
use crate::fault_injection::{self, Bug};

/// A parsed request, whose fields are legal by themselves.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Request {
    /// REGISTER.
    Register(BasicList),
    /// REGISTER AND IGNORE EXISTING KEY.
    RegisterAndIgnore(BasicList),
    /// RESERVE with this key and type.
    Reserve(ReservationKey, ReservationType),
    /// RELEASE with this key and the CDB byte of SCOPE and TYPE.
    Release(ReservationKey, u8),
    /// CLEAR with this key.
    Clear(ReservationKey),
    /// PREEMPT or PREEMPT AND ABORT.
    Preempt {
        /// RESERVATION KEY.
        key: ReservationKey,
        /// SERVICE ACTION RESERVATION KEY: the key of the registrants to preempt.
        victims: ReservationKey,
        /// SCOPE and TYPE, which are evaluated only if a reservation is preempted.
        new: Result<ReservationType, Sense>,
        /// Whether the tasks of the preempted nexuses are aborted.
        abort: bool,
    },
    /// REGISTER AND MOVE.
    Move(MoveList),
    /// REPLACE LOST RESERVATION.
    ReplaceLost(BasicList, ReservationType),
}

/// The ports of the target and of its initiators, which some requests need.
#[derive(Clone, Copy, Debug)]
pub(crate) struct KnownPorts<'a> {
    /// The target ports, for ALL_TG_PT and REGISTER AND MOVE.
    pub(crate) target_ports: &'a [RelativePort],
    /// The encoded TransportIDs of initiator ports that have a session now. A TransportID that names only the
    /// device stands for all of that device's ports among them.
    pub(crate) initiator_ports: &'a [Rc<[u8]>],
}

/// Field offsets in the basic parameter list.
mod at {
    pub(super) const SERVICE_ACTION_KEY: u16 = 8;
    pub(super) const MOVE_RELATIVE_PORT: u16 = 18;
    pub(super) const FLAGS: u16 = 20;
    pub(super) const SPEC_I_PT_BIT: u8 = 3;
    pub(super) const MOVE_TRANSPORT_ID: u16 = 24;
    pub(super) const TRANSPORT_IDS: u16 = 28;
}

impl PersistentReservations {
    /// Executes the request of `from`.
    ///
    /// # Errors
    /// The error to answer with; nothing has changed then.
    pub(crate) fn out(
        &mut self,
        from: &NexusName,
        request: Request,
        world: KnownPorts<'_>,
    ) -> Result<Effects, PrError> {
        let before = self.clone();
        let mut change = match request {
            Request::Register(list) => self.register(from, &list, world),
            Request::RegisterAndIgnore(list) => self.register_and_ignore(from, &list, world),
            Request::Reserve(key, kind) => self.reserve(from, key, kind),
            Request::Release(key, scope_and_type) => self.release(from, key, scope_and_type),
            Request::Clear(key) => self.clear(from, key),
            Request::Preempt { key, victims, new, abort } => self.preempt(from, key, victims, new, abort),
            Request::Move(list) => self.register_and_move(from, list, world),
            Request::ReplaceLost(list, kind) => self.replace_lost(from, &list, kind),
        }?;
        let something_is_saved = before.persist || before.lost;
        change.save = (something_is_saved || self.persist) && *self != before;
        Ok(change)
    }

    fn register(
        &mut self,
        from: &NexusName,
        list: &BasicList,
        world: KnownPorts<'_>,
    ) -> Result<Effects, PrError> {
        let new_key = list.service_action_key;
        match self.registrant(from).map(|registrant| registrant.key) {
            None if list.key != ReservationKey::NONE => Err(PrError::Conflict),
            None if new_key == ReservationKey::NONE => Ok(Effects::default()),
            None => {
                let mut nexuses = Vec::new();
                let others = self.listed_ports(from, list, world)?;
                for port in core::iter::once(Rc::clone(&from.initiator_port)).chain(others) {
                    nexuses.extend(through(&port, from, list.all_target_ports, world));
                }
                // As if the command had been sent to each target port; no port is registered unless all are.
                if nexuses
                    .iter()
                    .any(|nexus| nexus.initiator_port == from.initiator_port && self.is_registered(nexus))
                {
                    return Err(PrError::Conflict);
                }
                if nexuses.iter().any(|nexus| self.is_registered(nexus)) {
                    return Err(Sense::invalid_parameter(at::TRANSPORT_IDS, None).into());
                }
                self.add_registrants(nexuses, new_key)?;
                Ok(self.registered(list.persist))
            }
            Some(key) if key != list.key => Err(PrError::Conflict),
            Some(_) if list.initiator_ports.is_some() => Err(spec_i_pt_invalid()),
            Some(key) => {
                let mut nexuses = through(&from.initiator_port, from, list.all_target_ports, world);
                nexuses.retain(|nexus| self.registrant(nexus).is_some_and(|other| other.key == key));
                self.change_key(from, &nexuses, new_key, list.persist)
            }
        }
    }

    fn register_and_ignore(
        &mut self,
        from: &NexusName,
        list: &BasicList,
        world: KnownPorts<'_>,
    ) -> Result<Effects, PrError> {
        if list.initiator_ports.is_some() {
            return Err(spec_i_pt_invalid());
        }
        let nexuses = through(&from.initiator_port, from, list.all_target_ports, world);
        if list.service_action_key == ReservationKey::NONE
            && !nexuses.iter().any(|nexus| self.is_registered(nexus))
        {
            return Ok(Effects::default());
        }
        self.change_key(from, &nexuses, list.service_action_key, list.persist)
    }

    fn change_key(
        &mut self,
        from: &NexusName,
        nexuses: &[NexusName],
        key: ReservationKey,
        persist: bool,
    ) -> Result<Effects, PrError> {
        if key == ReservationKey::NONE {
            let released = self.remove(|registrant| nexuses.contains(&registrant.nexus)).1;
            let mut change = self.registered(persist);
            if released.is_some_and(|kind| kind.admits_registrants()) {
                change.attentions = self.others(from, Asc::RESERVATIONS_RELEASED);
            }
            return Ok(change);
        }
        let new = nexuses.iter().filter(|nexus| !self.is_registered(nexus)).cloned().collect();
        self.add_registrants(new, key)?;
        for registrant in &mut self.registrants {
            if nexuses.contains(&registrant.nexus) {
                registrant.key = key;
            }
        }
        Ok(self.registered(persist))
    }

    fn reserve(
        &mut self,
        from: &NexusName,
        key: ReservationKey,
        kind: ReservationType,
    ) -> Result<Effects, PrError> {
        self.authenticate(from, key)?;
        match &self.reservation {
            None => {
                self.reservation = Some(Held::new(kind, from));
                Ok(Effects::default())
            }
            Some(held) if held.kind() == kind && self.role_of(from) == PrRole::Holder => {
                Ok(Effects::default())
            }
            Some(_) => Err(PrError::Conflict),
        }
    }

    fn release(
        &mut self,
        from: &NexusName,
        key: ReservationKey,
        scope_and_type: u8,
    ) -> Result<Effects, PrError> {
        self.authenticate(from, key)?;
        let Some(kind) = self.kind().filter(|_| self.role_of(from) == PrRole::Holder) else {
            return Ok(Effects::default());
        };
        if kind.code() != scope_and_type {
            return Err(Sense::illegal(Asc::INVALID_RELEASE_OF_PERSISTENT_RESERVATION).into());
        }
        self.reservation = None;
        let attentions = if kind.admits_registrants() {
            self.others(from, Asc::RESERVATIONS_RELEASED)
        } else {
            Vec::new()
        };
        Ok(Effects { attentions, ..Effects::default() })
    }

    fn clear(&mut self, from: &NexusName, key: ReservationKey) -> Result<Effects, PrError> {
        self.authenticate(from, key)?;
        let attentions = self.others(from, Asc::RESERVATIONS_PREEMPTED);
        self.reservation = None;
        self.registrants.clear();
        self.generation = self.generation.wrapping_add(1);
        Ok(Effects { attentions, ..Effects::default() })
    }

    fn preempt(
        &mut self,
        from: &NexusName,
        key: ReservationKey,
        victims: ReservationKey,
        new: Result<ReservationType, Sense>,
        abort: bool,
    ) -> Result<Effects, PrError> {
        self.authenticate(from, key)?;
        let all = matches!(self.reservation, Some(Held::ByAll(_)));
        if victims == ReservationKey::NONE && !all {
            return Err(Sense::invalid_parameter(at::SERVICE_ACTION_KEY, None).into());
        }
        let takes_over =
            if all { victims == ReservationKey::NONE } else { self.holder_key() == Some(victims) };
        let is_victim =
            |registrant: &Registrant| victims == ReservationKey::NONE || registrant.key == victims;
        let mut hit: Vec<NexusName> = Vec::new();
        hit.extend(self.registrants.iter().filter(|one| is_victim(one)).map(|one| one.nexus.clone()));
        if hit.is_empty() {
            return Err(PrError::Conflict);
        }
        let mut attentions = Vec::new();
        if takes_over {
            let new = new?;
            let old = self.kind();
            // The old holder is preempted, unless the sender preempts itself; either way its reservation ends
            // here.
            let before = self.reservation.take();
            let (gone, _) = self.remove(|registrant| is_victim(registrant) && registrant.nexus != *from);
            if old != Some(new) {
                attentions = self.others(from, Asc::RESERVATIONS_RELEASED);
            }
            attentions.extend(gone.into_iter().map(|nexus| (nexus, Asc::REGISTRATIONS_PREEMPTED)));
            let keeps = fault_injection::is_injected(Bug::PreemptKeepsHolder);
            self.reservation = if keeps { before } else { Some(Held::new(new, from)) };
        } else {
            let (gone, _) = self.remove(is_victim);
            let others = gone.into_iter().filter(|nexus| nexus != from);
            attentions.extend(others.map(|nexus| (nexus, Asc::REGISTRATIONS_PREEMPTED)));
        }
        self.generation = self.generation.wrapping_add(1);
        Ok(Effects { attentions, abort: if abort { hit } else { Vec::new() }, ..Effects::default() })
    }

    fn register_and_move(
        &mut self,
        from: &NexusName,
        list: MoveList,
        world: KnownPorts<'_>,
    ) -> Result<Effects, PrError> {
        self.authenticate(from, list.key)?;
        let kind = match &self.reservation {
            None => return Err(no_reservation_to_move().into()),
            Some(Held::ByOne(kind, holder)) if holder == from => *kind,
            Some(_) => return Err(PrError::Conflict),
        };
        if list.service_action_key == ReservationKey::NONE {
            return Err(Sense::invalid_parameter(at::SERVICE_ACTION_KEY, None).into());
        }
        let target_port = RelativePort(list.relative_port);
        if !world.target_ports.contains(&target_port) {
            return Err(Sense::invalid_parameter(at::MOVE_RELATIVE_PORT, None).into());
        }
        let initiator_port: Rc<[u8]> = list.initiator_port.encode().into();
        let names_a_port = !matches!(list.initiator_port, TransportId::IscsiDevice { .. });
        let speaks_alike = list.initiator_port.protocol() == protocol_of(&from.initiator_port);
        if !names_a_port || !speaks_alike || initiator_port == from.initiator_port {
            return Err(Sense::invalid_parameter(at::MOVE_TRANSPORT_ID, None).into());
        }
        let to = NexusName { initiator_port, target_port };
        if !self.is_registered(&to) {
            self.add_registrants(Vec::from([to.clone()]), list.service_action_key)?;
        }
        for registrant in &mut self.registrants {
            if registrant.nexus == to {
                registrant.key = list.service_action_key;
            }
        }
        self.reservation = Some(Held::ByOne(kind, to));
        if list.unregister {
            self.remove(|registrant| registrant.nexus == *from);
        }
        Ok(self.registered(list.persist))
    }

    fn replace_lost(
        &mut self,
        from: &NexusName,
        list: &BasicList,
        kind: ReservationType,
    ) -> Result<Effects, PrError> {
        if !self.lost {
            return Err(Sense::illegal(Asc::INVALID_RELEASE_OF_PERSISTENT_RESERVATION).into());
        }
        if list.key != ReservationKey::NONE {
            return Err(Sense::invalid_parameter(0, None).into());
        }
        if list.service_action_key == ReservationKey::NONE {
            return Err(Sense::invalid_parameter(at::SERVICE_ACTION_KEY, None).into());
        }
        *self = Self::new();
        self.registrants.push(Registrant { nexus: from.clone(), key: list.service_action_key });
        self.reservation = Some(Held::new(kind, from));
        self.persist = list.persist;
        Ok(Effects::default())
    }

    /// Checks that `from` is registered under `key`, which every service action but registration requires.
    fn authenticate(&self, from: &NexusName, key: ReservationKey) -> Result<(), PrError> {
        match self.registrant(from) {
            Some(registrant) if registrant.key == key => Ok(()),
            _ => Err(PrError::Conflict),
        }
    }

    fn is_registered(&self, nexus: &NexusName) -> bool {
        self.registrant(nexus).is_some()
    }

    /// Registers `nexuses`, none of which is registered; all of them or none.
    fn add_registrants(&mut self, mut nexuses: Vec<NexusName>, key: ReservationKey) -> Result<(), PrError> {
        nexuses.sort();
        nexuses.dedup();
        if self.registrants.len().saturating_add(nexuses.len()) > MAX_REGISTRANTS {
            return Err(Sense::illegal(Asc::INSUFFICIENT_REGISTRATION_RESOURCES).into());
        }
        self.registrants.extend(nexuses.into_iter().map(|nexus| Registrant { nexus, key }));
        Ok(())
    }

    /// Removes registrations, and the reservation if no holder remains. Returns the removed nexuses and the
    /// type of the reservation that ended.
    pub(super) fn remove(
        &mut self,
        is_gone: impl Fn(&Registrant) -> bool,
    ) -> (Vec<NexusName>, Option<ReservationType>) {
        let (gone, kept): (Vec<_>, Vec<_>) =
            core::mem::take(&mut self.registrants).into_iter().partition(is_gone);
        self.registrants = kept;
        let orphaned = match &self.reservation {
            Some(Held::ByOne(_, holder)) => !self.is_registered(holder),
            Some(Held::ByAll(_)) => self.registrants.is_empty(),
            None => false,
        };
        let released = if orphaned { self.reservation.take() } else { None };
        let gone = gone.into_iter().map(|registrant| registrant.nexus).collect();
        (gone, released.map(|held| held.kind()))
    }

    fn registered(&mut self, persist: bool) -> Effects {
        self.persist = persist;
        self.generation = self.generation.wrapping_add(1);
        Effects::default()
    }

    /// Returns a unit attention for every registrant except `from`.
    fn others(&self, from: &NexusName, asc: Asc) -> Vec<(NexusName, Asc)> {
        let others = self.registrants.iter().filter(|registrant| registrant.nexus != *from);
        others.map(|registrant| (registrant.nexus.clone(), asc)).collect()
    }

    /// Returns the initiator ports that SPEC_I_PT lists.
    fn listed_ports(
        &self,
        from: &NexusName,
        list: &BasicList,
        world: KnownPorts<'_>,
    ) -> Result<Vec<Rc<[u8]>>, PrError> {
        let mut ports = Vec::new();
        for id in list.initiator_ports.iter().flatten() {
            if id.protocol() != protocol_of(&from.initiator_port) {
                return Err(Sense::invalid_parameter(at::TRANSPORT_IDS, None).into());
            }
            if !matches!(id, TransportId::IscsiDevice { .. }) {
                ports.push(id.encode().into());
                continue;
            }
            let known = ports.len();
            for port in world.initiator_ports {
                if TransportId::from_bytes(port).is_ok_and(|port| id.covers(&port)) {
                    ports.push(Rc::clone(port));
                }
            }
            if ports.len() == known {
                return Err(Sense::invalid_parameter(at::TRANSPORT_IDS, None).into());
            }
        }
        ports.retain(|port| *port != from.initiator_port);
        Ok(ports)
    }
}

/// Returns the nexuses of `port` through the target port of `from`, or through all target ports.
fn through(port: &Rc<[u8]>, from: &NexusName, all: bool, world: KnownPorts<'_>) -> Vec<NexusName> {
    let nexus = |target_port| NexusName { initiator_port: Rc::clone(port), target_port };
    if all {
        let others = world.target_ports.iter().filter(|other| **other != from.target_port);
        core::iter::once(from.target_port).chain(others.copied()).map(nexus).collect()
    } else {
        Vec::from([nexus(from.target_port)])
    }
}

fn protocol_of(initiator_port: &[u8]) -> u8 {
    initiator_port.first().map_or(0, |first| first & 0x0f)
}

fn spec_i_pt_invalid() -> PrError {
    Sense::invalid_parameter(at::FLAGS, Some(at::SPEC_I_PT_BIT)).into()
}

/// Returns INVALID FIELD IN CDB, pointing at the service action.
const fn no_reservation_to_move() -> Sense {
    let pointer = SenseKeySpecific::FieldPointer { in_cdb: true, bit: Some(4), byte: 1 };
    Sense::illegal(Asc::INVALID_FIELD_IN_CDB).with_specific(pointer)
}
