//! The state writer: makes the persistent state of units durable on a thread of its own, so that no reactor
//! waits for the disk.

use std::io;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::JoinHandle;
use target::units::UnitId;

use drivers::message_queue::Handle;

use super::reactor_shard::ReactorShard;
use super::sanitize_record::SanitizeRecord;
use super::state::StateDir;
use crate::config::Naa;

/// A state that must be durable before a command is answered. There are never more of these under way than
/// PERSISTENT RESERVE OUT commands, which the task sets bound.
#[derive(Debug)]
pub(super) struct StateWrite {
    /// The reactor that waits for the write.
    pub(super) reactor: Handle<ReactorShard>,
    pub(super) unit: UnitId,
    pub(super) ticket: u64,
    /// The world-wide name of the unit, which names the file.
    pub(super) naa: Naa,
    /// The record of the unit's medium.
    pub(super) medium: Arc<SanitizeRecord>,
    pub(super) state: Vec<u8>,
}

/// The sender of writes to the state writer.
pub(super) type StateWriter = Sender<StateWrite>;

/// Starts the thread. It ends when the last sender is dropped.
pub(super) fn start(state: StateDir) -> io::Result<(StateWriter, JoinHandle<()>)> {
    let (sender, receiver) = channel();
    let thread =
        std::thread::Builder::new().name("saver".to_owned()).spawn(move || keep_all(&state, &receiver))?;
    Ok((sender, thread))
}

fn keep_all(state: &StateDir, state_writer: &Receiver<StateWrite>) {
    for StateWrite { reactor, unit, ticket, naa, medium, state: bytes } in state_writer {
        let kept = state.save(naa, &bytes, &medium);
        if let Err(error) = &kept {
            crate::error!("{error}; the command that needed it stored is refused");
        }
        let ok = kept.is_ok();
        // A reactor that has stopped answers no command, so an error is ignored.
        let _ = reactor.post(move |member, now| member.state_saved(now, unit, ticket, ok));
    }
}
