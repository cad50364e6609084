//! What the two processes of a live upgrade tell each other.

use std::collections::BTreeMap;
use std::net::SocketAddr;

use serde::{Deserialize, Serialize};

use crate::serve::media::handed_over::MovedDisc;
use crate::serve::media::handed_over::MovedMedium;

/// The first message, from the process that takes over. Every release understands it.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(in crate::serve) struct Hello {
    /// [`super::document::MAGIC`].
    pub(in crate::serve) magic: String,
    /// The release.
    pub(in crate::serve) version: String,
    /// The version of the format that it reads ([`super::document::FORMAT`]).
    pub(in crate::serve) format: u32,
}

/// The answer to [`Hello`], with the descriptors of the sockets and media.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(in crate::serve) struct Welcome {
    /// The release.
    pub(in crate::serve) version: String,
    /// The configured address of each portal. The configuration of the other process can list the portals in
    /// another order.
    pub(in crate::serve) portals: Vec<SocketAddr>,
    /// The use of each descriptor, in order.
    pub(in crate::serve) sockets: Vec<Socket>,
    /// The number of reactors.
    pub(in crate::serve) reactors: usize,
    /// The reactor of each target.
    pub(in crate::serve) owners: BTreeMap<String, usize>,
    /// The number of each Ethernet interface.
    pub(in crate::serve) interfaces: Vec<(u32, String)>,
}

/// The use of a descriptor.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(in crate::serve) enum Socket {
    /// The listening socket of the portal at this index of [`Welcome::portals`].
    Portal(usize),
    /// A listening socket of the service manager, with the name that it has there.
    Activated(String),
    /// The listening socket of the admin API.
    Admin,
    /// The lock of that socket.
    AdminLock,
    /// The lock of the state directory.
    StateLock,
    /// The listening socket of the HTTP server.
    Http,
    /// A file or device of a LUN.
    Medium,
    /// The image of the disc in a drive.
    Disc {
        /// The NAA identifier of the drive.
        drive: String,
        /// The disc.
        disc: MovedDisc,
    },
    /// The lock of a tape library.
    Library {
        /// The NAA identifier of the changer.
        changer: String,
    },
}

impl From<MovedMedium> for Socket {
    fn from(medium: MovedMedium) -> Self {
        match medium {
            MovedMedium::File => Self::Medium,
            MovedMedium::Disc { drive, disc } => Self::Disc { drive, disc },
            MovedMedium::Library { changer } => Self::Library { changer },
        }
    }
}

/// What the process that takes over says later.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(in crate::serve) enum Answer {
    /// Everything is open that the configuration with this revision needs; `None` for a configuration of
    /// flags alone.
    Prepared(Option<String>),
    /// It has the sessions.
    Ready,
    /// It serves.
    Serving,
    /// It gives up, and has changed nothing.
    Failed(String),
}

/// The last message of the process that served. Without it, the other process ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(in crate::serve) struct Commit;
