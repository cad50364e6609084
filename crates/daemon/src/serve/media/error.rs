//! The error of a medium that cannot be used.

use std::error::Error;

use crate::config::Unit;
use crate::luks::{ImageCause, ImageError};
use crate::{is_medium_fault, os_error};

/// A medium cannot be opened or extended.
#[derive(Debug, thiserror::Error)]
#[error("{unit}: {why}")]
pub struct MediaError {
    unit: String,
    why: String,
    cause: Cause,
}

/// What keeps a medium from being used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Cause {
    /// A mistake of the configuration, or another obstacle that is not the medium.
    Mistake,
    /// A server cannot be reached or does not answer, so that it may answer later.
    Unreachable,
    /// The secret opens no keyslot of the image.
    WrongSecret,
    /// The medium fails, or does not hold what it should.
    Fault,
}

impl MediaError {
    pub(in crate::serve) fn new(unit: &Unit, why: String) -> Self {
        Self { unit: unit.label.clone(), why, cause: Cause::Mistake }
    }

    pub(in crate::serve) fn of_server(unit: &Unit, why: String, is_unreachable: bool) -> Self {
        let cause = if is_unreachable { Cause::Unreachable } else { Cause::Mistake };
        Self { cause, ..Self::new(unit, why) }
    }

    /// Describes that a medium cannot be opened, with the cause of the error.
    pub(super) fn of_open(unit: &Unit, error: &(dyn Error + 'static)) -> Self {
        let source = error.source().and_then(|source| source.downcast_ref::<std::io::Error>());
        let cause = if source.is_some_and(is_medium_fault) { Cause::Fault } else { Cause::Mistake };
        Self { cause, ..Self::new(unit, describe_error(error)) }
    }

    pub(super) fn of_image(unit: &Unit, error: ImageError) -> Self {
        let ImageError { why, cause } = error;
        let cause = match cause {
            ImageCause::Mistake => Cause::Mistake,
            ImageCause::WrongSecret => Cause::WrongSecret,
            ImageCause::Fault => Cause::Fault,
        };
        Self { cause, ..Self::new(unit, why) }
    }

    /// Returns whether the secret is not that of the image, which only another secret or image changes.
    pub(in crate::serve) const fn is_wrong_secret(&self) -> bool {
        matches!(self.cause, Cause::WrongSecret)
    }

    /// Returns whether the medium fails, or does not hold what it should.
    pub(in crate::serve) const fn is_fault(&self) -> bool {
        matches!(self.cause, Cause::Fault)
    }

    /// Returns whether the medium is that of a server which cannot be reached or does not answer.
    pub(in crate::serve) const fn is_unreachable(&self) -> bool {
        matches!(self.cause, Cause::Unreachable)
    }
}

/// Formats an error with its cause.
pub(in crate::serve) fn describe_error(error: &(dyn Error + 'static)) -> String {
    match error.source().and_then(|source| source.downcast_ref::<std::io::Error>()) {
        Some(source) => format!("{error}: {}", os_error(source)),
        None => error.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use std::io;
    use std::path::PathBuf;

    use backends::open::OpenError;

    use super::*;
    use crate::scratch::Scratch;
    use crate::serve::media::tests::unit;

    #[test]
    fn an_error_of_the_medium_is_a_fault_and_others_are_mistakes() {
        let scratch = Scratch::new();
        let unit = unit(scratch.path(), "type = \"file\", path = \"a\"");
        for (errno, is_fault) in [
            (rustix::io::Errno::IO, true),
            (rustix::io::Errno::STALE, true),
            (rustix::io::Errno::NOMEDIUM, true),
            (rustix::io::Errno::ACCESS, false),
            (rustix::io::Errno::NOENT, false),
            (rustix::io::Errno::MFILE, false),
        ] {
            let error = OpenError::Query { path: PathBuf::from("a"), source: io::Error::from(errno) };
            assert_eq!(MediaError::of_open(&unit, &error).is_fault(), is_fault, "{errno}");
        }
    }
}
