//! Conversions between integer types that lose nothing on the platforms of targe, and saturate elsewhere.

/// Returns a length or an index as `usize`.
pub fn to_usize(len: u32) -> usize {
    usize::try_from(len).unwrap_or(usize::MAX)
}

/// Returns a length of less than 4 GiB as `u32`.
pub fn to_u32(len: usize) -> u32 {
    u32::try_from(len).unwrap_or(u32::MAX)
}
