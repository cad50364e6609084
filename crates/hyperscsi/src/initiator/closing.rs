//! The closing messages of a session: the initiator's Disconnect, and the answer to the target's.

use alloc::boxed::Box;

use base::time::{Duration, Instant};

use super::session::{EndCause, Nexus, Session};
use crate::connection::{Connection, ConnectionEvent, DropReason, Message, MessageId, PathAddress};
use crate::frame::{Cmd, Header};
use crate::initiator::contract::LossReason;
use crate::pdu::disconnect::{Disconnect, DisconnectReason};

/// A session that has ended. Its transport still sends the closing message and receives the target's.
pub(super) struct ClosingNexus {
    pub(super) transport: Box<Connection>,
    /// The SID that this initiator chose.
    pub(super) sid: u32,
    keyed: bool,
    /// When the closing session is removed at the latest.
    pub(super) until: Instant,
    /// The last DONE that was sent in answer to a GOODBYE.
    done: Option<MessageId>,
    /// The closing message that the target has not acknowledged yet.
    pub(super) owed: Option<MessageId>,
}

/// How long the exchange of closing messages may take.
const PARTING: Duration = Duration::from_secs(1);

impl ClosingNexus {
    //= hyperscsi#section-14
    //# answered with DONE, and for 1 s again each time that it comes again
    fn answer(&mut self) {
        // The DONE before, if it is still retransmitted, is not needed beside the new one.
        if let Some(before) = self.done.take() {
            self.transport.withdraw(before);
        }
        self.done = Some(self.transport.send(Message::disconnect(Disconnect::Done, self.keyed)));
        self.owed = self.done;
    }

    /// Processes a frame of the closed session: only a GOODBYE still has a meaning.
    pub(super) fn frame_received(
        &mut self,
        (now, came): (Instant, Instant),
        address: PathAddress,
        header: Header,
        bytes: &mut [u8],
    ) -> Result<(), DropReason> {
        let mut asked = false;
        let taken =
            self.transport.frame_received(now, came, address, header, bytes, &mut |header, payload| {
                // In a keyed session, the transport drops every unprotected Disconnect.
                asked |= header.cmd == Cmd::Disconnect
                    && matches!(Disconnect::parse(payload), Ok(Disconnect::Goodbye(_)));
            });
        if asked {
            self.answer();
        }
        self.disregard();
        taken
    }

    /// Discards the events of the transport, except that it records the acknowledgement of the closing
    /// message.
    pub(super) fn disregard(&mut self) {
        while let Some(event) = self.transport.poll_event() {
            self.owed.take_if(
                |owed| matches!(&event, ConnectionEvent::Delivered(delivery) if delivery.message == *owed),
            );
        }
        self.transport.take_delivered_bodies().for_each(drop);
    }
}

impl Session {
    /// Returns whether a closing message is still under way, or the target's may still be answered: for a
    /// second after the end of a session.
    pub const fn is_closing(&self) -> bool {
        self.closing.is_some()
    }

    /// Returns whether the target has not acknowledged the last closing message of a session that has ended.
    pub fn has_unacked_closing(&self) -> bool {
        self.closing.as_ref().is_some_and(|old| old.owed.is_some())
    }

    /// Returns whether a SID is that of the session, or of one that ended less than a second ago.
    pub fn owns_sid(&self, sid: u32) -> bool {
        let old = self.closing.as_ref().map(|old| old.sid);
        old.into_iter().chain(self.nexus.as_ref().map(|nexus| nexus.sids.1)).any(|own| own == sid)
    }

    /// Sends the target a GOODBYE, which ends the session.
    pub(super) fn send_goodbye(&mut self, reason: DisconnectReason) {
        let Some(nexus) = self.nexus.as_deref_mut() else { return };
        if let Some(transport) = nexus.transport.as_deref_mut() {
            nexus.goodbye =
                Some(transport.send(Message::disconnect(Disconnect::Goodbye(reason), nexus.keyed)));
        }
    }

    /// Processes a Disconnect of the open session.
    pub(super) fn disconnected(&mut self, said: Disconnect) {
        if let (Disconnect::Goodbye(_), Some(nexus)) = (said, self.nexus.as_deref_mut()) {
            nexus.goodbye_heard = true;
        }
        match said {
            Disconnect::Done | Disconnect::Goodbye(_) if self.logout_deadline.is_some() => {
                self.end_cause = Some(EndCause::LoggedOut);
            }
            Disconnect::Goodbye(reason) => self.end_cause = Some(EndCause::Lost(LossReason::Ended(reason))),
            Disconnect::Done | Disconnect::Unknown { .. } => self.stats.malformed += 1,
        }
    }

    /// Keeps the transport of a session that ends, so that it can send the closing message.
    pub(super) fn part(&mut self, nexus: Nexus) {
        let Some(mut transport) = nexus.transport else { return };
        transport.withdraw_owned();
        let until = self.now.after(PARTING);
        let mut closing = ClosingNexus {
            transport,
            sid: nexus.sids.1,
            keyed: nexus.keyed,
            until,
            done: None,
            owed: nexus.goodbye,
        };
        if nexus.goodbye_heard {
            closing.answer();
        }
        self.closing = Some(closing);
    }
}
