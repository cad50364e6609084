//! The copy executor: runs an EXTENDED COPY segment by segment, each as a transfer between two units.

use alloc::boxed::Box;
use alloc::vec::Vec;

use base::units::{BlockSize, Blocks, ByteLen, Lba};
use scsi::copy::cscd::{Cscd, CscdId};
use scsi::copy::list::CopyList;
use scsi::copy::results::OperationStatus;
use scsi::copy::rod::BlockRange;
use scsi::copy::segment::{Segment, SegmentAction};
use scsi::sense::{Asc, Forwarded, ForwardedFrom, Sense, SenseKey, SenseKeySpecific};
use scsi::status::Status;

use super::copy_limits::SEGMENT_LEN_MAX;
use super::own_unit;
use super::transfer::{Source, Transfer, TransferFault, TransferState};
use crate::contract::{
    ThirdPartyError, ThirdPartyReply, ThirdPartyRequest, ThirdPartyResult, ThirdPartyUnit, UnitConfig,
};
use crate::copy_manager::operations::{OperationHandle, OperationResult};
use crate::device_server::DeviceServer;
use crate::device_server::outcome::{Job, JobInput, JobStep, Outcome};
use crate::task::TaskInfo;
use crate::third_party::is_block_device;

/// An EXTENDED COPY in progress.
pub(super) struct Executor {
    running: OperationHandle,
    cscds: Vec<Cscd>,
    segments: Vec<Segment>,
    myself: ThirdPartyUnit,
    /// The answers of the units to `Describe`.
    descriptions: Vec<(CscdId, ThirdPartyResult)>,
    /// The `Describe` calls that are not answered yet.
    pending_describes: Vec<(u32, CscdId)>,
    /// The index of the present segment.
    at: usize,
    transfer: Option<Box<Transfer>>,
    /// How many bytes the previous segments wrote.
    written: u64,
}

/// The capacity and the device type that a unit reports.
#[derive(Clone, Copy)]
struct UnitCapacity {
    blocks: Blocks,
    block: BlockSize,
    device_type: u8,
}

/// What to do next for a segment.
enum Next {
    /// Wait: units were asked for their descriptions.
    Asked,
    /// Nothing: the segment is complete.
    Done,
    /// Run this transfer.
    Move(Box<Transfer>),
}

/// The transfer that a segment requests, before its units and addresses are checked.
struct SegmentTransfer {
    source: CscdId,
    destination: CscdId,
    source_lba: Lba,
    source_offset: u64,
    destination_lba: Lba,
    destination_offset: u64,
    len: Length,
    /// The offset of the length in the descriptor.
    len_field: u16,
}

#[derive(Clone, Copy)]
enum Length {
    SourceBlocks(u16),
    DestinationBlocks(u16),
    Bytes(u32),
}

impl Executor {
    /// Creates the executor of a parameter list on the unit of `config`.
    pub(super) fn new(running: OperationHandle, list: CopyList, config: &UnitConfig) -> Self {
        Self {
            running,
            cscds: list.cscds,
            segments: list.segments,
            myself: own_unit(config),
            descriptions: Vec::new(),
            pending_describes: Vec::new(),
            at: 0,
            transfer: None,
            written: 0,
        }
    }

    fn advance(&mut self, server: &mut DeviceServer, task: &TaskInfo) -> JobStep {
        loop {
            if let Some(transfer) = &mut self.transfer {
                let standing =
                    transfer.advance(&mut |unit, request| server.call_third_party(task, unit, request));
                let written = self.written + transfer.written();
                self.running.advance(self.segments_done(), written);
                match standing {
                    TransferState::Going => return JobStep::Wait,
                    TransferState::Failed(fault) => return self.fail(self.third_party(fault)),
                    TransferState::Finished => {
                        self.transfer = None;
                        self.written = written;
                        self.at += 1;
                        self.running.advance(self.segments_done(), written);
                    }
                }
            }
            let Some(segment) = self.segments.get(self.at).copied() else {
                self.running.finish(OperationResult {
                    status: Status::GOOD,
                    sense: None,
                    operation: OperationStatus::COMPLETED,
                    token: None,
                });
                return JobStep::Done(Outcome::Good);
            };
            match self.prepare(server, task, &segment.action) {
                Ok(Next::Asked) => return JobStep::Wait,
                Ok(Next::Done) => {
                    self.at += 1;
                    self.running.advance(self.segments_done(), self.written);
                }
                Ok(Next::Move(transfer)) => self.transfer = Some(transfer),
                Err(sense) => return self.fail(sense),
            }
        }
    }

    fn segments_done(&self) -> u16 {
        u16::try_from(self.at).unwrap_or(u16::MAX)
    }

    fn fail(&self, sense: Sense) -> JobStep {
        self.running.finish(OperationResult {
            status: Status::CHECK_CONDITION,
            sense: Some(sense),
            operation: OperationStatus::FAILED,
            token: None,
        });
        JobStep::Done(Outcome::CheckCondition(sense))
    }

    fn prepare(
        &mut self,
        server: &mut DeviceServer,
        task: &TaskInfo,
        action: &SegmentAction,
    ) -> Result<Next, Sense> {
        let wish = match *action {
            SegmentAction::Verify { source, .. } => {
                if !self.ask(server, task, &[(source, SOURCE_FIELD)])? {
                    return Ok(Next::Asked);
                }
                self.facts(source, SOURCE_FIELD)?;
                return Ok(Next::Done);
            }
            SegmentAction::Blocks {
                counts_destination,
                source,
                destination,
                count,
                source_lba,
                destination_lba,
                ..
            } => SegmentTransfer {
                source,
                destination,
                source_lba,
                source_offset: 0,
                destination_lba,
                destination_offset: 0,
                len: if counts_destination {
                    Length::DestinationBlocks(count)
                } else {
                    Length::SourceBlocks(count)
                },
                len_field: 10,
            },
            SegmentAction::Bytes {
                source,
                destination,
                len,
                source_lba,
                destination_lba,
                source_offset,
                destination_offset,
                ..
            } => SegmentTransfer {
                source,
                destination,
                source_lba,
                source_offset: u64::from(source_offset),
                destination_lba,
                destination_offset: u64::from(destination_offset),
                len: Length::Bytes(len),
                len_field: 8,
            },
        };
        let wanted = [(wish.source, SOURCE_FIELD), (wish.destination, DESTINATION_FIELD)];
        if !self.ask(server, task, &wanted)? {
            return Ok(Next::Asked);
        }
        self.plan(&wish)
    }

    /// Requests the descriptions that are not known yet, and returns whether all are known.
    fn ask(
        &mut self,
        server: &mut DeviceServer,
        task: &TaskInfo,
        units: &[(CscdId, u16)],
    ) -> Result<bool, Sense> {
        for (id, field) in units {
            let unit = self.unit(*id).ok_or_else(|| self.aborted(Asc::UNREACHABLE_COPY_TARGET, *field))?;
            let asked = self.pending_describes.iter().any(|(_, other)| other == id);
            if !asked && !self.descriptions.iter().any(|(other, _)| other == id) {
                let call = server.call_third_party(task, unit, ThirdPartyRequest::Describe);
                self.pending_describes.push((call, *id));
            }
        }
        Ok(self.pending_describes.is_empty())
    }

    fn unit(&self, id: CscdId) -> Option<ThirdPartyUnit> {
        if id == CscdId::COPY_MANAGER_UNIT {
            return Some(self.myself.clone());
        }
        // SPC-3 §6.3.6.1: a segment that requires a command to a null device fails as if the device could not
        // be reached.
        let cscd = self.cscds.get(usize::from(id.0)).filter(|cscd| !cscd.null)?;
        Some(ThirdPartyUnit::Designator {
            code_set: cscd.code_set,
            kind: cscd.kind,
            designator: cscd.designator.clone(),
        })
    }

    /// Returns the capacity of a unit, if the unit matches its descriptor.
    fn facts(&self, id: CscdId, field: u16) -> Result<UnitCapacity, Sense> {
        let known = self.descriptions.iter().find(|(other, _)| *other == id).map(|(_, result)| result);
        let (blocks, block, device_type) = match known {
            Some(Ok(ThirdPartyReply::Description { blocks, block_size, device_type })) => {
                (*blocks, *block_size, *device_type)
            }
            Some(Err(ThirdPartyError::Status(status, sense))) => {
                let from =
                    if field == SOURCE_FIELD { ForwardedFrom::Source } else { ForwardedFrom::Destination };
                let fault = TransferFault { side: from, fault: ThirdPartyError::Status(*status, *sense) };
                return Err(self.third_party(fault));
            }
            _ => return Err(self.aborted(Asc::COPY_TARGET_DEVICE_NOT_REACHABLE, field)),
        };
        if let Some(cscd) = self.cscds.get(usize::from(id.0)) {
            if cscd.association != LOGICAL_UNIT {
                return Err(self.aborted(Asc::COPY_TARGET_DEVICE_NOT_REACHABLE, field));
            }
            if cscd.device_type != device_type {
                return Err(self.aborted(Asc::INCORRECT_COPY_TARGET_DEVICE_TYPE, field));
            }
            if cscd.block_len != 0 && cscd.block_len != block.bytes() {
                return Err(self.aborted(Asc::INVALID_FIELD_IN_PARAMETER_LIST, field));
            }
        }
        Ok(UnitCapacity { blocks, block, device_type })
    }

    /// Plans the transfer of a segment, if its units and addresses allow one.
    fn plan(&self, wish: &SegmentTransfer) -> Result<Next, Sense> {
        let from = self.facts(wish.source, SOURCE_FIELD)?;
        let to = self.facts(wish.destination, DESTINATION_FIELD)?;
        for (unit, field) in [(&from, SOURCE_FIELD), (&to, DESTINATION_FIELD)] {
            if !is_block_device(unit.device_type) {
                return Err(self.aborted(Asc::INCORRECT_COPY_TARGET_DEVICE_TYPE, field));
            }
        }
        let len = match wish.len {
            Length::SourceBlocks(count) => u64::from(count) << from.block.shift(),
            Length::DestinationBlocks(count) => u64::from(count) << to.block.shift(),
            Length::Bytes(len) => u64::from(len),
        };
        if len > u64::from(SEGMENT_LEN_MAX) {
            return Err(self.aborted(Asc::INVALID_FIELD_IN_PARAMETER_LIST, wish.len_field));
        }
        // Data that does not fill whole blocks would have to be kept for the next segment, or padded. Neither
        // is done, so that the rest of a block is never changed.
        let part = |bytes: u64, block: BlockSize| bytes & (u64::from(block.bytes()) - 1) != 0;
        let starts_inside = wish.source_offset >= u64::from(from.block.bytes());
        if starts_inside {
            return Err(self.aborted(Asc::INVALID_FIELD_IN_PARAMETER_LIST, SOURCE_OFFSET_FIELD));
        }
        if wish.destination_offset != 0 || part(len, to.block) {
            return Err(self.aborted(Asc::UNEXPECTED_INEXACT_SEGMENT, wish.len_field));
        }
        let counts_blocks = !matches!(wish.len, Length::Bytes(_));
        if counts_blocks && part(len, from.block) {
            return Err(self.aborted(Asc::UNEXPECTED_INEXACT_SEGMENT, wish.len_field));
        }
        if len == 0 {
            return Ok(Next::Done);
        }
        let source_blocks = Blocks((wish.source_offset + len).div_ceil(u64::from(from.block.bytes())));
        if !fits(wish.source_lba, source_blocks, from.blocks) {
            return Err(self.aborted(Asc::NONE, SOURCE_LBA_FIELD));
        }
        let blocks = to.block.whole_blocks_in(ByteLen(len));
        if !fits(wish.destination_lba, blocks, to.blocks) {
            return Err(self.aborted(Asc::NONE, DESTINATION_LBA_FIELD));
        }
        let (Some(source), Some(destination)) = (self.unit(wish.source), self.unit(wish.destination)) else {
            return Err(self.aborted(Asc::UNREACHABLE_COPY_TARGET, SOURCE_FIELD));
        };
        let at = (wish.source_lba.0 << from.block.shift()) + wish.source_offset;
        let source = Source::Unit { unit: source, block: from.block, at };
        let range = BlockRange { lba: wish.destination_lba, blocks };
        Ok(Next::Move(Box::new(Transfer::new(source, destination, to.block, &[range]))))
    }

    /// Returns COPY ABORTED in the present segment, because of a field of its descriptor.
    fn aborted(&self, asc: Asc, field: u16) -> Sense {
        let pointer = SenseKeySpecific::SegmentPointer { in_segment: true, bit: None, byte: field };
        self.aborted_with(asc).with_specific(pointer)
    }

    fn aborted_with(&self, asc: Asc) -> Sense {
        let segment = u64::from(self.segments_done());
        Sense::new(SenseKey::COPY_ABORTED, asc).with_command_specific(segment)
    }

    /// Returns COPY ABORTED in the present segment, because of the status that a unit returned.
    fn third_party(&self, TransferFault { side, fault }: TransferFault) -> Sense {
        let field = match side {
            ForwardedFrom::Source => SOURCE_FIELD,
            ForwardedFrom::Destination => DESTINATION_FIELD,
        };
        match fault {
            ThirdPartyError::NotReachable => self.aborted(Asc::COPY_TARGET_DEVICE_NOT_REACHABLE, field),
            ThirdPartyError::Status(status, sense) => self
                .aborted(Asc::THIRD_PARTY_DEVICE_FAILURE, field)
                .with_forwarded(forwarded(side, status, sense)),
        }
    }
}

impl Job for Executor {
    fn step(&mut self, server: &mut DeviceServer, task: &TaskInfo, input: JobInput) -> JobStep {
        match input {
            JobInput::Start => self.running.is_done_by(task.id),
            JobInput::ThirdPartyReply { call, result } => {
                match self.pending_describes.iter().position(|(asked, _)| *asked == call) {
                    Some(at) => {
                        let (_, id) = self.pending_describes.swap_remove(at);
                        self.descriptions.push((id, result));
                    }
                    None => {
                        if let Some(transfer) = &mut self.transfer {
                            transfer.answered(call, result);
                        }
                    }
                }
            }
            _ => {}
        }
        if self.pending_describes.is_empty() { self.advance(server, task) } else { JobStep::Wait }
    }
}

/// Returns the status and sense data of a unit, for the sense data of the command.
pub(super) fn forwarded(from: ForwardedFrom, status: Status, sense: Option<Sense>) -> Forwarded {
    Forwarded {
        from,
        status,
        key: sense.map_or(SenseKey::NO_SENSE, |sense| sense.key),
        asc: sense.map_or(Asc::NONE, |sense| sense.asc),
        information: sense.and_then(|sense| sense.information),
    }
}

fn fits(lba: Lba, blocks: Blocks, capacity: Blocks) -> bool {
    lba.after(blocks).is_some_and(|end| end.0 <= capacity.0)
}

/// ASSOCIATION of a designator that names a logical unit.
const LOGICAL_UNIT: u8 = 0;

// The offsets of the fields in a block segment descriptor, of either type.
const SOURCE_FIELD: u16 = 4;
const DESTINATION_FIELD: u16 = 6;
const SOURCE_LBA_FIELD: u16 = 12;
const DESTINATION_LBA_FIELD: u16 = 20;
const SOURCE_OFFSET_FIELD: u16 = 28;
