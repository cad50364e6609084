//! The write parameters page of a drive for discs (MMC-6). Of the discs that the drive writes, only a DVD-R
//! depends on it: writing programs also set it for others, where it has no effect.

/// The body of the page: its bytes after PAGE LENGTH.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct WriteParameters([u8; WriteParameters::LEN]);

/// WRITE TYPE.
mod write_type {
    pub(super) const INCREMENTAL: u8 = 0;
    pub(super) const DISC_AT_ONCE: u8 = 2;
}

impl WriteParameters {
    /// The length of the body.
    pub(crate) const LEN: usize = 50;

    /// Incremental recording, and a next session; mode 1 sectors, and the lengths that MMC-6 names.
    pub(crate) const DEFAULT: Self = Self::of(&[0x40, 0xc5, 0x08, 0x10, 0, 0, 0, 0, 0, 0, 0, 0x10, 0, 150]);

    /// The bits that MODE SELECT can change: not TEST WRITE, nor catalog numbers, which only CDs have.
    pub(crate) const CHANGEABLE: Self =
        Self::of(&[0x6f, 0xff, 0x0f, 0xff, 0, 0x3f, 0xff, 0, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff]);

    const fn of(first: &[u8]) -> Self {
        let mut body = [0; Self::LEN];
        if let Some((to, _)) = body.split_at_mut_checked(first.len()) {
            to.copy_from_slice(first);
        }
        Self(body)
    }

    /// Returns the bytes of the body.
    pub(crate) const fn bytes(&self) -> &[u8; Self::LEN] {
        &self.0
    }

    /// Returns the body that has these bytes; `None` if MODE SELECT does not accept it.
    pub(crate) fn of_body(body: &[u8]) -> Option<Self> {
        let body = Self(body.try_into().ok()?);
        body.is_possible().then_some(body)
    }

    /// Takes over the bits that can be changed.
    pub(crate) fn apply(&mut self, body: &[u8]) {
        for ((to, from), mask) in self.0.iter_mut().zip(body).zip(Self::CHANGEABLE.0) {
            *to = *to & !mask | from & mask;
        }
    }

    /// Returns whether the drive has the write type.
    pub(crate) const fn is_possible(&self) -> bool {
        matches!(self.write_type(), write_type::INCREMENTAL | write_type::DISC_AT_ONCE)
    }

    const fn write_type(&self) -> u8 {
        self.0[0] & 0x0f
    }

    /// Returns whether a session is written at once, into a track that was reserved for it.
    pub(crate) const fn is_disc_at_once(&self) -> bool {
        self.write_type() == write_type::DISC_AT_ONCE
    }

    /// Returns whether a session follows the one that is closed.
    pub(crate) const fn has_next_session(&self) -> bool {
        self.0[1] >> 6 == 3
    }

    /// Returns whether the track and its sectors are those of data: a data track mode, and DATA BLOCK TYPE 8.
    pub(crate) const fn is_data(&self) -> bool {
        self.0[1] & 0x04 != 0 && self.0[2] & 0x0f == 8
    }
}
