//! Why a call of CSI fails: a gRPC code, by which the caller decides what to do next, and one sentence.

use std::io;
use std::path::Path;

use tonic::{Code, Status};

/// A failed call.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct CsiError {
    /// The code.
    pub code: Code,
    /// What is wrong, as a fragment.
    pub message: String,
}

/// The result of a call.
pub type CsiResult<T> = Result<T, CsiError>;

/// Makes the constructors of codes.
macro_rules! codes {
    ($($(#[$doc:meta])* $name:ident = $code:ident;)*) => {
        impl CsiError {
            $($(#[$doc])* pub fn $name(message: impl Into<String>) -> Self {
                Self { code: Code::$code, message: message.into() }
            })*
        }
    };
}

codes! {
    /// A field is missing or makes no sense.
    invalid = InvalidArgument;
    /// The volume, snapshot or node does not exist.
    not_found = NotFound;
    /// Something else with this name exists.
    exists = AlreadyExists;
    /// The size cannot be had.
    out_of_range = OutOfRange;
    /// The same call runs already, or a token is of another list.
    aborted = Aborted;
    /// The volume is in use, or the host cannot do it.
    precondition = FailedPrecondition;
    /// No space is left.
    exhausted = ResourceExhausted;
    /// A program that is needed does not run now.
    unavailable = Unavailable;
    /// The host failed.
    internal = Internal;
}

impl CsiError {
    /// Describes an error of the file system.
    pub fn io(what: &str, path: &Path, error: &io::Error) -> Self {
        let message = format!("cannot {what} {}: {error}", path.display());
        match error.kind() {
            io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => Self::exhausted(message),
            io::ErrorKind::FileTooLarge => Self::out_of_range(message),
            _ => Self::internal(message),
        }
    }
}

impl From<CsiError> for Status {
    fn from(error: CsiError) -> Self {
        Self::new(error.code, error.message)
    }
}
