//! The settings of a unit that application clients can change with mode pages, in the form that the device
//! server uses.

pub(crate) mod handover;

use crate::contract::{TaskRules, UnitConfig};
use crate::medium_partition::Partitioning;
use crate::write_parameters::WriteParameters;

/// The settings in force.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Settings {
    /// WCE of the caching page: writes may be acknowledged before they are durable.
    pub(crate) write_cache: bool,
    /// SWP of the control page: writes are refused.
    pub(crate) software_write_protect: bool,
    /// D_SENSE of the control page: sense data in descriptor format.
    pub(crate) descriptor_sense: bool,
    /// TST of the control page: every nexus has a task set of its own. It is derived from the configuration,
    /// is not saved, and MODE SELECT does not change it.
    pub(crate) nexus_task_sets: bool,
    /// TAS of the control page: a task aborted by another nexus ends with TASK ABORTED.
    pub(crate) task_aborted_status: bool,
    /// UA_INTLCK_CTRL of the control page.
    pub(crate) attention_interlock: AttentionInterlock,
    /// QERR of the control page.
    pub(crate) queue_error: QueueError,
    /// LBPERE of the read-write error recovery page.
    pub(crate) provisioning_reports: ProvisioningReports,
    /// The settings of a tape drive that all nexuses share. They are not saved.
    pub(crate) stream: StreamSettings,
    /// The settings that a tape drive keeps for each nexus. The settings of a unit hold the defaults; those
    /// of a nexus replace them in what MODE SENSE and MODE SELECT work with.
    pub(crate) nexus: NexusSettings,
    /// The write parameters page of a drive for discs. It is not saved.
    pub(crate) write_parameters: WriteParameters,
}

/// Whether every nexus hears when the storage of a thin unit runs short (LBPERE).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ProvisioningReports {
    pub(crate) on: bool,
    /// Whether MODE SELECT has changed that. If not, the configuration determines it.
    pub(crate) is_set: bool,
}

impl ProvisioningReports {
    /// Returns the setting as MODE SELECT leaves it.
    pub(crate) const fn selected(self, on: bool) -> Self {
        Self { on, is_set: self.is_set || on != self.on }
    }
}

/// The settings of a tape drive (SSC-4) that belong to one nexus and end with it, as those of LTO drives do:
/// they say which bytes the commands of a host transfer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct NexusSettings {
    /// BLOCK LENGTH of the block descriptor; 0 if every block has the length that its command says.
    pub(crate) block_len: u32,
    /// The control data protection page.
    pub(crate) protection: BlockProtection,
}

impl NexusSettings {
    /// The settings of a new nexus.
    pub(crate) const DEFAULT: Self = Self { block_len: 0, protection: BlockProtection::NONE };
}

/// The settings of a tape drive (SSC-4) that all nexuses share.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct StreamSettings {
    /// BUFFERED MODE: writes are acknowledged before they are durable.
    pub(crate) is_buffered: bool,
    /// DCE of the data compression page.
    pub(crate) is_compressing: bool,
    /// The medium partition page, until FORMAT MEDIUM divides the cartridge or it is unloaded.
    pub(crate) partitioning: Option<Partitioning>,
    /// WRITE MODE 01h of the device configuration extension page: writes need the end of data.
    pub(crate) is_append_only: bool,
    /// PEWS of that page: the programmable early warning zone in 10^6 bytes.
    pub(crate) early_warning_mb: u16,
}

/// A method of logical block protection, by its number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ProtectionMethod {
    ReedSolomon = 1,
    Crc32c = 2,
}

/// The control data protection page (SSC-4), bit by bit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct BlockProtection {
    /// LOGICAL BLOCK PROTECTION METHOD 1.
    pub(crate) reed_solomon: bool,
    /// LOGICAL BLOCK PROTECTION METHOD 2.
    pub(crate) crc32c: bool,
    /// Whether LOGICAL BLOCK PROTECTION INFORMATION LENGTH is 4, and not 0.
    pub(crate) has_length: bool,
    /// LBP_W: hosts send guards with blocks.
    pub(crate) on_write: bool,
    /// LBP_R: hosts receive guards with blocks.
    pub(crate) on_read: bool,
}

impl BlockProtection {
    /// No protection.
    pub(crate) const NONE: Self =
        Self { reed_solomon: false, crc32c: false, has_length: false, on_write: false, on_read: false };

    /// Returns whether there is at most one method, and the right length for it.
    pub(crate) const fn is_possible(self) -> bool {
        !(self.reed_solomon && self.crc32c) && (self.has_length || !(self.reed_solomon || self.crc32c))
    }

    const fn method(self) -> Option<ProtectionMethod> {
        match (self.reed_solomon, self.crc32c) {
            (true, _) => Some(ProtectionMethod::ReedSolomon),
            (_, true) => Some(ProtectionMethod::Crc32c),
            _ => None,
        }
    }

    /// Returns the method of the guards that hosts send.
    pub(crate) fn written(self) -> Option<ProtectionMethod> {
        self.method().filter(|_| self.on_write)
    }

    /// Returns the method of the guards that hosts receive.
    pub(crate) fn read(self) -> Option<ProtectionMethod> {
        self.method().filter(|_| self.on_read)
    }
}

impl StreamSettings {
    /// Returns the programmable early warning zone in bytes.
    pub(crate) fn early_warning_zone(self) -> u64 {
        u64::from(self.early_warning_mb) * 1_000_000
    }

    /// The longest block in bytes.
    pub(crate) const BLOCK_LEN_MAX: u32 = 8 << 20;

    /// The default settings.
    pub(crate) const DEFAULT: Self = Self {
        is_buffered: true,
        is_compressing: false,
        partitioning: None,
        is_append_only: false,
        early_warning_mb: 0,
    };
}

/// QERR (SPC-5 §7.5.11): which other commands are aborted when a command ends with CHECK CONDITION.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct QueueError {
    /// The low bit: whether any are aborted.
    pub(crate) aborts: bool,
    /// The high bit: only those of the nexus that sent the command. Reserved without the low bit.
    pub(crate) only_own: bool,
}

impl QueueError {
    /// Returns whether the value is 10b, which is reserved.
    pub(crate) const fn is_reserved(self) -> bool {
        self.only_own && !self.aborts
    }
}

/// UA_INTLCK_CTRL (SPC-5 §7.5.11).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum AttentionInterlock {
    /// 00b: reporting a unit attention clears it.
    #[default]
    ClearedWhenReported,
    /// 10b or 11b: only REQUEST SENSE clears it.
    Kept,
}

impl Settings {
    /// Returns the default settings.
    pub(crate) const fn new(write_cache: bool, tasks: TaskRules) -> Self {
        Self {
            write_cache,
            software_write_protect: false,
            descriptor_sense: false,
            nexus_task_sets: tasks.nexus_task_sets,
            task_aborted_status: tasks.task_aborted_status,
            attention_interlock: AttentionInterlock::ClearedWhenReported,
            queue_error: QueueError { aborts: false, only_own: false },
            provisioning_reports: ProvisioningReports { on: false, is_set: false },
            stream: StreamSettings::DEFAULT,
            nexus: NexusSettings::DEFAULT,
            write_parameters: WriteParameters::DEFAULT,
        }
    }

    /// Returns the settings with LBPERE set or not by default.
    pub(crate) const fn with_provisioning_reports(mut self, on: bool) -> Self {
        self.provisioning_reports = ProvisioningReports { on, is_set: false };
        self
    }

    /// Returns the settings as bits for the persistent state, in the order below, the first as the lowest.
    pub(crate) fn to_bits(&self) -> u16 {
        let kept = self.attention_interlock == AttentionInterlock::Kept;
        let QueueError { aborts, only_own } = self.queue_error;
        let ProvisioningReports { on, is_set } = self.provisioning_reports;
        let bits = [
            self.write_cache,
            self.software_write_protect,
            self.descriptor_sense,
            self.task_aborted_status,
            kept,
            aborts,
            only_own,
            is_set,
            is_set && on,
        ];
        bits.iter().rev().fold(0, |word, bit| word << 1 | u16::from(*bit))
    }

    /// Decodes the output of [`Self::to_bits`], without the settings that the configuration determines;
    /// `None` if the bits match no settings.
    pub(crate) fn from_bits(bits: u16) -> Option<Self> {
        let is_set = |at: u32| bits >> at & 1 == 1;
        let settings = Self {
            write_cache: is_set(0),
            software_write_protect: is_set(1),
            descriptor_sense: is_set(2),
            nexus_task_sets: false,
            task_aborted_status: is_set(3),
            attention_interlock: if is_set(4) {
                AttentionInterlock::Kept
            } else {
                AttentionInterlock::ClearedWhenReported
            },
            queue_error: QueueError { aborts: is_set(5), only_own: is_set(6) },
            provisioning_reports: ProvisioningReports { is_set: is_set(7), on: is_set(8) },
            stream: StreamSettings::DEFAULT,
            nexus: NexusSettings::DEFAULT,
            write_parameters: WriteParameters::DEFAULT,
        };
        (settings.to_bits() == bits && !settings.queue_error.is_reserved()).then_some(settings)
    }
}

impl UnitConfig {
    /// Returns whether hosts hear by default when the storage of the unit runs short (LBPERE). Those of a
    /// removable disk do not: Linux takes every unit attention of one for a change of the medium, fails the
    /// command that it ended and all that follow.
    pub(crate) const fn reports_provisioning(&self) -> bool {
        self.thin && !self.removable
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_come_back_from_their_bits_and_nothing_else_does() {
        for bits in 0..=u16::MAX {
            let back = Settings::from_bits(bits).map(|settings| settings.to_bits());
            let expected = (bits < 0x200 && bits & 0x60 != 0x40 && bits & 0x180 != 0x100).then_some(bits);
            assert_eq!(back, expected, "{bits:x}");
        }
    }
}
