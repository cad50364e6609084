//! The generations of LTO that a cartridge can be.

/// A generation of LTO. It decides the capacity and what the device server reports.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Profile {
    /// LTO-5.
    Lto5,
    /// LTO-6.
    Lto6,
    /// LTO-7.
    Lto7,
    /// LTO-8.
    Lto8,
    /// LTO-9.
    Lto9,
}

impl Profile {
    /// All profiles, oldest first.
    pub const ALL: [Self; 5] = [Self::Lto5, Self::Lto6, Self::Lto7, Self::Lto8, Self::Lto9];

    /// Returns the profile of a generation.
    pub fn of_generation(generation: u8) -> Option<Self> {
        Self::ALL.into_iter().find(|profile| profile.generation() == generation)
    }

    /// Returns the profile of a name, such as `lto8`.
    pub fn of_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|profile| profile.name() == name)
    }

    /// Returns the name.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Lto5 => "lto5",
            Self::Lto6 => "lto6",
            Self::Lto7 => "lto7",
            Self::Lto8 => "lto8",
            Self::Lto9 => "lto9",
        }
    }

    /// Returns the number of the generation.
    pub const fn generation(self) -> u8 {
        match self {
            Self::Lto5 => 5,
            Self::Lto6 => 6,
            Self::Lto7 => 7,
            Self::Lto8 => 8,
            Self::Lto9 => 9,
        }
    }

    /// Returns the native capacity in bytes.
    pub const fn capacity(self) -> u64 {
        const TB: u64 = 1_000_000_000_000;
        match self {
            Self::Lto5 => 3 * TB / 2,
            Self::Lto6 => 5 * TB / 2,
            Self::Lto7 => 6 * TB,
            Self::Lto8 => 12 * TB,
            Self::Lto9 => 18 * TB,
        }
    }

    /// Returns the density code of the format.
    pub const fn density_code(self) -> u8 {
        match self {
            Self::Lto5 => 0x58,
            Self::Lto6 => 0x5a,
            Self::Lto7 => 0x5c,
            Self::Lto8 => 0x5e,
            Self::Lto9 => 0x60,
        }
    }

    /// Returns the medium type that MODE SENSE reports.
    pub const fn medium_type(self, is_worm: bool) -> u8 {
        (self.generation() << 4) | if is_worm { 0x0c } else { 0x08 }
    }

    /// Returns how many partitions a cartridge can have.
    pub const fn partitions_max(self) -> usize {
        match self {
            Self::Lto5 => 2,
            _ => 4,
        }
    }

    /// Returns the media identifier at the end of a bar code, such as `L8`, or `LY` for WORM.
    pub const fn media_id(self, is_worm: bool) -> &'static str {
        match (self, is_worm) {
            (Self::Lto5, false) => "L5",
            (Self::Lto6, false) => "L6",
            (Self::Lto7, false) => "L7",
            (Self::Lto8, false) => "L8",
            (Self::Lto9, false) => "L9",
            (Self::Lto5, true) => "LV",
            (Self::Lto6, true) => "LW",
            (Self::Lto7, true) => "LX",
            (Self::Lto8, true) => "LY",
            (Self::Lto9, true) => "LZ",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_are_those_of_the_generations() {
        let media: [(u8, u8); 5] = [(0x58, 0x5c), (0x68, 0x6c), (0x78, 0x7c), (0x88, 0x8c), (0x98, 0x9c)];
        for (profile, (data, worm)) in Profile::ALL.into_iter().zip(media) {
            assert_eq!((profile.medium_type(false), profile.medium_type(true)), (data, worm));
            assert_eq!(Profile::of_name(profile.name()), Some(profile));
            assert_eq!(Profile::of_generation(profile.generation()), Some(profile));
        }
        assert_eq!(Profile::of_name("lto4"), None);
    }
}
