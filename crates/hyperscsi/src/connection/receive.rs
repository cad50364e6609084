//! Received frames: finds the path, checks that the frame is authentic and new, and processes its
//! acknowledgement and its Ask.

use base::time::Instant;

use super::{Connection, ConnectionEvent, Delivery, DropReason, MessageId, spend, split};
use crate::Role;
use crate::exchange::xid::xid_ahead;
use crate::fault_injection::{Bug, is_injected};
use crate::frame::{Cmd, Flags, Header};
use crate::path::pn_space::BadAck;
use crate::path::{Path, PathAddress};
use crate::pdu::ack::Ack;
use crate::pdu::ask::{Ask, PathValidation as Step};
use crate::pdu::parts::Parts;
use crate::send_queue::DeliveredMessage;
use security::Level;

impl Connection {
    /// Processes a frame whose header was parsed and names this session. The port received it at `came`, and
    /// it is read `now`. If the frame is authentic and new, and concerns exchanges or the end of the session,
    /// `deliver` gets its payload with the header; of several parts, each with the header that it would have
    /// in a frame of its own.
    ///
    /// # Errors
    /// [`DropReason`], for counting: nothing was delivered.
    pub fn frame_received(
        &mut self,
        now: Instant,
        came: Instant,
        address: PathAddress,
        header: Header,
        frame: &mut [u8],
        deliver: &mut dyn FnMut(&Header, &[u8]),
    ) -> Result<(), DropReason> {
        let taken = self.take_frame((now, came), address, header, frame, deliver);
        taken.inspect_err(|why| self.drops.count(*why))
    }

    fn take_frame(
        &mut self,
        (now, came): (Instant, Instant),
        address: PathAddress,
        mut header: Header,
        frame: &mut [u8],
        deliver: &mut dyn FnMut(&Header, &[u8]),
    ) -> Result<(), DropReason> {
        let known = self.check_header(now, address, &header)?;
        let payload = &*self.decryptor.open(now, &header, frame).map_err(|_| DropReason::Damaged)?;
        // From here on the frame is the peer's, or in a session without keys that of any station that knows
        // the session.
        let index = match known {
            Some(index) => index,
            None => self.begin_path(now, address, &header, payload)?,
        };
        let (_, pn) = split(header.pn);
        let space_index = usize::from(header.protected);
        let elicits = header.flags.has(Flags::ELICITS);
        let path = self.paths.get_mut(index).ok_or(DropReason::NoPath)?;
        path.record_received((now, came), space_index, pn, elicits, self.plan.ack_delay_max);
        // In a keyed session an attacker can forge unprotected frames, so they are no sign of life.
        if header.protected == self.keyed {
            path.heard = now;
            path.unheard = false;
            if path.down {
                path.down = false;
                path.retry_at_once(now);
                if path.challenge == 0 {
                    self.events.push_back(ConnectionEvent::PathUp(path.id));
                }
                self.requeue_from_silent_paths();
            }
        }
        let (ack, rest) = match header.cmd == Cmd::Ack || header.flags.has(Flags::ACKS) {
            true => {
                Ack::parse(payload).map(|(ack, rest)| (Some(ack), rest)).map_err(|_| DropReason::Malformed)?
            }
            false => (None, payload),
        };
        //= hyperscsi#section-4.11
        //# A receiver MUST check the whole block before it looks at any part, and drop the payload whole if something
        //# is wrong with it
        let parts =
            header.flags.has(Flags::PARTS).then(|| Parts::parse(rest).map_err(|_| DropReason::Malformed));
        let parts = parts.transpose()?;
        if let Some(ack) = ack {
            self.handle_ack((now, came), &ack)?;
        }
        match header.cmd {
            Cmd::Ack => {}
            _ if is_injected(Bug::FramesAckUnkept) && header.flags.has(Flags::DATA) && pn % 64 == 63 => {}
            Cmd::Ask => {
                self.handle_ask(now, index, space_index, Ask::parse(rest).map_err(|_| DropReason::Malformed)?)
            }
            _ => match parts {
                Some(parts) => parts.each(&header, deliver),
                None => {
                    header.len = u16::try_from(rest.len()).unwrap_or(header.len);
                    deliver(&header, rest);
                }
            },
        }
        Ok(())
    }

    /// Performs the checks that need no decryption. Returns the path; `None` if the frame may begin one.
    fn check_header(
        &self,
        now: Instant,
        address: PathAddress,
        header: &Header,
    ) -> Result<Option<usize>, DropReason> {
        if header.sid != self.sid_in || self.lost {
            return Err(DropReason::NotOurs);
        }
        match header.cmd {
            Cmd::Request | Cmd::Reply | Cmd::Abort | Cmd::Disconnect | Cmd::Ask | Cmd::Ack => {}
            Cmd::Discovery | Cmd::Negotiate | Cmd::Negotiated => return Err(DropReason::NotOurs),
        }
        // In a keyed session, only frames of exchanges that their owner left unprotected may be unprotected,
        // and they acknowledge nothing.
        let exchange = self.plan.levels.has(Level::None)
            && matches!(header.cmd, Cmd::Request | Cmd::Reply)
            && !header.flags.has(Flags::ACKS);
        if header.protected != self.keyed && !(self.keyed && exchange) {
            return Err(DropReason::Protection);
        }
        let (id, pn) = split(header.pn);
        let Some(index) = self.paths.iter().position(|path| path.id == id) else {
            let space_index = usize::from(header.protected);
            let may_begin = header.cmd == Cmd::Ask && self.may_begin(now, id, space_index, pn);
            return if may_begin { Ok(None) } else { Err(DropReason::NoPath) };
        };
        let path = self.paths.get(index).filter(|path| path.address == address).ok_or(DropReason::NoPath)?;
        let come = &path.spaces.get(usize::from(header.protected)).ok_or(DropReason::NoPath)?.incoming;
        if !path.admits(usize::from(header.protected), pn, self.keyed) {
            return Err(DropReason::BeyondCredit);
        }
        if !(come.is_new(pn) || is_injected(Bug::FramesForgetReplays)) {
            return Err(DropReason::Replayed);
        }
        Ok(Some(index))
    }

    /// Begins a path that the peer opens, if the peer may.
    fn begin_path(
        &mut self,
        now: Instant,
        address: PathAddress,
        header: &Header,
        payload: &[u8],
    ) -> Result<usize, DropReason> {
        let behind = match header.flags.has(Flags::ACKS) {
            true => Ack::parse(payload).map_err(|_| DropReason::Malformed)?.1,
            false => payload,
        };
        let Ok(Ask::Path(Step { challenge, token, .. })) = Ask::parse(behind) else {
            return Err(DropReason::NoPath);
        };
        let (id, _) = split(header.pn);
        let port = self.ports.iter().find(|(port, _)| *port == address.port).map(|(_, state)| *state);
        //= hyperscsi#section-8.2
        //# in one without keys the first PATH MUST bring the TOKEN of
        //# ACCEPT, else it is dropped.
        let knows = self.keyed || token == Some(self.plan.token);
        let Some(port) = port.filter(|_| challenge != 0 && knows) else { return Err(DropReason::NoPath) };
        if !self.make_room(now, address.port) {
            return Err(DropReason::NoPath);
        }
        self.insert_path(now, id, address, &port);
        Ok(self.paths.len() - 1)
    }

    fn handle_ack(&mut self, (now, came): (Instant, Instant), ack: &Ack<'_>) -> Result<(), DropReason> {
        let (id, _) = split(ack.largest);
        let (events, spent, heads) = (&mut self.events, &mut self.delivered_bodies, &mut self.heads);
        let Some(index) = self.paths.iter().position(|path| path.id == id) else { return Ok(()) };
        let path = self.paths.get_mut(index).ok_or(DropReason::NoPath)?;
        let was_good = path.is_good();
        let mut delivered = |DeliveredMessage { key, message }| {
            let (owner, body_len) = (message.owner, message.body.len());
            events.push_back(ConnectionEvent::Delivered(Delivery {
                message: MessageId(key),
                owner,
                body_len,
            }));
            spend(spent, heads, message);
        };
        let outcome = path
            .acknowledge((now, came), ack, &mut self.send_queue, &mut delivered)
            .map_err(|BadAck::NeverSent| DropReason::FalseAck);
        let Ok(outcome) = outcome else {
            if self.keyed && !ack.sealed {
                // The acknowledgement is authentic, but unprotected frames can be forged: the frame that it
                // names was received, and this end did not send it.
                self.drops.false_acks += 1;
                return Ok(());
            }
            // In a session without keys any station may have sent it.
            if self.keyed {
                self.events.push_back(ConnectionEvent::Misbehaved);
            }
            return Err(DropReason::FalseAck);
        };
        let limit = self.peer_xid_limits.get_mut(usize::from(ack.sealed));
        if let Some(limit) = limit
            .filter(|own| ack.xid_limit != 0 && (**own == 0 || xid_ahead(ack.xid_limit, **own).is_some()))
        {
            *limit = ack.xid_limit;
            self.events.push_back(ConnectionEvent::XidLimit { sealed: ack.sealed, limit: ack.xid_limit });
        }
        self.apply_path_update(now, index, outcome);
        if !was_good && self.paths.get(index).is_some_and(Path::is_good) {
            self.requeue_from_silent_paths();
        }
        Ok(())
    }

    fn handle_ask(&mut self, now: Instant, index: usize, space_index: usize, ask: Ask) {
        if let Some(space) = self.paths.get_mut(index).and_then(|path| path.spaces.get_mut(space_index)) {
            space.incoming.hurry();
        }
        match ask {
            Ask::Ping | Ask::Mtu(_) => {}
            Ask::Path(step) => self.stepped(now, index, &step),
            Ask::Receives(len) => self.peer_receives(index, len),
            Ask::Leave { path } => {
                if self.paths.len() > 1 {
                    self.drop_path(now, path);
                }
            }
        }
    }

    fn peer_receives(&mut self, index: usize, len: u16) {
        if let Some(path) = self.paths.get_mut(index)
            && path.set_peer_mtu(usize::from(len))
        {
            self.events.push_back(ConnectionEvent::PathMtu { path: path.id, mtu: path.pmtu.current() });
        }
        self.measured(index);
    }

    /// Processes a step of path validation.
    fn stepped(&mut self, now: Instant, index: usize, step: &Step) {
        self.peer_receives(index, step.frame_max);
        let Some(path) = self.paths.get_mut(index) else { return };
        if step.challenge != 0 {
            path.echo = step.challenge;
            path.step_wanted = true;
        }
        if path.challenge == 0 || path.challenge != step.echo {
            return;
        }
        path.challenge = 0;
        path.retry_at_once(now);
        let (id, address) = (path.id, path.address);
        self.events.push_back(ConnectionEvent::PathUp(id));
        // The address of this end's port changed: this path replaces the one that had the old address.
        let old = self.paths.iter().find(|path| path.address == address && path.id != id).map(|path| path.id);
        if let Some(old) = old.filter(|_| self.role == Role::Initiator) {
            self.remove_path(now, old);
        }
        self.requeue_from_silent_paths();
    }
}
