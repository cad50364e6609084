//! What is logged about an export.

use ::nbd::client::Notice;
use store::api::{Failure, Fault};

use super::{ExportEvent, Inner};

impl Inner {
    /// Logs a notice of the client. Returns what the unit must be told.
    pub(super) fn log(&mut self, notice: Notice) -> Option<ExportEvent> {
        let within = self.patience.map_or("without a limit".to_owned(), |most| format!("up to {most:?}"));
        match notice {
            Notice::Lost => {
                if let Some(more) = self.throttle.may_log() {
                    let (label, uri) = (&self.label, &self.address);
                    crate::warning!(
                        "{label}: the connection to {uri} is lost; commands wait for the server {within}{more}"
                    );
                }
            }
            Notice::Broken(error) => {
                self.errors = self.errors.saturating_add(1);
                if let Some(more) = self.throttle.may_log() {
                    crate::error!("{}: {}: {error}; its connection is ended{more}", self.label, self.address);
                }
            }
            Notice::Unanswered => {
                let why = self.last_failure.take().map_or(String::new(), |why| format!(": {why}"));
                let (label, uri) = (&self.label, &self.address);
                crate::error!("{label}: {uri} has not answered in time; commands fail until it does{why}");
            }
            Notice::Back(repeated) => {
                let repeated = match repeated {
                    0 => String::new(),
                    _ => format!("; {repeated} writes that it may have lost were repeated"),
                };
                crate::info!("{}: {} answers again{repeated}", self.label, self.address);
            }
            Notice::LostChanges(fault) => {
                self.errors = self.errors.saturating_add(1);
                let (label, uri) = (&self.label, &self.address);
                crate::error!(
                    "{label}: {uri} has lost acknowledged writes ({fault}); every flush fails until targe lun accept-loss"
                );
                return Some(ExportEvent::LostChanges);
            }
            Notice::Resized => return Some(ExportEvent::Resized),
            Notice::Differs(why) => {
                let (label, uri) = (&self.label, &self.address);
                crate::error!(
                    "{label}: {uri}: {why}: nothing is read or written until this is corrected and the \
                     configuration is reloaded"
                );
                self.withheld = Some(why);
                return Some(ExportEvent::Withheld);
            }
        }
        None
    }

    /// Counts the failure of an operation, and logs it if the server reported it.
    pub(super) fn failed(&mut self, failure: Failure) {
        let what = match failure.fault {
            Fault::Medium => "read or write failed",
            Fault::NoSpace => "no space left",
            Fault::ReadOnly => "it is not writable",
            Fault::Hardware | Fault::Bug => "the server refuses a request",
            // That the server is away was logged once.
            Fault::Gone => {
                self.errors = self.errors.saturating_add(1);
                return;
            }
            _ => return,
        };
        self.errors = self.errors.saturating_add(1);
        if let Some(more) = self.throttle.may_log() {
            let at = failure.at.map_or(String::new(), |at| format!(" at byte {at}"));
            crate::error!("{}: {}: {what}{at}{more}", self.label, self.address);
        }
    }
}
