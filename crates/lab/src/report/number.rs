//! How reports write numbers.

use std::fmt;

use super::model::Estimate;

/// How many digits a measured number has: more are noise in most experiments.
const DIGITS: i32 = 3;

/// If half of an interval is less than the last of [`DIGITS`] digits, there are more digits, up to this number.
const DIGITS_MAX: i32 = 6;

/// What stands for a number that is not finite.
const NONE: &str = "–";

/// A number with three significant digits; a whole number below a million has all of its digits, since it may be
/// a count.
#[derive(Clone, Copy, Debug)]
pub struct Short(pub f64);

impl fmt::Display for Short {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self(value) = *self;
        if value.fract() == 0.0 && value.abs() < 1e6 {
            f.write_str(&fixed(value, 0))
        } else {
            f.write_str(&rounded(value, decimals(value, DIGITS)))
        }
    }
}

/// Returns a median and the ends of its interval. All three have the same number of decimals, and as many
/// that the interval shows. There is no interval if its ends are not finite or equal.
pub fn estimate(estimate: &Estimate) -> (String, Option<(String, String)>) {
    let Estimate { value, low, high } = *estimate;
    let largest = [value, low, high].into_iter().filter(|end| end.is_finite()).fold(0.0, largest_of);
    if !(low.is_finite() && high.is_finite()) || low == high {
        return (Short(value).to_string(), None);
    }
    let digits =
        decimals(largest, DIGITS).max(decimals((high - low) / 2.0, 1).min(decimals(largest, DIGITS_MAX)));
    let text = |number| rounded_like(number, largest, digits);
    (text(value), Some((text(low), text(high))))
}

fn largest_of(a: f64, b: f64) -> f64 {
    a.abs().max(b.abs())
}

/// Returns how many decimals a number needs for so many significant digits; negative for the digits before
/// the decimal point that are zero.
fn decimals(value: f64, digits: i32) -> i32 {
    // Rounding can add a digit: 99.96 becomes 100.
    let rounded = format!("{value:.*e}", usize::try_from(digits - 1).unwrap_or(0));
    digits - 1 - exponent_of(&rounded)
}

/// Returns the exponent of a number in scientific notation; 0 for zero.
pub(super) fn exponent(value: f64) -> i32 {
    exponent_of(&format!("{value:e}"))
}

fn exponent_of(text: &str) -> i32 {
    text.rsplit_once('e').and_then(|(_, exponent)| exponent.parse().ok()).unwrap_or(0)
}

fn rounded(value: f64, decimals: i32) -> String {
    rounded_like(value, value, decimals)
}

/// Rounds a number to so many decimals. It is in scientific notation if `largest` is very large or very small.
fn rounded_like(value: f64, largest: f64, decimals: i32) -> String {
    if !value.is_finite() {
        return NONE.to_owned();
    }
    let exponent = exponent(largest);
    if value != 0.0 && !(-4..=6).contains(&exponent) {
        let power = 10_f64.powi(exponent);
        let mantissa = fixed(value / power, decimals.saturating_add(exponent));
        return format!("{mantissa}·10{}", superscript(exponent));
    }
    fixed(value, decimals)
}

/// Writes a number with so many decimals, a real minus sign, and a narrow space between groups of three digits
/// from five digits on.
pub(super) fn fixed(value: f64, decimals: i32) -> String {
    let power = 10_f64.powi(decimals.saturating_neg().max(0));
    let whole = if decimals < 0 { (value / power).round() * power } else { value };
    let text = format!("{:.*}", usize::try_from(decimals).unwrap_or(0), whole.abs());
    let (whole, fraction) = text.split_once('.').unwrap_or((&text, ""));
    let is_zero = text.chars().all(|c| matches!(c, '0' | '.'));
    let mut out = if value < 0.0 && !is_zero { "−".to_owned() } else { String::new() };
    for (index, digit) in whole.chars().enumerate() {
        let left = whole.len() - index;
        if index > 0 && whole.len() > 4 && left.is_multiple_of(3) {
            out.push('\u{202f}');
        }
        out.push(digit);
    }
    if !fraction.is_empty() {
        out.push('.');
        out.push_str(fraction);
    }
    out
}

fn superscript(exponent: i32) -> String {
    const DIGITS: [char; 10] = ['⁰', '¹', '²', '³', '⁴', '⁵', '⁶', '⁷', '⁸', '⁹'];
    let digit = |c: char| match c.to_digit(10).and_then(|digit| usize::try_from(digit).ok()) {
        Some(digit) => DIGITS.get(digit).copied().unwrap_or(c),
        None => '⁻',
    };
    exponent.to_string().chars().map(digit).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_have_three_digits_and_counts_all() {
        for (value, text) in [
            (0.0, "0"),
            (-0.0, "0"),
            (1.0, "1"),
            (12_345.0, "12\u{202f}345"),
            (523.412, "523"),
            (52.3412, "52.3"),
            (1234.56, "1230"),
            (123_456.7, "123\u{202f}000"),
            (0.012_345, "0.0123"),
            (-2.345_678, "−2.35"),
            (99.96, "100"),
            (1.234e9, "1.23·10⁹"),
            (-4.5678e-7, "−4.57·10⁻⁷"),
            (f64::NAN, "–"),
            (f64::INFINITY, "–"),
        ] {
            assert_eq!(Short(value).to_string(), text, "{value}");
        }
    }

    #[test]
    fn an_interval_is_never_narrower_than_its_digits() {
        let written = |value, low, high| estimate(&Estimate { value, low, high });
        let ends = |low: &str, high: &str| Some((low.to_owned(), high.to_owned()));
        assert_eq!(written(523.4, 518.2, 530.9), ("523".to_owned(), ends("518", "531")));
        assert_eq!(written(523.41, 523.38, 523.47), ("523.41".to_owned(), ends("523.38", "523.47")));
        assert_eq!(written(1.23e9, 1.1e9, 1.3e9), ("1.23·10⁹".to_owned(), ends("1.10·10⁹", "1.30·10⁹")));
        assert_eq!(written(-0.5, -3.0, 2.0), ("−0.50".to_owned(), ends("−3.00", "2.00")));
        assert_eq!(written(5.0, 5.0, 5.0), ("5".to_owned(), None));
        assert_eq!(written(5.5, f64::NEG_INFINITY, f64::INFINITY), ("5.50".to_owned(), None));
        assert_eq!(written(f64::NAN, f64::NAN, f64::NAN).0, "–");
    }
}
