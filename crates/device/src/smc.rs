//! The commands of a medium changer (SMC-3).
//!
//! A changer has one medium transport element, which holds nothing between commands, and the mail slots,
//! drives and slots of a library ([`cartridge::library`]). A motion is a change of the library, which the
//! owner of the unit makes durable before the command ends ([`motion`]).

mod address;
mod element_status;
mod mode_pages;
mod motion;
mod table;

use alloc::vec::Vec;

use scsi::inquiry::{DeviceType, version_descriptor};
use scsi::log;

use crate::contract::SpcLevel;
use crate::device_server::UnitInfo;
use crate::device_server::command_set::CommandSet;
use crate::mode::TapeParameters;

/// The command set of medium changers.
pub(crate) static COMMAND_SET: CommandSet = CommandSet {
    device_type: DeviceType::MEDIA_CHANGER,
    rows: table::ROWS,
    fallback: None,
    third_party_copy: false,
    mode: mode_pages::LAYOUT,
    log_pages: &[log::page::SELF_TEST_RESULTS, log::page::INFORMATIONAL_EXCEPTIONS],
    log_parameters: |_, _, _| None,
    tape_parameters: |_| TapeParameters::EMPTY,
    vital_pages: |_: &UnitInfo| Vec::new(),
    versions,
    ask_operation_codes: |_, _| None,
};

const fn versions(level: SpcLevel) -> &'static [u16] {
    match level {
        SpcLevel::Spc3 => &[version_descriptor::SPC_3, version_descriptor::SMC_3],
        SpcLevel::Spc4 | SpcLevel::Spc5 => {
            &[version_descriptor::SPC_4, version_descriptor::SPC_5, version_descriptor::SMC_3]
        }
    }
}

#[cfg(test)]
mod tests;
