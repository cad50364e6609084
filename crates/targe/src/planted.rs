//! Switches on one planted bug in a binary that was built with the feature `planted`, so that a rig can show
//! that it finds the bug.

use base::fault_injection::{Bug, inject};

/// The environment variable that names the bug.
const VARIABLE: &str = "TARGE_PLANTED";

/// Switches on the bug that the environment names, if it names one, and logs that.
pub(crate) fn plant_from_environment() -> Result<(), String> {
    let Some(name) = std::env::var_os(VARIABLE) else { return Ok(()) };
    let name = name.to_string_lossy();
    let bug = Bug::named(&name).ok_or_else(|| format!("{VARIABLE}={name}: no such bug"))?;
    inject(Some(bug));
    eprintln!("targe: planted {bug:?}: this process breaks its promises on purpose");
    Ok(())
}
