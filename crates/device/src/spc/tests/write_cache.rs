//! A write cache that is lost by a reload or a reset while it holds acknowledged writes.

use core::cell::Cell;

use store::api::Fault;
use store::powercut::{Power, PowerCut};

use super::*;
use crate::contract::UnitConfig;
use crate::testing::cdb_10;

/// A medium whose power can be cut and whose write cache can be switched.
struct Switched {
    inner: PowerCut,
    switches: Rc<Switches>,
    failed: VecDeque<Completion>,
}

pub(super) struct Switches {
    is_cached: Cell<bool>,
    pub(super) fails_flushes: Cell<bool>,
    /// Whether results are held back.
    is_silent: Cell<bool>,
    flushes: Cell<usize>,
}

impl Store for Switched {
    fn capabilities(&self) -> Capabilities {
        Capabilities { volatile_cache: self.switches.is_cached.get(), ..self.inner.capabilities() }
    }

    fn submit(&mut self, mut op: Op) {
        match &mut op.action {
            OpAction::Write { durability, .. } if !self.switches.is_cached.get() => {
                *durability = Durability::Stable;
            }
            OpAction::Flush => {
                self.switches.flushes.update(|count| count + 1);
                if self.switches.fails_flushes.get() {
                    let result = Err(Fault::Medium.into());
                    return self.failed.push_back(Completion { id: op.id, result });
                }
            }
            _ => {}
        }
        self.inner.submit(op);
    }

    fn poll(&mut self) -> Option<Completion> {
        if self.switches.is_silent.get() {
            return None;
        }
        self.failed.pop_front().or_else(|| self.inner.poll())
    }
}

pub(super) fn switched() -> (Rig, Power, Rc<Switches>) {
    let power = Power::new(BLOCKS * 512);
    let switches = Rc::new(Switches {
        is_cached: Cell::new(true),
        fails_flushes: Cell::new(false),
        is_silent: Cell::new(false),
        flushes: Cell::new(0),
    });
    let store = Switched { inner: power.store(), switches: Rc::clone(&switches), failed: VecDeque::new() };
    (Rig::with(config(), Box::new(store)), power, switches)
}

/// Reloads the configuration of the unit, after that of its medium.
pub(super) fn reload(rig: &mut Rig, switches: &Switches, write_cache: bool) {
    switches.is_cached.set(write_cache);
    rig.unit.reconfigure(Instant::ORIGIN, UnitConfig { write_cache, ..config() });
    rig.hears(A, Asc::MODE_PARAMETERS_CHANGED);
}

const SYNCHRONIZE_CACHE: [u8; 10] = [op::SYNCHRONIZE_CACHE_10, 0, 0, 0, 0, 0, 0, 0, 0, 0];

pub(super) fn synchronize(rig: &mut Rig) -> Reply {
    rig.run(A, &SYNCHRONIZE_CACHE, 0, &[])
}

#[test]
fn a_cache_that_a_reload_turned_off_is_still_written_once() {
    let (mut rig, power, switches) = switched();
    write(&mut rig, A).good();
    reload(&mut rig, &switches, false);
    assert_eq!(power.sectors_at_risk(), 1);
    synchronize(&mut rig).good();
    assert_eq!((power.sectors_at_risk(), switches.flushes.get()), (0, 1));
    write(&mut rig, A).good();
    synchronize(&mut rig).good();
    assert_eq!((power.sectors_at_risk(), switches.flushes.get()), (0, 1), "all is durable");
    reload(&mut rig, &switches, true);
    write(&mut rig, A).good();
    reload(&mut rig, &switches, false);
    // A read with FUA returns what is durable.
    rig.run(A, &cdb_10(op::READ_10, 8, 1, 1), 512, &[]).good();
    assert_eq!(power.sectors_at_risk(), 0);
}

#[test]
fn what_a_cache_that_was_turned_off_has_lost_is_not_forgotten() {
    let (mut rig, power, switches) = switched();
    write(&mut rig, A).good();
    reload(&mut rig, &switches, false);
    switches.fails_flushes.set(true);
    for _ in 0..2 {
        synchronize(&mut rig).check(SenseKey::HARDWARE_ERROR, Asc::INTERNAL_TARGET_FAILURE);
    }
    switches.fails_flushes.set(false);
    // The flush succeeds now, but the system may have dropped what the one before it could not write.
    for _ in 0..2 {
        synchronize(&mut rig).check(SenseKey::HARDWARE_ERROR, Asc::INTERNAL_TARGET_FAILURE);
    }
    assert_eq!(power.sectors_at_risk(), 0);
}

#[test]
fn a_write_under_way_when_its_cache_is_turned_off_is_written_by_the_next_flush() {
    let (mut rig, power, switches) = switched();
    synchronize(&mut rig).good();
    write(&mut rig, A).good();
    switches.is_silent.set(true);
    let key = rig.start(A, &WRITE, 0, 512);
    let Some(UnitEvent::FetchDataOut { .. }) = rig.event_of(key) else { panic!("no fetch") };
    rig.send(key, &[1; 512], 0, 512);
    switches.is_cached.set(false);
    rig.unit.reconfigure(Instant::ORIGIN, UnitConfig { write_cache: false, ..config() });
    rig.hears(A, Asc::MODE_PARAMETERS_CHANGED);
    // This flush begins before the second write is acknowledged, so it need not cover it.
    let early = rig.start(A, &SYNCHRONIZE_CACHE, 0, 0);
    switches.is_silent.set(false);
    rig.ready();
    rig.finish(key, &[]).good();
    rig.finish(early, &[]).good();
    assert_eq!(switches.flushes.get(), 2);
    for _ in 0..2 {
        synchronize(&mut rig).good();
        assert_eq!(switches.flushes.get(), 3);
    }
    assert_eq!(power.sectors_at_risk(), 0);
}

#[test]
fn what_an_earlier_process_acknowledged_is_written_without_a_cache_too() {
    let (_, power, switches) = switched();
    switches.is_cached.set(false);
    let store = Switched { inner: power.store(), switches: Rc::clone(&switches), failed: VecDeque::new() };
    let mut rig = Rig::with(UnitConfig { write_cache: false, ..config() }, Box::new(store));
    for _ in 0..2 {
        synchronize(&mut rig).good();
        assert_eq!(switches.flushes.get(), 1);
    }
}
