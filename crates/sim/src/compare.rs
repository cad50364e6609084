//! Checks the INFORMATION field of MISCOMPARE, which must contain the offset of the first byte that differs
//! (SBC-4 §5.3).

use oracle::block_header::SECTOR;
use oracle::history::Content;

/// In a signed sector, the offset of the first byte that can differ between two signed blocks, and the offset
/// of the checksum. The bytes before the first offset are equal in all signed sectors.
const SAME_LEN: usize = 4;
const CHECKSUM_AT: usize = 56;

/// Returns the index of the first block that differs from `expected`; `None` if the sense data contain no
/// offset.
///
/// # Errors
/// The offset, if no contents that a medium can hold differ first there.
pub fn first_difference(
    sense: &[u8],
    expected: &[Content],
    block_len: usize,
) -> Result<Option<usize>, String> {
    let Some(at) = information(sense) else { return Ok(None) };
    let at = usize::try_from(at).unwrap_or(usize::MAX);
    let (block, within) = (at / block_len, at % block_len % SECTOR);
    let fits = match expected.get(block) {
        None => return Err(format!("differs at byte {at}, behind its end")),
        // Every content except zeros begins with bytes that are not zero.
        Some(Content::Zero) => within == 0,
        // The medium holds zeros, or another signed block.
        Some(Content::Signed(_)) => within == 0 || (SAME_LEN..CHECKSUM_AT).contains(&within),
    };
    if fits { Ok(Some(block)) } else { Err(format!("cannot differ first at byte {at}")) }
}

/// Returns the INFORMATION field of sense data, if it is valid (SPC-5 §4.4).
fn information(sense: &[u8]) -> Option<u64> {
    match sense.first()? & 0x7f {
        0x70 | 0x71 => {
            let valid = sense[0] & 0x80 != 0;
            valid.then(|| Some(u32::from_be_bytes(*sense.get(3..)?.first_chunk()?).into()))?
        }
        _ => {
            let mut rest = sense.get(8..)?;
            while let [kind, len, ..] = *rest {
                if kind == 0 {
                    return (rest.get(2)? & 0x80 != 0)
                        .then(|| Some(u64::from_be_bytes(*rest.get(4..)?.first_chunk()?)))?;
                }
                rest = rest.get(2 + usize::from(len)..)?;
            }
            None
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use base::units::Lba;
    use oracle::block_header::{DeviceId, Sequence, WriterId};
    use oracle::history::BlockSignature;

    fn fixed(valid: bool, at: u8) -> Vec<u8> {
        vec![if valid { 0xf0 } else { 0x70 }, 0, 0xe, 0, 0, 2, at, 10]
    }

    #[test]
    fn an_offset_is_believed_only_where_blocks_can_differ() {
        let mark =
            BlockSignature { device: DeviceId(1), lba: Lba(0), writer: WriterId(1), sequence: Sequence(1) };
        let expected = [Content::Zero, Content::Signed(mark)];
        // The offset is 512 + at.
        let judge = |at: u8| first_difference(&fixed(true, at), &expected, 512);
        assert_eq!(judge(0), Ok(Some(1)));
        assert_eq!(judge(31), Ok(Some(1)));
        assert!(judge(1).is_err() && judge(56).is_err() && judge(200).is_err());
        let zeros = [Content::Zero, Content::Zero];
        assert!(first_difference(&fixed(true, 31), &zeros, 512).is_err());
        assert_eq!(first_difference(&fixed(false, 1), &zeros, 512), Ok(None));
        assert!(first_difference(&fixed(true, 0), &expected[..1], 512).is_err());
    }

    #[test]
    fn both_formats_of_sense_data_tell_it() {
        let mut sense = vec![0x72, 0xe, 0, 0, 0, 0, 0, 12, 0, 10, 0x80, 0];
        sense.extend(515_u64.to_be_bytes());
        assert_eq!((information(&sense), information(&fixed(true, 3))), (Some(515), Some(515)));
        sense[10] = 0;
        assert_eq!(information(&sense), None);
    }
}
