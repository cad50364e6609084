//! Commands that query and change reservations, most of them with the correct key.

use base::rng::Rng;
use oracle::reservations::{Nexus, ReservationType, State};

use crate::oracle_adapter::OracleAdapter;
use crate::scenario::pick;
use crate::transport::{Attribute, ScsiCommand};

/// The service actions of PERSISTENT RESERVE OUT.
mod action {
    pub(super) const REGISTER: u8 = 0;
    pub(super) const RESERVE: u8 = 1;
    pub(super) const RELEASE: u8 = 2;
    pub(super) const CLEAR: u8 = 3;
    pub(super) const PREEMPT: u8 = 4;
    pub(super) const PREEMPT_AND_ABORT: u8 = 5;
    pub(super) const REGISTER_AND_IGNORE: u8 = 6;
}

/// Makes the next command of an initiator that queries or changes the reservations of a unit. With
/// `old_ones`, it may be RESERVE(6) or RELEASE(6).
pub fn next(
    rng: &mut Rng,
    oracle: &OracleAdapter,
    initiator: usize,
    unit: u16,
    old_ones: bool,
) -> ScsiCommand {
    let judge = oracle.reservations();
    if !judge.may_begin(unit) || rng.chance(1, 4) {
        let asks = u8::try_from(rng.below(2)).unwrap();
        return order(unit, vec![0x5e, asks, 0, 0, 0, 0, 0, 1, 0, 0], Vec::new(), 256);
    }
    if old_ones && rng.chance(1, 3) {
        return order(unit, vec![*pick(rng, &[0x16, 0x17, 0x17]), 0, 0, 0, 0, 0], Vec::new(), 0);
    }
    let state = judge.likely(unit);
    let own = state.key_of(nexus(initiator));
    let fresh = 0x0101 * (initiator as u64 + 1) + (rng.below(2) << 32);
    // Some commands carry a wrong key.
    let key = if rng.chance(1, 12) { fresh ^ 1 } else { own.unwrap_or(0) };
    let held = state.reservation();
    let kind = *pick(rng, &ReservationType::ALL.map(|(code, _)| code));
    let held_kind = held.and_then(|(_, kind)| ReservationType::ALL.iter().find(|(_, own)| *own == kind));
    let held_kind = held_kind.map_or(kind, |(code, _)| *code);
    let (action, code, second) = match (own, rng.below(12)) {
        (None, 0..9) => (*pick(rng, &[action::REGISTER, action::REGISTER_AND_IGNORE]), 0, fresh),
        (Some(_), 0) => (action::REGISTER, 0, *pick(rng, &[0, fresh])),
        (_, 1 | 2) if held.is_none() => (action::RESERVE, kind, 0),
        (_, 1..=3) => (action::RELEASE, if rng.chance(1, 6) { kind } else { held_kind }, 0),
        (_, 4) => (action::CLEAR, 0, 0),
        (_, 5 | 6) => (action::PREEMPT, kind, victim(rng, &state, initiator)),
        (_, 7..10) => (action::PREEMPT_AND_ABORT, kind, victim(rng, &state, initiator)),
        _ => (action::RESERVE, kind, 0),
    };
    let mut list = vec![0; 24];
    list[..8].copy_from_slice(&key.to_be_bytes());
    list[8..16].copy_from_slice(&second.to_be_bytes());
    let registers = matches!(action, action::REGISTER | action::REGISTER_AND_IGNORE);
    list[20] = u8::from(registers && rng.chance(1, 3));
    order(unit, vec![0x5f, action, code, 0, 0, 0, 0, 0, 24, 0], list, 0)
}

/// Chooses the key to preempt: the holder's, or that of any registrant but the sender.
fn victim(rng: &mut Rng, state: &State, initiator: usize) -> u64 {
    let own = state.key_of(nexus(initiator));
    match state.reservation() {
        Some((key, _)) if rng.chance(1, 2) => key,
        _ => {
            let mut keys = state.keys();
            keys.retain(|key| Some(*key) != own);
            if keys.is_empty() { own.unwrap_or(7) } else { *pick(rng, &keys) }
        }
    }
}

fn nexus(initiator: usize) -> Nexus {
    Nexus(u8::try_from(initiator).unwrap())
}

fn order(unit: u16, cdb: Vec<u8>, data_out: Vec<u8>, data_in_len: u32) -> ScsiCommand {
    let attribute = Attribute::Simple;
    ScsiCommand { unit, cdb, data_out, data_in_len, attribute, immediate: false, replay: false }
}
