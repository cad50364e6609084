//! Units whose device is looked at again before a session that was built anew uses them.

use std::collections::VecDeque;
use std::time::Duration;

use base::time::Instant;
use iscsi::initiator::contract::Refusal;
use scsi::lun::Lun;

use super::{Event, News, Seat, SessionId, Sessions};
use crate::care::Pending;
use crate::command::{CommandError, Reply};
use crate::identity::{Identity, OtherDevice};

/// How long a unit may not tell which device it is, after its session is up again: units appear one by one when a target
/// starts.
const SILENCE_MAX: Duration = Duration::from_secs(60);
/// How long until it is asked again.
const ASK_AGAIN: Duration = Duration::from_millis(500);

/// A unit and its device.
#[derive(Debug)]
pub(super) struct Ward {
    identity: Identity,
    /// Since when it is asked which device it is.
    asked: Option<Instant>,
    /// Whether the device changed since it was asked, so that the answer may be the old one's.
    stale: bool,
    other: Option<OtherDevice>,
}

impl Ward {
    /// Returns whether it is asked at present which device it is.
    pub(super) const fn is_asked(&self) -> bool {
        self.asked.is_some()
    }
}

impl Sessions {
    /// Guards a unit: see [`crate::driver::Driver::guard`].
    pub(crate) fn guard(&mut self, now: Instant, id: SessionId, lun: Lun, identity: Identity) {
        let Some(seat) = self.seats.get_mut(&id) else { return };
        if seat.down.is_none() && !seat.wards.contains_key(&lun) {
            seat.session.guard(lun.0);
            seat.wards.insert(lun, Ward { identity, asked: None, stale: false, other: None });
            seat.ask_who_is_there(now, id, &mut self.events);
        }
    }
}

impl Seat {
    /// Asks every guarded unit which device it is. Until it has answered, nothing else is sent to it.
    pub(super) fn ask_who_is_there(&mut self, now: Instant, id: SessionId, events: &mut VecDeque<Event>) {
        let mut questions = Vec::new();
        for (lun, ward) in &mut self.wards {
            if ward.other.is_none() {
                (ward.asked, ward.stale) = (Some(now), false);
                questions.push(ward.identity.question_again(*lun));
            }
        }
        for question in questions {
            self.start(now, id, Pending::probe(question), events);
        }
    }

    /// Asks a guarded unit which device it is, since its device changed in a session that goes on. Until it has answered,
    /// nothing else is sent to it.
    pub(super) fn ask_again(&mut self, now: Instant, id: SessionId, lun: Lun, events: &mut VecDeque<Event>) {
        let Some(ward) = self.wards.get_mut(&lun) else { return };
        ward.stale = ward.asked.is_some();
        if !ward.stale && ward.other.is_none() {
            ward.asked = Some(now);
            let question = ward.identity.question_again(lun);
            self.session.guard(lun.0);
            self.start(now, id, Pending::probe(question), events);
        }
    }

    /// Takes what a unit answered to that.
    pub(super) fn probed(
        &mut self,
        now: Instant,
        id: SessionId,
        probe: Pending,
        result: Result<Reply, CommandError>,
        events: &mut VecDeque<Event>,
    ) {
        let lun = probe.command.lun;
        let Some(ward) = self.wards.get_mut(&lun) else { return };
        let other = match result {
            Ok(reply) => match ward.identity.is_same(reply.bytes()) {
                Ok(()) if core::mem::take(&mut ward.stale) => return self.ask_later(now, probe),
                Ok(()) => {
                    ward.asked = None;
                    return self.session.vouch(now, lun.0);
                }
                Err(other) => other,
            },
            Err(CommandError::Refused(Refusal::Full)) => return self.ask_later(now, probe),
            // The session is gone, and asks again once it is back.
            Err(CommandError::Lost(_) | CommandError::Refused(_) | CommandError::Down(_)) => return,
            Err(_) if ward.asked.is_some_and(|since| now.since(since) < SILENCE_MAX) => {
                return self.ask_later(now, probe);
            }
            Err(why) => OtherDevice { was: ward.identity.to_string(), is: format!("not known: {why}") },
        };
        ward.other = Some(other.clone());
        self.session.forsake(lun.0);
        events.push_back(Event::Session { session: id, news: News::OtherDevice { lun, what: other } });
    }

    fn ask_later(&mut self, now: Instant, probe: Pending) {
        self.delays += 1;
        self.delayed.insert((now.after(ASK_AGAIN), self.delays), Pending::probe(probe.command));
    }

    /// Returns why nothing may be sent to a unit.
    pub(super) fn forbids(&self, pending: &Pending) -> Option<CommandError> {
        let other = self.wards.get(&pending.command.lun)?.other.as_ref()?;
        (!pending.is_probe).then(|| CommandError::OtherDevice(Box::new(other.clone())))
    }
}
