//! Logical unit numbers (SAM-5 §4.7).

/// The eight bytes of a LUN as they are on the wire.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Lun(pub u64);

impl Lun {
    /// The highest number that the flat space addressing method can carry.
    pub const MAX_NUMBER: u16 = 0x3fff;

    /// The REPORT LUNS well-known logical unit (SAM-5 §4.7).
    pub const REPORT_LUNS: Self = Self(0xc101_0000_0000_0000);

    /// Returns whether this is the LUN of a well-known logical unit (SAM-5 §4.7).
    pub const fn is_well_known(self) -> bool {
        self.0 >> 56 == 0xc1
    }

    /// Encodes a number: peripheral device addressing below 256, flat space addressing from 256 on
    /// (SAM-5 §4.7). Returns `None` beyond [`Self::MAX_NUMBER`].
    pub fn from_number(number: u16) -> Option<Self> {
        match number {
            0..=0xff => Some(Self(u64::from(number) << 48)),
            0x100..=Self::MAX_NUMBER => Some(Self(u64::from(number | 0x4000) << 48)),
            _ => None,
        }
    }

    /// Decodes a single-level LUN in either addressing method. Returns `None` for any other form.
    pub fn number(self) -> Option<u16> {
        if self.0 & 0x0000_ffff_ffff_ffff != 0 {
            return None;
        }
        let [.., high, low] = (self.0 >> 48).to_be_bytes();
        match high >> 6 {
            0 if high == 0 => Some(u16::from(low)),
            1 => Some(u16::from_be_bytes([high & 0x3f, low])),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_survive_the_wire() {
        for number in [0, 1, 255, 256, 0x3fff] {
            assert_eq!(Lun::from_number(number).unwrap().number(), Some(number));
        }
        assert_eq!(Lun::from_number(0x4000), None);
        assert_eq!(Lun(0x4001_0000_0000_0000).number(), Some(1));
        assert_eq!(Lun(0x0100_0000_0000_0000).number(), None);
        assert_eq!(Lun(1).number(), None);
        assert_eq!(Lun::REPORT_LUNS.number(), None);
        assert!(Lun::REPORT_LUNS.is_well_known() && !Lun(0).is_well_known());
    }
}
