//! How the data of a volume is protected on the network between the daemon and a node.

use serde::{Deserialize, Serialize};

/// The least protection of every session with the target of a volume.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Protection {
    /// None, with CHAP: what older volumes have, and all that the kernel's initiator can do.
    #[default]
    None,
    /// Against modification: an AEAD digest, whose keys come from the password login.
    Integrity,
    /// Also against reading.
    Encrypt,
}

impl Protection {
    const ALL: [Self; 3] = [Self::None, Self::Integrity, Self::Encrypt];

    /// Returns its name in parameters, publish contexts, URLs and the daemon's configuration.
    pub const fn name(self) -> &'static str {
        match self {
            Self::None => "none",
            Self::Integrity => "integrity",
            Self::Encrypt => "encrypt",
        }
    }

    /// Returns the protection of this name.
    pub fn by_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|protection| protection.name() == name)
    }

    /// Returns whether a session needs the password login, which gives the keys.
    pub const fn needs_keys(self) -> bool {
        !matches!(self, Self::None)
    }

    /// Returns whether there is none, which older records do not say.
    #[expect(clippy::trivially_copy_pass_by_ref, reason = "serde calls it so")]
    pub(crate) const fn is_none(&self) -> bool {
        matches!(self, Self::None)
    }
}
