//! Text negotiations: SendTargets, and the keys that can be negotiated in full feature phase (RFC 7143 §6.4,
//! appendix C). One negotiation of the owner runs at a time, and on each connection at most one of any kind:
//! besides the owner's, those that the target requests, and resets.

use alloc::boxed::Box;

use base::time::Instant;
use transport::initiator::SubmitError;

use super::connection_slot::{ConnectionSlot, ControlPdu};
use super::contract::{Event, Slot};
use super::protocol_error::ProtocolError;
use super::session::{Phase, Session, TAG_SMALL};
use super::text_exchange::{KeyAnswer, TextExchange, Topic};
use crate::discovery::TargetList;
use crate::keys::{Key, Senders, Usage};
use crate::name::IscsiName;
use crate::negotiate::full_feature::{Agreed, InitiatorText, OwnedTextRequest, TextReply};
use crate::pdu::text_request::TextRequest;
use crate::pdu::text_response::TextResponse;
use crate::pdu::{Itt, Ttt};
use crate::serial::{CmdSn, StatSn};
use crate::text::value::number_in;
use crate::text::{MAX_TEXT, Pair, TextBuilder, parse};

/// The legal lengths of a data segment that can be declared: greater values are illegal.
const MAX_RECV: core::ops::RangeInclusive<u32> = 512..=crate::pdu::MAX_DATA_SEGMENT;

/// Returns whether an initiator may send a key in full feature phase with [`Session::send_text`].
fn may_be_sent(name: &str) -> bool {
    let Some(key) = Key::by_name(name.as_bytes()) else { return true };
    let spec = key.spec();
    let now = matches!(spec.usage, Usage::Always | Usage::FullFeatureOnly);
    now && spec.senders != Senders::Target && key != Key::SendTargets
}

impl Session {
    /// Asks for all targets (in a discovery session), or for the entry of one target.
    ///
    /// # Errors
    /// The reason for which the session refuses the request. A request that is accepted may wait until the
    /// session is up.
    pub fn send_targets(&mut self, now: Instant, only: Option<&IscsiName>) -> Result<(), SubmitError> {
        let mut text = TextBuilder::new();
        text.put(Key::SendTargets.name(), only.map_or("All", IscsiName::spelling));
        self.start_text(now, text, None, Topic::Targets(TargetList::new()))
    }

    /// Negotiates keys in full feature phase, on the connection in slot `on` or on any, and reports the
    /// answer. The values that the target agrees to hold from then on: MaxRecvDataSegmentLength for that
    /// connection, of either side. Only keys that may be sent in this phase are accepted (RFC 7143 §13),
    /// including those that no standard defines; for SendTargets there is [`Self::send_targets`].
    ///
    /// # Errors
    /// The reason for which the session refuses the request.
    pub fn send_text(
        &mut self,
        now: Instant,
        on: Option<Slot>,
        text: TextBuilder,
    ) -> Result<(), SubmitError> {
        if text.has_overflowed() {
            return Err(SubmitError::TooLong);
        }
        let bytes = text.clone().into_bytes();
        let pairs = parse(&bytes).map_err(|_| SubmitError::NotPossible)?;
        let twice = |at: usize, name: &str| pairs.iter().take(at).any(|pair| pair.name == name);
        let fits = |(at, pair): (usize, &Pair<'_>)| may_be_sent(pair.name) && !twice(at, pair.name);
        if pairs.is_empty() || !pairs.iter().enumerate().all(fits) {
            return Err(SubmitError::NotPossible);
        }
        if on.is_some_and(|slot| !self.connection_slot(slot).is_some_and(ConnectionSlot::is_up)) {
            return Err(SubmitError::NotUp);
        }
        let max_recv = pairs
            .iter()
            .find(|pair| pair.name == Key::MaxRecvDataSegmentLength.name())
            .map(|pair| number_in(pair.value, MAX_RECV).map_err(|_| SubmitError::NotPossible))
            .transpose()?;
        self.start_text(now, text, on, Topic::Keys { answer: KeyAnswer::default(), max_recv })
    }

    fn start_text(
        &mut self,
        now: Instant,
        text: TextBuilder,
        on: Option<Slot>,
        topic: Topic,
    ) -> Result<(), SubmitError> {
        if self.phase == Phase::Down || self.logout_requested {
            return Err(SubmitError::Down);
        }
        //= rfc7143#section-6.2
        //# There MUST NOT be more than one outstanding Text Request, or Text Response PDU on an
        //# iSCSI connection.
        //= rfc7143#section-11.10
        //# An initiator MUST NOT have more than one outstanding Text Request on a connection at any given
        //# time.
        if self.text.is_some() {
            return Err(SubmitError::Full);
        }
        self.text = Some(Box::new(TextExchange { text: Some(text), on, at: None, said: now, topic }));
        self.process_pending(now);
        Ok(())
    }

    /// Starts an empty text negotiation on a connection on which the target requested one (RFC 7143 §11.9.1,
    /// event 4).
    pub(super) fn start_requested_text(&mut self, now: Instant, slot: Slot) {
        //= rfc7143#section-11.9.1
        //# The initiator MUST honor this request by issuing a Text Request (that can be empty) on the same
        //# connection as early as possible, but no later than Parameter3 seconds, unless a Text Request is
        //# already pending on the connection, or by issuing a Logout Request.
        if !self.has_text_on(slot) {
            let itt = self.next_tag();
            self.start_empty_text(now, slot, itt, Topic::Requested(KeyAnswer::default()));
        }
    }

    /// Starts a text negotiation without keys, ahead of everything that waits to be sent.
    fn start_empty_text(&mut self, now: Instant, slot: Slot, itt: Itt, topic: Topic) {
        if self.is_closing(slot) {
            return;
        }
        let Some(connection) = self.connection_mut(slot) else { return };
        let mut conversation = InitiatorText::new(itt.0, TextBuilder::new(), MAX_TEXT);
        let call = conversation.start();
        let at = Some((slot, itt, conversation));
        connection.own_text =
            Some(Box::new(TextExchange { text: None, on: Some(slot), at, said: now, topic }));
        let request = text_request(&call, 0);
        self.queue_control_first(slot, ControlPdu::Text(request), call.data);
        self.watch_request(now, slot);
    }

    /// Begins the text negotiation that waits for a connection.
    pub(super) fn send_pending_text(&mut self, now: Instant) {
        let Some(on) =
            self.text.as_ref().filter(|exchange| exchange.at.is_none()).map(|exchange| exchange.on)
        else {
            return;
        };
        if on.is_some_and(|slot| !self.connection_slot(slot).is_some_and(ConnectionSlot::is_up)) {
            // The connection was lost before the negotiation began, and the keys were meant for no other
            // connection.
            return self.fail_text();
        }
        let Some(slot) = on.or_else(|| self.any_up(None)) else { return };
        if self.has_text_on(slot) {
            return;
        }
        let itt = self.next_tag();
        let Some(connection) = self
            .slots
            .get_mut(usize::from(slot.0))
            .and_then(|connection_slot| connection_slot.connection.as_deref_mut())
        else {
            return;
        };
        let Some(exchange) = self.text.as_mut() else { return };
        let Some(text) = exchange.text.take() else { return };
        if let Topic::Keys { max_recv: Some(max_recv), .. } = exchange.topic {
            // The target may use the new length from its last answer on; until then the old length holds too.
            connection.framing.data_len_max = connection.framing.data_len_max.max(max_recv);
        }
        let piece_max =
        //= rfc7143#section-11.10.5
        //# The data lengths of a Text Request MUST NOT exceed the iSCSI target MaxRecvDataSegmentLength (a
        //# parameter that is negotiated per connection and per direction).
            usize::try_from(connection.parameters.target_max_recv).unwrap_or(MAX_TEXT).min(MAX_TEXT);
        let mut conversation = InitiatorText::new(itt.0, text, piece_max);
        let call = conversation.start();
        exchange.at = Some((slot, itt, conversation));
        self.send_text_request(now, slot, call, 0);
    }

    fn send_text_request(&mut self, now: Instant, slot: Slot, call: OwnedTextRequest, lun: u64) {
        if let Some(exchange) = self.exchange_mut(slot, Itt(call.itt)) {
            exchange.said = now;
        }
        self.watch_request(now, slot);
        let request = text_request(&call, lun);
        self.queue_control(slot, ControlPdu::Text(request), call.data);
    }

    /// Returns the text negotiation that runs on a connection.
    fn text_on(&self, slot: Slot) -> Option<&TextExchange> {
        let owners = self.text.as_deref().filter(|exchange| exchange.is_at(slot));
        owners.or_else(|| self.connection(slot)?.own_text.as_deref())
    }

    /// Returns the text negotiation that runs on a connection under a tag.
    fn exchange_mut(&mut self, slot: Slot, itt: Itt) -> Option<&mut TextExchange> {
        let named = |exchange: &TextExchange| exchange.is_at(slot) && exchange.itt() == Some(itt);
        if self.text.as_deref().is_some_and(named) {
            return self.text.as_deref_mut();
        }
        self.connection_mut(slot)?.own_text.as_deref_mut().filter(|exchange| named(exchange))
    }

    pub(super) fn text_response(
        &mut self,
        now: Instant,
        slot: Slot,
        pdu: &TextResponse,
        data: &[u8],
    ) -> Result<(), ProtocolError> {
        if !self.take_status(now, slot, pdu.sn)? {
            return Ok(());
        }
        // Where a negotiation can be given up, or a PDU can arrive twice, an answer may arrive after the end
        // of its negotiation.
        let late = self.level().may_receive_twice() && pdu.itt.0 >> 30 == TAG_SMALL
            || self.stale_tags.contains(&pdu.itt);
        let Some(exchange) = self.exchange_mut(slot, pdu.itt) else {
            return if late { Ok(()) } else { Err(ProtocolError::TextNotExpected) };
        };
        let Some((_, _, conversation)) = exchange.at.as_mut() else { return Err(ProtocolError::Bug) };
        let twice = match &mut exchange.topic {
            // Names and addresses may come again.
            Topic::Targets(list) => list.add(data).map(|()| false),
            Topic::Keys { answer, .. } | Topic::Requested(answer) | Topic::Reset(answer) => {
                answer.add(data, pdu.continues)
            }
        };
        let twice = twice.map_err(ProtocolError::Text)?;
        let reply = TextReply {
            is_final: pdu.is_final,
            cont: pdu.continues,
            ttt: pdu.ttt.0,
            data: data.to_vec(),
            agreed: Agreed::default(),
        };
        let next = conversation.handle(&reply).map_err(ProtocolError::TextNegotiation)?;
        if twice {
            return self.reset_text(now, slot, pdu);
        }
        match next {
            //= rfc7143#section-11.11.4
            //# The initiator MUST copy the Target Transfer Tag and LUN in its next request to indicate that
            //# it wants the rest of the data.
            Some(call) => self.send_text_request(now, slot, call, pdu.lun),
            None => self.finish_text(slot)?,
        }
        Ok(())
    }

    /// Resets a text negotiation in which the target said a key twice: none of its keys take effect. One that
    /// is over cannot be reset, and nobody knows on which value the target settled; the session is lost.
    fn reset_text(&mut self, now: Instant, slot: Slot, pdu: &TextResponse) -> Result<(), ProtocolError> {
        let is_reset = self.text_on(slot).is_some_and(|exchange| matches!(exchange.topic, Topic::Reset(_)));
        if pdu.is_final || is_reset {
            return Err(ProtocolError::TextKeyTwice);
        }
        self.fail_text_on(Some(slot));
        //= rfc7143#section-6.4
        //# The initiator MUST reset the negotiation as outlined above.
        self.start_empty_text(now, slot, pdu.itt, Topic::Reset(KeyAnswer::default()));
        Ok(())
    }

    fn finish_text(&mut self, slot: Slot) -> Result<(), ProtocolError> {
        let owners = self.text.take_if(|exchange| exchange.is_at(slot));
        let Some(exchange) = owners.or_else(|| self.connection_mut(slot)?.own_text.take()) else {
            return Ok(());
        };
        match exchange.topic {
            Topic::Targets(list) => {
                let ignored = list.ignored();
                let targets = list.finish().map_err(|why| {
                    self.events.push_back(Event::TextFailed);
                    ProtocolError::Text(why)
                })?;
                self.events.push_back(Event::Targets { targets, ignored });
            }
            Topic::Keys { answer, max_recv } => {
                self.apply_agreed_keys(slot, &answer.text, max_recv);
                self.events.push_back(Event::TextDone { answer: answer.text });
            }
            Topic::Requested(answer) | Topic::Reset(answer) => {
                self.apply_agreed_keys(slot, &answer.text, None);
            }
        }
        Ok(())
    }

    /// Applies the negotiated values.
    fn apply_agreed_keys(&mut self, slot: Slot, answer: &[u8], max_recv: Option<u32>) {
        let Some(connection) = self.connection_mut(slot) else { return };
        let pairs = parse(answer).unwrap_or_default();
        let declared = pairs.iter().find(|pair| pair.name == Key::MaxRecvDataSegmentLength.name());
        if let Some(target_max) = declared.and_then(|pair| number_in(pair.value, MAX_RECV).ok()) {
            connection.parameters.target_max_recv = target_max;
        }
        let refused = declared.is_some_and(|pair| !pair.value.first().is_some_and(u8::is_ascii_digit));
        if let Some(max_recv) = max_recv.filter(|_| !refused) {
            connection.parameters.initiator_max_recv = max_recv;
        }
        connection.framing.data_len_max = connection.parameters.initiator_max_recv;
    }

    /// Gives up the text negotiation that runs on a connection, or the owner's on any.
    pub(super) fn fail_text_on(&mut self, slot: Option<Slot>) {
        if let Some(connection) = slot.and_then(|slot| self.connection_mut(slot)) {
            connection.own_text = None;
        }
        let runs = |exchange: &TextExchange| match slot {
            Some(slot) => exchange.is_at(slot),
            None => exchange.at.is_some(),
        };
        if self.text.as_deref().is_some_and(runs) {
            self.fail_text();
        }
    }

    /// Gives up the owner's text negotiation, if there is one.
    pub(super) fn fail_text(&mut self) {
        if self.text.take().is_some() {
            self.events.push_back(Event::TextFailed);
        }
    }

    /// Gives up a text negotiation of which the request or the answer was lost in transit: neither can be
    /// sent twice.
    pub(super) fn fail_lost_text(&mut self, slot: Slot, synced: Instant) {
        let lost = self.text_on(slot).filter(|exchange| exchange.said < synced);
        if let Some(itt) = lost.and_then(TextExchange::itt)
            && self.connection(slot).is_some_and(|connection| connection.missing_statuses(None).is_none())
        {
            // The answer may only be late.
            self.remember(itt);
            self.fail_text_on(Some(slot));
        }
    }

    /// Returns when the last unanswered text was sent on this connection.
    pub(super) fn text_sent_at(&self, slot: Slot) -> Option<Instant> {
        self.text_on(slot).map(|exchange| exchange.said)
    }

    /// Returns whether a text negotiation waits for an answer on this connection.
    pub(super) fn has_text_on(&self, slot: Slot) -> bool {
        self.text_on(slot).is_some()
    }

    /// Returns whether a text negotiation waits for an answer, or for a connection.
    pub(super) fn has_text(&self) -> bool {
        self.text.is_some()
            || self
                .slots
                .iter()
                .filter_map(|slot| slot.connection.as_ref())
                .any(|connection| connection.own_text.is_some())
    }

    /// Handles the rejection of a text.
    pub(super) fn text_refused(&mut self, slot: Slot, itt: Itt) {
        if self.exchange_mut(slot, itt).is_some() {
            self.fail_text_on(Some(slot));
        }
    }
}

fn text_request(call: &OwnedTextRequest, lun: u64) -> TextRequest {
    TextRequest {
        //= rfc7143#section-11.10.3
        //# The I bit for all requests in a sequence also MUST be the same.
        immediate: true,
        is_final: call.is_final,
        continues: call.cont,
        lun,
        itt: Itt(call.itt),
        ttt: Ttt(call.ttt),
        cmd_sn: CmdSn(0),
        exp_stat_sn: StatSn(0),
    }
}
