//! Reads the target's name from the first bytes of a connection, so that the router can pass the connection
//! to the reactor that owns the target.

use iscsi::name::IscsiName;
use iscsi::pdu::{BHS_LEN, Bhs, Opcode};
use iscsi::text;

/// The longest first PDU that the router waits for: a header and the 8192 bytes of text that a login request
/// may have before any length was negotiated (RFC 7143 §13.12).
pub(super) const FIRST_PDU_LEN_MAX: usize = BHS_LEN + 8192;

/// The result of reading the first bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum LoginPeek {
    /// More bytes are needed.
    Incomplete,
    /// A login to this target.
    Target(IscsiName),
    /// Anything else: a discovery session, an invalid name, or no login request at all. The reactor that gets
    /// the connection answers with the error.
    Other,
}

/// Reads the first bytes of a connection.
pub(super) fn read(bytes: &[u8]) -> LoginPeek {
    let Some((header, rest)) = bytes.split_first_chunk::<BHS_LEN>() else { return LoginPeek::Incomplete };
    let header = Bhs::from_bytes(*header);
    if header.opcode() != Opcode::LOGIN_REQUEST {
        return LoginPeek::Other;
    }
    let length = usize::try_from(header.data_len()).unwrap_or(usize::MAX);
    let (from, to) = (header.ahs_len(), header.ahs_len().saturating_add(length));
    if BHS_LEN.saturating_add(to) > FIRST_PDU_LEN_MAX {
        return LoginPeek::Other;
    }
    let Some(data) = rest.get(from..to) else { return LoginPeek::Incomplete };
    // Text that continues in the next PDU may end within a pair. RFC 7143 §6.3 requires the names first, so
    // the complete pairs suffice.
    let whole = data.iter().rposition(|byte| *byte == 0).map_or(0, |last| last + 1);
    let pairs = text::parse(data.get(..whole).unwrap_or_default()).unwrap_or_default();
    let name = pairs.iter().find(|pair| pair.name == "TargetName");
    match name.map(|pair| IscsiName::parse(pair.value)) {
        Some(Ok(name)) => LoginPeek::Target(name),
        _ => LoginPeek::Other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn login(text: &[u8]) -> Vec<u8> {
        let mut header = [0; BHS_LEN];
        header[0] = 0x43;
        let mut bytes = Bhs::from_bytes(header).with_data_len(text.len()).to_bytes().to_vec();
        bytes.extend_from_slice(text);
        bytes.resize(bytes.len().next_multiple_of(4), 0);
        bytes
    }

    fn target(name: &str) -> LoginPeek {
        LoginPeek::Target(name.parse().unwrap())
    }

    #[test]
    fn finds_the_name_wherever_it_stands() {
        let text = b"InitiatorName=iqn.1994-05.com.redhat:a\0SessionType=Normal\0TargetName=IQN.2001-04.com.example:A\0";
        assert_eq!(read(&login(text)), target("iqn.2001-04.com.example:a"));
        let cut =
            b"InitiatorName=iqn.1994-05.com.redhat:a\0TargetName=iqn.2001-04.com.example:a\0AuthMethod=CH";
        assert_eq!(read(&login(cut)), target("iqn.2001-04.com.example:a"));
    }

    #[test]
    fn waits_for_the_whole_pdu() {
        let bytes = login(b"TargetName=iqn.2001-04.com.example:a\0");
        for len in 0..BHS_LEN + 37 {
            assert_eq!(read(&bytes[..len]), LoginPeek::Incomplete, "{len}");
        }
        assert_eq!(read(&bytes[..BHS_LEN + 37]), target("iqn.2001-04.com.example:a"));
    }

    #[test]
    fn leaves_everything_else_to_whoever_answers_it() {
        let mut nop = login(b"TargetName=iqn.2001-04.com.example:a\0");
        nop[0] = 0x40;
        let mut long = login(b"");
        long[5..8].copy_from_slice(&[0xff; 3]);
        let mut ahs = login(b"");
        ahs[4] = 0xff;
        for bytes in [
            login(b"InitiatorName=iqn.1994-05.com.redhat:a\0SessionType=Discovery\0"),
            login(b"TargetName=../../etc\0"),
            login(b"TargetName\0\0\0=\0"),
            login(b""),
            nop,
            long,
            b"GET / HTTP/1.1\r\nHost: san.example.net\r\nUser-Agent: none\r\n\r\n".to_vec(),
        ] {
            assert_eq!(read(&bytes), LoginPeek::Other);
        }
        assert_eq!(read(&ahs), LoginPeek::Incomplete);
    }
}
