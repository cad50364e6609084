//! The settings of a unit in a document that one process hands over to the next. Unlike the saved state it
//! has those that MODE SELECT never saves as well.

use serde::{Deserialize, Serialize};

use super::{
    AttentionInterlock, BlockProtection, NexusSettings, ProvisioningReports, QueueError, Settings,
    StreamSettings,
};
use crate::document::RestoreError;
use crate::document::hex::HexBytes;
use crate::medium_partition::Partitioning;
use crate::write_parameters::WriteParameters;

/// The settings.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct SettingsState {
    write_cache: bool,
    software_write_protect: bool,
    descriptor_sense: bool,
    task_aborted_status: bool,
    keeps_attentions: bool,
    queue_error_aborts: bool,
    queue_error_only_own: bool,
    provisioning_reports: bool,
    provisioning_reports_set: bool,
    stream: StreamState,
    write_parameters: HexBytes,
}

/// The block length and the protection are those of nexuses that the document gives none of their own.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct StreamState {
    block_len: u32,
    is_buffered: bool,
    is_compressing: bool,
    reed_solomon: bool,
    crc32c: bool,
    has_protection_length: bool,
    protects_writes: bool,
    protects_reads: bool,
    /// The fields of the medium partition page.
    partitioning: Option<(u8, u8, u8, [u16; 4])>,
    is_append_only: bool,
    early_warning_mb: u16,
}

/// The settings of one nexus.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct NexusSettingsState {
    block_len: u32,
    reed_solomon: bool,
    crc32c: bool,
    has_protection_length: bool,
    protects_writes: bool,
    protects_reads: bool,
}

impl Settings {
    /// Returns the settings in a document.
    pub(crate) fn export(&self) -> SettingsState {
        let Self {
            write_cache,
            software_write_protect,
            descriptor_sense,
            // The configuration determines it.
            nexus_task_sets: _,
            task_aborted_status,
            attention_interlock,
            queue_error: QueueError { aborts, only_own },
            provisioning_reports: ProvisioningReports { on, is_set },
            stream,
            nexus,
            write_parameters,
        } = self;
        SettingsState {
            write_cache: *write_cache,
            software_write_protect: *software_write_protect,
            descriptor_sense: *descriptor_sense,
            task_aborted_status: *task_aborted_status,
            keeps_attentions: *attention_interlock == AttentionInterlock::Kept,
            queue_error_aborts: *aborts,
            queue_error_only_own: *only_own,
            provisioning_reports: *on,
            provisioning_reports_set: *is_set,
            stream: stream.export(nexus.export()),
            write_parameters: HexBytes::of(write_parameters.bytes()),
        }
    }

    /// Returns the settings of a document. The configuration of the unit determines `nexus_task_sets`.
    ///
    /// # Errors
    /// [`RestoreError::Settings`] for settings that MODE SELECT does not accept.
    pub(crate) fn restore(state: &SettingsState, nexus_task_sets: bool) -> Result<Self, RestoreError> {
        let SettingsState {
            write_cache,
            software_write_protect,
            descriptor_sense,
            task_aborted_status,
            keeps_attentions,
            queue_error_aborts,
            queue_error_only_own,
            provisioning_reports,
            provisioning_reports_set,
            stream,
            write_parameters,
        } = state;
        let queue_error = QueueError { aborts: *queue_error_aborts, only_own: *queue_error_only_own };
        if queue_error.is_reserved() {
            return Err(RestoreError::Settings);
        }
        Ok(Self {
            write_cache: *write_cache,
            software_write_protect: *software_write_protect,
            descriptor_sense: *descriptor_sense,
            nexus_task_sets,
            task_aborted_status: *task_aborted_status,
            attention_interlock: if *keeps_attentions {
                AttentionInterlock::Kept
            } else {
                AttentionInterlock::ClearedWhenReported
            },
            queue_error,
            provisioning_reports: ProvisioningReports {
                on: *provisioning_reports,
                is_set: *provisioning_reports_set,
            },
            stream: StreamSettings::restore(stream)?,
            nexus: NexusSettings::restore(stream.of_nexuses())?,
            write_parameters: WriteParameters::of_body(&write_parameters.0).ok_or(RestoreError::Settings)?,
        })
    }
}

impl StreamSettings {
    fn export(&self, nexus: NexusSettingsState) -> StreamState {
        let Self { is_buffered, is_compressing, partitioning, is_append_only, early_warning_mb } = *self;
        let NexusSettingsState {
            block_len,
            reed_solomon,
            crc32c,
            has_protection_length,
            protects_writes,
            protects_reads,
        } = nexus;
        StreamState {
            block_len,
            is_buffered,
            is_compressing,
            reed_solomon,
            crc32c,
            has_protection_length,
            protects_writes,
            protects_reads,
            partitioning: partitioning.map(Partitioning::fields),
            is_append_only,
            early_warning_mb,
        }
    }

    fn restore(state: &StreamState) -> Result<Self, RestoreError> {
        let partitioning = match state.partitioning.map(Partitioning::of_fields) {
            Some(None) => return Err(RestoreError::Settings),
            partitioning => partitioning.flatten(),
        };
        Ok(Self {
            is_buffered: state.is_buffered,
            is_compressing: state.is_compressing,
            partitioning,
            is_append_only: state.is_append_only,
            early_warning_mb: state.early_warning_mb,
        })
    }
}

impl StreamState {
    /// Returns the settings of nexuses that have none of their own.
    const fn of_nexuses(&self) -> NexusSettingsState {
        NexusSettingsState {
            block_len: self.block_len,
            reed_solomon: self.reed_solomon,
            crc32c: self.crc32c,
            has_protection_length: self.has_protection_length,
            protects_writes: self.protects_writes,
            protects_reads: self.protects_reads,
        }
    }
}

impl NexusSettings {
    /// Returns the settings in a document.
    pub(crate) const fn export(self) -> NexusSettingsState {
        let Self {
            block_len,
            protection: BlockProtection { reed_solomon, crc32c, has_length, on_write, on_read },
        } = self;
        NexusSettingsState {
            block_len,
            reed_solomon,
            crc32c,
            has_protection_length: has_length,
            protects_writes: on_write,
            protects_reads: on_read,
        }
    }

    /// Returns the settings of a document.
    ///
    /// # Errors
    /// [`RestoreError::Settings`] for settings that MODE SELECT does not accept.
    pub(crate) fn restore(state: NexusSettingsState) -> Result<Self, RestoreError> {
        let protection = BlockProtection {
            reed_solomon: state.reed_solomon,
            crc32c: state.crc32c,
            has_length: state.has_protection_length,
            on_write: state.protects_writes,
            on_read: state.protects_reads,
        };
        if state.block_len > StreamSettings::BLOCK_LEN_MAX || !protection.is_possible() {
            return Err(RestoreError::Settings);
        }
        Ok(Self { block_len: state.block_len, protection })
    }
}
