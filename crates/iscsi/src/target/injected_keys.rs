//! Keys of an AEAD digest that do not come from a login: for tests, and for the simulator.

use base::state_machine::ConnId;

use super::engine::Engine;
use crate::aead::RecordKeys;
use crate::negotiate::{ConnectionParameters, Digest};

impl Engine {
    /// Gives a connection the keys of an AEAD digest, as if its login had ended with them. Returns whether
    /// its login has ended. The last Login Response must not have been followed by another PDU.
    pub fn inject_record_keys(&mut self, conn: ConnId, keys: impl FnOnce() -> RecordKeys) -> bool {
        let pool = self.pool.clone();
        let Some(connection) = self.conn_mut(conn).filter(|connection| connection.session.is_some()) else {
            return false;
        };
        let negotiated = connection.parameters;
        let plain =
            ConnectionParameters { header_digest: Digest::None, data_digest: Digest::None, ..negotiated };
        if connection.enter_full_feature(plain, connection.level, Some(keys()), &pool).is_err() {
            return false;
        }
        if let (Some(receiver), Some(decryptor)) = (&mut connection.receiver, connection.decryptor.take()) {
            receiver.set_framing(connection.framing);
            receiver.set_decryptor(*decryptor);
        }
        true
    }
}
