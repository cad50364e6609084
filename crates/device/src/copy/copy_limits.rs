//! The limits of the copy manager, in one place: its commands check them; VPD page 8Fh and RECEIVE COPY
//! OPERATING PARAMETERS report them.

use alloc::vec::Vec;

use base::units::Blocks;
use scsi::copy::cscd::{CscdId, IDENTIFICATION};
use scsi::copy::list::{CscdFields, Limits};
use scsi::copy::results::OperatingParameters;
use scsi::copy::rod::RodType;
use scsi::copy::segment;
use scsi::copy::vpd::{BlockRodLimits, RodTypeSupport, ThirdPartyCopy, TokenFeatures};
use scsi::opcode;

use crate::copy_manager::operations::MAX_RUNNING;
use crate::copy_manager::tokens::{DEFAULT_INACTIVITY_S, MAX_INACTIVITY_S, MAX_LIFETIME_S, MAX_RANGES};
use crate::device_server::{DeviceServer, UnitInfo};

/// The limits of a parameter list: long enough for the maximum number of descriptors at their longest, and no
/// inline data, since no supported descriptor uses it.
pub(super) const LIMITS: Limits = Limits {
    cscds_max: 8,
    segments_max: 64,
    descriptors_len_max: 8 * 32 + 64 * 32,
    inline_len_max: 0,
    cscd_fields: CscdFields::Spc4,
};

/// The longest segment, in bytes. 65535 blocks of 4 KiB, the most that a block segment can name, are just
/// below it.
pub(super) const SEGMENT_LEN_MAX: u32 = 256 << 20;

/// Segments are multiples of the smallest supported block length: 2^9 bytes.
const SEGMENT_GRANULARITY: u8 = 9;

/// The most bytes that a token represents or one WRITE USING TOKEN writes. A slow disk writes them within the
/// time limit of initiators for a command.
const TOKEN_LEN_MAX: u64 = 256 << 20;

/// How many bytes one WRITE USING TOKEN should write: Windows expects an answer within four seconds.
const TOKEN_LEN_OPTIMAL: u64 = 64 << 20;

/// Returns the most blocks that a token represents or one WRITE USING TOKEN writes.
pub(super) const fn token_blocks_max(facts: &UnitInfo) -> Blocks {
    Blocks(TOKEN_LEN_MAX >> facts.block_size().shift())
}

/// Returns the body of VPD page 8Fh.
pub(crate) fn body(server: &DeviceServer) -> Vec<u8> {
    let facts = &server.info;
    let tokens = facts.makes_tokens;
    let kind =
        |rod_type, token_out, preference| RodTypeSupport { rod_type, token_in: true, token_out, preference };
    ThirdPartyCopy {
        block_rod_limits: tokens.then_some(BlockRodLimits {
            ranges_max: MAX_RANGES,
            inactivity_timeout_max_s: MAX_INACTIVITY_S,
            inactivity_timeout_default_s: DEFAULT_INACTIVITY_S,
            transfer_blocks_max: token_blocks_max(facts).0,
            transfer_blocks_optimal: TOKEN_LEN_OPTIMAL >> facts.block_size().shift(),
        }),
        commands: [opcode::THIRD_PARTY_COPY_OUT, opcode::THIRD_PARTY_COPY_IN]
            .map(|code| (code, service_actions(server, code)))
            .to_vec(),
        limits: LIMITS,
        descriptor_types: descriptor_types(),
        cscd_ids: [CscdId::COPY_MANAGER_UNIT].to_vec(),
        token_features: tokens.then_some(TokenFeatures {
            remote_tokens: 0,
            // A write to the blocks of a token ends the token at any time.
            lifetime_min_s: 0,
            lifetime_max_s: MAX_LIFETIME_S,
            inactivity_timeout_max_s: MAX_INACTIVITY_S,
            optimal_granularity_blocks: 1 << facts.config.physical_exponent.min(15),
            len_max: TOKEN_LEN_MAX,
            optimal_len: TOKEN_LEN_OPTIMAL,
        }),
        rod_types: if tokens {
            [
                kind(RodType::POINT_IN_TIME_CHANGE_VULNERABLE, true, 1),
                kind(RodType::BLOCK_DEVICE_ZERO, false, 0),
            ]
            .to_vec()
        } else {
            Vec::new()
        },
        total_concurrent: u32::from(MAX_RUNNING),
        concurrent: u32::from(MAX_RUNNING),
        segment_len_max: SEGMENT_LEN_MAX,
        segment_granularity: SEGMENT_GRANULARITY,
        held_len_max: 0,
    }
    .encode()
}

/// Returns the data of RECEIVE COPY OPERATING PARAMETERS.
pub(super) fn operating_parameters() -> OperatingParameters {
    OperatingParameters {
        no_list_id: true,
        limits: LIMITS,
        segment_len_max: SEGMENT_LEN_MAX,
        held_len_max: 0,
        total_concurrent: u16::from(MAX_RUNNING),
        concurrent: MAX_RUNNING,
        segment_granularity: SEGMENT_GRANULARITY,
        descriptor_types: descriptor_types(),
    }
}

fn descriptor_types() -> Vec<u8> {
    segment::KNOWN.into_iter().chain([IDENTIFICATION]).collect()
}

fn service_actions(server: &DeviceServer, code: u8) -> Vec<u8> {
    let rows = server.table.rows_of(code).filter(|row| row.is_enabled(&server.info));
    rows.filter_map(|row| row.service_action.and_then(|action| u8::try_from(action).ok())).collect()
}
