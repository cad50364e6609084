//! Where an export is, and how it is connected to: an NBD server, or a block device over vhost-user.

use std::fmt;
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::time::Duration;

use ::nbd::handshake::ExportInfo;
use ::nbd::uri::NbdUri;
use backends::vhost_user::BlkLink;

use crate::os_error;

/// The address of an export.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::serve) enum ExportAddress {
    /// An export of an NBD server.
    Nbd(NbdUri),
    /// The block device of a process that listens on this socket.
    VhostUser(PathBuf),
}

/// A connection whose negotiation is complete.
#[derive(Debug)]
pub(in crate::serve) struct ExportConnection {
    pub(in crate::serve) socket: OwnedFd,
    pub(in crate::serve) info: ExportInfo,
    /// The queue in shared memory that carries the requests instead of the socket, and the eventfd that the
    /// other process signals.
    pub(in crate::serve) queue: Option<(Box<BlkLink>, OwnedFd)>,
    /// Whether another process has used the connection, and may still go on to use it.
    pub(in crate::serve) is_taken_over: bool,
}

impl ExportConnection {
    /// Returns a connection that another process gives to this one.
    pub(in crate::serve) const fn taken_over(info: ExportInfo, socket: OwnedFd) -> Self {
        Self { socket, info, queue: None, is_taken_over: true }
    }
}

/// An export is not connected to.
#[derive(Debug)]
pub(in crate::serve) struct NotConnected {
    /// A sentence that says why.
    pub(in crate::serve) why: String,
    /// Whether its server cannot be reached or does not answer, so that it may answer later.
    pub(in crate::serve) is_unreachable: bool,
}

impl NotConnected {
    fn of(error: &dyn std::error::Error, is_unreachable: bool) -> Self {
        let source = error.source().and_then(|source| source.downcast_ref::<std::io::Error>());
        let source = source.map_or(String::new(), |source| format!(": {}", os_error(source)));
        Self { why: format!("{error}{source}"), is_unreachable }
    }
}

/// What the owner of the exports provides.
pub(in crate::serve) struct NbdLinks {
    /// Starts an attempt to connect for the export of this number, without blocking.
    pub(in crate::serve) connect: Box<dyn Fn(u32, ExportAddress)>,
    /// Gives the reactor a connection for the export of this number.
    pub(in crate::serve) adopt: Box<dyn Fn(u32, ExportConnection)>,
    /// Ends the watch on the eventfd of the export of this number.
    pub(in crate::serve) unwatch: Box<dyn Fn(u32)>,
    /// Takes a sentence that says which writes of hosts may be missing on a server.
    pub(in crate::serve) lost: Box<dyn Fn(String)>,
}

impl fmt::Display for ExportAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Nbd(uri) => uri.fmt(f),
            Self::VhostUser(path) => write!(f, "vhost-user-blk:{}", path.display()),
        }
    }
}

impl ExportAddress {
    /// Returns whether it is that of a device of another process, whose requests go through a queue in shared
    /// memory.
    pub(in crate::serve) const fn is_device(&self) -> bool {
        matches!(self, Self::VhostUser(_))
    }

    /// Connects and negotiates, which blocks.
    ///
    /// # Errors
    /// [`NotConnected`]
    pub(in crate::serve) fn open(&self, patience: Duration) -> Result<ExportConnection, NotConnected> {
        match self {
            Self::Nbd(uri) => match backends::nbd::open(uri, patience) {
                Ok(backends::nbd::NbdConnection { socket, info }) => {
                    Ok(ExportConnection { socket, info, queue: None, is_taken_over: false })
                }
                Err(error) => Err(NotConnected::of(&error, error.is_unreachable())),
            },
            Self::VhostUser(path) => match backends::vhost_user::open_blk(path, patience) {
                Ok(backends::vhost_user::BlkConnection { socket, info, link, call }) => {
                    let queue = Some((Box::new(link), call));
                    Ok(ExportConnection { socket, info, queue, is_taken_over: false })
                }
                Err(error) => Err(NotConnected::of(&error, error.is_unreachable())),
            },
        }
    }
}
