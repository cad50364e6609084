//! PDUs and attributes, RFC 4171 §5 and §6.

use alloc::string::String;
use alloc::vec::Vec;
use core::net::IpAddr;

use base::bytes::{Reader, UnexpectedEof};

/// The length of the header of a PDU.
pub const HEADER_LEN: usize = 12;

/// The version of the protocol, the only one.
const VERSION: u16 = 1;

/// The most bytes of payload that a PDU is accepted with. A response has the attributes of its request, and
/// no request of ours is longer than [`crate::registration::PAYLOAD_LEN_MAX`].
pub const PAYLOAD_LEN_MAX: usize = 64 << 10;

/// The flags of §5.1.4.
mod flag {
    pub(super) const CLIENT: u16 = 0x8000;
    pub(super) const AUTHENTICATED: u16 = 0x2000;
    pub(super) const REPLACE: u16 = 0x1000;
    pub(super) const LAST: u16 = 0x0800;
    pub(super) const FIRST: u16 = 0x0400;
}

/// The functions of §4.1.3 that a target needs. The response to a request has the high bit set.
pub mod function {
    /// Device Attribute Registration.
    pub const REGISTER: u16 = 0x0001;
    /// Device Attribute Query.
    pub const QUERY: u16 = 0x0002;
    /// Device Deregistration.
    pub const DEREGISTER: u16 = 0x0004;
    /// State Change Notification Registration.
    pub const REGISTER_FOR_CHANGES: u16 = 0x0005;
    /// State Change Notification.
    pub const CHANGE: u16 = 0x0008;
    /// Entity Status Inquiry.
    pub const INQUIRY: u16 = 0x000d;
    /// The bit that makes the function of a request that of its response.
    pub const RESPONSE: u16 = 0x8000;
}

/// The tags of attributes, §6.1.
pub mod tag {
    /// Separates the message key from the operating attributes.
    pub const DELIMITER: u32 = 0;
    /// Entity Identifier (EID).
    pub const ENTITY: u32 = 1;
    /// Entity Protocol.
    pub const ENTITY_PROTOCOL: u32 = 2;
    /// Timestamp.
    pub const TIMESTAMP: u32 = 4;
    /// Registration Period, in seconds.
    pub const REGISTRATION_PERIOD: u32 = 6;
    /// Portal IP Address.
    pub const PORTAL_ADDRESS: u32 = 16;
    /// Portal TCP/UDP Port.
    pub const PORTAL_PORT: u32 = 17;
    /// ESI Interval, in seconds.
    pub const INQUIRY_INTERVAL: u32 = 19;
    /// ESI Port.
    pub const INQUIRY_PORT: u32 = 20;
    /// SCN Port.
    pub const CHANGE_PORT: u32 = 23;
    /// iSCSI Name.
    pub const NODE: u32 = 32;
    /// iSCSI Node Type.
    pub const NODE_TYPE: u32 = 33;
    /// iSCSI Alias.
    pub const ALIAS: u32 = 34;
    /// iSCSI SCN Bitmap.
    pub const CHANGE_BITMAP: u32 = 35;
    /// Portal Group iSCSI Name.
    pub const GROUP_NODE: u32 = 48;
    /// Portal Group Portal IP Address.
    pub const GROUP_ADDRESS: u32 = 49;
    /// Portal Group Portal TCP/UDP Port.
    pub const GROUP_PORT: u32 = 50;
    /// Portal Group Tag.
    pub const GROUP_TAG: u32 = 51;
}

/// Bytes that are no message that we accept.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum MessageError {
    /// Another version of the protocol.
    #[error("a message has version {0}, not 1")]
    Version(u16),
    /// The length is no multiple of 4, or too long.
    #[error("a message has a payload of {0} bytes")]
    Length(usize),
    /// One message in several PDUs. No response to a request of ours needs that.
    #[error("a message is split into several PDUs")]
    Split,
    /// A message with an authentication block, which we do not ask for.
    #[error("a message is authenticated, which targe does not support")]
    Authenticated,
    /// An attribute goes past the end of the message, or its length is no multiple of 4.
    #[error("an attribute has a wrong length")]
    Attribute,
}

impl From<UnexpectedEof> for MessageError {
    fn from(_: UnexpectedEof) -> Self {
        Self::Attribute
    }
}

/// A received message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Message {
    /// The function of the message.
    pub function: u16,
    /// Chosen by the sender of a request, repeated by its response.
    pub transaction: u16,
    /// Attributes; in a response, behind a status code.
    pub payload: Vec<u8>,
}

impl Message {
    /// Takes the first message from received bytes, and returns `None` while it is not complete.
    ///
    /// # Errors
    /// [`MessageError`]; the rest of the bytes makes no sense then.
    pub fn take(bytes: &mut Vec<u8>) -> Result<Option<Self>, MessageError> {
        let mut reader = Reader::new(bytes);
        let Ok([version, function, len, flags, transaction, _sequence]) = header(&mut reader) else {
            return Ok(None);
        };
        if version != VERSION {
            return Err(MessageError::Version(version));
        }
        let len = usize::from(len);
        if !len.is_multiple_of(4) || len > PAYLOAD_LEN_MAX {
            return Err(MessageError::Length(len));
        }
        if flags & (flag::FIRST | flag::LAST) != flag::FIRST | flag::LAST {
            return Err(MessageError::Split);
        }
        if flags & flag::AUTHENTICATED != 0 {
            return Err(MessageError::Authenticated);
        }
        let Ok(payload) = reader.take(len) else { return Ok(None) };
        let message = Self { function, transaction, payload: payload.to_vec() };
        bytes.drain(..HEADER_LEN + len);
        Ok(Some(message))
    }

    /// Splits a response into its status code and its attributes.
    ///
    /// # Errors
    /// [`MessageError::Attribute`] if there is no status code.
    pub fn status(&self) -> Result<(Status, Attributes<'_>), MessageError> {
        let mut reader = Reader::new(&self.payload);
        let status = Status(reader.u32()?);
        Ok((status, Attributes { reader }))
    }

    /// Returns the attributes of a request.
    pub fn attributes(&self) -> Attributes<'_> {
        Attributes { reader: Reader::new(&self.payload) }
    }
}

fn header(reader: &mut Reader<'_>) -> Result<[u16; HEADER_LEN / 2], UnexpectedEof> {
    let mut fields = [0; HEADER_LEN / 2];
    for field in &mut fields {
        *field = reader.u16()?;
    }
    Ok(fields)
}

/// An attribute.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Attribute<'a> {
    /// Which one.
    pub tag: u32,
    /// Its value; a text has zeros at its end.
    pub value: &'a [u8],
}

impl<'a> Attribute<'a> {
    /// Returns a number of 32 bits.
    pub fn number(&self) -> Option<u32> {
        self.value.try_into().ok().map(u32::from_be_bytes)
    }

    /// Returns a text without the zeros at its end; `None` if it is not UTF-8.
    pub fn text(&self) -> Option<&'a str> {
        let end = self.value.iter().rposition(|byte| *byte != 0).map_or(0, |last| last + 1);
        core::str::from_utf8(self.value.get(..end)?).ok()
    }

    /// Returns an address. IPv4 addresses are mapped to IPv6 (§6.3.1).
    pub fn address(&self) -> Option<IpAddr> {
        let bytes: [u8; 16] = self.value.try_into().ok()?;
        Some(IpAddr::from(bytes).to_canonical())
    }
}

/// The attributes of a message, in order.
#[derive(Clone, Copy, Debug)]
pub struct Attributes<'a> {
    reader: Reader<'a>,
}

impl<'a> Iterator for Attributes<'a> {
    type Item = Result<Attribute<'a>, MessageError>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.reader.is_empty() {
            return None;
        }
        let mut take = || {
            let (tag, len) = (self.reader.u32()?, self.reader.u32()?);
            let len = usize::try_from(len).map_err(|_| MessageError::Attribute)?;
            if !len.is_multiple_of(4) {
                return Err(MessageError::Attribute);
            }
            Ok(Attribute { tag, value: self.reader.take(len)? })
        };
        let taken = take();
        if taken.is_err() {
            self.reader = Reader::new(&[]);
        }
        Some(taken)
    }
}

/// The status code of a response, §5.4.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Status(pub u32);

impl Status {
    /// The request was carried out.
    pub const SUCCESS: Self = Self(0);
    /// The sender is not registered.
    pub const SOURCE_UNKNOWN: Self = Self(6);
    /// What was asked for is not registered.
    pub const NO_SUCH_ENTRY: Self = Self(9);
    /// The server or client does not know the function.
    pub const NOT_SUPPORTED: Self = Self(15);
}

impl core::fmt::Display for Status {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        let text = match self.0 {
            0 => "Success",
            1 => "Unknown Error",
            2 => "Message Format Error",
            3 => "Invalid Registration",
            5 => "Invalid Query",
            6 => "Source Unknown",
            7 => "Source Absent",
            8 => "Source Unauthorized",
            9 => "No Such Entry",
            10 => "Version Not Supported",
            11 => "Internal Error",
            12 => "Busy",
            13 => "Option Not Understood",
            14 => "Invalid Update",
            15 => "Message Not Supported",
            16 => "SCN Event Rejected",
            17 => "SCN Registration Rejected",
            18 => "Attribute Not Implemented",
            21 => "ESI Not Available",
            22 => "Invalid Deregistration",
            23 => "Registration Not Supported",
            other => return write!(f, "status {other}"),
        };
        write!(f, "{text} (status {})", self.0)
    }
}

/// Writes attributes one behind the other.
#[derive(Clone, Debug, Default)]
pub struct AttributeWriter {
    bytes: Vec<u8>,
}

impl AttributeWriter {
    /// Returns what was written.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// Appends attributes that were written elsewhere.
    pub fn append(&mut self, attributes: &[u8]) {
        self.bytes.extend_from_slice(attributes);
    }

    /// Writes an attribute without a value. Among operating attributes, it is one that has none.
    pub fn empty(&mut self, tag: u32) {
        self.raw(tag, &[]);
    }

    /// Writes a number.
    pub fn number(&mut self, tag: u32, value: u32) {
        self.raw(tag, &value.to_be_bytes());
    }

    /// Writes a text, which ends with a zero and is padded to a multiple of 4 bytes (§6.1).
    pub fn text(&mut self, tag: u32, value: &str) {
        let mut padded = String::from(value).into_bytes();
        padded.resize((value.len() + 1).next_multiple_of(4), 0);
        self.raw(tag, &padded);
    }

    /// Writes an address: 16 bytes, an IPv4 address as an IPv4-mapped IPv6 address.
    pub fn address(&mut self, tag: u32, value: IpAddr) {
        let address = match value {
            IpAddr::V4(address) => address.to_ipv6_mapped(),
            IpAddr::V6(address) => address,
        };
        self.raw(tag, &address.octets());
    }

    /// Writes any attribute. `value` must have a multiple of 4 bytes.
    pub fn raw(&mut self, tag: u32, value: &[u8]) {
        debug_assert!(value.len().is_multiple_of(4), "attribute {tag} is not padded");
        self.bytes.extend_from_slice(&tag.to_be_bytes());
        self.bytes.extend_from_slice(&u32::try_from(value.len()).unwrap_or(u32::MAX).to_be_bytes());
        self.bytes.extend_from_slice(value);
    }
}

/// Makes the bytes of a request from a client.
pub fn request(function: u16, transaction: u16, replace: bool, payload: &[u8]) -> Vec<u8> {
    pdu(function, transaction, if replace { flag::REPLACE } else { 0 }, payload)
}

/// Makes the bytes of a client's response to a request of a server.
pub fn response(request: &Message, status: Status, attributes: &[u8]) -> Vec<u8> {
    let mut payload = status.0.to_be_bytes().to_vec();
    payload.extend_from_slice(attributes);
    pdu(request.function | function::RESPONSE, request.transaction, 0, &payload)
}

fn pdu(function: u16, transaction: u16, flags: u16, payload: &[u8]) -> Vec<u8> {
    debug_assert!(payload.len() <= PAYLOAD_LEN_MAX && payload.len().is_multiple_of(4), "{}", payload.len());
    let len = u16::try_from(payload.len()).unwrap_or(u16::MAX);
    let flags = flags | flag::CLIENT | flag::FIRST | flag::LAST;
    let header = [VERSION, function, len, flags, transaction, 0];
    let mut bytes: Vec<u8> = header.into_iter().flat_map(u16::to_be_bytes).collect();
    bytes.extend_from_slice(payload);
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::vec;

    #[test]
    fn a_request_has_the_bytes_of_the_standard() {
        let mut attributes = AttributeWriter::default();
        attributes.text(tag::NODE, "iqn.a:b");
        attributes.empty(tag::DELIMITER);
        attributes.number(tag::NODE_TYPE, 1);
        attributes.address(tag::PORTAL_ADDRESS, IpAddr::from([192, 0, 2, 7]));
        let bytes = request(function::REGISTER, 0x1234, true, attributes.bytes());
        let expected = [
            &[0, 1, 0, 1, 0, 60, 0x9c, 0, 0x12, 0x34, 0, 0][..],
            &[0, 0, 0, 32, 0, 0, 0, 8, b'i', b'q', b'n', b'.', b'a', b':', b'b', 0],
            &[0, 0, 0, 0, 0, 0, 0, 0],
            &[0, 0, 0, 33, 0, 0, 0, 4, 0, 0, 0, 1],
            &[0, 0, 0, 16, 0, 0, 0, 16, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 192, 0, 2, 7],
        ];
        assert_eq!(bytes, expected.concat());
    }

    #[test]
    fn texts_end_with_a_zero_and_are_padded() {
        for (text, len) in [("", 4), ("abc", 4), ("abcd", 8)] {
            let mut attributes = AttributeWriter::default();
            attributes.text(tag::ALIAS, text);
            assert_eq!(attributes.bytes().len(), 8 + len);
            let message = Message { function: 0, transaction: 0, payload: attributes.bytes().to_vec() };
            let attribute = message.attributes().next().unwrap().unwrap();
            assert_eq!(attribute.text(), Some(text));
        }
    }

    #[test]
    fn a_message_is_taken_when_it_is_complete() {
        let whole = request(function::QUERY, 7, false, &[0; 8]);
        let next = request(function::DEREGISTER, 8, false, &[]);
        for split in 0..whole.len() {
            let mut bytes = whole[..split].to_vec();
            assert_eq!(Message::take(&mut bytes), Ok(None), "{split} bytes");
            bytes.extend_from_slice(&whole[split..]);
            bytes.extend_from_slice(&next);
            let first = Message::take(&mut bytes).unwrap().unwrap();
            assert_eq!((first.function, first.transaction, first.payload.len()), (function::QUERY, 7, 8));
            let second = Message::take(&mut bytes).unwrap().unwrap();
            assert_eq!((second.function, second.transaction), (function::DEREGISTER, 8));
            assert!(bytes.is_empty());
        }
    }

    /// CVE-2010-2221: lengths and names that are longer than the message.
    #[test]
    fn messages_that_make_no_sense_are_refused() {
        let good = request(function::QUERY, 7, false, &[0; 8]);
        let with = |at: usize, value: u8| {
            let mut bytes = good.clone();
            bytes[at] = value;
            Message::take(&mut bytes)
        };
        assert_eq!(with(1, 2), Err(MessageError::Version(2)));
        assert_eq!(with(5, 9), Err(MessageError::Length(9)));
        assert_eq!(with(6, 0x84), Err(MessageError::Split));
        assert_eq!(with(6, 0xac), Err(MessageError::Authenticated));
    }

    #[test]
    fn an_attribute_past_the_end_ends_the_attributes() {
        for payload in [
            vec![0, 0, 0, 1],
            vec![0, 0, 0, 1, 0, 0, 0, 8, 1, 2, 3, 4],
            vec![0, 0, 0, 1, 0, 0, 0, 3, 1, 2, 3, 4],
        ] {
            let message = Message { function: 0, transaction: 0, payload };
            let attributes: Vec<_> = message.attributes().collect();
            assert_eq!(attributes, [Err(MessageError::Attribute)]);
        }
    }
}
