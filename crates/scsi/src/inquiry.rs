//! Standard INQUIRY data (SPC-5 §6.7.2), for initiators and targets.

use base::bytes::{Reader, UnexpectedEof};

/// PERIPHERAL QUALIFIER: whether the LUN has a logical unit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Qualifier(pub u8);

impl Qualifier {
    /// The LUN has a logical unit, or may have one.
    pub const CONNECTED: Self = Self(0b000);
    /// The LUN has no logical unit, but the target supports one at this LUN.
    pub const NOT_CONNECTED: Self = Self(0b001);
    /// The LUN has no logical unit, and the target supports none at this LUN.
    pub const NOT_SUPPORTED: Self = Self(0b011);
}

/// PERIPHERAL DEVICE TYPE.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct DeviceType(pub u8);

#[allow(missing_docs, reason = "the names are the standard's")]
impl DeviceType {
    pub const DIRECT_ACCESS_BLOCK: Self = Self(0x00);
    pub const SEQUENTIAL_ACCESS: Self = Self(0x01);
    pub const CD_DVD: Self = Self(0x05);
    pub const MEDIA_CHANGER: Self = Self(0x08);
    pub const WELL_KNOWN: Self = Self(0x1e);
    pub const UNKNOWN: Self = Self(0x1f);
}

/// Version descriptors: the standards with which a device claims conformance, without a version
/// (SPC-5 §6.7.2).
#[allow(missing_docs, reason = "the names are the standard's")]
pub mod version_descriptor {
    pub const SAM_3: u16 = 0x0060;
    pub const SAM_5: u16 = 0x00a0;
    pub const SPC_3: u16 = 0x0300;
    pub const SSC_3: u16 = 0x0400;
    pub const SPC_4: u16 = 0x0460;
    pub const SMC_3: u16 = 0x0480;
    pub const SBC_3: u16 = 0x04c0;
    pub const MMC_6: u16 = 0x04e0;
    pub const SSC_4: u16 = 0x0520;
    pub const SPC_5: u16 = 0x05c0;
    pub const SBC_4: u16 = 0x0600;
    pub const ISCSI: u16 = 0x0960;
}

/// VERSION of a device that conforms to SPC-3.
pub const VERSION_SPC_3: u8 = 0x05;

/// VERSION of a device that conforms to SPC-4. A device claims newer standards in its version descriptors,
/// because some initiators in use treat a higher VERSION as an error.
pub const VERSION_SPC_4: u8 = 0x06;

/// VERSION of a device that conforms to SPC-5.
pub const VERSION_SPC_5: u8 = 0x07;

/// Standard INQUIRY data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StandardInquiry {
    /// PERIPHERAL QUALIFIER.
    pub qualifier: Qualifier,
    /// PERIPHERAL DEVICE TYPE.
    pub device_type: DeviceType,
    /// RMB: the medium can be removed.
    pub removable: bool,
    /// VERSION.
    pub version: u8,
    /// HISUP: LUNs have the structure that SAM defines.
    pub hierarchical: bool,
    /// TPGS, two bits: 1 implicit, 2 explicit asymmetric access (ALUA).
    pub target_port_groups: u8,
    /// 3PC: third-party copies are supported.
    pub third_party_copy: bool,
    /// PROTECT: protection information is supported.
    pub protect: bool,
    /// MULTIP: the target has more than one port.
    pub multi_port: bool,
    /// CMDQUE: the logical unit queues commands.
    pub command_queuing: bool,
    /// T10 VENDOR IDENTIFICATION, space-padded.
    pub vendor: [u8; 8],
    /// PRODUCT IDENTIFICATION, space-padded.
    pub product: [u8; 16],
    /// PRODUCT REVISION LEVEL, space-padded.
    pub revision: [u8; 4],
    /// Version descriptors; zero in unused places.
    pub versions: [u16; 8],
}

impl StandardInquiry {
    /// The length in bytes of the data that [`Self::encode`] returns.
    pub const LEN: usize = 96;

    /// Returns the bytes on the wire.
    pub fn encode(&self) -> [u8; Self::LEN] {
        let bit = |flag: bool, at: u8| u8::from(flag) << at;
        let mut out = [0; Self::LEN];
        let (head, rest) = out.split_at_mut(8);
        head.copy_from_slice(&[
            self.qualifier.0 << 5 | (self.device_type.0 & 0x1f),
            bit(self.removable, 7),
            self.version,
            bit(self.hierarchical, 4) | RESPONSE_DATA_FORMAT,
            ADDITIONAL_LENGTH,
            (self.target_port_groups & 3) << 4 | bit(self.third_party_copy, 3) | bit(self.protect, 0),
            bit(self.multi_port, 4),
            bit(self.command_queuing, 1),
        ]);
        let names = self.vendor.iter().chain(&self.product).chain(&self.revision);
        let versions = self.versions.iter().flat_map(|version| version.to_be_bytes());
        let body = names.copied().chain([0; 22]).chain(versions);
        for (to, from) in rest.iter_mut().zip(body) {
            *to = from;
        }
        out
    }

    /// Parses the bytes. Version descriptors that were cut off read as zero.
    ///
    /// # Errors
    /// When there are fewer than the 36 bytes that every device returns.
    pub fn parse(bytes: &[u8]) -> Result<Self, UnexpectedEof> {
        let mut data = Reader::new(bytes);
        let [peripheral, removable, version, format, _, access, ports, queuing] = data.array()?;
        let bit = |byte: u8, at: u8| byte >> at & 1 == 1;
        let (vendor, product, revision) = (data.array()?, data.array()?, data.array()?);
        let mut versions = [0; 8];
        if data.take(22).is_ok() {
            for version in &mut versions {
                *version = data.u16().unwrap_or(0);
            }
        }
        Ok(Self {
            qualifier: Qualifier(peripheral >> 5),
            device_type: DeviceType(peripheral & 0x1f),
            removable: bit(removable, 7),
            version,
            hierarchical: bit(format, 4),
            target_port_groups: access >> 4 & 3,
            third_party_copy: bit(access, 3),
            protect: bit(access, 0),
            multi_port: bit(ports, 4),
            command_queuing: bit(queuing, 1),
            vendor,
            product,
            revision,
            versions,
        })
    }
}

/// RESPONSE DATA FORMAT: 2 is the only value in use.
const RESPONSE_DATA_FORMAT: u8 = 2;

/// ADDITIONAL LENGTH: the number of bytes after byte 4.
const ADDITIONAL_LENGTH: u8 = 91;
const _: () = assert!(ADDITIONAL_LENGTH as usize + 5 == StandardInquiry::LEN);

#[cfg(test)]
mod tests {
    use super::*;

    fn disk() -> StandardInquiry {
        StandardInquiry {
            qualifier: Qualifier::CONNECTED,
            device_type: DeviceType::DIRECT_ACCESS_BLOCK,
            removable: true,
            version: VERSION_SPC_4,
            hierarchical: true,
            target_port_groups: 1,
            third_party_copy: true,
            protect: false,
            multi_port: true,
            command_queuing: true,
            vendor: *b"targe   ",
            product: *b"disk            ",
            revision: *b"0001",
            versions: [version_descriptor::SAM_5, version_descriptor::ISCSI, 0, 0, 0, 0, 0, 0],
        }
    }

    #[test]
    fn every_field_stands_where_spc_puts_it() {
        let bytes = disk().encode();
        assert_eq!(bytes[..8], [0x00, 0x80, 0x06, 0x12, 91, 0x18, 0x10, 0x02]);
        assert_eq!(&bytes[8..36], b"targe   disk            0001");
        assert_eq!(bytes[36..58], [0; 22]);
        assert_eq!(bytes[58..64], [0x00, 0xa0, 0x09, 0x60, 0, 0]);
        assert_eq!(bytes[64..], [0; 32]);
        assert_eq!(StandardInquiry::parse(&bytes), Ok(disk()));
    }

    #[test]
    fn data_cut_to_36_bytes_has_no_versions() {
        let bytes = disk().encode();
        assert_eq!(StandardInquiry::parse(&bytes[..36]), Ok(StandardInquiry { versions: [0; 8], ..disk() }));
        assert_eq!(StandardInquiry::parse(&bytes[..35]), Err(UnexpectedEof));
    }

    #[test]
    fn no_unit_is_7fh() {
        let none = StandardInquiry {
            qualifier: Qualifier::NOT_SUPPORTED,
            device_type: DeviceType::UNKNOWN,
            ..disk()
        };
        assert_eq!(none.encode()[0], 0x7f);
    }
}
