//! The limits of block commands, in one place: the commands check them and the vital product data reports
//! them.

use scsi::vpd::{BlockCharacteristics, BlockLimits, LogicalBlockProvisioning, ProvisioningType};

use crate::contract::SpcLevel;
use crate::device_server::UnitInfo;

/// The longest compare buffer, and write buffer, of a COMPARE AND WRITE, and the longest WRITE ATOMIC, in
/// bytes: both are held whole in memory before their range is locked.
const EXCLUSIVE_LEN_MAX: u32 = 1 << 20;

/// How many descriptors one UNMAP may contain. Initiators send one, or a few dozen when a file system trims.
const UNMAP_DESCRIPTORS_MAX: u32 = 256;

/// How many blocks one UNMAP descriptor may deallocate: 512 MiB with the smallest block length, 4 GiB with
/// the usual large one. Either is punched out of a file in well under a command timeout. libiscsi's suite
/// considers a higher limit insane.
const UNMAP_BLOCKS_MAX: u32 = 1 << 20;

/// MEDIUM ROTATION RATE of a rotating disk: not reported, since the medium reports only that it rotates.
const NOT_REPORTED: u16 = 0;

/// MEDIUM ROTATION RATE of a non-rotating disk.
const NON_ROTATING: u16 = 1;

/// WABEREQ and WACEREQ 01b: after the erasure, reads succeed.
const READS_SUCCEED: u8 = 1;

/// Returns the limits of a unit's block commands.
pub(crate) fn limits(facts: &UnitInfo) -> BlockLimits {
    let block = facts.block_size().bytes();
    let transfer_max = facts.config.transfer_blocks_max;
    let granularity = facts.capabilities.preferred_block_len.max(block) / block;
    let exclusive_max = (EXCLUSIVE_LEN_MAX / block).max(1).min(transfer_max);
    let thin = facts.is_thin();
    let atomic_blocks =
        u64::try_from(facts.capabilities.atomic_len_max).unwrap_or(u64::MAX) / u64::from(block);
    let atomic_step = facts.config.atomic_blocks.max(1);
    let atomic_max = if facts.config.overrides.level > SpcLevel::Spc3 {
        u32::try_from(atomic_blocks).unwrap_or(u32::MAX).min(exclusive_max)
    } else {
        // SBC-4 introduced WRITE ATOMIC.
        0
    };
    let atomic_max = atomic_max - atomic_max % atomic_step;
    let atomic_step = if atomic_max > 0 && atomic_step > 1 { atomic_step } else { 0 };
    BlockLimits {
        write_same_non_zero: !facts.config.overrides.write_same_to_end,
        compare_and_write_max: u8::try_from(exclusive_max)
            .unwrap_or(u8::MAX)
            .min(facts.config.overrides.compare_and_write_max.max(1)),
        transfer_granularity: u16::try_from(granularity).unwrap_or(u16::MAX),
        transfer_max,
        transfer_optimal: exclusive_max,
        prefetch_max: 0,
        unmap_max: if thin { UNMAP_BLOCKS_MAX } else { 0 },
        unmap_descriptors_max: if thin { UNMAP_DESCRIPTORS_MAX } else { 0 },
        unmap_granularity: if thin { granularity } else { 0 },
        unmap_alignment: thin.then_some(0),
        write_same_max: u64::from(transfer_max),
        atomic_max,
        atomic_alignment: atomic_step,
        atomic_granularity: atomic_step,
        atomic_max_with_boundary: 0,
        atomic_boundary_max: 0,
    }
}

/// Returns the block device characteristics of the medium.
pub(crate) fn characteristics(facts: &UnitInfo) -> BlockCharacteristics {
    BlockCharacteristics {
        rotation_rate: facts.config.overrides.rotation_rate.unwrap_or(if facts.capabilities.rotational {
            NOT_REPORTED
        } else {
            NON_ROTATING
        }),
        read_after_block_erase: if supports_block_erase(facts) { READS_SUCCEED } else { 0 },
        read_after_crypto_erase: if supports_crypto_erase(facts) { READS_SUCCEED } else { 0 },
        force_unit_access: true,
        verify_unmapped: true,
    }
}

/// Returns how blocks are provisioned, if the unit is thin. Anchored blocks are not supported (ANC_SUP): a
/// file system reports a block that is allocated and unwritten as a hole, so GET LBA STATUS could not
/// distinguish it from a deallocated one.
pub(crate) fn provisioning(facts: &UnitInfo) -> Option<LogicalBlockProvisioning> {
    let zeros = unmapped_zeros(facts);
    facts.is_thin().then_some(LogicalBlockProvisioning {
        threshold_exponent: threshold_exponent(facts).unwrap_or(0),
        unmap: true,
        write_same_16: true,
        write_same_10: true,
        reads_zero: zeros,
        anchor: false,
        kind: ProvisioningType::THIN,
    })
}

/// Returns the base-2 logarithm of the number of blocks in a threshold set, if storage is counted in them
/// (SBC-4 §4.7.3.7.2): a mebibyte of blocks, or as many more as are needed to keep the number of sets below
/// 2^32.
pub(crate) fn threshold_exponent(facts: &UnitInfo) -> Option<u8> {
    const MEBIBYTE_SHIFT: u32 = 20;
    let usual = MEBIBYTE_SHIFT.saturating_sub(facts.block_size().shift()).max(1);
    let needed = (u64::BITS - facts.capacity().0.leading_zeros()).saturating_sub(32);
    let exponent = u8::try_from(usual.max(needed)).ok()?;
    (facts.is_thin() && facts.tells_space).then_some(exponent)
}

/// Returns whether unmapped blocks are guaranteed to read as zeros.
pub(crate) const fn unmapped_zeros(facts: &UnitInfo) -> bool {
    facts.is_thin() && facts.capabilities.deallocated_reads_zero && facts.config.overrides.unmapped_zeros
}

/// Returns whether blocks can be erased by deallocating them: only where their data cannot be read
/// afterwards.
pub(crate) fn supports_block_erase(facts: &UnitInfo) -> bool {
    facts.is_thin() && facts.capabilities.deallocated_is_gone
}

/// Returns whether the medium has a key that it can replace.
pub(crate) fn supports_crypto_erase(facts: &UnitInfo) -> bool {
    facts.capabilities.crypto_erase
}

/// Returns whether the unit supports atomic writes.
pub(crate) fn writes_atomically(facts: &UnitInfo) -> bool {
    limits(facts).atomic_max > 0
}
