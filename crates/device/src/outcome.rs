//! What a handler decides, and how work that takes several steps is told what happened.

use alloc::boxed::Box;
use alloc::vec::Vec;

use base::buffer::DataList;
use scsi::sense::Sense;
use scsi::status::Status;
use store::api::{Failure, OpOutput};

use crate::contract::{NexusId, ThirdPartyResult};
use crate::device_server::DeviceServer;
use crate::sbc::read::Read;
use crate::sbc::write::Write;
use crate::task::{TaskId, TaskInfo};

/// The longest parameter list that is fetched. The largest legal one is that of an EXTENDED COPY or POPULATE TOKEN
/// with 16-bit lengths plus headers; anything longer is answered with PARAMETER LIST LENGTH ERROR.
pub(crate) const MAX_PARAMETER_LIST: u32 = 128 << 10;

/// What a handler, or a job at its end, decides.
pub(crate) enum Outcome {
    /// GOOD, without data.
    Good,
    /// Another status without sense.
    Status(Status),
    /// CHECK CONDITION.
    CheckCondition(Sense),
    /// Parameter data, cut to the allocation length and to what the initiator takes; then GOOD.
    ParameterData {
        /// All of it.
        bytes: Vec<u8>,
        /// The allocation length of the CDB.
        allocation: u64,
    },
    /// Fetch a parameter list, then go on with it. It is shorter than `len` when the initiator sends less.
    FetchParameterList {
        /// The length the CDB announces. Zero calls `then` at once, with nothing.
        len: u32,
        /// What to do with it.
        then: fn(&mut DeviceServer, &TaskInfo, &[u8]) -> Outcome,
    },
    /// Read blocks and deliver them: the one-operation read, which needs no box.
    Read(Read),
    /// Fetch blocks and write them: the one-operation write, which needs no box.
    Write(Write),
    /// Work of several steps.
    Run(Box<dyn Job>),
    /// Go on when no other change of the state that is stored is under way. Every command that changes this state, stored or
    /// not, decides in `then` and not before.
    QueueStateChange {
        /// A parameter list, for `then`.
        list: Vec<u8>,
        /// What to do in its turn.
        then: fn(&mut DeviceServer, &TaskInfo, &[u8]) -> Outcome,
    },
    /// Have `state` stored durably, then go on; `then` is told whether it was, and applies the change if so: until then the
    /// old state is in force. Runs also when the task was aborted meanwhile; of its verdict, only the aborts of other tasks
    /// count then. To be decided in turn, see [`Self::QueueStateChange`].
    SaveState {
        /// See `UnitEvent::SaveState`.
        state: Vec<u8>,
        /// What to do then.
        then: AfterSave,
    },
    /// Abort every other task of these nexuses, and go on when the medium has let go of the last one.
    AbortOthers {
        /// Whose tasks. The deciding task itself is spared.
        nexuses: Vec<NexusId>,
        /// What to answer then.
        then: Box<Outcome>,
    },
    /// Abort one other task, whose initiator hears TASK ABORTED, and go on when nothing of it is under way any more.
    AbortTask {
        /// Which.
        task: TaskId,
        /// What to answer then.
        then: Box<Outcome>,
    },
}

/// What to do when state was stored, or could not be.
pub(crate) type AfterSave = Box<dyn FnOnce(&mut DeviceServer, &TaskInfo, bool) -> Outcome>;

/// Work of several steps on behalf of one task. It is dropped when the task is aborted.
pub(crate) trait Job {
    /// Takes note of what happened and goes on as far as it can.
    fn step(&mut self, server: &mut DeviceServer, task: &TaskInfo, input: JobInput) -> JobStep;
}

/// What happened.
pub(crate) enum JobInput {
    /// The job was accepted.
    Start,
    /// The exclusive range asked for with `DeviceServer::lock` is granted.
    Locked,
    /// Something the job waits for happened elsewhere in the unit: see `DeviceServer::wake`.
    Woken,
    /// An operation submitted with `DeviceServer::submit` completed.
    OpCompleted {
        /// As given to `submit`.
        tag: u32,
        /// Its result.
        result: Result<OpOutput, Failure>,
    },
    /// Bytes asked for with `DeviceServer::fetch` are here.
    DataOut {
        /// Where they stand in the Data-Out buffer.
        offset: u32,
        /// The bytes.
        data: DataList,
    },
    /// A call made with `DeviceServer::call_peer` was answered.
    ThirdPartyReply {
        /// As returned by `call_peer`.
        call: u32,
        /// The answer.
        result: ThirdPartyResult,
    },
}

/// Whether a job is done.
pub(crate) enum JobStep {
    /// It waits for something it has asked for.
    Wait,
    /// It is. What it still has under way is waited for and thrown away.
    Done(Outcome),
}
