//! The flush before a disk is detached.

use store::api::{Failure, Fault, OpAction};
use store::shared::SharedStore;

use crate::unaligned::UnalignedStore;

/// Flushes the disk, and waits until all that was written is durable.
pub(crate) fn flush(disk: &UnalignedStore) -> Result<(), Failure> {
    if disk.capabilities().read_only {
        return Ok(());
    }
    let (tell, told) = std::sync::mpsc::channel();
    // The send fails only if this thread has ended and dropped the receiver.
    disk.submit(OpAction::Flush, Box::new(move |result| drop(tell.send(result))));
    told.recv().unwrap_or_else(|_| Err(Fault::Gone.into())).map(drop)
}
