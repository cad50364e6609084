//! The connection between two processes of a live upgrade: messages, each with descriptors.
//!
//! A message is its length in bytes and the number of its descriptors, four bytes each (big-endian), then its
//! bytes. The descriptors follow in pieces, each with one byte, since one call passes at most
//! [`DESCRIPTORS_PER_CALL`] of them.

use std::io::{self, IoSlice, IoSliceMut, Read, Write};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use rustix::cmsg_space;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage,
    SendFlags, recvmsg, sendmsg,
};
use serde::Serialize;
use serde::de::DeserializeOwned;
use zeroize::Zeroizing;

use super::document::DOCUMENT_LEN_MAX;

/// The most descriptors of one call: the kernel passes at most 253 (`SCM_MAX_FD`).
const DESCRIPTORS_PER_CALL: usize = 200;

/// The most descriptors of one message: the connections that a daemon can have, and as many portals and media
/// as it can be configured with.
const DESCRIPTORS_MAX: usize = 1 << 17;

/// How much memory is taken for a message before anything has arrived, in bytes.
const PART_LEN: usize = 1 << 20;

/// The byte that a piece of descriptors comes with.
const PIECE: u8 = b'D';

/// The most bytes of one write.
const WRITE_LEN_MAX: usize = 32 << 10;

/// One end of the connection.
#[derive(Debug)]
pub(in crate::serve) struct Channel(UnixStream);

impl Channel {
    pub(in crate::serve) const fn new(stream: UnixStream) -> Self {
        Self(stream)
    }

    /// Sends a message, with descriptors.
    ///
    /// # Errors
    /// The error of the system; the other process has ended, or it did not receive within `within`.
    pub(in crate::serve) fn send<T: Serialize>(
        &self,
        message: &T,
        descriptors: &[OwnedFd],
        within: Duration,
    ) -> io::Result<()> {
        self.send_bytes(&serde_json::to_vec(message)?, descriptors, within)
    }

    /// Sends bytes as a message, with descriptors.
    ///
    /// # Errors
    /// As [`Self::send`].
    pub(in crate::serve) fn send_bytes(
        &self,
        bytes: &[u8],
        descriptors: &[OwnedFd],
        within: Duration,
    ) -> io::Result<()> {
        let deadline = Instant::now() + within;
        let too_long = |_| io::Error::from(io::ErrorKind::InvalidInput);
        let [len, count] = [bytes.len(), descriptors.len()].map(u32::try_from);
        let head = [len.map_err(too_long)?.to_be_bytes(), count.map_err(too_long)?.to_be_bytes()].concat();
        self.write_all(&head, deadline)?;
        self.write_all(bytes, deadline)?;
        for piece in descriptors.chunks(DESCRIPTORS_PER_CALL) {
            let piece: Vec<BorrowedFd<'_>> = piece.iter().map(AsFd::as_fd).collect();
            let mut space = [MaybeUninit::uninit(); cmsg_space!(ScmRights(DESCRIPTORS_PER_CALL))];
            let mut control = SendAncillaryBuffer::new(&mut space);
            control.push(SendAncillaryMessage::ScmRights(&piece));
            self.0.set_write_timeout(Some(left_until(deadline)?))?;
            let send = || sendmsg(&self.0, &[IoSlice::new(&[PIECE])], &mut control, SendFlags::NOSIGNAL);
            rustix::io::retry_on_intr(send)?;
        }
        Ok(())
    }

    /// Receives a message and its descriptors.
    ///
    /// # Errors
    /// The error of the system; the other process has ended, or it sent nothing or nonsense within `within`.
    pub(in crate::serve) fn receive<T: DeserializeOwned>(
        &self,
        within: Duration,
    ) -> io::Result<(T, Vec<OwnedFd>)> {
        let (bytes, descriptors) = self.receive_bytes(within)?;
        Ok((serde_json::from_slice(&bytes)?, descriptors))
    }

    /// Receives a message, however long the other process takes.
    ///
    /// # Errors
    /// The error of the system; the other process has ended or closed the connection, or it sent nonsense.
    pub(in crate::serve) fn receive_without_limit<T: DeserializeOwned>(&self) -> io::Result<T> {
        let (bytes, _) = self.receive_until(None)?;
        Ok(serde_json::from_slice(&bytes)?)
    }

    /// Receives the bytes and the descriptors of a message.
    ///
    /// # Errors
    /// As [`Self::receive`].
    pub(in crate::serve) fn receive_bytes(
        &self,
        within: Duration,
    ) -> io::Result<(Zeroizing<Vec<u8>>, Vec<OwnedFd>)> {
        self.receive_until(Some(Instant::now() + within))
    }

    fn receive_until(&self, deadline: Option<Instant>) -> io::Result<(Zeroizing<Vec<u8>>, Vec<OwnedFd>)> {
        let mut head = [0; 8];
        self.read_exact(&mut head, deadline)?;
        let [a, b, c, d, e, f, g, h] = head;
        let size = |bytes| usize::try_from(u32::from_be_bytes(bytes)).unwrap_or(usize::MAX);
        let (len, count) = (size([a, b, c, d]), size([e, f, g, h]));
        if len > DOCUMENT_LEN_MAX || count > DESCRIPTORS_MAX {
            return Err(io::ErrorKind::InvalidData.into());
        }
        let mut bytes = Zeroizing::new(Vec::new());
        while bytes.len() < len {
            // The length is what the other process claims, so memory is taken for what arrives. The bytes can
            // be keys: a vector that grows by itself would leave a copy of them behind.
            let have = bytes.len();
            let next = (2 * have + PART_LEN).min(len);
            let mut longer = Zeroizing::new(Vec::with_capacity(next));
            longer.extend_from_slice(&bytes);
            longer.resize(next, 0);
            bytes = longer;
            self.read_exact(bytes.get_mut(have..).unwrap_or_default(), deadline)?;
        }
        let mut descriptors = Vec::new();
        while descriptors.len() < count {
            let wanted = (count - descriptors.len()).min(DESCRIPTORS_PER_CALL);
            let piece = self.receive_piece(deadline)?;
            if piece.len() != wanted {
                return Err(io::ErrorKind::InvalidData.into());
            }
            descriptors.extend(piece);
        }
        Ok((bytes, descriptors))
    }

    /// Waits until the other process has sent something or has ended; returns false if it did neither within
    /// `within`.
    ///
    /// # Errors
    /// The error of the system.
    pub(in crate::serve) fn is_readable(&self, within: Duration) -> io::Result<bool> {
        let mut fds = [PollFd::new(&self.0, PollFlags::IN)];
        let within = Timespec::try_from(within).ok();
        match poll(&mut fds, within.as_ref()) {
            Ok(ready) => Ok(ready > 0),
            Err(Errno::INTR) => Ok(false),
            Err(errno) => Err(errno.into()),
        }
    }

    /// Returns whether the other process has not received everything that was sent.
    ///
    /// # Errors
    /// The error of the system.
    pub(in crate::serve) fn has_unreceived(&self) -> io::Result<bool> {
        drivers::unreceived::bytes(&self.0).map(|bytes| bytes > 0)
    }

    /// Writes in pieces, since the kernel applies a timeout to each buffer that it allocates.
    fn write_all(&self, bytes: &[u8], deadline: Instant) -> io::Result<()> {
        for piece in bytes.chunks(WRITE_LEN_MAX) {
            self.0.set_write_timeout(Some(left_until(deadline)?))?;
            (&self.0).write_all(piece)?;
        }
        Ok(())
    }

    fn read_exact(&self, mut into: &mut [u8], deadline: Option<Instant>) -> io::Result<()> {
        while !into.is_empty() {
            self.wait_until(deadline)?;
            match (&self.0).read(into) {
                Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
                Ok(len) => into = into.get_mut(len..).unwrap_or_default(),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    fn receive_piece(&self, deadline: Option<Instant>) -> io::Result<Vec<OwnedFd>> {
        self.wait_until(deadline)?;
        let mut space = [MaybeUninit::uninit(); cmsg_space!(ScmRights(DESCRIPTORS_PER_CALL))];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let mut byte = [0];
        let receive = || {
            let mut into = [IoSliceMut::new(&mut byte)];
            recvmsg(&self.0, &mut into, &mut control, RecvFlags::CMSG_CLOEXEC)
        };
        let received = rustix::io::retry_on_intr(receive)?;
        if received.bytes == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        let rights = control.drain().filter_map(|message| match message {
            RecvAncillaryMessage::ScmRights(descriptors) => Some(descriptors),
            _ => None,
        });
        Ok(rights.flatten().collect())
    }

    /// Sets how long the next call may wait; `None` for no limit.
    fn wait_until(&self, deadline: Option<Instant>) -> io::Result<()> {
        self.0.set_read_timeout(deadline.map(left_until).transpose()?)
    }
}

/// Returns the time until `deadline`, which is not zero.
fn left_until(deadline: Instant) -> io::Result<Duration> {
    let left = deadline.saturating_duration_since(Instant::now());
    if left.is_zero() { Err(io::ErrorKind::TimedOut.into()) } else { Ok(left) }
}

#[cfg(test)]
mod tests {
    use std::fs::File;

    use super::*;

    const WITHIN: Duration = Duration::from_secs(60);

    fn pair() -> (Channel, Channel) {
        let (one, other) = UnixStream::pair().unwrap();
        (Channel::new(one), Channel::new(other))
    }

    #[test]
    fn messages_arrive_with_their_descriptors_in_order() {
        use std::os::unix::fs::MetadataExt;

        let (one, other) = pair();
        let counts = [0, 1, 199, 200, 201, 450];
        let path = std::env::temp_dir().join(format!("targe-channel-{}", std::process::id()));
        let sender = std::thread::spawn(move || {
            for count in counts {
                // Each descriptor can be told from the others by the offset of its file.
                let open = |at: usize| {
                    std::fs::write(path.with_extension(at.to_string()), [0]).unwrap();
                    OwnedFd::from(File::open(path.with_extension(at.to_string())).unwrap())
                };
                let descriptors: Vec<OwnedFd> = (0..count).map(open).collect();
                one.send(&vec![count; count], &descriptors, WITHIN).unwrap();
            }
            for at in 0..450 {
                std::fs::remove_file(path.with_extension(at.to_string())).unwrap();
            }
        });
        for count in counts {
            let (message, descriptors) = other.receive::<Vec<usize>>(WITHIN).unwrap();
            assert_eq!((message, descriptors.len()), (vec![count; count], count));
            let inodes: Vec<u64> =
                descriptors.into_iter().map(|fd| File::from(fd).metadata().unwrap().ino()).collect();
            let distinct: std::collections::BTreeSet<_> = inodes.iter().collect();
            assert_eq!(distinct.len(), count);
        }
        sender.join().unwrap();
    }

    #[test]
    fn a_message_that_claims_too_much_is_refused() {
        for head in [[0xff; 8], [0, 0, 0, 0, 0xff, 0, 0, 0], [0x7f, 0, 0, 0, 0, 0, 0, 0]] {
            let (one, other) = pair();
            { &one.0 }.write_all(&head).unwrap();
            assert_eq!(other.receive_bytes(WITHIN).unwrap_err().kind(), io::ErrorKind::InvalidData);
        }
    }

    #[test]
    fn descriptors_that_are_promised_and_missing_are_an_error() {
        let (one, other) = pair();
        { &one.0 }.write_all(&[0, 0, 0, 1, 0, 0, 0, 1, b'{', PIECE]).unwrap();
        assert_eq!(other.receive_bytes(WITHIN).unwrap_err().kind(), io::ErrorKind::InvalidData);
    }

    #[test]
    fn a_message_that_is_not_received_ends_at_its_deadline() {
        let (one, _other) = pair();
        // Larger than every buffer of the kernel.
        let sent = one.send_bytes(&vec![0; 16 << 20], &[], Duration::from_millis(20));
        let kind = sent.unwrap_err().kind();
        assert!(matches!(kind, io::ErrorKind::TimedOut | io::ErrorKind::WouldBlock), "{kind}");
    }

    #[test]
    fn a_process_that_ends_without_its_last_message_resets_the_connection() {
        for is_received in [false, true] {
            let (one, other) = pair();
            assert!(!one.has_unreceived().unwrap());
            one.send(&"commit", &[], WITHIN).unwrap();
            assert!(one.has_unreceived().unwrap());
            if is_received {
                let _: (String, _) = other.receive(WITHIN).unwrap();
                assert!(!one.has_unreceived().unwrap());
            }
            assert!(!one.is_readable(Duration::ZERO).unwrap());
            drop(other);
            assert!(one.is_readable(WITHIN).unwrap());
            let ended = one.receive_bytes(WITHIN).unwrap_err().kind();
            let expected =
                if is_received { io::ErrorKind::UnexpectedEof } else { io::ErrorKind::ConnectionReset };
            assert_eq!(ended, expected);
        }
    }

    #[test]
    fn a_long_message_arrives_whole() {
        let (one, other) = pair();
        let bytes: Vec<u8> = (0..5 * PART_LEN).map(|at| u8::try_from(at % 251).unwrap()).collect();
        let sent = bytes.clone();
        let sender = std::thread::spawn(move || one.send_bytes(&sent, &[], WITHIN).unwrap());
        assert!(other.receive_bytes(WITHIN).unwrap().0.to_vec() == bytes);
        sender.join().unwrap();
    }

    #[test]
    fn a_message_without_a_limit_is_awaited_until_it_comes_or_the_other_end_is_closed() {
        let (one, other) = pair();
        // A limit of an earlier message does not hold for it.
        assert!(other.receive_bytes(Duration::from_millis(1)).is_err());
        let receiver = std::thread::spawn(move || (other.receive_without_limit::<u8>().unwrap(), other));
        std::thread::sleep(Duration::from_millis(20));
        assert!(!receiver.is_finished());
        one.send(&7_u8, &[], WITHIN).unwrap();
        let (message, other) = receiver.join().unwrap();
        assert_eq!(message, 7);
        drop(one);
        let ended = other.receive_without_limit::<u8>().unwrap_err();
        assert_eq!(ended.kind(), io::ErrorKind::UnexpectedEof);
    }

    #[test]
    fn an_end_and_silence_are_told_apart() {
        let (one, other) = pair();
        let silent = other.receive_bytes(Duration::from_millis(1)).unwrap_err().kind();
        assert!(matches!(silent, io::ErrorKind::TimedOut | io::ErrorKind::WouldBlock), "{silent}");
        drop(one);
        assert_eq!(other.receive_bytes(WITHIN).unwrap_err().kind(), io::ErrorKind::UnexpectedEof);
    }
}
