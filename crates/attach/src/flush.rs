//! The flush before a disk is detached.

use store::api::{Failure, Fault, OpAction};
use store::shared::SharedStore;

use crate::unaligned::UnalignedStore;

/// Flushes the disk, and waits until all that was written is durable. A disk that is read-only now may have
/// been written before. Fails for losses that no client knows of.
pub(crate) fn flush(disk: &UnalignedStore) -> Result<(), Failure> {
    let (tell, told) = std::sync::mpsc::channel();
    // The send fails only if this thread has ended and dropped the receiver.
    disk.for_new_client().submit(OpAction::Flush, Box::new(move |result| drop(tell.send(result))));
    let flushed = told.recv().unwrap_or_else(|_| Err(Fault::Gone.into())).map(drop);
    // A target may refuse to flush for one that only reads.
    if disk.capabilities().read_only && !disk.is_changed() { Ok(()) } else { flushed }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use base::buffer::Bytes;
    use store::api::Durability;

    use super::*;
    use crate::testing::Medium;

    #[test]
    fn a_disk_that_has_become_read_only_is_flushed() {
        for is_written in [false, true] {
            let medium = Medium::new(1 << 20, 512, 1 << 20);
            let disk = UnalignedStore::new(Arc::<Medium>::clone(&medium));
            if is_written {
                let data = Bytes::copied_from(&[1; 512]).into();
                let action = OpAction::Write { at: 0, data, durability: Durability::Cached };
                disk.submit(action, Box::new(|result| drop(result.unwrap())));
            }
            medium.change_profile(|profile| profile.read_only = true);
            medium.log();
            flush(&disk).unwrap();
            assert_eq!(medium.log(), ["flush 0+0"]);
            medium.fail(Some(Fault::Forbidden.into()));
            assert_eq!(flush(&disk).is_err(), is_written);
        }
    }
}
