//! The commands of a drive for CDs, DVDs and BDs (MMC-6).
//!
//! A read-only disc is an image of whole sectors of 2048 bytes of user data, written in one session with one
//! data track. Everything else that a drive reports of it follows from the length of the image and from the
//! kind of disc ([`profile`]). A writable disc has a record of its own ([`crate::disc_record`]). The drive
//! reads and writes every kind; its medium can be ejected and replaced while it serves.

mod cd_sector;
mod change;
mod close;
mod disc_structure;
mod events;
mod features;
mod format;
mod information;
mod layout;
mod mode_pages;
mod performance;
mod profile;
mod read_cd;
mod table;
mod write;

use alloc::vec::Vec;

use scsi::inquiry::{DeviceType, version_descriptor};
use scsi::log;
use scsi::sense::{Asc, Sense};

use crate::contract::SpcLevel;
use crate::device_server::command_set::CommandSet;
use crate::device_server::outcome::Outcome;
use crate::device_server::{DeviceServer, UnitInfo};
use crate::mode::TapeParameters;

/// The command set of drives for discs.
pub(crate) static COMMAND_SET: CommandSet = CommandSet {
    device_type: DeviceType::CD_DVD,
    rows: table::ROWS,
    ignores_obsolete_bits: false,
    fallback: None,
    third_party_copy: false,
    mode: mode_pages::LAYOUT,
    log_pages: &[
        log::page::WRITE_ERROR_COUNTERS,
        log::page::READ_ERROR_COUNTERS,
        log::page::SELF_TEST_RESULTS,
        log::page::GENERAL_STATISTICS,
        log::page::INFORMATIONAL_EXCEPTIONS,
    ],
    log_parameters: |_, _, _| None,
    tape_parameters: |_| TapeParameters::EMPTY,
    vital_pages: |_: &UnitInfo| Vec::new(),
    versions,
    ask_operation_codes: |_, _| None,
};

const fn versions(level: SpcLevel) -> &'static [u16] {
    match level {
        SpcLevel::Spc3 => &[version_descriptor::SPC_3],
        SpcLevel::Spc4 | SpcLevel::Spc5 => {
            &[version_descriptor::SPC_4, version_descriptor::SPC_5, version_descriptor::MMC_6]
        }
    }
}

/// Returns parameter data with an allocation length.
const fn data(bytes: Vec<u8>, allocation: u32) -> Outcome {
    Outcome::ParameterData { bytes, allocation: allocation as u64 }
}

/// Returns parameter data, or CHECK CONDITION with the sense data in `Err`.
fn data_or(bytes: Result<Vec<u8>, Sense>, allocation: u32) -> Outcome {
    bytes.map_or_else(Outcome::CheckCondition, |bytes| data(bytes, allocation))
}

/// Returns the number of sectors of the disc, which is the address of its lead-out.
fn lead_out(server: &DeviceServer) -> u32 {
    u32::try_from(server.info.capacity().0).unwrap_or(u32::MAX)
}

/// The sense data for a command that the present kind of disc does not have.
const fn wrong_kind_of_disc() -> Sense {
    Sense::illegal(Asc::CANNOT_READ_MEDIUM_INCOMPATIBLE_FORMAT)
}

#[cfg(test)]
mod tests;
