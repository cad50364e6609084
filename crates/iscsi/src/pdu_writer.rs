//! From a header and its data to the bytes on the wire: additional segments, digests, padding (RFC 7143
//! §11.1). The counterpart of [`crate::framing`].
//!
//! Data is sent by reference: nobody copies it. An AEAD digest that encrypts seals a buffer in place that
//! nobody else holds. It reads others once, and writes the ciphertext into a buffer of the pool.

mod sealer;

use alloc::boxed::Box;

use base::buffer::{Bytes, Pool};
use base::transmit::Transmit;
use smallvec::SmallVec;

use self::sealer::Sealer;
use crate::aead::{Encryptor, SEGMENT_LEN_MAX};
use crate::digest::{Crc32c, DIGEST_LEN};
use crate::negotiate::{ConnectionParameters, Digest};
use crate::pdu::{BHS_LEN, Bhs};
use crate::trace::ConnectionTrace;

/// Writes the PDUs of a connection, in the order in which they are sent: an AEAD digest numbers them. Each
/// PDU is a header and, if the header announces one, a data segment.
#[derive(Debug, Default)]
pub(crate) struct PduWriter {
    digests: Digests,
    /// What seals the PDUs, if their digest is an AEAD.
    sealer: Option<Box<Sealer>>,
    /// The traces that show the PDUs, before they are sealed.
    pub(crate) trace: Option<Box<ConnectionTrace>>,
}

impl PduWriter {
    /// Returns a writer for full feature phase. Ciphertext is written into buffers of `pool`.
    pub(crate) fn new(parameters: &ConnectionParameters, encryptor: Option<Encryptor>, pool: &Pool) -> Self {
        let sealer = encryptor.map(|encryptor| Box::new(Sealer::new(encryptor, pool.clone())));
        Self { digests: Digests::of(parameters), sealer, trace: None }
    }

    /// Returns what seals the PDUs, if their digest is an AEAD.
    pub(crate) fn encryptor(&self) -> Option<&Encryptor> {
        self.sealer.as_deref().map(Sealer::encryptor)
    }

    /// Returns how long a data segment should be at most, in bytes.
    pub(crate) const fn segment_max(&self) -> usize {
        if self.sealer.is_some() { SEGMENT_LEN_MAX } else { usize::MAX }
    }

    /// Appends a header without additional header segments.
    pub(crate) fn header(&mut self, bhs: &Bhs, out: &mut Transmit) {
        match &mut self.sealer {
            None => self.digests.header(bhs, out),
            Some(sealer) => sealer.header(bhs, &[], out),
        }
        if self.trace.is_some() {
            self.trace_header(bhs, &[]);
        }
    }

    /// Appends a header with additional header segments, whose length is a multiple of four bytes.
    pub(crate) fn long_header(&mut self, bhs: &Bhs, ahs: &[u8], out: &mut Transmit) {
        match &mut self.sealer {
            None => self.digests.long_header(bhs, ahs, out),
            Some(sealer) => sealer.header(bhs, ahs, out),
        }
        if self.trace.is_some() {
            self.trace_header(bhs, ahs);
        }
    }

    /// Appends a data segment by reference, or its ciphertext. `len` is the length of all its parts, in
    /// bytes.
    pub(crate) fn shared(&mut self, len: usize, parts: impl IntoIterator<Item = Bytes>, out: &mut Transmit) {
        if self.trace.is_some() {
            let parts = self.trace_data(parts.into_iter().collect());
            return self.write_shared(len, parts, out);
        }
        self.write_shared(len, parts, out);
    }

    fn write_shared(&mut self, len: usize, parts: impl IntoIterator<Item = Bytes>, out: &mut Transmit) {
        match &mut self.sealer {
            None => self.digests.shared(len, parts, out),
            Some(sealer) => sealer.shared(len, parts.into_iter().collect(), out),
        }
    }

    /// Appends a small data segment by copying it.
    pub(crate) fn copied(&mut self, data: &[u8], out: &mut Transmit) {
        if let Some(trace) = &mut self.trace {
            trace.sent_data(&[data]);
        }
        match &mut self.sealer {
            None => self.digests.copied(data, out),
            Some(sealer) => sealer.copied(data, out),
        }
    }

    #[cold]
    fn trace_header(&mut self, bhs: &Bhs, ahs: &[u8]) {
        let digests = (self.digests.header, self.digests.data);
        if let Some(trace) = &mut self.trace {
            trace.sent_header(bhs, ahs, digests);
        }
    }

    /// Shows the traces a data segment, and returns its parts.
    #[cold]
    fn trace_data(&mut self, parts: SmallVec<[Bytes; 4]>) -> SmallVec<[Bytes; 4]> {
        if let Some(trace) = &mut self.trace {
            let shown: SmallVec<[&[u8]; 4]> = parts.iter().map(|part| &**part).collect();
            trace.sent_data(&shown);
        }
        parts
    }
}

/// Which segments carry a CRC32C.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Digests {
    header: bool,
    data: bool,
}

impl Digests {
    /// Returns the digests that were negotiated.
    fn of(parameters: &ConnectionParameters) -> Self {
        Self {
            header: parameters.header_digest == Digest::Crc32c,
            data: parameters.data_digest == Digest::Crc32c,
        }
    }

    /// Appends a header without additional header segments.
    fn header(self, bhs: &Bhs, out: &mut Transmit) {
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
    fn long_header(self, bhs: &Bhs, ahs: &[u8], out: &mut Transmit) {
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
    fn shared(self, len: usize, parts: impl IntoIterator<Item = Bytes>, out: &mut Transmit) {
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
    fn copied(self, data: &[u8], out: &mut Transmit) {
        let mut crc = Crc32c::new();
        if self.data {
            crc.update(data);
        }
        out.put(data);
        self.trailer(data.len(), crc, out);
    }

    /// Appends the padding and the digest of a data segment.
    fn trailer(self, len: usize, mut crc: Crc32c, out: &mut Transmit) {
        let padding = padding_of(len);
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

/// Returns the padding behind a data segment of this length.
fn padding_of(len: usize) -> &'static [u8] {
    static ZEROS: [u8; 3] = [0; 3];
    ZEROS.get(..len.wrapping_neg() % 4).unwrap_or_default()
}
