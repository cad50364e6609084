//! Reads the properties of a unit again when they may have changed: after a unit attention that says so, and
//! in a new session, in which such a unit attention may have been lost. At most one refresh of a disk is
//! under way, however many unit attentions there are.
//!
//! Until the unit has reported its caching mode page again, its cache counts as volatile.

use std::sync::{Arc, MutexGuard, PoisonError, Weak};

use scsi::block::{self, Capacity};
use scsi::cdb::Cdb;
use scsi::mode::HeaderFormat;
use scsi::sense::Asc;

use super::{Geometry, Inner, PAGES, body, learn, losses};
use crate::command::{Command, CommandError, Reply};
use crate::sessions::Event;
use crate::unit::{CACHING_LEN, INQUIRY_LEN, caching, caching_question, inquiry, is_illegal};

/// Calls the watcher of a disk with the events of its session from now on.
pub(super) fn follow(inner: &Arc<Inner>) {
    let (watcher, lun) = (Arc::downgrade(inner), inner.lun);
    inner.session.watch(move |news| {
        let Some(inner) = watcher.upgrade() else { return false };
        match news {
            Event::UnitAttention { lun: of, asc } if *of == lun && may_differ(*asc) => refresh(&inner),
            Event::Up(_) => refresh(&inner),
            // A refresh that began before has been refused.
            Event::DeviceConfirmed { lun: of } if *of == lun => refresh(&inner),
            Event::DeferredError { lun: of, sense } if *of == lun => {
                losses::note(&inner, *sense);
            }
            _ => {}
        }
        true
    });
}

/// Returns whether properties of a unit may have changed when it reports this unit attention.
fn may_differ(asc: Asc) -> bool {
    // 29h: power on and resets, after which mode pages have their saved or default values.
    asc.0 >> 8 == 0x29 || CHANGED.contains(&asc)
}

/// Unit attentions after which capacity, mode pages or vital product data may have changed.
const CHANGED: [Asc; 7] = [
    Asc::MEDIUM_MAY_HAVE_CHANGED,
    PARAMETERS_CHANGED,
    Asc::MODE_PARAMETERS_CHANGED,
    Asc::CAPACITY_DATA_HAS_CHANGED,
    MICROCODE_HAS_BEEN_CHANGED,
    Asc::INQUIRY_DATA_HAS_CHANGED,
    Asc::DEVICE_IDENTIFIER_CHANGED,
];
const PARAMETERS_CHANGED: Asc = Asc(0x2a00);
const MICROCODE_HAS_BEEN_CHANGED: Asc = Asc(0x3f01);

/// Whether the properties of a disk are being read again.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum RefreshState {
    #[default]
    Idle,
    UnderWay,
    /// The properties may have changed since the refresh began, so that it begins again.
    Stale,
}

impl RefreshState {
    /// Records that the properties may have changed. Returns whether a refresh has to be started.
    fn want(&mut self) -> bool {
        let is_idle = *self == Self::Idle;
        *self = if is_idle { Self::UnderWay } else { Self::Stale };
        is_idle
    }

    /// Returns whether the refresh under way has to begin again.
    fn take_stale(&mut self) -> bool {
        std::mem::replace(self, Self::UnderWay) == Self::Stale
    }
}

impl Inner {
    fn refresh_state(&self) -> MutexGuard<'_, RefreshState> {
        self.refresh.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Starts to read the properties again, or lets the refresh that is under way begin again.
fn refresh(inner: &Arc<Inner>) {
    let mut geometry = inner.geometry.lock().unwrap_or_else(PoisonError::into_inner);
    geometry.doubt_cache();
    let starts = inner.refresh_state().want();
    drop(geometry);
    if starts {
        Refresh(Arc::downgrade(inner)).start(inner);
    }
}

/// The refresh that is under way. It keeps neither the disk nor the session.
struct Refresh(Weak<Inner>);

impl Drop for Refresh {
    fn drop(&mut self) {
        if let Some(inner) = self.0.upgrade() {
            *inner.refresh_state() = RefreshState::Idle;
        }
    }
}

impl Refresh {
    fn start(self, inner: &Inner) {
        let long = inner.geometry().long_commands;
        let (cdb, len) = if long {
            (block::read_capacity_16(Capacity::LEN_16), Capacity::LEN_16)
        } else {
            (block::read_capacity_10(), 8)
        };
        self.ask(inner, cdb, len, move |refresh, inner, result| {
            // If the capacity cannot be read now, commands beyond the end fail with an error of their own.
            let Ok(reply) = result else { return };
            let capacity = if long {
                Capacity::parse_16(reply.bytes()).ok()
            } else {
                Capacity::parse_10(reply.bytes()).ok().flatten()
            };
            let Some(capacity) = capacity else { return };
            inner.geometry.lock().unwrap_or_else(PoisonError::into_inner).resize(capacity);
            refresh.read_page(inner, Geometry::new(capacity, long), 0);
        });
    }

    /// Sends a command, and continues with its result, unless the disk is gone or its properties may have
    /// changed again.
    fn ask(
        self,
        inner: &Inner,
        cdb: Cdb,
        len: u32,
        then: impl FnOnce(Self, &Arc<Inner>, Result<Reply, CommandError>) + Send + 'static,
    ) {
        let command = Command::new(inner.lun, cdb).reading(len).repeatable();
        inner.session.submit(command, move |result| {
            let Some(inner) = self.0.upgrade() else { return };
            let is_stale = inner.refresh_state().take_stale();
            if is_stale {
                self.start(&inner);
            } else {
                then(self, &inner, result);
            }
        });
    }

    /// Reads the pages of vital product data, beginning with that at `index` of [`PAGES`].
    fn read_page(self, inner: &Arc<Inner>, mut geometry: Geometry, index: usize) {
        let Some(&code) = PAGES.get(index) else {
            return self.read_caching(inner, geometry, HeaderFormat::Six);
        };
        if !inner.listed.contains(&code) {
            return self.read_page(inner, geometry, index + 1);
        }
        let (cdb, len) = (inquiry(Some(code), INQUIRY_LEN), INQUIRY_LEN.into());
        self.ask(inner, cdb, len, move |refresh, inner, result| {
            match result {
                Ok(reply) => learn(&mut geometry, code, body(reply.bytes()).unwrap_or_default()),
                Err(why) if is_illegal(&why) || why == CommandError::NoSense => {}
                Err(_) => return,
            }
            refresh.read_page(inner, geometry, index + 1);
        });
    }

    fn read_caching(self, inner: &Arc<Inner>, mut geometry: Geometry, form: HeaderFormat) {
        self.ask(inner, caching_question(form), CACHING_LEN.into(), move |refresh, inner, result| {
            match result {
                Ok(reply) => {
                    if let Some(caching) = caching(form, reply.bytes()) {
                        geometry.cache(caching);
                    }
                }
                Err(why) if is_illegal(&why) && form == HeaderFormat::Six => {
                    return refresh.read_caching(inner, geometry, HeaderFormat::Ten);
                }
                Err(why) if is_illegal(&why) => {}
                Err(_) => return,
            }
            let mut present = inner.geometry.lock().unwrap_or_else(PoisonError::into_inner);
            // The properties become stale under this lock.
            let is_stale = inner.refresh_state().take_stale();
            if is_stale {
                drop(present);
                return refresh.start(inner);
            }
            if geometry.block_size() == present.block_size() {
                *present = geometry;
            }
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_refresh_is_under_way_at_a_time_and_none_is_forgotten() {
        let mut state = RefreshState::default();
        assert_eq!([state.want(), state.want(), state.want()], [true, false, false]);
        assert_eq!([state.take_stale(), state.take_stale()], [true, false]);
        assert!(!state.want() && state.take_stale(), "a change during the second one");
    }
}
