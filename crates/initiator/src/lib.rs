#![doc = include_str!("../README.md")]
//!
//! # Map
//!
//! * [`Client`] runs sessions on a thread of its own. [`Disk`] reads and writes bytes, [`LogicalUnit`]
//!   decodes what a unit reports about itself, and [`Session`] executes [`Command`]s with any CDB. Their
//!   functions are `async` or return a [`ResponseFuture`]; [`blocking`] has a disk without either.
//! * [`OpenOptions`] takes secrets and a watcher of [`Event`]s. [`Error`] is what can fail.
//! * [`discover`] lists the targets of a portal, and those of an Ethernet network.
//! * [`driver`] runs sessions in an event loop of yours.
//! * [`endpoint`] has the parts of a [`Url`].
//! * [`proxy`] carries the connections of other initiators on this host to a target, encrypted.
//! * [`unstable`] has the crates behind all this, whose types few programs need.
//!
//! Sizes and offsets are bytes unless a type says otherwise; times are [`std::time::Duration`].
//!
//! **Invariant:** knows nothing of the kernel's block layer, of command lines, and of how to print.
#![forbid(unsafe_code)]

pub mod blocking;
mod client;
mod command;
mod command_handle;
pub mod discover;
mod disk;
pub mod driver;
mod error;
mod fault_injection;
mod future;
mod hyperscsi_discovery;
mod identity;
mod login;
mod open;
mod protocol;
pub mod proxy;
mod retry;
mod session_error;
mod sessions;
mod unit;
mod url;

pub use base::buffer::{Bytes, DataList};
pub use base::units::Lba;
pub use iscsi::initiator::contract::{ConnectionLoss, SessionStats, Slot};
pub use scsi::block::Capacity;
pub use scsi::cdb::Cdb;
pub use scsi::inquiry::StandardInquiry;
pub use scsi::lun::Lun;
pub use scsi::sense::{Asc, Sense, SenseKey};
pub use scsi::status::Status;
pub use store::api::Durability;
pub use transport::command::TaskAttribute;
pub use transport::initiator::{Residual, SubmitError};
pub use transport::task_management::{TmfFunction, TmfResult};

pub use client::{Client, Session};
pub use command::{Command, CommandError, Reply};
pub use command_handle::{AbortHandle, CommandHandle};
pub use disk::{Disk, Geometry};
pub use error::Error;
pub use future::{ResponseFuture, block_on};
pub use identity::{Identity, OtherDevice, UnconfirmedDevice};
pub use login::PlanError;
pub use open::OpenOptions;
pub use session_error::{SessionError, SessionLoss};
pub use sessions::{AsyncMessage, EscalationStep, Event, Path, PathError, SessionUp};
pub use unit::{Caching, LogicalUnit};
pub use url::{BadUrl, EnvSecrets, SecretError, Secrets, Url};

/// The parts of a [`Url`], for programs that build one or read its options. The types of some options are
/// part of [`crate::unstable`].
pub mod endpoint {
    pub use iscsi::login::directory::TargetAddress;
    pub use iscsi::name::IscsiName;
    pub use security::opaque::Password;

    pub use crate::url::{
        AuthMethod, BadOption, Endpoint, KEYS, Login, OptionKey, Options, PASSWORD_VARIABLE, Protection,
        Scheme, TARGET_PASSWORD_VARIABLE, TlsOptions, Transport,
    };
}

/// The crates that this library is made of, **without any promise**: they change with every version, and
/// their types stand in few signatures here, which say so. They are for tools that look into the protocols.
pub mod unstable {
    pub use {base, drivers, hyperscsi, iscsi, scsi, store, tls, transport};
}
