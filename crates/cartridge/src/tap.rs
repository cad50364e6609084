//! SIMH tape images (`.tap`): the marks between records, in the three forms that are in use.
//!
//! `docs/cartridge.md` names the source. The owner reads and writes the bytes; here is what they mean.

/// A form of tape images.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TapForm {
    /// SIMH: lengths of 4 bytes before and behind the data, which are padded to an even length.
    Simh,
    /// E11: as SIMH, without padding.
    E11,
    /// TPC: a length of 2 bytes before the data, which are padded to an even length.
    Tpc,
}

/// What is at a place of an image.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TapMark {
    /// A record of this many bytes.
    Record {
        /// The length of the data.
        len: u32,
        /// Whether the drive that the image was read with reported an error in it.
        is_bad: bool,
    },
    /// A filemark.
    Filemark,
    /// A gap: nothing.
    Gap,
    /// The end of the medium.
    EndOfMedium,
    /// A mark that has no meaning.
    Reserved(u32),
}

impl TapForm {
    /// All forms.
    pub const ALL: [Self; 3] = [Self::Simh, Self::E11, Self::Tpc];

    /// Returns the form of a name.
    pub fn of_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|form| form.name() == name)
    }

    /// Returns the name.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Simh => "simh",
            Self::E11 => "e11",
            Self::Tpc => "tpc",
        }
    }

    /// Returns how many bytes a mark has.
    pub const fn mark_len(self) -> usize {
        match self {
            Self::Simh | Self::E11 => 4,
            Self::Tpc => 2,
        }
    }

    /// Returns the longest record.
    pub const fn record_len_max(self) -> u32 {
        match self {
            Self::Simh | Self::E11 => 0x00ff_ffff,
            Self::Tpc => 0xfffe,
        }
    }

    /// Returns how many bytes of padding are behind data of this length.
    pub const fn padding(self, len: u32) -> u32 {
        match self {
            Self::Simh | Self::Tpc => len % 2,
            Self::E11 => 0,
        }
    }

    /// Returns whether the length is repeated behind the data.
    pub const fn has_trailer(self) -> bool {
        matches!(self, Self::Simh | Self::E11)
    }

    /// Returns the meaning of a mark, from its first [`Self::mark_len`] bytes; nothing if there are fewer.
    pub fn mark(self, bytes: &[u8]) -> Option<TapMark> {
        match self {
            Self::Tpc => Some(match u16::from_le_bytes(*bytes.first_chunk()?) {
                0 => TapMark::Filemark,
                0xffff => TapMark::EndOfMedium,
                len => TapMark::Record { len: u32::from(len), is_bad: false },
            }),
            Self::Simh | Self::E11 => Some(match u32::from_le_bytes(*bytes.first_chunk()?) {
                0 => TapMark::Filemark,
                0xffff_ffff => TapMark::EndOfMedium,
                0xffff_fffe => TapMark::Gap,
                word => match (word >> 24, word & 0x00ff_ffff) {
                    (_, 0) => TapMark::Reserved(word),
                    (0x00, len) => TapMark::Record { len, is_bad: false },
                    (0x80, len) => TapMark::Record { len, is_bad: true },
                    _ => TapMark::Reserved(word),
                },
            }),
        }
    }

    /// Returns the bytes before the data of a record, a filemark, or the end of the medium.
    pub fn mark_bytes(self, mark: TapMark) -> Mark {
        let word = match mark {
            TapMark::Record { len, is_bad } => len | u32::from(is_bad) << 31,
            TapMark::Filemark => 0,
            TapMark::Gap => 0xffff_fffe,
            TapMark::EndOfMedium => 0xffff_ffff,
            TapMark::Reserved(word) => word,
        };
        Mark { bytes: word.to_le_bytes(), len: self.mark_len() }
    }
}

/// The bytes of a mark.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mark {
    bytes: [u8; 4],
    len: usize,
}

impl Mark {
    /// Returns the bytes.
    pub fn as_bytes(&self) -> &[u8] {
        self.bytes.get(..self.len).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn marks_mean_what_the_format_says() {
        let simh = |word: u32| TapForm::Simh.mark(&word.to_le_bytes());
        assert_eq!(simh(0), Some(TapMark::Filemark));
        assert_eq!(simh(80), Some(TapMark::Record { len: 80, is_bad: false }));
        assert_eq!(simh(0x8000_0050), Some(TapMark::Record { len: 80, is_bad: true }));
        assert_eq!(simh(0xffff_ffff), Some(TapMark::EndOfMedium));
        assert_eq!(simh(0xffff_fffe), Some(TapMark::Gap));
        assert_eq!(simh(0x8000_0000), Some(TapMark::Reserved(0x8000_0000)));
        assert_eq!(simh(0x0100_0050), Some(TapMark::Reserved(0x0100_0050)));
        assert_eq!(TapForm::Simh.mark(&[0; 3]), None);
        assert_eq!(TapForm::Tpc.mark(&[0xff, 0xff]), Some(TapMark::EndOfMedium));
        assert_eq!(TapForm::Tpc.mark(&[80, 0]), Some(TapMark::Record { len: 80, is_bad: false }));
    }

    #[test]
    fn marks_read_back() {
        for form in TapForm::ALL {
            for mark in [TapMark::Filemark, TapMark::EndOfMedium, TapMark::Record { len: 77, is_bad: false }]
            {
                assert_eq!(form.mark(form.mark_bytes(mark).as_bytes()), Some(mark), "{form:?}");
            }
        }
    }
}
