//! Last words: what is said at the end of a session, and the answer to what the target says there.

use alloc::boxed::Box;

use base::time::{Duration, Instant};

use super::session::{EndCause, Nexus, Session};
use crate::connection::{Connection, ConnectionEvent, DropReason, Message, MessageId, PathAddress};
use crate::frame::{Cmd, Header};
use crate::initiator::contract::LossReason;
use crate::pdu::disconnect::{Disconnect, DisconnectReason};

/// A session that has ended. Its transport still carries last words, and hears the target's.
pub(super) struct ClosingNexus {
    pub(super) transport: Box<Connection>,
    /// Our name for it.
    pub(super) sid: u32,
    keyed: bool,
    /// For how long at most.
    pub(super) until: Instant,
    /// The last answer to a GOODBYE.
    done: Option<MessageId>,
    /// What the target did not acknowledge yet.
    pub(super) owed: Option<MessageId>,
}

/// How long last words may take.
const PARTING: Duration = Duration::from_secs(1);

impl ClosingNexus {
    //= hyperscsi#section-14
    //# answered with DONE, and for 1 s again each time that it comes again
    fn answer(&mut self) {
        // The one before, if it is still repeated, is not needed beside this one.
        if let Some(before) = self.done.take() {
            self.transport.withdraw(before);
        }
        self.done = Some(self.transport.send(Message::disconnect(Disconnect::Done, self.keyed)));
        self.owed = self.done;
    }

    /// Takes a frame of the session: only a GOODBYE still means something.
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
                // In a keyed session, the transport takes none without protection.
                asked |= header.cmd == Cmd::Disconnect
                    && matches!(Disconnect::parse(payload), Ok(Disconnect::Goodbye(_)));
            });
        if asked {
            self.answer();
        }
        self.disregard();
        taken
    }

    /// Passes over what the transport has to tell but that last words have arrived: nobody is concerned any more.
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
    /// Returns whether last words are still under way, or answers to the target's: for a second after the end of a session.
    pub const fn is_closing(&self) -> bool {
        self.closing.is_some()
    }

    /// Returns whether the target has not acknowledged yet what was last said to it, in a session that has ended.
    pub fn has_unacked_closing(&self) -> bool {
        self.closing.as_ref().is_some_and(|old| old.owed.is_some())
    }

    /// Returns whether frames of this name are the session's, or those of one that ended lately.
    pub fn owns_sid(&self, sid: u32) -> bool {
        let old = self.closing.as_ref().map(|old| old.sid);
        old.into_iter().chain(self.nexus.as_ref().map(|nexus| nexus.sids.1)).any(|own| own == sid)
    }

    /// Tells the target that the session ends.
    pub(super) fn send_goodbye(&mut self, reason: DisconnectReason) {
        let Some(nexus) = self.nexus.as_deref_mut() else { return };
        if let Some(transport) = nexus.transport.as_deref_mut() {
            nexus.goodbye =
                Some(transport.send(Message::disconnect(Disconnect::Goodbye(reason), nexus.keyed)));
        }
    }

    /// Takes a Disconnect of the session itself.
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

    /// Lets the transport of a session that ends carry its last words.
    pub(super) fn part(&mut self, nexus: Nexus) {
        let Some(mut transport) = nexus.transport else { return };
        transport.withdraw_owned();
        let until = self.now.after(PARTING);
        let mut parting = ClosingNexus {
            transport,
            sid: nexus.sids.1,
            keyed: nexus.keyed,
            until,
            done: None,
            owed: nexus.goodbye,
        };
        if nexus.goodbye_heard {
            parting.answer();
        }
        self.closing = Some(parting);
    }
}
