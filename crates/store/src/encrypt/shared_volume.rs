//! The data of a LUKS2 image on a medium that several threads use: the initiator's side of encryption, where
//! the target never sees plain data.

use alloc::boxed::Box;
use alloc::sync::Arc;

use base::buffer::{DataList, Pool};
use base::int_cast::{to_u64, to_usize};

use super::xts::Xts;
use super::{BUF_LEN_MAX, Layout, Volume, decrypted, encrypted};
use crate::api::{Capabilities, Durability, Failure, Fault, OpAction, OpOutput};
use crate::shared::{OnComplete, SharedStore};

/// An encrypted volume. It supports no compare-and-write, and its key cannot be replaced. What
/// [`super::Encrypted`] says of zeros applies.
#[derive(Clone)]
pub struct SharedVolume {
    inner: Arc<dyn SharedStore>,
    cipher: Arc<Cipher>,
}

struct Cipher {
    xts: Xts,
    layout: Layout,
}

impl SharedVolume {
    /// Opens the data of a LUKS2 image, which `inner` holds from the header on.
    pub fn new(inner: Arc<dyn SharedStore>, volume: &Volume) -> Self {
        let cipher = Cipher { xts: Xts::new(&volume.key), layout: Layout::of_volume(volume) };
        Self { inner, cipher: Arc::new(cipher) }
    }

    fn read(&self, at: u64, len: usize, done: OnComplete) {
        let cipher = Arc::clone(&self.cipher);
        let decrypt = move |result: Result<OpOutput, Failure>| {
            done(match result {
                // The buffers go to the caller, so the pool keeps none.
                Ok(OpOutput::Data(data)) => {
                    let data = decrypted(&cipher.xts, &cipher.layout, &Pool::new(0), at, data);
                    Ok(OpOutput::Data(data))
                }
                Ok(_) => Err(Fault::Bug.into()),
                Err(failure) => Err(cipher.layout.unshifted(failure)),
            });
        };
        self.inner.submit(OpAction::Read { at, len }, Box::new(decrypt));
    }

    fn write(&self, at: u64, data: DataList, durability: Durability, done: OnComplete) {
        let hidden = encrypted(&self.cipher.xts, &self.cipher.layout, &Pool::new(0), at, &data);
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
