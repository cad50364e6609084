//! The types of logical units that there are cases for.

/// A type of logical unit. Each table of cases is for one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UnitKind {
    /// A disk (SBC): the cases on iSCSI itself.
    Disk,
    /// A tape drive (SSC).
    Tape,
    /// A medium changer (SMC).
    Changer,
    /// A drive for CDs, DVDs or BDs (MMC).
    Disc,
}

impl UnitKind {
    /// Every type.
    pub const ALL: [Self; 4] = [Self::Disk, Self::Tape, Self::Changer, Self::Disc];

    /// Returns the type with this first byte of INQUIRY data: peripheral qualifier 0 and the peripheral
    /// device type.
    pub(crate) const fn of_inquiry(first: u8) -> Option<Self> {
        match first {
            0x00 => Some(Self::Disk),
            0x01 => Some(Self::Tape),
            0x05 => Some(Self::Disc),
            0x08 => Some(Self::Changer),
            _ => None,
        }
    }

    /// Returns the type in words, with its article.
    pub const fn words(self) -> &'static str {
        match self {
            Self::Disk => "a disk",
            Self::Tape => "a tape drive",
            Self::Changer => "a medium changer",
            Self::Disc => "a disc drive",
        }
    }
}
