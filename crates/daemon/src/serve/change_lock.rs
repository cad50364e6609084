//! Keeps clients from changing something on the reactors while another process takes over.

use std::sync::{PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard, TryLockError};

use super::changes::failure;
use crate::admin::api::{ErrorKind, Failure};

/// Held while a client changes something on the reactors. An upgrade waits until no client does, and no
/// client begins meanwhile.
#[derive(Debug, Default)]
pub(super) struct ChangeLock(RwLock<()>);

impl ChangeLock {
    /// Begins a change of a client.
    ///
    /// # Errors
    /// An upgrade is under way.
    pub(super) fn begin(&self) -> Result<RwLockReadGuard<'_, ()>, Failure> {
        match self.0.try_read() {
            Ok(guard) => Ok(guard),
            Err(TryLockError::Poisoned(poisoned)) => Ok(poisoned.into_inner()),
            Err(TryLockError::WouldBlock) => {
                Err(failure(ErrorKind::Unavailable, "an upgrade is under way; try again when it has ended"))
            }
        }
    }

    /// Keeps clients from changing anything, unless one does.
    pub(super) fn close(&self) -> Option<RwLockWriteGuard<'_, ()>> {
        match self.0.try_write() {
            Ok(guard) => Some(guard),
            Err(TryLockError::Poisoned(poisoned)) => Some(PoisonError::into_inner(poisoned)),
            Err(TryLockError::WouldBlock) => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_client_begins_a_change_during_an_upgrade_and_none_is_overtaken() {
        let lock = ChangeLock::default();
        let changing = (lock.begin().unwrap(), lock.begin().unwrap());
        assert!(lock.close().is_none());
        drop(changing);
        let upgrading = lock.close().unwrap();
        assert_eq!(lock.begin().unwrap_err().kind, ErrorKind::Unavailable);
        drop(upgrading);
        assert!(lock.begin().is_ok());
    }
}
