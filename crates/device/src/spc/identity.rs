//! INQUIRY.

use scsi::opcode;
use scsi::sense::Sense;

use super::data;
use crate::contract::{RelativePort, SpcLevel};
use crate::copy::copy_limits;
use crate::device_server::DeviceServer;
use crate::device_server::outcome::Outcome;
use crate::inquiry::InquiryData;
use crate::task::TaskInfo;

pub(super) fn inquiry(server: &mut DeviceServer, task: &TaskInfo) -> Outcome {
    let (vital, code, allocation) = (task.cdb.u8(1) & 1 == 1, task.cdb.u8(2), u32::from(task.cdb.u16(3)));
    let port = server.nexuses.find(task.nexus).map_or(RelativePort(0), |state| state.nexus.target_port);
    let portrait = portrait(server, port);
    let bytes = match (vital, code) {
        (true, code) => portrait.page(code),
        (false, 0) => Some(portrait.standard().to_vec()),
        (false, _) => None,
    };
    bytes
        .map_or_else(|| Outcome::CheckCondition(Sense::invalid_cdb(2, None)), |bytes| data(bytes, allocation))
}

fn portrait(server: &DeviceServer, port: RelativePort) -> InquiryData<'_> {
    let facts = &server.info;
    let copies = server.table.rows_of(opcode::THIRD_PARTY_COPY_OUT).any(|row| row.is_enabled(facts));
    InquiryData {
        config: &facts.config,
        device_type: server.command_set.device_type,
        versions: (server.command_set.versions)(facts.config.overrides.level),
        port,
        third_party_copy: copies,
        // SPC-4 introduced this page.
        third_party_copy_page: (copies && facts.config.overrides.level > SpcLevel::Spc3)
            .then(|| copy_limits::body(server)),
        volatile_cache: facts.capabilities.volatile_cache,
        vital_pages: (server.command_set.vital_pages)(facts),
    }
}
