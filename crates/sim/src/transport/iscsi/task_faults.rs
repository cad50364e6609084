//! What the network did to the PDUs of each task, and whether that explains the ABORTED COMMAND with which
//! the target ended the task.
//!
//! A target ends a task in this way only because data of that very task was lost, damaged or repeated, or
//! because its data stopped (RFC 7143 §11.4.7.2). A fault of another task, another session or an earlier time
//! is no cause.

use base::time::{Duration, Instant};
use iscsi::pdu::Opcode;
use iscsi::recovery::TransportSense;
use netem::stream::{FaultKind, InjectedFault, StreamDirection};
use transport::initiator::{TaskId, TaskResult};

/// The faults in the connections of one session.
#[derive(Debug)]
pub(super) struct TaskFaults {
    /// In order of time.
    faults: Vec<InjectedFault>,
    /// Whether the target is short of memory: it then gives up a task whose data stands still while other
    /// tasks wait for the memory.
    is_memory_short: bool,
    /// Whether PDUs are sealed. The network cannot read the task tags of such PDUs.
    is_sealed: bool,
}

/// A target whose memory is short gives up no task whose data stood still for a shorter time.
const STANDS_STILL: Duration = Duration::from_secs(5);

impl TaskFaults {
    pub(super) const fn new(is_memory_short: bool, is_sealed: bool) -> Self {
        Self { faults: Vec::new(), is_memory_short, is_sealed }
    }

    /// Records a fault.
    pub(super) fn record(&mut self, fault: InjectedFault) {
        self.faults.push(fault);
    }

    /// Returns what is wrong with the end of a task that was submitted at `since`, if the status blames the
    /// transport and no fault explains it.
    pub(super) fn unexplained(
        &self,
        now: Instant,
        since: Option<Instant>,
        task: TaskId,
        end: &TaskResult,
    ) -> Option<String> {
        let TaskResult::Status(ending) = end else { return None };
        let condition = ending.sense.as_deref().and_then(blames_transport)?;
        let since = since.unwrap_or(now);
        let mut faults = self.faults.iter().rev().take_while(|fault| fault.at >= since);
        let is_explained = match condition {
            TransportSense::InitiatorResponseTimeout => {
                let is_short = self.is_memory_short && now.since(since) >= STANDS_STILL;
                is_short || self.faults.iter().any(|fault| lasts_until(fault) >= since)
            }
            TransportSense::SnackRejected => faults
                .any(|fault| self.is_of(fault, task) && Opcode(fault.first_byte & OPCODE) == Opcode::DATA_IN),
            TransportSense::UnexpectedUnsolicitedData
            | TransportSense::IncorrectAmountOfData
            | TransportSense::CrcError
            | TransportSense::DataOffsetError
            | TransportSense::InvalidTransferTag => faults.any(|fault| {
                fault.way == StreamDirection::Forward
                    && fault.kind != FaultKind::Stall
                    && self.is_of(fault, task)
                    && Opcode(fault.first_byte & OPCODE) == Opcode::DATA_OUT
            }),
        };
        (!is_explained).then(|| format!("says that {condition:?}, and no fault of its PDUs explains it"))
    }

    /// Returns whether a fault may concern a PDU of a task.
    const fn is_of(&self, fault: &InjectedFault, TaskId(key): TaskId) -> bool {
        self.is_sealed || fault.task_tag == (key.generation & 0x3fff) << 16 | (key.index & 0xffff)
    }
}

/// Returns until when a fault can keep data from arriving that is sent after it.
fn lasts_until(fault: &InjectedFault) -> Instant {
    match fault.kind {
        FaultKind::Silence => Instant(u64::MAX),
        FaultKind::Stall => fault.at.after(STALL_MAX),
        _ => fault.at,
    }
}

/// No direction stalls for longer than this.
const STALL_MAX: Duration = Duration::from_secs(15);

/// The bits of the first byte of a PDU that are its opcode.
const OPCODE: u8 = 0x3f;

/// Returns which transport error the sense data report, if any.
pub(super) fn blames_transport(sense: &[u8]) -> Option<TransportSense> {
    let all = [
        TransportSense::UnexpectedUnsolicitedData,
        TransportSense::IncorrectAmountOfData,
        TransportSense::CrcError,
        TransportSense::SnackRejected,
        TransportSense::DataOffsetError,
        TransportSense::InvalidTransferTag,
        TransportSense::InitiatorResponseTimeout,
    ];
    all.into_iter().find(|condition| condition.sense() == *sense)
}

#[cfg(test)]
mod tests {
    use base::arena::Key;
    use transport::initiator::{CommandResponse, Residual};

    use super::*;

    const SENT: Instant = Instant(1_000_000_000);
    const ENDED: Instant = Instant(2_000_000_000);
    const TASK: TaskId = TaskId(Key { index: 7, generation: 3 });

    fn fault(at: Instant, way: StreamDirection, opcode: Opcode, task_tag: u32) -> InjectedFault {
        InjectedFault { at, way, unit: 9, first_byte: opcode.0, task_tag, kind: FaultKind::Data }
    }

    fn end(condition: TransportSense) -> TaskResult {
        TaskResult::Status(CommandResponse {
            status: 2,
            qualifier: 0,
            residual: Residual::None,
            read_residual: Residual::None,
            sense: Some(Box::new(condition.sense())),
        })
    }

    fn is_explained(faults: &[InjectedFault], condition: TransportSense, is_memory_short: bool) -> bool {
        let mut record = TaskFaults::new(is_memory_short, false);
        faults.iter().for_each(|fault| record.record(*fault));
        record.unexplained(ENDED, Some(SENT), TASK, &end(condition)).is_none()
    }

    #[test]
    fn only_damaged_data_of_the_very_task_explains_a_crc_error() {
        use StreamDirection::{Backward, Forward};
        let own = 3 << 16 | 7;
        let before = Instant(SENT.0 - 1);
        for (fault, expected) in [
            (fault(ENDED, Forward, Opcode::DATA_OUT, own), true),
            (fault(ENDED, Forward, Opcode::DATA_OUT, own + 1), false),
            (fault(before, Forward, Opcode::DATA_OUT, own), false),
            (fault(ENDED, Forward, Opcode::SCSI_COMMAND, own), false),
            (fault(ENDED, Backward, Opcode::DATA_IN, own), false),
        ] {
            assert_eq!(is_explained(&[fault], TransportSense::CrcError, true), expected, "{fault:?}");
        }
        assert!(!is_explained(&[], TransportSense::CrcError, true));
    }

    #[test]
    fn a_task_whose_data_stopped_needs_a_fault_or_short_memory_and_time() {
        let timeout = TransportSense::InitiatorResponseTimeout;
        let silence = InjectedFault {
            kind: FaultKind::Silence,
            ..fault(Instant(1), StreamDirection::Forward, Opcode::NOP_OUT, 0)
        };
        assert!(is_explained(&[silence], timeout, false), "it lasts");
        assert!(!is_explained(&[], timeout, false));
        assert!(!is_explained(&[], timeout, true), "no data stood still for long enough");
        let record = TaskFaults::new(true, false);
        let late = SENT.after(STANDS_STILL);
        assert_eq!(record.unexplained(late, Some(SENT), TASK, &end(timeout)), None);
    }
}
