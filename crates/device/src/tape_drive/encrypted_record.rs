//! An encrypted record (AES-256-GCM) and the metadata that the cartridge keeps with it. `docs/cartridge.md`
//! specifies the bytes.

use alloc::vec::Vec;

use base::buffer::{Buf, Bytes, DataList, Pool};
use base::bytes::{Reader, UnexpectedEof, Writer};
use base::int_cast::{to_u32, to_usize};
use cartridge::command::Record;
use cartridge::compression::{compress, decompress};
use cartridge::layout::RECORD_LEN_MAX;
use security::aead::{IV_LEN, TAG_LEN};
use security::record_key::CHECK_LEN;

use super::encryption_key::{Key, KeyAssociated};

/// The index of AES-256-GCM among the algorithms of the drive: its only one.
pub(crate) const ALGORITHM: u8 = 1;
/// The longest unauthenticated key-associated data, as those of LTO drives.
pub(crate) const UNAUTHENTICATED_LEN_MAX: u16 = 32;
/// The longest authenticated key-associated data.
pub(crate) const AUTHENTICATED_LEN_MAX: u16 = 12;

const VERSION: u8 = 1;
/// The length of the metadata without key-associated data.
const HEADER_LEN: usize = 48;

/// The flags of byte 1.
mod flag {
    pub(super) const COMPRESSED: u8 = 0x01;
    pub(super) const EXTERNAL: u8 = 0x02;
    pub(super) const RAW_READS: u8 = 0x04;
    pub(super) const ALL: u8 = 0x07;
}

/// The metadata of an encrypted record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct EncryptedInfo {
    /// Whether the data were compressed before they were encrypted.
    pub(crate) is_compressed: bool,
    /// Whether a host wrote the record as it had read it in RAW mode.
    pub(crate) is_external: bool,
    /// Whether it can be read in RAW mode.
    pub(crate) allows_raw_reads: bool,
    /// The length of the data as the host wrote them.
    plain_len: u32,
    nonce: [u8; IV_LEN],
    tag: [u8; TAG_LEN],
    /// The check value of the key.
    check: [u8; CHECK_LEN],
    pub(crate) associated: KeyAssociated,
}

/// Why a record cannot be decrypted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum DecryptError {
    /// It was encrypted in a way that this release does not know.
    Unsupported,
    /// It was encrypted with another key.
    WrongKey,
    /// It is not what was encrypted, though its checksums are right.
    Forged,
}

impl EncryptedInfo {
    /// Decodes metadata of a record that has `data_len` encrypted bytes; `None` if there is no such record.
    pub(crate) fn decode(metadata: &[u8], data_len: usize) -> Option<Self> {
        let info = Self::decode_fields(metadata).ok().flatten()?;
        let plain_len = to_usize(info.plain_len);
        let is_possible = if info.is_compressed {
            (1..plain_len).contains(&data_len)
        } else {
            data_len == plain_len && data_len > 0
        };
        (is_possible && plain_len <= RECORD_LEN_MAX).then_some(info)
    }

    /// Decodes the metadata of a record whose data are not at hand.
    pub(crate) fn of_metadata(metadata: &[u8]) -> Option<Self> {
        Self::decode_fields(metadata).ok().flatten()
    }

    fn decode_fields(metadata: &[u8]) -> Result<Option<Self>, UnexpectedEof> {
        let mut from = Reader::new(metadata);
        let (version, flags, len) = (from.u8()?, from.u8()?, from.u16()?);
        let plain_len = from.u32()?;
        let (nonce, tag, check) = (from.array()?, from.array()?, from.array()?);
        let format = from.u8()?;
        let (unauthenticated, authenticated) = (usize::from(from.u8()?), usize::from(from.u8()?));
        let reserved = from.u8()?;
        let unauthenticated = Vec::from(from.take(unauthenticated)?);
        let authenticated = Vec::from(from.take(authenticated)?);
        let is_known = version == VERSION && flags & !flag::ALL == 0 && reserved == 0;
        let is_whole = usize::from(len) == metadata.len() && from.is_empty();
        Ok((is_known && is_whole).then_some(Self {
            is_compressed: flags & flag::COMPRESSED != 0,
            is_external: flags & flag::EXTERNAL != 0,
            allows_raw_reads: flags & flag::RAW_READS != 0,
            plain_len,
            nonce,
            tag,
            check,
            associated: KeyAssociated { format, unauthenticated, authenticated },
        }))
    }

    fn encode(&self) -> Vec<u8> {
        let KeyAssociated { format, unauthenticated, authenticated } = &self.associated;
        let mut bytes = alloc::vec![0; HEADER_LEN + unauthenticated.len() + authenticated.len()];
        let len = u16::try_from(bytes.len()).unwrap_or(u16::MAX);
        let short = |len: usize| u8::try_from(len).unwrap_or(u8::MAX);
        let mut out = Writer::new(&mut bytes);
        // The buffer has exactly this length; a test reads the fields back.
        let _ = out.put(&[VERSION, self.flags()]).and_then(|()| {
            out.u16(len)?;
            out.u32(self.plain_len)?;
            out.put(&self.nonce)?;
            out.put(&self.tag)?;
            out.put(&self.check)?;
            out.put(&[*format, short(unauthenticated.len()), short(authenticated.len()), 0])?;
            out.put(unauthenticated)?;
            out.put(authenticated)
        });
        bytes
    }

    fn flags(&self) -> u8 {
        let bit = |is_set: bool, bit: u8| if is_set { bit } else { 0 };
        bit(self.is_compressed, flag::COMPRESSED)
            | bit(self.is_external, flag::EXTERNAL)
            | bit(self.allows_raw_reads, flag::RAW_READS)
    }

    /// Returns what the tag covers beside the data.
    fn authenticated(&self) -> Vec<u8> {
        let mut bytes = Vec::from([VERSION, self.flags() & !flag::EXTERNAL, self.associated.format, 0]);
        bytes.extend_from_slice(&self.plain_len.to_be_bytes());
        bytes.extend_from_slice(&self.associated.authenticated);
        bytes
    }

    /// Returns whether the record was encrypted with `key`.
    pub(crate) fn is_key(&self, key: &Key) -> bool {
        self.check == key.check
    }
}

/// How records are encrypted.
pub(crate) struct EncryptRequest<'a> {
    pub(crate) key: &'a Key,
    pub(crate) associated: &'a KeyAssociated,
    pub(crate) allows_raw_reads: bool,
    /// Whether to compress the data before.
    pub(crate) is_compressing: bool,
    /// Random, and new for each record.
    pub(crate) nonce: [u8; IV_LEN],
}

/// Encrypts data as a record of the cartridge. `None` is a bug: a record is never too long for the cipher.
pub(crate) fn encrypt(request: &EncryptRequest<'_>, data: &DataList, pool: &Pool) -> Option<Record> {
    let compressed = if request.is_compressing { compress(data) } else { None };
    let is_compressed = compressed.is_some();
    let mut content = match compressed {
        Some(frame) => in_one_piece(&DataList::from(frame), pool),
        None => in_one_piece(data, pool),
    };
    let mut info = EncryptedInfo {
        is_compressed,
        is_external: false,
        allows_raw_reads: request.allows_raw_reads,
        plain_len: to_u32(data.len()),
        nonce: request.nonce,
        tag: [0; TAG_LEN],
        check: request.key.check,
        associated: request.associated.clone(),
    };
    info.tag = request.key.cipher.seal(info.nonce, &info.authenticated(), content.filled_mut())?;
    Some(Record {
        data: content.freeze().into(),
        encryption: ALGORITHM,
        metadata: info.encode(),
        ..Record::default()
    })
}

/// Decrypts a record.
///
/// # Errors
/// The key is not that of the record, or the record is not what was encrypted.
pub(crate) fn decrypt(key: &Key, record: &Record, pool: &Pool) -> Result<DataList, DecryptError> {
    let info = info_of(record).ok_or(DecryptError::Unsupported)?;
    if !info.is_key(key) {
        return Err(DecryptError::WrongKey);
    }
    let mut content = in_one_piece(&record.data, pool);
    let opened = key.cipher.open(info.nonce, &info.authenticated(), &info.tag, content.filled_mut());
    opened.ok_or(DecryptError::Forged)?;
    let content = content.freeze();
    if !info.is_compressed {
        return Ok(content.into());
    }
    let plain = decompress(&content.into(), to_usize(info.plain_len)).ok_or(DecryptError::Forged)?;
    Ok(plain.into())
}

/// Returns what the metadata of an encrypted record tell, if this release knows them.
pub(crate) fn info_of(record: &Record) -> Option<EncryptedInfo> {
    (record.encryption == ALGORITHM).then(|| EncryptedInfo::decode(&record.metadata, record.data.len()))?
}

/// Returns an encrypted record as a host reads it in RAW mode: the metadata, then the encrypted data.
pub(crate) fn raw_block(record: Record) -> DataList {
    let mut block = DataList::from(Bytes::copied_from(&record.metadata));
    record.data.into_parts().for_each(|part| block.push(part));
    block
}

/// Returns the record of a block that a host had read in RAW mode and writes in EXTERNAL mode. `None` if the
/// block is no such one.
pub(crate) fn of_raw_block(block: &DataList) -> Option<Record> {
    let mut start = [0; 4];
    block.copy_to(0, &mut start);
    let [_, _, len @ ..] = start;
    let metadata_len = usize::from(u16::from_be_bytes(len));
    let mut metadata = alloc::vec![0; metadata_len.min(block.len())];
    block.copy_to(0, &mut metadata);
    let data = block.slice(metadata.len(), block.len());
    let mut info = EncryptedInfo::decode(&metadata, data.len())?;
    info.is_external = true;
    Some(Record { data, encryption: ALGORITHM, metadata: info.encode(), ..Record::default() })
}

fn in_one_piece(data: &DataList, pool: &Pool) -> Buf {
    let mut buf = pool.take(data.len());
    for part in data.parts() {
        buf.append(part);
    }
    buf
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(byte: u8) -> Key {
        Key::new(&[byte; 32])
    }

    fn encrypted(data: &[u8], is_compressing: bool) -> Record {
        let associated =
            KeyAssociated { format: 2, unauthenticated: Vec::from(b"name"), authenticated: Vec::from(b"id") };
        let request = EncryptRequest {
            key: &key(1),
            associated: &associated,
            allows_raw_reads: true,
            is_compressing,
            nonce: [9; 12],
        };
        encrypt(&request, &Bytes::copied_from(data).into(), &Pool::new(1 << 20)).unwrap()
    }

    fn bytes(data: &DataList) -> Vec<u8> {
        data.parts().iter().flat_map(|part| part.to_vec()).collect()
    }

    #[test]
    fn records_come_back_with_their_key_and_no_other() {
        let pool = Pool::new(1 << 20);
        for is_compressing in [false, true] {
            let record = encrypted(&[b'x'; 3000], is_compressing);
            assert_eq!(info_of(&record).unwrap().is_compressed, is_compressing);
            assert_eq!(record.data.len() < 3000, is_compressing);
            assert!(!bytes(&record.data).windows(16).any(|part| part == [b'x'; 16]));
            assert_eq!(bytes(&decrypt(&key(1), &record, &pool).unwrap()), [b'x'; 3000]);
            assert_eq!(decrypt(&key(2), &record, &pool).unwrap_err(), DecryptError::WrongKey);
        }
    }

    #[test]
    fn every_authenticated_byte_is_checked() {
        let pool = Pool::new(1 << 20);
        let record = encrypted(b"some data", false);
        // All but the U-KAD, and what decides whether there is such a record at all.
        let unauthenticated = 48..52;
        for at in 0..record.metadata.len() {
            let mut metadata = record.metadata.clone();
            metadata[at] ^= 1;
            let changed = decrypt(&key(1), &Record { metadata, ..record.clone() }, &pool);
            assert_eq!(changed.is_ok(), unauthenticated.contains(&at), "byte {at}");
        }
        let mut data = bytes(&record.data);
        data[3] ^= 1;
        let data = Bytes::copied_from(&data).into();
        let changed = Record { data, ..record };
        assert_eq!(decrypt(&key(1), &changed, &pool).unwrap_err(), DecryptError::Forged);
    }

    #[test]
    fn a_raw_block_becomes_the_same_record_again() {
        let pool = Pool::new(1 << 20);
        let block = raw_block(encrypted(&[7; 500], true));
        let copy = of_raw_block(&block).unwrap();
        assert!(info_of(&copy).unwrap().is_external);
        assert_eq!(bytes(&decrypt(&key(1), &copy, &pool).unwrap()), [7; 500]);
        for len in 0..block.len() {
            assert!(len > 48 + 6 || of_raw_block(&block.slice(0, len)).is_none(), "{len} bytes");
        }
        assert!(of_raw_block(&Bytes::copied_from(&[0; 100]).into()).is_none());
    }
}
