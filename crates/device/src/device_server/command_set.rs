//! What a device type brings to a logical unit.
//!
//! Every unit has a task set, unit attentions, reservations, and the commands of SPC. A command set adds the
//! rest: the peripheral device type, the commands, and what mode pages, log pages and vital product data
//! report. A unit selects its command set once, when it is created; the data path then only uses the table of
//! commands that was made of it.

use alloc::vec::Vec;

use scsi::inquiry::DeviceType;
use scsi::log::Parameter;

use super::outcome::Outcome;
use super::table::Row;
use super::{DeviceServer, UnitInfo};
use crate::contract::{NexusId, SpcLevel};
use crate::inquiry::VitalPages;
use crate::mode::{ModeLayout, TapeParameters};
use crate::task::TaskInfo;

/// The command set of a device type.
pub(crate) struct CommandSet {
    /// PERIPHERAL DEVICE TYPE.
    pub(crate) device_type: DeviceType,
    /// The commands beside those of SPC. A command with the operation code of one of SPC replaces that.
    pub(crate) rows: &'static [Row],
    /// Whether the bits of CDBs that once had a meaning are ignored: bits 7 to 5 of byte 1, where SCSI-2 had
    /// the LUN, and the vendor-specific bits of the control byte.
    pub(crate) ignores_obsolete_bits: bool,
    /// The row of operation codes without one, if the unit passes them to a device.
    pub(crate) fallback: Option<&'static Row>,
    /// Whether the unit has a copy manager, which reads and writes blocks.
    pub(crate) third_party_copy: bool,
    /// The mode pages, and what the header of mode parameters reports.
    pub(crate) mode: ModeLayout,
    /// The log pages that every unit of the type has, ascending, without the list of pages itself.
    pub(crate) log_pages: &'static [u8],
    /// Returns the parameters of a log page that only the device type has, or that it defines in its own way.
    pub(crate) log_parameters: fn(&DeviceServer, NexusId, page: u8) -> Option<Vec<Parameter>>,
    /// Returns what mode parameters report of the cartridge of a tape drive.
    pub(crate) tape_parameters: fn(&DeviceServer) -> TapeParameters,
    /// Returns the vital product data pages beside those of SPC.
    pub(crate) vital_pages: fn(&UnitInfo) -> VitalPages,
    /// Returns the version descriptors of the common and of the device type's standards.
    pub(crate) versions: fn(SpcLevel) -> &'static [u16],
    /// Returns what REPORT SUPPORTED OPERATION CODES asks a device, or `None` if the table has the answer.
    pub(crate) ask_operation_codes: fn(&DeviceServer, &TaskInfo) -> Option<Outcome>,
}

#[cfg(test)]
impl CommandSet {
    /// Checks that a section of docs/devices.md has one row for each command, and no others.
    pub(crate) fn assert_documented(&self, title: &str) {
        let page = include_str!("../../../../docs/devices.md");
        let section = page.split("\n## ").find(|section| section.starts_with(title)).unwrap();
        let mut missing = alloc::string::String::new();
        for row in self.rows {
            let line = alloc::format!("| `{:02X}h` | {} |", row.opcode, row.name);
            if !section.contains(&line) {
                missing = missing + &line + "\n";
            }
        }
        assert!(missing.is_empty(), "docs/devices.md lacks\n{missing}");
        let listed = section.lines().filter(|line| line.starts_with("| `")).count();
        assert_eq!(listed, self.rows.len(), "no other commands are listed");
    }
}
