//! Opens devices again that were removed from this host.

use super::ReactorShard;
use crate::config::Medium;

impl ReactorShard {
    /// Opens the devices again that were removed. The thread of each device does so, and the log says how it
    /// ended.
    pub(super) fn reopen_devices(&self) {
        for (id, device) in &self.devices {
            // A device of another process opens itself.
            if let Some(Medium::Sg { shared_with_host, .. }) = self.runtime.unit(*id).map(|unit| &unit.medium)
            {
                device.reopen(*shared_with_host);
            }
        }
    }
}
