//! Seals PDUs with an AEAD digest (`docs/iscsi-aead.md` §6).
//!
//! The cost of a data segment, besides that of the cipher: nothing if it lies in one part that nobody else
//! holds, which is sealed in place. Otherwise in mode *encrypt* one buffer of the pool, and no copy if the
//! data lies in one or two parts; in mode *integrity* nothing, if it lies in one part. More parts are copied
//! together, because the cipher takes no more. After its segment is sealed, plaintext that nobody else holds
//! returns to the pool.

use base::buffer::{Buf, Bytes, Pool};
use base::transmit::Transmit;
use security::aead::TAG_LEN;
use smallvec::SmallVec;

use super::padding_of;
use crate::aead::{AeadMode, Encryptor};
use crate::pdu::{BHS_LEN, Bhs};

/// What seals the PDUs of a connection.
#[derive(Debug)]
pub(super) struct Sealer {
    encryptor: Encryptor,
    pool: Pool,
}

impl Sealer {
    pub(super) const fn new(encryptor: Encryptor, pool: Pool) -> Self {
        Self { encryptor, pool }
    }

    pub(super) const fn encryptor(&self) -> &Encryptor {
        &self.encryptor
    }

    /// Appends a header with additional header segments.
    pub(super) fn header(&mut self, bhs: &Bhs, ahs: &[u8], out: &mut Transmit) {
        let mut whole: SmallVec<[u8; HEADER_LEN]> = SmallVec::from_slice(bhs.bytes());
        whole.extend_from_slice(ahs);
        let Some(tag) = self.encryptor.seal_header(&mut whole) else { return impossible() };
        whole.extend_from_slice(&tag);
        out.put(&whole);
    }

    /// Appends a data segment of `len` bytes.
    pub(super) fn shared(&mut self, len: usize, mut parts: SmallVec<[Bytes; 4]>, out: &mut Transmit) {
        if len == 0 {
            return;
        }
        let padding = padding_of(len);
        let only = if parts.len() == 1 { parts.pop() } else { None };
        match only.map(Bytes::try_into_buf) {
            Some(Ok(buf)) => return self.in_place(buf, padding.len(), out).unwrap_or_else(impossible),
            Some(Err(part)) => parts.push(part),
            None => {}
        }
        let done = match (self.encryptor.digest().mode, parts.as_slice()) {
            (AeadMode::Encrypt, [part]) => self.encrypt(part, padding, out),
            (AeadMode::Encrypt, [front, rest]) if padding.is_empty() => self.encrypt_two(front, rest, out),
            (AeadMode::Integrity, [part]) if padding.is_empty() => self.authenticate(part, out),
            (_, parts) => self.gather(len, parts.iter().map(|part| &**part), out),
        };
        for part in parts {
            self.pool.recycle(part);
        }
        done.unwrap_or_else(impossible);
    }

    /// Appends a small data segment.
    pub(super) fn copied(&mut self, data: &[u8], out: &mut Transmit) {
        if !data.is_empty() {
            self.gather(data.len(), [data].into_iter(), out).unwrap_or_else(impossible);
        }
    }

    /// Seals a data segment whose buffer nobody else holds.
    fn in_place(&mut self, mut buf: Buf, padding_len: usize, out: &mut Transmit) -> Option<()> {
        (buf.append_zeros(padding_len) == padding_len).then_some(())?;
        let tag = self.encryptor.seal_data(buf.filled_mut())?;
        out.put_shared(buf.freeze());
        out.put(&tag);
        Some(())
    }

    /// Encrypts a data segment into a buffer of its own.
    fn encrypt(&mut self, data: &[u8], padding: &[u8], out: &mut Transmit) -> Option<()> {
        let mut buf = self.pool.take(data.len());
        let mut tail = [0; 3 + TAG_LEN];
        let tail = tail.get_mut(..padding.len() + TAG_LEN)?;
        let room = buf.spare_mut().get_mut(..data.len())?;
        self.encryptor.encrypt_data((data, room), (padding, tail))?;
        buf.advance(data.len());
        out.put_shared(buf.freeze());
        out.put(tail);
        Some(())
    }

    /// Encrypts a data segment that lies in two parts, each into a buffer of its own.
    fn encrypt_two(&mut self, front: &[u8], rest: &[u8], out: &mut Transmit) -> Option<()> {
        let tail_len = rest.len() + TAG_LEN;
        let (mut head, mut tail) = (self.pool.take(front.len()), self.pool.take(tail_len));
        let rooms = (head.spare_mut().get_mut(..front.len())?, tail.spare_mut().get_mut(..tail_len)?);
        self.encryptor.encrypt_data((front, rooms.0), (rest, rooms.1))?;
        head.advance(front.len());
        tail.advance(tail_len);
        out.put_shared(head.freeze());
        out.put_shared(tail.freeze());
        Some(())
    }

    /// Appends a data segment as it is, and its tag.
    fn authenticate(&mut self, data: &Bytes, out: &mut Transmit) -> Option<()> {
        let tag = self.encryptor.authenticate_data(data)?;
        out.put_shared(data.clone());
        out.put(&tag);
        Some(())
    }

    /// Copies the parts of a data segment together, and seals the copy.
    fn gather<'a>(
        &mut self,
        len: usize,
        parts: impl Iterator<Item = &'a [u8]>,
        out: &mut Transmit,
    ) -> Option<()> {
        let mut buf: Buf = self.pool.take(len.next_multiple_of(4));
        parts.for_each(|part| {
            buf.append(part);
        });
        buf.append_zeros(padding_of(len).len());
        let tag = self.encryptor.seal_data(buf.filled_mut())?;
        out.put_shared(buf.freeze());
        out.put(&tag);
        Some(())
    }
}

/// The length of most headers with their tag, in bytes.
const HEADER_LEN: usize = BHS_LEN + TAG_LEN;

/// A PDU whose segments have other lengths than its header states. It is not sent, so the peer finds no PDU
/// where it expects one, and closes the connection.
#[cold]
fn impossible() {
    debug_assert!(false, "the segments of a PDU do not fit its header");
}

#[cfg(test)]
mod tests {
    use alloc::vec::Vec;

    use security::opaque::SessionKey;

    use super::*;
    use crate::aead::AeadDigest;
    use crate::aead::login_keys::LoginKeys;
    use crate::keys::Role;
    use crate::pdu::Opcode;

    /// Returns the bytes of a PDU with this data.
    fn sealed(digest: AeadDigest, data: Bytes) -> Vec<u8> {
        let keys = LoginKeys::new(&SessionKey::new([1; 64]), &[2; 64]).connection_keys(&[3; 64]);
        let encryptor = keys.encryptor(Role::Initiator, digest, crate::aead::GenerationLimits::default());
        let mut sealer = Sealer::new(encryptor, Pool::new(1 << 20));
        let mut header = [0; BHS_LEN];
        header[0] = Opcode::DATA_OUT.0;
        let (header, mut out) = (Bhs::from_bytes(header).with_data_len(data.len()), Transmit::new());
        sealer.header(&header, &[], &mut out);
        sealer.shared(data.len(), [data].into_iter().collect(), &mut out);
        out.pieces().collect::<Vec<_>>().concat()
    }

    #[test]
    fn a_buffer_that_others_hold_is_not_changed_and_the_bytes_are_the_same() {
        let plain = |len| (0..=u8::MAX).cycle().take(len).collect::<Vec<_>>();
        for digest in AeadDigest::ALL {
            for len in [1, 3, 4, 4095, 4096, 65535, 65536] {
                let held = Bytes::copied_from(&plain(len));
                let of_held = sealed(digest, held.clone());
                assert_eq!(*held, *plain(len), "{} {len} bytes", digest.name());
                assert_eq!(of_held, sealed(digest, Bytes::copied_from(&plain(len))));
                assert_eq!(of_held, sealed(digest, held), "the last holder gives the buffer away");
            }
        }
    }
}
