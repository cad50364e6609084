//! The VPD pages of direct access block devices (SBC-4 §6.6).

use base::bytes::{Reader, UnexpectedEof, Writer};

/// The body of the block limits page (B0h). Lengths are in logical blocks; zero means that none is reported.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BlockLimits {
    /// WSNZ: the device server refuses WRITE SAME of zero blocks; else zero means up to the end of the
    /// medium.
    pub write_same_non_zero: bool,
    /// MAXIMUM COMPARE AND WRITE LENGTH; zero means that the command is not supported.
    pub compare_and_write_max: u8,
    /// OPTIMAL TRANSFER LENGTH GRANULARITY.
    pub transfer_granularity: u16,
    /// MAXIMUM TRANSFER LENGTH.
    pub transfer_max: u32,
    /// OPTIMAL TRANSFER LENGTH.
    pub transfer_optimal: u32,
    /// MAXIMUM PREFETCH LENGTH.
    pub prefetch_max: u32,
    /// MAXIMUM UNMAP LBA COUNT; zero means that UNMAP is not supported.
    pub unmap_max: u32,
    /// MAXIMUM UNMAP BLOCK DESCRIPTOR COUNT.
    pub unmap_descriptors_max: u32,
    /// OPTIMAL UNMAP GRANULARITY.
    pub unmap_granularity: u32,
    /// UNMAP GRANULARITY ALIGNMENT, if valid (UGAVALID); 31 bits.
    pub unmap_alignment: Option<u32>,
    /// MAXIMUM WRITE SAME LENGTH.
    pub write_same_max: u64,
    /// MAXIMUM ATOMIC TRANSFER LENGTH; zero means that WRITE ATOMIC is not supported.
    pub atomic_max: u32,
    /// ATOMIC ALIGNMENT.
    pub atomic_alignment: u32,
    /// ATOMIC TRANSFER LENGTH GRANULARITY.
    pub atomic_granularity: u32,
    /// MAXIMUM ATOMIC TRANSFER LENGTH WITH ATOMIC BOUNDARY.
    pub atomic_max_with_boundary: u32,
    /// MAXIMUM ATOMIC BOUNDARY SIZE.
    pub atomic_boundary_max: u32,
}

impl BlockLimits {
    /// Returns the body of the page.
    pub fn encode(&self) -> [u8; 60] {
        let mut body = [0; 60];
        // The fields fill the array exactly, so no write can fail; a test writes every one of them.
        let _fits = self.write(&mut Writer::new(&mut body));
        body
    }

    fn write(&self, out: &mut Writer<'_>) -> Result<(), UnexpectedEof> {
        out.put(&[u8::from(self.write_same_non_zero), self.compare_and_write_max])?;
        out.u16(self.transfer_granularity)?;
        out.u32(self.transfer_max)?;
        out.u32(self.transfer_optimal)?;
        out.u32(self.prefetch_max)?;
        out.u32(self.unmap_max)?;
        out.u32(self.unmap_descriptors_max)?;
        out.u32(self.unmap_granularity)?;
        out.u32(self.unmap_alignment.map_or(0, |alignment| UGAVALID | alignment))?;
        out.u64(self.write_same_max)?;
        out.u32(self.atomic_max)?;
        out.u32(self.atomic_alignment)?;
        out.u32(self.atomic_granularity)?;
        out.u32(self.atomic_max_with_boundary)?;
        out.u32(self.atomic_boundary_max)
    }

    /// Parses the body of the page. Older devices send fewer fields; those beyond the end of the body are
    /// zero.
    ///
    /// # Errors
    /// When the body is shorter than the twelve bytes of SBC-2.
    pub fn parse(body: &[u8]) -> Result<Self, UnexpectedEof> {
        let mut data = Reader::new(body);
        let [flags, compare_and_write_max] = data.array()?;
        let mut limits = Self {
            write_same_non_zero: flags & 1 == 1,
            compare_and_write_max,
            transfer_granularity: data.u16()?,
            transfer_max: data.u32()?,
            transfer_optimal: data.u32()?,
            ..Self::default()
        };
        let mut next = || data.u32().unwrap_or(0);
        limits.prefetch_max = next();
        limits.unmap_max = next();
        limits.unmap_descriptors_max = next();
        limits.unmap_granularity = next();
        let alignment = next();
        limits.unmap_alignment = (alignment & UGAVALID != 0).then_some(alignment & !UGAVALID);
        limits.write_same_max = u64::from(next()) << 32 | u64::from(next());
        limits.atomic_max = next();
        limits.atomic_alignment = next();
        limits.atomic_granularity = next();
        limits.atomic_max_with_boundary = next();
        limits.atomic_boundary_max = next();
        Ok(limits)
    }
}

const UGAVALID: u32 = 1 << 31;

/// The body of the block device characteristics page (B1h).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BlockCharacteristics {
    /// MEDIUM ROTATION RATE: 0 not reported, 1 does not rotate, else revolutions per minute.
    pub rotation_rate: u16,
    /// WABEREQ: the data that reads return after SANITIZE with BLOCK ERASE; 0 if the command is not
    /// supported, 1 for any data.
    pub read_after_block_erase: u8,
    /// WACEREQ: the same after CRYPTOGRAPHIC ERASE.
    pub read_after_crypto_erase: u8,
    /// FUAB: SYNCHRONIZE CACHE and FUA have the meaning of SBC-3 and later.
    pub force_unit_access: bool,
    /// VBULS: VERIFY can compare unmapped blocks byte by byte.
    pub verify_unmapped: bool,
}

impl BlockCharacteristics {
    /// Returns the body of the page.
    pub fn encode(&self) -> [u8; 60] {
        let mut body = [0; 60];
        let [high, low] = self.rotation_rate.to_be_bytes();
        let flags = u8::from(self.force_unit_access) << 1 | u8::from(self.verify_unmapped);
        let erased = (self.read_after_block_erase & 3) << 6 | (self.read_after_crypto_erase & 3) << 4;
        for (to, from) in body.iter_mut().zip([high, low, 0, erased, flags]) {
            *to = from;
        }
        body
    }

    /// Parses the body of the page.
    ///
    /// # Errors
    /// When the body is too short.
    pub fn parse(body: &[u8]) -> Result<Self, UnexpectedEof> {
        let [rate @ .., _, erased, flags] = Reader::new(body).array::<5>()?;
        Ok(Self {
            rotation_rate: u16::from_be_bytes(rate),
            read_after_block_erase: erased >> 6,
            read_after_crypto_erase: erased >> 4 & 3,
            force_unit_access: flags & 2 != 0,
            verify_unmapped: flags & 1 != 0,
        })
    }
}

/// PROVISIONING TYPE.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct ProvisioningType(pub u8);

#[allow(missing_docs, reason = "the names are the standard's")]
impl ProvisioningType {
    pub const FULL: Self = Self(0);
    pub const RESOURCE: Self = Self(1);
    pub const THIN: Self = Self(2);
}

/// The body of the logical block provisioning page (B2h), without a provisioning group descriptor.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LogicalBlockProvisioning {
    /// THRESHOLD EXPONENT: storage is counted in sets of two to the power of this many blocks; zero if it is
    /// not counted.
    pub threshold_exponent: u8,
    /// LBPU: UNMAP is supported.
    pub unmap: bool,
    /// LBPWS: WRITE SAME(16) with UNMAP is supported.
    pub write_same_16: bool,
    /// LBPWS10: WRITE SAME(10) with UNMAP is supported.
    pub write_same_10: bool,
    /// LBPRZ: unmapped blocks read as zeros.
    pub reads_zero: bool,
    /// ANC_SUP: blocks can be anchored.
    pub anchor: bool,
    /// PROVISIONING TYPE.
    pub kind: ProvisioningType,
}

impl LogicalBlockProvisioning {
    /// Returns the body of the page.
    pub fn encode(&self) -> [u8; 4] {
        let bit = |flag: bool, at: u8| u8::from(flag) << at;
        let flags = bit(self.unmap, 7)
            | bit(self.write_same_16, 6)
            | bit(self.write_same_10, 5)
            | bit(self.reads_zero, 2)
            | bit(self.anchor, 1);
        [self.threshold_exponent, flags, self.kind.0 & 7, 0]
    }

    /// Parses the body of the page.
    ///
    /// # Errors
    /// When the body is too short.
    pub fn parse(body: &[u8]) -> Result<Self, UnexpectedEof> {
        let [threshold_exponent, flags, kind, _] = Reader::new(body).array()?;
        Ok(Self {
            threshold_exponent,
            unmap: flags & 0x80 != 0,
            write_same_16: flags & 0x40 != 0,
            write_same_10: flags & 0x20 != 0,
            reads_zero: flags & 0x04 != 0,
            anchor: flags & 0x02 != 0,
            kind: ProvisioningType(kind & 7),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn block_limits_stand_where_sbc_puts_them() {
        let limits = BlockLimits {
            write_same_non_zero: true,
            compare_and_write_max: 0x22,
            transfer_granularity: 0x0303,
            transfer_max: 4,
            transfer_optimal: 5,
            prefetch_max: 6,
            unmap_max: 7,
            unmap_descriptors_max: 8,
            unmap_granularity: 9,
            unmap_alignment: Some(10),
            write_same_max: 0x0b_0000_000c,
            atomic_max: 13,
            atomic_alignment: 14,
            atomic_granularity: 15,
            atomic_max_with_boundary: 16,
            atomic_boundary_max: 17,
        };
        let body = limits.encode();
        #[rustfmt::skip]
        assert_eq!(body, [
            1, 0x22, 3, 3, 0, 0, 0, 4, 0, 0, 0, 5, 0, 0, 0, 6, 0, 0, 0, 7, 0, 0, 0, 8, 0, 0, 0, 9, 0x80, 0, 0, 10,
            0, 0, 0, 11, 0, 0, 0, 12, 0, 0, 0, 13, 0, 0, 0, 14, 0, 0, 0, 15, 0, 0, 0, 16, 0, 0, 0, 17,
        ]);
        assert_eq!(BlockLimits::parse(&body), Ok(limits));
        let old = BlockLimits::parse(&body[..12]).unwrap();
        assert_eq!((old.transfer_optimal, old.prefetch_max, old.unmap_alignment), (5, 0, None));
        assert_eq!(BlockLimits::parse(&body[..11]), Err(UnexpectedEof));
    }

    #[test]
    fn characteristics_come_back_whole() {
        let disk = BlockCharacteristics {
            rotation_rate: 1,
            read_after_block_erase: 1,
            read_after_crypto_erase: 2,
            force_unit_access: true,
            verify_unmapped: true,
        };
        let body = disk.encode();
        assert_eq!(body[..5], [0, 1, 0, 0x60, 3]);
        assert_eq!(body[5..], [0; 55]);
        assert_eq!(BlockCharacteristics::parse(&body), Ok(disk));
    }

    #[test]
    fn provisioning_comes_back_whole() {
        let thin = LogicalBlockProvisioning {
            threshold_exponent: 11,
            unmap: true,
            write_same_16: true,
            write_same_10: true,
            reads_zero: true,
            anchor: true,
            kind: ProvisioningType::THIN,
        };
        assert_eq!(thin.encode(), [11, 0xe6, 2, 0]);
        assert_eq!(LogicalBlockProvisioning::parse(&thin.encode()), Ok(thin));
    }
}
