//! Patterns that select initiators, and the names of portals, groups and shared LUNs.

use std::fmt;

use iscsi::name::MAX_NAME;

/// A pattern of initiator names: `*` matches any sequence of characters.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct NamePattern(String);

impl NamePattern {
    /// Checks a pattern and converts it to lower case, as iSCSI names are.
    ///
    /// # Errors
    /// A fragment that describes the mistake.
    pub fn parse(text: &str) -> Result<Self, String> {
        let pattern = text.to_lowercase();
        if pattern.is_empty() || pattern.len() > MAX_NAME {
            return Err(format!("a pattern of initiator names has 1 to {MAX_NAME} bytes"));
        }
        if let Some(bad) = pattern.chars().find(|c| !c.is_alphanumeric() && !"-.:_*".contains(*c)) {
            return Err(format!("\"{text}\" contains {bad:?}, which no initiator name contains"));
        }
        let known = ["iqn.", "eui.", "naa."];
        let fits = match pattern.split_once('*') {
            Some((fixed, _)) => known.iter().any(|kind| fixed.starts_with(kind) || kind.starts_with(fixed)),
            None => known.iter().any(|kind| pattern.starts_with(kind)),
        };
        if !fits {
            return Err(format!(
                "\"{text}\" matches no initiator name: they begin with \"iqn.\", \"eui.\" or \"naa.\""
            ));
        }
        Ok(Self(pattern))
    }

    /// Returns the pattern.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for NamePattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Checks the name of a portal, group or shared LUN.
///
/// # Errors
/// A fragment that describes the mistake.
pub(crate) fn check_label(text: &str) -> Result<(), String> {
    if text.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.')) {
        Ok(())
    } else {
        Err(format!("\"{text}\" is not a name: it may contain only letters, digits, '-', '_' and '.'"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn takes_what_can_fit_a_name_and_lowers_its_case() {
        for (text, pattern) in [
            ("IQN.1994-05.com.redhat:*", "iqn.1994-05.com.redhat:*"),
            ("iqn.1991-05.com.microsoft:my_host", "iqn.1991-05.com.microsoft:my_host"),
            ("eui.02004567A425678D", "eui.02004567a425678d"),
            ("*", "*"),
            ("i*:x", "i*:x"),
        ] {
            assert_eq!(NamePattern::parse(text).map(|p| p.to_string()), Ok(pattern.to_owned()));
        }
    }

    #[test]
    fn refuses_patterns_that_fit_nothing() {
        for text in ["", "foo*", "iqn", "iqn.2000 01", "@group", "x?", "iqn.2000-01.x:a/b", "iqn.a\n"] {
            assert!(NamePattern::parse(text).is_err(), "{text}");
        }
    }
}
