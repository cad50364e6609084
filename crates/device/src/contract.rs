//! What a transport says to a logical unit and what it hears back (the SAM-5 §5.4 services, as values).

use alloc::rc::Rc;
use alloc::string::String;
use alloc::vec::Vec;

use base::buffer::DataList;
use base::time::Duration;
use base::units::{BlockSize, Blocks, Lba};
use scsi::cdb::Cdb;
use scsi::lun::Lun;
use scsi::sense::{Asc, Sense, SenseKey};
use scsi::status::{Status, TaskAttribute};

/// An I_T nexus, as the target numbers it. A number is used again only after `nexus_lost`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct NexusId(pub u32);

/// A task, as its transport names it: unique among the tasks in being, returned unchanged.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TaskKey(pub u64);

/// A task management request, as its transport names it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct TmfKey(pub u64);

/// The relative port identifier of a target port (SPC-5 §6.8.3): 1 and up.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RelativePort(pub u16);

/// What a logical unit must know of an I_T nexus.
#[derive(Clone, Debug)]
pub struct Nexus {
    /// Its number.
    pub id: NexusId,
    /// The initiator port as a TransportID (SPC-5 §7.6.4), which persists across sessions: registrations belong
    /// to it.
    pub initiator_port: Rc<[u8]>,
    /// The initiator *device* part of it, for matching SPEC_I_PT and for people (an iSCSI name).
    pub initiator_name: Rc<str>,
    /// The port of ours that it reaches.
    pub target_port: RelativePort,
    /// What it may do with this unit.
    pub access: Access,
    /// Whether its transport carries QUERY TASK, QUERY TASK SET, QUERY ASYNCHRONOUS EVENT and I_T NEXUS RESET for it, as
    /// iSCSI does from iSCSIProtocolLevel 2 on (RFC 7144).
    pub rfc_7144_functions: bool,
    /// The units it may see, sorted by LUN: for REPORT LUNS and third-party copies. Replaced when the map changes.
    pub luns: Rc<[Lun]>,
}

/// What a nexus may do with a unit, beyond what the unit itself allows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// Everything.
    ReadWrite,
    /// Nothing that changes what another nexus meets: such commands meet WRITE PROTECTED, and resets of the unit are
    /// rejected.
    ReadOnly,
}

/// A command to execute (SAM-5 §5.1, Send SCSI Command).
#[derive(Clone, Debug)]
pub struct Command {
    /// Who sent it.
    pub nexus: NexusId,
    /// Its name in every later event.
    pub key: TaskKey,
    /// Its place in the task set.
    pub attribute: TaskAttribute,
    /// 1 (highest) to 15, 0 for none (SAM-5 §8.7).
    pub priority: u8,
    /// The command descriptor block.
    pub cdb: Cdb,
    /// How many bytes the initiator is ready to receive. No more are sent.
    pub data_in_len: u32,
    /// How many bytes the initiator is ready to send. No more are fetched.
    pub data_out_len: u32,
}

/// Why bytes of the Data-Out buffer did not come.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum DataOutFault {
    /// They came damaged (RFC 7143 §7.8).
    Digest,
    /// Less unsolicited data came than was announced.
    NotEnoughUnsolicited,
    /// Unsolicited data came where none may.
    UnexpectedUnsolicited,
    /// They came in the wrong order, or outside of what was asked for.
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

/// What a logical unit wants done or reports.
#[derive(Debug)]
pub enum UnitEvent {
    /// Fetch bytes `offset..offset + len` of the Data-Out buffer and hand them to `data_out` in one call. Several may
    /// be open for one task. Never beyond the command's `data_out_len`.
    FetchDataOut {
        /// The task.
        key: TaskKey,
        /// Where in the Data-Out buffer.
        offset: u32,
        /// How many bytes; never zero.
        len: u32,
    },
    /// Deliver `data` at `offset` of the Data-In buffer. In order, without gaps, never beyond `data_in_len`.
    DataIn {
        /// The task.
        key: TaskKey,
        /// Where in the Data-In buffer.
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
        sense: Option<SenseBytes>,
        /// How many bytes the device server would have transferred had the initiator's buffer been large enough:
        /// the transport derives residual counts from it.
        transferable: u64,
    },
    /// A task management function ended.
    TmfComplete {
        /// The request.
        key: TmfKey,
        /// Its outcome.
        outcome: TmfOutcome,
    },
    /// A task was aborted without a response (by its own nexus, or by another with TAS clear); its key is free.
    Aborted {
        /// The task.
        key: TaskKey,
    },
    /// Store `state` so that it survives a crash and a loss of power, then call `saved(ticket, …)`: the command that
    /// changed it is answered only then (APTPL, SPC-5 §5.14.6).
    SaveState {
        /// Names the request.
        ticket: u64,
        /// The whole state to find again at the next start; replaces what was stored before.
        state: Vec<u8>,
    },
    /// A third-party copy needs another unit; see [`ThirdPartyRequest`].
    ThirdPartyCall(ThirdPartyCall),
    /// The answer to a call that another unit made.
    ThirdPartyReply {
        /// Who called.
        caller: ThirdPartyCaller,
        /// What came of it.
        result: ThirdPartyResult,
    },
}

/// Encoded sense data, in the format the unit's control mode page asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SenseBytes {
    bytes: [u8; Sense::MAX_LEN],
    len: usize,
}

impl SenseBytes {
    /// Encodes `sense` in descriptor or fixed format.
    pub fn new(sense: &Sense, descriptor_format: bool) -> Self {
        let mut bytes = [0; Sense::MAX_LEN];
        let len = sense.encode(descriptor_format, &mut bytes);
        Self { bytes, len }
    }

    /// Returns the bytes.
    pub fn bytes(&self) -> &[u8] {
        self.bytes.get(..self.len).unwrap_or_default()
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
    /// Reset this unit as part of its target.
    TargetReset,
    /// I_T nexus reset: the effects of a nexus loss, the nexus stays.
    NexusReset,
    /// Tell whether one task is in the task set.
    QueryTask(TaskKey),
    /// Tell whether the nexus has any task in the task set.
    QueryTaskSet,
    /// Tell whether a unit attention is pending for the nexus.
    QueryAsynchronousEvent,
}

/// What came of a task management function.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum TmfOutcome {
    /// It is done (for queries: nothing there).
    Complete,
    /// It is done, and a query found something.
    Succeeded,
    /// It found something; the three bytes are the SAM-5 §7.10 additional response information.
    SucceededWith([u8; 3]),
    /// The task does not exist.
    NoSuchTask,
    /// The function is not supported.
    NotSupported,
    /// The function was refused.
    Rejected,
}

/// Identifies a call of one unit to another, on the caller's side.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ThirdPartyCaller {
    /// The calling unit, as the target numbers units; the target fills it in.
    pub unit: u32,
    /// The call.
    pub call: u32,
}

/// A call of a copy manager to a unit (perhaps its own), made in the name of a nexus.
///
/// The target routes it to a unit **that the nexus may see** and to no other; to the rest of the world it answers
/// [`ThirdPartyError::NotReachable`], so that a copy can never reach what its initiator cannot (CVE-2020-28374).
#[derive(Debug)]
pub struct ThirdPartyCall {
    /// Names the call; returned with the answer.
    pub call: u32,
    /// On whose behalf.
    pub nexus: NexusId,
    /// Which unit.
    pub unit: ThirdPartyUnit,
    /// What is asked.
    pub request: ThirdPartyRequest,
}

/// How a third-party copy names a unit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ThirdPartyUnit {
    /// By a designation descriptor of VPD page 83h: (code set, designator type, designator).
    Designator {
        /// Code set (SPC-5 table 555).
        code_set: u8,
        /// Designator type.
        kind: u8,
        /// The designator.
        designator: Vec<u8>,
    },
    /// By the LUN under which the nexus sees it.
    Lun(Lun),
}

/// What a copy manager asks of a unit.
#[derive(Debug)]
pub enum ThirdPartyRequest {
    /// Capacity and block size.
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
    /// Read from what a ROD token of this unit represents.
    ReadToken {
        /// The token as POPULATE TOKEN made it.
        token: Rc<[u8]>,
        /// Which block of the token's data.
        offset: Blocks,
        /// How many. The answer may have fewer, though not none, where the token's data is in several runs.
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
    /// To `Describe`.
    Description {
        /// Number of blocks.
        blocks: Blocks,
        /// Their size.
        block_size: BlockSize,
        /// Peripheral device type.
        device_type: u8,
    },
    /// To `Read` and `ReadToken`.
    Data(DataList),
    /// To the others.
    Done,
}

/// A failure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ThirdPartyError {
    /// No such unit for this nexus.
    NotReachable,
    /// The unit answered with this status and sense.
    Status(Status, Option<Sense>),
}

/// Everything that is fixed about a logical unit while it serves; changed by `reconfigure`.
#[derive(Clone, Debug)]
pub struct UnitConfig {
    /// Who it is.
    pub identity: Identity,
    /// Logical block size.
    pub block_size: BlockSize,
    /// log2 of logical blocks per physical block (READ CAPACITY(16), SBC-4 §5.16).
    pub physical_exponent: u8,
    /// Whether every initiator finds it write-protected.
    pub read_only: bool,
    /// Whether it claims a removable medium (RMB).
    pub removable: bool,
    /// Whether it takes the 32-byte commands. They exist for protection information of type 2, without which a device
    /// server need not know them (SBC-4 §5.19).
    pub long_cdbs: bool,
    /// Writes that are atomic are whole multiples of this many blocks, and begin at one; 1 for any.
    pub atomic_blocks: u32,
    /// Whether it reports thin provisioning (LBPME) and takes UNMAP.
    pub thin: bool,
    /// Whether its write cache starts enabled (WCE).
    pub write_cache: bool,
    /// What it claims of what it can.
    pub overrides: InquiryOverrides,
    /// How tasks of several nexuses stand to each other.
    pub tasks: TaskRules,
    /// How many tasks the unit holds before TASK SET FULL.
    pub task_set_max: u16,
    /// How long one operation of the medium may take before its command fails; `None` for as long as it wants.
    pub io_timeout: Option<Duration>,
    /// The longest single transfer in blocks (VPD B0h MAXIMUM TRANSFER LENGTH). With less than [`THIRD_PARTY_TRANSFER_MAX`] bytes
    /// a unit cannot take part in every copy.
    pub transfer_blocks_max: u32,
    /// The target ports through which it is reached, sorted by relative port.
    pub ports: Rc<[TargetPort]>,
}

/// How tasks of several nexuses stand to each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TaskRules {
    /// Whether every nexus has a task set of its own (TST 001b). Otherwise there is one for all (TST 000b), and one nexus
    /// that sends an ORDERED command and not its data stops every other.
    pub nexus_task_sets: bool,
    /// Whether a task that another nexus aborts ends with TASK ABORTED (TAS). Otherwise its initiator hears nothing but a
    /// unit attention with its next command.
    pub task_aborted_status: bool,
}

impl TaskRules {
    /// One task set for all, and no TASK ABORTED: what disks of one initiator do.
    pub const SHARED: Self = Self { nexus_task_sets: false, task_aborted_status: false };
}

impl Default for TaskRules {
    /// Both.
    fn default() -> Self {
        Self { nexus_task_sets: true, task_aborted_status: true }
    }
}

/// What a unit claims of what it can, for initiators that want less of it. What is not claimed is not done either.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InquiryOverrides {
    /// The standards it is of.
    pub level: SpcLevel,
    /// Whether unmapped blocks read as zeros (LBPRZ), where those of the medium do.
    pub unmapped_zeros: bool,
    /// Whether WRITE SAME of no blocks goes to the end of the medium (WSNZ clear).
    pub write_same_to_end: bool,
    /// MEDIUM ROTATION RATE: 0 for not reported, 1 for a disk that does not turn, else turns per minute. `None` for what the
    /// medium is.
    pub rotation_rate: Option<u16>,
    /// MAXIMUM COMPARE AND WRITE LENGTH in blocks, where memory allows so many; at least 1.
    pub compare_and_write_max: u8,
}

impl Default for InquiryOverrides {
    /// Everything.
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

/// The standards that a unit claims: the VERSION of its INQUIRY data, its version descriptors, and which commands it has.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum SpcLevel {
    /// SPC-3, with SBC-3 as far as that goes: no copies with four-byte list identifiers, no ROD tokens, no VPD page 8Fh, no
    /// WRITE ATOMIC; CSCD descriptors have the LU ID TYPE and NUL fields that SPC-4 took away.
    Spc3,
    /// SPC-4 in the VERSION field; SPC-5 and SBC-4 are claimed by version descriptors only.
    Spc4,
    /// SPC-5 there as well.
    Spc5,
}

/// The longest read or write, in bytes, that a copy manager asks of another unit: a piece of a copy, and a block at either
/// end where the blocks of both units differ.
pub const THIRD_PARTY_TRANSFER_MAX: u32 = (512 << 10) + 2 * 4096;

/// A target port, for VPD page 83h, REPORT TARGET PORT GROUPS and READ FULL STATUS.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TargetPort {
    /// Its relative identifier.
    pub relative: RelativePort,
    /// Its target port group.
    pub group: u16,
    /// The SCSI name string of the port: `iqn…,t,0x0001` (RFC 7143 §4.4.2).
    pub port_name: String,
    /// The SCSI name string of the target device: `iqn…`.
    pub device_name: String,
    /// PROTOCOL IDENTIFIER (SPC-5 §7.6.1): 5h for iSCSI.
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
