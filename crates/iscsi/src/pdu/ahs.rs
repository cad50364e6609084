//! Additional header segments (RFC 7143 §11.2.2). Only a SCSI Command has any: the rest of a long CDB, and
//! the length of the read of a bidirectional command.

use alloc::vec::Vec;

use base::bytes::Reader;
use transport::command::{CDB_MAX, Cdb};

use super::Malformed;

/// The greatest total length of additional header segments: TotalAHSLength counts 4-byte words in one byte.
pub const MAX_AHS: usize = 255 * 4;

/// The number of CDB bytes in the basic header.
const BHS_CDB: usize = 16;

const EXTENDED_CDB: u8 = 1;
const BIDIRECTIONAL_READ: u8 = 2;

/// The contents of the additional header segments of a SCSI Command.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Ahs<'a> {
    /// The bytes of the CDB behind the first 16, without padding.
    pub extended_cdb: Option<&'a [u8]>,
    /// How many bytes the initiator expects to receive from a bidirectional command.
    pub bidirectional_read_length: Option<u32>,
}

impl<'a> Ahs<'a> {
    /// Parses all additional header segments of a PDU. A segment of unknown type is ignored.
    ///
    /// # Errors
    /// [`Malformed::BadAhs`] when a segment extends past the end, occurs twice, or has an impossible length.
    pub fn parse(bytes: &'a [u8]) -> Result<Self, Malformed> {
        let mut ahs = Self::default();
        let mut reader = Reader::new(bytes);
        while !reader.is_empty() {
            ahs.parse_one(&mut reader)?;
        }
        Ok(ahs)
    }

    fn parse_one(&mut self, reader: &mut Reader<'a>) -> Result<(), Malformed> {
        let len = usize::from(reader.u16().map_err(|_| Malformed::BadAhs)?);
        let kind = reader.u8().map_err(|_| Malformed::BadAhs)?;
        let specific = reader.take(len).map_err(|_| Malformed::BadAhs)?;
        // AHSLength counts neither itself nor the type nor the padding to four bytes.
        let padding = (3 + len).next_multiple_of(4) - (3 + len);
        reader.take(padding).map_err(|_| Malformed::BadAhs)?;
        match kind {
            EXTENDED_CDB => {
                let cdb = specific.get(1..).filter(|cdb| !cdb.is_empty() && cdb.len() <= CDB_MAX - BHS_CDB);
                let cdb = cdb.ok_or(Malformed::BadAhs)?;
                self.extended_cdb.replace(cdb).map_or(Ok(()), |_| Err(Malformed::BadAhs))
            }
            BIDIRECTIONAL_READ => {
                let [_, a, b, c, d] = specific else { return Err(Malformed::BadAhs) };
                let read_len = u32::from_be_bytes([*a, *b, *c, *d]);
                self.bidirectional_read_length.replace(read_len).map_or(Ok(()), |_| Err(Malformed::BadAhs))
            }
            _ => Ok(()),
        }
    }

    /// Returns the whole CDB, whose first 16 bytes are `head`. iSCSI does not state the length of a CDB of up
    /// to 16 bytes: the operation code determines it, and the SCSI layer interprets that.
    pub fn join_cdb(&self, head: [u8; BHS_CDB]) -> Cdb {
        let whole = self.extended_cdb.and_then(|rest| Cdb::new(&[&head, rest].concat()));
        whole.unwrap_or_else(|| Cdb::from_16(head))
    }

    /// Returns the segments as bytes; their length is a multiple of four.
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut out = Vec::new();
        if let Some(cdb) = self.extended_cdb {
            put(&mut out, EXTENDED_CDB, cdb);
        }
        if let Some(len) = self.bidirectional_read_length {
            put(&mut out, BIDIRECTIONAL_READ, &len.to_be_bytes());
        }
        out
    }
}

fn put(out: &mut Vec<u8>, kind: u8, body: &[u8]) {
    let len = u16::try_from(body.len() + 1).unwrap_or(u16::MAX);
    out.extend_from_slice(&len.to_be_bytes());
    out.extend_from_slice(&[kind, 0]);
    out.extend_from_slice(body);
    out.resize(out.len().next_multiple_of(4), 0);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn segments_round_trip() {
        for (extended_cdb, bidirectional_read_length) in [
            (None, None),
            (Some(&[7u8; 16][..]), None),
            (Some(&[9; 17][..]), Some(512)),
            (None, Some(u32::MAX)),
        ] {
            let ahs = Ahs { extended_cdb, bidirectional_read_length };
            let bytes = ahs.to_bytes();
            assert_eq!(bytes.len() % 4, 0);
            assert_eq!(Ahs::parse(&bytes), Ok(ahs));
            let cdb = [&[3; 16], extended_cdb.unwrap_or_default()].concat();
            assert_eq!(*ahs.join_cdb([3; 16]), cdb);
        }
    }

    #[test]
    fn an_extended_cdb_looks_as_the_standard_draws_it() {
        let ahs = Ahs { extended_cdb: Some(&[0xaa, 0xbb]), bidirectional_read_length: Some(0x0102_0304) };
        assert_eq!(ahs.to_bytes(), [0, 3, 1, 0, 0xaa, 0xbb, 0, 0, 0, 5, 2, 0, 1, 2, 3, 4]);
    }

    #[test]
    fn unknown_segments_are_passed_over_and_impossible_ones_refused() {
        let cases = [
            (&[0, 1, 9, 0, 0, 5, 2, 0, 0, 0, 0, 7][..], Ok(Some(7))),
            (&[0, 5, 2, 0, 0, 0, 0], Err(Malformed::BadAhs)),
            (&[0, 4, 2, 0, 0, 0, 0, 0], Err(Malformed::BadAhs)),
            (&[0, 5, 2, 0, 0, 0, 0, 7, 0, 5, 2, 0, 0, 0, 0, 7], Err(Malformed::BadAhs)),
            (&[0, 1, 1, 0], Err(Malformed::BadAhs)),
            (&[0, 0, 1, 0], Err(Malformed::BadAhs)),
            (&[0xff, 0xff, 9, 0], Err(Malformed::BadAhs)),
            (&[0], Err(Malformed::BadAhs)),
        ];
        for (bytes, expected) in cases {
            assert_eq!(Ahs::parse(bytes).map(|ahs| ahs.bidirectional_read_length), expected, "{bytes:x?}");
        }
        let mut long = Vec::from([1, 0, 1, 0]);
        long.resize(4 + 256, 0);
        assert_eq!(Ahs::parse(&long), Err(Malformed::BadAhs));
    }
}
