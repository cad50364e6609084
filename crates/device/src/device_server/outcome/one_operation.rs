//! The reads and writes of one operation of the medium, which need no boxed job.

use store::api::{Failure, OpAction, OpOutput};

use super::{JobInput, JobStep, Outcome};
use crate::device_server::DeviceServer;
use crate::fault_injection::{self, Bug};
use crate::medium_error::IoKind;
use crate::task::TaskInfo;

/// A read of one operation.
#[derive(Debug)]
pub(crate) struct Read {
    pub(crate) at: u64,
    /// How many bytes to deliver, from the start of a block.
    pub(crate) wanted: usize,
}

impl Read {
    pub(crate) fn step(&mut self, server: &mut DeviceServer, task: &TaskInfo, input: JobInput) -> JobStep {
        match input {
            JobInput::Start => {
                let len = self.wanted.next_multiple_of(server.info.block_len());
                server.submit(task, 0, OpAction::Read { at: self.at, len });
                JobStep::Wait
            }
            JobInput::OpCompleted { result: Ok(OpOutput::Data(data)), .. } => {
                let data = if data.len() > self.wanted { data.slice(0, self.wanted) } else { data };
                server.send_data_in(task, 0, data);
                JobStep::Done(Outcome::Good)
            }
            JobInput::OpCompleted { result: Err(failure), .. } => {
                failed(server, failure, IoKind::Reading, self.at)
            }
            _ => JobStep::unexpected_input(),
        }
    }
}

/// A write of one operation.
#[derive(Debug)]
pub(crate) struct Write {
    pub(crate) at: u64,
    pub(crate) len: usize,
    pub(crate) force_unit_access: bool,
}

impl Write {
    pub(crate) fn step(&mut self, server: &mut DeviceServer, task: &TaskInfo, input: JobInput) -> JobStep {
        match input {
            JobInput::Start => {
                server.fetch_data_out(task, 0, u32::try_from(self.len).unwrap_or(u32::MAX));
                JobStep::Wait
            }
            JobInput::DataOut { data, .. } if data.len() == self.len => {
                // The write cache may have been disabled while the data was being fetched.
                let durability = server.durability(self.force_unit_access);
                server.submit(task, 0, OpAction::Write { at: self.at, data, durability });
                if fault_injection::is_injected(Bug::AckBeforeWrite) {
                    return JobStep::Done(Outcome::Good);
                }
                JobStep::Wait
            }
            JobInput::OpCompleted { result: Ok(OpOutput::Done(data)), .. } => {
                server.recycle(data);
                JobStep::Done(Outcome::Good)
            }
            JobInput::OpCompleted { result: Err(failure), .. } => {
                failed(server, failure, IoKind::Writing, self.at)
            }
            _ => JobStep::unexpected_input(),
        }
    }
}

fn failed(server: &mut DeviceServer, failure: Failure, doing: IoKind, at: u64) -> JobStep {
    JobStep::Done(Outcome::CheckCondition(server.medium_failure(failure, doing, Some(at))))
}
