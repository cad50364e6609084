//! Pings, Asynchronous Messages, Rejects and logouts (RFC 7143 §11.9, §11.14 to §11.19).

use alloc::vec::Vec;

use base::time::{Duration, Instant};

use super::contract::{ConnectionDown, Down, End, Event, Notice, Slot};
use super::manage::{Errand, Manage};
use super::place::{Control, Output, Place, Removal, Stage, Timer};
use super::session::{Phase, Session, TAG_MANAGE, TAG_SMALL, TAG_TASK, find, tag};
use super::task::Standing;
use super::why::{RejectText, Why};
use crate::pdu::async_message::{AsyncEventCode, AsyncMessage};
use crate::pdu::logout_request::{LogoutReason, LogoutRequest};
use crate::pdu::logout_response::{LogoutResponse, LogoutResult};
use crate::pdu::nop_in::NopIn;
use crate::pdu::nop_out::NopOut;
use crate::pdu::reject::{Reject, RejectReason};
use crate::pdu::snack::{Snack, SnackKind};
use crate::pdu::tmf_request::TmfFunction;
use crate::pdu::tmf_response::TmfResult;
use crate::pdu::{BHS_LEN, Bhs, Itt, Message, Opcode, Ttt};
use crate::serial::{CmdSn, StatSn};

/// How many small PDUs may wait to be sent on a connection: a target that asks for more and reads none is no peer.
const MAX_CONTROLS: usize = 4096;

impl Session {
    pub(super) fn nop_in(&mut self, now: Instant, slot: Slot, pdu: &NopIn) -> Result<(), Why> {
        if pdu.itt == Itt::NONE {
            self.note_window(pdu.sn);
            self.status_is_due(now, slot, pdu.sn.stat_sn);
            if !self.repairs() && self.link(slot).is_some_and(|link| pdu.sn.stat_sn.after(link.exp_stat_sn)) {
                // A status seems to be lost. The number of the answer to a ping leaves no doubt.
                self.ping(now, slot);
            }
        } else {
            if !self.take_status(now, slot, pdu.sn)? {
                return Ok(());
            }
            let repairs = self.repairs();
            let Some(link) = self.link_mut(slot) else { return Err(Why::Bug) };
            match link.ping.take_if(|(itt, _)| *itt == pdu.itt) {
                Some((_, sent)) => link.synced = sent,
                // A second ping went out before the answer to the first was here.
                None if repairs && pdu.itt.0 >> 30 == TAG_SMALL => {}
                None => return Err(Why::UnknownTask),
            }
            if self.is_command_lost(slot) {
                return Err(Why::CommandLost);
            }
            if !self.repairs() {
                let synced = self.link(slot).map_or(Instant::ORIGIN, |link| link.synced);
                self.repair_talk(slot, synced);
            }
        }
        if pdu.ttt == Ttt::NONE {
            return Ok(());
        }
        if self.link(slot).is_some_and(|link| link.controls >= MAX_CONTROLS) {
            return Err(Why::AnswersUnread);
        }
        //= rfc7143#section-11.18.2
        // The answer to a ping carries its transfer tag and LUN, is immediate, and wants no answer.
        self.control(slot, Control::Nop(nop(Itt::NONE, pdu.ttt, pdu.lun)), Vec::new());
        Ok(())
    }

    /// Makes sure that a status is acknowledged even if nothing else is sent.
    pub(super) fn acknowledge_in_time(&mut self, now: Instant, slot: Slot) {
        let after = self.plan.limits.acknowledge_after;
        if let Some(place) = self.place_mut(slot)
            && !after.is_zero()
            && !place.deadlines.is_set(Timer::Acknowledge)
        {
            place.deadlines.set(Timer::Acknowledge, now.after(after));
        }
    }

    /// Acknowledges statuses for which no other PDU did so in time.
    pub(super) fn acknowledge_statuses(&mut self, now: Instant, slot: Slot) {
        let after = self.plan.limits.acknowledge_after;
        let Some(link) = self.link_mut(slot) else { return };
        let Some(since) = link.untold_since else { return };
        let held_back = link.holds_back();
        let news = link.acknowledged() != link.told;
        let due = now.since(since) >= after;
        if !news && !held_back {
            link.untold_since = None;
        }
        if news && due && link.controls < MAX_CONTROLS {
            //= rfc7143#section-11.18
            // A NOP-Out may tell ExpStatSN when no other PDU does for long. It wants no answer, and is immediate.
            self.stats.status_acks += 1;
            self.control(slot, Control::Nop(nop(Itt::NONE, Ttt::NONE, 0)), Vec::new());
        }
        if (held_back || (news && !due))
            && let Some(place) = self.place_mut(slot)
        {
            let from = if due { now } else { since };
            place.deadlines.set(Timer::Acknowledge, from.after(after));
        }
    }

    /// Looks at a connection on which nothing may have come for a while, or whose oldest command nobody acknowledges.
    pub(super) fn silence(&mut self, now: Instant, slot: Slot) {
        let limits = self.plan.limits;
        let overdue = self.command_is_due(slot).map(|sent| sent.after(limits.ping_after));
        let Some(link) = self.link(slot) else { return };
        let next = match link.ping {
            // Something else may have come since, but then nothing any more.
            Some((_, sent)) if now.since(sent.max(link.heard)) >= limits.pong_within => {
                return self.misbehaved(now, slot, Why::PingUnanswered);
            }
            Some((_, sent)) => sent.max(link.heard).after(limits.pong_within),
            None if now.since(link.heard) >= limits.ping_after || overdue.is_some_and(|at| at <= now) => {
                self.ping(now, slot);
                now.after(limits.pong_within)
            }
            None => {
                let silent = link.heard.after(limits.ping_after);
                overdue.map_or(silent, |at| at.min(silent))
            }
        };
        if let Some(place) = self.place_mut(slot) {
            place.deadlines.set(Timer::Silence, next);
        }
    }

    /// Sends a ping, unless one is on the way.
    pub(super) fn ping(&mut self, now: Instant, slot: Slot) {
        let itt = self.next_tag();
        let Some(link) = self.link_mut(slot) else { return };
        if link.ping.is_none() {
            link.ping = Some((itt, now));
            // Ahead of what waits: a long queue is no silence.
            link.controls += 1;
            let ping = (Control::Nop(nop(itt, Ttt::NONE, 0)), Vec::new());
            link.out.push_front(Output::Control(alloc::boxed::Box::new(ping)));
            self.ask(slot);
            self.watch_if_repairing(now, slot);
        }
    }

    pub(super) fn async_message(
        &mut self,
        now: Instant,
        slot: Slot,
        message: AsyncMessage,
        data: &[u8],
    ) -> Result<(), Why> {
        if !self.take_status(now, slot, message.sn)? {
            return Ok(());
        }
        let is_scsi = message.event == AsyncEventCode::SCSI;
        let sense = if is_scsi { super::data::sense_of(data)? } else { None };
        let seconds = |count: u16| Duration::from_secs(count.into());
        let lun = message.lun;
        let (wait, retain) = (seconds(message.parameter2), seconds(message.parameter3));
        self.events.push_back(Event::Notice(Notice { slot, message, sense }));
        match message.event {
            AsyncEventCode::LOGOUT_REQUEST => self.asked_to_leave(now, slot, retain),
            AsyncEventCode::CONNECTION_DROP => {
                let dropped = Slot(message.parameter1);
                if self.place(dropped).is_some_and(|place| place.link.is_some()) {
                    self.wait(dropped, wait);
                    self.lose(now, dropped, ConnectionDown::Dropped);
                }
            }
            AsyncEventCode::SESSION_DROP => {
                if retain.is_zero() || !self.recovers() {
                    self.wait(Slot(0), wait);
                    self.lose_session(now, ConnectionDown::Dropped);
                } else {
                    for slot in (0..super::contract::MAX_CONNECTIONS).map(Slot) {
                        if self.link(slot).is_some() {
                            self.wait(slot, wait);
                            self.lose(now, slot, ConnectionDown::Dropped);
                        }
                    }
                }
            }
            AsyncEventCode::NEGOTIATION_REQUEST => self.talk_of_nothing(),
            AsyncEventCode::TASKS_TERMINATED => {
                let ended = |standing| matches!(standing, Standing::Sent(_) | Standing::Orphan(_));
                let keys =
                    self.tasks.iter().filter(|(_, task)| ended(task.standing) && task.request.lun == lun);
                for key in keys.map(|(key, _)| key).collect::<Vec<_>>() {
                    self.finish(key, End::Aborted);
                }
                //= rfc7143#section-4.2.3.4
                // The target waits until it is acknowledged, by a NOP-Out that names the unit (§11.9.1).
                self.control(slot, Control::Nop(nop(Itt::NONE, Ttt::NONE, lun)), Vec::new());
            }
            _ => {}
        }
        Ok(())
    }

    fn wait(&mut self, slot: Slot, wait: Duration) {
        if let Some(place) = self.place_mut(slot) {
            place.wait = Some(wait);
        }
    }

    /// Drains a connection that the target wants logged out, and logs it out in time whether it is empty or not.
    fn asked_to_leave(&mut self, now: Instant, slot: Slot, within: Duration) {
        let Some(place) = self.place_mut(slot) else { return };
        if place.stage == Stage::Up {
            place.stage = Stage::Draining;
            place.deadlines.set(Timer::Drain, now.after(within.mul_f32(0.75)));
        }
    }

    /// Drains connections that are not wanted any more, and logs out those that are empty.
    pub(super) fn drain_places(&mut self, now: Instant) {
        for slot in (0..super::contract::MAX_CONNECTIONS).map(Slot) {
            let unwanted = slot.0 >= self.wanted;
            let Some(place) = self.place_mut(slot) else { return };
            match place.stage {
                Stage::Up if unwanted => place.stage = Stage::Draining,
                Stage::Waiting if unwanted && place.removal == Removal::None => {
                    place.stage = Stage::Idle;
                    place.deadlines.clear(Timer::Retry);
                }
                _ => {}
            }
            let empty = place.link.as_ref().is_some_and(|link| link.tasks == 0 && link.adopting.is_empty());
            if place.stage == Stage::Draining && empty && !self.is_used(slot) {
                self.log_out_connection(now, slot);
            }
        }
    }

    /// Returns whether a connection carries requests other than tasks.
    fn is_used(&self, slot: Slot) -> bool {
        self.manages.iter().any(|(_, manage)| manage.slot == slot)
            || self.talks_on(slot)
            || self
                .places
                .iter()
                .any(|place| matches!(place.removal, Removal::Asked { by, .. } if by == slot))
    }

    /// Logs a connection out.
    pub(super) fn log_out_connection(&mut self, now: Instant, slot: Slot) {
        if !self.place(slot).is_some_and(Place::is_up) {
            return;
        }
        let leaves_tasks = self.link(slot).is_some_and(|link| link.tasks > 0);
        let reason = match leaves_tasks && self.recovers() {
            true => LogoutReason::RemoveForRecovery,
            false => LogoutReason::CloseConnection,
        };
        let itt = self.log_out(slot, reason, slot);
        let within = now.after(self.plan.limits.logout_within);
        if let Some(place) = self.place_mut(slot) {
            place.stage = Stage::LoggingOut;
            place.logout = Some(itt);
            place.deadlines.clear(Timer::Drain);
            place.deadlines.set(Timer::Logout, within);
        }
    }

    /// Sends a Logout Request on `by`, about the connection at `about`.
    pub(super) fn log_out(&mut self, by: Slot, reason: LogoutReason, about: Slot) -> Itt {
        let itt = self.next_tag();
        let request = LogoutRequest {
            immediate: true,
            reason,
            itt,
            cid: about.0,
            cmd_sn: CmdSn(0),
            exp_stat_sn: StatSn(0),
        };
        self.control(by, Control::Logout(request), Vec::new());
        itt
    }

    /// Takes no more requests and, once all that are open have ended, logs out. [`Event::Down`] follows.
    ///
    /// Connections leave one by one, each by a logout of its own, and the last takes the session with it: behind the
    /// answer nothing more comes on a connection, so that what the target sent before is received and judged, on all of them.
    pub fn logout(&mut self, now: Instant) {
        self.leaving = true;
        self.dispatch(now);
    }

    /// Returns whether nothing is left to do but to leave.
    pub(super) fn is_through(&self) -> bool {
        self.leaving && self.tasks.is_empty() && self.manages.is_empty() && self.talk.is_none()
    }

    /// Logs out if nothing is open any more.
    pub(super) fn take_leave(&mut self, now: Instant) {
        if self.phase == Phase::Down || !self.is_through() || self.farewell.is_some() {
            return;
        }
        let last = self.any_up(None);
        for slot in (0..super::contract::MAX_CONNECTIONS).map(Slot).filter(|slot| Some(*slot) != last) {
            if matches!(self.stage(slot), Stage::Up | Stage::Draining) {
                self.log_out_connection(now, slot);
            }
        }
        if self.places.iter().any(|place| place.stage == Stage::LoggingOut) {
            return;
        }
        match last {
            Some(slot) => {
                let itt = self.log_out(slot, LogoutReason::CloseSession, slot);
                self.farewell = Some((itt, now.after(self.plan.limits.logout_within)));
            }
            None => self.end(Down::LoggedOut),
        }
    }

    pub(super) fn logout_response(
        &mut self,
        now: Instant,
        slot: Slot,
        pdu: &LogoutResponse,
    ) -> Result<(), Why> {
        if !self.take_status(now, slot, pdu.sn)? {
            return Ok(());
        }
        if self.farewell.is_some_and(|(itt, _)| itt == pdu.itt) {
            self.end(Down::LoggedOut);
            return Ok(());
        }
        let wait = Duration::from_secs(pdu.time2wait.into());
        if self.place(slot).is_some_and(|place| place.logout == Some(pdu.itt)) {
            self.wait(slot, wait);
            self.lose(now, slot, ConnectionDown::LoggedOut);
            return Ok(());
        }
        let asked = |place: &Place| matches!(place.removal, Removal::Asked { by, itt } if by == slot && itt == pdu.itt);
        let Some(place) = self.places.iter_mut().find(|place| asked(place)) else {
            // What was asked twice, or arrived twice, is answered twice.
            return if self.ghosts.contains(&pdu.itt) { Ok(()) } else { Err(Why::UnknownTask) };
        };
        place.deadlines.clear(Timer::Logout);
        if matches!(pdu.response, LogoutResult::CLOSED | LogoutResult::NO_CID) {
            place.removal = Removal::Waits;
            place.deadlines.set(Timer::Adopt, now.after(wait));
        } else {
            self.lose_session(now, ConnectionDown::Misbehaved(Why::NotRecoverable));
        }
        self.remember(pdu.itt);
        Ok(())
    }

    pub(super) fn logout_too_slow(&mut self, now: Instant, slot: Slot) {
        let Some(place) = self.place_mut(slot) else { return };
        if place.logout.is_some() {
            return self.lose(now, slot, ConnectionDown::LoggedOut);
        }
        if let Removal::Asked { itt, .. } = place.removal {
            place.removal = Removal::None;
            self.remember(itt);
            self.free_orphans(now);
        }
    }

    pub(super) fn reject(&mut self, now: Instant, slot: Slot, pdu: &Reject, data: &[u8]) -> Result<(), Why> {
        if !self.take_status(now, slot, pdu.sn)? {
            return Ok(());
        }
        self.stats.rejects += 1;
        let bhs = data.first_chunk::<BHS_LEN>().ok_or(Why::RejectWithoutHeader)?;
        let bhs = Bhs::from_bytes(*bhs);
        match bhs.opcode() {
            Opcode::SCSI_COMMAND => self.command_rejected(slot, &bhs, pdu.reason),
            Opcode::TMF_REQUEST => self.manage_rejected(now, slot, &bhs, pdu.reason),
            Opcode::TEXT_REQUEST => {
                self.text_refused(bhs.itt());
                Ok(())
            }
            Opcode::NOP_OUT => {
                // Refused, but somebody is there.
                if let Some(link) = self.link_mut(slot) {
                    link.ping.take_if(|(itt, _)| *itt == bhs.itt());
                }
                Ok(())
            }
            Opcode::SNACK => self.snack_rejected(slot, &Snack::decode(&bhs)?),
            // The target asks for the data again, or ends the task.
            Opcode::DATA_OUT => Ok(()),
            // The login is over: its last request arrived twice.
            Opcode::LOGIN_REQUEST if self.repairs() => Ok(()),
            Opcode::LOGOUT_REQUEST if self.farewell.is_some_and(|(itt, _)| itt == bhs.itt()) => {
                self.end(Down::LoggedOut);
                Ok(())
            }
            _ => Err(Why::Rejected(RejectText(pdu.reason))),
        }
    }

    fn command_rejected(&mut self, slot: Slot, bhs: &Bhs, reason: RejectReason) -> Result<(), Why> {
        let Some(key) = find(&self.tasks, TAG_TASK, bhs.itt()) else { return Ok(()) };
        let Some(task) = self.tasks.get(key).filter(|task| task.standing == Standing::Sent(slot)) else {
            return Ok(());
        };
        let (numbered, cmd_sn, lun) = (task.numbered, task.cmd_sn, task.request.lun);
        let resent = task.resent;
        if reason == RejectReason::TASK_IN_PROGRESS {
            // The command arrived twice, and only its double is refused: to say that it was not carried out would be a
            // lie. The double of a numbered one is to be passed over in silence (RFC 7143 §4.2.2.1).
            return if numbered { Err(Why::Rejected(RejectText(reason))) } else { Ok(()) };
        }
        let acknowledged = numbered && cmd_sn.before(self.exp_cmd_sn);
        if reason == RejectReason::DATA_DIGEST_ERROR && !acknowledged {
            if !self.repairs() {
                return Err(Why::Rejected(RejectText(reason)));
            }
            self.stats.retries += 1;
            self.queue(slot, Output::Command(key));
            return Ok(());
        }
        if reason == RejectReason::DATA_DIGEST_ERROR && resent {
            // One copy was rejected, and the number counts because of another: that one has a response of its own.
            return Ok(());
        }
        self.finish(key, End::Rejected(reason));
        if numbered && !acknowledged {
            //= rfc7143#section-7.3
            // The number counts as not received; the gap is plugged by aborting what it belonged to.
            let manage = Manage {
                lun,
                referenced: (tag(TAG_TASK, key), cmd_sn),
                ..Manage::new(Errand::Plug, TmfFunction::ABORT_TASK, slot)
            };
            let key = self.manages.insert_with(|_| manage);
            self.queue(slot, Output::Manage(key));
        }
        Ok(())
    }

    fn manage_rejected(
        &mut self,
        now: Instant,
        slot: Slot,
        bhs: &Bhs,
        reason: RejectReason,
    ) -> Result<(), Why> {
        let Some(key) = find(&self.manages, TAG_MANAGE, bhs.itt()) else { return Ok(()) };
        let Some(manage) = self.manages.get(key).filter(|manage| manage.slot == slot) else { return Ok(()) };
        if manage.errand == Errand::Plug {
            return Err(Why::Rejected(RejectText(reason)));
        }
        // For a task on the move, try again later: the target has too many of these at a time.
        let result = match (manage.errand, reason) {
            (Errand::Reassign, RejectReason::TOO_MANY_IMMEDIATE) => TmfResult::STILL_ALLEGIANT,
            _ => TmfResult::REJECTED,
        };
        self.managed(now, key, result);
        Ok(())
    }

    fn snack_rejected(&mut self, slot: Slot, snack: &Snack) -> Result<(), Why> {
        if snack.kind == SnackKind::R_DATA {
            return self.anew_rejected(slot, snack);
        }
        // What came meanwhile need not be repaired, and one that asks for all there is may find nothing.
        if snack.run_length == 0 || !self.is_missing(slot, snack) {
            return Ok(());
        }
        match snack.kind {
            SnackKind::STATUS => Err(Why::NotRepaired),
            SnackKind::DATA_OR_R2T => {
                // The target ends the task with an error; a GOOD status would be a lie.
                let Some(key) = find(&self.tasks, TAG_TASK, snack.itt) else { return Ok(()) };
                let Some(task) = self.tasks.get_mut(key) else { return Ok(()) };
                task.unrepairable = true;
                if task.ending.as_ref().is_some_and(|ending| ending.status == 0) {
                    return Err(Why::NotRepaired);
                }
                self.conclude(key)
            }
            _ => Ok(()),
        }
    }
}

const fn nop(itt: Itt, ttt: Ttt, lun: u64) -> NopOut {
    NopOut { immediate: true, lun, itt, ttt, cmd_sn: CmdSn(0), exp_stat_sn: StatSn(0) }
}
