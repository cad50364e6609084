//! A filter that encrypts a medium at rest: AES-XTS with one data unit per sector, under a key that can be
//! replaced (crypto erase).
//!
//! [`Encrypted::of_volume`] is the data of a LUKS2 image, behind its header.
//! [`Encrypted::new`] is a medium without a header: memory.
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
//! dm-crypt decrypts such a sector like any other, so what it reads there is no zeros. A LUKS2 volume
//! therefore does not promise that deallocated ranges read as zeros, and encrypts the zeros of
//! [`OpAction::WriteZeroes`]: whatever a host was promised, dm-crypt reads too.
//!
//! A [`KeyStore`] keeps the key.

pub mod shared_volume;
pub(crate) mod xts;

use alloc::boxed::Box;
use alloc::collections::{BTreeMap, BTreeSet, VecDeque};
use core::fmt;

use base::buffer::{Buf, Bytes, DataList, Pool};
use base::int_cast::{to_u64, to_usize};
use zeroize::Zeroizing;

use crate::api::{
    Capabilities, Completion, Durability, Failure, Fault, Op, OpAction, OpId, OpOutput, Space, Store,
};
use xts::Xts;

/// The length of a [`MediaKey`] in bytes: two keys of AES-256. LUKS2 media of others can have two keys of
/// AES-128.
pub const MEDIA_KEY_LEN: usize = 64;

/// The largest buffer for encrypted data in bytes: the largest that pools keep.
const BUF_LEN_MAX: usize = 1 << 20;

/// The key of a medium: two keys of AES-256, or of AES-128.
#[derive(Clone)]
pub struct MediaKey(KeyHalves);

/// The keys of the data and of the tweaks.
#[derive(Clone)]
pub(crate) enum KeyHalves {
    Aes128(Zeroizing<[[u8; 16]; 2]>),
    Aes256(Zeroizing<[[u8; 32]; 2]>),
}

impl MediaKey {
    /// Takes the two halves, fresh bytes of a good random generator: first the key of the data, then the key
    /// of the tweaks (the numbers of data units).
    pub fn new(halves: [[u8; 32]; 2]) -> Self {
        Self(KeyHalves::Aes256(Zeroizing::new(halves)))
    }

    /// Takes both halves from one slice of 64 bytes (AES-256) or 32 bytes (AES-128). Returns `None` for any
    /// other length.
    pub fn from_slice(key: &[u8]) -> Option<Self> {
        if let ([data, tweak], []) = key.as_chunks() {
            return Some(Self(KeyHalves::Aes256(Zeroizing::new([*data, *tweak]))));
        }
        match key.as_chunks() {
            ([data, tweak], []) => Some(Self(KeyHalves::Aes128(Zeroizing::new([*data, *tweak])))),
            _ => None,
        }
    }

    /// Returns all bytes, [`MEDIA_KEY_LEN`] or half as many, for the key store that keeps them.
    pub fn bytes(&self) -> &[u8] {
        match &self.0 {
            KeyHalves::Aes128(halves) => halves.as_flattened(),
            KeyHalves::Aes256(halves) => halves.as_flattened(),
        }
    }

    pub(crate) const fn halves(&self) -> &KeyHalves {
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

/// The place of the data of a LUKS2 image, and its key.
#[derive(Clone, Debug)]
pub struct Volume {
    /// The key of the data.
    pub key: MediaKey,
    /// The first byte of the data on the medium.
    pub offset: u64,
    /// The length of the data in bytes; `None` if it goes to the end of the medium.
    pub len: Option<u64>,
    /// The unit of encryption.
    pub sector_len: DataUnit,
    /// Added to the number of each sector.
    pub iv_tweak: u64,
}

impl Volume {
    /// Returns whether the data begin at a whole number of blocks of `block_len` bytes.
    pub const fn is_aligned(&self, block_len: u32) -> bool {
        self.offset.is_multiple_of(block_len as u64)
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
    layout: Layout,
    pool: Pool,
    /// The offsets of the reads under way.
    reads: BTreeMap<OpId, u64>,
    /// The plain data of the writes under way.
    writes: BTreeMap<OpId, DataList>,
    /// The ranges of zeros that are still to be written, encrypted.
    zeroings: BTreeMap<OpId, Zeroing>,
    /// The other changes under way.
    changes: BTreeSet<OpId>,
    replacing: Option<OpId>,
    ready: VecDeque<Completion>,
}

/// Where the encrypted data is on the inner medium, and how its sectors are numbered.
#[derive(Clone, Copy, Debug)]
struct Layout {
    unit: DataUnit,
    /// The first byte of the data.
    offset: u64,
    /// The most bytes of data.
    len_max: u64,
    /// The number of the first data unit.
    first_number: u64,
    /// The bytes that one number stands for: dm-crypt numbers sectors of 512 bytes, whatever the data unit.
    number_len: u64,
    /// Whether zeros are encrypted like other data, and a deallocated range need not read as zeros.
    luks: bool,
}

impl Layout {
    fn of_volume(volume: &Volume) -> Self {
        Self {
            unit: volume.sector_len,
            offset: volume.offset,
            len_max: volume.len.unwrap_or(u64::MAX),
            first_number: volume.iv_tweak,
            number_len: 512,
            luks: true,
        }
    }

    fn capabilities(&self, inner: Capabilities) -> Capabilities {
        let unit = self.unit.bytes();
        let len = inner.len.saturating_sub(self.offset).min(self.len_max);
        Capabilities {
            len: len - len % u64::from(unit),
            deallocated_reads_zero: inner.deallocated_reads_zero && !self.luks,
            zeroes_by_deallocating: inner.zeroes_by_deallocating && !self.luks,
            logical_block_len: inner.logical_block_len.max(unit),
            preferred_block_len: inner.preferred_block_len.max(unit),
            crypto_erase: !inner.read_only,
            ..inner
        }
    }

    /// Returns whether a range of the inner medium is whole data units.
    fn is_whole(&self, at: u64, len: u64) -> bool {
        let unit = u64::from(self.unit.bytes());
        at.saturating_sub(self.offset).is_multiple_of(unit) && len.is_multiple_of(unit)
    }

    /// Returns the operation with its offset on the inner medium.
    fn shifted(self, mut action: OpAction) -> Result<OpAction, Fault> {
        let (first, len) = action.range();
        let limit = self.len_max;
        if first.checked_add(len).is_none_or(|end| end > limit) {
            return Err(Fault::OutOfRange);
        }
        match &mut action {
            OpAction::Read { at, .. }
            | OpAction::Write { at, .. }
            | OpAction::Deallocate { at, .. }
            | OpAction::WriteZeroes { at, .. }
            | OpAction::MapStatus { at, .. } => {
                *at = at.checked_add(self.offset).ok_or(Fault::OutOfRange)?;
            }
            OpAction::Flush | OpAction::CryptoErase | OpAction::Command(_) | OpAction::Reset => {}
        }
        Ok(action)
    }

    /// Returns a failure with its offset in the data.
    fn unshifted(&self, failure: Failure) -> Failure {
        Failure { at: failure.at.map(|at| at.saturating_sub(self.offset)), ..failure }
    }

    /// Returns a result with its offsets in the data.
    fn unshifted_output(&self, output: OpOutput) -> OpOutput {
        match output {
            OpOutput::MapStatus(mut extents) => {
                extents.iter_mut().for_each(|extent| extent.at = extent.at.saturating_sub(self.offset));
                OpOutput::MapStatus(extents)
            }
            other => other,
        }
    }
}

/// A range of zeros that is being written.
#[derive(Clone, Copy, Debug)]
struct Zeroing {
    at: u64,
    end: u64,
    durability: Durability,
}

impl<S: Store, K: KeyStore> Encrypted<S, K> {
    /// Opens the data of a LUKS2 image, which `inner` holds from the header on. `keeper` stores the key.
    /// Buffers are taken from `pool`. A medium whose blocks the data are not aligned to refuses every read
    /// and write, see [`Volume::is_aligned`].
    pub fn of_volume(inner: S, keeper: K, volume: &Volume, pool: Pool) -> Self {
        Self::with_layout(inner, keeper, &volume.key, Layout::of_volume(volume), pool)
    }

    /// Encrypts with `key`, which `keeper` stores, all data written to `inner`. Buffers are taken from
    /// `pool`.
    pub fn new(inner: S, keeper: K, key: &MediaKey, unit: DataUnit, pool: Pool) -> Self {
        let number_len = u64::from(unit.bytes());
        let layout = Layout { unit, offset: 0, len_max: u64::MAX, first_number: 0, number_len, luks: false };
        Self::with_layout(inner, keeper, key, layout, pool)
    }

    fn with_layout(inner: S, keeper: K, key: &MediaKey, layout: Layout, pool: Pool) -> Self {
        Self {
            inner,
            keeper,
            xts: Some(Xts::new(key)),
            layout,
            pool,
            reads: BTreeMap::new(),
            writes: BTreeMap::new(),
            zeroings: BTreeMap::new(),
            changes: BTreeSet::new(),
            replacing: None,
            ready: VecDeque::new(),
        }
    }

    /// Returns the inner medium.
    #[cfg(test)]
    pub(crate) fn into_inner(self) -> S {
        self.inner
    }

    fn begin(&mut self, id: OpId, action: OpAction) -> Result<(), Fault> {
        let action = self.layout.shifted(action)?;
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
                let hidden = encrypted(xts, &self.layout, &self.pool, at, &data);
                self.writes.insert(id, data);
                OpAction::Write { at, data: hidden, durability }
            }
            OpAction::WriteZeroes { at, len, durability, .. } if self.layout.luks && len > 0 => {
                self.checked(at, to_usize(len))?;
                let end = at.saturating_add(len);
                return self.write_zeros(id, Zeroing { at, end, durability });
            }
            other => {
                self.changes.insert(id);
                other
            }
        };
        self.inner.submit(Op { id, action });
        Ok(())
    }

    /// Writes the next piece of a range of zeros.
    fn write_zeros(&mut self, id: OpId, zeroing: Zeroing) -> Result<(), Fault> {
        let Some(xts) = &self.xts else { return Err(Fault::Gone) };
        let Zeroing { at, end, durability } = zeroing;
        let len = end.saturating_sub(at).min(to_u64(BUF_LEN_MAX));
        let mut buf = self.pool.take(to_usize(len));
        buf.append_zeros(to_usize(len));
        for (number, sector) in sectors(&self.layout, at, 0, &mut buf) {
            xts.encrypt(number, sector);
        }
        self.zeroings.insert(id, Zeroing { at: at.saturating_add(len), end, durability });
        self.inner.submit(Op { id, action: OpAction::Write { at, data: buf.freeze().into(), durability } });
        Ok(())
    }

    /// Continues to write zeros after one piece is done. Returns the completion at the end.
    fn continue_zeros(
        &mut self,
        id: OpId,
        zeroing: Zeroing,
        result: Result<OpOutput, Failure>,
    ) -> Option<Completion> {
        match result {
            Ok(OpOutput::Done(written)) => written.into_parts().for_each(|part| self.pool.recycle(part)),
            Ok(_) => {}
            Err(failure) => return Some(Completion { id, result: Err(failure) }),
        }
        if zeroing.at < zeroing.end {
            return match self.write_zeros(id, zeroing) {
                Ok(()) => None,
                Err(fault) => Some(Completion { id, result: Err(fault.into()) }),
            };
        }
        Some(Completion { id, result: Ok(OpOutput::Done(DataList::new())) })
    }

    fn checked(&self, at: u64, len: usize) -> Result<u64, Fault> {
        if self.layout.is_whole(at, to_u64(len)) { Ok(at) } else { Err(Fault::Bug) }
    }

    fn crypto_erase(&mut self, id: OpId) -> Result<(), Fault> {
        if self.inner.capabilities().read_only {
            return Err(Fault::ReadOnly);
        }
        let busy = !self.reads.is_empty() || !self.writes.is_empty() || !self.zeroings.is_empty();
        if busy || !self.changes.is_empty() {
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
    /// and returns the plain data of a write. Returns `None` if the operation goes on.
    fn finish(&mut self, Completion { id, result }: Completion) -> Option<Completion> {
        self.changes.remove(&id);
        let result = result.map_err(|failure| self.layout.unshifted(failure));
        if let Some(zeroing) = self.zeroings.remove(&id) {
            return self.continue_zeros(id, zeroing, result);
        }
        if let Some(at) = self.reads.remove(&id) {
            let result = result.and_then(|outcome| match (outcome, &self.xts) {
                (OpOutput::Data(data), Some(xts)) => {
                    Ok(OpOutput::Data(decrypted(xts, &self.layout, &self.pool, at, data)))
                }
                (_, None) => Err(Fault::Gone.into()),
                _ => Err(Failure::from(Fault::Bug)),
            });
            return Some(Completion { id, result });
        }
        if let Some(given) = self.writes.remove(&id) {
            let result = result.map(|outcome| {
                if let OpOutput::Done(hidden) = outcome {
                    hidden.into_parts().for_each(|part| self.pool.recycle(part));
                }
                OpOutput::Done(given)
            });
            return Some(Completion { id, result });
        }
        let result = result.map(|output| self.layout.unshifted_output(output));
        Some(Completion { id, result })
    }
}

impl<S: Store, K: KeyStore> Store for Encrypted<S, K> {
    fn capabilities(&self) -> Capabilities {
        self.layout.capabilities(self.inner.capabilities())
    }

    fn space(&self) -> Option<Space> {
        self.inner.space()
    }

    fn is_away(&self) -> bool {
        self.inner.is_away()
    }

    fn keeps_changes(&self) -> bool {
        self.inner.keeps_changes()
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
        loop {
            let completion = self.inner.poll()?;
            if let Some(completion) = self.finish(completion) {
                return Some(completion);
            }
        }
    }
}

impl<S, K> fmt::Debug for Encrypted<S, K> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Encrypted").field("layout", &self.layout).finish_non_exhaustive()
    }
}

/// Returns `data` encrypted, in new buffers: the owners of `data` may still read theirs.
fn encrypted(xts: &Xts, layout: &Layout, pool: &Pool, at: u64, data: &DataList) -> DataList {
    let mut out = Gather::new(pool, data.len());
    data.parts().iter().for_each(|part| out.append(part));
    out.finish(|offset, buf| {
        for (number, sector) in sectors(layout, at, offset, buf) {
            xts.encrypt(number, sector);
        }
    })
}

/// Returns `data` of the inner medium decrypted. Buffers without another owner are decrypted in place, others
/// are copied.
fn decrypted(xts: &Xts, layout: &Layout, pool: &Pool, at: u64, data: DataList) -> DataList {
    let decrypt = |offset: usize, buf: &mut Buf| {
        for (number, sector) in sectors(layout, at, offset, buf) {
            if sector.iter().any(|byte| *byte != 0) {
                xts.decrypt(number, sector);
            }
        }
    };
    let unit_len = to_usize(layout.unit.bytes());
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

/// Returns the sectors in `buf`, which starts `offset` bytes after `at` of the inner medium, with their
/// numbers.
fn sectors<'b>(
    layout: &Layout,
    at: u64,
    offset: usize,
    buf: &'b mut Buf,
) -> impl Iterator<Item = (u64, &'b mut [u8])> + use<'b> {
    let unit = layout.unit.bytes();
    let start = at.saturating_add(to_u64(offset)).saturating_sub(layout.offset);
    let first = layout.first_number.wrapping_add(start / layout.number_len);
    let step = u64::from(unit) / layout.number_len;
    let numbers = core::iter::successors(Some(first), move |number| Some(number.wrapping_add(step)));
    numbers.zip(buf.filled_mut().chunks_exact_mut(to_usize(unit)))
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
