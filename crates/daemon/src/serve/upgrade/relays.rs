//! Between the relays of crate `tls` and what the document holds of them.

use std::os::fd::OwnedFd;

use tls::{DirectionState as Direction, MovingRelay, RecordState, RelayState as State};

use super::document::{DirectionState, RelayState};

/// Returns what the document holds of a relay of the portal at this index.
pub(in crate::serve) fn to_document(portal: usize, state: State) -> RelayState {
    let State {
        records,
        received,
        network_ended,
        is_closed,
        incoming,
        incoming_ended,
        outgoing,
        outgoing_ended,
        unsent,
    } = state;
    let RecordState { suite, send, receive, handshake, owes_key_update, fruitless } = records;
    let direction =
        |Direction { secret, sequence }| DirectionState { secret: super::document::Bytes(secret), sequence };
    RelayState {
        portal,
        suite,
        send: direction(send),
        receive: direction(receive),
        handshake: handshake.into(),
        owes_key_update,
        fruitless,
        received: received.into(),
        network_ended,
        is_closed,
        incoming: super::document::Bytes(incoming),
        incoming_ended,
        outgoing: super::document::Bytes(outgoing),
        outgoing_ended,
        unsent: unsent.into(),
    }
}

/// Returns the relay that a document holds, with its sockets. Crate `tls` checks the state.
pub(in crate::serve) fn from_document(state: RelayState, [network, local]: [OwnedFd; 2]) -> MovingRelay {
    let direction = |DirectionState { secret, sequence }| Direction { secret: secret.0, sequence };
    let records = RecordState {
        suite: state.suite,
        send: direction(state.send),
        receive: direction(state.receive),
        handshake: state.handshake.0.to_vec(),
        owes_key_update: state.owes_key_update,
        fruitless: state.fruitless,
    };
    let state = State {
        records,
        received: state.received.0.to_vec(),
        network_ended: state.network_ended,
        is_closed: state.is_closed,
        incoming: state.incoming.0,
        incoming_ended: state.incoming_ended,
        outgoing: state.outgoing.0,
        outgoing_ended: state.outgoing_ended,
        unsent: state.unsent.0.to_vec(),
    };
    MovingRelay { state, network, local }
}
