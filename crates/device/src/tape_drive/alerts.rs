//! TapeAlert flags (SSC-4, log page 2Eh): what went wrong since a host read them. All of these flags are
//! about the cartridge, so they end with its removal.

/// A TapeAlert flag by its number, which is the code of its log parameter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Alert {
    HardError = 0x03,
    Media = 0x04,
    ReadFailure = 0x05,
    WriteFailure = 0x06,
    WriteProtect = 0x09,
    NoRemoval = 0x0a,
    WormOverwrite = 0x3c,
}

/// How many flags there are.
const COUNT: u16 = 64;

/// The flags that are set.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct TapeAlerts(u64);

impl TapeAlerts {
    /// Sets a flag.
    pub(crate) const fn raise(&mut self, alert: Alert) {
        self.0 |= 1 << (alert as u16 - 1);
    }

    /// Returns the flags as bits, flag 1 as the lowest.
    pub(crate) const fn bits(self) -> u64 {
        self.0
    }

    /// Returns the flags of [`Self::bits`].
    pub(crate) const fn of_bits(bits: u64) -> Self {
        Self(bits)
    }

    /// Returns every flag with its number.
    pub(crate) fn flags(self) -> impl Iterator<Item = (u16, bool)> {
        (1..=COUNT).map(move |number| (number, self.0 >> (number - 1) & 1 == 1))
    }
}
