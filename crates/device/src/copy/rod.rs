//! POPULATE TOKEN and WRITE USING TOKEN (SBC-4 §5.12, §5.59).

use alloc::boxed::Box;
use alloc::rc::Rc;
use alloc::vec::Vec;

use base::units::Blocks;
use scsi::copy::cscd::Cscd;
use scsi::copy::list::{CscdFields, ListIdUsage};
use scsi::copy::results::OperationStatus;
use scsi::copy::rod::{BlockRange, PopulateToken, RodToken, RodType, TokenFields, WriteUsingToken};
use scsi::copy::{CopyError, ListId};
use scsi::inquiry::DeviceType;
use scsi::sense::{Asc, ForwardedFrom, Sense, SenseKey};
use scsi::status::Status;
use scsi::vpd::{Association, Designator};

use super::executor::forwarded;
use super::transfer::{Source, Transfer, TransferFault, TransferState, blocks_of, cut_to};
use super::{CopyIdentifier, copy_limits, own_unit, register, start};
use crate::contract::{ThirdPartyError, ThirdPartyUnit};
use crate::copy_manager::operations::{OperationHandle, OperationResult};
use crate::copy_manager::tokens::{DEFAULT_INACTIVITY_S, MAX_INACTIVITY_S, MAX_RANGES, NewToken};
use crate::device_server::DeviceServer;
use crate::device_server::outcome::{Job, JobInput, JobStep, Outcome};
use crate::range_lock::ByteRange;
use crate::sbc::address::Span;
use crate::sbc::limits;
use crate::task::TaskInfo;

/// The longest parameter list, in bytes: the larger header, and every range.
const LIST_LEN_MAX: u32 = 536 + 16 * MAX_RANGES as u32;

// The offsets of fields in the parameter lists.
const INACTIVITY_FIELD: u16 = 4;
const ROD_TYPE_FIELD: u16 = 8;
const OFFSET_FIELD: u16 = 8;
const POPULATE_LENGTH_FIELD: u16 = 14;
const WRITE_LENGTH_FIELD: u16 = 534;

pub(super) fn populate_token(_: &mut DeviceServer, task: &TaskInfo) -> Outcome {
    parameters(task, |server, task, list| {
        populate(server, task, PopulateToken::parse(list, MAX_RANGES)).unwrap_or_else(|outcome| outcome)
    })
}

pub(super) fn write_using_token(_: &mut DeviceServer, task: &TaskInfo) -> Outcome {
    parameters(task, |server, task, list| {
        write(server, task, WriteUsingToken::parse(list, MAX_RANGES)).unwrap_or_else(|outcome| outcome)
    })
}

/// Fetches the parameter list. A missing list is no error.
fn parameters(task: &TaskInfo, then: fn(&mut DeviceServer, &TaskInfo, &[u8]) -> Outcome) -> Outcome {
    match task.cdb.u32(10) {
        0 => Outcome::Good,
        len if len > LIST_LEN_MAX => {
            Outcome::CheckCondition(Sense::illegal(Asc::PARAMETER_LIST_LENGTH_ERROR))
        }
        len => Outcome::FetchParameterList { len, then },
    }
}

/// Checks that ranges lie on the medium and together have no more blocks than allowed. `field` is the offset
/// of the number of ranges in the list.
fn check_ranges(server: &DeviceServer, ranges: &[BlockRange], field: u16) -> Result<Blocks, Outcome> {
    for range in ranges {
        Span::new(&server.info, range.lba, range.blocks).map_err(Outcome::CheckCondition)?;
    }
    blocks_of(ranges)
        .filter(|total| *total <= copy_limits::token_blocks_max(&server.info))
        .ok_or_else(|| Outcome::CheckCondition(Sense::invalid_parameter(field, None)))
}

fn named(task: &TaskInfo, immediate: bool) -> CopyIdentifier {
    CopyIdentifier { list_id: ListId(task.cdb.u32(6)), usage: ListIdUsage::Hold, immediate }
}

fn populate(
    server: &mut DeviceServer,
    task: &TaskInfo,
    list: Result<PopulateToken, CopyError>,
) -> Result<Outcome, Outcome> {
    let list = list.map_err(|refusal| Outcome::CheckCondition(refusal.into()))?;
    let refuse = |field| Err(Outcome::CheckCondition(Sense::invalid_parameter(field, None)));
    if list.inactivity_timeout_s > MAX_INACTIVITY_S {
        return refuse(INACTIVITY_FIELD);
    }
    let ours = [
        RodType::POINT_IN_TIME_DEFAULT,
        RodType::POINT_IN_TIME_CHANGE_VULNERABLE,
        RodType::POINT_IN_TIME_ANY,
    ];
    if list.rod_type.is_some_and(|wanted| !ours.contains(&wanted)) {
        return refuse(ROD_TYPE_FIELD);
    }
    let blocks = check_ranges(server, &list.ranges, POPULATE_LENGTH_FIELD)?;
    if blocks.0 == 0 {
        return refuse(POPULATE_LENGTH_FIELD);
    }
    let named = named(task, list.immediate);
    let running = register(server, task, named)?;
    Ok(start(server, task, named, Box::new(Populate { running, list, blocks })))
}

/// A POPULATE TOKEN in progress: it waits until no write to its blocks is in progress, so that every read by
/// the token returns the same data.
struct Populate {
    running: OperationHandle,
    list: PopulateToken,
    blocks: Blocks,
}

impl Populate {
    /// Returns the shortest range of bytes that covers every range of the token.
    fn hull(&self, server: &DeviceServer) -> ByteRange {
        let ranges = || self.list.ranges.iter().filter(|range| range.blocks.0 > 0);
        let start = ranges().map(|range| range.lba.0).min().unwrap_or(0);
        let end = ranges().map(|range| range.lba.0.saturating_add(range.blocks.0)).max().unwrap_or(0);
        let shift = server.info.block_size().shift();
        ByteRange { start: start << shift, end: end << shift }
    }

    fn make(&mut self, server: &mut DeviceServer, task: &TaskInfo) -> Option<RodToken> {
        let state = server.nexuses.find(task.nexus)?;
        let owner = Rc::clone(&state.nexus.initiator_port);
        let port = state.nexus.target_port;
        let facts = &server.info;
        let mut target = Vec::new();
        if let Some(port) = facts.config.ports.iter().find(|other| other.relative == port) {
            let association = Association::TARGET_DEVICE;
            Designator::scsi_name(association, Some(port.protocol), &port.device_name).encode(&mut target);
        }
        let block = facts.block_size();
        let zeros = limits::unmapped_zeros(facts);
        let token = RodToken::new(&TokenFields {
            rod_type: RodType::POINT_IN_TIME_CHANGE_VULNERABLE,
            id: server.copy_manager.tokens.next_id(),
            creator: creator(&facts.config.identity.naa, block.bytes()),
            len: self.blocks.0 << block.shift(),
            block_len: block.bytes(),
            physical_exponent: facts.config.physical_exponent,
            provisioning: (facts.is_thin(), zeros),
            target: &target,
            secret: server.copy_manager.secrets.as_mut()?.bytes(),
        });
        let inactivity_s = match self.list.inactivity_timeout_s {
            0 => DEFAULT_INACTIVITY_S,
            wanted => wanted,
        };
        let ranges = core::mem::take(&mut self.list.ranges);
        let waiting = server.medium.writes_held_back();
        server.copy_manager.tokens.add(server.now, token.clone(), NewToken { owner, ranges, inactivity_s });
        for range in waiting {
            // This write was requested before the token was created, and is executed after it.
            server.copy_manager.tokens.revoke_overlapping_bytes(block, range);
        }
        Some(token)
    }
}

impl Job for Populate {
    fn step(&mut self, server: &mut DeviceServer, task: &TaskInfo, input: JobInput) -> JobStep {
        match input {
            JobInput::Start => {
                self.running.is_done_by(task.id);
                server.lock(task, self.hull(server));
                JobStep::Wait
            }
            JobInput::Locked => {
                let Some(token) = self.make(server, task) else {
                    return JobStep::Done(Outcome::CheckCondition(Sense::new(
                        SenseKey::HARDWARE_ERROR,
                        Asc::INTERNAL_TARGET_FAILURE,
                    )));
                };
                self.running.advance(0, self.blocks.0 << server.info.block_size().shift());
                self.running.finish(OperationResult {
                    status: Status::GOOD,
                    sense: None,
                    operation: OperationStatus::COMPLETED,
                    token: Some(token),
                });
                JobStep::Done(Outcome::Good)
            }
            _ => JobStep::Wait,
        }
    }
}

/// Returns the CSCD descriptor of a unit.
fn creator(naa: &[u8], block_len: u32) -> [u8; scsi::copy::cscd::CSCD_LEN] {
    let designator = Designator::naa(naa);
    Cscd {
        device_type: DeviceType::DIRECT_ACCESS_BLOCK.0,
        code_set: designator.code_set.0,
        kind: designator.kind.0,
        association: designator.association.0,
        designator: designator.bytes,
        pad: false,
        block_len,
        null: false,
    }
    .to_bytes()
}

fn write(
    server: &mut DeviceServer,
    task: &TaskInfo,
    list: Result<WriteUsingToken, CopyError>,
) -> Result<Outcome, Outcome> {
    let list = list.map_err(|refusal| Outcome::CheckCondition(refusal.into()))?;
    let wanted = check_ranges(server, &list.ranges, WRITE_LENGTH_FIELD)?;
    let (source, available) = source_of(server, &list).map_err(Outcome::CheckCondition)?;
    let named = named(task, list.immediate);
    let running = register(server, task, named)?;
    let block = server.info.block_size();
    let ranges = cut_to(&list.ranges, available);
    let transfer = Transfer::new(source, own_unit(&server.info.config), block, &ranges);
    let delete = list.delete_token.then(|| list.token.clone());
    let job = Write { running, transfer, partial: available < wanted, delete };
    Ok(start(server, task, named, Box::new(job)))
}

/// Returns the source of a token's data, and how many of its blocks follow the offset.
fn source_of(server: &DeviceServer, list: &WriteUsingToken) -> Result<(Source, Blocks), Sense> {
    let token = &list.token;
    if !token.is_well_formed() {
        return Err(Sense::illegal(Asc::INVALID_TOKEN_LENGTH));
    }
    match token.rod_type() {
        RodType::BLOCK_DEVICE_ZERO => return Ok((Source::Zeros, Blocks(u64::MAX))),
        RodType::POINT_IN_TIME_CHANGE_VULNERABLE => {}
        _ => return Err(Sense::illegal(Asc::UNSUPPORTED_TOKEN_TYPE)),
    }
    let creator =
        Cscd::parse(&token.creator(), 0, CscdFields::Spc4).map_err(|_| Sense::illegal(Asc::TOKEN_CORRUPT))?;
    let block = server.info.block_size();
    if creator.block_len != block.bytes() {
        return Err(Sense::illegal(Asc::UNSUPPORTED_TOKEN_TYPE));
    }
    let represented = token.len_represented() >> block.shift();
    let available = represented.checked_sub(list.offset.0).filter(|blocks| *blocks > 0);
    let available = available.ok_or_else(|| Sense::invalid_parameter(OFFSET_FIELD, None))?;
    let source = Source::Token {
        unit: ThirdPartyUnit::Designator {
            code_set: creator.code_set,
            kind: creator.kind,
            designator: creator.designator,
        },
        token: Rc::from(token.bytes().as_slice()),
        block,
        offset: list.offset,
    };
    Ok((source, Blocks(available)))
}

/// A WRITE USING TOKEN in progress.
struct Write {
    running: OperationHandle,
    transfer: Transfer,
    /// Whether the token has fewer blocks than were requested.
    partial: bool,
    /// The token, if it is to be deleted afterwards.
    delete: Option<RodToken>,
}

impl Job for Write {
    fn step(&mut self, server: &mut DeviceServer, task: &TaskInfo, input: JobInput) -> JobStep {
        match input {
            JobInput::Start => self.running.is_done_by(task.id),
            JobInput::ThirdPartyReply { call, result } => self.transfer.answered(call, result),
            _ => {}
        }
        let standing =
            self.transfer.advance(&mut |unit, request| server.call_third_party(task, unit, request));
        // Initiators continue at the transfer count, so it counts only data that was written without a gap.
        self.running.advance(0, self.transfer.prefix());
        let (outcome, operation) = match standing {
            TransferState::Going => return JobStep::Wait,
            TransferState::Finished => {
                if let Some(token) = &self.delete {
                    server.copy_manager.tokens.delete(token.bytes());
                }
                // Windows calls 03h "completed with residual data".
                let status = match self.partial {
                    true => OperationStatus::COMPLETED_PARTIAL_TOKEN,
                    false => OperationStatus::COMPLETED,
                };
                (Outcome::Good, status)
            }
            TransferState::Failed(fault) => (failed(fault), OperationStatus::FAILED),
        };
        let (status, sense) = match &outcome {
            Outcome::CheckCondition(sense) => (Status::CHECK_CONDITION, Some(*sense)),
            Outcome::Status(status) => (*status, None),
            _ => (Status::GOOD, None),
        };
        self.running.finish(OperationResult { status, sense, operation, token: None });
        JobStep::Done(outcome)
    }
}

/// Returns the outcome of a WRITE USING TOKEN after a unit failed a call.
fn failed(TransferFault { side, fault }: TransferFault) -> Outcome {
    match (side, fault) {
        // The initiator must not learn whether the unit does not exist or is hidden from it.
        (ForwardedFrom::Source, ThirdPartyError::NotReachable) => {
            Outcome::CheckCondition(Sense::illegal(Asc::TOKEN_UNKNOWN))
        }
        (ForwardedFrom::Source, ThirdPartyError::Status(_, Some(sense))) if is_about_the_token(sense) => {
            Outcome::CheckCondition(sense)
        }
        // The unit that is written is this one: its status for the write is the status of the command.
        (ForwardedFrom::Destination, ThirdPartyError::Status(Status::CHECK_CONDITION, Some(sense))) => {
            Outcome::CheckCondition(sense)
        }
        (ForwardedFrom::Destination, ThirdPartyError::Status(status, None))
            if status != Status::CHECK_CONDITION =>
        {
            Outcome::Status(status)
        }
        (side, ThirdPartyError::Status(status, sense)) => Outcome::CheckCondition(
            Sense::new(SenseKey::COPY_ABORTED, Asc::THIRD_PARTY_DEVICE_FAILURE)
                .with_forwarded(forwarded(side, status, sense)),
        ),
        (ForwardedFrom::Destination, ThirdPartyError::NotReachable) => {
            Outcome::CheckCondition(Sense::new(SenseKey::COPY_ABORTED, Asc::COPY_TARGET_DEVICE_NOT_REACHABLE))
        }
    }
}

/// Returns whether the code is any form of INVALID TOKEN OPERATION, or the offset lies beyond the token.
fn is_about_the_token(sense: Sense) -> bool {
    let [code, _] = sense.asc.0.to_be_bytes();
    code == 0x23 || sense.asc == Asc::INVALID_FIELD_IN_PARAMETER_LIST
}
