//! Conversions between unsigned integers. A number that does not fit becomes the largest one of its type,
//! which every range check refuses.

/// Returns a length or an index in memory.
pub fn to_usize<T: TryInto<usize>>(number: T) -> usize {
    number.try_into().unwrap_or(usize::MAX)
}

/// Returns a number for a 32-bit field.
pub fn to_u32<T: TryInto<u32>>(number: T) -> u32 {
    number.try_into().unwrap_or(u32::MAX)
}

/// Returns a number for a 64-bit field.
pub fn to_u64<T: TryInto<u64>>(number: T) -> u64 {
    number.try_into().unwrap_or(u64::MAX)
}
