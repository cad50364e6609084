//! MODE SENSE and MODE SELECT.

use alloc::boxed::Box;
use alloc::vec::Vec;

use scsi::mode::{BlockDescriptor, HeaderFormat, PageControl};
use scsi::opcode;
use scsi::sense::{Asc, Sense};
use store::api::OpAction;

use super::reservation::not_saved;
use super::{data_or, whole};
use crate::device_server::DeviceServer;
use crate::device_server::outcome::{Job, JobInput, JobStep, Outcome};
use crate::fault_injection::{self, Bug};
use crate::mode::{self, MediumParameters, ModeValues, SenseRequest};
use crate::sbc::limits::threshold_exponent;
use crate::settings::{NexusSettings, Settings};
use crate::task::TaskInfo;

pub(super) fn sense(server: &mut DeviceServer, task: &TaskInfo) -> Outcome {
    let cdb = &task.cdb;
    let form = form(task);
    let request = SenseRequest {
        form,
        values: PageControl::from_code(cdb.u8(2) >> 6),
        code: cdb.u8(2) & 0x3f,
        subpage: cdb.u8(3),
        descriptor: cdb.u8(1) & 0x08 == 0,
        long: cdb.u8(1) & 0x10 != 0,
    };
    let allocation = match form {
        HeaderFormat::Six => u32::from(cdb.u8(4)),
        HeaderFormat::Ten => u32::from(cdb.u16(7)),
    };
    let medium = medium_facts(server, task);
    let (defaults, saved) = (server.default_settings(), server.power_on_settings());
    let nexus = server.nexuses.settings(task.nexus);
    let current = Settings { write_cache: server.reports_write_cache(), nexus, ..server.settings.clone() };
    let lists = ModeValues { current: &current, defaults: &defaults, saved: &saved };
    data_or(mode::sense(request, lists, medium), allocation)
}

/// The longest header with a block descriptor.
const HEADER_LEN_MAX: u32 = 8 + 8;

pub(super) fn select(server: &mut DeviceServer, task: &TaskInfo) -> Outcome {
    let len = list_len(task);
    // Without PF only pages of a vendor-specific format remain, which are not supported. Hosts set the block
    // length of a tape drive without PF, by a list without pages.
    if len > 0 && task.cdb.u8(1) & 0x10 == 0 && !(server.command_set.mode.is_tape && len <= HEADER_LEN_MAX) {
        return Outcome::CheckCondition(Sense::invalid_cdb(1, Some(4)));
    }
    Outcome::FetchParameterList { len, then: selected }
}

fn selected(_: &mut DeviceServer, task: &TaskInfo, list: &[u8]) -> Outcome {
    match whole(list, list_len(task)) {
        Ok(list) => Outcome::QueueStateChange { list: Vec::from(list), then: select_in_turn },
        Err(outcome) => outcome,
    }
}

/// Checks the list against the settings in force. The requested settings replace them after they are saved
/// (if SP is set), and, if the write cache is disabled, after every acknowledged write is durable.
fn select_in_turn(server: &mut DeviceServer, task: &TaskInfo, list: &[u8]) -> Outcome {
    let current = Settings { nexus: server.nexuses.settings(task.nexus), ..server.settings.clone() };
    let mut new = match mode::select(form(task), list, &current, medium_facts(server, task)) {
        Ok(new) => new,
        Err(sense) => return Outcome::CheckCondition(sense),
    };
    let nexus = core::mem::take(&mut new.nexus);
    if server.has_write_cache() && !new.write_cache && !server.is_disabling_cache(task.id) {
        return Outcome::Run(Box::new(DisableCache { list: Vec::from(list) }));
    }
    if task.cdb.u8(1) & 0x01 == 0 || list.is_empty() {
        set(server, task, new, nexus);
        return Outcome::Good;
    }
    let state = server.spc.to_save_with_settings(&new);
    if fault_injection::is_injected(Bug::SettingsUnsaved) {
        server.settings = new.clone();
    }
    let then = move |server: &mut DeviceServer, task: &TaskInfo, saved| {
        if saved {
            server.spc.saved_settings = Some(new.clone());
            set(server, task, new, nexus);
            Outcome::Good
        } else {
            not_saved()
        }
    };
    Outcome::SaveState { state, then: Box::new(then) }
}

/// Changes the settings of the unit, and those of the nexus, which no other nexus need hear of.
fn set(server: &mut DeviceServer, task: &TaskInfo, mut new: Settings, nexus: NexusSettings) {
    server.nexuses.set_settings(task.nexus, nexus);
    if server.demounts() != task.demounts {
        // The command takes effect as if before the unload, which ends what is bound to the cartridge.
        let current = server.settings.stream;
        new.stream.partitioning = current.partitioning;
        new.stream.is_append_only = current.is_append_only;
    }
    if new != server.settings {
        server.settings = new;
        server.nexuses.establish_ua_all(Asc::MODE_PARAMETERS_CHANGED, Some(task.nexus));
    }
}

/// Makes every write that was acknowledged under the write cache durable before the setting changes. Writes
/// that are submitted after this job starts are durable when they are acknowledged. The job waits for the
/// writes that were already in progress, then flushes. If the flush fails, the write cache stays enabled.
struct DisableCache {
    list: Vec<u8>,
}

impl Job for DisableCache {
    fn step(&mut self, server: &mut DeviceServer, task: &TaskInfo, input: JobInput) -> JobStep {
        match input {
            JobInput::Start => {
                server.disable_cache(task.id);
                JobStep::Wait
            }
            JobInput::Woken => {
                server.submit(task, 0, OpAction::Flush);
                JobStep::Wait
            }
            JobInput::OpCompleted { result, .. } => JobStep::Done(match server.flushed(result) {
                Ok(()) => {
                    Outcome::QueueStateChange { list: core::mem::take(&mut self.list), then: select_in_turn }
                }
                Err(sense) => Outcome::CheckCondition(sense),
            }),
            _ => JobStep::Wait,
        }
    }
}

const fn form(task: &TaskInfo) -> HeaderFormat {
    match task.cdb.opcode() {
        opcode::MODE_SENSE_6 | opcode::MODE_SELECT_6 => HeaderFormat::Six,
        _ => HeaderFormat::Ten,
    }
}

fn list_len(task: &TaskInfo) -> u32 {
    match form(task) {
        HeaderFormat::Six => u32::from(task.cdb.u8(4)),
        HeaderFormat::Ten => u32::from(task.cdb.u16(7)),
    }
}

fn medium_facts(server: &DeviceServer, task: &TaskInfo) -> MediumParameters {
    let blocks = if server.spc.removal.is_present() { server.info.capacity().0 } else { 0 };
    MediumParameters {
        write_protected: server.write_protection(task.nexus).is_some(),
        descriptor: BlockDescriptor { blocks, block_len: server.info.block_size().bytes() },
        locked: server.spc.removal.check().is_err(),
        tape: (server.command_set.tape_parameters)(server),
        elements: server.changer.as_ref().map(|changer| changer.counts()).unwrap_or_default(),
        threshold_sets: threshold_sets(server),
        layout: &server.command_set.mode,
    }
}

/// Returns how many threshold sets are left when the storage counts as short.
fn threshold_sets(server: &DeviceServer) -> Option<u32> {
    let shift = u32::from(threshold_exponent(&server.info)?) + server.info.block_size().shift();
    let bytes = server.space_threshold?.bytes;
    Some(u32::try_from(bytes.checked_shr(shift).unwrap_or(0)).unwrap_or(u32::MAX))
}
