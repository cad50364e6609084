//! How a volume is wanted: as a block device or a file system, by one node or by several.

use crate::error::{CsiError, CsiResult};
use crate::proto::VolumeCapability;
use crate::proto::volume_capability::AccessType;
use crate::proto::volume_capability::access_mode::Mode;

/// A capability that targe has.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Capability {
    /// The access mode.
    pub mode: Mode,
    /// The file system; `None` for a block device.
    pub mount: Option<MountCapability>,
}

/// How a file system is wanted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MountCapability {
    /// Its type; `None` for what is there, or `ext4` on a blank volume.
    pub file_system: Option<String>,
    /// Its mount options.
    pub options: Vec<String>,
}

/// The types of file systems that the driver makes.
pub const FILE_SYSTEMS: [&str; 3] = ["ext4", "xfs", "ext3"];

impl Capability {
    /// Reads a capability.
    ///
    /// # Errors
    /// It is missing, incomplete, or one that targe does not have.
    pub fn of(wanted: Option<&VolumeCapability>) -> CsiResult<Self> {
        let wanted = wanted.ok_or_else(|| CsiError::invalid("the volume capability is missing"))?;
        let mode = wanted.access_mode.ok_or_else(|| CsiError::invalid("the access mode is missing"))?;
        let mode = Mode::try_from(mode.mode).unwrap_or(Mode::Unknown);
        if mode == Mode::Unknown {
            return Err(CsiError::invalid("the access mode is unknown"));
        }
        let mount = match &wanted.access_type {
            None => return Err(CsiError::invalid("the access type is missing")),
            Some(AccessType::Block(_)) => None,
            Some(AccessType::Mount(mount)) => Some(MountCapability {
                file_system: match mount.fs_type.as_str() {
                    "" => None,
                    name if FILE_SYSTEMS.contains(&name) => Some(name.to_owned()),
                    name => {
                        let known = FILE_SYSTEMS.join(", ");
                        return Err(CsiError::invalid(format!("file system {name}: targe makes {known}")));
                    }
                },
                options: mount.mount_flags.clone(),
            }),
        };
        if mount.is_some() && matches!(mode, Mode::MultiNodeSingleWriter | Mode::MultiNodeMultiWriter) {
            return Err(CsiError::invalid(
                "a file system of one disk cannot be written while several nodes have it mounted; use volumeMode: Block, \
                 or one node",
            ));
        }
        Ok(Self { mode, mount })
    }

    /// Returns whether a node with it may only read.
    pub const fn is_read_only(&self) -> bool {
        matches!(self.mode, Mode::SingleNodeReaderOnly | Mode::MultiNodeReaderOnly)
    }
}

/// Returns whether only one node may have the volume at a time.
pub const fn is_single_node(mode: Mode) -> bool {
    !matches!(mode, Mode::MultiNodeReaderOnly | Mode::MultiNodeSingleWriter | Mode::MultiNodeMultiWriter)
}
