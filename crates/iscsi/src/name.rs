//! Names of nodes, ports, sessions and connections (RFC 7143 §4.2.7, §11.12.5–7).
//!
//! A value of these types is legal by construction: a name from a peer or a file is parsed once and then
//! trusted, so no later code meets a slash, a newline or an upper-case letter in it.

use alloc::boxed::Box;
use alloc::format;
use alloc::string::String;
use core::cmp::Ordering;
use core::fmt;
use core::hash::{Hash, Hasher};

/// The longest iSCSI name, in bytes of UTF-8 (RFC 7143 §4.2.7.1).
pub const MAX_NAME: usize = 223;

/// An iSCSI node name in normal form: `iqn.`, `eui.` or `naa.`, lower case, at most [`MAX_NAME`] bytes.
///
/// Two names denote the same node exactly when the values are equal. They are ordered by their bytes.
#[derive(Clone)]
pub struct IscsiName {
    normal: String,
    /// The text that was parsed, if it differs.
    spelling: Option<Box<str>>,
}

/// The rule that a text breaks, so that it is not an iSCSI name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadName {
    /// The text is empty or longer than [`MAX_NAME`] bytes.
    #[error("an iSCSI name has 1 to 223 bytes")]
    Length,
    /// The text is not UTF-8.
    #[error("an iSCSI name is UTF-8 text")]
    NotUtf8,
    /// The text holds a character that names must not hold.
    #[error("an iSCSI name holds only letters, digits, '-', '.', ':' and '_'")]
    Character,
    /// The text starts with none of the known types.
    #[error("an iSCSI name starts with iqn., eui. or naa.")]
    Type,
    /// The part after the type does not have the form that the type requires.
    #[error("an iqn. name goes on with yyyy-mm.reversed-domain, eui. with 16, naa. with 16 or 32 hex digits")]
    Form,
}

impl IscsiName {
    /// Parses and normalises a name.
    ///
    /// Letters become lower case. Full RFC 3722 preparation would also apply Unicode normalisation form KC;
    /// this function does not, so a peer that did not prepare its non-ASCII name counts as a different node.
    /// Underscores, which the RFC excludes, are accepted: names derived from Windows host names contain them.
    ///
    /// # Errors
    /// Returns the rule that the text breaks.
    pub fn parse(text: &[u8]) -> Result<Self, BadName> {
        //= rfc7143#section-4.2.7.1
        //# Initiators and targets MUST support the receipt of iSCSI names of up to the maximum
        //# length of 223 bytes.
        if text.is_empty() || text.len() > MAX_NAME {
            return Err(BadName::Length);
        }
        //= rfc7143#section-4.2.7.2
        //# An iSCSI name MUST be a UTF-8 (see [RFC3629]) encoding of a string of Unicode
        //# characters with the following properties:
        let text = core::str::from_utf8(text).map_err(|_| BadName::NotUtf8)?;
        if !text.chars().all(is_name_char) {
            return Err(BadName::Character);
        }
        let name: String = text.chars().flat_map(char::to_lowercase).collect();
        if name.len() > MAX_NAME {
            return Err(BadName::Length);
        }
        let (kind, rest) = name.split_at_checked(4).ok_or(BadName::Type)?;
        let formed = match kind {
            "iqn." => is_iqn_rest(rest),
            "eui." => rest.len() == 16 && is_hex(rest),
            "naa." => matches!(rest.len(), 16 | 32) && is_hex(rest),
            _ => return Err(BadName::Type),
        };
        if !formed {
            return Err(BadName::Form);
        }
        let spelling = (name != text).then(|| text.into());
        Ok(Self { normal: name, spelling })
    }

    /// Parses and normalises a name that need not have the form of the standard, as Linux targets accept it:
    /// any text that can stand in a log, a path and a list.
    ///
    /// # Errors
    /// Returns the rule that the text breaks.
    pub fn parse_leniently(text: &[u8]) -> Result<Self, BadName> {
        if text.is_empty() || text.len() > MAX_NAME {
            return Err(BadName::Length);
        }
        let text = core::str::from_utf8(text).map_err(|_| BadName::NotUtf8)?;
        let is_trap = |c: char| c.is_control() || c.is_whitespace() || "/\\,;\"'`".contains(c);
        if text.chars().any(is_trap) || !text.chars().any(char::is_alphanumeric) {
            return Err(BadName::Character);
        }
        let name: String = text.chars().flat_map(char::to_lowercase).collect();
        if name.len() > MAX_NAME {
            return Err(BadName::Length);
        }
        Ok(Self { normal: name, spelling: None })
    }

    /// Returns the name as text.
    pub fn as_str(&self) -> &str {
        &self.normal
    }

    /// Returns the name as it was written where [`Self::parse`] found it. An initiator sends the name of a
    /// target like this: some targets compare the bytes of names, against RFC 7143 §4.2.7.2.
    pub fn spelling(&self) -> &str {
        self.spelling.as_deref().unwrap_or(&self.normal)
    }

    /// Returns the name of the initiator port that uses `isid` (RFC 7143 §4.4.2 b), as a TransportID spells
    /// it.
    pub fn initiator_port(&self, isid: Isid) -> String {
        //= rfc7143#section-4.4.2
        //# The SCSI port name MUST be used in iSCSI.
        //= rfc7143#section-4.4.2
        //# When used in SCSI parameter data, the SCSI port name MUST be encoded as:
        format!("{},i,0x{isid}", self.normal)
    }

    /// Returns the name of the target port that is portal group `group` (RFC 7143 §4.4.2 b).
    pub fn target_port(&self, group: PortalGroupTag) -> String {
        format!("{},t,0x{:04x}", self.normal, group.0)
    }
}

impl PartialEq for IscsiName {
    fn eq(&self, other: &Self) -> bool {
        self.normal == other.normal
    }
}

impl Eq for IscsiName {}

impl PartialOrd for IscsiName {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for IscsiName {
    fn cmp(&self, other: &Self) -> Ordering {
        self.normal.cmp(&other.normal)
    }
}

impl Hash for IscsiName {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.normal.hash(state);
    }
}

impl core::str::FromStr for IscsiName {
    type Err = BadName;

    fn from_str(text: &str) -> Result<Self, BadName> {
        Self::parse(text.as_bytes())
    }
}

impl fmt::Display for IscsiName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.normal)
    }
}

impl fmt::Debug for IscsiName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.normal)
    }
}

fn is_name_char(c: char) -> bool {
    match c {
        '-' | '.' | ':' | '_' => true,
        c if c.is_ascii() => c.is_ascii_alphanumeric(),
        c => c.is_alphanumeric(),
    }
}

fn is_hex(text: &str) -> bool {
    text.bytes().all(|b| b.is_ascii_hexdigit())
}

/// Returns whether `rest` is `yyyy-mm.` and the reversed domain name. The text after a colon may be anything.
fn is_iqn_rest(rest: &str) -> bool {
    let Some((date, authority)) = rest.split_once('.') else { return false };
    let Some((year, month)) = date.split_once('-') else { return false };
    let digits = |text: &str, len: usize| text.len() == len && text.bytes().all(|b| b.is_ascii_digit());
    let domain = authority.split(':').next().unwrap_or_default();
    digits(year, 4) && digits(month, 2) && ("01"..="12").contains(&month) && !domain.is_empty()
}

/// The initiator's half of a session identifier, chosen by the initiator (RFC 7143 §11.12.5).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Isid(pub [u8; 6]);

impl Isid {
    /// Makes an ISID of the random format (type 10b) from 24 random bits and a qualifier.
    pub const fn random(random: [u8; 3], qualifier: u16) -> Self {
        let [a, b, c] = random;
        let [high, low] = qualifier.to_be_bytes();
        Self([0x80, a, b, c, high, low])
    }
}

impl fmt::Display for Isid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Debug for Isid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Isid({self})")
    }
}

/// The target's half of a session identifier, chosen by the target; zero requests a new session (RFC 7143
/// §11.12.6).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Tsih(pub u16);

impl Tsih {
    /// The TSIH that a leading login carries.
    pub const NEW: Self = Self(0);
}

/// A connection's number within its session, chosen by the initiator (RFC 7143 §11.12.7).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Cid(pub u16);

/// A portal group of a target node (RFC 7143 §4.4.1, §13.9).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PortalGroupTag(pub u16);

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::string::ToString;

    #[test]
    fn takes_the_examples_of_rfc_7143_and_normalises_case() {
        for (text, normal) in [
            ("iqn.1992-01.com.example", "iqn.1992-01.com.example"),
            (
                "iqn.1992-01.com.example:storage.tape1.sys1.xyz",
                "iqn.1992-01.com.example:storage.tape1.sys1.xyz",
            ),
            ("IQN.2001-04.COM.Example:Storage:Disk", "iqn.2001-04.com.example:storage:disk"),
            ("eui.02004567A425678D", "eui.02004567a425678d"),
            ("naa.52004567BA64678D", "naa.52004567ba64678d"),
            ("naa.62004567BA64678D0123456789ABCDEF", "naa.62004567ba64678d0123456789abcdef"),
            ("iqn.1991-05.com.microsoft:my_host", "iqn.1991-05.com.microsoft:my_host"),
            ("iqn.2001-04.com.example:ÄÖ", "iqn.2001-04.com.example:äö"),
        ] {
            assert_eq!(IscsiName::parse(text.as_bytes()).unwrap().as_str(), normal);
        }
    }

    /// CVE-2026-44943, CVE-2026-18724..-18728: names become file names and log lines elsewhere.
    #[test]
    fn refuses_names_with_slashes_newlines_and_other_traps() {
        //= rfc7143#section-4.2.7.2
        //= type=test
        //# An iSCSI name MUST be a UTF-8 (see [RFC3629]) encoding of a string of Unicode
        //# characters with the following properties:
        let long = [b"iqn.2001-04.com.example:".as_slice(), &[b'a'; 200]].concat();
        for (text, why) in [
            (b"".as_slice(), BadName::Length),
            (long.as_slice(), BadName::Length),
            (b"iqn.2001-04.com.example:\xff", BadName::NotUtf8),
            (b"iqn.2001-04.com.example:../../etc", BadName::Character),
            (b"iqn.2001-04.com.example:a\nb", BadName::Character),
            (b"iqn.2001-04.com.example:a b", BadName::Character),
            (b"iqn.2001-04.com.example:a\0b", BadName::Character),
            (b"iqn.2001-04.com.example:%n", BadName::Character),
            (b"iqn.2001-04.com.example:\xe2\x80\xae", BadName::Character),
            (b"iqn", BadName::Type),
            (b"abc.2001-04.com.example", BadName::Type),
            (b"..", BadName::Type),
            (b"iqn.2001-13.com.example", BadName::Form),
            (b"iqn.2001-04", BadName::Form),
            (b"iqn.2001-04.:x", BadName::Form),
            (b"eui.02004567A425678", BadName::Form),
            (b"naa.52004567BA64678G", BadName::Form),
        ] {
            assert_eq!(IscsiName::parse(text), Err(why), "{}", text.escape_ascii());
        }
    }

    #[test]
    fn takes_a_name_of_223_bytes() {
        //= rfc7143#section-4.2.7.1
        //= type=test
        //# Initiators and targets MUST support the receipt of iSCSI names of up to the maximum
        //# length of 223 bytes.
        let long = [b"iqn.2001-04.com.example:".as_slice(), &[b'a'; 199]].concat();
        assert_eq!(long.len(), 223);
        assert!(IscsiName::parse(&long).is_ok());
    }

    #[test]
    fn spells_port_names_as_transport_ids_do() {
        //= rfc7143#section-4.4.2
        //= type=test
        //# The SCSI port name MUST be used in iSCSI.
        //= rfc7143#section-4.4.2
        //= type=test
        //# When used in SCSI parameter data, the SCSI port name MUST be encoded as:
        let name: IscsiName = "iqn.2001-04.com.example:x".parse().unwrap();
        let isid = Isid::random([1, 2, 0xab], 0x0300);
        assert_eq!(isid.to_string(), "800102ab0300");
        assert_eq!(name.initiator_port(isid), "iqn.2001-04.com.example:x,i,0x800102ab0300");
        assert_eq!(name.target_port(PortalGroupTag(1)), "iqn.2001-04.com.example:x,t,0x0001");
    }
}
