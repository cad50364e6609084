//! Nexus bindings that go to another reactor with their target, and those that an operator has forgotten for
//! hosts that cannot log out.

use serde_json::Value;
use target::bindings::Forgotten;
use target::nexus::TargetNumber;

use super::Daemon;
use crate::admin::api::{ErrorKind, Failure};
use crate::admin::change_api::{ForgottenPorts, SessionSelector};
use crate::mailbox::channel;
use crate::serve::audit::AuditEntry;
use crate::serve::bindings::{self, ClaimedBindings};
use crate::serve::changes::failure;
use crate::serve::daemon_event::ForgetRequest;
use crate::serve::reactor_shard::ReactorShard;
use crate::serve::reactors::REACTOR_REPLY_TIMEOUT;
use crate::serve::runtime_config::RuntimeConfig;
use crate::serve::session_drop::parse_isid;

impl Daemon {
    /// Returns the bindings of targets that a configuration newly serves, by reactor: those that no reactor
    /// has had since the start, and those of targets that another reactor served before.
    pub(super) fn claim_bindings(&mut self, runtime: &RuntimeConfig) -> ClaimedBindings {
        let mut claimed = self.bindings.claim(runtime, &self.ids, &mut self.disks);
        let number_of = |name: &str| self.ids.target_number(name);
        let moved = bindings::moved_targets(&self.last_owners, &runtime.owners(), number_of);
        bindings::move_bindings(&moved, &self.reactors, &mut claimed);
        bindings::sort_by_age(&mut claimed);
        claimed
    }

    /// Forgets which disks initiator ports without a session have used, and answers when that is stored.
    pub(super) fn forget_bindings(&mut self, request: ForgetRequest) {
        let ForgetRequest { selector, peer, reply } = request;
        let subject = match &selector.target {
            Some(target) => format!("- record of {} with {target}", selector.initiator),
            None => format!("- records of {}", selector.initiator),
        };
        let forgotten = self.forget_ports(&selector);
        let message = match &forgotten {
            Ok(ForgottenPorts { records, in_use }) => format!("{records} forgotten, {in_use} in use"),
            Err(failure) => failure.message.clone(),
        };
        self.shared.audit.record(&AuditEntry {
            peer: Some(&peer),
            action: "session forget",
            changes: &[subject],
            result: if forgotten.is_ok() { "done" } else { "refused" },
            message: &message,
            ..AuditEntry::default()
        });
        let json = |ports| serde_json::to_value(ports).unwrap_or(Value::Null);
        // A client that has gone needs no answer.
        let _ = reply.send(forgotten.map(json));
    }

    fn forget_ports(&mut self, selector: &SessionSelector) -> Result<ForgottenPorts, Failure> {
        let isid = selector.isid.as_deref().map(parse_isid).transpose()?;
        let initiator = selector.initiator.to_lowercase();
        let target = selector.target.as_ref().map(|target| target.to_lowercase());
        // Reactors also have records of targets that the configuration no longer has.
        let number = target.as_ref().map(|target| self.ids.target_number(target).map(TargetNumber));
        // No reactor has records of a target that was not served since the start.
        let asked = if number == Some(None) { &[][..] } else { &self.reactors };
        let mut total = Forgotten::default();
        for running in asked {
            let (sender, receiver) = channel();
            let (number, initiator) = (number.flatten(), initiator.clone());
            let posted = running.handle.post(move |member: &mut ReactorShard, _| {
                let _ = sender.send(member.forget_bindings(number, &initiator, isid));
            });
            let found = posted.ok().and_then(|()| receiver.recv_timeout(REACTOR_REPLY_TIMEOUT).ok());
            let silent = || failure(ErrorKind::Unavailable, "a reactor does not answer");
            let Forgotten { records, in_use } = found.ok_or_else(silent)?;
            total = Forgotten { records: total.records + records, in_use: total.in_use + in_use };
        }
        total.records += self.bindings.forget(target.as_deref(), &initiator, isid);
        self.store_bindings();
        if self.store_bindings_at.is_some() && total.records > 0 {
            let why =
                "the records are forgotten, but this could not be stored: they are back after a restart";
            return Err(failure(ErrorKind::Unavailable, why));
        }
        let number = |count: usize| u32::try_from(count).unwrap_or(u32::MAX);
        Ok(ForgottenPorts { records: number(total.records), in_use: number(total.in_use) })
    }
}
