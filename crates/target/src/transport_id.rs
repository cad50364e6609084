//! Identifiers of sessions, tasks and task management requests of all transports.
//!
//! In `device` an I_T nexus and a task are numbers. Each transport numbers its own densely from zero. This
//! module puts the number of the transport into the top bits of the index, so that the numbers of different
//! transports differ.

use base::arena::Key;
use device::contract::{NexusId, TaskKey, TmfKey};
use transport::target::{SessionId, TaskRef, TmfRef};

/// The number of a transport of a target, below [`TRANSPORTS_MAX`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TransportId(u8);

/// How many transports a target can have.
pub const TRANSPORTS_MAX: usize = 1 << TRANSPORT_BITS;

const TRANSPORT_BITS: u32 = 4;

/// The transport's number is in the index from this bit on. No index reaches it: that many sessions or tasks
/// would need terabytes.
const SHIFT: u32 = u32::BITS - TRANSPORT_BITS;

const INDEX: u32 = (1 << SHIFT) - 1;

impl TransportId {
    /// Returns the transport with this number, of which the lowest bits count.
    pub const fn new(number: u8) -> Self {
        Self(number & 0x0f)
    }

    /// Returns the number.
    pub fn number(self) -> usize {
        self.0.into()
    }

    const fn of(index: u32) -> Self {
        let [top, ..] = index.to_be_bytes();
        Self(top >> 4)
    }

    const fn tag(self, index: u32) -> u32 {
        index | (self.0 as u32) << SHIFT
    }
}

/// A session of a transport.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SessionRef {
    pub(crate) transport: TransportId,
    pub(crate) session: SessionId,
}

/// Returns the number of the I_T nexus of a session.
pub const fn nexus_of(transport: TransportId, session: SessionId) -> NexusId {
    NexusId(transport.tag(session.index()))
}

/// Returns the transport of an I_T nexus, and the index of its session there.
pub(crate) fn nexus_slot(nexus: NexusId) -> (TransportId, usize) {
    (TransportId::of(nexus.0), usize::try_from(nexus.0 & INDEX).unwrap_or(usize::MAX))
}

pub(crate) const fn task_key(transport: TransportId, task: TaskRef) -> TaskKey {
    TaskKey(to_bits(transport, task.0))
}

pub(crate) fn task_of(key: TaskKey) -> (TransportId, TaskRef) {
    let (transport, key) = of_bits(key.0);
    (transport, TaskRef(key))
}

pub(crate) const fn tmf_key(transport: TransportId, tmf: TmfRef) -> TmfKey {
    TmfKey(to_bits(transport, tmf.0))
}

pub(crate) fn tmf_of(key: TmfKey) -> (TransportId, TmfRef) {
    let (transport, key) = of_bits(key.0);
    (transport, TmfRef(key))
}

const fn to_bits(transport: TransportId, key: Key) -> u64 {
    (key.generation as u64) << 32 | transport.tag(key.index) as u64
}

fn of_bits(bits: u64) -> (TransportId, Key) {
    let [a, b, c, d, e, f, g, h] = bits.to_be_bytes();
    let index = u32::from_be_bytes([e, f, g, h]);
    let key = Key { index: index & INDEX, generation: u32::from_be_bytes([a, b, c, d]) };
    (TransportId::of(index), key)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_all_transports_survive_the_way_through_a_unit_and_never_meet() {
        let ids = || (0..16).map(TransportId::new);
        for (index, generation) in [(0, 0), (7, 3), (INDEX, 0x8000_0001)] {
            let key = Key { index, generation };
            for id in ids() {
                assert_eq!(task_of(task_key(id, TaskRef(key))), (id, TaskRef(key)));
                assert_eq!(tmf_of(tmf_key(id, TmfRef(key))), (id, TmfRef(key)));
                assert_eq!(nexus_slot(nexus_of(id, SessionId(key))), (id, usize::try_from(index).unwrap()));
                for other in ids().filter(|other| *other != id) {
                    assert_ne!(task_key(id, TaskRef(key)), task_key(other, TaskRef(key)));
                    assert_ne!(nexus_of(id, SessionId(key)), nexus_of(other, SessionId(key)));
                }
            }
        }
    }
}
