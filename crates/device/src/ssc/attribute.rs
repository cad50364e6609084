//! READ ATTRIBUTE and WRITE ATTRIBUTE (SPC-5): the medium auxiliary memory.

use alloc::vec::Vec;

use base::buffer::DataList;
use base::bytes::{Reader, UnexpectedEof};
use base::int_cast::to_usize;
use cartridge::attributes::{Attribute, AttributeError, AttributeFormat};
use cartridge::command::{self, Command};
use cartridge::error::Error;
use scsi::opcode::read_attribute as action;
use scsi::sense::{Asc, Sense, SenseKey};

use super::data;
use super::turn::{TapeCommand, failed, in_turn, run};
use crate::device_server::DeviceServer;
use crate::device_server::outcome::{JobStep, MAX_PARAMETER_LIST, Outcome};
use crate::task::TaskInfo;

/// READ ONLY, in the third byte of an attribute.
const READ_ONLY: u8 = 0x80;

pub(super) fn read_attribute(server: &mut DeviceServer, task: &TaskInfo) -> Outcome {
    let cdb = &task.cdb;
    let (partition, allocation) = (cdb.u8(7), cdb.u32(10));
    let Some(drive) = &server.tape else { return Outcome::bug() };
    let cartridge = drive.cartridge();
    if cdb.u8(5) != 0 {
        return Outcome::CheckCondition(Sense::invalid_cdb(5, None));
    }
    let partitions = (0..=u8::MAX).take_while(|number| cartridge.partition(*number).is_some()).count();
    let wanted = u16::from(cdb.u8(1) & 0x1f);
    match wanted {
        // One volume, with number 0.
        action::LOGICAL_VOLUME_LIST => return data(Vec::from([0, 2, 0, 1]), allocation),
        action::PARTITION_LIST => {
            return data(Vec::from([0, 2, 0, u8::try_from(partitions).unwrap_or(u8::MAX)]), allocation);
        }
        _ => {}
    }
    if usize::from(partition) >= partitions {
        return Outcome::CheckCondition(Sense::invalid_cdb(7, None));
    }
    let ids = cartridge.attribute_ids(partition);
    let first = cdb.u16(8);
    if wanted == action::VALUES && !ids.contains(&first) {
        return Outcome::CheckCondition(Sense::invalid_cdb(8, None));
    }
    let mut body = Vec::new();
    for id in ids.into_iter().filter(|id| *id >= first) {
        match cartridge.attribute(partition, id) {
            Some(attribute) if wanted == action::VALUES => encode(&attribute, &mut body),
            _ => body.extend_from_slice(&id.to_be_bytes()),
        }
    }
    let len = u32::try_from(body.len()).unwrap_or(u32::MAX).to_be_bytes();
    data([&len[..], &body].concat(), allocation)
}

fn encode(attribute: &Attribute, out: &mut Vec<u8>) {
    let read_only = if attribute.is_read_only { READ_ONLY } else { 0 };
    out.extend_from_slice(&attribute.id.to_be_bytes());
    out.push(read_only | attribute.format.code());
    out.extend_from_slice(&u16::try_from(attribute.value.len()).unwrap_or(u16::MAX).to_be_bytes());
    out.extend_from_slice(&attribute.value);
}

pub(super) fn write_attribute(_: &mut DeviceServer, task: &TaskInfo) -> Outcome {
    if task.cdb.u8(5) != 0 {
        return Outcome::CheckCondition(Sense::invalid_cdb(5, None));
    }
    let len = task.cdb.u32(10);
    if len > MAX_PARAMETER_LIST || task.data_out_len < len {
        return Outcome::CheckCondition(Sense::illegal(Asc::PARAMETER_LIST_LENGTH_ERROR));
    }
    if task.data_in_len > 0 {
        return Outcome::CheckCondition(Sense::illegal(Asc::INVALID_FIELD_IN_COMMAND_INFORMATION_UNIT));
    }
    task.transferable.set(u64::from(len));
    if len == 0 {
        return Outcome::Good;
    }
    // The list is requested in the queue of turns: its attributes are those of the cartridge that was in the
    // drive when the command came.
    in_turn(WriteAttributes { len, is_requested: false, list: None })
}

/// An attribute in a parameter list, and where it begins there.
#[derive(Debug)]
struct SentAttribute {
    at: usize,
    id: u16,
    format: AttributeFormat,
    value: Vec<u8>,
}

fn parse(list: &[u8]) -> Result<Vec<SentAttribute>, Sense> {
    let too_short = |_: UnexpectedEof| Sense::illegal(Asc::PARAMETER_LIST_LENGTH_ERROR);
    if list.is_empty() {
        return Ok(Vec::new());
    }
    let mut from = Reader::new(list);
    let len = from.u32().map_err(too_short)?;
    // PARAMETER DATA LENGTH counts what follows it. LTO drives also accept the length of the whole list,
    // which LTFS sends, and bytes after the attributes.
    let len = if to_usize(len) == list.len() { from.remaining() } else { to_usize(len) };
    let mut rest = Reader::new(from.take(len).map_err(too_short)?);
    let behind = from.remaining();
    let mut attributes = Vec::new();
    while !rest.is_empty() {
        let at = list.len() - behind - rest.remaining();
        let id = rest.u16().map_err(too_short)?;
        let format = rest.u8().map_err(too_short)?;
        let format = AttributeFormat::of_code(format).ok_or_else(|| wrong_at(at + 2))?;
        let len = rest.u16().map_err(too_short)?;
        let value = Vec::from(rest.take(usize::from(len)).map_err(too_short)?);
        attributes.push(SentAttribute { at, id, format, value });
    }
    Ok(attributes)
}

/// Returns INVALID FIELD IN PARAMETER LIST, pointing at a byte.
fn wrong_at(byte: usize) -> Sense {
    Sense::invalid_parameter(u16::try_from(byte).unwrap_or(u16::MAX), None)
}

/// Writes attributes, all or none, and makes them durable.
#[derive(Debug)]
struct WriteAttributes {
    /// The length of the parameter list.
    len: u32,
    is_requested: bool,
    list: Option<DataList>,
}

impl WriteAttributes {
    fn apply(&mut self, server: &mut DeviceServer, task: &TaskInfo) -> JobStep {
        let Some(list) = self.list.take() else { return JobStep::Wait };
        let bytes = DeviceServer::gather(&list);
        server.recycle(list);
        let partition = task.cdb.u8(7);
        match parse(&bytes).and_then(|attributes| Self::set(server, partition, &attributes)) {
            Ok(false) => JobStep::Done(Outcome::Good),
            Ok(true) => run(server, Command::SaveLabel),
            Err(sense) => JobStep::Done(Outcome::CheckCondition(sense)),
        }
    }

    /// Returns whether there is something to be made durable.
    fn set(server: &mut DeviceServer, partition: u8, attributes: &[SentAttribute]) -> Result<bool, Sense> {
        let Some(drive) = &mut server.tape else { return Ok(false) };
        let cartridge = drive.cartridge_mut();
        let mut former = Vec::new();
        for sent in attributes {
            let before = cartridge.attribute(partition, sent.id).map_or_else(Vec::new, |old| old.value);
            former.push((sent, before));
            if let Err(error) = cartridge.set_attribute(partition, sent.id, sent.format, &sent.value) {
                for (sent, before) in former.into_iter().rev().skip(1) {
                    // There was space for it before, and the format is right.
                    let _ = cartridge.set_attribute(partition, sent.id, sent.format, &before);
                }
                return Err(refusal(&error, sent.at));
            }
        }
        Ok(!attributes.is_empty())
    }
}

fn refusal(error: &Error, at: usize) -> Sense {
    match error {
        Error::NoPartition => Sense::invalid_cdb(7, None),
        Error::Attribute(AttributeError::NoSpace) => Sense::illegal(Asc::AUXILIARY_MEMORY_OUT_OF_SPACE),
        Error::Attribute(AttributeError::ReadOnly | AttributeError::Unknown) => wrong_at(at),
        Error::Attribute(AttributeError::TooLong) => wrong_at(at + 3),
        Error::Attribute(AttributeError::WrongFormat) => wrong_at(at + 2),
        _ => Sense::new(SenseKey::DATA_PROTECT, Asc::WRITE_PROTECTED),
    }
}

impl TapeCommand for WriteAttributes {
    fn first_data_len(&self) -> u32 {
        self.len
    }

    fn request_data(&mut self, server: &mut DeviceServer, task: &TaskInfo) {
        if !core::mem::replace(&mut self.is_requested, true) {
            server.fetch_data_out(task, 0, self.len);
        }
    }

    fn keep_data(&mut self, data: DataList) {
        self.list = Some(data);
    }

    fn start(&mut self, server: &mut DeviceServer, task: &TaskInfo) -> JobStep {
        self.request_data(server, task);
        self.apply(server, task)
    }

    fn data_arrived(&mut self, server: &mut DeviceServer, task: &TaskInfo) -> JobStep {
        self.apply(server, task)
    }

    fn ended(
        &mut self,
        server: &mut DeviceServer,
        _: &TaskInfo,
        result: Result<command::Outcome, Error>,
    ) -> JobStep {
        match result {
            Ok(_) => JobStep::Done(Outcome::Good),
            Err(error) => failed(server, &error),
        }
    }
}
