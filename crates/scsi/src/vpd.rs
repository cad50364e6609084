//! Vital product data (VPD) pages (SPC-4 §7.8, SBC-4 §6.6), for initiators and targets.

mod block;
mod designator;

pub use block::{BlockCharacteristics, BlockLimits, LogicalBlockProvisioning, ProvisioningType};
pub use designator::{Association, CodeSet, Designator, DesignatorType};

use alloc::vec::Vec;

use base::bytes::{Reader, UnexpectedEof};

/// Page codes.
#[allow(missing_docs, reason = "the names are the standard's")]
pub mod page {
    pub const SUPPORTED_PAGES: u8 = 0x00;
    pub const UNIT_SERIAL_NUMBER: u8 = 0x80;
    pub const DEVICE_IDENTIFICATION: u8 = 0x83;
    pub const EXTENDED_INQUIRY: u8 = 0x86;
    pub const MODE_PAGE_POLICY: u8 = 0x87;
    pub const SCSI_PORTS: u8 = 0x88;
    pub const THIRD_PARTY_COPY: u8 = 0x8f;
    pub const BLOCK_LIMITS: u8 = 0xb0;
    pub const BLOCK_CHARACTERISTICS: u8 = 0xb1;
    pub const LOGICAL_BLOCK_PROVISIONING: u8 = 0xb2;
}

/// A page as a view: its header is parsed, its body is not.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Page<'a> {
    /// PERIPHERAL QUALIFIER and PERIPHERAL DEVICE TYPE.
    pub peripheral: u8,
    /// PAGE CODE.
    pub code: u8,
    /// The bytes after PAGE LENGTH; fewer than that when the data ends earlier.
    pub body: &'a [u8],
}

impl<'a> Page<'a> {
    /// Returns the bytes on the wire. A body beyond 65535 bytes, which no page has, is cut there.
    pub fn encode(&self) -> Vec<u8> {
        let len = u16::try_from(self.body.len()).unwrap_or(u16::MAX);
        let mut bytes = Vec::with_capacity(4 + self.body.len());
        bytes.extend_from_slice(&[self.peripheral, self.code]);
        bytes.extend_from_slice(&len.to_be_bytes());
        bytes.extend(self.body.iter().take(usize::from(len)));
        bytes
    }

    /// Parses the header of a page.
    ///
    /// # Errors
    /// When the data is shorter than the header.
    pub fn parse(bytes: &'a [u8]) -> Result<Self, UnexpectedEof> {
        let mut data = Reader::new(bytes);
        let [peripheral, code] = data.array()?;
        let len = usize::from(data.u16()?);
        let body = data.take(len.min(data.remaining()))?;
        Ok(Self { peripheral, code, body })
    }
}

/// The body of the extended INQUIRY data page (SPC-4 §7.8.7): the fields in which our devices differ.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ExtendedInquiry {
    /// HEADSUP, ORDSUP and SIMPSUP: the device supports every task attribute except ACA.
    pub task_attributes: bool,
    /// V_SUP: the device has a volatile cache.
    pub volatile_cache: bool,
    /// EXTENDED SELF-TEST COMPLETION MINUTES.
    pub extended_self_test_minutes: u16,
    /// MAXIMUM SUPPORTED SENSE DATA LENGTH.
    pub sense_len_max: u8,
}

impl ExtendedInquiry {
    /// Returns the body of the page.
    pub fn encode(&self) -> [u8; 60] {
        let mut body = [0; 60];
        let [minutes_high, minutes_low] = self.extended_self_test_minutes.to_be_bytes();
        let head = [
            0,
            if self.task_attributes { 0x07 } else { 0x01 },
            u8::from(self.volatile_cache),
            0,
            0,
            0,
            minutes_high,
            minutes_low,
            0,
            self.sense_len_max,
        ];
        for (to, from) in body.iter_mut().zip(head) {
            *to = from;
        }
        body
    }

    /// Parses the body of the page.
    ///
    /// # Errors
    /// When the body is too short.
    pub fn parse(body: &[u8]) -> Result<Self, UnexpectedEof> {
        let [_, tasks, caches, _, _, _, minutes @ .., _, sense_len_max] = Reader::new(body).array::<10>()?;
        Ok(Self {
            task_attributes: tasks & 0x07 == 0x07,
            volatile_cache: caches & 0x01 == 1,
            extended_self_test_minutes: u16::from_be_bytes(minutes),
            sense_len_max,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_has_a_header_of_four_bytes() {
        let page = Page { peripheral: 0, code: page::UNIT_SERIAL_NUMBER, body: b"abc" };
        let bytes = page.encode();
        assert_eq!(bytes, [0, 0x80, 0, 3, b'a', b'b', b'c']);
        assert_eq!(Page::parse(&bytes), Ok(page));
        assert_eq!(Page::parse(&bytes[..5]).unwrap().body, b"a");
        assert_eq!(Page::parse(&bytes[..3]), Err(UnexpectedEof));
    }

    #[test]
    fn extended_inquiry_comes_back_whole() {
        let data = ExtendedInquiry {
            task_attributes: true,
            volatile_cache: true,
            extended_self_test_minutes: 0x0102,
            sense_len_max: 44,
        };
        let body = data.encode();
        assert_eq!(body[..10], [0, 7, 1, 0, 0, 0, 1, 2, 0, 44]);
        assert_eq!(body[10..], [0; 50]);
        assert_eq!(ExtendedInquiry::parse(&body), Ok(data));
    }
}
