//! `device::contract` as the device suite sees it here: with the events that reach an initiator over a
//! transport, or the owner of the target.

use base::buffer::DataList;
use scsi::status::Status;

pub(crate) use device::contract::*;

/// An event, with the meaning of the event of the same name of [`device::contract::UnitEvent`].
#[derive(Debug)]
pub(crate) enum UnitEvent {
    FetchDataOut { key: TaskKey, offset: u32, len: u32 },
    DataIn { key: TaskKey, offset: u32, data: DataList },
    CommandComplete { key: TaskKey, status: Status, sense: Option<SenseBytes>, transferable: u64 },
    TmfComplete { key: TmfKey, outcome: TmfOutcome },
    Aborted { key: TaskKey },
    SaveState { ticket: u64, state: Vec<u8> },
}

/// Sense data, as the transport delivered it.
#[derive(Debug)]
pub(crate) struct SenseBytes(pub(crate) Vec<u8>);

impl SenseBytes {
    pub(crate) fn bytes(&self) -> &[u8] {
        &self.0
    }
}
