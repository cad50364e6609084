//! ORWRITE generations, which keep the initiators that share a bitmap synchronized (SBC-4 §4.27.2 to
//! §4.27.4). A change of generation clears bits; its sender chooses how late requests of the previous
//! generation are processed.

use serde::{Deserialize, Serialize};

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

    /// Returns the generations in a document that one process hands over to the next.
    pub(crate) const fn export(&self) -> OrwState {
        let Self { current, previous, policy: Policy { previous: of_previous, other } } = self;
        OrwState {
            current: *current,
            previous: *previous,
            of_previous: of_previous.export(),
            of_other: other.export(),
        }
    }

    /// Returns the generations of a document.
    pub(crate) const fn restore(state: &OrwState) -> Self {
        let OrwState { current, previous, of_previous, of_other } = state;
        let policy = Policy { previous: of_previous.restore(), other: of_other.restore() };
        Self { current: *current, previous: *previous, policy }
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

/// The generations in a document that one process hands over to the next.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct OrwState {
    current: u32,
    previous: u32,
    of_previous: DispositionState,
    of_other: DispositionState,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
enum DispositionState {
    Done,
    Discarded,
    Refused,
}

impl Disposition {
    const fn export(self) -> DispositionState {
        match self {
            Self::Done => DispositionState::Done,
            Self::Discarded => DispositionState::Discarded,
            Self::Refused => DispositionState::Refused,
        }
    }
}

impl DispositionState {
    const fn restore(self) -> Disposition {
        match self {
            Self::Done => Disposition::Done,
            Self::Discarded => Disposition::Discarded,
            Self::Refused => Disposition::Refused,
        }
    }
}
