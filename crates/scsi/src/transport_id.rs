//! TransportIDs (SPC-5 §7.6.4), which name initiator ports in parameter lists.

use alloc::string::String;
use alloc::vec::Vec;

use base::bytes::{Reader, UnexpectedEof};

/// The longest iSCSI name in bytes (RFC 7143 §4.2.7.1).
pub const MAX_ISCSI_NAME_LEN: usize = 223;

/// The length of the longest TransportID that [`TransportId::take`] accepts: a header of 4 bytes, the longest
/// iSCSI name, the separator `,i,0x`, twelve hexadecimal digits and a null, rounded up to a multiple of four.
pub const MAX_LEN: usize = 4 + (MAX_ISCSI_NAME_LEN + 5 + 12 + 1).next_multiple_of(4);

/// The length of the shortest TransportID, and of every TransportID of a protocol other than iSCSI.
pub const MIN_LEN: usize = 24;

/// PROTOCOL IDENTIFIER of iSCSI (SPC-5 §7.6).
pub const PROTOCOL_ISCSI: u8 = 0x5;

/// A TransportID as a value. Two values that name the same initiator port are equal and encode to the same
/// bytes.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum TransportId {
    /// An iSCSI initiator device, which stands for all of its ports (TPID FORMAT 00b).
    IscsiDevice {
        /// The iSCSI name, in lower case.
        name: String,
    },
    /// An iSCSI initiator port (TPID FORMAT 01b).
    IscsiPort {
        /// The iSCSI name, in lower case.
        name: String,
        /// The ISID, the initiator's part of the session identifier.
        isid: [u8; 6],
    },
    /// A port of another protocol: 24 bytes, kept as they are.
    Other([u8; MIN_LEN]),
}

/// Why bytes are not a valid TransportID.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Malformed {
    /// The bytes end within the TransportID.
    Truncated,
    /// The field at this offset from the start of the TransportID has an invalid value.
    Field(usize),
}

impl From<UnexpectedEof> for Malformed {
    fn from(_: UnexpectedEof) -> Self {
        Self::Truncated
    }
}

impl TransportId {
    /// Names the initiator port of the initiator `name` with the ISID `isid`. Returns `None` if the name is
    /// empty, too long, or contains a null or a comma.
    pub fn iscsi_port(name: &str, isid: [u8; 6]) -> Option<Self> {
        Some(Self::IscsiPort { name: legal_name(name)?, isid })
    }

    /// Names the initiator device `name`, with all of its ports. Returns `None` as [`Self::iscsi_port`] does.
    pub fn iscsi_device(name: &str) -> Option<Self> {
        Some(Self::IscsiDevice { name: legal_name(name)? })
    }

    /// Takes the next TransportID from `list`.
    ///
    /// # Errors
    /// When the list ends too early, or a field has a value that SPC-5 does not allow.
    pub fn take(list: &mut Reader<'_>) -> Result<Self, Malformed> {
        let start = *list;
        let [first, _reserved] = list.array()?;
        if first & 0x0f != PROTOCOL_ISCSI {
            *list = start;
            return match first >> 6 {
                0 => Ok(Self::Other(list.array()?)),
                _ => Err(Malformed::Field(0)),
            };
        }
        let additional = usize::from(list.u16()?);
        let body = list.take(additional)?;
        if additional % 4 != 0 || !(MIN_LEN - 4..=MAX_LEN - 4).contains(&additional) {
            return Err(Malformed::Field(2));
        }
        let end = body.iter().position(|byte| *byte == 0).ok_or(Malformed::Field(4))?;
        let text = body.get(..end).and_then(|text| core::str::from_utf8(text).ok());
        let text = text.ok_or(Malformed::Field(4))?;
        match first >> 6 {
            0 => Self::iscsi_device(text),
            1 => text.split_once(",i,0x").and_then(|(name, isid)| Self::iscsi_port(name, isid_of(isid)?)),
            _ => return Err(Malformed::Field(0)),
        }
        .ok_or(Malformed::Field(4))
    }

    /// Parses `bytes` as one TransportID with no bytes after it.
    ///
    /// # Errors
    /// The same as those of [`Self::take`]; [`Malformed::Field`] with the offset of the first byte left over,
    /// if there is any.
    pub fn from_bytes(bytes: &[u8]) -> Result<Self, Malformed> {
        let mut list = Reader::new(bytes);
        let id = Self::take(&mut list)?;
        if list.is_empty() { Ok(id) } else { Err(Malformed::Field(bytes.len() - list.remaining())) }
    }

    /// Returns the bytes on the wire: at least 24, a multiple of four.
    pub fn encode(&self) -> Vec<u8> {
        let (format, text) = match self {
            Self::Other(bytes) => return bytes.to_vec(),
            Self::IscsiDevice { name } => (0x00, name.clone()),
            Self::IscsiPort { name, isid } => {
                let [a, b, c, d, e, f] = isid;
                (0x40, alloc::format!("{name},i,0x{a:02x}{b:02x}{c:02x}{d:02x}{e:02x}{f:02x}"))
            }
        };
        let additional = (text.len() + 1).next_multiple_of(4).max(MIN_LEN - 4);
        let mut bytes = Vec::with_capacity(4 + additional);
        bytes.extend_from_slice(&[format | PROTOCOL_ISCSI, 0]);
        bytes.extend_from_slice(&u16::try_from(additional).unwrap_or(u16::MAX).to_be_bytes());
        bytes.extend_from_slice(text.as_bytes());
        bytes.resize(4 + additional, 0);
        bytes
    }

    /// Returns the PROTOCOL IDENTIFIER.
    pub const fn protocol(&self) -> u8 {
        match self {
            Self::IscsiDevice { .. } | Self::IscsiPort { .. } => PROTOCOL_ISCSI,
            Self::Other(bytes) => bytes[0] & 0x0f,
        }
    }

    /// Returns whether this TransportID names `port`, or the device that the port belongs to.
    pub fn covers(&self, port: &Self) -> bool {
        match (self, port) {
            (Self::IscsiDevice { name }, Self::IscsiPort { name: owner, .. }) => name == owner,
            _ => self == port,
        }
    }
}

/// Returns a valid name in lower case: iSCSI names compare after case folding (RFC 3722).
fn legal_name(name: &str) -> Option<String> {
    let legal = !name.is_empty() && name.len() <= MAX_ISCSI_NAME_LEN && !name.contains(['\0', ',']);
    legal.then(|| name.to_ascii_lowercase())
}

fn isid_of(digits: &str) -> Option<[u8; 6]> {
    if digits.is_empty() || digits.len() > 12 || !digits.bytes().all(|digit| digit.is_ascii_hexdigit()) {
        return None;
    }
    let [_, _, isid @ ..] = u64::from_str_radix(digits, 16).ok()?.to_be_bytes();
    Some(isid)
}

#[cfg(test)]
mod tests {
    use alloc::vec;

    use super::*;

    const ISID: [u8; 6] = [0x00, 0x02, 0x3d, 0x00, 0x00, 0x0a];

    #[test]
    fn an_iscsi_port_stands_as_spc_shows_it() {
        let id = TransportId::iscsi_port("iqn.1993-08.org.debian:01:abc", ISID).unwrap();
        let bytes = id.encode();
        let mut expected = vec![0x45, 0, 0, 48];
        expected.extend_from_slice(b"iqn.1993-08.org.debian:01:abc,i,0x00023d00000a\0\0");
        assert_eq!(bytes, expected);
        assert_eq!(TransportId::from_bytes(&bytes), Ok(id));
    }

    #[test]
    fn a_short_name_is_padded_to_24_bytes() {
        let id = TransportId::iscsi_device("iqn.a").unwrap();
        let bytes = id.encode();
        assert_eq!(bytes[..4], [0x05, 0, 0, 20]);
        assert_eq!(bytes.len(), MIN_LEN);
        assert_eq!(TransportId::from_bytes(&bytes), Ok(id));
    }

    #[test]
    fn spelling_does_not_make_another_port() {
        let id = TransportId::iscsi_port("iqn.A", ISID).unwrap();
        let mut bytes = vec![0x45, 0, 0, 24];
        bytes.extend_from_slice(b"IQN.a,i,0x00023D00000A\0\0");
        assert_eq!(TransportId::from_bytes(&bytes), Ok(id.clone()));
        bytes.truncate(4);
        bytes.extend_from_slice(b"iqn.a,i,0x23d00000a\0\0\0\0\0");
        assert_eq!(TransportId::from_bytes(&bytes).unwrap().encode(), id.encode());
    }

    #[test]
    fn a_device_covers_its_ports_and_no_others() {
        let device = TransportId::iscsi_device("iqn.a").unwrap();
        let port = TransportId::iscsi_port("iqn.a", ISID).unwrap();
        let stranger = TransportId::iscsi_port("iqn.ab", ISID).unwrap();
        assert!(device.covers(&port) && device.covers(&device) && port.covers(&port));
        assert!(!device.covers(&stranger) && !port.covers(&device));
    }

    #[test]
    fn another_protocol_is_kept_as_it_is() {
        let mut bytes = [0xa5; 24];
        bytes[0] = 0x06;
        let id = TransportId::from_bytes(&bytes).unwrap();
        assert_eq!((id.protocol(), id.encode()), (6, bytes.to_vec()));
    }

    #[test]
    fn rejects_what_is_no_transport_id() {
        let iscsi = |first: u8, additional: u16, text: &[u8]| {
            let mut bytes = vec![first, 0];
            bytes.extend_from_slice(&additional.to_be_bytes());
            bytes.extend_from_slice(text);
            bytes
        };
        for (bytes, why) in [
            (vec![], Malformed::Truncated),
            (vec![0x05, 0, 0], Malformed::Truncated),
            (vec![0x06; 23], Malformed::Truncated),
            (vec![0x46; 24], Malformed::Field(0)),
            (iscsi(0x85, 20, &[b'a'; 20]), Malformed::Field(4)),
            (iscsi(0x85, 20, b"iqn.a\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0"), Malformed::Field(0)),
            (iscsi(0x05, 20, &[b'a'; 19]), Malformed::Truncated),
            (iscsi(0x05, 16, &[0; 16]), Malformed::Field(2)),
            (iscsi(0x05, 22, &[0; 22]), Malformed::Field(2)),
            (iscsi(0x05, 20, &[b'a'; 20]), Malformed::Field(4)),
            (iscsi(0x05, 20, &[0; 20]), Malformed::Field(4)),
            (iscsi(0x05, 20, b"\xff\xfe\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0"), Malformed::Field(4)),
            (iscsi(0x45, 20, b"iqn.a\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0"), Malformed::Field(4)),
            (iscsi(0x45, 20, b"iqn.a,i,0x\0\0\0\0\0\0\0\0\0\0"), Malformed::Field(4)),
            (iscsi(0x45, 20, b"iqn.a,i,0x+1\0\0\0\0\0\0\0\0"), Malformed::Field(4)),
            (iscsi(0x45, 24, b"a,i,0x1234567890123\0\0\0\0\0"), Malformed::Field(4)),
            (iscsi(0x05, 256, &[b'a'; 256]), Malformed::Field(2)),
            (iscsi(0x05, 20, b"iqn.a\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\x05"), Malformed::Field(24)),
        ] {
            assert_eq!(TransportId::from_bytes(&bytes), Err(why), "{bytes:02x?}");
        }
    }

    #[test]
    fn the_longest_name_fits() {
        let name = "x".repeat(MAX_ISCSI_NAME_LEN);
        let bytes = TransportId::iscsi_port(&name, ISID).unwrap().encode();
        assert_eq!(bytes.len(), MAX_LEN);
        assert!(TransportId::from_bytes(&bytes).is_ok());
        assert_eq!(TransportId::iscsi_port(&"x".repeat(MAX_ISCSI_NAME_LEN + 1), ISID), None);
    }
}
