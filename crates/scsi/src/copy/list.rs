//! The parameter lists of EXTENDED COPY, with one-byte list identifiers (LID1, SPC-4 §6.4) and four-byte list
//! identifiers (LID4, §6.5).

use alloc::vec::Vec;

use super::cscd::{self, Cscd};
use super::segment::{self, Segment, SegmentAction};
use super::{CopyError, ListId, len16, len32, size, u8_at, u16_at, u32_at};

/// The limits of a copy manager (RECEIVE COPY OPERATING PARAMETERS, SPC-4 §6.22).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// The most CSCD descriptors.
    pub cscds_max: u16,
    /// The most segment descriptors.
    pub segments_max: u16,
    /// The most bytes of descriptors of both kinds together.
    pub descriptors_len_max: u32,
    /// The most bytes of inline data.
    pub inline_len_max: u32,
    /// How CSCD descriptors are parsed.
    pub cscd_fields: CscdFields,
}

/// Which fields of an identification descriptor are evaluated.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum CscdFields {
    /// LU ID TYPE and NUL too (SPC-3 §6.3.6.1): LU ID TYPE must be 00b, and NUL makes the CSCD a null device,
    /// which cannot be queried.
    Spc3,
    /// LU ID TYPE does not apply to this descriptor and NUL is obsolete: both are ignored (SPC-4 §6.4.5).
    #[default]
    Spc4,
}

impl Limits {
    /// Returns the length of the longest parameter list that these limits allow in either format, in bytes.
    pub const fn list_len_max(&self) -> u32 {
        LID4_HEADER_BYTES.saturating_add(self.descriptors_len_max).saturating_add(self.inline_len_max)
    }
}

/// How the list identifier is used (SPC-4 §6.4.3).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ListIdUsage {
    /// The identifier names the operation, and its results are held until they are fetched.
    Hold,
    /// The identifier names the operation while it runs; its results need not be held.
    Discard,
    /// The operation has no identifier.
    Unnamed,
}

/// The two formats of the parameter list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// One-byte list identifier.
    Lid1,
    /// Four-byte list identifier.
    Lid4 {
        /// Whether status is returned before anything is copied (IMMED).
        immediate: bool,
        /// Whether the initiator requests sense data with GOOD status (G_SENSE).
        sense_on_good: bool,
    },
}

/// A whole parameter list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CopyList {
    /// The format of the list.
    pub format: Format,
    /// The list identifier, which names the operation unless `usage` is [`ListIdUsage::Unnamed`].
    pub list_id: ListId,
    /// How the list identifier is used.
    pub usage: ListIdUsage,
    /// The priority from 0 (highest) to 7, relative to other commands of the I_T nexus.
    pub priority: u8,
    /// The sources and destinations.
    pub cscds: Vec<Cscd>,
    /// The steps of the copy.
    pub segments: Vec<Segment>,
    /// The inline data.
    pub inline: Vec<u8>,
}

const LID1_HEADER_LEN: usize = 16;
const LID4_HEADER_LEN: usize = 48;
const LID4_HEADER_BYTES: u32 = 48;
const LID4_FORMAT: u8 = 0x01;
/// In a LID4 list the header itself counts as a CSCD descriptor of this type and length.
const LID4_HEADER_TYPE: u8 = 0xff;
const LID4_HEADER_CSCD_LEN: u16 = 0x20;

/// The lengths in the header, and the offsets of their fields.
struct Lengths {
    header: usize,
    cscd: usize,
    cscd_field: usize,
    segment: usize,
    inline: usize,
    inline_field: usize,
}

impl CopyList {
    /// Parses the parameter list of EXTENDED COPY(LID1).
    ///
    /// # Errors
    /// See [`CopyError`]. The header and its lengths are checked first, then the CSCD descriptors, then the
    /// segment descriptors.
    pub fn parse_lid1(list: &[u8], limits: &Limits) -> Result<Self, CopyError> {
        if list.len() < LID1_HEADER_LEN {
            return Err(CopyError::LengthError);
        }
        let usage = usage_of(list)?;
        let list_id = ListId(u32::from(u8_at(list, 0)));
        if usage == ListIdUsage::Unnamed && list_id.0 != 0 {
            return Err(CopyError::field(0));
        }
        let lengths = Lengths {
            header: LID1_HEADER_LEN,
            cscd: usize::from(u16_at(list, 2)),
            cscd_field: 2,
            segment: size(u32_at(list, 8)),
            inline: size(u32_at(list, 12)),
            inline_field: 12,
        };
        Self::body(Format::Lid1, list_id, usage, list, &lengths, limits)
    }

    /// Parses the parameter list of EXTENDED COPY(LID4).
    ///
    /// # Errors
    /// See [`CopyError`]. The header and its lengths are checked first, then the CSCD descriptors, then the
    /// segment descriptors.
    pub fn parse_lid4(list: &[u8], limits: &Limits) -> Result<Self, CopyError> {
        if list.len() < LID4_HEADER_LEN {
            return Err(CopyError::LengthError);
        }
        if u8_at(list, 0) != LID4_FORMAT {
            return Err(CopyError::field(0));
        }
        if u16_at(list, 2) != LID4_HEADER_CSCD_LEN {
            return Err(CopyError::field(2));
        }
        if u8_at(list, 16) != LID4_HEADER_TYPE {
            return Err(CopyError::field(16));
        }
        let usage = usage_of(list)?;
        let list_id = ListId(u32_at(list, 20));
        if usage == ListIdUsage::Unnamed && list_id.0 != 0 {
            return Err(CopyError::field(20));
        }
        let flags = u8_at(list, 15);
        let format = Format::Lid4 { immediate: flags & 1 != 0, sense_on_good: flags & 2 != 0 };
        let lengths = Lengths {
            header: LID4_HEADER_LEN,
            cscd: usize::from(u16_at(list, 42)),
            cscd_field: 42,
            segment: usize::from(u16_at(list, 44)),
            inline: usize::from(u16_at(list, 46)),
            inline_field: 46,
        };
        Self::body(format, list_id, usage, list, &lengths, limits)
    }

    fn body(
        format: Format,
        list_id: ListId,
        usage: ListIdUsage,
        list: &[u8],
        lengths: &Lengths,
        limits: &Limits,
    ) -> Result<Self, CopyError> {
        if lengths.inline > size(limits.inline_len_max) {
            return Err(CopyError::InlineDataTooLong { byte: lengths.inline_field });
        }
        let segments_at = lengths.header.saturating_add(lengths.cscd);
        let inline_at = segments_at.saturating_add(lengths.segment);
        let end = inline_at.saturating_add(lengths.inline);
        if inline_at - lengths.header > size(limits.descriptors_len_max) || end > list.len() {
            return Err(CopyError::LengthError);
        }
        let cscds = cscd::parse_all(list, lengths.header, lengths.cscd, lengths.cscd_field, limits)?;
        let segments = segment::parse_all(list, segments_at, lengths.segment, limits.segments_max)?;
        Ok(Self {
            format,
            list_id,
            usage,
            priority: u8_at(list, 1) & 7,
            cscds,
            segments,
            inline: list.get(inline_at..end).unwrap_or_default().to_vec(),
        })
    }

    /// Builds the parameter list. It ignores the `at` of segments.
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut segments = Vec::new();
        for segment in &self.segments {
            segment.action.append_to(&mut segments);
        }
        let usage = match self.usage {
            ListIdUsage::Hold => 0,
            ListIdUsage::Discard => 2,
            ListIdUsage::Unnamed => 3,
        };
        let flags = usage << 3 | self.priority & 7;
        let cscd_len = len16(self.cscds.len() * cscd::CSCD_LEN);
        let mut out = Vec::new();
        match self.format {
            Format::Lid1 => {
                out.extend([u8::try_from(self.list_id.0).unwrap_or(0), flags]);
                out.extend(cscd_len);
                out.extend([0; 4]);
                out.extend(len32(segments.len()));
                out.extend(len32(self.inline.len()));
            }
            Format::Lid4 { immediate, sense_on_good } => {
                out.extend([LID4_FORMAT, flags]);
                out.extend(LID4_HEADER_CSCD_LEN.to_be_bytes());
                out.extend([0; 11]);
                out.push(u8::from(sense_on_good) << 1 | u8::from(immediate));
                out.extend([LID4_HEADER_TYPE, 0, 0, 0]);
                out.extend(self.list_id.0.to_be_bytes());
                out.extend([0; 18]);
                out.extend(cscd_len);
                out.extend(len16(segments.len()));
                out.extend(len16(self.inline.len()));
            }
        }
        for cscd in &self.cscds {
            out.extend(cscd.to_bytes());
        }
        out.extend(segments);
        out.extend_from_slice(&self.inline);
        out
    }

    /// Makes a list without CSCDs and segments.
    pub const fn new(format: Format, list_id: ListId) -> Self {
        Self {
            format,
            list_id,
            usage: ListIdUsage::Hold,
            priority: 0,
            cscds: Vec::new(),
            segments: Vec::new(),
            inline: Vec::new(),
        }
    }

    /// Appends a segment.
    pub fn push(&mut self, action: SegmentAction) {
        self.segments.push(Segment { at: 0, action });
    }
}

fn usage_of(list: &[u8]) -> Result<ListIdUsage, CopyError> {
    match u8_at(list, 1) >> 3 & 3 {
        0 => Ok(ListIdUsage::Hold),
        2 => Ok(ListIdUsage::Discard),
        3 => Ok(ListIdUsage::Unnamed),
        _ => Err(CopyError::bits(1, 4)),
    }
}

#[cfg(test)]
mod tests;
