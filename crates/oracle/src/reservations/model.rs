//! Models the registrations and the reservation of one logical unit as SPC-4 §5.13 describes them: a value,
//! and the result of each service action.
//!
//! The model is written from the standard and not from our device server, so that the two do not have the
//! same mistakes.

use alloc::vec::Vec;

/// A nexus, as the caller numbers it: below 32.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Nexus(pub u8);

/// Nexuses, one bit for each.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Nexuses(u32);

impl Nexuses {
    /// Returns whether `nexus` is in the set.
    pub const fn has(self, nexus: Nexus) -> bool {
        self.0 >> (nexus.0 & 31) & 1 == 1
    }

    /// Returns whether the set is empty.
    pub const fn is_empty(self) -> bool {
        self.0 == 0
    }

    /// Returns the set with `nexus` in it.
    pub const fn with(self, nexus: Nexus) -> Self {
        Self(self.0 | 1 << (nexus.0 & 31))
    }

    pub(crate) const fn and(self, other: Self) -> Self {
        Self(self.0 & other.0)
    }
}

/// The unit attentions of reservations that a command establishes, each with the nexuses that receive it
/// (SPC-4 §5.13).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Attentions {
    /// REGISTRATIONS PREEMPTED.
    pub registrations_preempted: Nexuses,
    /// RESERVATIONS PREEMPTED.
    pub reservations_preempted: Nexuses,
    /// RESERVATIONS RELEASED.
    pub reservations_released: Nexuses,
}

impl Attentions {
    pub(crate) const fn and(self, other: Self) -> Self {
        Self {
            registrations_preempted: self.registrations_preempted.and(other.registrations_preempted),
            reservations_preempted: self.reservations_preempted.and(other.reservations_preempted),
            reservations_released: self.reservations_released.and(other.reservations_released),
        }
    }
}

/// The type of a persistent reservation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ReservationType {
    /// EXCLUSIVE ACCESS, which also stops reads of other nexuses; otherwise WRITE EXCLUSIVE.
    pub exclusive_access: bool,
    /// The nexuses that have the same access as the holder.
    pub admits: Admits,
}

/// The nexuses that have the same access as the holder of a reservation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Admits {
    /// No other nexus.
    Holder,
    /// Every registrant (REGISTRANTS ONLY).
    Registrants,
    /// Every registrant, each of which is a holder (ALL REGISTRANTS).
    Holders,
}

impl ReservationType {
    /// Every type with its code in the TYPE field.
    pub const ALL: [(u8, Self); 6] = [
        (1, Self { exclusive_access: false, admits: Admits::Holder }),
        (3, Self { exclusive_access: true, admits: Admits::Holder }),
        (5, Self { exclusive_access: false, admits: Admits::Registrants }),
        (6, Self { exclusive_access: true, admits: Admits::Registrants }),
        (7, Self { exclusive_access: false, admits: Admits::Holders }),
        (8, Self { exclusive_access: true, admits: Admits::Holders }),
    ];

    /// Returns the type with this code.
    pub fn from_code(code: u8) -> Option<Self> {
        Self::ALL.into_iter().find(|(own, _)| *own == code).map(|(_, kind)| kind)
    }
}

/// The access of a command that a reservation may stop.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// The command reads the medium.
    Reads,
    /// The command changes the medium, or makes changes durable.
    Writes,
    /// PERSISTENT RESERVE IN: only a reservation by RESERVE(6) stops it.
    Asks,
}

/// A command that changes registrations or reservations.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum ReserveCommand {
    /// REGISTER, or REGISTER AND IGNORE EXISTING KEY.
    Register {
        /// RESERVATION KEY.
        key: u64,
        /// SERVICE ACTION RESERVATION KEY.
        sa_key: u64,
        /// APTPL: registrations and reservation survive a loss of power.
        aptpl: bool,
        /// REGISTER AND IGNORE EXISTING KEY: the existing key is not checked.
        ignore_existing_key: bool,
    },
    /// RESERVE.
    Reserve(u64, ReservationType),
    /// RELEASE.
    Release(u64, ReservationType),
    /// CLEAR.
    Clear(u64),
    /// PREEMPT, or PREEMPT AND ABORT.
    Preempt {
        /// RESERVATION KEY.
        key: u64,
        /// SERVICE ACTION RESERVATION KEY.
        sa_key: u64,
        /// The type of the new reservation.
        kind: ReservationType,
    },
    /// RESERVE(6) of SPC-2.
    ReserveUnit,
    /// RELEASE(6) of SPC-2.
    ReleaseUnit,
}

/// The outcome of a command.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum ReserveOutcome {
    /// GOOD.
    Good,
    /// RESERVATION CONFLICT.
    Conflict,
    /// CHECK CONDITION with ILLEGAL REQUEST.
    Illegal,
}

/// The registrations and the reservation.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct State {
    /// The registered nexuses with their keys, sorted by nexus.
    registered: Vec<(Nexus, u64)>,
    held: Option<(ReservationType, Nexus)>,
    generation: u32,
    persist: bool,
    /// The nexus that reserved the unit with RESERVE(6).
    reserved: Option<Nexus>,
}

impl State {
    /// Returns the key with which a nexus is registered.
    pub fn key_of(&self, nexus: Nexus) -> Option<u64> {
        self.registered.iter().find(|(other, _)| *other == nexus).map(|(_, key)| *key)
    }

    /// Returns the keys that are registered, in order.
    pub fn keys(&self) -> Vec<u64> {
        let mut keys: Vec<u64> = self.registered.iter().map(|(_, key)| *key).collect();
        keys.sort_unstable();
        keys
    }

    /// Returns PRGENERATION.
    pub const fn generation(&self) -> u32 {
        self.generation
    }

    /// Returns the result of READ RESERVATION: the key of the holder, or zero where all registrants are
    /// holders; and the type.
    pub fn reservation(&self) -> Option<(u64, ReservationType)> {
        let (kind, holder) = self.held?;
        let key = if kind.admits == Admits::Holders { 0 } else { self.key_of(holder)? };
        Some((key, kind))
    }

    /// Returns whether there is a reservation by RESERVE(6).
    pub(crate) const fn is_reserved(&self) -> bool {
        self.reserved.is_some()
    }

    /// Returns the state without the reservation by RESERVE(6), which the loss of a nexus or a reset may end
    /// at any time.
    pub(crate) fn released(&self) -> Self {
        Self { reserved: None, ..self.clone() }
    }

    /// Returns the state after a loss of power.
    pub(crate) fn after_power_loss(&self) -> Self {
        if !self.persist {
            return Self::default();
        }
        Self { generation: 0, reserved: None, ..self.clone() }
    }

    /// Returns whether a command of `nexus` must end with RESERVATION CONFLICT.
    pub fn conflicts_with(&self, nexus: Nexus, access: Access) -> bool {
        if self.reserved.is_some_and(|holder| holder != nexus || access == Access::Asks) {
            return true;
        }
        let Some((kind, _)) = self.held else { return false };
        match access {
            Access::Asks => false,
            Access::Reads => kind.exclusive_access && !self.is_admitted(nexus),
            Access::Writes => !self.is_admitted(nexus),
        }
    }

    /// Returns the nexuses in `some` whose writes are stopped.
    pub(crate) fn stopped(&self, some: Nexuses) -> Nexuses {
        let all = (0..32)
            .map(Nexus)
            .filter(|nexus| some.has(*nexus) && self.conflicts_with(*nexus, Access::Writes));
        all.fold(Nexuses::default(), Nexuses::with)
    }

    fn is_admitted(&self, nexus: Nexus) -> bool {
        match self.held {
            None => true,
            Some((ReservationType { admits: Admits::Holder, .. }, holder)) => holder == nexus,
            Some(_) => self.key_of(nexus).is_some(),
        }
    }

    fn is_holder(&self, nexus: Nexus) -> bool {
        match self.held {
            None => false,
            Some((ReservationType { admits: Admits::Holders, .. }, _)) => self.key_of(nexus).is_some(),
            Some((_, holder)) => holder == nexus,
        }
    }

    /// Returns the state after a command, its outcome, and the nexuses that it preempts.
    pub fn after(&self, nexus: Nexus, service: ReserveCommand) -> (Self, ReserveOutcome, Nexuses) {
        let mut next = self.clone();
        let mut preempted = Nexuses::default();
        let outcome = match service {
            ReserveCommand::ReserveUnit | ReserveCommand::ReleaseUnit => next.reserve_unit(nexus, service),
            // SPC-2: the conflict applies to every nexus, including the one that reserved the unit.
            _ if self.is_reserved() => ReserveOutcome::Conflict,
            ReserveCommand::Register { key, sa_key: new, aptpl: persist, ignore_existing_key: ignores } => {
                next.register(nexus, key, new, persist, ignores)
            }
            _ if self.key_of(nexus) != Some(service.key()) => ReserveOutcome::Conflict,
            ReserveCommand::Reserve(_, kind) => next.reserve(nexus, kind),
            ReserveCommand::Release(_, kind) => next.release(nexus, kind),
            ReserveCommand::Clear(_) => {
                (next.registered, next.held) = (Vec::new(), None);
                next.generation = next.generation.wrapping_add(1);
                ReserveOutcome::Good
            }
            ReserveCommand::Preempt { sa_key: victims, kind, .. } => {
                next.preempt(nexus, victims, kind, &mut preempted)
            }
        };
        if outcome == ReserveOutcome::Good {
            (next, outcome, preempted)
        } else {
            (self.clone(), outcome, preempted)
        }
    }

    /// Returns the unit attentions of a command that ended with GOOD and led to the state `next`. The nexus
    /// that sent the command receives none.
    pub(crate) fn attentions(
        &self,
        next: &Self,
        nexus: Nexus,
        service: ReserveCommand,
        preempted: Nexuses,
    ) -> Attentions {
        let others = |state: &Self, is_told: &dyn Fn(Nexus) -> bool| {
            let told = state.registered.iter().map(|(other, _)| *other);
            let told = told.filter(|other| *other != nexus && is_told(*other));
            told.fold(Nexuses::default(), Nexuses::with)
        };
        let kind = |state: &Self| state.held.map(|(kind, _)| kind);
        let (old, new) = (kind(self), kind(next));
        let admits_registrants = old.is_some_and(|kind| kind.admits != Admits::Holder);
        let mut attentions = Attentions::default();
        match service {
            ReserveCommand::Clear(_) => attentions.reservations_preempted = others(self, &|_| true),
            ReserveCommand::Preempt { .. } => {
                attentions.registrations_preempted = others(self, &|other| preempted.has(other));
                if old != new {
                    attentions.reservations_released = others(next, &|_| true);
                }
            }
            ReserveCommand::Register { .. } | ReserveCommand::Release(..)
                if admits_registrants && new.is_none() =>
            {
                attentions.reservations_released = others(next, &|_| true);
            }
            _ => {}
        }
        attentions
    }

    /// Executes RESERVE(6) or RELEASE(6), with the exceptions of compatible reservation handling
    /// (SPC-4 §5.13.3).
    fn reserve_unit(&mut self, nexus: Nexus, service: ReserveCommand) -> ReserveOutcome {
        if !self.registered.is_empty() {
            let admitted = self.is_holder(nexus)
                || self.held.is_some_and(|(kind, _)| kind.admits != Admits::Holder)
                    && self.key_of(nexus).is_some();
            return if admitted { ReserveOutcome::Good } else { ReserveOutcome::Conflict };
        }
        match service {
            ReserveCommand::ReserveUnit if self.reserved.is_some_and(|holder| holder != nexus) => {
                return ReserveOutcome::Conflict;
            }
            ReserveCommand::ReserveUnit => self.reserved = Some(nexus),
            _ if self.reserved == Some(nexus) => self.reserved = None,
            _ => {}
        }
        ReserveOutcome::Good
    }

    fn register(&mut self, nexus: Nexus, key: u64, new: u64, persist: bool, ignores: bool) -> ReserveOutcome {
        let own = self.key_of(nexus);
        if !ignores && own.unwrap_or(0) != key {
            return ReserveOutcome::Conflict;
        }
        if own.is_none() && new == 0 {
            return ReserveOutcome::Good;
        }
        self.registered.retain(|(other, _)| *other != nexus);
        if new == 0 {
            self.forget_holder();
        } else {
            self.registered.push((nexus, new));
            self.registered.sort_unstable();
        }
        self.persist = persist;
        self.generation = self.generation.wrapping_add(1);
        ReserveOutcome::Good
    }

    fn reserve(&mut self, nexus: Nexus, kind: ReservationType) -> ReserveOutcome {
        match self.held {
            None => self.held = Some((kind, nexus)),
            Some((held, _)) if held == kind && self.is_holder(nexus) => {}
            Some(_) => return ReserveOutcome::Conflict,
        }
        ReserveOutcome::Good
    }

    fn release(&mut self, nexus: Nexus, kind: ReservationType) -> ReserveOutcome {
        if !self.is_holder(nexus) {
            return ReserveOutcome::Good;
        }
        if self.held.is_some_and(|(held, _)| held != kind) {
            return ReserveOutcome::Illegal;
        }
        self.held = None;
        ReserveOutcome::Good
    }

    fn preempt(
        &mut self,
        nexus: Nexus,
        victims: u64,
        kind: ReservationType,
        preempted: &mut Nexuses,
    ) -> ReserveOutcome {
        let all = self.held.is_some_and(|(held, _)| held.admits == Admits::Holders);
        if victims == 0 && !all {
            return ReserveOutcome::Illegal;
        }
        let takes = match self.held {
            None => false,
            Some(_) if all => victims == 0,
            Some((_, holder)) => self.key_of(holder) == Some(victims),
        };
        let is_victim = |key: u64| victims == 0 || key == victims;
        let hit = self.registered.iter().filter(|(_, key)| is_victim(*key));
        *preempted = hit.fold(Nexuses::default(), |some, (other, _)| some.with(*other));
        if preempted.is_empty() {
            return ReserveOutcome::Conflict;
        }
        self.registered.retain(|(other, key)| !is_victim(*key) || (takes && *other == nexus));
        if takes {
            self.held = Some((kind, nexus));
        } else {
            self.forget_holder();
        }
        self.generation = self.generation.wrapping_add(1);
        ReserveOutcome::Good
    }

    /// Ends the reservation if no nexus that holds it is registered any more.
    fn forget_holder(&mut self) {
        let lives = match self.held {
            Some((ReservationType { admits: Admits::Holders, .. }, _)) => !self.registered.is_empty(),
            Some((_, holder)) => self.key_of(holder).is_some(),
            None => true,
        };
        if !lives {
            self.held = None;
        }
    }
}

impl ReserveCommand {
    /// Returns the RESERVATION KEY.
    const fn key(&self) -> u64 {
        match self {
            Self::Register { key, .. }
            | Self::Reserve(key, _)
            | Self::Release(key, _)
            | Self::Clear(key)
            | Self::Preempt { key, .. } => *key,
            Self::ReserveUnit | Self::ReleaseUnit => 0,
        }
    }
}
