//! Text in HTML and SVG.

use std::fmt::{self, Write};

/// Text that comes from outside, as content of an element or as the value of a quoted attribute.
#[derive(Clone, Copy, Debug)]
pub(super) struct Escaped<'a>(pub(super) &'a str);

impl fmt::Display for Escaped<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for c in self.0.chars() {
            match c {
                '&' => f.write_str("&amp;")?,
                '<' => f.write_str("&lt;")?,
                '>' => f.write_str("&gt;")?,
                '"' => f.write_str("&quot;")?,
                '\'' => f.write_str("&#39;")?,
                '\n' | '\t' => f.write_char(c)?,
                // XML allows no other control characters, not even escaped ones.
                c if c.is_control() || matches!(c, '\u{fffe}' | '\u{ffff}') => f.write_char('\u{fffd}')?,
                c => f.write_char(c)?,
            }
        }
        Ok(())
    }
}

/// Returns a label with its unit: `throughput (MB/s)`.
pub(super) fn with_unit(label: &str, unit: &str) -> String {
    match (label, unit) {
        (label, "") => label.to_owned(),
        ("", unit) => unit.to_owned(),
        (label, unit) => format!("{label} ({unit})"),
    }
}

/// Returns an estimate as words: `523 (518 to 531)`.
pub(super) fn estimate_in_words(estimate: &super::model::Estimate) -> String {
    match super::number::estimate(estimate) {
        (value, None) => value,
        (value, Some((low, high))) => format!("{value} ({low} to {high})"),
    }
}
