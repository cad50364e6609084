//! Designation descriptors (SPC-4 §7.8.6): the names of logical units, ports and devices.

use alloc::vec::Vec;

use base::bytes::{Reader, UnexpectedEof};

/// CODE SET of a designator.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct CodeSet(pub u8);

#[allow(missing_docs, reason = "the names are the standard's")]
impl CodeSet {
    pub const BINARY: Self = Self(1);
    pub const ASCII: Self = Self(2);
    pub const UTF_8: Self = Self(3);
}

/// DESIGNATOR TYPE.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct DesignatorType(pub u8);

#[allow(missing_docs, reason = "the names are the standard's")]
impl DesignatorType {
    pub const VENDOR_SPECIFIC: Self = Self(0);
    pub const T10_VENDOR: Self = Self(1);
    pub const EUI_64: Self = Self(2);
    pub const NAA: Self = Self(3);
    pub const RELATIVE_TARGET_PORT: Self = Self(4);
    pub const TARGET_PORT_GROUP: Self = Self(5);
    pub const LOGICAL_UNIT_GROUP: Self = Self(6);
    pub const MD5: Self = Self(7);
    pub const SCSI_NAME: Self = Self(8);
}

/// ASSOCIATION: what the designator names.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Association(pub u8);

#[allow(missing_docs, reason = "the names are the standard's")]
impl Association {
    pub const LOGICAL_UNIT: Self = Self(0);
    pub const TARGET_PORT: Self = Self(1);
    pub const TARGET_DEVICE: Self = Self(2);
}

/// A designation descriptor.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Designator {
    /// What the designator names.
    pub association: Association,
    /// PROTOCOL IDENTIFIER, where it is valid (PIV).
    pub protocol: Option<u8>,
    /// How the bytes are encoded.
    pub code_set: CodeSet,
    /// The kind of name.
    pub kind: DesignatorType,
    /// The name: 1 to 255 bytes.
    pub bytes: Vec<u8>,
}

impl Designator {
    /// Names a logical unit by its NAA identifier.
    pub fn naa(identifier: &[u8]) -> Self {
        Self::of_unit(CodeSet::BINARY, DesignatorType::NAA, identifier.to_vec())
    }

    /// Names a logical unit by its vendor and a name that the vendor chose.
    pub fn t10_vendor(vendor: [u8; 8], name: &[u8]) -> Self {
        let mut bytes = Vec::from(vendor);
        bytes.extend_from_slice(name);
        Self::of_unit(CodeSet::ASCII, DesignatorType::T10_VENDOR, bytes)
    }

    /// Makes a SCSI name string. The bytes include a terminating null and padding to a multiple of four.
    pub fn scsi_name(association: Association, protocol: Option<u8>, name: &str) -> Self {
        let mut bytes = Vec::from(name.as_bytes());
        bytes.resize((name.len() + 1).next_multiple_of(4), 0);
        Self { association, protocol, code_set: CodeSet::UTF_8, kind: DesignatorType::SCSI_NAME, bytes }
    }

    /// Names the target port by its relative identifier.
    pub fn relative_target_port(protocol: u8, port: u16) -> Self {
        Self::of_port(protocol, DesignatorType::RELATIVE_TARGET_PORT, port)
    }

    /// Names the target port group of the target port.
    pub fn target_port_group(protocol: u8, group: u16) -> Self {
        Self::of_port(protocol, DesignatorType::TARGET_PORT_GROUP, group)
    }

    /// Appends the bytes on the wire. A name beyond 255 bytes, which no kind has, is cut there.
    pub fn encode(&self, out: &mut Vec<u8>) {
        let len = u8::try_from(self.bytes.len()).unwrap_or(u8::MAX);
        let valid = u8::from(self.protocol.is_some()) << 7;
        out.extend_from_slice(&[
            self.protocol.unwrap_or(0) << 4 | (self.code_set.0 & 0x0f),
            valid | (self.association.0 & 3) << 4 | (self.kind.0 & 0x0f),
            0,
            len,
        ]);
        out.extend(self.bytes.iter().take(usize::from(len)));
    }

    /// Takes the next designation descriptor from `list`.
    ///
    /// # Errors
    /// When the list ends too early.
    pub fn take(list: &mut Reader<'_>) -> Result<Self, UnexpectedEof> {
        let [first, second, _, len] = list.array()?;
        let protocol = (second & 0x80 != 0).then_some(first >> 4);
        Ok(Self {
            association: Association(second >> 4 & 3),
            protocol,
            code_set: CodeSet(first & 0x0f),
            kind: DesignatorType(second & 0x0f),
            bytes: list.take(usize::from(len))?.to_vec(),
        })
    }

    /// Returns every whole designation descriptor in `body`.
    pub fn list(body: &[u8]) -> Vec<Self> {
        let mut list = Reader::new(body);
        core::iter::from_fn(|| Self::take(&mut list).ok()).collect()
    }

    fn of_unit(code_set: CodeSet, kind: DesignatorType, bytes: Vec<u8>) -> Self {
        Self { association: Association::LOGICAL_UNIT, protocol: None, code_set, kind, bytes }
    }

    fn of_port(protocol: u8, kind: DesignatorType, number: u16) -> Self {
        let [high, low] = number.to_be_bytes();
        Self {
            association: Association::TARGET_PORT,
            protocol: Some(protocol),
            code_set: CodeSet::BINARY,
            kind,
            bytes: Vec::from([0, 0, high, low]),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn encoded(designator: &Designator) -> Vec<u8> {
        let mut out = Vec::new();
        designator.encode(&mut out);
        out
    }

    #[test]
    fn each_kind_stands_as_spc_shows_it() {
        for (designator, bytes) in [
            (Designator::naa(&[0x61, 2, 3]), &[0x01, 0x03, 0, 3, 0x61, 2, 3][..]),
            (Designator::t10_vendor(*b"targe   ", b"x"), b"\x02\x01\0\x09targe   x"),
            (Designator::relative_target_port(5, 0x102), &[0x51, 0x94, 0, 4, 0, 0, 1, 2]),
            (Designator::target_port_group(5, 3), &[0x51, 0x95, 0, 4, 0, 0, 0, 3]),
            (Designator::scsi_name(Association::TARGET_DEVICE, Some(5), "iqn"), b"\x53\xa8\0\x04iqn\0"),
            (Designator::scsi_name(Association::LOGICAL_UNIT, None, "naa.6"), b"\x03\x08\0\x08naa.6\0\0\0"),
        ] {
            assert_eq!(encoded(&designator), bytes);
            assert_eq!(Designator::take(&mut Reader::new(bytes)), Ok(designator));
        }
    }

    #[test]
    fn a_list_ends_at_the_first_descriptor_that_is_cut_off() {
        let mut body = encoded(&Designator::naa(&[0x61, 2, 3]));
        body.extend_from_slice(&encoded(&Designator::target_port_group(5, 3)));
        assert_eq!(Designator::list(&body).len(), 2);
        assert_eq!(Designator::list(&body[..body.len() - 1]), [Designator::naa(&[0x61, 2, 3])]);
    }
}
