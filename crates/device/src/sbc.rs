//! The commands of a direct access block device (SBC-4 §5).

pub(crate) mod address;
mod atomic;
mod bulk_change;
mod cache;
pub(crate) mod capacity;
mod compare;
mod data_out_collector;
mod defects;
mod lba_status;
pub(crate) mod limits;
mod mode_pages;
pub(crate) mod read;
pub(crate) mod sanitize;
mod table;
mod unmap;
pub(crate) mod verify;
pub(crate) mod write;
mod write_same;

use scsi::cdb::Cdb;
use scsi::inquiry::{DeviceType, version_descriptor};
use scsi::log;
use scsi::sense::{Asc, Sense};
use scsi::vpd::page;

use crate::contract::SpcLevel;
use crate::device_server::command_set::CommandSet;
use crate::device_server::{DeviceServer, UnitInfo};
use crate::inquiry::VitalPages;
use crate::mode::TapeParameters;

/// The command set of disks.
pub(crate) static COMMAND_SET: CommandSet = CommandSet {
    device_type: DeviceType::DIRECT_ACCESS_BLOCK,
    rows: table::ROWS,
    ignores_obsolete_bits: false,
    fallback: None,
    third_party_copy: true,
    mode: mode_pages::LAYOUT,
    log_pages: &[
        log::page::WRITE_ERROR_COUNTERS,
        log::page::READ_ERROR_COUNTERS,
        log::page::VERIFY_ERROR_COUNTERS,
        log::page::SELF_TEST_RESULTS,
        log::page::BACKGROUND_SCAN,
        log::page::GENERAL_STATISTICS,
        log::page::INFORMATIONAL_EXCEPTIONS,
    ],
    log_parameters: |_, _, _| None,
    tape_parameters: |_| TapeParameters::EMPTY,
    vital_pages,
    versions,
    ask_operation_codes: |_, _| None,
};

fn vital_pages(facts: &UnitInfo) -> VitalPages {
    let limits = (page::BLOCK_LIMITS, limits::limits(facts).encode().to_vec());
    let characteristics = (page::BLOCK_CHARACTERISTICS, limits::characteristics(facts).encode().to_vec());
    let provisioning = limits::provisioning(facts)
        .map(|provisioning| (page::LOGICAL_BLOCK_PROVISIONING, provisioning.encode().to_vec()));
    [limits, characteristics].into_iter().chain(provisioning).collect()
}

const fn versions(level: SpcLevel) -> &'static [u16] {
    match level {
        // A unit of SPC-3 nevertheless reports SBC-3: its block limits page and its UNMAP are those of SBC-3.
        SpcLevel::Spc3 => &[version_descriptor::SPC_3, version_descriptor::SBC_3],
        SpcLevel::Spc4 | SpcLevel::Spc5 => &[
            version_descriptor::SPC_4,
            version_descriptor::SBC_3,
            version_descriptor::SPC_5,
            version_descriptor::SBC_4,
        ],
    }
}

/// How many bytes one operation of a long transfer moves: large enough that a disk streams, small enough that
/// the buffer comes from the pool.
const PART_LEN: usize = 1 << 20;

/// How many parts of a long transfer are in progress at a time: one being written, one on the wire, two to
/// hide the latency between. This bounds the memory of a task.
const PARTS_UNDER_WAY: usize = 4;

/// Returns how many bytes one operation may move: a whole number of blocks.
pub(crate) fn part_len(server: &DeviceServer) -> usize {
    PART_LEN.min(server.info.capabilities.io_len_max).max(server.info.block_len())
}

/// Returns whether a command requests FUA, for commands with the FUA bit at the usual offset. FUA_NV,
/// obsolete since SBC-4, requests a cache that survives a loss of power; only the medium itself survives one.
fn force_unit_access(cdb: &Cdb) -> bool {
    const FUA: u8 = 0x08;
    const FUA_NV: u8 = 0x02;
    match cdb.len_by_opcode() {
        Some(6) => false,
        Some(10 | 12 | 16) => cdb.u8(1) & (FUA | FUA_NV) != 0,
        _ => cdb.u8(10) & (FUA | FUA_NV) != 0,
    }
}

/// The sense data for an initiator that sends although it should receive, or the reverse, or that sends data
/// of a wrong length: less than a block, or not as much as the command needs.
const fn wrong_data_out() -> Sense {
    Sense::illegal(Asc::INVALID_FIELD_IN_COMMAND_INFORMATION_UNIT)
}

#[cfg(test)]
mod tests;
