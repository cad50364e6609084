//! A filter that encrypts a medium at rest: AES-256-XTS with one data unit per sector, under a key that can
//! be replaced (crypto erase).
//!
//! # What it protects from, and what not
//!
//! An attacker who has the medium but not the key cannot read the data. He can see which sectors were never
//! written or were deallocated: those are zeros on the inner medium too, so that thin media stay thin. XTS
//! does not authenticate: an attacker who can write to the medium can garble sectors, or restore their
//! earlier contents, and the filter does not notice.
//!
//! # Zeros
//!
//! A sector of zeros on the inner medium reads as zeros. An encrypted sector is taken never to be all zeros:
//! only one of the 2^4096 possible sectors of 512 bytes is.
//!
//! A [`KeyStore`] keeps the key.

mod xts;

use alloc::boxed::Box;
use alloc::collections::{BTreeMap, BTreeSet, VecDeque};
use core::fmt;

use base::buffer::{Buf, Bytes, DataList, Pool};
use zeroize::Zeroizing;

use crate::api::{Capabilities, Completion, Failure, Fault, Op, OpAction, OpId, OpOutput, Space, Store};
use xts::Xts;

/// The length of a [`MediaKey`] in bytes: two keys of AES-256.
pub const MEDIA_KEY_LEN: usize = 64;

/// The largest buffer for encrypted data in bytes: the largest that pools keep.
const BUF_LEN_MAX: usize = 1 << 20;

/// The key of a medium.
#[derive(Clone)]
pub struct MediaKey(Zeroizing<[[u8; 32]; 2]>);

impl MediaKey {
    /// Takes the two halves, fresh bytes of a good random generator: first the key of the data, then the key
    /// of the tweaks (the numbers of data units).
    pub fn new(halves: [[u8; 32]; 2]) -> Self {
        Self(Zeroizing::new(halves))
    }

    /// Returns all [`MEDIA_KEY_LEN`] bytes, for the key store that keeps them.
    pub fn bytes(&self) -> &[u8] {
        self.0.as_flattened()
    }

    fn halves(&self) -> &[[u8; 32]; 2] {
        &self.0
    }
}

impl fmt::Debug for MediaKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("MediaKey")
    }
}

/// The length of a data unit: the bytes that are encrypted under one number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum DataUnit {
    /// 512 bytes.
    B512,
    /// 4096 bytes.
    B4096,
}

impl DataUnit {
    /// Returns the length in bytes.
    pub const fn bytes(self) -> u32 {
        match self {
            Self::B512 => 512,
            Self::B4096 => 4096,
        }
    }
}

/// Keeps the key of a medium from one start to the next.
pub trait KeyStore {
    /// Starts to replace the present key by a fresh one, durably.
    fn replace(&mut self);

    /// Returns how the replacement ended, once.
    fn poll(&mut self) -> Option<Replaced>;
}

impl<K: KeyStore + ?Sized> KeyStore for Box<K> {
    fn replace(&mut self) {
        (**self).replace();
    }

    fn poll(&mut self) -> Option<Replaced> {
        (**self).poll()
    }
}

/// How the replacement of a key ended.
#[derive(Debug)]
pub enum Replaced {
    /// The old key is gone, and this new one is stored.
    Fresh(MediaKey),
    /// The old key is certainly still stored.
    Kept,
    /// Which of the two keys is stored is unknown until the next start. Nothing may be written until then.
    Unknown,
}

/// An encrypted medium.
pub struct Encrypted<S, K> {
    inner: S,
    keeper: K,
    /// `None` once it is unknown which key is stored.
    xts: Option<Xts>,
    unit: DataUnit,
    pool: Pool,
    /// The offsets of the reads under way.
    reads: BTreeMap<OpId, u64>,
    /// The plain data of the writes under way.
    writes: BTreeMap<OpId, DataList>,
    /// The other changes under way.
    changes: BTreeSet<OpId>,
    replacing: Option<OpId>,
    ready: VecDeque<Completion>,
}

impl<S: Store, K: KeyStore> Encrypted<S, K> {
    /// Encrypts with `key`, which `keeper` stores, all data written to `inner`. Buffers are taken from
    /// `pool`.
    pub fn new(inner: S, keeper: K, key: &MediaKey, unit: DataUnit, pool: Pool) -> Self {
        Self {
            inner,
            keeper,
            xts: Some(Xts::new(key)),
            unit,
            pool,
            reads: BTreeMap::new(),
            writes: BTreeMap::new(),
            changes: BTreeSet::new(),
            replacing: None,
            ready: VecDeque::new(),
        }
    }

    fn begin(&mut self, id: OpId, action: OpAction) -> Result<(), Fault> {
        if matches!(action, OpAction::Flush | OpAction::MapStatus { .. }) {
            self.inner.submit(Op { id, action });
            return Ok(());
        }
        let Some(xts) = &self.xts else { return Err(Fault::Gone) };
        if self.replacing.is_some() {
            return Err(Fault::Bug);
        }
        let action = match action {
            OpAction::CryptoErase => return self.crypto_erase(id),
            OpAction::Read { at, len } => {
                self.reads.insert(id, self.checked(at, len)?);
                OpAction::Read { at, len }
            }
            OpAction::Write { at, data, durability } => {
                self.checked(at, data.len())?;
                let hidden = encrypted(xts, self.unit, &self.pool, at, &data);
                self.writes.insert(id, data);
                OpAction::Write { at, data: hidden, durability }
            }
            other => {
                self.changes.insert(id);
                other
            }
        };
        self.inner.submit(Op { id, action });
        Ok(())
    }

    fn checked(&self, at: u64, len: usize) -> Result<u64, Fault> {
        let unit = u64::from(self.unit.bytes());
        let whole = at.is_multiple_of(unit) && u64::try_from(len).is_ok_and(|len| len.is_multiple_of(unit));
        if whole { Ok(at) } else { Err(Fault::Bug) }
    }

    fn crypto_erase(&mut self, id: OpId) -> Result<(), Fault> {
        if self.inner.capabilities().read_only {
            return Err(Fault::ReadOnly);
        }
        if !self.reads.is_empty() || !self.writes.is_empty() || !self.changes.is_empty() {
            return Err(Fault::Bug);
        }
        self.replacing = Some(id);
        self.keeper.replace();
        Ok(())
    }

    fn poll_replaced(&mut self) -> Option<Completion> {
        self.replacing?;
        let result = match self.keeper.poll()? {
            Replaced::Fresh(key) => {
                self.xts = Some(Xts::new(&key));
                Ok(OpOutput::Done(DataList::new()))
            }
            Replaced::Kept => Err(Fault::Medium.into()),
            Replaced::Unknown => {
                self.xts = None;
                Err(Fault::Gone.into())
            }
        };
        Some(Completion { id: self.replacing.take()?, result })
    }

    /// Converts a completion of the inner medium into the one for the caller: decrypts the data of a read,
    /// and returns the plain data of a write.
    fn finish(&mut self, Completion { id, result }: Completion) -> Completion {
        self.changes.remove(&id);
        if let Some(at) = self.reads.remove(&id) {
            let result = result.and_then(|outcome| match (outcome, &self.xts) {
                (OpOutput::Data(data), Some(xts)) => {
                    Ok(OpOutput::Data(decrypted(xts, self.unit, &self.pool, at, data)))
                }
                (_, None) => Err(Fault::Gone.into()),
                _ => Err(Failure::from(Fault::Bug)),
            });
            return Completion { id, result };
        }
        if let Some(given) = self.writes.remove(&id) {
            let result = result.map(|outcome| {
                if let OpOutput::Done(hidden) = outcome {
                    hidden.into_parts().for_each(|part| self.pool.recycle(part));
                }
                OpOutput::Done(given)
            });
            return Completion { id, result };
        }
        Completion { id, result }
    }
}

impl<S: Store, K: KeyStore> Store for Encrypted<S, K> {
    fn capabilities(&self) -> Capabilities {
        let inner = self.inner.capabilities();
        let unit = self.unit.bytes();
        Capabilities {
            len: inner.len - inner.len % u64::from(unit),
            logical_block_len: inner.logical_block_len.max(unit),
            preferred_block_len: inner.preferred_block_len.max(unit),
            crypto_erase: !inner.read_only,
            ..inner
        }
    }

    fn space(&self) -> Option<Space> {
        self.inner.space()
    }

    fn submit(&mut self, op: Op) {
        if let Err(fault) = self.begin(op.id, op.action) {
            self.ready.push_back(Completion { id: op.id, result: Err(fault.into()) });
        }
    }

    fn poll(&mut self) -> Option<Completion> {
        if let Some(completion) = self.ready.pop_front() {
            return Some(completion);
        }
        if let Some(completion) = self.poll_replaced() {
            return Some(completion);
        }
        let completion = self.inner.poll()?;
        Some(self.finish(completion))
    }
}

impl<S, K> fmt::Debug for Encrypted<S, K> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Encrypted").field("unit", &self.unit).finish_non_exhaustive()
    }
}

/// Returns `data` encrypted, in new buffers: the owners of `data` may still read theirs.
fn encrypted(xts: &Xts, unit: DataUnit, pool: &Pool, at: u64, data: &DataList) -> DataList {
    let mut out = Gather::new(pool, data.len());
    data.parts().iter().for_each(|part| out.append(part));
    out.finish(|offset, buf| {
        for (number, sector) in sectors(unit, at, offset, buf) {
            xts.encrypt(number, sector);
        }
    })
}

/// Returns `data` of the inner medium decrypted. Buffers without another owner are decrypted in place, others
/// are copied.
fn decrypted(xts: &Xts, unit: DataUnit, pool: &Pool, at: u64, data: DataList) -> DataList {
    let decrypt = |offset: usize, buf: &mut Buf| {
        for (number, sector) in sectors(unit, at, offset, buf) {
            if sector.iter().any(|byte| *byte != 0) {
                xts.decrypt(number, sector);
            }
        }
    };
    let unit_len = usize::try_from(unit.bytes()).unwrap_or(usize::MAX);
    if !data.parts().iter().all(|part| part.len().is_multiple_of(unit_len)) {
        let mut out = Gather::new(pool, data.len());
        data.into_parts().for_each(|part| out.append(&part));
        return out.finish(decrypt);
    }
    let (mut out, mut offset) = (DataList::new(), 0);
    for part in data.into_parts() {
        let len = part.len();
        let mut buf = part.try_into_buf().unwrap_or_else(|shared| {
            let mut buf = pool.take(len);
            buf.append(&shared);
            buf
        });
        decrypt(offset, &mut buf);
        offset += len;
        out.push(buf.freeze());
    }
    out
}

/// Returns the sectors in `buf`, which starts `offset` bytes after `at`, with their numbers.
fn sectors(unit: DataUnit, at: u64, offset: usize, buf: &mut Buf) -> impl Iterator<Item = (u64, &mut [u8])> {
    let first = at.saturating_add(u64::try_from(offset).unwrap_or(u64::MAX)) / u64::from(unit.bytes());
    let len = usize::try_from(unit.bytes()).unwrap_or(usize::MAX);
    (first..).zip(buf.filled_mut().chunks_exact_mut(len))
}

/// Collects data into buffers of a pool.
struct Gather<'a> {
    pool: &'a Pool,
    left: usize,
    full: smallvec::SmallVec<[Buf; 2]>,
    buf: Option<Buf>,
}

impl<'a> Gather<'a> {
    fn new(pool: &'a Pool, len: usize) -> Self {
        Self { pool, left: len, full: smallvec::SmallVec::new(), buf: None }
    }

    fn append(&mut self, mut part: &[u8]) {
        while !part.is_empty() {
            let left = self.left;
            let buf = self.buf.get_or_insert_with(|| self.pool.take(left.min(BUF_LEN_MAX)));
            let taken = buf.append(part);
            self.left = self.left.saturating_sub(taken);
            part = part.get(taken..).unwrap_or_default();
            if buf.len() == buf.capacity() {
                self.full.extend(self.buf.take());
            }
        }
    }

    /// Calls `work` with the offset of each buffer and the buffer, and returns the buffers.
    fn finish(self, mut work: impl FnMut(usize, &mut Buf)) -> DataList {
        let (mut out, mut offset) = (DataList::new(), 0);
        for mut buf in self.full.into_iter().chain(self.buf) {
            work(offset, &mut buf);
            offset += buf.len();
            let part: Bytes = buf.freeze();
            out.push(part);
        }
        out
    }
}

#[cfg(test)]
mod tests;
