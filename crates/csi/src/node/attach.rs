//! The ways to attach a volume: by the kernel's initiator ([`iscsi`](super::iscsi)), or by `targe attach`
//! ([`user_space`](super::user_space)).

use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::{NodeSettings, Staged, iscsi, user_space};
use crate::error::CsiResult;

/// A way to attach a volume.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum AttachMethod {
    /// The kernel's initiator, by open-iscsi.
    Iscsi,
    /// `targe attach --ublk`.
    Ublk,
    /// `targe attach --fuse` and a loop device.
    Loop,
}

impl AttachMethod {
    /// Chooses the best way that this host has; `None` if it has none.
    pub fn best(iscsiadm: &[String]) -> Option<Self> {
        let has = |path: &str| Path::new(path).exists();
        if has("/sys/class/iscsi_transport/tcp") && iscsi::has_tools(iscsiadm) {
            return Some(Self::Iscsi);
        }
        Self::best_of_targe()
    }

    /// Chooses the best way of `targe attach` that this host has, by which data can be encrypted on the
    /// network.
    pub fn best_of_targe() -> Option<Self> {
        let has = |path: &str| Path::new(path).exists();
        match () {
            () if has("/dev/ublk-control") => Some(Self::Ublk),
            () if has("/dev/fuse") && has("/dev/loop-control") => Some(Self::Loop),
            () => None,
        }
    }
}

impl NodeSettings {
    /// Attaches a volume, or finds it attached. Returns its block device, which is the right one.
    pub(super) fn attach(&self, staged: &Staged, secret: &str) -> CsiResult<PathBuf> {
        match staged.method {
            AttachMethod::Iscsi => iscsi::attach(self, staged, secret),
            AttachMethod::Ublk | AttachMethod::Loop => user_space::attach(self, staged, secret),
        }
    }

    /// Returns the block device of a volume that is attached.
    pub(super) fn device(&self, staged: &Staged) -> CsiResult<PathBuf> {
        match staged.method {
            AttachMethod::Iscsi => iscsi::device(staged),
            AttachMethod::Ublk | AttachMethod::Loop => user_space::device(self, staged),
        }
    }

    /// Returns whether the process of a volume was asked to end, and has not ended.
    pub(super) fn is_ending(&self, staged: &Staged) -> bool {
        match staged.method {
            AttachMethod::Iscsi => false,
            AttachMethod::Ublk | AttachMethod::Loop => user_space::is_ending(self, staged),
        }
    }

    /// Returns the block device of a volume, even one whose process has ended: a loop device only fails then,
    /// and the requests of a ublk device wait.
    pub(super) fn device_left(&self, staged: &Staged) -> Option<PathBuf> {
        match staged.method {
            AttachMethod::Loop => user_space::loop_device(self, staged),
            AttachMethod::Ublk => user_space::ublk_device(self, staged).or_else(|| self.device(staged).ok()),
            // The name of a device that has gone may be that of another volume now.
            AttachMethod::Iscsi => self.device(staged).ok(),
        }
    }

    /// Makes everything that waits for the disk of a volume fail, now and later.
    pub(super) fn interrupt(&self, staged: &Staged) -> CsiResult<()> {
        match staged.method {
            AttachMethod::Iscsi => iscsi::log_out(self, staged),
            AttachMethod::Ublk | AttachMethod::Loop => user_space::interrupt(self, staged),
        }
    }

    /// Deletes the device that an earlier publication left, of a volume that has no record yet.
    pub(super) fn delete_unrecorded(&self, staged: &Staged) -> CsiResult<()> {
        match staged.method {
            AttachMethod::Iscsi | AttachMethod::Loop => Ok(()),
            AttachMethod::Ublk => user_space::delete_unrecorded(self, staged),
        }
    }

    /// Detaches a volume, whatever of it is attached.
    pub(super) fn detach(&self, staged: &Staged) -> CsiResult<()> {
        match staged.method {
            AttachMethod::Iscsi => iscsi::detach(self, staged),
            AttachMethod::Ublk | AttachMethod::Loop => user_space::detach(self, staged),
        }
    }

    /// Makes the host notice the size of a volume, which should be at least the required one.
    pub(super) fn rescan(&self, staged: &Staged, device: &Path, required: u64) -> CsiResult<()> {
        match staged.method {
            AttachMethod::Iscsi => iscsi::rescan(device),
            AttachMethod::Ublk => Ok(()),
            AttachMethod::Loop => user_space::rescan(self, staged, device, required),
        }
    }

    /// Starts again what ended with the driver.
    pub(super) fn restore(&self, staged: &Staged) -> CsiResult<()> {
        match staged.method {
            AttachMethod::Iscsi => Ok(()),
            AttachMethod::Ublk | AttachMethod::Loop => user_space::restore(self, staged),
        }
    }
}
