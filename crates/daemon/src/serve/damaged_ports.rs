//! Identifiers of target ports whose file is damaged.

use std::collections::BTreeSet;
use std::fs;

use device::persistent_state::registered;

use super::bindings;
use super::state::{StateDir, StateError};
use super::target_ports::TargetPorts;

/// Copies a damaged file of target port identifiers aside. Then no port has an identifier, and none of those
/// that records refer to is left: a host that registered or opened disks through a port must not be taken for
/// one that did so through another port.
///
/// # Errors
/// [`StateError`]
pub(super) fn replace(state: &StateDir, damaged: &[u8]) -> Result<TargetPorts, StateError> {
    let [path, aside] = state.keep_damaged_ports(damaged)?;
    let mut lost = TargetPorts::numbers_in(&String::from_utf8_lossy(damaged));
    lost.extend(bindings::ports_in(&state.load_bindings()?.unwrap_or_default()));
    crate::warning!(
        "{} cannot be read, and is kept as {}: every target port gets another relative port identifier",
        path.display(),
        aside.display()
    );
    for file in state.unit_files(".state")? {
        // The unit of a state that cannot be read is not served.
        let registered = fs::read(&file).map_or_else(|_| Vec::new(), |state| registered(&state));
        lost.extend(registered.iter().map(|(_, port)| port.0));
        let hosts: BTreeSet<String> =
            registered.iter().map(|(initiator, _)| bindings::port_text(initiator)).collect();
        if !hosts.is_empty() {
            crate::warning!(
                "the registrations in {} hold for target ports that are gone: until these initiator ports have \
                 registered again, or targe reservation clear has ended the reservation, they get RESERVATION \
                 CONFLICT where others do: {}",
                file.display(),
                hosts.into_iter().collect::<Vec<_>>().join(", ")
            );
        }
    }
    Ok(TargetPorts::without(lost))
}
