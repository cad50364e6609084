//! Makes the state of units durable, on a thread of its own: the reactor goes on while the disk works.

use std::io;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::JoinHandle;

use drivers::message_queue::Handle;
use target::config::UnitId;

use super::reactor_shard::ReactorShard;
use super::state::StateDir;
use crate::config::Naa;

/// State to be kept before a command is answered. There are never more of these under way than PERSISTENT RESERVE OUT
/// commands, which are in task sets.
#[derive(Debug)]
pub(super) struct StateWrite {
    /// Who waits.
    pub(super) reactor: Handle<ReactorShard>,
    pub(super) unit: UnitId,
    pub(super) ticket: u64,
    /// Under which name.
    pub(super) naa: Naa,
    pub(super) state: Vec<u8>,
}

/// Where to send what is to be kept.
pub(super) type StateWriter = Sender<StateWrite>;

/// Starts the thread. It ends when the last sender is gone.
pub(super) fn start(state: StateDir) -> io::Result<(StateWriter, JoinHandle<()>)> {
    let (sender, receiver) = channel();
    let thread =
        std::thread::Builder::new().name("saver".to_owned()).spawn(move || keep_all(&state, &receiver))?;
    Ok((sender, thread))
}

fn keep_all(state: &StateDir, state_writer: &Receiver<StateWrite>) {
    for StateWrite { reactor, unit, ticket, naa, state: bytes } in state_writer {
        let kept = state.save(naa, &bytes);
        if let Err(error) = &kept {
            crate::error!("{error}; the command that wanted it kept is refused");
        }
        let ok = kept.is_ok();
        // A reactor that has stopped answers nobody.
        let _ = reactor.post(move |member, now| member.state_saved(now, unit, ticket, ok));
    }
}
