//! The error of this library.

use std::convert::Infallible;
use std::fmt;

use scsi::block::BadCapacity;
use scsi::sense::Sense;

use iscsi::initiator::contract::ConnectionDown;
use iscsi::login::Status;
use iscsi::login::initiator::InitiatorLoginError;

use crate::command::CommandError;
use crate::endpoint::Endpoint;
use crate::future::Stopped;
use crate::login::PlanError;
use crate::session_error::SessionError;
use crate::url::BadUrl;

/// Why something failed. `source` has the cause, which `Display` does not repeat; [`Self::report`] displays
/// both. So does `Debug`: Rust prints that when `main` returns the error.
#[derive(thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The URL is not valid.
    #[error(transparent)]
    Url(#[from] BadUrl),
    /// No session can be planned from the URL, for example because a password is missing.
    #[error(transparent)]
    Plan(#[from] PlanError),
    /// The system cannot create the thread, the event loop or its memory.
    #[error("the initiator cannot start")]
    #[non_exhaustive]
    Start {
        /// The cause.
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// A network interface cannot be used.
    #[error(transparent)]
    Interface(Box<dyn std::error::Error + Send + Sync>),
    /// The login failed.
    #[error("cannot log in to {target}")]
    #[non_exhaustive]
    LogIn {
        /// The address and the name of the target, and the initiator name if the target refused the login.
        target: String,
        /// The cause.
        source: SessionError,
    },
    /// The unit of a URL cannot be used as a disk.
    #[error("cannot use {url}")]
    #[non_exhaustive]
    Unit {
        /// The URL.
        url: String,
        /// The cause.
        source: Box<Self>,
    },
    /// A command failed while targets or units were listed.
    #[error("discovery failed at {target}")]
    #[non_exhaustive]
    Discovery {
        /// The address, and the name of the target if there is one.
        target: String,
        /// The cause.
        source: CommandError,
    },
    /// A command failed.
    #[error(transparent)]
    Command(#[from] CommandError),
    /// There is no unit at this LUN.
    #[error("this target has no LUN {0}")]
    NoUnit(u16),
    /// The unit is no disk.
    #[error("LUN {lun} is not a disk but a device of type {device_type:02x}h")]
    #[non_exhaustive]
    NotADisk {
        /// The LUN.
        lun: u16,
        /// The PERIPHERAL DEVICE TYPE.
        device_type: u8,
    },
    /// The capacity that the unit reports is not usable.
    #[error("{0}")]
    Capacity(String),
    /// The offset or the length is no multiple of the logical block length.
    #[error(
        "offset {offset} and length {len} must be multiples of the logical block length, {block_size} bytes"
    )]
    #[non_exhaustive]
    Unaligned {
        /// The offset in bytes.
        offset: u64,
        /// The length in bytes.
        len: u64,
        /// The logical block length in bytes.
        block_size: u32,
    },
    /// The range extends beyond the end of the disk.
    #[error("{len} bytes at offset {offset} extend beyond the end of the disk, which has {size} bytes")]
    #[non_exhaustive]
    OutOfRange {
        /// The offset in bytes.
        offset: u64,
        /// The length in bytes.
        len: u64,
        /// The size of the disk in bytes.
        size: u64,
    },
    /// The unit does not support the operation.
    #[error("the unit does not support {0}")]
    Unsupported(&'static str),
}

impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.report())
    }
}

impl Error {
    /// Returns the sense data of the target, if a command ended with CHECK CONDITION.
    pub fn sense(&self) -> Option<&Sense> {
        self.command()?.sense()
    }

    /// Returns how a command failed, if a command did.
    pub fn command(&self) -> Option<&CommandError> {
        match self {
            Self::Command(source) | Self::Discovery { source, .. } => Some(source),
            Self::Unit { source, .. } => source.command(),
            _ => None,
        }
    }

    /// Returns whether the caller asked for something impossible, in contrast to a failed attempt.
    pub fn is_misuse(&self) -> bool {
        match self {
            Self::Url(_) | Self::Plan(_) | Self::Unaligned { .. } | Self::OutOfRange { .. } => true,
            Self::Unit { source, .. } => source.is_misuse(),
            _ => false,
        }
    }

    /// Returns whether the target may have refused what the initiator proved: it does not know the user,
    /// takes another password, or cannot check the response to its challenge, which tgt calls an error of the
    /// initiator.
    pub fn may_be_refused_authentication(&self) -> bool {
        match self {
            Self::LogIn { source, .. } => matches!(
                source.connection(),
                Some(ConnectionDown::Refused(Status::AUTHENTICATION_FAILURE | Status::INITIATOR_ERROR))
            ),
            Self::Unit { source, .. } => source.may_be_refused_authentication(),
            _ => false,
        }
    }

    /// Returns whether no portal of the portal group could be reached that the caller demands
    /// ([`crate::OpenOptions::portal_group`]).
    pub fn is_other_portal_group(&self) -> bool {
        match self {
            Self::LogIn { source, .. } => {
                source.connection() == Some(ConnectionDown::Login(InitiatorLoginError::OtherPortalGroup))
            }
            Self::Unit { source, .. } => source.is_other_portal_group(),
            _ => false,
        }
    }

    /// Returns the error with all its causes, for display.
    pub fn report(&self) -> impl fmt::Display {
        let mut text = self.to_string();
        let mut source = std::error::Error::source(self);
        while let Some(cause) = source {
            text = format!("{text}: {cause}");
            source = cause.source();
        }
        text
    }

    /// Makes the error for a login that failed. A target can refuse one initiator name and accept another, so
    /// that a refusal names the one that was used.
    pub(crate) fn of_login(target: String, place: &Endpoint, source: SessionError) -> Self {
        let is_refusal = matches!(source.connection(), Some(ConnectionDown::Refused(_)));
        let name = place.initiator_name().ok().filter(|_| is_refusal);
        let target = name.map_or(target.clone(), |name| format!("{target} as {name}"));
        Self::LogIn { target, source }
    }

    /// Makes the error for a unit that cannot be opened.
    pub fn of_unit(url: &crate::url::Url, source: Self) -> Self {
        Self::Unit { url: url.to_string(), source: Box::new(source) }
    }

    pub(crate) fn interface(source: impl std::error::Error + Send + Sync + 'static) -> Self {
        Self::Interface(Box::new(source))
    }

    pub(crate) fn start(source: impl std::error::Error + Send + Sync + 'static) -> Self {
        Self::Start { source: Box::new(source) }
    }
}

impl From<BadCapacity> for Error {
    fn from(why: BadCapacity) -> Self {
        Self::Capacity(why.to_string())
    }
}

impl From<Stopped> for Error {
    fn from(stopped: Stopped) -> Self {
        Self::Command(stopped.into())
    }
}

/// A [`crate::Url`] needs no parsing.
impl From<Infallible> for Error {
    fn from(never: Infallible) -> Self {
        match never {}
    }
}

#[cfg(test)]
mod tests {
    use std::error::Error as _;

    use super::*;

    #[test]
    fn a_refused_login_names_the_initiator() {
        let place = Endpoint::parse("iscsi://192.0.2.7?initiator=iqn.2026-01.com.example:host").unwrap();
        let refused = SessionError::refused_for_test(Status::AUTHORIZATION_FAILURE);
        let error = Error::of_login("192.0.2.7:3260".to_owned(), &place, refused);
        assert_eq!(error.to_string(), "cannot log in to 192.0.2.7:3260 as iqn.2026-01.com.example:host");
        let error = Error::of_login("192.0.2.7:3260".to_owned(), &place, SessionError::stopped("no route"));
        assert_eq!(error.to_string(), "cannot log in to 192.0.2.7:3260");
    }

    #[test]
    fn a_refused_authentication_is_not_taken_for_another_refusal() {
        let error =
            |status| Error::LogIn { target: String::new(), source: SessionError::refused_for_test(status) };
        assert!(error(Status::AUTHENTICATION_FAILURE).may_be_refused_authentication());
        assert!(error(Status::INITIATOR_ERROR).may_be_refused_authentication());
        assert!(!error(Status::AUTHORIZATION_FAILURE).may_be_refused_authentication());
        let url = "iscsi://192.0.2.7/iqn.2026-01.com.example:disk/3".parse().unwrap();
        assert!(Error::of_unit(&url, error(Status::AUTHENTICATION_FAILURE)).may_be_refused_authentication());
        assert!(!Error::NoUnit(3).may_be_refused_authentication());
    }

    #[test]
    fn an_error_that_main_returns_says_why() {
        let source = SessionError::refused_for_test(Status::NOT_FOUND);
        let error = Error::LogIn { target: "192.0.2.7:3260".to_owned(), source };
        let told = format!("{error:?}");
        assert_eq!(told, error.report().to_string());
        assert!(told.starts_with("cannot log in to 192.0.2.7:3260: "), "{told}");
        assert!(told.ends_with("the target does not exist"), "{told}");
        assert_eq!(format!("{:?}", Status::NOT_FOUND), "Status(0x0203: the target does not exist)");
    }

    #[test]
    fn an_error_and_its_sources_say_everything_once() {
        let down = SessionError::stopped("connection refused");
        let error =
            Error::LogIn { target: "192.0.2.7:3260/iqn.2026-01.com.example:disk".into(), source: down };
        assert_eq!(error.to_string(), "cannot log in to 192.0.2.7:3260/iqn.2026-01.com.example:disk");
        assert!(error.source().is_some() && !error.is_misuse());
        let url = "iscsi://192.0.2.7/iqn.2026-01.com.example:disk/3".parse().unwrap();
        let error = Error::of_unit(&url, Error::Command(CommandError::Busy));
        assert_eq!(error.source().unwrap().to_string(), CommandError::Busy.to_string());
        assert_eq!(error.command(), Some(&CommandError::Busy));
        assert_eq!(error.report().to_string(), format!("{error}: {}", CommandError::Busy));
        let error = Error::Unaligned { offset: 1, len: 512, block_size: 4096 };
        assert!(error.to_string().contains("4096 bytes") && error.is_misuse() && error.source().is_none());
    }
}
