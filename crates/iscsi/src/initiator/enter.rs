//! From the wish for a connection to full feature phase: attempts, logins, redirections (RFC 7143 §6.3).

use alloc::boxed::Box;

use base::state_machine::{Action, ConnId};
use base::time::{Duration, Instant};

use super::contract::{ConnectionDown, Down, Event, Purpose, Since, Slot, Up};
use super::place::{Control, Link, Stage, Timer};
use super::session::{FIRST_CMD_SN, Phase, Session};
use super::why::Why;
use crate::login::initiator::{self as login, CallStep, InitiatorLogin, LoggedIn, LoginCall, LoginPlan};
use crate::login::{LoginResponse, Stage as LoginStage, Status, VERSION};
use crate::name::Cid;
use crate::negotiate::Digest;
use crate::pdu::Message;
use crate::pdu::login_request::LoginRequest;
use crate::pdu::login_response;
use crate::receive::{Framing, Landing, Segment};
use crate::serial::{CmdSn, StatSn};

/// How often a login may be sent elsewhere before it counts as failed.
const MAX_REDIRECTS: u32 = 8;

/// A connection that was up for so long did not fail at once.
const STEADY: Duration = Duration::from_secs(5);

impl Session {
    /// Asks the owner to open a connection.
    pub(super) fn attempt(&mut self, now: Instant, slot: Slot) {
        let within = now.after(self.plan.limits.login_within);
        let Some(place) = self.places.get_mut(usize::from(slot.0)) else { return };
        if place.link.is_some() || !matches!(place.stage, Stage::Idle | Stage::Waiting) {
            return;
        }
        let portals = &self.plan.portals;
        let portal = portals.get(place.portal.checked_rem(portals.len()).unwrap_or(0));
        let Some(to) = place.redirected.clone().or_else(|| portal.map(|portal| portal.address.clone()))
        else {
            return;
        };
        place.stage = Stage::Connecting;
        place.deadlines.clear(Timer::Retry);
        place.deadlines.set(Timer::Login, within);
        self.events.push_back(Event::Connect { slot, to });
    }

    /// Takes note that a connection could not be opened.
    pub fn connect_failed(&mut self, now: Instant, slot: Slot) {
        if self.stage(slot) == Stage::Connecting {
            self.lose(now, slot, ConnectionDown::Unreachable);
            self.dispatch(now);
        }
    }

    /// Takes a connection that was opened for `slot`. `entropy` comes fresh from the operating system's generator.
    ///
    /// If nobody waits for it any more, it is aborted.
    pub fn connected(&mut self, now: Instant, conn: ConnId, slot: Slot, entropy: [u8; 32]) {
        if self.stage(slot) != Stage::Connecting {
            self.actions.push_back(Action::Abort(conn));
            return;
        }
        let itt = self.next_tag();
        let purpose = match (&self.plan.purpose, self.tsih) {
            (Purpose::Discovery, _) => login::Purpose::Discovery,
            (Purpose::Target(target), None) => login::Purpose::NewSession(target.clone()),
            (Purpose::Target(target), Some(tsih)) => {
                login::Purpose::Join { target: target.clone(), tsih, parameters: self.parameters }
            }
        };
        if self.tsih.is_none() {
            self.cmd_sn = FIRST_CMD_SN;
        }
        let plan = LoginPlan {
            initiator_alias: self.plan.alias.clone(),
            cid: Cid(slot.0),
            itt: itt.0,
            cmd_sn: self.cmd_sn.0,
            ..LoginPlan::new(
                self.plan.initiator.clone(),
                purpose,
                self.plan.isid,
                self.plan.auth.clone(),
                self.plan.keys.clone(),
            )
        };
        let mut login = InitiatorLogin::new(plan, entropy);
        let call = login.start();
        if let Some(place) = self.place_mut(slot) {
            place.stage = Stage::LoggingIn;
            place.link = Some(Box::new(Link::new(now, conn, login)));
        }
        self.call(slot, call);
    }

    fn call(&mut self, slot: Slot, call: LoginCall) {
        let request = LoginRequest {
            transit: call.transit,
            continues: call.cont,
            csg: call.csg.0,
            nsg: call.nsg.0,
            version_max: VERSION,
            version_min: VERSION,
            isid: call.isid.0,
            tsih: call.tsih.0,
            itt: crate::pdu::Itt(call.itt),
            cid: call.cid.0,
            cmd_sn: CmdSn(call.cmd_sn),
            exp_stat_sn: StatSn(0),
        };
        self.control(slot, Control::Login(request), call.data);
    }

    /// Takes a PDU of a login.
    pub(super) fn end_login_pdu(&mut self, now: Instant, slot: Slot, segment: Segment) -> Result<(), Why> {
        let Segment { bhs, landing, .. } = segment;
        let Landing::Append(buf) = landing else { return Err(Why::Bug) };
        let pdu = login_response::LoginResponse::decode(&bhs);
        let data = buf.filled().to_vec();
        self.pool.recycle_buf(buf);
        let pdu = pdu?;
        let [status_class, status_detail] = pdu.status.to_be_bytes();
        let response = LoginResponse {
            transit: pdu.transit,
            cont: pdu.continues,
            csg: LoginStage(pdu.csg),
            nsg: LoginStage(pdu.nsg),
            version_max: pdu.version_max,
            version_active: pdu.version_active,
            isid: pdu.isid,
            tsih: pdu.tsih,
            itt: pdu.itt.0,
            status_class,
            status_detail,
            data,
        };
        let Some(link) = self.link_mut(slot) else { return Err(Why::Bug) };
        link.exp_stat_sn = pdu.sn.stat_sn.next();
        let Some(login) = link.login.as_mut() else { return Err(Why::Bug) };
        match login.handle(&response) {
            CallStep::Send(call) => self.call(slot, call),
            CallStep::Complete(done) => self.logged_in(now, slot, *done, pdu.sn),
            CallStep::Redirected { to, permanently } => self.redirect(now, slot, to, permanently),
            CallStep::Refused(status) => self.lose(now, slot, ConnectionDown::Refused(status)),
            CallStep::Drop(why) => self.lose(now, slot, ConnectionDown::Login(why)),
        }
        Ok(())
    }

    fn logged_in(&mut self, now: Instant, slot: Slot, done: LoggedIn, sn: crate::pdu::TargetSn) {
        let joins = self.tsih.is_some();
        let parameters = done.negotiated.connection;
        self.stats.logins += 1;
        if !joins {
            self.tsih = Some(done.tsih);
            self.parameters = done.negotiated.session;
            self.portal_group = done.portal_group;
            (self.cmd_sn, self.exp_cmd_sn) = (FIRST_CMD_SN, FIRST_CMD_SN);
            self.max_cmd_sn = FIRST_CMD_SN.minus(1);
        }
        self.note_window(sn);
        let repairs = self.repairs();
        let silence = self.plan.limits.ping_after;
        let Some(place) = self.place_mut(slot) else { return };
        place.stage = Stage::Up;
        place.up_since = now;
        place.redirects = 0;
        place.deadlines.clear_all();
        if !silence.is_zero() {
            place.deadlines.set(Timer::Silence, now.after(silence));
        }
        let Some(link) = place.link.as_deref_mut() else { return };
        link.login = None;
        link.parameters = parameters;
        link.statuses_asked = link.exp_stat_sn;
        link.tell(link.exp_stat_sn);
        link.framing = Framing {
            header_digest: parameters.header_digest == Digest::Crc32c,
            data_digest: parameters.data_digest == Digest::Crc32c,
            data_len_max: parameters.initiator_max_recv,
            resync: repairs,
        };
        if self.phase != Phase::Up {
            self.come_up(done.peer_authenticated, joins);
        }
        self.events.push_back(Event::ConnectionUp { slot, parameters });
        self.adopt_own(now, slot);
        self.free_orphans(now);
        self.want_connections(now);
        if repairs {
            self.watch(now, slot);
        }
    }

    /// Takes note that the session has a connection again.
    fn come_up(&mut self, peer_authenticated: bool, continued: bool) {
        self.phase = Phase::Up;
        (self.patience, self.retain) = (None, None);
        let since = match (self.was_up, continued) {
            (false, _) => Since::First,
            (true, false) => Since::Rebuilt,
            (true, true) => Since::Continued,
        };
        match since {
            Since::First => {}
            Since::Rebuilt => {
                self.stats.sessions_rebuilt += 1;
                // Another device may be there.
                self.held.clone_from(&self.guarded);
            }
            Since::Continued => self.stats.sessions_continued += 1,
        }
        self.since = since;
        self.was_up = true;
        self.events.push_back(Event::Up(Box::new(Up {
            tsih: self.tsih.unwrap_or_default(),
            parameters: self.parameters,
            portal_group: self.portal_group,
            peer_authenticated,
            since,
        })));
    }

    /// Starts the connections that are wanted and allowed.
    pub(super) fn want_connections(&mut self, now: Instant) {
        if self.phase != Phase::Up || self.leaving {
            return;
        }
        for slot in (0..self.wanted.min(self.parameters.max_connections)).map(Slot) {
            if self.stage(slot) == Stage::Idle {
                if let Some(place) = self.place_mut(slot) {
                    place.portal = usize::from(slot.0);
                }
                self.attempt(now, slot);
            }
        }
    }

    /// Changes how many connections the session is to have; the target's MaxConnections is a limit. Connections
    /// that go are drained and logged out.
    pub fn set_connections(&mut self, now: Instant, count: u16) {
        self.wanted = count.clamp(1, super::contract::MAX_CONNECTIONS);
        if self.plan.purpose == Purpose::Discovery {
            self.wanted = 1;
        }
        self.want_connections(now);
        self.dispatch(now);
    }

    fn redirect(
        &mut self,
        now: Instant,
        slot: Slot,
        to: crate::login::directory::TargetAddress,
        permanently: bool,
    ) {
        let Some(place) = self.places.get_mut(usize::from(slot.0)) else { return };
        place.redirects += 1;
        if place.redirects > MAX_REDIRECTS {
            place.redirected = None;
            let status = if permanently { Status::MOVED_PERMANENTLY } else { Status::MOVED_TEMPORARILY };
            return self.lose(now, slot, ConnectionDown::Refused(status));
        }
        place.redirected = Some(to.clone());
        if let Some(link) = place.link.take() {
            self.actions.push_back(Action::Abort(link.conn));
        }
        place.stage = Stage::Idle;
        self.events.push_back(Event::Redirected { slot, to, permanently });
        self.attempt(now, slot);
    }

    pub(super) fn login_too_slow(&mut self, now: Instant, slot: Slot) {
        if self.stage(slot) == Stage::Connecting {
            self.events.push_back(Event::Forget { slot });
        }
        self.lose(now, slot, ConnectionDown::TooSlow);
    }

    /// Plans the next attempt at a place after one that failed, or a connection that was lost; or gives up.
    pub(super) fn try_again(
        &mut self,
        now: Instant,
        slot: Slot,
        why: ConnectionDown,
        was_up: bool,
        wait: Duration,
    ) {
        let (retry, first) = (self.plan.retry, !self.was_up);
        let steady = self.place(slot).is_some_and(|place| was_up && now.since(place.up_since) >= STEADY);
        let alone = self.phase != Phase::Up;
        let others =
            self.places.iter().any(|place| matches!(place.stage, Stage::Connecting | Stage::LoggingIn));
        let Some(place) = self.place_mut(slot) else { return };
        place.attempts = if steady { 0 } else { place.attempts.saturating_add(1) };
        let attempts = place.attempts;
        place.stage = Stage::Waiting;
        if !was_up {
            // Another portal may do; a redirection counts only while it leads somewhere.
            place.portal = place.portal.wrapping_add(1);
            place.redirected = None;
        }
        let portals = self.plan.portals.len();
        let more_portals = usize::try_from(attempts).unwrap_or(usize::MAX) < portals;
        if first && alone && !more_portals && !(retry.first && may_pass(why)) {
            return self.end(if may_pass(why) { Down::NoPath(why) } else { Down::Hopeless(why) });
        }
        let too_many = retry.attempts > 0 && attempts >= retry.attempts && !more_portals;
        if alone && !others && (too_many || retry.patience.is_zero()) && !first {
            return self.end(Down::NoPath(why));
        }
        if alone && self.patience.is_none() && !first {
            self.patience = Some(now.after(retry.patience));
        }
        // The first attempt is made at once, or as soon as the target allows.
        let backoff = match attempts.checked_sub(1) {
            None => Duration::ZERO,
            Some(0) if was_up => Duration::ZERO,
            Some(_) if first && more_portals => Duration::ZERO,
            Some(doublings) => retry.backoff.saturating_mul(1 << doublings.min(16)).min(retry.backoff_max),
        };
        if let Some(place) = self.place_mut(slot) {
            place.deadlines.set(Timer::Retry, now.after(backoff.max(wait)));
        }
    }
}

/// Returns whether what ended an attempt may be otherwise next time without anybody doing anything.
fn may_pass(why: ConnectionDown) -> bool {
    match why {
        ConnectionDown::Unreachable | ConnectionDown::TooSlow | ConnectionDown::Lost => true,
        ConnectionDown::Refused(status) => status.class() == Status::TARGET_ERROR.class(),
        _ => false,
    }
}
