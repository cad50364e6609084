//! How a connection reads and writes its PDUs in full feature phase. Both roles derive it from what the login
//! negotiated.

use alloc::boxed::Box;

use base::buffer::Pool;

use super::{ConnectionParameters, Digest};
use crate::aead::{Decryptor, RecordKeys};
use crate::framing::Framing;
use crate::keys::Role;
use crate::pdu_writer::PduWriter;
use crate::recovery::RecoveryLevel;

/// What reads and writes the PDUs after the login.
#[derive(Debug)]
pub(crate) struct PduCodec {
    pub(crate) framing: Framing,
    /// What opens the PDUs, if their digest is an AEAD.
    pub(crate) decryptor: Option<Box<Decryptor>>,
    pub(crate) writer: PduWriter,
}

impl PduCodec {
    /// Returns the codec of `role`. `record_keys` are those of an AEAD digest. Ciphertext is written into
    /// buffers of `pool`.
    ///
    /// Returns `None` if an AEAD digest was negotiated and there are no keys: the connection must not go on
    /// in the clear.
    pub(crate) fn new(
        role: Role,
        parameters: &ConnectionParameters,
        level: RecoveryLevel,
        record_keys: Option<RecordKeys>,
        pool: &Pool,
    ) -> Option<Self> {
        if parameters.header_digest.aead().is_some() && record_keys.is_none() {
            return None;
        }
        let (encryptor, decryptor) =
            record_keys.map(|keys| (keys.encryptor, Box::new(keys.decryptor))).unzip();
        let framing = Framing {
            header_digest: parameters.header_digest == Digest::Crc32c,
            data_digest: parameters.data_digest == Digest::Crc32c,
            data_len_max: match role {
                Role::Initiator => parameters.initiator_max_recv,
                Role::Target => parameters.target_max_recv,
            },
            resync: level.skips_damaged_headers() && decryptor.is_none(),
        };
        Some(Self { framing, decryptor, writer: PduWriter::new(parameters, encryptor, pool) })
    }
}
