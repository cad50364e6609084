//! What a configuration means: every value legal, every default filled in, every reference resolved.

use std::fmt;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use base::units::{BlockSize, ByteLen};
use device::contract::{InquiryOverrides, TaskRules};

use hyperscsi::aead::Level;
use hyperscsi::pdu::name::GroupName;
use iscsi::chap::{Algorithms, Credentials};
use iscsi::name::IscsiName;
use iscsi::negotiate::KeyPolicy;
use iscsi::target::engine::SessionLimits;

use super::names::NamePattern;
use crate::log;

/// A whole configuration.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Config {
    /// Where persistent state is kept.
    pub state_dir: PathBuf,
    /// The Unix socket of the admin protocol.
    pub admin_socket: PathBuf,
    /// How much is logged.
    pub log: log::Level,
    /// How sockets and files are driven.
    pub reactor: ReactorChoice,
    /// The cores that reactors run on; empty means every core that the process may use.
    pub cores: Vec<u16>,
    /// Whether reactors spin.
    pub poll: bool,
    /// Whether reactors look for more before they sleep, where that is of use.
    pub look: bool,
    /// The budget for data in flight; `None` goes by the number of reactors.
    pub memory: Option<ByteLen>,
    /// The most sessions in all.
    pub max_sessions: u16,
    /// The most connections in all.
    pub max_connections: u16,
    /// How long a login may take.
    pub login_timeout: Duration,
    /// What a session may do whose target says nothing else.
    pub limits: SessionLimits,
    /// Whether initiator names are taken that are not of the form of RFC 7143.
    pub lenient_names: bool,
    /// How long an initiator may take nothing of what is sent to it; `None` waits for ever.
    pub send_timeout: Option<Duration>,
    /// The listening addresses; at least one, or HyperSCSI is spoken.
    pub portals: Vec<Portal>,
    /// What is served by HyperSCSI.
    pub hyperscsi: Option<HyperScsiService>,
    /// Who may discover.
    pub discovery_auth: Auth,
    /// Every logical unit, once, however many targets show it.
    pub units: Vec<Unit>,
    /// The targets; at least one.
    pub targets: Vec<Target>,
}

/// The reactor that is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReactorChoice {
    /// The best that the kernel allows.
    Auto,
    /// io_uring or nothing.
    Uring,
    /// epoll.
    Epoll,
}

/// A listening address.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Portal {
    /// The address.
    pub listen: SocketAddr,
    /// The address that SendTargets names instead of the one that the initiator reached.
    pub announce: Option<Announced>,
    /// The name that targets use.
    pub name: Option<String>,
    /// The portal group tag.
    pub tag: u16,
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

/// What is served by HyperSCSI, and to whom.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HyperScsiService {
    /// The names of the interfaces; at least one.
    pub interfaces: Vec<String>,
    /// The groups; at least one.
    pub groups: Vec<Group>,
}

impl HyperScsiService {
    /// The portal group tags, so to speak, of the target ports that HyperSCSI groups come through.
    pub const PORT_TAGS: std::ops::RangeInclusive<u16> = 0x8000..=0xffff;

    /// Returns the least protection of whatever the members of a group do; `none` of one that is gone.
    pub fn min_protection(&self, name: &str) -> Level {
        self.groups
            .iter()
            .find(|group| *group.name == *name)
            .map_or(Level::None, |group| group.min_protection)
    }
}

/// The most groups: what a [`GroupSet`] can tell apart.
pub(crate) const GROUPS_MAX: usize = 64;

/// A HyperSCSI group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Group {
    /// Its name.
    pub name: GroupName,
    /// Its password, if it has one.
    pub password: Option<GroupPassword>,
    /// The least protection of whatever its members do.
    pub min_protection: Level,
    /// The interfaces on which it is served, as places in [`HyperScsiService::interfaces`]; `None` for all.
    pub interfaces: Option<Vec<usize>>,
}

/// The password of a group, as bytes. Nobody prints it by accident.
#[derive(Clone, PartialEq, Eq)]
pub struct GroupPassword(pub(crate) zeroize::Zeroizing<Vec<u8>>);

impl fmt::Debug for GroupPassword {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("GroupPassword")
    }
}

/// Some of the groups of a configuration, by their places.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GroupSet(u64);

impl GroupSet {
    /// None of them.
    pub const NONE: Self = Self(0);
    /// All of them.
    pub const ALL: Self = Self(u64::MAX);

    /// Returns the set with another group in it.
    #[must_use]
    pub const fn with(self, span: usize) -> Self {
        Self(self.0 | 1 << (span % GROUPS_MAX))
    }

    /// Returns whether a group is in it.
    pub const fn has(self, span: usize) -> bool {
        span < GROUPS_MAX && self.0 & (1 << span) != 0
    }
}

/// What an initiator must prove.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Auth {
    /// Nothing.
    None,
    /// That it knows a secret.
    Chap(Chap),
}

/// One-way or mutual CHAP.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Chap {
    /// The initiator's name and secret.
    pub user: Credentials,
    /// The target's, if it proves itself when asked.
    pub own: Option<Credentials>,
    /// The accepted algorithms; at least one.
    pub algorithms: Algorithms,
}

/// The most units of a configuration: as many as one initiator can see of one target.
pub const UNITS_MAX: u32 = 16_384;

/// Names a unit of a configuration: its place in [`Config::units`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct UnitIndex(pub usize);

/// A logical unit: a medium and how it presents itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unit {
    /// What people call it: its name if it is shared, else `TARGET/LUN`.
    pub label: String,
    /// Where its data is.
    pub medium: Medium,
    /// The length of a logical block.
    pub block_size: BlockSize,
    /// The length of a physical block that is reported.
    pub physical_block_size: BlockSize,
    /// Whether it is write-protected for everyone.
    pub read_only: bool,
    /// Whether unmapped blocks give their storage back.
    pub thin: bool,
    /// Whether writes are acknowledged before they are durable.
    pub write_cache: bool,
    /// How long the medium may take for one operation; `None` for as long as it wants.
    pub io_timeout: Option<Duration>,
    /// The file with the secret that protects the key which the medium is encrypted with, if it is.
    pub encrypt: Option<PathBuf>,
    /// What atomic writes are multiples of, if that is restricted.
    pub atomic_block_size: Option<BlockSize>,
    /// Whether the medium is reported as removable.
    pub removable: bool,
    /// Whether the 32-byte commands are offered.
    pub long_cdbs: bool,
    /// How tasks of several initiators stand to each other.
    pub tasks: TaskRules,
    /// What it claims of what it can.
    pub claims: InquiryOverrides,
    /// Who it says it is.
    pub identity: Identity,
}

/// Where a unit's data is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Medium {
    /// A regular file.
    File {
        /// Its absolute path.
        path: PathBuf,
        /// The length it is at least given.
        size: Option<ByteLen>,
        /// Whether it bypasses the page cache.
        direct: bool,
    },
    /// A block device.
    Block {
        /// Its absolute path.
        path: PathBuf,
        /// Whether it bypasses the page cache.
        direct: bool,
    },
    /// Memory.
    Ram {
        /// Its size.
        size: ByteLen,
    },
    /// Zeros.
    Null {
        /// Its size.
        size: ByteLen,
    },
}

impl Medium {
    /// Returns the path of a file or device.
    pub fn path(&self) -> Option<&PathBuf> {
        match self {
            Self::File { path, .. } | Self::Block { path, .. } => Some(path),
            Self::Ram { .. } | Self::Null { .. } => None,
        }
    }
}

/// As a LUN spec begins: `file:/srv/disk.img`, `ram:512M`.
impl fmt::Display for Medium {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::File { path, .. } => write!(f, "file:{}", path.display()),
            Self::Block { path, .. } => write!(f, "block:{}", path.display()),
            Self::Ram { size } => write!(f, "ram:{}", super::quantity::show_size(size.0)),
            Self::Null { size } => write!(f, "null:{}", super::quantity::show_size(size.0)),
        }
    }
}

/// Who a unit says it is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Identity {
    /// The unit serial number, 1 to 36 printable ASCII characters.
    pub serial: String,
    /// The world-wide name.
    pub naa: Naa,
    /// At most 8 printable ASCII characters.
    pub vendor: String,
    /// At most 16 printable ASCII characters.
    pub product: String,
    /// At most 4 printable ASCII characters.
    pub revision: String,
}

/// A world-wide name (SPC-5 §7.7.6.6: NAA).
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
    /// A name for people.
    pub alias: Option<String>,
    /// The portals it is reached over, as places in [`Config::portals`], in ascending order.
    pub portals: Vec<usize>,
    /// The HyperSCSI groups that it is exported to.
    pub groups: GroupSet,
    /// The most sessions.
    pub max_sessions: u16,
    /// What each session may do.
    pub limits: SessionLimits,
    /// What it agrees to in a session.
    pub keys: KeyPolicy,
    /// What every initiator must prove, unless an entry of the access list says otherwise.
    pub auth: Auth,
    /// Its LUNs, in ascending order of their numbers.
    pub luns: Vec<MappedLun>,
    /// Its access list; `None` lets everyone in.
    pub acl: Option<Vec<AclEntry>>,
}

/// A unit under a number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MappedLun {
    /// The number, 0 to 16383.
    pub lun: u16,
    /// The unit.
    pub unit: UnitIndex,
    /// Whether those who see it here may change nothing that others meet. It may be write-protected for everyone besides.
    pub read_only: bool,
    /// The least protection with which it is reached.
    pub protection: Level,
    /// The HyperSCSI groups that see it, of those that the target is exported to.
    pub groups: GroupSet,
}

/// An entry of an access list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AclEntry {
    /// Whom it fits.
    pub initiators: Vec<NamePattern>,
    /// What they see, in ascending order of the numbers.
    pub luns: Vec<MappedLun>,
    /// What they must prove.
    pub auth: Auth,
}
