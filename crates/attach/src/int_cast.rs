//! Casts between the lengths of the kernel, of the wire and of memory. A length that does not fit becomes the
//! largest value of its type, which every range check refuses.

/// Widens a length in memory.
pub(crate) fn to_u64(len: usize) -> u64 {
    u64::try_from(len).unwrap_or(u64::MAX)
}

/// Narrows a length to one that can lie in memory.
pub(crate) fn to_usize(len: u64) -> usize {
    usize::try_from(len).unwrap_or(usize::MAX)
}

/// Narrows a length to a 32-bit field.
pub(crate) fn to_u32(len: u64) -> u32 {
    u32::try_from(len).unwrap_or(u32::MAX)
}
