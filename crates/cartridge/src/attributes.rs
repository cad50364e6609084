//! Attributes of the medium auxiliary memory (MAM) that are kept on the cartridge.
//!
//! Values that follow from the state of the cartridge (capacities, loads, MiB written) are made by
//! [`crate::Cartridge::attribute`]; here are those that a host wrote.

use alloc::collections::BTreeMap;
use alloc::vec::Vec;
use core::fmt;

use base::bytes::{Reader, UnexpectedEof, Writer};

/// How many bytes the attributes of hosts can take, with [`ENTRY_LEN`] for each.
pub const SPACE: usize = 16 << 10;
/// What an attribute takes besides its value.
pub const ENTRY_LEN: usize = 6;
/// The longest value of a vendor-specific attribute.
const VENDOR_LEN_MAX: usize = 1024;

/// The format of an attribute, as SPC numbers it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AttributeFormat {
    /// A number or bytes.
    Binary,
    /// ASCII, padded with spaces.
    Ascii,
    /// Text in the character set of attribute 0805h.
    Text,
}

impl AttributeFormat {
    /// Returns the code in the header of an attribute.
    pub const fn code(self) -> u8 {
        match self {
            Self::Binary => 0,
            Self::Ascii => 1,
            Self::Text => 2,
        }
    }

    /// Returns the format of a code.
    pub const fn of_code(code: u8) -> Option<Self> {
        match code {
            0 => Some(Self::Binary),
            1 => Some(Self::Ascii),
            2 => Some(Self::Text),
            _ => None,
        }
    }
}

/// An attribute.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Attribute {
    /// The identifier.
    pub id: u16,
    /// The format of the value.
    pub format: AttributeFormat,
    /// Whether hosts cannot write it.
    pub is_read_only: bool,
    /// The value.
    pub value: Vec<u8>,
}

/// Why an attribute cannot be written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AttributeError {
    /// Hosts cannot write attributes with this identifier.
    ReadOnly,
    /// The identifier is none that the cartridge keeps.
    Unknown,
    /// The value is longer than the attribute can be.
    TooLong,
    /// The format is not that of the attribute.
    WrongFormat,
    /// The memory is full.
    NoSpace,
}

impl fmt::Display for AttributeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::ReadOnly => "the attribute is read-only",
            Self::Unknown => "the attribute is unknown",
            Self::TooLong => "the value of the attribute is too long",
            Self::WrongFormat => "the attribute has another format",
            Self::NoSpace => "the medium auxiliary memory is full",
        })
    }
}

/// The standard attributes that hosts write: identifier, format, length.
const HOST: &[(u16, AttributeFormat, usize)] = &[
    (0x0800, AttributeFormat::Ascii, 8),
    (0x0801, AttributeFormat::Ascii, 32),
    (0x0802, AttributeFormat::Ascii, 8),
    (0x0803, AttributeFormat::Text, 160),
    (0x0804, AttributeFormat::Ascii, 12),
    (0x0805, AttributeFormat::Binary, 1),
    (BARCODE, AttributeFormat::Ascii, 32),
    (0x0807, AttributeFormat::Text, 80),
    (0x0808, AttributeFormat::Text, 160),
    (0x080b, AttributeFormat::Ascii, 16),
    (COHERENCY, AttributeFormat::Binary, 1024),
];

/// The bar code.
pub const BARCODE: u16 = 0x0806;
/// The volume coherency information, which each partition has.
pub const COHERENCY: u16 = 0x080c;

/// The attributes that hosts wrote.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Attributes {
    /// By partition and identifier. Attributes that belong to the whole medium have partition 0.
    entries: BTreeMap<(u8, u16), (AttributeFormat, Vec<u8>)>,
}

impl Attributes {
    /// Writes an attribute, or removes it if `value` is empty.
    ///
    /// # Errors
    /// Nothing is changed if the attribute cannot be written.
    pub fn set(
        &mut self,
        partition: u8,
        id: u16,
        format: AttributeFormat,
        value: &[u8],
    ) -> Result<(), AttributeError> {
        let len_max = match id {
            0x0800..=0x0bff => {
                let known = HOST.iter().find(|(known, ..)| *known == id).ok_or(AttributeError::Unknown)?;
                if known.1 != format {
                    return Err(AttributeError::WrongFormat);
                }
                known.2
            }
            0x1400..=0x17ff => VENDOR_LEN_MAX,
            _ => return Err(AttributeError::ReadOnly),
        };
        if value.len() > len_max {
            return Err(AttributeError::TooLong);
        }
        let key = (scope(partition, id), id);
        if value.is_empty() {
            self.entries.remove(&key);
            return Ok(());
        }
        let replaced = self.entries.get(&key).map_or(0, |(_, old)| ENTRY_LEN + old.len());
        if (self.used() - replaced) + ENTRY_LEN + value.len() > SPACE {
            return Err(AttributeError::NoSpace);
        }
        self.entries.insert(key, (format, value.to_vec()));
        Ok(())
    }

    /// Returns an attribute of a partition, or of the medium.
    pub fn attribute(&self, partition: u8, id: u16) -> Option<Attribute> {
        let (format, value) = self.entries.get(&(scope(partition, id), id))?;
        Some(Attribute { id, format: *format, is_read_only: false, value: value.clone() })
    }

    /// Returns the identifiers of a partition and the medium, in ascending order.
    pub fn ids(&self, partition: u8) -> impl Iterator<Item = u16> {
        let ids = self.entries.keys();
        let of_partition = ids.filter(move |(at, id)| *at == scope(partition, *id)).map(|(_, id)| *id);
        let mut ids: Vec<u16> = of_partition.collect();
        ids.sort_unstable();
        ids.into_iter()
    }

    /// Returns how many bytes the attributes take.
    pub fn used(&self) -> usize {
        self.entries.values().map(|(_, value)| ENTRY_LEN + value.len()).sum()
    }

    /// Removes what belongs to partitions, which a new format has no more.
    pub(crate) fn remove_coherency(&mut self) {
        self.entries.retain(|(_, id), _| *id != COHERENCY);
    }

    pub(crate) fn encode(&self, out: &mut Writer<'_>) -> Result<(), UnexpectedEof> {
        out.u16(u16::try_from(self.entries.len()).map_err(|_| UnexpectedEof)?)?;
        for ((partition, id), (format, value)) in &self.entries {
            out.u8(*partition)?;
            out.u16(*id)?;
            out.u8(format.code())?;
            out.u16(u16::try_from(value.len()).map_err(|_| UnexpectedEof)?)?;
            out.put(value)?;
        }
        Ok(())
    }

    pub(crate) fn decode(from: &mut Reader<'_>) -> Option<Self> {
        let mut attributes = Self::default();
        let mut before = None;
        for _ in 0..from.u16().ok()? {
            let (partition, id) = (from.u8().ok()?, from.u16().ok()?);
            let format = AttributeFormat::of_code(from.u8().ok()?)?;
            let len = from.u16().ok()?;
            let value = from.take(usize::from(len)).ok()?;
            let is_next = before < Some((partition, id));
            before = Some((partition, id));
            if !is_next || value.is_empty() || partition > 3 || scope(partition, id) != partition {
                return None;
            }
            attributes.set(partition, id, format, value).ok()?;
        }
        Some(attributes)
    }
}

/// Returns under which partition an attribute is kept.
const fn scope(partition: u8, id: u16) -> u8 {
    if id == COHERENCY { partition } else { 0 }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::vec;

    #[test]
    fn a_host_writes_its_attributes_and_no_others() {
        let mut attributes = Attributes::default();
        let mut set = |id, format, value: &[u8]| attributes.set(1, id, format, value);
        assert_eq!(set(0x0000, AttributeFormat::Binary, &[0; 8]), Err(AttributeError::ReadOnly));
        assert_eq!(set(0x0400, AttributeFormat::Ascii, &[0; 8]), Err(AttributeError::ReadOnly));
        assert_eq!(set(0x0bff, AttributeFormat::Ascii, &[0; 8]), Err(AttributeError::Unknown));
        assert_eq!(set(0x0800, AttributeFormat::Text, b"a"), Err(AttributeError::WrongFormat));
        assert_eq!(set(0x0800, AttributeFormat::Ascii, b"too long "), Err(AttributeError::TooLong));
        assert_eq!(set(0x0801, AttributeFormat::Ascii, b"LTFS"), Ok(()));
        assert_eq!(set(COHERENCY, AttributeFormat::Binary, b"of 1"), Ok(()));
        assert_eq!(set(0x1623, AttributeFormat::Binary, &[1]), Ok(()));
        assert_eq!(attributes.ids(1).collect::<Vec<_>>(), [0x0801, COHERENCY, 0x1623]);
        assert_eq!(attributes.ids(0).collect::<Vec<_>>(), [0x0801, 0x1623]);
        assert_eq!(attributes.attribute(0, 0x0801).unwrap().value, b"LTFS");
        attributes.set(0, 0x0801, AttributeFormat::Ascii, b"").unwrap();
        assert_eq!(attributes.attribute(0, 0x0801), None);
    }

    #[test]
    fn the_memory_is_bounded_and_reads_back() {
        let mut attributes = Attributes::default();
        let mut full = false;
        for id in 0x1400..0x1420 {
            let done = attributes.set(0, id, AttributeFormat::Binary, &[7; VENDOR_LEN_MAX]);
            full |= done == Err(AttributeError::NoSpace);
        }
        assert!(full && attributes.used() <= SPACE);
        attributes.set(0, 0x1400, AttributeFormat::Binary, &[8; VENDOR_LEN_MAX]).unwrap();
        let mut out = vec![0xa5; 20_000];
        let mut writer = Writer::new(&mut out);
        attributes.encode(&mut writer).unwrap();
        let len = writer.len();
        assert_eq!(Attributes::decode(&mut Reader::new(&out[..len])), Some(attributes));
        assert_eq!(Attributes::decode(&mut Reader::new(&out[..len - 1])), None);
    }
}
