//! Last words: what is said at the end of a session, and the answer to what the target says there.

use alloc::boxed::Box;

use base::time::{Duration, Instant};

use super::session::{Link, Session, Verdict};
use crate::association::{Association, Dropped, Event, Message, MessageId, PathAddress};
use crate::frame::{Cmd, Header};
use crate::initiator::contract::Lost;
use crate::pdu::disconnect::{Disconnect, DisconnectReason};

/// A session that has ended. Its transport still carries last words, and hears the target's.
pub(super) struct Parting {
    pub(super) transport: Box<Association>,
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

impl Parting {
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
    pub(super) fn frame(
        &mut self,
        (now, came): (Instant, Instant),
        address: PathAddress,
        header: Header,
        bytes: &mut [u8],
    ) -> Result<(), Dropped> {
        let mut asked = false;
        let taken = self.transport.frame(now, came, address, header, bytes, &mut |header, payload| {
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
            self.owed
                .take_if(|owed| matches!(&event, Event::Delivered(delivery) if delivery.message == *owed));
        }
        self.transport.spent().for_each(drop);
    }
}

impl Session {
    /// Returns whether last words are still under way, or answers to the target's: for a second after the end of a session.
    pub const fn is_parting(&self) -> bool {
        self.parting.is_some()
    }

    /// Returns whether the target has not acknowledged yet what was last said to it, in a session that has ended.
    pub fn has_last_words(&self) -> bool {
        self.parting.as_ref().is_some_and(|old| old.owed.is_some())
    }

    /// Returns whether frames of this name are the session's, or those of one that ended lately.
    pub fn answers_to(&self, sid: u32) -> bool {
        let old = self.parting.as_ref().map(|old| old.sid);
        old.into_iter().chain(self.link.as_ref().map(|link| link.sids.1)).any(|own| own == sid)
    }

    /// Tells the target that the session ends.
    pub(super) fn say_goodbye(&mut self, reason: DisconnectReason) {
        let Some(link) = self.link.as_deref_mut() else { return };
        if let Some(transport) = link.transport.as_deref_mut() {
            link.goodbye = Some(transport.send(Message::disconnect(Disconnect::Goodbye(reason), link.keyed)));
        }
    }

    /// Takes a Disconnect of the session itself.
    pub(super) fn disconnected(&mut self, said: Disconnect) {
        if let (Disconnect::Goodbye(_), Some(link)) = (said, self.link.as_deref_mut()) {
            link.goodbye_heard = true;
        }
        match said {
            Disconnect::Done | Disconnect::Goodbye(_) if self.farewell.is_some() => {
                self.verdict = Some(Verdict::LoggedOut);
            }
            Disconnect::Goodbye(reason) => self.verdict = Some(Verdict::Lost(Lost::Ended(reason))),
            Disconnect::Done | Disconnect::Unknown { .. } => self.stats.malformed += 1,
        }
    }

    /// Lets the transport of a session that ends carry its last words.
    pub(super) fn part(&mut self, link: Link) {
        let Some(mut transport) = link.transport else { return };
        transport.withdraw_owned();
        let until = self.now.after(PARTING);
        let mut parting =
            Parting { transport, sid: link.sids.1, keyed: link.keyed, until, done: None, owed: link.goodbye };
        if link.goodbye_heard {
            parting.answer();
        }
        self.parting = Some(parting);
    }
}
