//! A stream of AEAD records over a socket: what protection of this kind costs without a storage protocol.
//!
//! A record is the length of its content in 4 bytes, the tag, and the content. Both ends derive their keys
//! from one secret; a real protocol would agree on it.

use std::io::{self, Read, Write};

use aws_lc_rs::rand::{SecureRandom as _, SystemRandom};
use security::Level;
use security::aead::{Algorithm, Cipher, TAG_LEN};
use security::key_schedule::Secret;

/// The longest content of a record, in bytes: that of a data segment with an AEAD digest.
const CONTENT_MAX: usize = 64 << 10;

/// The bytes of a record before its content.
const HEADER_LEN: usize = LENGTH_LEN + TAG_LEN;
const LENGTH_LEN: usize = 4;

/// One end of a stream.
#[derive(Debug)]
pub(super) struct RecordStream<S> {
    socket: S,
    level: Level,
    sealing: Direction,
    opening: Direction,
    /// A record that is sent.
    record: Vec<u8>,
    /// The content of the last record that was received, and how much of it was read.
    content: Vec<u8>,
    read: usize,
}

#[derive(Debug)]
struct Direction {
    cipher: Cipher,
    number: u64,
}

impl<S> RecordStream<S> {
    /// Protects both ends of a connection at this level.
    ///
    /// # Errors
    /// The system has no random bytes.
    pub(super) fn pair(client: S, server: S, level: Level) -> io::Result<(Self, Self)> {
        let mut input = [0; 32];
        SystemRandom::new().fill(&mut input).map_err(|_| io::Error::other("no random bytes"))?;
        let secret = Secret::extract("targe lab ", &[], &input);
        let direction = |name: &str| {
            let secret = secret.expand(name);
            Direction { cipher: Cipher::derive(Algorithm::Aes256Gcm, &secret, "key", "iv"), number: 0 }
        };
        let end = |socket, seals: &str, opens: &str| Self {
            socket,
            level,
            sealing: direction(seals),
            opening: direction(opens),
            record: Vec::new(),
            content: Vec::new(),
            read: 0,
        };
        Ok((end(client, "client", "server"), end(server, "server", "client")))
    }
}

impl Direction {
    fn next(&mut self) -> u64 {
        self.number += 1;
        self.number
    }
}

impl<S: Write> Write for RecordStream<S> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let content = bytes.get(..CONTENT_MAX).unwrap_or(bytes);
        let length = u32::try_from(content.len()).unwrap_or(u32::MAX).to_be_bytes();
        self.record.clear();
        self.record.extend_from_slice(&length);
        self.record.extend_from_slice(&[0; TAG_LEN]);
        self.record.extend_from_slice(content);
        let (header, sealed) = self.record.split_at_mut(HEADER_LEN);
        let number = self.sealing.next();
        let tag = match self.level {
            Level::Encrypt => self.sealing.cipher.seal(number, &length, sealed),
            Level::Integrity | Level::None => self.sealing.cipher.seal(number, sealed, &mut []),
        };
        let tag = tag.ok_or_else(|| io::Error::other("a record is too long"))?;
        if let Some(place) = header.get_mut(LENGTH_LEN..) {
            place.copy_from_slice(&tag);
        }
        self.socket.write_all(&self.record)?;
        Ok(content.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.socket.flush()
    }
}

impl<S: Read> Read for RecordStream<S> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        if self.read >= self.content.len() {
            self.receive()?;
        }
        let mut left = self.content.get(self.read..).unwrap_or_default();
        let len = left.read(buffer)?;
        self.read += len;
        Ok(len)
    }
}

impl<S: Read> RecordStream<S> {
    /// Receives the next record and opens it.
    fn receive(&mut self) -> io::Result<()> {
        let mut header = [0; HEADER_LEN];
        self.socket.read_exact(&mut header)?;
        let (length, tag) = header.split_at(LENGTH_LEN);
        let len = length.try_into().map_or(0, u32::from_be_bytes);
        let len = usize::try_from(len).unwrap_or(usize::MAX);
        if len > CONTENT_MAX {
            return Err(io::ErrorKind::InvalidData.into());
        }
        self.content.resize(len, 0);
        self.read = 0;
        self.socket.read_exact(&mut self.content)?;
        let number = self.opening.next();
        let opened = match self.level {
            Level::Encrypt => self.opening.cipher.open(number, length, tag, &mut self.content),
            Level::Integrity | Level::None => self.opening.cipher.open(number, &self.content, tag, &mut []),
        };
        opened.ok_or_else(|| io::ErrorKind::InvalidData.into())
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixStream;

    use super::*;

    #[test]
    fn both_levels_carry_bytes_and_only_one_hides_them() {
        for (level, is_readable) in [(Level::Encrypt, false), (Level::Integrity, true)] {
            let (a, b) = UnixStream::pair().unwrap();
            let watched = b.try_clone().unwrap();
            let (mut client, mut server) = RecordStream::pair(a, b, level).unwrap();
            let content = [0x5a; 1000];
            client.write_all(&content).unwrap();
            let mut found = [0; 1000];
            server.read_exact(&mut found).unwrap();
            assert_eq!(found, content);
            client.write_all(&content).unwrap();
            let mut wire = [0; HEADER_LEN + 1000];
            (&watched).read_exact(&mut wire).unwrap();
            assert_eq!(wire[HEADER_LEN..] == content, is_readable);
        }
    }

    #[test]
    fn a_record_that_was_changed_is_refused() {
        for level in [Level::Encrypt, Level::Integrity] {
            let (a, mut wire) = UnixStream::pair().unwrap();
            let (mut far, b) = UnixStream::pair().unwrap();
            let (mut client, mut server) = RecordStream::pair(a, b, level).unwrap();
            client.write_all(b"content").unwrap();
            let mut record = [0; HEADER_LEN + 7];
            wire.read_exact(&mut record).unwrap();
            record[HEADER_LEN] ^= 1;
            far.write_all(&record).unwrap();
            assert_eq!(server.read(&mut [0; 7]).unwrap_err().kind(), io::ErrorKind::InvalidData);
        }
    }
}
