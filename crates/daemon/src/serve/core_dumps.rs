//! Keeps secrets out of core dumps.

use rustix::process::{DumpableBehavior, set_dumpable_behavior};

use crate::config::{Auth, Config};

/// Makes the process leave no core dump, if the configuration has secrets. Other processes of its user can
/// then not read its memory either. A configuration without secrets later does not undo this, since memory
/// can still hold the earlier ones.
pub(super) fn prevent(config: &Config) {
    if !has_secrets(config) {
        return;
    }
    if let Err(error) = set_dumpable_behavior(DumpableBehavior::NotDumpable) {
        let why = crate::os_error(&error.into());
        crate::warning!("core dumps cannot be switched off ({why}): one would contain secrets");
    }
}

fn has_secrets(config: &Config) -> bool {
    let needs_proof = |auth: &Auth| *auth != Auth::None;
    let groups = config.hyperscsi.iter().flat_map(|frames| &frames.groups);
    config.portals.iter().any(|portal| portal.tls.is_some())
        || needs_proof(&config.discovery_auth)
        || config.units.iter().any(|unit| unit.encrypt.is_some())
        || groups.into_iter().any(|group| group.password.is_some())
        || config.targets.iter().any(|target| {
            needs_proof(&target.auth) || target.acl.iter().flatten().any(|entry| needs_proof(&entry.auth))
        })
}
