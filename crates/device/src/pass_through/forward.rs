//! A command on its way through the device.

use alloc::boxed::Box;
use alloc::vec::Vec;

use base::buffer::DataList;
use base::int_cast::to_u64;
use scsi::cdb::Cdb;
use scsi::sense::{Sense, SenseKey};
use scsi::status::Status;
use store::api::{DeviceCommand, DeviceResponse, OpAction, OpOutput, Transfer};

use super::transfer::Plan;
use crate::contract::SenseBytes;
use crate::device_server::DeviceServer;
use crate::device_server::outcome::{Job, JobInput, JobStep, Outcome};
use crate::medium_error::IoKind;
use crate::stats::OperationClass;
use crate::task::TaskInfo;

/// Handles a command that succeeded, and returns other data to send instead of the device's.
pub(super) type ThenFn = fn(&mut DeviceServer, &TaskInfo, &Answer) -> Option<Outcome>;

/// What the device answered.
#[derive(Debug)]
pub(super) struct Answer {
    pub(super) status: Status,
    /// The sense key of its sense data.
    pub(super) key: Option<SenseKey>,
    /// The bytes that the device sent; nothing for a command that sends bytes to it.
    pub(super) data: Vec<u8>,
}

impl Answer {
    /// Returns whether the device sent what was asked for, or does not have it. Otherwise it could not
    /// answer.
    pub(super) fn is_final(&self) -> bool {
        self.status == Status::GOOD
            || self.status == Status::CHECK_CONDITION && self.key == Some(SenseKey::ILLEGAL_REQUEST)
    }
}

/// After how many seconds the system aborts a command.
pub(super) const USUAL_TIMEOUT_S: u32 = 60;

/// The most bytes of an answer that are looked at: no parameter data that concerns the unit is longer.
const LOOKED_AT_MAX: usize = 64 << 10;

/// A command that is passed to the device.
pub(super) struct Forward {
    command: Vec<u8>,
    plan: Plan,
    then: Option<ThenFn>,
}

impl Forward {
    pub(super) fn new(task: &TaskInfo, plan: Plan, then: Option<ThenFn>) -> Self {
        Self { command: command_bytes(&task.cdb), plan, then }
    }

    /// Passes other bytes than those of the CDB, whose data the device sends.
    pub(super) const fn asking(command: Vec<u8>, len: usize, then: ThenFn) -> Self {
        Self { command, plan: Plan::In(len), then: Some(then) }
    }

    fn submit(&self, server: &mut DeviceServer, task: &TaskInfo, data: Option<DataList>) -> JobStep {
        // The table admits commands such as INQUIRY whatever the state of the medium, and they are passed to
        // the device, too.
        if server.medium.has_too_many_abandoned() {
            data.into_iter().for_each(|data| server.recycle(data));
            return JobStep::Done(Outcome::Status(Status::BUSY));
        }
        let transfer = match (self.plan, data) {
            (Plan::In(len), _) => Transfer::In(len),
            (Plan::Out(_), Some(data)) => Transfer::Out(data),
            (Plan::Out(_) | Plan::Nothing, _) => Transfer::Nothing,
        };
        let row = server.table.find(&server.info, &task.cdb);
        let timeout_s = row.map_or(USUAL_TIMEOUT_S, |row| row.timeout_s);
        let command = DeviceCommand { bytes: self.command.clone(), transfer, timeout_s };
        server.submit(task, 0, OpAction::Command(Box::new(command)));
        JobStep::Wait
    }

    fn answered(&self, server: &mut DeviceServer, task: &TaskInfo, response: DeviceResponse) -> JobStep {
        let status = Status(response.status & STATUS_MASK);
        let sense = Sense::parse(&response.sense).ok().filter(|_| !response.sense.is_empty());
        if let Some(sense) = sense.filter(|sense| sense.key == SenseKey::UNIT_ATTENTION)
            && status == Status::CHECK_CONDITION
            && server.attention_of_device(sense, Some(task.nexus))
        {
            let data = matches!(self.plan, Plan::Out(_)).then_some(response.data);
            return self.submit(server, task, data);
        }
        if let Some(sense) = sense.filter(|sense| sense.deferred) {
            server.deferred_error_of_device(sense, Some(task.nexus));
        }
        let DeviceResponse { data, transferred, sense: sense_bytes, .. } = response;
        task.transferable.set(to_u64(transferred));
        let received = if matches!(self.plan, Plan::In(_)) { data } else { recycled(server, data) };
        if status == Status::GOOD {
            server.device_succeeded(task.cdb.opcode());
        }
        if let Some(then) = self.then {
            let is_short = received.len() <= LOOKED_AT_MAX;
            let data = if is_short { DeviceServer::gather(&received) } else { Vec::new() };
            if let Some(outcome) =
                then(server, task, &Answer { status, key: sense.map(|sense| sense.key), data })
            {
                server.recycle(received);
                return JobStep::Done(outcome);
            }
        }
        self.deliver(server, task, received, status, sense);
        count(server, task);
        let passed = (!sense_bytes.is_empty()).then(|| SenseBytes::from_device(&sense_bytes));
        let passed = passed.filter(|_| status == Status::CHECK_CONDITION || status == Status::GOOD);
        JobStep::Done(Outcome::Passed(Box::new((status, passed))))
    }

    /// Delivers what the device sent, up to what the initiator receives.
    fn deliver(
        &self,
        server: &mut DeviceServer,
        task: &TaskInfo,
        data: DataList,
        status: Status,
        sense: Option<Sense>,
    ) {
        let Plan::In(len) = self.plan else { return server.recycle(data) };
        // A host adapter that computes no residual reports a whole transfer also for a command that failed at
        // once.
        let failed = sense.is_some_and(|sense| {
            !matches!(sense.key, SenseKey::NO_SENSE | SenseKey::RECOVERED_ERROR | SenseKey::COMPLETED)
        });
        let is_doubtful = status != Status::GOOD && (failed || sense.is_none()) && data.len() == len;
        let wanted = usize::try_from(task.data_in_len).unwrap_or(usize::MAX).min(data.len());
        if is_doubtful {
            task.transferable.set(0);
        }
        if is_doubtful || wanted == 0 {
            return server.recycle(data);
        }
        let data = if data.len() > wanted { data.slice(0, wanted) } else { data };
        server.send_data_in(task, 0, data);
    }
}

impl Job for Forward {
    fn step(&mut self, server: &mut DeviceServer, task: &TaskInfo, input: JobInput) -> JobStep {
        match (input, self.plan) {
            (JobInput::Start, Plan::Out(len)) => {
                server.fetch_data_out(task, 0, len);
                JobStep::Wait
            }
            (JobInput::Start, _) => self.submit(server, task, None),
            (JobInput::DataOut { data, .. }, Plan::Out(_)) => self.submit(server, task, Some(data)),
            (JobInput::OpCompleted { result: Ok(OpOutput::Response(response)), .. }, _) => {
                self.answered(server, task, *response)
            }
            (JobInput::OpCompleted { result: Err(failure), .. }, _) => {
                let kind = if matches!(self.plan, Plan::Out(_)) { IoKind::Writing } else { IoKind::Reading };
                JobStep::Done(Outcome::CheckCondition(server.medium_failure(failure, kind, None)))
            }
            _ => JobStep::unexpected_input(),
        }
    }
}

/// Counts a command that reads or writes the medium, and the bytes that the device moved for it.
fn count(server: &mut DeviceServer, task: &TaskInfo) {
    let class = server.class_of(task);
    let (commands, bytes) = match class {
        OperationClass::Read => (&mut server.stats.reads, &mut server.stats.read_bytes),
        OperationClass::Write => (&mut server.stats.writes, &mut server.stats.write_bytes),
        _ => return,
    };
    *commands += 1;
    *bytes += task.transferable.get();
}

/// The bits of a status byte that SAM defines.
const STATUS_MASK: u8 = 0x7e;

/// Gives the buffers of data that was sent to the device back.
fn recycled(server: &DeviceServer, data: DataList) -> DataList {
    server.recycle(data);
    DataList::new()
}

/// Returns the bytes of a CDB without its padding. Nobody knows how long a vendor-specific one is: those of
/// 10 bytes are the most usual.
fn command_bytes(cdb: &Cdb) -> Vec<u8> {
    let bytes = cdb.bytes();
    let len = match (cdb.opcode(), cdb.len_by_opcode()) {
        (_, Some(len)) => len,
        // READ LONG and other old commands of group 3 have 10 or 12 bytes.
        _ => match bytes.iter().rposition(|byte| *byte != 0).unwrap_or(0) {
            0..10 => 10,
            10..12 => 12,
            _ => bytes.len(),
        },
    };
    let mut command: Vec<u8> = bytes.iter().take(len).copied().collect();
    command.resize(len.min(COMMAND_LEN_MAX), 0);
    command
}

/// The longest command that a device takes.
const COMMAND_LEN_MAX: usize = 252;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_command_has_the_length_that_its_operation_code_says() {
        let table: &[(&[u8], usize)] = &[
            (&[0x00], 6),
            (&[0x28], 10),
            (&[0x5a], 10),
            (&[0x88], 16),
            (&[0xa8], 12),
            (&[0xc1, 2], 10),
            (&[0xe1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1], 12),
            (&[0xe1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1], 16),
            (&[0x7f, 0, 0, 0, 0, 0, 0, 0x18, 0, 9], 32),
        ];
        for (bytes, len) in table {
            let command = command_bytes(&Cdb::from_bytes(bytes).unwrap());
            assert_eq!(command.len(), *len, "{bytes:02x?}");
            assert_eq!(&command[..bytes.len().min(*len)], &bytes[..bytes.len().min(*len)]);
        }
    }
}
