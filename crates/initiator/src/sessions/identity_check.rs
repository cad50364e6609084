//! Implements the identity check: after a session recovery, a guarded unit must report the same device as
//! before.

use std::collections::VecDeque;
use std::time::Duration;

use base::time::Instant;
use scsi::lun::Lun;
use transport::initiator::SubmitError;

use super::{DriverEvent, Event, SessionEntry, SessionId, Sessions};
use crate::command::{CommandError, Reply};
use crate::identity::{Identity, OtherDevice};
use crate::retry::PendingCommand;

/// How long a unit may fail to report its device after its session is up again: units appear one by one when
/// a target starts.
const SILENCE_MAX: Duration = Duration::from_secs(60);
/// The interval between two identity checks of a unit that does not respond.
const ASK_AGAIN: Duration = Duration::from_millis(500);

/// A unit with its device.
#[derive(Debug)]
pub(super) struct GuardedLun {
    identity: Identity,
    /// The time since which an identity check is under way.
    asked: Option<Instant>,
    /// Whether the device changed after the identity check was sent, so that the answer may come from the old
    /// one.
    stale: bool,
    other: Option<OtherDevice>,
}

impl GuardedLun {
    /// Returns whether an identity check is under way.
    pub(super) const fn is_asked(&self) -> bool {
        self.asked.is_some()
    }
}

impl Sessions {
    /// Guards a unit with an identity check: see [`crate::driver::Driver::guard`].
    pub(crate) fn guard(&mut self, now: Instant, id: SessionId, lun: Lun, identity: Identity) {
        let Some(entry) = self.entries.get_mut(&id) else { return };
        if entry.down.is_none() && !entry.guarded_luns.contains_key(&lun) {
            entry.session.services_mut().require_identity_check(lun.0);
            entry.guarded_luns.insert(lun, GuardedLun { identity, asked: None, stale: false, other: None });
            entry.check_identities(now, id, &mut self.events);
        }
    }
}

impl SessionEntry {
    /// Starts an identity check of every guarded unit. Until it has ended, no other command is sent to the
    /// unit.
    pub(super) fn check_identities(
        &mut self,
        now: Instant,
        id: SessionId,
        events: &mut VecDeque<DriverEvent>,
    ) {
        let mut questions = Vec::new();
        for (lun, guarded_lun) in &mut self.guarded_luns {
            if guarded_lun.other.is_none() {
                (guarded_lun.asked, guarded_lun.stale) = (Some(now), false);
                questions.push(guarded_lun.identity.question_again(*lun));
            }
        }
        for question in questions {
            self.submit_or_queue(now, id, PendingCommand::identity_check(question), events);
        }
    }

    /// Starts an identity check of a guarded unit whose device changed while the session continued. Until it
    /// has ended, no other command is sent to the unit.
    pub(super) fn recheck_identity(
        &mut self,
        now: Instant,
        id: SessionId,
        lun: Lun,
        events: &mut VecDeque<DriverEvent>,
    ) {
        let Some(guarded_lun) = self.guarded_luns.get_mut(&lun) else { return };
        guarded_lun.stale = guarded_lun.asked.is_some();
        if !guarded_lun.stale && guarded_lun.other.is_none() {
            guarded_lun.asked = Some(now);
            let question = guarded_lun.identity.question_again(lun);
            self.session.services_mut().require_identity_check(lun.0);
            self.submit_or_queue(now, id, PendingCommand::identity_check(question), events);
        }
    }

    /// Processes the result of an identity check.
    pub(super) fn identity_checked(
        &mut self,
        now: Instant,
        id: SessionId,
        probe: PendingCommand,
        result: Result<Reply, CommandError>,
        events: &mut VecDeque<DriverEvent>,
    ) {
        let lun = probe.command.lun;
        let Some(guarded_lun) = self.guarded_luns.get_mut(&lun) else { return };
        let other = match result {
            Ok(reply) => match guarded_lun.identity.is_same(reply.bytes()) {
                Ok(()) if core::mem::take(&mut guarded_lun.stale) => return self.ask_later(now, probe),
                Ok(()) => {
                    guarded_lun.asked = None;
                    return self.session.services_mut().confirm_identity(now, lun.0);
                }
                Err(other) => other,
            },
            Err(CommandError::Refused(SubmitError::Full)) => return self.ask_later(now, probe),
            // The session was lost, and checks again once it is up.
            Err(CommandError::Lost(_) | CommandError::Refused(_) | CommandError::Down(_)) => return,
            Err(_) if guarded_lun.asked.is_some_and(|since| now.since(since) < SILENCE_MAX) => {
                return self.ask_later(now, probe);
            }
            Err(why) => OtherDevice { was: guarded_lun.identity.to_string(), is: format!("unknown: {why}") },
        };
        guarded_lun.other = Some(other.clone());
        self.session.services_mut().fail_identity(lun.0);
        events
            .push_back(DriverEvent::Session { session: id, event: Event::OtherDevice { lun, what: other } });
    }

    fn ask_later(&mut self, now: Instant, probe: PendingCommand) {
        self.delays += 1;
        self.delayed
            .insert((now.after(ASK_AGAIN), self.delays), PendingCommand::identity_check(probe.command));
    }

    /// Returns why no command may be sent to a unit.
    pub(super) fn guard_error(&self, pending: &PendingCommand) -> Option<CommandError> {
        let other = self.guarded_luns.get(&pending.command.lun)?.other.as_ref()?;
        (!pending.is_identity_check).then(|| CommandError::OtherDevice(Box::new(other.clone())))
    }
}
