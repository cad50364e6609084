//! Why a drive must keep its medium when its operator replaces it.

/// Why the operator must not take the medium out of a drive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RemovalObstacle {
    /// A nexus prevents it, or a command is writing or padding the disc.
    InUse,
    /// No host has synchronized what was appended to the disc, and nothing else prevents it.
    Unsaved,
    /// What was appended to the disc is being saved.
    Saving,
}
