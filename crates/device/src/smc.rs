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

use alloc::vec;
use alloc::vec::Vec;

use scsi::inquiry::{DeviceType, version_descriptor};
use scsi::log::{self, Parameter};

use crate::contract::SpcLevel;
use crate::device_server::UnitInfo;
use crate::device_server::command_set::CommandSet;
use crate::mode::TapeParameters;

/// The command set of medium changers.
pub(crate) static COMMAND_SET: CommandSet = CommandSet {
    device_type: DeviceType::MEDIA_CHANGER,
    rows: table::ROWS,
    // Linux' ch driver puts the LUN into byte 1 of every CDB, and `mtx eepos` sets bits of the control byte.
    ignores_obsolete_bits: true,
    fallback: None,
    third_party_copy: false,
    mode: mode_pages::LAYOUT,
    log_pages: &[log::page::SELF_TEST_RESULTS, log::page::TAPE_ALERT, log::page::INFORMATIONAL_EXCEPTIONS],
    log_parameters: |_, _, code| (code == log::page::TAPE_ALERT).then(no_alerts),
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

/// Returns the TapeAlert flags, for which programs ask every library: nothing of a virtual one wears out.
fn no_alerts() -> Vec<Parameter> {
    const FLAGS: u16 = 64;
    let parameter = |code| Parameter { code, control: log::control::BINARY_LIST, value: vec![0] };
    (1..=FLAGS).map(parameter).collect()
}

#[cfg(test)]
mod tests;
