//! The session state machine against the target's engine, and against a target that a test scripts.

mod asked;
mod clauses;
mod hostile;
mod identity_check;
mod leave;
mod lost;
mod pair;
mod passwords;
mod progress;
mod reassignment;
mod recovery;
mod resegmentation;
mod scripted_target;
mod sealed;
mod text;
mod together;

use super::contract::Slot;
use super::session::Session;
use crate::aead::RecordKeys;
use crate::negotiate::{ConnectionParameters, Digest};

impl Session {
    /// Gives a connection that has just logged in the keys of an AEAD digest, as if its login had ended with
    /// them.
    pub(super) fn set_record_keys(&mut self, slot: Slot, keys: RecordKeys) {
        let (pool, level) = (self.pool.clone(), self.level());
        let Some(connection) = self.connection_mut(slot) else { return };
        let plain = ConnectionParameters {
            header_digest: Digest::None,
            data_digest: Digest::None,
            ..connection.parameters
        };
        connection.enter_full_feature(plain, level, Some(keys), &pool);
        if let (Some(receiver), Some(decryptor)) = (&mut connection.receiver, connection.decryptor.take()) {
            receiver.set_framing(connection.framing);
            receiver.set_decryptor(decryptor);
        }
    }
}
