//! The commands of a tape drive (SSC-4).
//!
//! The medium is a cartridge of the crate `cartridge`: a state machine that numbers records and filemarks and
//! issues operations on files. The drive ([`drive`]) owns it, and gives it to one command at a time
//! ([`turn`]). A record that is written is acknowledged when it is in the files (BUFFERED MODE 1h), so that
//! it survives the end of the process; WRITE FILEMARKS without IMMED is acknowledged when everything before
//! it is durable. An error that is found after an acknowledgement is reported as a deferred error, and
//! nothing is written after it until the cartridge is loaded again.
//!
//! The drive encrypts and decrypts records ([`encryption`]) with keys that hosts set ([`set_encryption`]).

mod append_only;
mod arrived;
mod attribute;
mod data_in;
mod density;
mod drive;
mod eject;
mod encryption;
mod format;
mod load;
mod log_pages;
mod lost_position;
mod mode_pages;
mod motion;
mod position;
mod protection;
mod read;
mod security_protocol;
mod set_encryption;
mod table;
mod transfer;
mod turn;
mod verify;
mod write;

use alloc::vec::Vec;

use scsi::inquiry::{DeviceType, version_descriptor};
use scsi::log;

use crate::contract::SpcLevel;
use crate::device_server::UnitInfo;
use crate::device_server::command_set::CommandSet;
use crate::device_server::outcome::Outcome;
use crate::inquiry::VitalPages;

/// The command set of tape drives.
pub(crate) static COMMAND_SET: CommandSet = CommandSet {
    device_type: DeviceType::SEQUENTIAL_ACCESS,
    rows: table::ROWS,
    ignores_obsolete_bits: false,
    fallback: None,
    third_party_copy: false,
    mode: mode_pages::LAYOUT,
    log_pages: &[
        log::page::WRITE_ERROR_COUNTERS,
        log::page::READ_ERROR_COUNTERS,
        log::page::SEQUENTIAL_ACCESS_DEVICE,
        log::page::SELF_TEST_RESULTS,
        log::page::VOLUME_STATISTICS,
        log::page::TAPE_ALERT,
        log::page::INFORMATIONAL_EXCEPTIONS,
        log::page::TAPE_CAPACITY,
    ],
    log_parameters: log_pages::parameters,
    tape_parameters: mode_pages::tape_parameters,
    vital_pages,
    versions,
    ask_operation_codes: |_, _| None,
};

const fn versions(level: SpcLevel) -> &'static [u16] {
    match level {
        SpcLevel::Spc3 => &[version_descriptor::SPC_3, version_descriptor::SSC_3],
        SpcLevel::Spc4 | SpcLevel::Spc5 => {
            &[version_descriptor::SPC_4, version_descriptor::SPC_5, version_descriptor::SSC_4]
        }
    }
}

/// Returns the pages sequential-access device capabilities (B0h: the drive supports WORM cartridges),
/// manufacturer-assigned serial number (B1h) and logical block protection (B5h).
fn vital_pages(info: &UnitInfo) -> VitalPages {
    const CAPABILITIES: u8 = 0xb0;
    const SERIAL_NUMBER: u8 = 0xb1;
    const BLOCK_PROTECTION: u8 = 0xb5;
    const WORM: u8 = 0x01;
    let serial = Vec::from(info.config.identity.serial.as_bytes());
    // Each method: its length, and LBP_W_C with LBP_R_C.
    let methods = [1, 2].into_iter().flat_map(|method| [3, method, 4, 0xc0]);
    let protection = [0; 4].into_iter().chain(methods).collect();
    Vec::from([(CAPABILITIES, Vec::from([WORM])), (SERIAL_NUMBER, serial), (BLOCK_PROTECTION, protection)])
}

/// Returns parameter data with an allocation length.
const fn data(bytes: Vec<u8>, allocation: u32) -> Outcome {
    Outcome::ParameterData { bytes, allocation: allocation as u64 }
}

#[cfg(test)]
mod tests;
