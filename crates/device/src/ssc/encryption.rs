//! What data encryption parameters do to the blocks that are written and read (SSC-4).

use base::buffer::DataList;
use cartridge::command::Record;
use scsi::sense::{Asc, Sense, SenseKey};

use crate::device_server::DeviceServer;
use crate::tape_drive::encrypted_record::{
    DecryptError, EncryptRequest, decrypt, encrypt, info_of, of_raw_block, raw_block,
};
use crate::tape_drive::encryption::{DecryptionMode, EncryptionMode, EncryptionParameters};

const UNABLE: Sense = Sense::new(SenseKey::DATA_PROTECT, Asc::UNABLE_TO_DECRYPT_DATA);
const UNENCRYPTED: Sense =
    Sense::new(SenseKey::DATA_PROTECT, Asc::UNENCRYPTED_DATA_ENCOUNTERED_WHILE_DECRYPTING);
const WRONG_KEY: Sense = Sense::new(SenseKey::DATA_PROTECT, Asc::INCORRECT_DATA_ENCRYPTION_KEY);
const FORGED: Sense = Sense::new(SenseKey::DATA_PROTECT, Asc::CRYPTOGRAPHIC_INTEGRITY_VALIDATION_FAILED);
const NO_RAW_BLOCK: Sense = Sense::new(SenseKey::DATA_PROTECT, Asc::SECURITY_ERROR);
const BUG: Sense = Sense::new(SenseKey::HARDWARE_ERROR, Asc::INTERNAL_TARGET_FAILURE);

impl DeviceServer {
    /// Returns the record that the cartridge stores for a block.
    ///
    /// # Errors
    /// The block is not what the encryption mode demands.
    pub(super) fn record_of(
        &mut self,
        parameters: Option<&EncryptionParameters>,
        data: DataList,
    ) -> Result<Record, Sense> {
        let is_compressing = self.settings.stream.is_compressing;
        match parameters.map(|set| (set.encryption, set)) {
            None | Some((EncryptionMode::Disable, _)) => {
                Ok(Record { data, is_compressed: is_compressing, ..Record::default() })
            }
            Some((EncryptionMode::External, _)) => of_raw_block(&data).ok_or(NO_RAW_BLOCK),
            Some((EncryptionMode::Encrypt, set)) => {
                let (Some(key), Some(drive)) = (&set.key, &mut self.tape) else { return Err(BUG) };
                let request = EncryptRequest {
                    key,
                    associated: &set.associated,
                    allows_raw_reads: set.allows_raw_reads,
                    is_compressing,
                    nonce: drive.encryption.random.bytes(),
                };
                encrypt(&request, &data, &self.pool).ok_or(BUG)
            }
        }
    }

    /// Returns the block of a record, as the decryption mode demands it.
    ///
    /// # Errors
    /// The record cannot be read with these parameters.
    pub(super) fn block_of(
        &mut self,
        parameters: Option<&EncryptionParameters>,
        record: Record,
    ) -> Result<DataList, Sense> {
        let mode = parameters.map_or(DecryptionMode::Disable, |set| set.decryption);
        if record.encryption == 0 {
            return match mode {
                DecryptionMode::Disable | DecryptionMode::Mixed => Ok(record.data),
                DecryptionMode::Raw | DecryptionMode::Decrypt => Err(UNENCRYPTED),
            };
        }
        let info = info_of(&record).ok_or(UNABLE)?;
        match (mode, parameters) {
            (DecryptionMode::Raw, _) if info.allows_raw_reads => Ok(raw_block(record)),
            (DecryptionMode::Decrypt | DecryptionMode::Mixed, Some(set)) if !set.refuses(&info) => {
                let key = set.key.as_ref().ok_or(UNABLE)?;
                let data = decrypt(key, &record, &self.pool).map_err(|error| match error {
                    DecryptError::Unsupported => UNABLE,
                    DecryptError::WrongKey => WRONG_KEY,
                    DecryptError::Forged => FORGED,
                })?;
                self.recycle(record.data);
                Ok(data)
            }
            _ => Err(UNABLE),
        }
    }
}
