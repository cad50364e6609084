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

    /// Returns whether its mount options ask for a mount that may only be read. The last one counts, as for
    /// mount.
    pub fn mounts_read_only(&self) -> bool {
        let options = self.mount.iter().flat_map(|mount| &mount.options);
        let mut words = options.flat_map(|option| option.split(','));
        words.rfind(|word| ["ro", "rw"].contains(word)) == Some("ro")
    }
}

/// Returns whether only one node may have the volume at a time.
pub const fn is_single_node(mode: Mode) -> bool {
    !matches!(mode, Mode::MultiNodeReaderOnly | Mode::MultiNodeSingleWriter | Mode::MultiNodeMultiWriter)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_option_decides_whether_a_mount_may_only_be_read() {
        for (options, wanted) in [
            (&[][..], false),
            (&["noatime,ro"], true),
            (&["ro", "rw"], false),
            (&["rw", "ro"], true),
            (&["errors=ro"], false),
        ] {
            let options = options.iter().map(|option| (*option).to_owned()).collect();
            let mount = Some(MountCapability { file_system: None, options });
            let capability = Capability { mode: Mode::SingleNodeWriter, mount };
            assert_eq!(capability.mounts_read_only(), wanted, "{capability:?}");
        }
        assert!(!Capability { mode: Mode::SingleNodeWriter, mount: None }.mounts_read_only());
    }
}
