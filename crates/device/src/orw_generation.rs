//! ORWRITE generations, which keep the initiators that share a bitmap synchronized (SBC-4 §4.27.2 to
//! §4.27.4). A change of generation clears bits; its sender chooses how late requests of the previous
//! generation are processed.

/// The generation codes of a unit. They survive a LOGICAL UNIT RESET, but no harder reset.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct OrwGenerations {
    current: u32,
    previous: u32,
    policy: Policy,
}

/// The ORWRITE processing policy: how a set operation is processed that expects the previous generation, and
/// one that expects any other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Policy {
    previous: Disposition,
    other: Disposition,
}

/// How a set operation is processed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Disposition {
    /// It is executed.
    Done,
    /// Its data is discarded, and the status is GOOD.
    Discarded,
    /// It ends with ORWRITE GENERATION DOES NOT MATCH.
    Refused,
}

impl Policy {
    /// Decodes PREVIOUS GENERATION PROCESSING (SBC-4 §4.27.4); `None` for a reserved code.
    pub(crate) const fn from_code(code: u8) -> Option<Self> {
        use Disposition::{Discarded, Done, Refused};
        let (previous, other) = match code {
            0 => (Done, Refused),
            2 => (Discarded, Refused),
            3 => (Done, Done),
            5 => (Discarded, Discarded),
            7 => (Refused, Refused),
            _ => return None,
        };
        Some(Self { previous, other })
    }
}

impl OrwGenerations {
    /// Returns how a set operation that expects this generation is processed.
    pub(crate) const fn disposition_of(&self, expected: u32) -> Disposition {
        if expected == self.current {
            Disposition::Done
        } else if expected == self.previous {
            self.policy.previous
        } else {
            self.policy.other
        }
    }

    /// Returns whether this is the current generation.
    pub(crate) const fn is_current(&self, expected: u32) -> bool {
        expected == self.current
    }

    /// Begins a generation.
    pub(crate) const fn change(&mut self, new: u32, policy: Policy) {
        *self = Self { current: new, previous: self.current, policy };
    }
}

impl Default for OrwGenerations {
    /// Returns the state after a power on: everything zero, policy 7h.
    fn default() -> Self {
        let policy = Policy { previous: Disposition::Refused, other: Disposition::Refused };
        Self { current: 0, previous: 0, policy }
    }
}
