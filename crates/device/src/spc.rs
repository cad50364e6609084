//! The commands that every device type has (SPC-5 §6): identity, settings, reservations, reports.
//!
//! The values they use are defined in modules of their own ([`crate::inquiry`], [`crate::mode`],
//! [`crate::pr`], …); this module connects these with CDBs and with the rest of the unit.

mod buffer;
mod diagnostic;
mod identity;
mod information;
mod medium_removal;
mod mode;
mod report;
mod reservation;
mod table;

use alloc::vec::Vec;

use scsi::sense::{Asc, Sense};

use crate::device_server::DeviceServer;
use crate::device_server::outcome::Outcome;
use crate::pr::NexusName;
use crate::settings::Settings;

pub(crate) use table::ROWS;

impl DeviceServer {
    /// Recomputes the roles after a nexus was added or removed, or the persistent reservation changed.
    pub(crate) fn refresh_pr_roles(&mut self) {
        let pr = &self.spc.pr;
        let standing = |nexus| pr.role_of(&NexusName::of(nexus));
        self.spc.pr_roles =
            self.nexuses.iter().map(|state| (state.nexus.id, standing(&state.nexus))).collect();
    }

    /// Returns the default settings of the unit.
    pub(crate) const fn default_settings(&self) -> Settings {
        Settings::new(self.info.config.write_cache, self.info.config.tasks)
            .with_provisioning_reports(self.info.config.reports_provisioning())
    }

    /// Returns the settings after a start or a reset: the saved ones, or else the defaults. A write cache
    /// that the configuration disables stays disabled.
    pub(crate) fn power_on_settings(&self) -> Settings {
        let default = self.default_settings();
        match &self.spc.saved_settings {
            Some(saved) => Settings {
                write_cache: saved.write_cache && default.write_cache,
                nexus_task_sets: default.nexus_task_sets,
                provisioning_reports: match saved.provisioning_reports {
                    saved if saved.is_set => saved,
                    _ => default.provisioning_reports,
                },
                stream: default.stream,
                nexus: default.nexus,
                ..saved.clone()
            },
            None => default,
        }
    }
}

/// Returns parameter data with an allocation length.
const fn data(bytes: Vec<u8>, allocation: u32) -> Outcome {
    Outcome::ParameterData { bytes, allocation: allocation as u64 }
}

/// Returns parameter data, or CHECK CONDITION with the sense data in `Err`.
fn data_or(bytes: Result<Vec<u8>, Sense>, allocation: u32) -> Outcome {
    bytes.map_or_else(Outcome::CheckCondition, |bytes| data(bytes, allocation))
}

/// Returns GOOD, or CHECK CONDITION with the sense data in `Err`.
fn good_or(result: Result<(), Sense>) -> Outcome {
    result.map_or_else(Outcome::CheckCondition, |()| Outcome::Good)
}

const fn length_error() -> Outcome {
    Outcome::CheckCondition(Sense::illegal(Asc::PARAMETER_LIST_LENGTH_ERROR))
}

/// Refuses a parameter list whose length differs from the length in the CDB: nothing is cut or padded.
fn whole(list: &[u8], announced: u32) -> Result<&[u8], Outcome> {
    if u32::try_from(list.len()) == Ok(announced) { Ok(list) } else { Err(length_error()) }
}

#[cfg(test)]
mod tests;
