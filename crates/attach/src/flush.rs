//! The last thing before a disk is let go.

use store::api::{Failure, Fault, OpAction};
use store::shared::SharedStore;

use crate::unaligned::UnalignedStore;

/// Makes all that was written durable, waiting for it.
pub(crate) fn flush(disk: &UnalignedStore) -> Result<(), Failure> {
    if disk.capabilities().read_only {
        return Ok(());
    }
    let (tell, told) = std::sync::mpsc::channel();
    // Nobody listens any more only if this thread is gone.
    disk.submit(OpAction::Flush, Box::new(move |result| drop(tell.send(result))));
    told.recv().unwrap_or_else(|_| Err(Fault::Gone.into())).map(drop)
}
