//! Keys of an AEAD digest that do not come from a login: for tests, and for the simulator.

use super::contract::Slot;
use super::session::Session;
use crate::aead::RecordKeys;
use crate::negotiate::{ConnectionParameters, Digest};

impl Session {
    /// Gives a connection that has just logged in the keys of an AEAD digest, as if its login had ended with
    /// them. The last Login Response must not have been followed by another PDU.
    pub fn inject_record_keys(&mut self, slot: Slot, keys: RecordKeys) {
        let (pool, level) = (self.pool.clone(), self.level());
        let Some(connection) = self.connection_mut(slot) else { return };
        let negotiated = connection.parameters;
        let plain =
            ConnectionParameters { header_digest: Digest::None, data_digest: Digest::None, ..negotiated };
        // The session may have declared a longer limit already.
        let data_len_max = connection.framing.data_len_max;
        if connection.enter_full_feature(plain, level, Some(keys), &pool).is_err() {
            return;
        }
        connection.framing.data_len_max = data_len_max;
        if let (Some(receiver), Some(decryptor)) = (&mut connection.receiver, connection.decryptor.take()) {
            receiver.set_framing(connection.framing);
            receiver.set_decryptor(*decryptor);
        }
    }
}
