//! Mode parameters (SPC-5 §7.5) as bytes, for initiators and targets: headers, block descriptors and pages.

use alloc::vec::Vec;

use base::bytes::{Reader, UnexpectedEof};

/// Page codes. A page with subpages is identified by its code and a subpage code.
#[allow(missing_docs, reason = "the names are the standard's")]
pub mod page {
    pub const READ_WRITE_ERROR_RECOVERY: u8 = 0x01;
    pub const DISCONNECT_RECONNECT: u8 = 0x02;
    pub const WRITE_PARAMETERS: u8 = 0x05;
    pub const CACHING: u8 = 0x08;
    pub const CONTROL: u8 = 0x0a;
    pub const DATA_COMPRESSION: u8 = 0x0f;
    pub const DEVICE_CONFIGURATION: u8 = 0x10;
    pub const MEDIUM_PARTITION: u8 = 0x11;
    pub const POWER_CONDITION: u8 = 0x1a;
    pub const INFORMATIONAL_EXCEPTIONS: u8 = 0x1c;
    pub const TIMEOUT_AND_PROTECT: u8 = 0x1d;
    /// On a tape drive.
    pub const MEDIUM_CONFIGURATION: u8 = 0x1d;
    /// On a medium changer.
    pub const ELEMENT_ADDRESS_ASSIGNMENT: u8 = 0x1d;
    pub const TRANSPORT_GEOMETRY: u8 = 0x1e;
    pub const DEVICE_CAPABILITIES: u8 = 0x1f;
    pub const CAPABILITIES_AND_MECHANICAL_STATUS: u8 = 0x2a;
    /// Requests every page.
    pub const ALL: u8 = 0x3f;

    /// Subpage 01h of the control page.
    pub const CONTROL_EXTENSION: u8 = 0x01;
    /// The subpage of the logical block provisioning page, whose page code is that of informational
    /// exceptions.
    pub const LOGICAL_BLOCK_PROVISIONING: u8 = 0x02;
    /// Subpage 01h of the device configuration page.
    pub const DEVICE_CONFIGURATION_EXTENSION: u8 = 0x01;
    /// A subpage of the control page.
    pub const CONTROL_DATA_PROTECTION: u8 = 0xf0;
    /// Requests every subpage.
    pub const ALL_SUBPAGES: u8 = 0xff;
}

/// Which values of a page MODE SENSE requests (PC).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PageControl {
    /// The values in force.
    Current,
    /// A one for each bit that MODE SELECT can change.
    Changeable,
    /// The values that the device has before any change.
    Default,
    /// The values that are in force again after a power cycle.
    Saved,
}

impl PageControl {
    /// Decodes the two bits of PC.
    pub const fn from_code(code: u8) -> Self {
        match code & 3 {
            0 => Self::Current,
            1 => Self::Changeable,
            2 => Self::Default,
            _ => Self::Saved,
        }
    }
}

/// The two forms of a mode parameter header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HeaderFormat {
    /// Four bytes: MODE SENSE(6), MODE SELECT(6).
    Six,
    /// Eight bytes: MODE SENSE(10), MODE SELECT(10).
    Ten,
}

impl HeaderFormat {
    /// Returns the length of the header in bytes.
    pub const fn header_len(self) -> usize {
        match self {
            Self::Six => 4,
            Self::Ten => 8,
        }
    }
}

/// The mode parameter header, without its lengths.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Header {
    /// MEDIUM TYPE: zero for disks.
    pub medium_type: u8,
    /// DEVICE-SPECIFIC PARAMETER.
    pub device_specific: u8,
    /// LONGLBA: the block descriptor has 16 bytes; only in the header of ten-byte commands.
    pub long: bool,
}

/// Bits of the DEVICE-SPECIFIC PARAMETER of disks (SBC-4 §6.5.1).
#[allow(missing_docs, reason = "the names are the standard's")]
pub mod device_specific {
    pub const WP: u8 = 0x80;
    pub const DPOFUA: u8 = 0x10;
    /// BUFFERED MODE of tape drives (SSC-4): bits 6 to 4.
    pub const BUFFERED_MODE: u8 = 0x70;
}

/// A block descriptor of a disk (SBC-4 §6.5.2).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BlockDescriptor {
    /// NUMBER OF LOGICAL BLOCKS.
    pub blocks: u64,
    /// LOGICAL BLOCK LENGTH in bytes.
    pub block_len: u32,
}

impl BlockDescriptor {
    /// The length of the short form in bytes.
    pub const SHORT_LEN: usize = 8;
    /// The length of the long form in bytes.
    pub const LONG_LEN: usize = 16;

    /// Appends the bytes on the wire. In the short form, a number of blocks that exceeds 32 bits is written
    /// as FFFFFFFFh.
    pub fn encode(&self, long: bool, out: &mut Vec<u8>) {
        if long {
            out.extend_from_slice(&self.blocks.to_be_bytes());
            out.extend_from_slice(&[0; 4]);
            out.extend_from_slice(&self.block_len.to_be_bytes());
        } else {
            let blocks = u32::try_from(self.blocks).unwrap_or(u32::MAX);
            out.extend_from_slice(&blocks.to_be_bytes());
            let [_, len @ ..] = self.block_len.to_be_bytes();
            out.push(0);
            out.extend_from_slice(&len);
        }
    }

    /// Takes the next block descriptor from `list`.
    ///
    /// # Errors
    /// When the list ends too early.
    pub fn take(long: bool, list: &mut Reader<'_>) -> Result<Self, UnexpectedEof> {
        if long {
            let blocks = list.u64()?;
            list.u32()?;
            Ok(Self { blocks, block_len: list.u32()? })
        } else {
            let blocks = u64::from(list.u32()?);
            list.u8()?;
            Ok(Self { blocks, block_len: list.u24()? })
        }
    }
}

/// Returns mode parameters: the header, the block descriptor if there is one, and pages that are already
/// encoded. It sets MODE DATA LENGTH as MODE SENSE requires.
pub fn encode(
    form: HeaderFormat,
    header: Header,
    descriptor: Option<BlockDescriptor>,
    pages: &[u8],
) -> Vec<u8> {
    let mut body = Vec::new();
    if let Some(descriptor) = descriptor {
        descriptor.encode(header.long, &mut body);
    }
    let descriptor_len = body.len();
    body.extend_from_slice(pages);
    let mut bytes = Vec::with_capacity(form.header_len() + body.len());
    match form {
        HeaderFormat::Six => {
            let len8 = |len: usize| u8::try_from(len).unwrap_or(u8::MAX);
            bytes.push(len8(3 + body.len()));
            bytes.extend_from_slice(&[header.medium_type, header.device_specific, len8(descriptor_len)]);
        }
        HeaderFormat::Ten => {
            let len16 = |len: usize| u16::try_from(len).unwrap_or(u16::MAX).to_be_bytes();
            bytes.extend_from_slice(&len16(6 + body.len()));
            bytes.extend_from_slice(&[header.medium_type, header.device_specific, u8::from(header.long), 0]);
            bytes.extend_from_slice(&len16(descriptor_len));
        }
    }
    bytes.extend_from_slice(&body);
    bytes
}

/// Mode parameters as a view: the data that MODE SENSE returned, or the list that MODE SELECT received.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Parameters<'a> {
    /// The header.
    pub header: Header,
    /// The block descriptors, not parsed.
    pub descriptors: &'a [u8],
    /// The pages, not parsed.
    pub pages: &'a [u8],
}

impl<'a> Parameters<'a> {
    /// Separates the header and the block descriptors from the pages. It ignores MODE DATA LENGTH.
    ///
    /// # Errors
    /// When the bytes end within the header or the block descriptors.
    pub fn parse(form: HeaderFormat, bytes: &'a [u8]) -> Result<Self, UnexpectedEof> {
        let mut list = Reader::new(bytes);
        let (header, len) = match form {
            HeaderFormat::Six => {
                let [_, medium_type, device_specific, len] = list.array()?;
                (Header { medium_type, device_specific, long: false }, usize::from(len))
            }
            HeaderFormat::Ten => {
                let [_, _, medium_type, device_specific, flags, _] = list.array()?;
                let header = Header { medium_type, device_specific, long: flags & 1 == 1 };
                (header, usize::from(list.u16()?))
            }
        };
        let descriptors = list.take(len)?;
        Ok(Self { header, descriptors, pages: list.rest() })
    }
}

/// A mode page as a view.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Page<'a> {
    /// PAGE CODE.
    pub code: u8,
    /// SUBPAGE CODE; zero in the page format without one.
    pub subpage: u8,
    /// PS: the page can be saved. Reserved in MODE SELECT.
    pub saveable: bool,
    /// The bytes after the page's header.
    pub body: &'a [u8],
}

impl<'a> Page<'a> {
    /// Returns the length of the page's header in bytes.
    pub const fn header_len(&self) -> usize {
        if self.subpage == 0 { 2 } else { 4 }
    }

    /// Appends the bytes on the wire.
    pub fn encode(&self, out: &mut Vec<u8>) {
        let saveable = u8::from(self.saveable) << 7;
        if self.subpage == 0 {
            out.extend_from_slice(&[saveable | self.code, u8::try_from(self.body.len()).unwrap_or(u8::MAX)]);
        } else {
            out.extend_from_slice(&[saveable | 0x40 | self.code, self.subpage]);
            out.extend_from_slice(&u16::try_from(self.body.len()).unwrap_or(u16::MAX).to_be_bytes());
        }
        out.extend_from_slice(self.body);
    }

    /// Takes the next page from `list`. A page is a header and a body of bytes and never contains other
    /// pages, so one pass reads any list.
    ///
    /// # Errors
    /// When the list ends within the page.
    pub fn take(list: &mut Reader<'a>) -> Result<Self, UnexpectedEof> {
        let first = list.u8()?;
        let (subpage, len) = if first & 0x40 == 0 {
            (0, usize::from(list.u8()?))
        } else {
            (list.u8()?, usize::from(list.u16()?))
        };
        Ok(Self { code: first & 0x3f, subpage, saveable: first & 0x80 != 0, body: list.take(len)? })
    }

    /// Returns every whole page in `pages`.
    pub fn list(pages: &'a [u8]) -> Vec<Self> {
        let mut list = Reader::new(pages);
        core::iter::from_fn(|| Self::take(&mut list).ok()).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DESCRIPTOR: BlockDescriptor = BlockDescriptor { blocks: 0x1_0000_0002, block_len: 4096 };

    #[test]
    fn the_short_form_has_four_bytes_and_a_short_descriptor() {
        let header = Header { medium_type: 0, device_specific: device_specific::WP, long: false };
        let bytes = encode(HeaderFormat::Six, header, Some(DESCRIPTOR), &[0x0a, 0]);
        assert_eq!(bytes, [13, 0, 0x80, 8, 0xff, 0xff, 0xff, 0xff, 0, 0, 0x10, 0, 0x0a, 0]);
        let view = Parameters::parse(HeaderFormat::Six, &bytes).unwrap();
        assert_eq!((view.header, view.descriptors.len(), view.pages), (header, 8, &[0x0a, 0][..]));
        let read = BlockDescriptor::take(false, &mut Reader::new(view.descriptors)).unwrap();
        assert_eq!(read, BlockDescriptor { blocks: 0xffff_ffff, ..DESCRIPTOR });
    }

    #[test]
    fn the_long_form_has_eight_bytes_and_may_have_a_long_descriptor() {
        let header = Header { medium_type: 0, device_specific: device_specific::DPOFUA, long: true };
        let bytes = encode(HeaderFormat::Ten, header, Some(DESCRIPTOR), &[]);
        assert_eq!(bytes[..8], [0, 22, 0, 0x10, 1, 0, 0, 16]);
        assert_eq!(bytes[8..], [0, 0, 0, 1, 0, 0, 0, 2, 0, 0, 0, 0, 0, 0, 0x10, 0]);
        let view = Parameters::parse(HeaderFormat::Ten, &bytes).unwrap();
        assert_eq!(BlockDescriptor::take(true, &mut Reader::new(view.descriptors)), Ok(DESCRIPTOR));
        for len in 0..bytes.len() {
            assert_eq!(Parameters::parse(HeaderFormat::Ten, &bytes[..len]), Err(UnexpectedEof), "{len}");
        }
    }

    #[test]
    fn pages_come_with_and_without_a_subpage_code() {
        let plain = Page { code: 0x08, subpage: 0, saveable: true, body: &[1, 2] };
        let sub = Page { code: 0x0a, subpage: 1, saveable: false, body: &[3] };
        let mut bytes = Vec::new();
        plain.encode(&mut bytes);
        sub.encode(&mut bytes);
        assert_eq!(bytes, [0x88, 2, 1, 2, 0x4a, 1, 0, 1, 3]);
        assert_eq!(Page::list(&bytes), [plain, sub]);
        assert_eq!(Page::list(&bytes[..8]), [plain]);
    }
}
