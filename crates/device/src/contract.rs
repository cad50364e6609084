//! The interface between a transport and a logical unit: the services of SAM-5 §5.4, as values.

use alloc::boxed::Box;
use alloc::rc::Rc;
use alloc::string::String;
use alloc::vec::Vec;
use core::cell::RefCell;

use base::buffer::DataList;
use base::time::Duration;
use base::units::{BlockSize, Blocks, Lba};
use scsi::cdb::Cdb;
use scsi::lun::Lun;
use scsi::sense::{Asc, Sense, SenseKey};
use scsi::status::{Status, TaskAttribute};
use security::Level;

use crate::library::LibraryEvent;
use crate::rate_limit::{Limiter, RateLimit};

/// An I_T nexus, as the target numbers it. A number is used again only after `nexus_lost`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct NexusId(pub u32);

impl NexusId {
    /// Not a nexus: the unit itself. No target numbers so many.
    pub(crate) const OWN: Self = Self(u32::MAX);
}

/// A task, as its transport names it. The key is unique among the tasks that exist; the unit returns it
/// unchanged.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TaskKey(pub u64);

/// A task management request, as its transport names it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct TmfKey(pub u64);

/// The relative port identifier of a target port (SAM-5 §4.6.5.2): 1 and up.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RelativePort(pub u16);

/// What a logical unit must know of an I_T nexus.
#[derive(Clone, Debug)]
pub struct Nexus {
    /// The number of the nexus.
    pub id: NexusId,
    /// The initiator port as a TransportID (SPC-5 §7.6.4). It persists across sessions: registrations belong
    /// to it.
    pub initiator_port: Rc<[u8]>,
    /// The initiator *device* part of the TransportID, for matching SPEC_I_PT and for display (an iSCSI
    /// name).
    pub initiator_name: Rc<str>,
    /// The target port that the nexus reaches.
    pub target_port: RelativePort,
    /// Which access the nexus has to this unit.
    pub access: Access,
    /// Whether the transport carries QUERY TASK, QUERY TASK SET, QUERY ASYNCHRONOUS EVENT and I_T NEXUS RESET
    /// for this nexus, as iSCSI does from iSCSIProtocolLevel 2 on (RFC 7144).
    pub rfc_7144_functions: bool,
    /// The units that the nexus may see, sorted by LUN: for REPORT LUNS and third-party copies. Replaced when
    /// the LUN map changes.
    pub luns: Rc<[Lun]>,
    /// The limit of the initiator, which its nexuses share over all units.
    pub limiter: Option<Rc<RefCell<Limiter>>>,
}

/// The access of a nexus to a unit, in addition to what the unit itself allows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// Every command.
    ReadWrite,
    /// No command that changes something another nexus observes: such commands end with WRITE PROTECTED, and
    /// resets of the unit are not authorized.
    ReadOnly,
}

/// A command to execute (SAM-5 §5.4).
#[derive(Clone, Debug)]
pub struct Command {
    /// The nexus that sent the command.
    pub nexus: NexusId,
    /// The key of the task in every later event.
    pub key: TaskKey,
    /// The protection of the command. A third-party copy reaches only units that require no more.
    pub level: Level,
    /// The task attribute: when the task may run relative to others in the task set.
    pub attribute: TaskAttribute,
    /// The command priority, 1 (highest) to 15; 0 for none (SAM-5 §8). It is a hint for the order in which a
    /// device server works on SIMPLE tasks. A logical unit starts these in the order of arrival, and the
    /// medium may complete them in any order.
    pub priority: u8,
    /// The command descriptor block.
    pub cdb: Cdb,
    /// How many bytes the initiator is ready to receive. The unit sends no more.
    pub data_in_len: u32,
    /// How many bytes the initiator is ready to send. The unit fetches no more.
    pub data_out_len: u32,
}

/// Why bytes of the Data-Out buffer were not received.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum DataOutFault {
    /// The data failed its digest (RFC 7143 §7.8).
    Digest,
    /// Less unsolicited data was received than was announced.
    NotEnoughUnsolicited,
    /// Unsolicited data was received although none is allowed.
    UnexpectedUnsolicited,
    /// The data was received in the wrong order, or outside the range that was requested.
    Sequence,
}

impl DataOutFault {
    /// Returns the sense data that ends the command (RFC 7143 §11.4.7.2).
    pub const fn sense(self) -> Sense {
        Sense::new(
            SenseKey::ABORTED_COMMAND,
            match self {
                Self::Digest => Asc::PROTOCOL_SERVICE_CRC_ERROR,
                Self::NotEnoughUnsolicited => Asc::NOT_ENOUGH_UNSOLICITED_DATA,
                Self::UnexpectedUnsolicited => Asc::UNEXPECTED_UNSOLICITED_DATA,
                Self::Sequence => Asc::DATA_PHASE_ERROR,
            },
        )
    }
}

/// What a logical unit requests or reports.
#[derive(Debug)]
pub enum UnitEvent {
    /// Fetch bytes `offset..offset + len` of the Data-Out buffer and pass them to `data_out` in one call.
    /// Several fetches may be open for one task. A fetch never goes beyond the command's `data_out_len`.
    FetchDataOut {
        /// The task.
        key: TaskKey,
        /// The first byte, as an offset into the Data-Out buffer.
        offset: u32,
        /// How many bytes; never zero.
        len: u32,
    },
    /// Deliver `data` at `offset` of the Data-In buffer. The unit sends the data in order, without gaps, and
    /// never beyond `data_in_len`.
    DataIn {
        /// The task.
        key: TaskKey,
        /// The first byte, as an offset into the Data-In buffer.
        offset: u32,
        /// The bytes.
        data: DataList,
    },
    /// The task ended (SAM-5 Send Command Complete); its key is free again.
    CommandComplete {
        /// The task.
        key: TaskKey,
        /// Its status.
        status: Status,
        /// Sense data, when the status is CHECK CONDITION (or GOOD with COMPLETED sense).
        sense: Option<Box<SenseBytes>>,
        /// How many bytes the device server would have transferred had the initiator's buffer been large
        /// enough. The transport derives residual counts from this number.
        transferable: u64,
    },
    /// A task management function ended.
    TmfComplete {
        /// The request.
        key: TmfKey,
        /// The outcome of the function.
        outcome: TmfOutcome,
    },
    /// A task was aborted without a response (by its own nexus, or by another with TAS clear); its key is
    /// free.
    Aborted {
        /// The task.
        key: TaskKey,
    },
    /// Store `state` so that it survives a crash and a loss of power, then call `state_saved(ticket, …)`. The
    /// unit answers the command that changed the state only then (APTPL, SPC-5 §5.14.5).
    SaveState {
        /// Names the request.
        ticket: u64,
        /// The whole state for the next start; it replaces the state that was stored before.
        state: Vec<u8>,
    },
    /// A third-party copy needs another unit; see [`ThirdPartyRequest`].
    ThirdPartyCall(Box<ThirdPartyCall>),
    /// The answer to a call from another unit.
    ThirdPartyReply {
        /// The unit and call that the answer is for.
        caller: ThirdPartyCaller,
        /// The result of the call.
        result: ThirdPartyResult,
    },
    /// A medium changer or a drive in it needs the owner of the library, or answers it.
    Library(LibraryEvent),
}

/// Encoded sense data, in the format the unit's control mode page asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SenseBytes {
    bytes: [u8; SenseBytes::LEN_MAX],
    len: usize,
    is_unit_attention: bool,
}

impl SenseBytes {
    /// The longest sense data: as much as hosts keep (`SCSI_SENSE_BUFFERSIZE` of Linux).
    pub const LEN_MAX: usize = 96;

    /// Takes sense data over from a device, up to [`Self::LEN_MAX`] bytes.
    pub fn from_device(from: &[u8]) -> Self {
        let mut bytes = [0; Self::LEN_MAX];
        let len = from.len().min(Self::LEN_MAX);
        for (to, from) in bytes.iter_mut().zip(from) {
            *to = *from;
        }
        let is_unit_attention = Sense::parse(from).is_ok_and(|sense| sense.key == SenseKey::UNIT_ATTENTION);
        Self { bytes, len, is_unit_attention }
    }

    /// Encodes `sense` in descriptor or fixed format.
    pub fn new(sense: &Sense, descriptor_format: bool) -> Self {
        let mut encoded = [0; Sense::MAX_LEN];
        let len = sense.encode(descriptor_format, &mut encoded);
        let mut bytes = [0; Self::LEN_MAX];
        for (to, from) in bytes.iter_mut().zip(encoded) {
            *to = from;
        }
        Self { bytes, len, is_unit_attention: sense.key == SenseKey::UNIT_ATTENTION }
    }

    /// Returns the bytes.
    pub fn bytes(&self) -> &[u8] {
        self.bytes.get(..self.len).unwrap_or_default()
    }

    /// Returns the sense key; `None` if a device sent something else than sense data.
    pub fn key(&self) -> Option<SenseKey> {
        Sense::parse(self.bytes()).ok().map(|sense| sense.key)
    }

    /// Returns whether they report a unit attention condition.
    pub const fn is_unit_attention(&self) -> bool {
        self.is_unit_attention
    }
}

/// Task management functions (SAM-5 §7, RFC 7144).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Tmf {
    /// Abort one task of the requesting nexus.
    AbortTask(TaskKey),
    /// Abort all tasks of the requesting nexus on this unit.
    AbortTaskSet,
    /// Abort all tasks on this unit.
    ClearTaskSet,
    /// Clear an auto contingent allegiance (never established: NormACA is refused).
    ClearAca,
    /// Reset this unit.
    LogicalUnitReset,
    /// Reset this unit as part of a reset of its target.
    TargetReset,
    /// I_T nexus reset: has the effects of a nexus loss, but the nexus remains.
    NexusReset,
    /// Report whether one task is in the task set.
    QueryTask(TaskKey),
    /// Report whether the nexus has any task in the task set.
    QueryTaskSet,
    /// Report whether a unit attention is pending for the nexus.
    QueryAsynchronousEvent,
}

/// The outcome of a task management function.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum TmfOutcome {
    /// The function is complete. For a query: it found nothing.
    Complete,
    /// The function is complete, and a query found something.
    Succeeded,
    /// A query found something; the three bytes are the SAM-5 §7.10 additional response information.
    SucceededWith([u8; 3]),
    /// The task does not exist.
    NoSuchTask,
    /// The function is not supported.
    NotSupported,
    /// The nexus may not perform the function.
    NotAuthorized,
}

/// Identifies a call from one unit to another, on the caller's side.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ThirdPartyCaller {
    /// The number that the target gives the calling unit; the target fills it in.
    pub unit: u32,
    /// The number of the call.
    pub call: u32,
}

/// A call that a copy manager makes to a unit (perhaps its own) on behalf of a nexus.
///
/// The target routes the call to a unit **that the nexus may see**, at the level of the call, and to no
/// other. It answers every other call with [`ThirdPartyError::NotReachable`], so that a copy can never reach
/// a unit that its command cannot reach (CVE-2020-28374).
#[derive(Debug)]
pub struct ThirdPartyCall {
    /// The number of the call; returned with the answer.
    pub call: u32,
    /// The nexus on whose behalf the call is made.
    pub nexus: NexusId,
    /// The protection of the command that requested the copy.
    pub level: Level,
    /// The unit that is called.
    pub unit: ThirdPartyUnit,
    /// The request.
    pub request: ThirdPartyRequest,
}

/// How a third-party copy names a unit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ThirdPartyUnit {
    /// By a designation descriptor of VPD page 83h: (code set, designator type, designator).
    Designator {
        /// Code set (SPC-5 §4.3.3).
        code_set: u8,
        /// Designator type.
        kind: u8,
        /// The designator.
        designator: Vec<u8>,
    },
    /// By the LUN under which the nexus sees the unit.
    Lun(Lun),
}

/// What a copy manager requests from a unit.
#[derive(Debug)]
pub enum ThirdPartyRequest {
    /// Return capacity and block size.
    Describe,
    /// Read blocks, as a READ of the nexus would: reservations, access and range locks apply.
    Read {
        /// First block.
        lba: Lba,
        /// How many.
        blocks: Blocks,
    },
    /// Write blocks, as a WRITE of the nexus would.
    Write {
        /// First block.
        lba: Lba,
        /// The bytes: whole blocks.
        data: DataList,
    },
    /// Make blocks read as zeros, as a WRITE SAME with UNMAP of the nexus would.
    Zero {
        /// First block.
        lba: Lba,
        /// How many.
        blocks: Blocks,
    },
    /// Read the data that a ROD token of this unit represents.
    ReadToken {
        /// The token as POPULATE TOKEN created it.
        token: Rc<[u8]>,
        /// The first block, as an offset into the token's data.
        offset: Blocks,
        /// How many. The answer may have fewer blocks, but at least one, where the token's data consists of
        /// several ranges.
        blocks: Blocks,
    },
    /// Make every write of this nexus durable.
    Flush,
}

/// The answer to a [`ThirdPartyRequest`].
pub type ThirdPartyResult = Result<ThirdPartyReply, ThirdPartyError>;

/// A success.
#[derive(Debug)]
pub enum ThirdPartyReply {
    /// Answers `Describe`.
    Description {
        /// Number of blocks.
        blocks: Blocks,
        /// Their size.
        block_size: BlockSize,
        /// Peripheral device type.
        device_type: u8,
    },
    /// Answers `Read` and `ReadToken`.
    Data(DataList),
    /// Answers the other requests.
    Done,
}

/// A failure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ThirdPartyError {
    /// No unit of that name is visible to this nexus.
    NotReachable,
    /// The unit answered with this status and sense.
    Status(Status, Option<Sense>),
}

/// The configuration of a logical unit, which is fixed while it serves; `reconfigure` changes it.
#[derive(Clone, Debug)]
pub struct UnitConfig {
    /// The names of the unit.
    pub identity: Identity,
    /// The type of the device.
    pub device: DeviceKind,
    /// Logical block size.
    pub block_size: BlockSize,
    /// log2 of logical blocks per physical block (READ CAPACITY(16), SBC-4 §5.21).
    pub physical_exponent: u8,
    /// Whether the unit is write-protected for every initiator.
    pub read_only: bool,
    /// Whether the unit reports a removable medium (RMB).
    pub removable: bool,
    /// Whether the unit accepts the 32-byte commands. They exist for protection information of type 2; a
    /// device server without it need not support them (SBC-4 §5.19).
    pub long_cdbs: bool,
    /// The granularity and alignment of atomic writes, in blocks: each is a whole multiple of this many
    /// blocks and begins at a multiple of it. 1 for no restriction.
    pub atomic_blocks: u32,
    /// Whether the unit reports thin provisioning (LBPME) and accepts UNMAP.
    pub thin: bool,
    /// Whether the write cache is enabled at the start (WCE).
    pub write_cache: bool,
    /// Overrides of the capabilities that the unit reports.
    pub overrides: InquiryOverrides,
    /// How tasks of several nexuses affect each other.
    pub tasks: TaskRules,
    /// How many tasks the unit holds before TASK SET FULL.
    pub task_set_max: u16,
    /// How long one operation of the medium may take before its command fails; `None` for no limit.
    pub io_timeout: Option<Duration>,
    /// The limit of the rate at which the unit executes commands of all nexuses.
    pub limit: RateLimit,
    /// The longest single transfer in blocks (VPD B0h MAXIMUM TRANSFER LENGTH). A unit with less than
    /// [`THIRD_PARTY_TRANSFER_MAX`] bytes cannot take part in every copy.
    pub transfer_blocks_max: u32,
    /// The target ports through which initiators reach the unit, sorted by relative port.
    pub ports: Rc<[TargetPort]>,
}

/// The type of a device.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum DeviceKind {
    /// A disk: a direct access block device (SBC-4).
    #[default]
    Disk,
    /// A drive for read-only CDs, DVDs and BDs (MMC-6). Its logical blocks have 2048 bytes, and its medium is
    /// removable. A store without a byte is a drive without a disc.
    Disc {
        /// The kind of disc; `None` for the smallest kind that holds the image.
        profile: Option<DiscProfile>,
    },
    /// A tape drive (SSC-4). Its store holds the files of one cartridge, each byte at the address that
    /// [`cartridge::io::FileId::address`] returns. A store without a byte is a drive without a cartridge.
    Tape,
    /// A medium changer (SMC-3). Its store has no byte.
    Changer,
    /// A device of any type, which the store passes commands to ([`store::api::DeviceInfo`]). Block lengths,
    /// names and the type of the medium in the configuration do not apply.
    PassThrough {
        /// Whether initiators may send commands that change the device itself or erase it as a whole.
        dangerous_commands: bool,
    },
}

/// The kind of a read-only disc (MMC-6: profiles).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum DiscProfile {
    /// CD-ROM.
    Cd,
    /// DVD-ROM.
    Dvd,
    /// BD-ROM.
    Bd,
}

impl DiscProfile {
    /// Returns how many logical blocks a disc of this kind can have. Every address of a CD must fit into
    /// minutes, seconds and frames; a DVD-ROM has at most two layers; a block address has 32 bits.
    pub const fn blocks_max(self) -> Blocks {
        match self {
            Self::Cd => Blocks(449_849),
            Self::Dvd => Blocks(4_173_824),
            Self::Bd => Blocks(1 << 32),
        }
    }
}

/// How tasks of several nexuses affect each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TaskRules {
    /// Whether every nexus has a task set of its own (TST 001b). Otherwise all nexuses share one (TST 000b),
    /// and one nexus that sends an ORDERED command without its data blocks every other nexus.
    pub nexus_task_sets: bool,
    /// Whether a task that another nexus aborts ends with TASK ABORTED (TAS). Otherwise its initiator
    /// receives only a unit attention with its next command.
    pub task_aborted_status: bool,
}

impl TaskRules {
    /// One task set for all nexuses, and no TASK ABORTED: the behaviour of disks with one initiator.
    pub const SHARED: Self = Self { nexus_task_sets: false, task_aborted_status: false };
}

impl Default for TaskRules {
    /// Returns rules with both enabled.
    fn default() -> Self {
        Self { nexus_task_sets: true, task_aborted_status: true }
    }
}

/// Overrides of the capabilities that a unit reports, for initiators that need fewer. A capability that is
/// not reported is not provided either.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InquiryOverrides {
    /// The standards that the unit reports.
    pub level: SpcLevel,
    /// Whether unmapped blocks read as zeros (LBPRZ), if those of the medium do.
    pub unmapped_zeros: bool,
    /// Whether WRITE SAME of no blocks writes to the end of the medium (WSNZ clear).
    pub write_same_to_end: bool,
    /// MEDIUM ROTATION RATE: 0 for not reported, 1 for a non-rotating medium, else revolutions per minute.
    /// `None` for the rate of the medium.
    pub rotation_rate: Option<u16>,
    /// MAXIMUM COMPARE AND WRITE LENGTH in blocks, as far as memory allows; at least 1.
    pub compare_and_write_max: u8,
}

impl Default for InquiryOverrides {
    /// Returns overrides that report every capability.
    fn default() -> Self {
        Self {
            level: SpcLevel::Spc4,
            unmapped_zeros: true,
            write_same_to_end: true,
            rotation_rate: None,
            compare_and_write_max: u8::MAX,
        }
    }
}

/// The standards that a unit reports: the VERSION of its INQUIRY data, its version descriptors, and the
/// commands that it supports.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum SpcLevel {
    /// SPC-3, and SBC-3 as far as SPC-3 allows: no copies with four-byte list identifiers, no ROD tokens, no
    /// VPD page 8Fh, no WRITE ATOMIC. CSCD descriptors have the LU ID TYPE and NUL fields that SPC-4 removed.
    Spc3,
    /// SPC-4 in the VERSION field; only version descriptors report SPC-5 and SBC-4.
    Spc4,
    /// SPC-5 in the VERSION field as well.
    Spc5,
}

/// The longest read or write, in bytes, that a copy manager requests from another unit: a piece of a copy,
/// and one more block at either end where the block sizes of both units differ.
pub const THIRD_PARTY_TRANSFER_MAX: u32 = (512 << 10) + 2 * 4096;

/// The most bytes that one command of a tape drive transfers: the length of the longest block.
pub const TAPE_TRANSFER_MAX: u32 = 8 << 20;

/// A target port, for VPD page 83h, REPORT TARGET PORT GROUPS and READ FULL STATUS.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TargetPort {
    /// The relative target port identifier.
    pub relative: RelativePort,
    /// The target port group.
    pub group: u16,
    /// The SCSI name string of the port: `iqn…,t,0x0001` (RFC 7143 §4.4.2).
    pub port_name: String,
    /// The SCSI name string of the target device: `iqn…`.
    pub device_name: String,
    /// PROTOCOL IDENTIFIER (SPC-5 §7.6): 5h for iSCSI.
    pub protocol: u8,
}

/// The names of a logical unit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Identity {
    /// T10 vendor identification: ASCII, space-padded.
    pub vendor: [u8; 8],
    /// Product identification: ASCII, space-padded.
    pub product: [u8; 16],
    /// Product revision level: ASCII, space-padded.
    pub revision: [u8; 4],
    /// Unit serial number (VPD 80h): printable ASCII, 1..=128 characters.
    pub serial: String,
    /// NAA designator: 8 or 16 bytes, first nibble 2h, 3h, 5h or 6h.
    pub naa: Vec<u8>,
}
