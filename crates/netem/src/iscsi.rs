//! Finds the PDUs of an iSCSI connection (RFC 7143 §11.1) and the digests that they carry.
//!
//! This module knows only lengths, and of the login only the negotiation of digests. It shares no code with
//! the `iscsi` crate, so that it can also watch other implementations.

use alloc::vec::Vec;

use crate::stream::{Framing, PduLayout, StreamDirection};

/// The framing of one connection, starting with its first byte.
#[derive(Clone, Debug, Default)]
pub struct Iscsi {
    /// The lengths of the header digest and of the data digest in bytes, 0 if there is none.
    digests: [usize; 2],
    logged_in: bool,
    /// Login text that continues in the next PDU.
    texts: [Vec<u8>; 2],
    /// The lengths of the digests that the last single value of either side names, which is the agreed value
    /// once the login is over.
    agreed: [usize; 2],
    /// Whether the connection has an AEAD digest whatever its login agrees on.
    sealed: bool,
}

const BHS_LEN: usize = 48;
/// The length of a CRC32C.
const CRC_LEN: usize = 4;
/// The length of the tag of an AEAD digest (`docs/iscsi-aead.md`), and what the names of those digests begin
/// with.
const TAG_LEN: usize = 16;
const AEAD_PREFIX: &[u8] = b"Y-org.targe.";
const LOGIN_REQUEST: u8 = 0x03;
const LOGIN_RESPONSE: u8 = 0x23;
/// The maximum length in bytes of login text that is put together, which is as much as implementations
/// accept.
const TEXT_LEN_MAX: usize = 64 << 10;

impl Iscsi {
    /// Creates the framing of a connection that is not logged in.
    pub fn new() -> Self {
        Self::default()
    }

    /// Creates the framing of a connection that is logged in and whose digests are known.
    pub fn logged_in(header_digest: bool, data_digest: bool) -> Self {
        let len = |is_on| if is_on { CRC_LEN } else { 0 };
        Self { digests: [len(header_digest), len(data_digest)], logged_in: true, ..Self::default() }
    }

    /// Creates the framing of a connection that is not logged in, and that has an AEAD digest after its login
    /// whatever that agrees on.
    pub fn sealed() -> Self {
        Self { sealed: true, ..Self::default() }
    }

    /// Returns whether the login is over.
    pub const fn is_logged_in(&self) -> bool {
        self.logged_in
    }

    /// Returns whether the header digest and the data digest are on.
    pub const fn digests(&self) -> (bool, bool) {
        let [header, data] = self.digests;
        (header > 0, data > 0)
    }

    fn login_text(&mut self, way: StreamDirection, header: &[u8], data: &[u8]) {
        let text = match way {
            StreamDirection::Forward => &mut self.texts[0],
            StreamDirection::Backward => &mut self.texts[1],
        };
        if text.len().saturating_add(data.len()) <= TEXT_LEN_MAX {
            text.extend_from_slice(data);
        }
        let continues = header.get(1).is_some_and(|flags| flags & 0x40 != 0);
        if continues {
            return;
        }
        let text = core::mem::take(text);
        for pair in text.split(|byte| *byte == 0) {
            for (agreed, key) in self.agreed.iter_mut().zip([&b"HeaderDigest="[..], b"DataDigest="]) {
                match pair.strip_prefix(key) {
                    // An offer of several values is not an answer.
                    Some(value) if !value.contains(&b',') => *agreed = digest_len(value),
                    _ => {}
                }
            }
        }
    }
}

impl Framing for Iscsi {
    fn pdu_layout(&mut self, _way: StreamDirection, bytes: &[u8]) -> Option<PduLayout> {
        let header = bytes.first_chunk::<BHS_LEN>()?;
        let [opcode, _, _, _, ahs_words, a, b, c, ..] = *header;
        let header_len = BHS_LEN + usize::from(ahs_words) * 4;
        let data_len = usize::try_from(u32::from_be_bytes([0, a, b, c])).unwrap_or(0).next_multiple_of(4);
        let opening = !self.logged_in || matches!(opcode & 0x3f, LOGIN_REQUEST | LOGIN_RESPONSE);
        let [header_digest_len, data_digest_len] = self.digests;
        let data_at = header_len + header_digest_len;
        let data_end = data_at + data_len;
        let data_digest_len = if data_len > 0 { data_digest_len } else { 0 };
        Some(PduLayout {
            len: data_end + data_digest_len,
            header: 0..header_len,
            header_digest: header_len..data_at,
            data: data_at..data_end,
            data_digest: data_end..data_end + data_digest_len,
            is_login: opening,
            once: false,
        })
    }

    fn passed(&mut self, way: StreamDirection, unit: &[u8]) {
        let Some(header) = unit.first_chunk::<BHS_LEN>().filter(|_| !self.logged_in) else { return };
        let [opcode, flags, ..] = *header;
        let opcode = opcode & 0x3f;
        if !matches!(opcode, LOGIN_REQUEST | LOGIN_RESPONSE) {
            return;
        }
        let [_, _, _, _, ahs_words, a, b, c, ..] = *header;
        let at = BHS_LEN + usize::from(ahs_words) * 4;
        let len = usize::try_from(u32::from_be_bytes([0, a, b, c])).unwrap_or(0);
        let data = unit.get(at..at + len).unwrap_or_default();
        self.login_text(way, header, data);
        // Digests are in force from the first PDU of the full feature phase on (RFC 7143 §13.1). A login
        // response with T set, NSG 3 and status 0 begins that phase.
        let status = header.get(36).copied().unwrap_or(1);
        if opcode == LOGIN_RESPONSE && flags & 0x83 == 0x83 && status == 0 {
            self.logged_in = true;
            self.digests = if self.sealed { [TAG_LEN; 2] } else { self.agreed };
        }
    }
}

/// Returns the length of the digest with this name.
fn digest_len(name: &[u8]) -> usize {
    match name {
        b"CRC32C" => CRC_LEN,
        name if name.starts_with(AEAD_PREFIX) => TAG_LEN,
        _ => 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pdu(opcode: u8, flags: u8, text: &[u8]) -> Vec<u8> {
        let mut bytes = alloc::vec![0; BHS_LEN];
        bytes[0] = opcode;
        bytes[1] = flags;
        bytes[5..8].copy_from_slice(&u32::try_from(text.len()).unwrap().to_be_bytes()[1..]);
        bytes.extend_from_slice(text);
        bytes.resize(bytes.len().next_multiple_of(4), 0);
        bytes
    }

    fn login(request: &[u8], response: &[u8]) -> Iscsi {
        let mut framing = Iscsi::new();
        framing.passed(StreamDirection::Forward, &pdu(0x43, 0x87, request));
        framing.passed(StreamDirection::Backward, &pdu(0x23, 0x87, response));
        framing
    }

    #[test]
    fn digests_are_what_the_login_agreed_on() {
        for (request, response, expected) in [
            (
                "HeaderDigest=CRC32C,None\0DataDigest=None,CRC32C\0",
                "HeaderDigest=CRC32C\0DataDigest=None\0",
                (true, false),
            ),
            (
                "HeaderDigest=None\0DataDigest=CRC32C\0",
                "HeaderDigest=None\0DataDigest=CRC32C\0",
                (false, true),
            ),
            ("InitiatorName=x\0", "TargetPortalGroupTag=1\0", (false, false)),
            ("HeaderDigest=CRC32C\0", "HeaderDigest=Reject\0", (false, false)),
            (
                "HeaderDigest=Y-org.targe.aes-256-gcm,CRC32C\0DataDigest=Y-org.targe.aes-256-gcm,CRC32C\0",
                "HeaderDigest=Y-org.targe.aes-256-gcm\0DataDigest=Y-org.targe.aes-256-gcm\0",
                (true, true),
            ),
        ] {
            let framing = login(request.as_bytes(), response.as_bytes());
            assert!(framing.is_logged_in());
            assert_eq!(framing.digests(), expected, "{request:?}");
        }
    }

    #[test]
    fn an_answer_that_continues_in_the_next_pdu_is_put_together() {
        let mut framing = Iscsi::new();
        framing.passed(StreamDirection::Forward, &pdu(0x43, 0x87, b"HeaderDigest=CRC32C,None\0"));
        framing.passed(StreamDirection::Backward, &pdu(0x23, 0x44, b"HeaderDig"));
        assert!(!framing.is_logged_in());
        framing.passed(StreamDirection::Backward, &pdu(0x23, 0x87, b"est=CRC32C\0"));
        assert_eq!(framing.digests(), (true, false));
    }

    #[test]
    fn parts_lie_where_the_standard_puts_them() {
        let mut framing = Iscsi::logged_in(true, true);
        let mut bytes = pdu(0x01, 0x80, &[]);
        bytes[4] = 2;
        bytes[7] = 5;
        let shape = framing.pdu_layout(StreamDirection::Forward, &bytes).unwrap();
        assert_eq!(
            (shape.header, shape.header_digest, shape.data, shape.data_digest, shape.len),
            (0..56, 56..60, 60..68, 68..72, 72)
        );
        let mut tagged = Iscsi::sealed();
        tagged.passed(StreamDirection::Backward, &pdu(0x23, 0x87, b"HeaderDigest=None\0"));
        let shape = tagged.pdu_layout(StreamDirection::Forward, &bytes).unwrap();
        assert_eq!(
            (shape.header, shape.header_digest, shape.data, shape.data_digest, shape.len),
            (0..56, 56..72, 72..80, 80..96, 96)
        );
        let empty = framing.pdu_layout(StreamDirection::Forward, &pdu(0x01, 0x80, &[])).unwrap();
        assert_eq!((empty.len, empty.data_digest.is_empty(), empty.is_login), (52, true, false));
        assert_eq!(framing.pdu_layout(StreamDirection::Forward, &bytes[..47]), None);
    }
}
