//! The outcome that a handler decides, and the interface of jobs: work that takes several steps.

pub(crate) mod one_operation;

use alloc::boxed::Box;
use alloc::vec::Vec;

use base::buffer::DataList;
use scsi::sense::{Asc, Sense, SenseKey};
use scsi::status::Status;
use security::Level;
use store::api::{Failure, OpOutput};

use super::DeviceServer;
use crate::contract::{NexusId, SenseBytes, ThirdPartyResult};
use crate::library::MotionFailure;
use crate::task::{TaskId, TaskInfo};
use one_operation::{Read, Write};

/// The longest parameter list that is fetched. The largest legal one is that of an EXTENDED COPY or POPULATE
/// TOKEN with 16-bit lengths plus headers; anything longer is answered with PARAMETER LIST LENGTH ERROR.
pub(crate) const MAX_PARAMETER_LIST: u32 = 128 << 10;

/// What a handler, or a job at its end, decides.
pub(crate) enum Outcome {
    /// GOOD, without data.
    Good,
    /// Another status without sense.
    Status(Status),
    /// CHECK CONDITION.
    CheckCondition(Sense),
    /// What a device answered: a status, and the sense data as the device sent it.
    Passed(Box<(Status, Option<SenseBytes>)>),
    /// Parameter data, cut to the allocation length and to the length that the initiator accepts; then GOOD.
    ParameterData {
        /// The uncut data.
        bytes: Vec<u8>,
        /// The allocation length of the CDB.
        allocation: u64,
    },
    /// Fetch a parameter list, then pass it to `then`. It is shorter than `len` when the initiator sends
    /// less.
    FetchParameterList {
        /// The length that the CDB announces. Zero calls `then` at once, with an empty list.
        len: u32,
        /// Processes the list.
        then: fn(&mut DeviceServer, &TaskInfo, &[u8]) -> Outcome,
    },
    /// Read blocks and deliver them: the one-operation read, which needs no boxed job.
    Read(Read),
    /// Fetch blocks and write them: the one-operation write, which needs no boxed job.
    Write(Write),
    /// Work of several steps.
    Run(Box<dyn Job>),
    /// Continue when no other change of the persistent state is in progress. Every command that changes this
    /// state, stored or not, decides in `then` and not before.
    QueueStateChange {
        /// The parameter list that is passed to `then`.
        list: Vec<u8>,
        /// Decides, when the task is first in the queue of state changes.
        then: fn(&mut DeviceServer, &TaskInfo, &[u8]) -> Outcome,
    },
    /// Store `state` durably, then call `then`. `then` receives whether the state was stored, and applies the
    /// change if so: the old state is in force until then. `then` also runs when the task was aborted
    /// meanwhile; of its outcome, only the aborts of other tasks count in that case. A handler may decide
    /// this only in its turn, see [`Self::QueueStateChange`].
    SaveState {
        /// See `UnitEvent::SaveState`.
        state: Vec<u8>,
        /// Continues when the state is stored or could not be stored.
        then: AfterSave,
    },
    /// Abort every other task of these nexuses, and continue when the medium has ended the last operation of
    /// those tasks.
    AbortOthers {
        /// The nexuses whose tasks are aborted. The deciding task itself is not aborted.
        nexuses: Vec<NexusId>,
        /// The outcome after that.
        then: Box<Outcome>,
    },
    /// Abort one other task, whose initiator receives TASK ABORTED, and continue when no operation or call of
    /// that task is in progress.
    AbortTask {
        /// The task to abort.
        task: TaskId,
        /// The outcome after that.
        then: Box<Outcome>,
    },
}

/// Continues after the persistent state was stored, or could not be.
pub(crate) type AfterSave = Box<dyn FnOnce(&mut DeviceServer, &TaskInfo, bool) -> Outcome>;

/// Work of several steps on behalf of one task. The job is dropped when the task is aborted.
pub(crate) trait Job {
    /// Handles an event and continues as far as possible.
    fn step(&mut self, server: &mut DeviceServer, task: &TaskInfo, input: JobInput) -> JobStep;
}

/// A job that runs without a command.
pub(crate) struct SpawnedJob {
    /// The nexus on whose behalf it runs.
    pub(crate) nexus: NexusId,
    /// The protection of the command that began it.
    pub(crate) level: Level,
    /// The job.
    pub(crate) job: Box<dyn Job>,
}

/// An event for a job.
pub(crate) enum JobInput {
    /// The job was accepted.
    Start,
    /// The exclusive range requested with `DeviceServer::lock` is granted.
    Locked,
    /// An event that the job waits for happened elsewhere in the unit: see `DeviceServer::wake`.
    Woken,
    /// An operation submitted with `DeviceServer::submit` completed.
    OpCompleted {
        /// As given to `submit`.
        tag: u32,
        /// Its result.
        result: Result<OpOutput, Failure>,
    },
    /// Bytes requested with `DeviceServer::fetch_data_out` were received.
    DataOut {
        /// Their offset in the Data-Out buffer.
        offset: u32,
        /// The bytes.
        data: DataList,
    },
    /// A call made with `DeviceServer::call_third_party` was answered.
    ThirdPartyReply {
        /// As returned by `call_third_party`.
        call: u32,
        /// The answer.
        result: ThirdPartyResult,
    },
}

/// Whether a job is done.
pub(crate) enum JobStep {
    /// The job waits for something that it has requested.
    Wait,
    /// The job is done. The unit waits for its remaining operations and discards their results.
    Done(Outcome),
}

impl Outcome {
    /// The outcome of a bug in this program.
    pub(crate) const fn bug() -> Self {
        Self::CheckCondition(Sense::new(SenseKey::HARDWARE_ERROR, Asc::INTERNAL_TARGET_FAILURE))
    }
}

impl JobStep {
    /// The end of a job that received an input which it did not request: a bug in this program.
    pub(crate) const fn unexpected_input() -> Self {
        Self::Done(Outcome::bug())
    }
}

impl MotionFailure {
    /// Returns the outcome of the command.
    pub(crate) const fn outcome(self) -> Outcome {
        match self {
            Self::Busy => Outcome::Status(Status::BUSY),
            Self::CheckCondition(sense) => Outcome::CheckCondition(sense),
        }
    }
}
