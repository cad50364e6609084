//! iSCSI names, the patterns that select them, and the labels of our own.

use std::fmt;

/// RFC 7143 §4.2.7.1: a name takes at most 223 bytes.
const NAME_LEN_MAX: usize = 223;

/// An iSCSI name in its normal form (RFC 3722): lower case, checked.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct IscsiName(String);

impl IscsiName {
    /// Checks and normalises a name of one of the three types of RFC 7143 §4.2.7: `iqn.`, `eui.`, `naa.`.
    ///
    /// Only ASCII letters, digits, `-`, `.` and `:` are taken: the rest of what RFC 3722 allows needs Unicode
    /// normalisation, and two spellings of one name must never name two targets.
    ///
    /// # Errors
    /// A fragment that says what is wrong.
    pub fn parse(text: &str) -> Result<Self, String> {
        let name = text.to_ascii_lowercase();
        if name.len() > NAME_LEN_MAX {
            return Err(format!("the name is {} bytes long; {NAME_LEN_MAX} are the most", name.len()));
        }
        if let Some(bad) = name.chars().find(|c| !is_name_char(*c)) {
            return Err(format!(
                "\"{text}\" contains {bad:?}; a name has only letters, digits, '-', '.' and ':'"
            ));
        }
        match name.split_at_checked(4) {
            Some(("iqn.", rest)) => check_iqn(text, rest)?,
            Some(("eui.", rest)) => check_hex(text, rest, &[16])?,
            Some(("naa.", rest)) => check_hex(text, rest, &[16, 32])?,
            _ => return Err(format!("\"{text}\" begins with none of \"iqn.\", \"eui.\", \"naa.\"")),
        }
        Ok(Self(name))
    }

    /// Returns a name that stands for one that was written wrongly.
    pub(crate) fn placeholder() -> Self {
        Self(String::new())
    }

    /// Returns the name.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for IscsiName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// A pattern of initiator names: `*` stands for any run of characters, `?` for one.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct NamePattern(String);

impl NamePattern {
    /// Checks and normalises a pattern. Underscores are taken as well: initiators with such names exist.
    ///
    /// # Errors
    /// A fragment that says what is wrong.
    pub fn parse(text: &str) -> Result<Self, String> {
        let pattern = text.to_ascii_lowercase();
        if pattern.is_empty() || pattern.len() > NAME_LEN_MAX {
            return Err(format!("a pattern has 1 to {NAME_LEN_MAX} bytes"));
        }
        if let Some(bad) = pattern.chars().find(|c| !is_name_char(*c) && !matches!(c, '*' | '?' | '_')) {
            return Err(format!(
                "\"{text}\" contains {bad:?}; a pattern has only letters, digits, '-', '.', ':', '_', '*' and '?'"
            ));
        }
        let fixed = pattern.split(['*', '?']).next().unwrap_or_default();
        let whole = fixed.len() == pattern.len();
        let known = ["iqn.", "eui.", "naa."].iter().any(|kind| {
            if whole { fixed.starts_with(kind) } else { fixed.starts_with(kind) || kind.starts_with(fixed) }
        });
        if !known {
            return Err(format!(
                "\"{text}\" fits no initiator name: they begin with \"iqn.\", \"eui.\" or \"naa.\""
            ));
        }
        Ok(Self(pattern))
    }

    /// Returns the pattern.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Returns whether a name in normal form fits. Takes time proportional to both lengths' product at worst.
    pub fn fits(&self, name: &str) -> bool {
        let (pattern, name) = (self.0.as_bytes(), name.as_bytes());
        let (mut p, mut n) = (0, 0);
        let mut retry: Option<(usize, usize)> = None;
        while n < name.len() {
            match (pattern.get(p), name.get(n)) {
                (Some(b'*'), _) => {
                    retry = Some((p + 1, n));
                    p += 1;
                }
                (Some(want), Some(have)) if *want == b'?' || want == have => {
                    p += 1;
                    n += 1;
                }
                _ => match retry {
                    Some((star, at)) => {
                        retry = Some((star, at + 1));
                        p = star;
                        n = at + 1;
                    }
                    None => return false,
                },
            }
        }
        pattern.get(p..).is_some_and(|rest| rest.iter().all(|c| *c == b'*'))
    }
}

impl fmt::Display for NamePattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Checks a label of our own: the name of a portal, group or shared LUN.
///
/// # Errors
/// A fragment that says what is wrong.
pub(crate) fn check_label(text: &str) -> Result<(), String> {
    if text.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.')) {
        Ok(())
    } else {
        Err(format!("\"{text}\" is no name: only letters, digits, '-', '_' and '.'"))
    }
}

const fn is_name_char(c: char) -> bool {
    matches!(c, 'a'..='z' | '0'..='9' | '-' | '.' | ':')
}

/// Checks what follows `iqn.`: a year and month, a reversed domain, and perhaps a colon and anything.
fn check_iqn(text: &str, rest: &str) -> Result<(), String> {
    let authority = rest.split(':').next().unwrap_or_default();
    let (date, domain) = authority.split_once('.').unwrap_or((authority, ""));
    let date_ok = match date.split_once('-') {
        Some((year, month)) => {
            year.len() == 4
                && month.len() == 2
                && year.parse::<u16>().is_ok()
                && month.parse::<u8>().is_ok_and(|month| (1..=12).contains(&month))
        }
        None => false,
    };
    if !date_ok {
        return Err(format!("\"{text}\" has no year and month after \"iqn.\" (iqn.YYYY-MM.DOMAIN:WHAT)"));
    }
    let label_ok = |label: &str| !label.is_empty() && !label.starts_with('-') && !label.ends_with('-');
    if !domain.split('.').all(label_ok) {
        return Err(format!("\"{text}\" has no reversed domain after the date (iqn.YYYY-MM.DOMAIN:WHAT)"));
    }
    Ok(())
}

fn check_hex(text: &str, rest: &str, lengths: &[usize]) -> Result<(), String> {
    if lengths.contains(&rest.len()) && rest.bytes().all(|c| c.is_ascii_hexdigit()) {
        return Ok(());
    }
    let kind = text.get(..4).unwrap_or_default();
    let count = lengths.iter().map(ToString::to_string).collect::<Vec<_>>().join(" or ");
    Err(format!("\"{text}\" needs {count} hexadecimal digits after \"{kind}\""))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn takes_the_three_types_of_names_and_lowers_their_case() {
        for (text, normal) in [
            ("iqn.2001-04.com.Example:Storage.Disk2", "iqn.2001-04.com.example:storage.disk2"),
            ("iqn.2001-04.com.example", "iqn.2001-04.com.example"),
            ("iqn.2001-04.com.example:a:b::", "iqn.2001-04.com.example:a:b::"),
            ("eui.02004567A425678D", "eui.02004567a425678d"),
            ("naa.52004567BA64678D", "naa.52004567ba64678d"),
            ("naa.62004567BA64678D0123456789ABCDEF", "naa.62004567ba64678d0123456789abcdef"),
        ] {
            assert_eq!(IscsiName::parse(text).map(|name| name.to_string()), Ok(normal.to_owned()));
        }
    }

    #[test]
    fn refuses_names_that_are_none() {
        let long = format!("iqn.2001-04.com.example:{}", "x".repeat(200));
        for text in [
            "",
            "disk",
            "iqn.",
            "iqn.example",
            "iqn.2001-13.com.example",
            "iqn.2001-4.com.example",
            "iqn.201-04.com.example",
            "iqn.2001-04",
            "iqn.2001-04.",
            "iqn.2001-04.com..example",
            "iqn.2001-04.-com",
            "iqn.2001-04.com.example:a b",
            "iqn.2001-04.com.example:a/../b",
            "iqn.2001-04.com.example:a\n",
            "iqn.2001-04.com.exämple",
            "iqn.2001-04.com.example:a_b",
            "eui.0200",
            "eui.02004567A425678G",
            "naa.52004567BA64678D0",
            &long,
        ] {
            assert!(IscsiName::parse(text).is_err(), "{text}");
        }
    }

    #[test]
    fn patterns_fit_as_shells_do() {
        for (pattern, name, fits) in [
            ("iqn.1994-05.com.redhat:*", "iqn.1994-05.com.redhat:abc", true),
            ("iqn.1994-05.com.redhat:*", "iqn.1994-05.com.redhat:", true),
            ("iqn.1994-05.com.redhat:*", "iqn.1994-05.com.redhat", false),
            ("*", "eui.02004567a425678d", true),
            ("IQN.1994-05.com.redhat:host?", "iqn.1994-05.com.redhat:host1", true),
            ("iqn.1994-05.com.redhat:host?", "iqn.1994-05.com.redhat:host12", false),
            ("iqn.*:a*b*c", "iqn.2000-01.x:aXbYbZc", true),
            ("iqn.*:a*b*c", "iqn.2000-01.x:aXbYbZd", false),
            ("iqn.2000-01.x:a", "iqn.2000-01.x:a", true),
            ("iqn.2000-01.x:a", "iqn.2000-01.x:ab", false),
            ("i*", "iqn.2000-01.x:ab", true),
        ] {
            assert_eq!(NamePattern::parse(pattern).unwrap().fits(name), fits, "{pattern} {name}");
        }
    }

    #[test]
    fn refuses_patterns_that_fit_nothing() {
        for text in ["", "foo*", "iqn", "iqn.2000 01", "@group", "x?"] {
            assert!(NamePattern::parse(text).is_err(), "{text}");
        }
    }
}
