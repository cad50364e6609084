//! The results of copy operations, in a document that one process hands over to the next.

use alloc::boxed::Box;
use alloc::rc::Rc;
use alloc::vec::Vec;
use core::cell::{Cell, RefCell};

use scsi::copy::ListId;
use scsi::copy::results::OperationStatus;
use scsi::copy::rod::RodToken;
use scsi::status::Status;
use serde::{Deserialize, Serialize};

use super::{MAX_HELD, Operation, OperationResult, Operations, Progress};
use crate::handover::hex::HexBytes;
use crate::handover::sense::SenseState;
use crate::handover::{IndexOf, NexusOf, RestoreError};

/// An operation that has ended and whose results are held.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct OperationState {
    nexus: u32,
    list_id: Option<u32>,
    service_action: u8,
    background: bool,
    segments: u16,
    bytes: u64,
    counter: u16,
    status: u8,
    sense: Option<Box<SenseState>>,
    operation: u8,
    token: Option<HexBytes>,
}

impl Operations {
    /// Returns the operations in a document: those that have ended and whose results are held.
    pub(crate) fn export(&self, index_of: IndexOf<'_>) -> Vec<OperationState> {
        let Self { list } = self;
        list.iter().filter_map(|operation| operation.export(index_of)).collect()
    }

    /// Returns the operations of a document.
    ///
    /// # Errors
    /// [`RestoreError`] for too many operations, and for a token of a wrong length.
    pub(crate) fn restore(state: &[OperationState], nexus_of: NexusOf<'_>) -> Result<Self, RestoreError> {
        if state.len() > MAX_HELD {
            return Err(RestoreError::TooMany("results of copies"));
        }
        let mut list = Vec::new();
        for state in state {
            list.extend(Operation::restore(state, nexus_of)?.map(Rc::new));
        }
        Ok(Self { list })
    }
}

impl Operation {
    fn export(&self, index_of: IndexOf<'_>) -> Option<OperationState> {
        // A unit with a running operation is not handed over; the task of an ended one is over.
        let Self { nexus, list_id, service_action, background, held, task: _, progress, end } = self;
        let Progress { segments, bytes, counter } = progress.get();
        let OperationResult { status: Status(status), sense, operation, token } =
            end.borrow().clone().filter(|_| *held)?;
        let OperationStatus(operation) = operation;
        Some(OperationState {
            nexus: index_of(*nexus)?,
            list_id: list_id.map(|ListId(id)| id),
            service_action: *service_action,
            background: *background,
            segments,
            bytes,
            counter,
            status,
            sense: sense.map(|sense| Box::new(SenseState::of(&sense))),
            operation,
            token: token.map(|token| HexBytes::of(token.bytes())),
        })
    }

    /// Returns the operation of a document; `None` if its nexus is gone.
    fn restore(state: &OperationState, nexus_of: NexusOf<'_>) -> Result<Option<Self>, RestoreError> {
        let OperationState {
            nexus,
            list_id,
            service_action,
            background,
            segments,
            bytes,
            counter,
            status,
            sense,
            operation,
            token,
        } = state;
        let token = token.as_ref().map(|token| restore_token(token)).transpose()?;
        let end = OperationResult {
            status: Status(*status),
            sense: sense.as_ref().map(|sense| sense.restore()),
            operation: OperationStatus(*operation),
            token,
        };
        Ok(nexus_of(*nexus).map(|nexus| Self {
            nexus,
            list_id: list_id.map(ListId),
            service_action: *service_action,
            background: *background,
            held: true,
            task: Cell::new(None),
            progress: Cell::new(Progress { segments: *segments, bytes: *bytes, counter: *counter }),
            end: RefCell::new(Some(end)),
        }))
    }
}

/// Returns the token of a document.
///
/// # Errors
/// [`RestoreError::Token`] for a wrong length.
pub(crate) fn restore_token(token: &HexBytes) -> Result<RodToken, RestoreError> {
    token.0.as_slice().try_into().map(RodToken).map_err(|_| RestoreError::Token)
}
