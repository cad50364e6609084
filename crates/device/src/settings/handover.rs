//! The settings of a unit in a document that one process hands over to the next. Unlike the saved state it
//! has those that MODE SELECT never saves as well.

use serde::{Deserialize, Serialize};

use super::{AttentionInterlock, BlockProtection, QueueError, Settings, StreamSettings};
use crate::handover::RestoreError;
use crate::handover::hex::HexBytes;
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
    stream: StreamState,
    write_parameters: HexBytes,
}

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
            stream,
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
            stream: stream.export(),
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
            stream: StreamSettings::restore(stream)?,
            write_parameters: WriteParameters::of_body(&write_parameters.0).ok_or(RestoreError::Settings)?,
        })
    }
}

impl StreamSettings {
    fn export(&self) -> StreamState {
        let Self {
            block_len,
            is_buffered,
            is_compressing,
            protection: BlockProtection { reed_solomon, crc32c, has_length, on_write, on_read },
            partitioning,
            is_append_only,
            early_warning_mb,
        } = *self;
        StreamState {
            block_len,
            is_buffered,
            is_compressing,
            reed_solomon,
            crc32c,
            has_protection_length: has_length,
            protects_writes: on_write,
            protects_reads: on_read,
            partitioning: partitioning.map(Partitioning::fields),
            is_append_only,
            early_warning_mb,
        }
    }

    fn restore(state: &StreamState) -> Result<Self, RestoreError> {
        let protection = BlockProtection {
            reed_solomon: state.reed_solomon,
            crc32c: state.crc32c,
            has_length: state.has_protection_length,
            on_write: state.protects_writes,
            on_read: state.protects_reads,
        };
        let partitioning = state.partitioning.map(Partitioning::of_fields);
        let is_partitioning_possible = partitioning != Some(None);
        if state.block_len > Self::BLOCK_LEN_MAX || !protection.is_possible() || !is_partitioning_possible {
            return Err(RestoreError::Settings);
        }
        Ok(Self {
            block_len: state.block_len,
            is_buffered: state.is_buffered,
            is_compressing: state.is_compressing,
            protection,
            partitioning: partitioning.flatten(),
            is_append_only: state.is_append_only,
            early_warning_mb: state.early_warning_mb,
        })
    }
}
