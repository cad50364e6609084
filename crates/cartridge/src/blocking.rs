//! Runs commands to their end on files that carry out operations at once.

use base::buffer::Buf;
use store::api::{Failure, OpAction, OpOutput};

use crate::Cartridge;
use crate::command::{Command, Outcome};
use crate::error::Error;
use crate::io::FileId;

/// The files of a cartridge, by operations that wait for their result.
pub trait Files {
    /// Carries out an operation, as [`FileId`] says.
    ///
    /// # Errors
    /// The file could not be read, written or flushed.
    fn perform(&mut self, file: FileId, action: OpAction) -> Result<OpOutput, Failure>;

    /// Takes a buffer that the next read can use, or drops it.
    fn recycle(&mut self, _: Buf) {}
}

/// Runs a command to its end.
///
/// # Errors
/// The error of the command.
pub fn run(cartridge: &mut Cartridge, files: &mut impl Files, command: Command) -> Result<Outcome, Error> {
    cartridge.handle_command(command);
    loop {
        while let Some(request) = cartridge.poll_request() {
            while let Some(spare) = cartridge.take_spare() {
                files.recycle(spare);
            }
            let result = files.perform(request.file, request.action);
            cartridge.handle_completion(request.id, result);
        }
        if let Some(outcome) = cartridge.poll_outcome() {
            return outcome;
        }
        if !cartridge.is_busy() {
            return Err(Error::Misuse);
        }
    }
}
