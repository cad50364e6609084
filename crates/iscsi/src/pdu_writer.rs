//! From a header and its data to the bytes on the wire: additional segments, digests, padding (RFC 7143
//! §11.1). The counterpart of [`crate::framing`].

use base::buffer::Bytes;
use base::transmit::Transmit;

use crate::digest::{Crc32c, DIGEST_LEN};
use crate::negotiate::{ConnectionParameters, Digest};
use crate::pdu::{BHS_LEN, Bhs};

/// Which digests the PDUs of a connection carry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Digests {
    header: bool,
    data: bool,
}

impl Digests {
    /// The digests of the login phase: none.
    pub(crate) const NONE: Self = Self { header: false, data: false };

    /// Returns the digests that were negotiated.
    pub(crate) fn of(parameters: &ConnectionParameters) -> Self {
        Self {
            header: parameters.header_digest == Digest::Crc32c,
            data: parameters.data_digest == Digest::Crc32c,
        }
    }

    /// Appends a header without additional header segments.
    pub(crate) fn header(self, bhs: &Bhs, out: &mut Transmit) {
        let bytes = bhs.bytes();
        if self.header {
            let mut whole = [0; BHS_LEN + DIGEST_LEN];
            let (header, digest) = whole.split_at_mut(BHS_LEN);
            header.copy_from_slice(bytes);
            digest.copy_from_slice(&Crc32c::of(bytes));
            out.put(&whole);
        } else {
            out.put(bytes);
        }
    }

    /// Appends a header with additional header segments, whose length is a multiple of four bytes.
    pub(crate) fn long_header(self, bhs: &Bhs, ahs: &[u8], out: &mut Transmit) {
        out.put(bhs.bytes());
        out.put(ahs);
        if self.header {
            let mut crc = Crc32c::new();
            crc.update(bhs.bytes());
            crc.update(ahs);
            out.put(&crc.finish());
        }
    }

    /// Appends a data segment by reference. `len` is the length of all its parts, in bytes.
    pub(crate) fn shared(self, len: usize, parts: impl IntoIterator<Item = Bytes>, out: &mut Transmit) {
        let mut crc = Crc32c::new();
        for part in parts {
            if self.data {
                crc.update(&part);
            }
            out.put_shared(part);
        }
        self.trailer(len, crc, out);
    }

    /// Appends a small data segment by copying it.
    pub(crate) fn copied(self, data: &[u8], out: &mut Transmit) {
        let mut crc = Crc32c::new();
        if self.data {
            crc.update(data);
        }
        out.put(data);
        self.trailer(data.len(), crc, out);
    }

    /// Appends the padding and the digest of a data segment.
    fn trailer(self, len: usize, mut crc: Crc32c, out: &mut Transmit) {
        let zeros = [0u8; 3];
        let padding = zeros.get(..len.wrapping_neg() % 4).unwrap_or_default();
        if !self.data || len == 0 {
            return out.put(padding);
        }
        if !padding.is_empty() {
            crc.update(padding);
        }
        let mut tail = [0; 3 + DIGEST_LEN];
        let end = padding.len() + DIGEST_LEN;
        if let Some(digest) = tail.get_mut(padding.len()..end) {
            digest.copy_from_slice(&crc.finish());
        }
        out.put(tail.get(..end).unwrap_or_default());
    }
}
