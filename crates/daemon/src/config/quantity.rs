//! Sizes (`10G`, binary) and spans of time (`5s`, `250ms`) as users write them.

use std::time::Duration;

/// The binary units of a size, smallest first.
const SIZE_UNITS: [(&str, u32); 6] = [("K", 10), ("M", 20), ("G", 30), ("T", 40), ("P", 50), ("E", 60)];

/// Parses a size in bytes: digits and an optional unit `K M G T P E`, each 1024 times the one before. `KiB`
/// means the same as `K`, and case does not matter. `KB` is refused, because it can mean 1000 or 1024 bytes.
///
/// # Errors
/// A fragment that describes the mistake.
pub fn size(text: &str) -> Result<u64, String> {
    let (digits, unit) = split(text);
    let number: u64 =
        digits.parse().map_err(|_| format!("\"{text}\" is not a size (such as 512M or 10G)"))?;
    let unit = unit.to_ascii_uppercase();
    if unit.starts_with('.') {
        return Err(format!("\"{text}\" is not a whole number; write it in a smaller unit (1536M for 1.5G)"));
    }
    if let Some(letter) = unit.strip_suffix('B').filter(|letter| is_letter(letter)) {
        return Err(format!(
            "\"{text}\" is ambiguous: powers of 1000 or of 1024; write {digits}{letter}iB or \
             {digits}{letter}, which are powers of 1024"
        ));
    }
    let letter = unit.strip_suffix("IB").filter(|letter| is_letter(letter)).unwrap_or(&unit);
    let shift = match letter {
        "" | "B" => 0,
        _ => {
            SIZE_UNITS.iter().find(|(name, _)| *name == letter).map(|(_, shift)| *shift).ok_or_else(|| {
                format!("\"{text}\" has no known unit of size (K, M, G, T, P or E, each 1024 times the last)")
            })?
        }
    };
    number.checked_mul(1 << shift).ok_or_else(|| format!("\"{text}\" does not fit in 64 bits"))
}

fn is_letter(unit: &str) -> bool {
    SIZE_UNITS.iter().any(|(name, _)| *name == unit)
}

/// Formats a size in the largest unit that represents it exactly.
pub fn show_size(bytes: u64) -> String {
    SIZE_UNITS
        .iter()
        .rev()
        .find(|(_, shift)| bytes != 0 && bytes.is_multiple_of(1 << shift))
        .map_or_else(|| bytes.to_string(), |(name, shift)| format!("{}{name}", bytes >> shift))
}

/// Parses a span of time: digits and a unit, `ms`, `s`, `m` or `h`.
///
/// # Errors
/// A fragment that describes the mistake.
pub(crate) fn duration(text: &str) -> Result<Duration, String> {
    let (digits, unit) = split(text);
    let wrong = || format!("\"{text}\" is not a duration (such as 5s, 250ms or 2m)");
    let number: u64 = digits.parse().map_err(|_| wrong())?;
    let factor = match unit {
        "ms" => return Ok(Duration::from_millis(number)),
        "s" => 1,
        "m" => 60,
        "h" => 3600,
        _ => return Err(wrong()),
    };
    number.checked_mul(factor).map(Duration::from_secs).ok_or_else(wrong)
}

fn split(text: &str) -> (&str, &str) {
    let text = text.trim();
    let end = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let (digits, unit) = text.split_at(end);
    (digits, unit.trim_start())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_binary() {
        for (text, bytes) in [
            ("0", 0),
            ("512", 512),
            ("512B", 512),
            ("4k", 4096),
            ("10G", 10 << 30),
            ("10 GiB", 10 << 30),
            ("1MiB", 1 << 20),
            ("15E", 15 << 60),
        ] {
            assert_eq!(size(text), Ok(bytes), "{text}");
        }
        for text in ["", "G", "-1", "1.5G", "10Q", "16E", "10GG", "IB", "1iB", "99999999999999999999"] {
            assert!(size(text).is_err(), "{text}");
        }
        for (text, hint) in
            [("10GB", "write 10GiB or 10G,"), ("1 mb", "write 1MiB or 1M,"), ("1.5G", "1536M for 1.5G")]
        {
            assert!(size(text).unwrap_err().contains(hint), "{text}");
        }
    }

    #[test]
    fn sizes_are_shown_as_they_are_read() {
        for text in ["0", "513", "512K", "10G", "1T", "1025M"] {
            assert_eq!(show_size(size(text).unwrap()), text);
        }
    }

    #[test]
    fn spans_need_a_unit() {
        for (text, millis) in [("5s", 5_000), ("250ms", 250), ("2m", 120_000), ("1h", 3_600_000), ("0s", 0)] {
            assert_eq!(duration(text), Ok(Duration::from_millis(millis)), "{text}");
        }
        for text in ["", "5", "s", "-5s", "5d", "99999999999999999999s", "6000000000000000000h"] {
            assert!(duration(text).is_err(), "{text}");
        }
    }
}
