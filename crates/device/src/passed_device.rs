//! The device that a pass-through unit passes commands to, as far as the unit knows it.

use serde::{Deserialize, Serialize};
use store::api::DeviceInfo;

/// What a unit knows of its device.
#[derive(Debug)]
pub(crate) struct PassedDevice {
    /// The device as it was when it was opened.
    pub(crate) device: DeviceInfo,
    /// The length of its blocks, as far as it is known at present.
    pub(crate) block_len: Option<u32>,
    /// Whether the device has yet to report a reset that every nexus has been told of: the one at its start,
    /// or one that this unit requested.
    pub(crate) expects_reset_report: bool,
    /// Whether the device was told to prevent the removal of its medium.
    pub(crate) prevents: bool,
    /// Whether it has answered that it does.
    pub(crate) has_confirmed_prevention: bool,
    /// How many times in a row the device reported a unit attention instead of allowing the removal.
    pub(crate) allows_refused: u8,
}

impl PassedDevice {
    /// Describes a device that was just opened.
    pub(crate) const fn new(device: DeviceInfo) -> Self {
        Self {
            device,
            block_len: device.block_len,
            expects_reset_report: true,
            prevents: false,
            has_confirmed_prevention: false,
            allows_refused: 0,
        }
    }

    /// Records that the device was reset: it has forgotten that hosts prevent the removal of its medium. Each
    /// host gets the unit attention, and the next one that prevents it asks the device again.
    pub(crate) const fn was_reset(&mut self) {
        self.prevents = false;
        self.has_confirmed_prevention = false;
    }

    /// Returns what is known in a document that one process hands over to the next.
    pub(crate) const fn export(&self) -> PassedState {
        let Self {
            device: _,
            block_len,
            expects_reset_report,
            prevents,
            // A unit that is handed over has no command in flight.
            has_confirmed_prevention: _,
            allows_refused,
        } = self;
        PassedState {
            block_len: *block_len,
            expects_reset_report: *expects_reset_report,
            prevents: *prevents,
            allows_refused: *allows_refused,
        }
    }

    /// Takes over what a document says. The device is the same, and was not reset.
    pub(crate) const fn adopt(&mut self, state: &PassedState) {
        let PassedState { block_len, expects_reset_report, prevents, allows_refused } = state;
        self.block_len = *block_len;
        self.expects_reset_report = *expects_reset_report;
        self.prevents = *prevents;
        self.has_confirmed_prevention = *prevents;
        self.allows_refused = *allows_refused;
    }
}

/// What a unit knows of its device, in such a document.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct PassedState {
    block_len: Option<u32>,
    expects_reset_report: bool,
    prevents: bool,
    allows_refused: u8,
}
