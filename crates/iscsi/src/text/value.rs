//! Values of keys (RFC 7143 §6.1): numbers, Booleans, lists, and binary values in hexadecimal or base64.
//!
//! Every length is checked on the encoded form, before a byte is decoded or memory is allocated for it.

use alloc::string::String;
use alloc::vec::Vec;
use core::fmt::Write as _;
use core::ops::RangeInclusive;

/// The reason why a value cannot be parsed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadValue {
    /// The value does not have the form of its type.
    #[error("the value is not spelled as such a value is")]
    Form,
    /// The number is outside the legal range.
    #[error("the number is out of range")]
    Range,
    /// The binary value would decode to more or fewer bytes than permitted.
    #[error("the binary value has the wrong length")]
    Length,
}

/// Parses a number: decimal without leading zeros, or hexadecimal after `0x`; below 2^64.
///
/// # Errors
/// `Form` when it is neither, `Range` when it has more than 64 bits.
pub fn number(value: &[u8]) -> Result<u64, BadValue> {
    let (digits, radix) = match value {
        [b'0', b'x' | b'X', digits @ ..] => (digits, 16),
        [b'0', _, ..] => return Err(BadValue::Form),
        digits => (digits, 10),
    };
    if digits.is_empty() || !digits.iter().all(|digit| char::from(*digit).is_digit(radix)) {
        return Err(BadValue::Form);
    }
    let text = core::str::from_utf8(digits).map_err(|_| BadValue::Form)?;
    //= rfc7143#section-6.1
    //# Decimal-constants MUST NOT be used for parameter values if the values can be equal to
    //# or greater than 2**64 (numerical) or for binary strings that can be longer than 64
    //# bits.
    u64::from_str_radix(text, radix).map_err(|_| BadValue::Range)
}

/// Parses a number that must lie in `range`.
///
/// # Errors
/// `Form` when the value is not a number, `Range` when the number is outside `range`.
pub fn number_in(value: &[u8], range: RangeInclusive<u32>) -> Result<u32, BadValue> {
    let number = u32::try_from(number(value)?).map_err(|_| BadValue::Range)?;
    if range.contains(&number) { Ok(number) } else { Err(BadValue::Range) }
}

/// Parses `Yes` or `No`.
///
/// # Errors
/// `Form` when it is neither.
pub fn boolean(value: &[u8]) -> Result<bool, BadValue> {
    match value {
        b"Yes" => Ok(true),
        b"No" => Ok(false),
        _ => Err(BadValue::Form),
    }
}

/// Returns the text of a Boolean.
pub const fn boolean_text(value: bool) -> &'static str {
    if value { "Yes" } else { "No" }
}

/// Splits a list at its commas.
pub fn list(value: &[u8]) -> impl Iterator<Item = &[u8]> {
    value.split(|byte| *byte == b',')
}

/// Decodes a binary value (`0x…` or `0b…`) whose length in bytes must lie in `len`.
///
/// # Errors
/// `Form` when the value has another form, `Length` when it is too short or too long; then nothing was
/// decoded.
pub fn binary(value: &[u8], len: RangeInclusive<usize>) -> Result<Vec<u8>, BadValue> {
    match value {
        [b'0', b'x' | b'X', digits @ ..] => hex(digits, &len),
        [b'0', b'b' | b'B', digits @ ..] => base64(digits, &len),
        _ => Err(BadValue::Form),
    }
}

fn hex(digits: &[u8], len: &RangeInclusive<usize>) -> Result<Vec<u8>, BadValue> {
    if !digits.len().is_multiple_of(2) {
        return Err(BadValue::Form);
    }
    if !len.contains(&(digits.len() / 2)) {
        return Err(BadValue::Length);
    }
    let (pairs, _) = digits.as_chunks::<2>();
    pairs.iter().map(|[high, low]| Ok(hex_digit(*high)? << 4 | hex_digit(*low)?)).collect()
}

fn hex_digit(digit: u8) -> Result<u8, BadValue> {
    let value = char::from(digit).to_digit(16).ok_or(BadValue::Form)?;
    u8::try_from(value).map_err(|_| BadValue::Form)
}

/// Decodes base64. Padding may be missing; bits that belong to no byte must be zero.
fn base64(digits: &[u8], len: &RangeInclusive<usize>) -> Result<Vec<u8>, BadValue> {
    let padded = digits.len();
    let digits = digits.strip_suffix(b"==").or_else(|| digits.strip_suffix(b"=")).unwrap_or(digits);
    if digits.len() % 4 == 1 || (padded != digits.len() && !padded.is_multiple_of(4)) {
        return Err(BadValue::Form);
    }
    let decoded = digits.len() / 4 * 3 + (digits.len() % 4).saturating_sub(1);
    if !len.contains(&decoded) {
        return Err(BadValue::Length);
    }
    let mut out = Vec::with_capacity(decoded);
    let (mut bits, mut count) = (0u32, 0u32);
    for digit in digits {
        let digit_value = BASE64.iter().position(|known| known == digit).ok_or(BadValue::Form)?;
        bits = bits << 6 | u32::try_from(digit_value).map_err(|_| BadValue::Form)?;
        count += 6;
        if count >= 8 {
            count -= 8;
            out.push(bits.wrapping_shr(count).to_be_bytes()[3]);
            bits &= (1 << count) - 1;
        }
    }
    if bits == 0 { Ok(out) } else { Err(BadValue::Form) }
}

/// Encodes bytes in hexadecimal, after `0x`.
pub fn to_hex(bytes: &[u8]) -> String {
    let mut out = String::with_capacity(2 + 2 * bytes.len());
    out.push_str("0x");
    for byte in bytes {
        // Writing to a String cannot fail.
        let _ = write!(out, "{byte:02x}");
    }
    out
}

/// Encodes bytes in base64, after `0b`.
pub fn to_base64(bytes: &[u8]) -> String {
    let mut out = String::with_capacity(2 + bytes.len().div_ceil(3) * 4);
    out.push_str("0b");
    for part in bytes.chunks(3) {
        let mut three = [0; 4];
        for (to, from) in three.iter_mut().skip(1).zip(part) {
            *to = *from;
        }
        let bits = u32::from_be_bytes(three);
        for digit in 0..4 {
            let digit_value = bits >> (18 - 6 * digit) & 63;
            let known = usize::try_from(digit_value).ok().and_then(|digit_value| BASE64.get(digit_value));
            out.push(if digit > part.len() { '=' } else { known.map_or('=', |c| char::from(*c)) });
        }
    }
    out
}

const BASE64: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
