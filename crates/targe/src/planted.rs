//! Switches on one planted bug in a binary that was built with the feature `planted`, so that a rig can show
//! that it finds the bug.

use base::fault_injection::inject;
use daemon::fault_injection::names;

/// The environment variable that names the bug.
const VARIABLE: &str = "TARGE_PLANTED";

/// Switches on the bug that the environment names, if it names one, and logs that.
pub(crate) fn plant_from_environment() -> Result<(), String> {
    let Some(name) = std::env::var_os(VARIABLE) else { return Ok(()) };
    let name = name.to_string_lossy();
    let cartridges = cartridge::fault_injection::Bug::ALL.iter().map(|bug| bug.name());
    if !names().chain(cartridges).any(|known| known == name) {
        return Err(format!("{VARIABLE}={name}: no such bug"));
    }
    inject(Some(&name));
    eprintln!("targe: planted {name}: this process breaks its promises on purpose");
    Ok(())
}
