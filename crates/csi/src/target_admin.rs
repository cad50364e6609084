//! What the controller asks of the daemon that serves the volumes.

use std::path::PathBuf;

use crate::error::CsiError;
use crate::protection::Protection;

/// The target of one volume, with LUN 0, as the daemon is to serve it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VolumeTarget {
    /// Its iSCSI name.
    pub name: String,
    /// The file of the volume.
    pub file: PathBuf,
    /// The size of the volume in bytes.
    pub bytes: u64,
    /// The world-wide name of the LUN, 16 hexadecimal digits.
    pub naa: String,
    /// The serial number of the LUN.
    pub serial: String,
    /// Keys of the LUN in the daemon's configuration, with their values.
    pub settings: Vec<(String, String)>,
    /// The least protection of every session with it.
    pub protection: Protection,
    /// The initiators that may use it. There is at least one: without an access list, a target is open.
    pub access: Vec<Access>,
}

/// An initiator that may use a volume.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Access {
    /// Its iSCSI name.
    pub initiator: String,
    /// Whether it may only read.
    pub read_only: bool,
    /// How it logs in.
    pub login: Login,
}

/// How an initiator proves who it is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Login {
    /// By CHAP, which protects no data.
    Chap {
        /// Its CHAP name.
        user: String,
        /// The file with its CHAP secret.
        secret_file: PathBuf,
    },
    /// By the password login, which gives the keys of a protected session.
    Password {
        /// The file with its password record.
        password_file: PathBuf,
    },
}

/// How strong a password is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Strength {
    /// 128 random bits: nobody can guess it.
    Random,
    /// A person may have chosen it.
    Chosen,
}

/// Why the daemon did not do what it was asked.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AdminError {
    /// It does not run, or does not answer.
    #[error("{0}")]
    Unavailable(String),
    /// It refused.
    #[error("{0}")]
    Refused(String),
}

impl From<AdminError> for CsiError {
    fn from(error: AdminError) -> Self {
        match error {
            AdminError::Unavailable(message) => Self::unavailable(message),
            AdminError::Refused(message) => Self::internal(message),
        }
    }
}

/// The daemon. Every change is in its configuration file and runs, or neither.
pub trait TargetAdmin: Send + Sync {
    /// Serves a target as described, whatever of it is served already. Initiators that are not in its access
    /// list lose their sessions.
    ///
    /// # Errors
    /// [`AdminError`]; nothing has changed then.
    fn serve(&self, target: &VolumeTarget) -> Result<(), AdminError>;

    /// Returns the contents of a password file, with the record of one user.
    ///
    /// # Errors
    /// [`AdminError`]
    fn password_records(&self, user: &str, password: &str, strength: Strength)
    -> Result<Vec<u8>, AdminError>;

    /// Serves a target no longer, and ends its sessions. Nothing happens if it is not served.
    ///
    /// # Errors
    /// [`AdminError`]; nothing has changed then.
    fn remove(&self, name: &str) -> Result<(), AdminError>;

    /// Copies the files of LUN 0 of targets, which are named with the new files, by reflink, all at one point
    /// in time. Returns of each whether it is served; if not, no file is made for it.
    ///
    /// # Errors
    /// [`AdminError`]; no file is made then, unless the daemon answers too late.
    fn snapshots(&self, wanted: &[(String, PathBuf)]) -> Result<Vec<bool>, AdminError>;

    /// Returns whether the daemon answers.
    fn is_alive(&self) -> bool;
}
