//! Tells that the device which a medium is was away and is there again.

use store::api::DeviceReturn;

use super::MediumAccess;

impl MediumAccess {
    /// Returns, once, how the device is there again.
    pub(crate) fn take_return(&mut self) -> Option<DeviceReturn> {
        self.store.take_return()
    }
}
