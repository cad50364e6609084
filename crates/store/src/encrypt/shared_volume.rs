//! The data of a LUKS2 image on a medium that several threads use: the initiator's side of encryption, where
//! the target never sees plain data.

use alloc::boxed::Box;
use alloc::sync::Arc;
use core::fmt;

use base::buffer::{DataList, Pool};
use base::int_cast::{to_u64, to_usize};

use super::xts::Xts;
use super::{BUF_LEN_MAX, Layout, Volume, decrypted, encrypted};
use crate::api::{Capabilities, Durability, Failure, Fault, OpAction, OpOutput};
use crate::shared::{Losses, OnComplete, SharedStore};

/// An encrypted volume. It supports no compare-and-write, and its key cannot be replaced. What
/// [`super::Encrypted`] says of zeros applies.
#[derive(Clone)]
pub struct SharedVolume {
    inner: Arc<dyn SharedStore>,
    cipher: Arc<VolumeCipher>,
}

/// Encrypts and decrypts the data of a LUKS2 image. Offsets are those on the medium, in bytes; ranges are
/// whole sectors.
pub struct VolumeCipher {
    xts: Xts,
    layout: Layout,
}

impl VolumeCipher {
    /// Returns the cipher of an image.
    pub fn new(volume: &Volume) -> Self {
        Self { xts: Xts::new(&volume.key), layout: Layout::of_volume(volume) }
    }

    /// Returns where the data begins on the medium.
    pub const fn offset(&self) -> u64 {
        self.layout.offset
    }

    /// Returns the length of a sector.
    pub const fn sector_len(&self) -> u32 {
        self.layout.unit.bytes()
    }

    /// Returns how many bytes of data there are on a medium of this length: whole sectors.
    pub fn data_len(&self, medium_len: u64) -> u64 {
        let len = medium_len.saturating_sub(self.layout.offset).min(self.layout.len_max);
        len - len % u64::from(self.sector_len())
    }

    /// Returns `data` encrypted for `at`, in buffers of `pool`.
    pub fn encrypt(&self, pool: &Pool, at: u64, data: &DataList) -> DataList {
        encrypted(&self.xts, &self.layout, pool, at, data)
    }

    /// Returns the data that was read at `at` decrypted: in place where nobody else holds it, or in buffers
    /// of `pool`.
    pub fn decrypt(&self, pool: &Pool, at: u64, data: DataList) -> DataList {
        decrypted(&self.xts, &self.layout, pool, at, data)
    }
}

impl fmt::Debug for VolumeCipher {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("VolumeCipher").field("layout", &self.layout).finish_non_exhaustive()
    }
}

impl SharedVolume {
    /// Opens the data of a LUKS2 image, which `inner` holds from the header on.
    pub fn new(inner: Arc<dyn SharedStore>, volume: &Volume) -> Self {
        Self { inner, cipher: Arc::new(VolumeCipher::new(volume)) }
    }

    fn read(&self, at: u64, len: usize, done: OnComplete) {
        let cipher = Arc::clone(&self.cipher);
        let decrypt = move |result: Result<OpOutput, Failure>| {
            done(match result {
                // The buffers go to the caller, so the pool keeps none.
                Ok(OpOutput::Data(data)) => {
                    let data = cipher.decrypt(&Pool::new(0), at, data);
                    Ok(OpOutput::Data(data))
                }
                Ok(_) => Err(Fault::Bug.into()),
                Err(failure) => Err(cipher.layout.unshifted(failure)),
            });
        };
        self.inner.submit(OpAction::Read { at, len }, Box::new(decrypt));
    }

    fn write(&self, at: u64, data: DataList, durability: Durability, done: OnComplete) {
        let hidden = self.cipher.encrypt(&Pool::new(0), at, &data);
        let cipher = Arc::clone(&self.cipher);
        let finish = move |result: Result<OpOutput, Failure>| {
            let result = result.map(|_| OpOutput::Done(data));
            done(result.map_err(|failure| cipher.layout.unshifted(failure)));
        };
        self.inner.submit(OpAction::Write { at, data: hidden, durability }, Box::new(finish));
    }

    /// Writes encrypted zeros from `at` to `end`, piece by piece.
    fn write_zeros(self, at: u64, end: u64, durability: Durability, done: OnComplete) {
        let len = end.saturating_sub(at).min(to_u64(BUF_LEN_MAX));
        if len == 0 {
            return done(Ok(OpOutput::Done(DataList::new())));
        }
        let mut zeros = Pool::new(0).take(to_usize(len));
        zeros.append_zeros(to_usize(len));
        let next = self.clone();
        let go_on: OnComplete = Box::new(move |result| match result {
            Ok(_) => next.write_zeros(at.saturating_add(len), end, durability, done),
            Err(failure) => done(Err(failure)),
        });
        self.write(at, zeros.freeze().into(), durability, go_on);
    }
}

impl SharedStore for SharedVolume {
    fn capabilities(&self) -> Capabilities {
        Capabilities { crypto_erase: false, ..self.cipher.layout.capabilities(self.inner.capabilities()) }
    }

    fn losses(&self) -> Losses {
        let losses = self.inner.losses();
        Losses { last: losses.last.map(|failure| self.cipher.layout.unshifted(failure)), ..losses }
    }

    fn submit(&self, action: OpAction, done: OnComplete) {
        let layout = self.cipher.layout;
        let action = match layout.shifted(action) {
            Ok(action) => action,
            Err(fault) => return done(Err(fault.into())),
        };
        let (at, len) = action.range();
        let data =
            matches!(action, OpAction::Read { .. } | OpAction::Write { .. } | OpAction::WriteZeroes { .. });
        if data && !layout.is_whole(at, len) {
            return done(Err(Fault::Bug.into()));
        }
        match action {
            OpAction::Read { at, len } => self.read(at, len, done),
            OpAction::Write { at, data, durability } => self.write(at, data, durability, done),
            OpAction::WriteZeroes { at, len, durability, .. } => {
                self.clone().write_zeros(at, at.saturating_add(len), durability, done);
            }
            OpAction::CryptoErase => done(Err(Fault::Unsupported.into())),
            other => self.inner.submit(
                other,
                Box::new(move |result| {
                    let result = result.map(|output| layout.unshifted_output(output));
                    done(result.map_err(|failure| layout.unshifted(failure)));
                }),
            ),
        }
    }
}
