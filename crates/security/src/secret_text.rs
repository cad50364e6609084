//! The bytes of a secret in a file: without the newline that editors put at the end, and not with what
//! programs add that no user sees.

/// Why the bytes of a file are hardly the secret that its owner means.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NotASecret {
    /// The first three bytes are those of a byte order mark.
    #[error(
        "begins with a byte order mark (BOM), which would be part of the secret; save it as UTF-8 without BOM"
    )]
    ByteOrderMark,
    /// Every second byte is zero, or the first two bytes are a byte order mark of UTF-16.
    #[error("is in UTF-16, whose bytes are not those of the secret; save it as ASCII, or UTF-8 without BOM")]
    Utf16,
    /// There are several newlines at the end.
    #[error("ends with more than one newline; only one is left out of the secret, so remove the others")]
    Newlines,
}

/// Returns the secret in the bytes of a file. One newline at the end is not part of it.
///
/// # Errors
/// [`NotASecret`]. Used as it is, such a secret would be a wrong one, which nobody could see.
pub fn secret_in(bytes: &[u8]) -> Result<&[u8], NotASecret> {
    if bytes.starts_with(b"\xef\xbb\xbf") {
        return Err(NotASecret::ByteOrderMark);
    }
    if bytes.starts_with(b"\xff\xfe") || bytes.starts_with(b"\xfe\xff") || is_utf_16(bytes) {
        return Err(NotASecret::Utf16);
    }
    let secret = without_newline(bytes);
    if secret.ends_with(b"\n") || secret.ends_with(b"\r") {
        return Err(NotASecret::Newlines);
    }
    Ok(secret)
}

fn without_newline(bytes: &[u8]) -> &[u8] {
    let Some(text) = bytes.strip_suffix(b"\n") else { return bytes };
    text.strip_suffix(b"\r").unwrap_or(text)
}

/// Returns whether the bytes are ASCII text in UTF-16 without a byte order mark. Random bytes are not.
fn is_utf_16(bytes: &[u8]) -> bool {
    let is_zero = |at: usize| bytes.iter().skip(at).step_by(2).all(|byte| *byte == 0);
    let is_text = |at: usize| bytes.iter().skip(at).step_by(2).all(|byte| byte.is_ascii() && *byte != 0);
    let is_whole = bytes.len() >= 4 && bytes.len().is_multiple_of(2);
    is_whole && ((is_zero(0) && is_text(1)) || (is_zero(1) && is_text(0)))
}

#[cfg(test)]
mod tests {
    use alloc::vec::Vec;

    use super::*;

    #[test]
    fn one_newline_is_left_out_and_everything_else_is_part_of_the_secret() {
        for (bytes, secret) in [
            (&b"correct horse\n"[..], &b"correct horse"[..]),
            (b"correct horse\r\n", b"correct horse"),
            (b"correct horse", b"correct horse"),
            (b" two\nlines ", b" two\nlines "),
            (b"\x00\x01\xff\xfe random", b"\x00\x01\xff\xfe random"),
            (b"", b""),
            (b"\n", b""),
        ] {
            assert_eq!(secret_in(bytes), Ok(secret), "{bytes:?}");
        }
    }

    #[test]
    fn what_a_program_added_is_named() {
        let wide = |order: fn(u16) -> [u8; 2]| -> Vec<u8> {
            "correct horse\r\n".encode_utf16().flat_map(order).collect()
        };
        let marked = |mark: &[u8], text: &[u8]| [mark, text].concat();
        for (bytes, why) in [
            (marked(b"\xef\xbb\xbf", b"correct horse\n"), NotASecret::ByteOrderMark),
            (wide(u16::to_le_bytes), NotASecret::Utf16),
            (wide(u16::to_be_bytes), NotASecret::Utf16),
            (marked(b"\xff\xfe", &wide(u16::to_le_bytes)), NotASecret::Utf16),
            (marked(b"\xfe\xff", &wide(u16::to_be_bytes)), NotASecret::Utf16),
            (b"correct horse\n\n".to_vec(), NotASecret::Newlines),
            (b"correct horse\r\n\r\n".to_vec(), NotASecret::Newlines),
            (b"correct horse\r".to_vec(), NotASecret::Newlines),
        ] {
            assert_eq!(secret_in(&bytes), Err(why), "{bytes:?}");
        }
    }
}
