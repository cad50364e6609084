//! How much one block command may do: the numbers that VPD pages B0h to B2h announce and that the commands obey.

use scsi::opcode as op;
use scsi::vpd::{BlockCharacteristics, BlockLimits, LogicalBlockProvisioning, ProvisioningType};

use super::PART_LEN;
use crate::server::{Core, Facts};

/// How many blocks one COMPARE AND WRITE compares and writes: the most that its limit can say. They are held in memory
/// twice, at most 2 × 255 × 64 KiB.
pub(crate) const COMPARE_AND_WRITE_MAX: u8 = 255;

/// How many blocks one UNMAP descriptor list frees: 512 MiB of the smallest blocks, which any file system frees well
/// within a command's timeout.
pub(crate) const UNMAP_MAX: u32 = 1 << 20;

/// How many descriptors one UNMAP has: a parameter list of 4 KiB.
pub(crate) const UNMAP_DESCRIPTORS_MAX: u32 = 255;

/// How many blocks one WRITE SAME writes: 128 MiB of the smallest blocks, which a slow disk writes within a command's
/// timeout.
pub(crate) const WRITE_SAME_MAX: u32 = 1 << 18;

/// How many blocks one WRITE ATOMIC writes: a physical block, which is what media write whole.
pub(crate) const fn atomic_max(facts: &Facts) -> u32 {
    1 << (facts.config.physical_exponent & 0xf)
}

/// The block limits page, from what the table of commands has.
pub(crate) fn limits(core: &Core) -> BlockLimits {
    let facts = &core.facts;
    let has = |opcode: u8| core.table.rows_of(opcode).any(|row| (row.enabled)(facts));
    let block = facts.block_size().bytes();
    let preferred =
        (facts.profile.preferred_granule / block).max(1 << (facts.config.physical_exponent & 0xf));
    let transfer_max = facts.config.transfer_blocks_max;
    let optimal = u32::try_from(PART_LEN).unwrap_or(u32::MAX) / block;
    let if_has = |opcode: u8, value: u32| if has(opcode) { value } else { 0 };
    let atomic = if_has(op::WRITE_ATOMIC_16, atomic_max(facts));
    BlockLimits {
        write_same_non_zero: false,
        compare_and_write_max: if has(op::COMPARE_AND_WRITE) { COMPARE_AND_WRITE_MAX } else { 0 },
        transfer_granularity: u16::try_from(preferred).unwrap_or(u16::MAX),
        transfer_max,
        transfer_optimal: optimal.min(transfer_max),
        prefetch_max: 0,
        unmap_max: if_has(op::UNMAP, UNMAP_MAX),
        unmap_descriptors_max: if_has(op::UNMAP, UNMAP_DESCRIPTORS_MAX),
        unmap_granularity: if_has(op::UNMAP, preferred),
        unmap_alignment: has(op::UNMAP).then_some(0),
        write_same_max: u64::from(if_has(op::WRITE_SAME_16, WRITE_SAME_MAX)),
        atomic_max: atomic,
        atomic_alignment: atomic,
        atomic_granularity: atomic,
        atomic_max_with_boundary: 0,
        atomic_boundary_max: 0,
    }
}

/// The block device characteristics page.
pub(crate) const fn characteristics(facts: &Facts) -> BlockCharacteristics {
    BlockCharacteristics {
        // A spinning medium does not say how fast it spins.
        rotation_rate: if facts.profile.rotational { 0 } else { 1 },
        force_unit_access: true,
        verify_unmapped: true,
    }
}

/// The logical block provisioning page of a thinly provisioned unit.
pub(crate) fn provisioning(core: &Core) -> Option<LogicalBlockProvisioning> {
    let facts = &core.facts;
    let has = |opcode: u8| core.table.rows_of(opcode).any(|row| (row.enabled)(facts));
    facts.is_thin().then(|| LogicalBlockProvisioning {
        unmap: has(op::UNMAP),
        write_same_16: has(op::WRITE_SAME_16),
        write_same_10: has(op::WRITE_SAME_10),
        reads_zero: facts.profile.deallocated_reads_zero,
        anchor: has(op::WRITE_SAME_16),
        kind: ProvisioningType::THIN,
    })
}
