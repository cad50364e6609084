//! The durable record of a SANITIZE or FORMAT UNIT, so that the operation is resumed when the unit is started
//! again, and a failure is not forgotten (SBC-4 §4.11.3: a sanitize operation is resumed after a power on;
//! SBC-4 §4.11.4: a failed one closes the unit until the failure is cleared).

use alloc::vec::Vec;

use base::bytes::Reader;

use super::{Kind, Method};
use crate::state_decode_error::StateDecodeError;

/// An operation that is in progress, or that failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct SanitizeJournal {
    /// The command that requested it.
    pub(super) kind: Kind,
    /// Whether EXIT FAILURE MODE can end a failure.
    pub(super) may_leave_failure: bool,
    /// What is done to the medium; `None` when the operation failed.
    pub(super) method: Option<Method>,
}

/// The longest pattern, in bytes: a block of the largest supported size.
const PATTERN_LEN_MAX: usize = 64 << 10;

mod tag {
    pub(super) const NONE: u8 = 0;
    pub(super) const FAILED: u8 = 1;
    pub(super) const ERASE: u8 = 2;
    pub(super) const FORGET_KEY: u8 = 3;
    pub(super) const OVERWRITE: u8 = 4;
}

impl SanitizeJournal {
    /// The most bytes that [`Self::encode`] appends.
    pub(crate) const ENCODED_LEN_MAX: usize = 1 + 1 + 1 + 2 + 4 + PATTERN_LEN_MAX;

    /// Returns whether the operation failed. Otherwise it is in progress.
    pub(crate) const fn is_failure(&self) -> bool {
        self.method.is_none()
    }

    /// Appends the encoded journal: the method (1; nothing follows if there is no journal), the command (1: 0
    /// SANITIZE, 1 FORMAT UNIT), whether EXIT FAILURE MODE can end a failure (1). For a cryptographic erase
    /// follows whether storage is deallocated then (1). For overwriting follow the passes (1), whether every
    /// other one is inverted (1) and the pattern with its length (4).
    pub(crate) fn encode(record: Option<&Self>, out: &mut Vec<u8>) {
        let Some(Self { kind, may_leave_failure, method: plan }) = record else { return out.push(tag::NONE) };
        let what = match plan {
            None => tag::FAILED,
            Some(Method::Erase) => tag::ERASE,
            Some(Method::CryptoErase { .. }) => tag::FORGET_KEY,
            Some(Method::Overwrite { .. }) => tag::OVERWRITE,
        };
        out.extend([what, u8::from(*kind == Kind::Format), u8::from(*may_leave_failure)]);
        match plan {
            None | Some(Method::Erase) => {}
            Some(Method::CryptoErase { deallocates }) => out.push(u8::from(*deallocates)),
            Some(Method::Overwrite { block, passes, invert }) => {
                out.extend([*passes, u8::from(*invert)]);
                out.extend(u32::try_from(block.len()).unwrap_or(0).to_be_bytes());
                out.extend_from_slice(block);
            }
        }
    }

    /// Decodes the output of [`Self::encode`].
    pub(crate) fn take(reader: &mut Reader<'_>) -> Result<Option<Self>, StateDecodeError> {
        let what = reader.u8()?;
        if what == tag::NONE {
            return Ok(None);
        }
        let kind = if take_flag(reader)? { Kind::Format } else { Kind::Sanitize };
        let may_leave_failure = take_flag(reader)?;
        let plan = match what {
            tag::FAILED => None,
            tag::ERASE => Some(Method::Erase),
            tag::FORGET_KEY => Some(Method::CryptoErase { deallocates: take_flag(reader)? }),
            tag::OVERWRITE => {
                let (passes, invert) = (reader.u8()?, take_flag(reader)?);
                let len = usize::try_from(reader.u32()?).unwrap_or(usize::MAX);
                if passes == 0 || !(1..=PATTERN_LEN_MAX).contains(&len) {
                    return Err(StateDecodeError::Inconsistent);
                }
                Some(Method::Overwrite { block: reader.take(len)?.to_vec(), passes, invert })
            }
            _ => return Err(StateDecodeError::Inconsistent),
        };
        Ok(Some(Self { kind, may_leave_failure, method: plan }))
    }
}

fn take_flag(reader: &mut Reader<'_>) -> Result<bool, StateDecodeError> {
    match reader.u8()? {
        0 => Ok(false),
        1 => Ok(true),
        _ => Err(StateDecodeError::Inconsistent),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_record_comes_back_and_no_other_is_taken() {
        let record =
            |kind, may_leave_failure, plan| Some(SanitizeJournal { kind, may_leave_failure, method: plan });
        let pattern = |len| Method::Overwrite { block: alloc::vec![7; len], passes: 31, invert: true };
        for kept in [
            None,
            record(Kind::Sanitize, true, None),
            record(Kind::Format, false, Some(Method::Erase)),
            record(Kind::Sanitize, false, Some(Method::CryptoErase { deallocates: true })),
            record(Kind::Sanitize, true, Some(pattern(512))),
            record(Kind::Sanitize, true, Some(pattern(PATTERN_LEN_MAX))),
        ] {
            let mut bytes = Vec::new();
            SanitizeJournal::encode(kept.as_ref(), &mut bytes);
            assert!(bytes.len() <= SanitizeJournal::ENCODED_LEN_MAX);
            let mut reader = Reader::new(&bytes);
            assert_eq!(SanitizeJournal::take(&mut reader), Ok(kept));
            assert!(reader.is_empty());
            for len in 0..bytes.len().min(600) {
                assert_eq!(
                    SanitizeJournal::take(&mut Reader::new(&bytes[..len])),
                    Err(StateDecodeError::Truncated)
                );
            }
        }
        for wrong in [
            &[5, 0, 0][..],
            &[1, 2, 0],
            &[1, 0, 2],
            &[3, 0, 0, 2],
            &[4, 0, 0, 0, 0, 0, 0, 0, 1, 9],
            &[4, 0, 0, 1, 0, 0, 0, 0, 0],
            &[4, 0, 0, 1, 0, 0, 1, 0, 1],
        ] {
            assert_eq!(
                SanitizeJournal::take(&mut Reader::new(wrong)),
                Err(StateDecodeError::Inconsistent),
                "{wrong:?}"
            );
        }
    }
}
