//! The engine, tested against raw initiators.

mod admission;
mod alive;
mod chaos;
mod clauses;
mod commands;
mod data_out;
mod erl1;
mod erl2;
mod happy;
mod management;
mod mcs;
mod notes;
mod passwords;
mod sessions;
mod stall;
mod stream;
mod text;
mod world;

use base::state_machine::ConnId;

use super::engine::Engine;
use crate::aead::RecordKeys;
use crate::negotiate::{ConnectionParameters, Digest};

impl Engine {
    /// Gives a connection the keys of an AEAD digest, as if its login had ended with them. Returns whether
    /// its login has ended.
    pub(crate) fn set_record_keys(&mut self, conn: ConnId, keys: impl FnOnce() -> RecordKeys) -> bool {
        let pool = self.pool.clone();
        let Some(connection) = self.conn_mut(conn).filter(|connection| connection.session.is_some()) else {
            return false;
        };
        let plain = ConnectionParameters {
            header_digest: Digest::None,
            data_digest: Digest::None,
            ..connection.parameters
        };
        connection.enter_full_feature(plain, connection.level, Some(keys()), &pool);
        if let (Some(receiver), Some(decryptor)) = (&mut connection.receiver, connection.decryptor.take()) {
            receiver.set_framing(connection.framing);
            receiver.set_decryptor(decryptor);
        }
        true
    }
}
