//! INQUIRY: the identity of the device, with what is a matter of the target corrected.

use alloc::boxed::Box;
use alloc::vec;
use alloc::vec::Vec;

use base::bytes::Reader;
use scsi::inquiry::DeviceType;
use scsi::opcode;
use scsi::sense::Sense;
use scsi::status::Status;
use scsi::vpd::{Page, page};

use super::forward::{Answer, Forward};
use crate::contract::RelativePort;
use crate::device_server::DeviceServer;
use crate::device_server::outcome::Outcome;
use crate::inquiry::{InquiryData, unit_designators};
use crate::task::TaskInfo;

/// How many bytes of a vital product data page are asked of the device.
const PAGE_LEN_MAX: u16 = 4096;

/// The length of the block limits page.
const BLOCK_LIMITS_LEN: usize = 0x3c;

/// Passes an INQUIRY to the device.
pub(super) fn inquiry(server: &mut DeviceServer, task: &TaskInfo) -> Outcome {
    let (is_vital, code) = (task.cdb.u8(1) & 1 == 1, task.cdb.u8(2));
    match (is_vital, code) {
        (true, page::SCSI_PORTS) => finished(own_page(server, task, page::SCSI_PORTS), task),
        (true, page::MODE_PAGE_POLICY | page::THIRD_PARTY_COPY) => {
            Outcome::CheckCondition(Sense::invalid_cdb(2, None))
        }
        (true, page::SUPPORTED_PAGES) => ask(code, pages),
        (true, page::DEVICE_IDENTIFICATION) => ask(code, designators),
        (true, page::BLOCK_LIMITS) if is_disk(server) => ask(code, block_limits),
        (false, 0) => super::forward_then(server, task, Some(standard)),
        _ => super::forward(server, task),
    }
}

/// Asks the device for a whole page.
fn ask(code: u8, then: super::ThenFn) -> Outcome {
    let [high, low] = PAGE_LEN_MAX.to_be_bytes();
    let command = vec![opcode::INQUIRY, 1, code, high, low, 0];
    Outcome::Run(Box::new(Forward::asking(command, usize::from(PAGE_LEN_MAX), then)))
}

fn is_disk(server: &DeviceServer) -> bool {
    server.pass_through.as_ref().is_some_and(|pass_through| matches!(pass_through.device.kind, 0x00 | 0x14))
}

/// Corrects standard INQUIRY data.
fn standard(server: &mut DeviceServer, task: &TaskInfo, answer: &Answer) -> Option<Outcome> {
    if answer.status != Status::GOOD {
        return None;
    }
    let has_ports = server.info.config.ports.len() > 1;
    let mut data = answer.data.clone();
    let mut set = |at: usize, clear: u8, bits: u8| {
        if let Some(byte) = data.get_mut(at) {
            *byte = *byte & !clear | bits;
        }
    };
    // The unit exists, whatever the device says of the number by which this host reaches it.
    set(0, 0xe0, 0);
    // ACC and 3PC clear: the unit has no access controls and no copy manager. TPGS 01b, as every unit has.
    set(5, 0x78, 0x10);
    // MULTIP: by the ports of the target. ADDR16 belongs to parallel buses.
    set(6, 0x11, u8::from(has_ports) << 4);
    // CMDQUE: the task set is that of the unit. SYNC and WBUS16 belong to parallel buses.
    set(7, 0x30, 0x02);
    Some(finished(data, task))
}

/// Corrects the list of pages.
fn pages(server: &mut DeviceServer, task: &TaskInfo, answer: &Answer) -> Option<Outcome> {
    if !answer.is_final() {
        return None;
    }
    let mut codes: Vec<u8> = match Page::parse(&answer.data) {
        Ok(page) if answer.status == Status::GOOD => page.body.to_vec(),
        _ => vec![page::SUPPORTED_PAGES],
    };
    codes.retain(|code| !matches!(*code, page::MODE_PAGE_POLICY | page::THIRD_PARTY_COPY));
    codes.extend([page::DEVICE_IDENTIFICATION, page::SCSI_PORTS]);
    codes.extend(is_disk(server).then_some(page::BLOCK_LIMITS));
    codes.sort_unstable();
    codes.dedup();
    Some(finished(
        Page { peripheral: kind(server), code: page::SUPPORTED_PAGES, body: &codes }.encode(),
        task,
    ))
}

/// Replaces the designators of target ports by those of this target. A device without a name gets the unit's.
fn designators(server: &mut DeviceServer, task: &TaskInfo, answer: &Answer) -> Option<Outcome> {
    if !answer.is_final() {
        return None;
    }
    let mut body = Vec::new();
    if let Ok(page) = Page::parse(&answer.data)
        && answer.status == Status::GOOD
    {
        let mut data = Reader::new(page.body);
        while let Ok([codes, association, reserved, len]) = data.array() {
            let Ok(bytes) = data.take(usize::from(len)) else { break };
            if association & 0x30 == 0 {
                body.extend_from_slice(&[codes, association, reserved, len]);
                body.extend_from_slice(bytes);
            }
        }
    }
    if body.is_empty() {
        unit_designators(&server.info.config.identity).iter().for_each(|own| own.encode(&mut body));
    }
    let own = own_page(server, task, page::DEVICE_IDENTIFICATION);
    let own_body = Page::parse(&own).map(|page| page.body.to_vec()).unwrap_or_default();
    let mut names = Vec::new();
    unit_designators(&server.info.config.identity).iter().for_each(|own| own.encode(&mut names));
    body.extend_from_slice(own_body.strip_prefix(names.as_slice()).unwrap_or_default());
    let page = Page { peripheral: kind(server), code: page::DEVICE_IDENTIFICATION, body: &body };
    Some(finished(page.encode(), task))
}

/// Limits the transfer lengths that the device reports to what one command can transfer.
fn block_limits(server: &mut DeviceServer, task: &TaskInfo, answer: &Answer) -> Option<Outcome> {
    const TRANSFER_MAX_AT: usize = 4;
    const TRANSFER_OPTIMAL_AT: usize = 8;
    let pass_through = server.pass_through.as_ref().filter(|_| answer.is_final())?;
    let block_len = pass_through.block_len.unwrap_or(LONGEST_BLOCK).max(1);
    let max = pass_through.device.transfer_max / block_len;
    let mut body = match Page::parse(&answer.data) {
        Ok(page) if answer.status == Status::GOOD => page.body.to_vec(),
        _ => Vec::new(),
    };
    body.resize(body.len().max(BLOCK_LIMITS_LEN), 0);
    for at in [TRANSFER_MAX_AT, TRANSFER_OPTIMAL_AT] {
        if let Some(field) = body.get_mut(at..at + 4) {
            let had = field.iter().fold(0_u32, |number, byte| number << 8 | u32::from(*byte));
            let is_limit_missing = had == 0 && at == TRANSFER_MAX_AT;
            if had > max || is_limit_missing {
                field.copy_from_slice(&max.to_be_bytes());
            }
        }
    }
    Some(finished(Page { peripheral: kind(server), code: page::BLOCK_LIMITS, body: &body }.encode(), task))
}

/// The length of blocks that is assumed while it is not known, so that no limit is too high.
const LONGEST_BLOCK: u32 = 4096;

/// Returns a page as a unit that is no pass-through has it.
fn own_page(server: &DeviceServer, task: &TaskInfo, code: u8) -> Vec<u8> {
    let port = server.nexuses.find(task.nexus).map_or(RelativePort(0), |state| state.nexus.target_port);
    let own = InquiryData {
        config: &server.info.config,
        device_type: DeviceType(kind(server)),
        port,
        third_party_copy: false,
        third_party_copy_page: None,
        volatile_cache: false,
        vital_pages: Vec::new(),
        versions: &[],
    };
    own.page(code).unwrap_or_default()
}

fn kind(server: &DeviceServer) -> u8 {
    server.pass_through.as_ref().map_or(DeviceType::UNKNOWN.0, |pass_through| pass_through.device.kind)
}

/// Returns parameter data, cut to the allocation length of the CDB.
fn finished(bytes: Vec<u8>, task: &TaskInfo) -> Outcome {
    Outcome::ParameterData { bytes, allocation: task.cdb.u16(3).into() }
}
