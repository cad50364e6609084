//! A resolved configuration: every value is valid, every default is filled in, every reference is resolved.

use std::collections::BTreeMap;
use std::fmt;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use base::units::{BlockSize, ByteLen};
use device::contract::{DiscProfile, InquiryOverrides, TaskRules};
use device::rate_limit::RateLimit;

use hyperscsi::pdu::name::GroupName;
use iscsi::chap::{Algorithms, Credentials};
use iscsi::name::IscsiName;
use iscsi::negotiate::KeyPolicy;
use iscsi::target::contract::SessionLimits;
use nbd::uri::NbdUri;
use security::Level;
use security::opaque::PasswordRecord;
use security::password_file::PasswordFile;
use shard::config::InitiatorQuota;
use tls::ServerSettings;

use super::http_tokens::HttpTokens;
use super::names::NamePattern;
use crate::log;

/// A whole configuration.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Config {
    /// The directory for persistent state.
    pub state_dir: PathBuf,
    /// The Unix socket of the admin protocol.
    pub admin_socket: PathBuf,
    /// The group whose members may read the state of the daemon over that socket.
    pub admin_readers: Option<u32>,
    /// The least severe level that is logged.
    pub log: log::Level,
    /// The form of the log.
    pub log_format: log::Format,
    /// From which time on a command is slow, which is logged; `None` for no limit.
    pub slow_command: Option<Duration>,
    /// Whether sockets and files are driven by io_uring or epoll.
    pub reactor: ReactorChoice,
    /// The cores that reactors run on; empty means every core that the process may use.
    pub cores: Vec<u16>,
    /// Whether reactors busy-poll all the time instead of sleeping.
    pub poll: bool,
    /// Whether reactors poll for a short time before they sleep, where that helps.
    pub look: bool,
    /// The memory for data in flight, in bytes; `None` derives it from the number of reactors.
    pub memory: Option<ByteLen>,
    /// The most sessions in all.
    pub max_sessions: u16,
    /// The most connections in all.
    pub max_connections: u16,
    /// How long a login may take.
    pub login_timeout: Duration,
    /// The limits of a session whose target sets none.
    pub limits: SessionLimits,
    /// Whether initiator names are accepted that do not have the form of RFC 7143.
    pub lenient_names: bool,
    /// How long an initiator may accept none of the data sent to it; `None` waits without limit.
    pub send_timeout: Option<Duration>,
    /// The listening addresses; at least one, unless HyperSCSI is served.
    pub portals: Vec<Portal>,
    /// The HyperSCSI service, if it is configured.
    pub hyperscsi: Option<HyperScsiService>,
    /// The name servers, if there are any.
    pub isns: Option<Isns>,
    /// The HTTP server, if there is one.
    pub http: Option<Http>,
    /// The authentication of discovery sessions.
    pub discovery_auth: Auth,
    /// The initiators of each group, by its name.
    pub groups: BTreeMap<String, Vec<NamePattern>>,
    /// Every logical unit, once, even if several targets show it.
    pub units: Vec<Unit>,
    /// The media of shared LUNs that no target exports. They are not served.
    pub unexported: Vec<Medium>,
    /// The targets; at least one.
    pub targets: Vec<Target>,
}

/// The configured kind of reactor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReactorChoice {
    /// The best one that the kernel allows.
    Auto,
    /// io_uring only.
    Uring,
    /// epoll.
    Epoll,
}

/// A listening address.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Portal {
    /// The address.
    pub listen: SocketAddr,
    /// The address that SendTargets reports instead of the one that the initiator reached.
    pub announce: Option<Announced>,
    /// The name by which targets refer to this portal.
    pub name: Option<String>,
    /// The portal group tag.
    pub tag: u16,
    /// The certificate and the policy, if it accepts TLS connections only.
    pub tls: Option<ServerSettings>,
}

/// The HTTP server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Http {
    /// The address.
    pub listen: SocketAddr,
    /// The tokens, if clients must send one.
    pub tokens: Option<HttpTokens>,
    /// The names of this host, in lower case, that a request may have in its `Host` field besides addresses
    /// and `localhost`.
    pub hosts: Vec<String>,
    /// The certificate and the policy, if it accepts TLS connections only.
    pub tls: Option<ServerSettings>,
}

/// An announced address: a host name or address as RFC 7143 §13.8 writes it, and a port.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Announced {
    /// A host name, an IPv4 address, or an IPv6 address in brackets.
    pub host: String,
    /// The TCP port.
    pub port: u16,
}

impl fmt::Display for Announced {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.host, self.port)
    }
}

/// The name servers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Isns {
    /// Host and port of each server; 1 to 8.
    pub servers: Vec<Announced>,
    /// The Entity Identifier; `None` stands for the name of the first target.
    pub entity: Option<String>,
    /// The TCP port for inquiries and notifications; `None` stands for any free one.
    pub event_port: Option<u16>,
}

/// The HyperSCSI service: its interfaces and groups.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HyperScsiService {
    /// The names of the interfaces; at least one.
    pub interfaces: Vec<String>,
    /// The groups; at least one.
    pub groups: Vec<Group>,
}

impl HyperScsiService {
    /// The relative target port identifiers of target ports for HyperSCSI groups, which are used as portal
    /// group tags as well. Where HyperSCSI is served, iSCSI portals must have lower tags.
    pub const PORT_TAGS: std::ops::RangeInclusive<u16> = 0x8000..=0xffff;

    /// Returns the least protection level that the group's sessions must have; `none` if the group does not
    /// exist.
    pub fn min_protection(&self, name: &str) -> Level {
        self.groups
            .iter()
            .find(|group| *group.name == *name)
            .map_or(Level::None, |group| group.min_protection)
    }
}

/// The most groups: the number of bits of a [`GroupSet`].
pub(crate) const GROUPS_MAX: usize = 64;

/// A HyperSCSI group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Group {
    /// Its name.
    pub name: GroupName,
    /// What the target knows of its password, if it has one.
    pub password: Option<GroupSecret>,
    /// The least protection level that the sessions of its members must have.
    pub min_protection: Level,
    /// The interfaces on which it is served, as indices into [`HyperScsiService::interfaces`]; `None` for
    /// all.
    pub interfaces: Option<Vec<usize>>,
}

/// What the target knows of the password of a group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum GroupSecret {
    /// The password itself.
    Password(GroupPassword),
    /// The record of it.
    Record(Arc<PasswordRecord>),
}

/// The password of a group, as bytes. `Debug` does not print the bytes.
#[derive(Clone, PartialEq, Eq)]
pub struct GroupPassword(pub(crate) zeroize::Zeroizing<Vec<u8>>);

impl fmt::Debug for GroupPassword {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("GroupPassword")
    }
}

/// A set of groups of a configuration, as indices into [`HyperScsiService::groups`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GroupSet(u64);

impl GroupSet {
    /// The empty set.
    pub const NONE: Self = Self(0);
    /// The set of all groups.
    pub const ALL: Self = Self(u64::MAX);

    /// Returns the set with another group added.
    #[must_use]
    pub const fn with(self, span: usize) -> Self {
        Self(self.0 | 1 << (span % GROUPS_MAX))
    }

    /// Returns whether the set contains a group.
    pub const fn has(self, span: usize) -> bool {
        span < GROUPS_MAX && self.0 & (1 << span) != 0
    }
}

/// The authentication that is required of an initiator.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Auth {
    /// No authentication.
    None,
    /// The initiator proves that it knows a secret, by any of these methods.
    Required(AuthMethods),
}

impl Auth {
    /// Returns the password records, if there is a password login.
    pub const fn passwords(&self) -> Option<&Arc<PasswordFile>> {
        match self {
            Self::None => None,
            Self::Required(methods) => methods.passwords.as_ref(),
        }
    }
}

/// Methods of authentication; at least one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AuthMethods {
    /// CHAP.
    pub chap: Option<Chap>,
    /// The records of the password login, of any of whose users the initiator may be.
    pub passwords: Option<Arc<PasswordFile>>,
}

/// One-way or mutual CHAP.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Chap {
    /// The initiator's name and secret.
    pub user: Credentials,
    /// The target's name and secret, with which it authenticates itself when the initiator asks for mutual
    /// CHAP.
    pub own: Option<Credentials>,
    /// The accepted algorithms; at least one.
    pub algorithms: Algorithms,
}

/// The most units of a configuration: the number of LUNs that one initiator can see of one target.
pub const UNITS_MAX: u32 = 16_384;

/// Identifies a unit of a configuration: its index in [`Config::units`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct UnitIndex(pub usize);

/// A logical unit: a medium and its presentation to initiators.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unit {
    /// The name for display: the unit's name if it is shared, else `TARGET/LUN`.
    pub label: String,
    /// The medium that holds the data.
    pub medium: Medium,
    /// The logical block length.
    pub block_size: BlockSize,
    /// The physical block length that is reported.
    pub physical_block_size: BlockSize,
    /// Whether it is write-protected for every initiator.
    pub read_only: bool,
    /// Whether the unit is thin-provisioned: the storage of unmapped blocks is deallocated.
    pub thin: bool,
    /// Whether writes are acknowledged before they are durable.
    pub write_cache: bool,
    /// How long one operation of the medium may take; `None` for no limit.
    pub io_timeout: Option<Duration>,
    /// The limit of the rate of all commands.
    pub limit: RateLimit,
    /// The file with the secret that wraps the medium's key, if the medium is encrypted.
    pub encrypt: Option<PathBuf>,
    /// The size that atomic writes must be a multiple of, if that is restricted.
    pub atomic_block_size: Option<BlockSize>,
    /// Whether the medium is reported as removable.
    pub removable: bool,
    /// Whether 32-byte CDBs are supported.
    pub long_cdbs: bool,
    /// The rules for tasks of several initiators (the task set type TST and TAS).
    pub tasks: TaskRules,
    /// Values that override what the unit reports of its features.
    pub claims: InquiryOverrides,
    /// The identity that the unit reports.
    pub identity: Identity,
}

/// The medium of a unit's data.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Medium {
    /// A regular file.
    File {
        /// Its absolute path.
        path: PathBuf,
        /// The minimum length of the file, in bytes: a shorter file is made this long.
        size: Option<ByteLen>,
        /// Whether file access bypasses the page cache (`O_DIRECT`).
        direct: bool,
    },
    /// A block device.
    Block {
        /// Its absolute path.
        path: PathBuf,
        /// Whether access bypasses the page cache (`O_DIRECT`).
        direct: bool,
    },
    /// Memory.
    Ram {
        /// Its size.
        size: ByteLen,
    },
    /// No storage: reads return zeros.
    Null {
        /// Its size.
        size: ByteLen,
    },
    /// A drive for discs with an image in it.
    Disc {
        /// The absolute path of the image; the drive is empty while there is no file.
        path: PathBuf,
        /// The kind of disc, if it does not follow from the size of the image.
        profile: Option<DiscProfile>,
    },
    /// A tape drive with a cartridge in it.
    Tape {
        /// The absolute path of the folder of the cartridge.
        path: PathBuf,
    },
    /// An export of an NBD server.
    Nbd {
        /// Its address.
        uri: NbdUri,
        /// How long commands wait for the server; `None` for no limit.
        patience: Option<Duration>,
    },
    /// A block device of another process, over vhost-user.
    VhostUserBlk {
        /// The absolute path of its socket.
        path: PathBuf,
        /// How long commands wait for the process; `None` for no limit.
        patience: Option<Duration>,
    },
    /// A SCSI device of another process, over vhost-user, which commands are passed to.
    VhostUserScsi {
        /// The absolute path of its socket.
        path: PathBuf,
        /// How long commands wait for the process; `None` for no limit.
        patience: Option<Duration>,
        /// Whether initiators may send commands that change the device itself or erase it as a whole.
        dangerous_commands: bool,
    },
    /// The medium changer of a tape library. Its drives are the units after it.
    Changer {
        /// The absolute path of the folder of the library.
        path: PathBuf,
    },
    /// A tape drive of a library.
    LibraryDrive {
        /// The absolute path of the folder of the library.
        path: PathBuf,
        /// The number of the drive, from 1.
        number: u16,
    },
    /// A SCSI device of this host, which commands are passed to.
    Sg {
        /// The absolute path of its SG node.
        path: PathBuf,
        /// Whether initiators may send commands that change the device itself or erase it as a whole.
        dangerous_commands: bool,
        /// Whether it is served although this host uses it itself.
        shared_with_host: bool,
    },
}

impl Medium {
    /// Returns the path of a file or device.
    pub fn path(&self) -> Option<&PathBuf> {
        match self {
            Self::File { path, .. }
            | Self::Block { path, .. }
            | Self::Disc { path, .. }
            | Self::Tape { path }
            | Self::Changer { path }
            | Self::LibraryDrive { path, .. }
            | Self::Sg { path, .. } => Some(path),
            // A socket is not the data.
            Self::VhostUserBlk { .. } | Self::VhostUserScsi { .. } => None,
            Self::Ram { .. } | Self::Null { .. } | Self::Nbd { .. } => None,
        }
    }
}

/// Formats the medium as a LUN spec begins: `file:/srv/disk.img`, `ram:512M`.
impl fmt::Display for Medium {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::File { path, .. } => write!(f, "file:{}", path.display()),
            Self::Block { path, .. } => write!(f, "block:{}", path.display()),
            Self::Disc { path, .. } => write!(f, "disc:{}", path.display()),
            Self::Tape { path } => write!(f, "tape:{}", path.display()),
            Self::Nbd { uri, .. } => write!(f, "nbd:{uri}"),
            Self::VhostUserBlk { path, .. } => write!(f, "vhost-user-blk:{}", path.display()),
            Self::VhostUserScsi { path, .. } => write!(f, "vhost-user-scsi:{}", path.display()),
            Self::Changer { path } => write!(f, "changer:{}", path.display()),
            Self::LibraryDrive { path, number } => write!(f, "changer:{} drive {number}", path.display()),
            Self::Sg { path, .. } => write!(f, "sg:{}", path.display()),
            Self::Ram { size } => write!(f, "ram:{}", super::quantity::show_size(size.0)),
            Self::Null { size } => write!(f, "null:{}", super::quantity::show_size(size.0)),
        }
    }
}

/// The identity that a unit reports.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Identity {
    /// The unit serial number, 1 to 36 printable ASCII characters.
    pub serial: String,
    /// The world-wide name.
    pub naa: Naa,
    /// The vendor, at most 8 printable ASCII characters.
    pub vendor: String,
    /// The product, at most 16 printable ASCII characters.
    pub product: String,
    /// The revision, at most 4 printable ASCII characters.
    pub revision: String,
}

/// A world-wide name (SPC-4 §7.8.6: NAA).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Naa {
    /// 8 bytes: NAA 2h, 3h or 5h.
    Short([u8; 8]),
    /// 16 bytes: NAA 6h.
    Long([u8; 16]),
}

impl Naa {
    /// Returns the bytes.
    pub fn bytes(&self) -> &[u8] {
        match self {
            Self::Short(bytes) => bytes,
            Self::Long(bytes) => bytes,
        }
    }
}

impl fmt::Display for Naa {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.bytes().iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

/// A target.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Target {
    /// Its name.
    pub name: IscsiName,
    /// The alias, a name for display.
    pub alias: Option<String>,
    /// The portals that serve it, as indices into [`Config::portals`], in ascending order.
    pub portals: Vec<usize>,
    /// The HyperSCSI groups that it is exported to.
    pub groups: GroupSet,
    /// The most sessions.
    pub max_sessions: u16,
    /// The limits of each session.
    pub limits: SessionLimits,
    /// The policy for negotiating the keys of a session.
    pub keys: KeyPolicy,
    /// The authentication of every initiator for which no entry of the access list sets another.
    pub auth: Auth,
    /// Its LUNs, in ascending order of their numbers.
    pub luns: Vec<MappedLun>,
    /// The numbers that each of its LUN tables has, in the order of the tables.
    pub numbers: Vec<LunNumbers>,
    /// Its access list; `None` admits every initiator.
    pub acl: Option<Vec<AclEntry>>,
}

/// The numbers of a LUN table of a target.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LunNumbers {
    /// The number of the LUN itself.
    pub lun: u16,
    /// The numbers of the drives, if the LUN is the changer of a tape library.
    pub drives: Vec<u16>,
}

impl LunNumbers {
    /// Returns all numbers.
    pub fn all(&self) -> impl Iterator<Item = u16> {
        std::iter::once(self.lun).chain(self.drives.iter().copied())
    }
}

/// A unit under a LUN of a target.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MappedLun {
    /// The LUN, 0 to 16383.
    pub lun: u16,
    /// The unit.
    pub unit: UnitIndex,
    /// Whether the initiators that see the unit under this LUN are refused commands that change it. Apart
    /// from this, the unit itself may be write-protected for every initiator.
    pub read_only: bool,
    /// The least protection level that a session must have to see this LUN.
    pub protection: Level,
    /// The HyperSCSI groups that see the LUN, of those that the target is exported to.
    pub groups: GroupSet,
}

/// An entry of an access list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AclEntry {
    /// The patterns of initiator names that the entry applies to.
    pub initiators: Vec<NamePattern>,
    /// The LUNs that these initiators see, in ascending order.
    pub luns: Vec<MappedLun>,
    /// The authentication that is required of these initiators.
    pub auth: Auth,
    /// What each of these initiators may use of the target.
    pub quota: InitiatorQuota,
}
