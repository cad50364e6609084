//! Log pages (SPC-5 §7.3) as bytes, for initiators and targets.

use alloc::vec::Vec;

use base::bytes::{Reader, UnexpectedEof};

/// Page codes.
#[allow(missing_docs, reason = "the names are the standard's")]
pub mod page {
    pub const SUPPORTED_PAGES: u8 = 0x00;
    pub const WRITE_ERROR_COUNTERS: u8 = 0x02;
    pub const READ_ERROR_COUNTERS: u8 = 0x03;
    pub const VERIFY_ERROR_COUNTERS: u8 = 0x05;
    pub const LOGICAL_BLOCK_PROVISIONING: u8 = 0x0c;
    /// The sequential access device page has the code of the logical block provisioning page.
    pub const SEQUENTIAL_ACCESS_DEVICE: u8 = 0x0c;
    pub const SELF_TEST_RESULTS: u8 = 0x10;
    pub const BACKGROUND_SCAN: u8 = 0x15;
    pub const VOLUME_STATISTICS: u8 = 0x17;
    pub const GENERAL_STATISTICS: u8 = 0x19;
    pub const TAPE_ALERT: u8 = 0x2e;
    pub const INFORMATIONAL_EXCEPTIONS: u8 = 0x2f;
    /// Defined by the LTO drives of IBM, HP and Quantum.
    pub const TAPE_CAPACITY: u8 = 0x31;

    /// The subpage that lists pages with their subpages.
    pub const SUPPORTED_SUBPAGES: u8 = 0xff;
}

/// A parameter of a log page.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Parameter {
    /// PARAMETER CODE.
    pub code: u16,
    /// The parameter control byte, see [`control`].
    pub control: u8,
    /// The value, at most 255 bytes.
    pub value: Vec<u8>,
}

/// Parameter control bytes: FORMAT AND LINKING in bits 1 and 0, TSD in bit 5 (SPC-5 §7.3).
pub mod control {
    /// A bounded counter that is not saved.
    pub const COUNTER: u8 = 0x20;
    /// A binary list that is not saved.
    pub const BINARY_LIST: u8 = 0x23;
    /// The bit of FORMAT AND LINKING that distinguishes lists from counters.
    pub const LIST: u8 = 0x01;
}

impl Parameter {
    /// Appends the bytes on the wire.
    pub fn encode(&self, out: &mut Vec<u8>) {
        let len = u8::try_from(self.value.len()).unwrap_or(u8::MAX);
        out.extend_from_slice(&self.code.to_be_bytes());
        out.extend_from_slice(&[self.control, len]);
        out.extend(self.value.iter().take(usize::from(len)));
    }

    /// Takes the next parameter from `list`.
    ///
    /// # Errors
    /// When the list ends within the parameter.
    pub fn take(list: &mut Reader<'_>) -> Result<Self, UnexpectedEof> {
        let code = list.u16()?;
        let [control, len] = list.array()?;
        Ok(Self { code, control, value: list.take(usize::from(len))?.to_vec() })
    }
}

/// A log page as a view.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Page<'a> {
    /// PAGE CODE.
    pub code: u8,
    /// SUBPAGE CODE, in pages that have one (SPF).
    pub subpage: Option<u8>,
    /// The bytes after PAGE LENGTH; fewer than that when the data ends earlier.
    pub body: &'a [u8],
}

impl<'a> Page<'a> {
    /// Returns the bytes on the wire. DS is set, because no log parameter here is saved.
    pub fn encode(&self) -> Vec<u8> {
        let spf = u8::from(self.subpage.is_some()) << 6;
        let len = u16::try_from(self.body.len()).unwrap_or(u16::MAX);
        let mut bytes = Vec::from([0x80 | spf | self.code, self.subpage.unwrap_or(0)]);
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
        let [code, subpage] = data.array()?;
        let len = usize::from(data.u16()?);
        let body = data.take(len.min(data.remaining()))?;
        Ok(Self { code: code & 0x3f, subpage: (code & 0x40 != 0).then_some(subpage), body })
    }

    /// Returns every whole parameter of the page.
    pub fn parameters(&self) -> Vec<Parameter> {
        let mut list = Reader::new(self.body);
        core::iter::from_fn(|| Parameter::take(&mut list).ok()).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_of_parameters_comes_back_whole() {
        let parameters = [
            Parameter { code: 0, control: control::BINARY_LIST, value: Vec::from([0, 0, 0xff]) },
            Parameter { code: 0x102, control: control::COUNTER, value: Vec::from([7]) },
        ];
        let mut body = Vec::new();
        for parameter in &parameters {
            parameter.encode(&mut body);
        }
        let bytes = Page { code: 0x2f, subpage: None, body: &body }.encode();
        assert_eq!(bytes, [0xaf, 0, 0, 12, 0, 0, 0x23, 3, 0, 0, 0xff, 1, 2, 0x20, 1, 7]);
        assert_eq!(Page::parse(&bytes).unwrap().parameters(), parameters);
        assert_eq!(Page::parse(&bytes[..15]).unwrap().parameters(), parameters[..1]);
        assert_eq!(Page::parse(&bytes[..3]), Err(UnexpectedEof));
    }

    #[test]
    fn a_subpage_is_marked() {
        let bytes = Page { code: 0, subpage: Some(0xff), body: &[0, 0, 0, 0xff] }.encode();
        assert_eq!(bytes, [0xc0, 0xff, 0, 4, 0, 0, 0, 0xff]);
        assert_eq!(Page::parse(&bytes).unwrap().subpage, Some(0xff));
    }
}
