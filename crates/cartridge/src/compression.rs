//! Compression of records: one zstd frame for each. A device server that encrypts compresses before that.

use alloc::vec::Vec;

use base::buffer::{Buf, Bytes, DataList};

/// The level of zstd that keeps up with a fast disk.
const LEVEL: i32 = 1;

/// Returns the data compressed, or nothing if that is not shorter.
pub fn compress(data: &DataList) -> Option<Bytes> {
    let mut copy = Vec::new();
    let plain = match data.parts() {
        [one] => &**one,
        parts => {
            parts.iter().for_each(|part| copy.extend_from_slice(part));
            &copy
        }
    };
    let mut buf = Buf::with_capacity(plain.len());
    // Compression fails when the result does not fit, and then it is of no use.
    let room = buf.spare_mut().get_mut(..plain.len().checked_sub(1)?)?;
    let len = zstd_safe::compress(room, plain, LEVEL).ok()?;
    buf.advance(len);
    Some(buf.freeze())
}

/// Returns data that have `len` bytes without compression, or nothing if these bytes are no such frame.
pub fn decompress(stored: &DataList, len: usize) -> Option<Bytes> {
    let mut copy = Vec::new();
    let frame = match stored.parts() {
        [one] => &**one,
        parts => {
            parts.iter().for_each(|part| copy.extend_from_slice(part));
            &copy
        }
    };
    let mut buf = Buf::with_capacity(len);
    let room = buf.spare_mut().get_mut(..len)?;
    let found = zstd_safe::decompress(room, frame).ok()?;
    buf.advance(found);
    (found == len).then(|| buf.freeze())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_shorter_frames_count_and_they_read_back() {
        let list = |bytes: &[u8]| DataList::from(Bytes::copied_from(bytes));
        let plain = [b'x'; 5000];
        let frame = compress(&list(&plain)).unwrap();
        assert!(frame.len() < 100);
        let mut parts = list(&frame[..5]);
        parts.push(frame.slice(5, frame.len()));
        assert_eq!(&*decompress(&parts, 5000).unwrap(), &plain);
        assert!(decompress(&parts, 4999).is_none() && decompress(&parts, 5001).is_none());
        assert!(decompress(&list(b"no frame"), 5).is_none());
        assert!(compress(&list(&[1])).is_none() && compress(&list(b"short")).is_none());
    }
}
