//! Logging in, as little of RFC 7143 as a target that asks for no authentication wants: the operational
//! stage, each key once, then full feature phase.

use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::Duration;

use crate::Failure;

pub(crate) const BHS_LEN: usize = 48;
/// What we take in one PDU, and ask for in one burst.
const SEGMENT_LEN_MAX: usize = 1 << 20;
const BURST_LEN_MAX: usize = 1 << 20;
const FIRST_BURST_LEN_MAX: usize = 256 << 10;
/// Nobody needs more rounds to agree on one set of keys.
const LOGIN_ROUNDS_MAX: usize = 8;
/// Longest a target may take for any answer.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(30);

const LOGIN_REQUEST: u8 = 0x43;
const LOGIN_RESPONSE: u8 = 0x23;
/// Transit from operational negotiation (1) to full feature phase (3).
const TRANSIT_TO_FULL_FEATURE: u8 = 0x80 | 1 << 2 | 3;

/// A session in full feature phase, and what it agreed on.
pub(crate) struct Session {
    pub(crate) stream: TcpStream,
    pub(crate) cmd_sn: u32,
    pub(crate) max_cmd_sn: u32,
    pub(crate) exp_stat_sn: u32,
    pub(crate) digests: bool,
    /// The longest data segment the target takes.
    pub(crate) segment_len_max: usize,
    /// How much of a write may go along with its command.
    pub(crate) immediate_len_max: usize,
}

impl Session {
    /// Logs in as initiator `name` with session identifier `isid`.
    pub(crate) fn log_in(
        address: &str,
        target: &str,
        name: &str,
        isid: u32,
        digests: bool,
    ) -> Result<Self, Failure> {
        let mut stream = TcpStream::connect(address)?;
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(ANSWER_TIMEOUT))?;
        let digest = if digests { "CRC32C" } else { "None" };
        let mut text = format!(
            "InitiatorName={name}\0TargetName={target}\0SessionType=Normal\0HeaderDigest={digest}\0\
             DataDigest={digest}\0MaxRecvDataSegmentLength={SEGMENT_LEN_MAX}\0MaxBurstLength={BURST_LEN_MAX}\0\
             FirstBurstLength={FIRST_BURST_LEN_MAX}\0InitialR2T=No\0ImmediateData=Yes\0MaxOutstandingR2T=1\0\
             MaxConnections=1\0ErrorRecoveryLevel=0\0DefaultTime2Wait=2\0DefaultTime2Retain=0\0\
             DataPDUInOrder=Yes\0DataSequenceInOrder=Yes\0"
        );
        let mut agreed = BTreeMap::new();
        for _ in 0..LOGIN_ROUNDS_MAX {
            stream.write_all(&login_request(isid, text.as_bytes())?)?;
            let (header, answer) = receive_plain(&mut stream)?;
            if field(&header, 0, 1)? != u32::from(LOGIN_RESPONSE) || field(&header, 36, 2)? != 0 {
                return Err(
                    format!("the login is refused: {:02x?}", header.get(..40).unwrap_or_default()).into()
                );
            }
            agreed.extend(pairs(&answer));
            if field(&header, 1, 1)? == u32::from(TRANSIT_TO_FULL_FEATURE) {
                return Self::agreed(stream, &header, &agreed, digests);
            }
            text.clear();
        }
        Err("the login does not come to an end".into())
    }

    fn agreed(
        stream: TcpStream,
        header: &[u8],
        agreed: &BTreeMap<String, String>,
        digests: bool,
    ) -> Result<Self, Failure> {
        let value = |key: &str| agreed.get(key).map(String::as_str);
        let number =
            |key: &str, default: usize| value(key).and_then(|text| text.parse().ok()).unwrap_or(default);
        for key in ["HeaderDigest", "DataDigest"] {
            if (value(key) == Some("CRC32C")) != digests {
                return Err(format!("{key} ended as {:?}", value(key)).into());
            }
        }
        // Defaults of RFC 7143 §13 for what the target does not name.
        let segment_len_max = number("MaxRecvDataSegmentLength", 8192);
        let first_burst = number("FirstBurstLength", FIRST_BURST_LEN_MAX);
        let immediate = value("ImmediateData") != Some("No");
        Ok(Self {
            stream,
            cmd_sn: 1,
            max_cmd_sn: field(header, 32, 4)?,
            exp_stat_sn: field(header, 24, 4)?.wrapping_add(1),
            digests,
            segment_len_max,
            immediate_len_max: if immediate { first_burst.min(segment_len_max) } else { 0 },
        })
    }
}

/// A number of `len` bytes at `at`, big-endian.
pub(crate) fn field(bytes: &[u8], at: usize, len: usize) -> Result<u32, Failure> {
    let field = bytes.get(at..at.saturating_add(len)).ok_or("a header cut short")?;
    Ok(field.iter().fold(0, |number, byte| number << 8 | u32::from(*byte)))
}

/// Writes `value` big-endian into the `len` bytes at `at`.
pub(crate) fn put(bytes: &mut [u8], at: usize, len: usize, value: u32) {
    let wire = value.to_be_bytes();
    if let Some(field) = bytes.get_mut(at..at.saturating_add(len)) {
        field.copy_from_slice(wire.get(4_usize.saturating_sub(len)..).unwrap_or_default());
    }
}

pub(crate) fn padding(len: usize) -> usize {
    len.wrapping_neg() & 3
}

/// A number as a field of four bytes holds it.
pub(crate) fn word(number: usize) -> Result<u32, Failure> {
    Ok(u32::try_from(number)?)
}

fn login_request(isid: u32, text: &[u8]) -> Result<Vec<u8>, Failure> {
    let mut pdu = vec![0_u8; BHS_LEN];
    put(&mut pdu, 0, 1, u32::from(LOGIN_REQUEST));
    put(&mut pdu, 1, 1, u32::from(TRANSIT_TO_FULL_FEATURE));
    put(&mut pdu, 5, 3, word(text.len())?);
    // ISID: a random-format qualifier (type 2), ours below it.
    put(&mut pdu, 8, 1, 0x80);
    put(&mut pdu, 10, 4, isid);
    put(&mut pdu, 24, 4, 1);
    pdu.extend_from_slice(text);
    pdu.resize(BHS_LEN.saturating_add(text.len()).saturating_add(padding(text.len())), 0);
    Ok(pdu)
}

/// One PDU without digests, as in the login phase.
fn receive_plain(stream: &mut TcpStream) -> Result<(Vec<u8>, Vec<u8>), Failure> {
    let mut header = vec![0_u8; BHS_LEN];
    stream.read_exact(&mut header)?;
    let len = usize::try_from(field(&header, 5, 3)?)?;
    let mut data = vec![0_u8; len.saturating_add(padding(len))];
    stream.read_exact(&mut data)?;
    data.truncate(len);
    Ok((header, data))
}

fn pairs(text: &[u8]) -> Vec<(String, String)> {
    let text = String::from_utf8_lossy(text).into_owned();
    let pairs = text.split('\0').filter_map(|pair| pair.split_once('='));
    pairs.map(|(key, value)| (key.to_owned(), value.to_owned())).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn puts_and_reads_fields_of_every_width() {
        let mut bytes = [0xa5_u8; 8];
        put(&mut bytes, 1, 3, 0x0001_0203);
        put(&mut bytes, 4, 4, 0xdead_beef);
        assert_eq!(bytes, [0xa5, 1, 2, 3, 0xde, 0xad, 0xbe, 0xef]);
        assert_eq!(field(&bytes, 1, 3).unwrap(), 0x0001_0203);
        assert!(field(&bytes, 6, 4).is_err());
        assert_eq!([0, 1, 2, 3, 4].map(padding), [0, 3, 2, 1, 0]);
    }

    #[test]
    fn pads_a_login_request_to_whole_words() {
        let pdu = login_request(7, b"A=b\0c").unwrap();
        assert_eq!(pdu.len(), BHS_LEN + 8);
        assert_eq!(field(&pdu, 5, 3).unwrap(), 5);
        assert_eq!(pairs(b"A=b\0C=d=e\0"), [("A".into(), "b".into()), ("C".into(), "d=e".into())]);
    }
}
