//! Requests to the kernel's routing subsystem over rtnetlink (RFC 3549): interfaces, addresses, routes and
//! queueing disciplines.
//!
//! A socket acts on the network namespace in which it was created, whichever thread uses it.

use std::io;
use std::os::fd::OwnedFd;

use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType};

/// The kind of a message that acknowledges another or carries an error.
const NLMSG_ERROR: u16 = 2;

/// The flags of every request: it is one, and the kernel acknowledges it.
const NLM_F_REQUEST_ACK: u16 = 1 | 4;

/// The flag of an attribute that contains attributes.
const NLA_F_NESTED: u16 = 0x8000;

/// The header of a message, in bytes.
const HEADER_LEN: usize = 16;

/// The longest answer that is read, in bytes: an acknowledgement repeats the request.
const ANSWER_LEN_MAX: usize = 8192;

/// A route socket.
#[derive(Debug)]
pub(super) struct RouteSocket {
    fd: OwnedFd,
}

impl RouteSocket {
    /// Opens a socket in the calling thread's network namespace.
    pub(super) fn open() -> io::Result<Self> {
        // NETLINK_ROUTE is protocol 0, the default.
        let (family, kind) = (AddressFamily::NETLINK, SocketType::RAW);
        let fd = rustix::net::socket_with(family, kind, SocketFlags::CLOEXEC, None)?;
        Ok(Self { fd })
    }

    /// Opens a socket for generic netlink in the calling thread's network namespace.
    pub(super) fn open_generic() -> io::Result<Self> {
        let (family, kind) = (AddressFamily::NETLINK, SocketType::RAW);
        let protocol = Some(rustix::net::netlink::GENERIC);
        Ok(Self { fd: rustix::net::socket_with(family, kind, SocketFlags::CLOEXEC, protocol)? })
    }

    /// Sends a request and returns the first message that answers it, with its header.
    ///
    /// # Errors
    /// The kernel's error, or [`io::ErrorKind::InvalidData`] if it acknowledges the request without an
    /// answer.
    pub(super) fn query(&self, request: Request) -> io::Result<Vec<u8>> {
        rustix::net::send(&self.fd, &request.into_bytes(), SendFlags::empty())?;
        let mut answer = vec![0; ANSWER_LEN_MAX];
        let (_, len) = rustix::net::recv(&self.fd, answer.as_mut_slice(), RecvFlags::TRUNC)?;
        answer.truncate(len);
        match error_code(&answer) {
            None => Ok(answer),
            Some(0) => Err(io::ErrorKind::InvalidData.into()),
            Some(code) => Err(io::Error::from_raw_os_error(-code)),
        }
    }

    /// Sends a request and waits until the kernel has carried it out.
    ///
    /// # Errors
    /// The kernel's error.
    pub(super) fn request(&self, request: Request) -> io::Result<()> {
        rustix::net::send(&self.fd, &request.into_bytes(), SendFlags::empty())?;
        let mut answer = [0; ANSWER_LEN_MAX];
        loop {
            let (_, len) = rustix::net::recv(&self.fd, &mut answer, RecvFlags::TRUNC)?;
            if let Some(code) = error_code(answer.get(..len).unwrap_or(&answer)) {
                return if code == 0 { Ok(()) } else { Err(io::Error::from_raw_os_error(-code)) };
            }
        }
    }
}

/// Returns the code of an acknowledgement: zero, or a negative error number.
fn error_code(answer: &[u8]) -> Option<i32> {
    let kind = u16::from_ne_bytes(*answer.get(4..)?.first_chunk()?);
    let code = i32::from_ne_bytes(*answer.get(HEADER_LEN..)?.first_chunk()?);
    (kind == NLMSG_ERROR).then_some(code)
}

/// A request under construction.
#[derive(Debug)]
pub(super) struct Request {
    bytes: Vec<u8>,
}

impl Request {
    /// Starts a request of a kind (`RTM_NEWLINK`) with flags (`NLM_F_CREATE`) and the fixed header of its
    /// kind.
    pub(super) fn new(kind: u16, flags: u16, header: &[u8]) -> Self {
        let mut bytes = vec![0; HEADER_LEN];
        put(&mut bytes, 4, &kind.to_ne_bytes());
        put(&mut bytes, 6, &(flags | NLM_F_REQUEST_ACK).to_ne_bytes());
        bytes.extend_from_slice(header);
        Self { bytes }
    }

    /// Adds an attribute.
    pub(super) fn attribute(mut self, kind: u16, value: &[u8]) -> Self {
        self.put_attribute(kind, value);
        self
    }

    /// Adds an attribute with a number.
    pub(super) fn number(self, kind: u16, value: u32) -> Self {
        self.attribute(kind, &value.to_ne_bytes())
    }

    /// Adds an attribute with a text that ends with a zero byte.
    pub(super) fn text(self, kind: u16, value: &str) -> Self {
        let mut bytes = value.as_bytes().to_vec();
        bytes.push(0);
        self.attribute(kind, &bytes)
    }

    /// Adds an attribute that begins with `header` and goes on with the attributes that `fill` adds.
    pub(super) fn nested(mut self, kind: u16, header: &[u8], fill: impl FnOnce(Self) -> Self) -> Self {
        let start = self.bytes.len();
        self.put_attribute(kind | NLA_F_NESTED, header);
        let mut filled = fill(self);
        let len = u16::try_from(filled.bytes.len() - start).unwrap_or(u16::MAX);
        put(&mut filled.bytes, start, &len.to_ne_bytes());
        filled
    }

    fn put_attribute(&mut self, kind: u16, value: &[u8]) {
        let len = u16::try_from(value.len() + 4).unwrap_or(u16::MAX);
        self.bytes.extend_from_slice(&len.to_ne_bytes());
        self.bytes.extend_from_slice(&kind.to_ne_bytes());
        self.bytes.extend_from_slice(value);
        self.bytes.resize(self.bytes.len().next_multiple_of(4), 0);
    }

    fn into_bytes(mut self) -> Vec<u8> {
        let len = u32::try_from(self.bytes.len()).unwrap_or(u32::MAX);
        put(&mut self.bytes, 0, &len.to_ne_bytes());
        self.bytes
    }
}

/// Overwrites bytes from `at` on.
fn put(bytes: &mut [u8], at: usize, value: &[u8]) {
    if let Some(place) = bytes.get_mut(at..at + value.len()) {
        place.copy_from_slice(value);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn attributes_are_padded_and_nested_ones_cover_their_content() {
        let request = Request::new(16, 0x400, &[9; 16])
            .text(3, "eth0")
            .nested(18, &[], |info| info.text(1, "veth").number(2, 7));
        let bytes = request.into_bytes();
        assert_eq!(bytes[..8], [68, 0, 0, 0, 16, 0, 5, 4]);
        assert_eq!(bytes[32..44], [9, 0, 3, 0, b'e', b't', b'h', b'0', 0, 0, 0, 0]);
        assert_eq!(bytes[44..48], [24, 0, 18, 0x80]);
        assert_eq!((bytes.len(), &bytes[60..]), (68, &[8, 0, 2, 0, 7, 0, 0, 0][..]));
    }

    #[test]
    fn the_kernel_answers_with_its_error() {
        let socket = RouteSocket::open().unwrap();
        // RTM_NEWLINK for an interface that does not exist.
        let header = [&[0; 4][..], &i32::MAX.to_ne_bytes(), &[0; 8]].concat();
        let error = socket.request(Request::new(16, 0, &header)).unwrap_err();
        assert!(
            [Some(19), Some(1)].contains(&error.raw_os_error()),
            "{error}: neither ENODEV nor, without rights, EPERM"
        );
    }
}
