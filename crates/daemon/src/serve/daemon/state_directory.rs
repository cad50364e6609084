//! The state directory of a daemon that starts: locks it, and assigns the identifiers of target ports.

use super::sockets::Sockets;
use crate::config::Config;
use crate::serve::ServeError;
use crate::serve::damaged_ports;
use crate::serve::runtime_config::IdAllocator;
use crate::serve::state::{StateDir, StateLock};
use crate::serve::upgrade::Succession;

/// Opens the sockets and the state directory, and locks that before anything in it is read. The admin socket
/// is first: its error names what `targe status` needs.
pub(super) fn lock_state(
    config: &Config,
    mut succession: Option<&mut Succession>,
) -> Result<(StateDir, Sockets), ServeError> {
    let mut state = StateDir::open(&config.state_dir)?;
    let sockets = Sockets::of(config, succession.as_deref_mut())?;
    let handed_over = succession.and_then(|succession| succession.state_lock.take());
    state.keep(handed_over.map_or_else(|| StateLock::acquire(&config.state_dir), Ok)?);
    Ok((state, sockets))
}

/// Assigns identifiers to the target ports.
pub(super) fn assign_ports(
    numbers: &mut IdAllocator,
    config: &Config,
    state: &StateDir,
    is_successor: bool,
) -> Result<(), ServeError> {
    numbers.ports = state.load_ports(config)?.or_else(|damaged| damaged_ports::replace(state, &damaged))?;
    let known = numbers.ports.clone();
    numbers.assign_ports_and_records(config).map_err(ServeError::Failed)?;
    if !is_successor {
        // The identifiers are durable before anything can be reserved through one of the ports.
        return Ok(state.save_ports(&numbers.ports)?);
    }
    if numbers.ports != known {
        // The state directory is that of the other process, which has assigned all of them.
        return Err(ServeError::Failed("the identifiers of the target ports differ".to_owned()));
    }
    Ok(())
}
