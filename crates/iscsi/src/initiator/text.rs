//! Text negotiations: SendTargets, and the keys that can be negotiated in full feature phase (RFC 7143 §6.4,
//! appendix C). One negotiation runs at a time.

use alloc::boxed::Box;
use alloc::vec::Vec;

use base::time::Instant;

use super::connection_slot::{ConnectionSlot, ControlPdu};
use super::contract::{Event, Slot, SubmitError};
use super::protocol_error::ProtocolError;
use super::session::{Phase, Session, TAG_SMALL};
use crate::discovery::TargetList;
use crate::keys::{Key, Senders, Usage};
use crate::name::IscsiName;
use crate::negotiate::full_feature::{Agreed, InitiatorText, OwnedTextRequest, TextReply};
use crate::pdu::text_request::TextRequest;
use crate::pdu::text_response::TextResponse;
use crate::pdu::{Itt, Ttt};
use crate::serial::{CmdSn, StatSn};
use crate::text::value::number_in;
use crate::text::{BadText, MAX_TEXT, Pair, TextBuilder, parse};

/// A text negotiation.
#[derive(Debug)]
pub(super) struct TextExchange {
    /// The text to send, until the negotiation begins.
    text: Option<TextBuilder>,
    /// The connection that the negotiation must use; `None`: any.
    on: Option<Slot>,
    /// Once the negotiation has begun: its connection, its tag, and its state.
    pub(super) at: Option<(Slot, Itt, InitiatorText)>,
    /// When the last request was sent.
    pub(super) said: Instant,
    topic: Topic,
}

/// The subject of a text negotiation.
#[derive(Debug)]
enum Topic {
    /// A list of targets.
    Targets(TargetList),
    /// Keys, with the answer so far, and the longest data segment that the initiator declares in it. A
    /// `quiet` negotiation is not reported to the owner: the target requested it.
    Keys { answer: Vec<u8>, max_recv: Option<u32>, quiet: bool },
}

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
        text.put(Key::SendTargets.name(), only.map_or("All", IscsiName::as_str));
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
        self.start_text(now, text, on, Topic::Keys { answer: Vec::new(), max_recv, quiet: false })
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

    /// Starts an empty text negotiation for a target that requested one (RFC 7143 §11.9.1, event 4).
    pub(super) fn start_empty_text(&mut self) {
        if self.text.is_none() {
            self.text = Some(Box::new(TextExchange {
                text: Some(TextBuilder::new()),
                on: None,
                at: None,
                said: Instant::ORIGIN,
                topic: Topic::Keys { answer: Vec::new(), max_recv: None, quiet: true },
            }));
        }
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
        if let Some(exchange) = self.text.as_mut() {
            exchange.said = now;
        }
        self.arm_retransmit_if_erl1(now, slot);
        let request = TextRequest {
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
        };
        self.queue_control(slot, ControlPdu::Text(request), call.data);
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
        let late = self.has_erl1() && pdu.itt.0 >> 30 == TAG_SMALL || self.stale_tags.contains(&pdu.itt);
        let stray = || if late { Ok(()) } else { Err(ProtocolError::TextNotExpected) };
        let Some(exchange) = self.text.as_mut() else { return stray() };
        let Some((at, itt, conversation)) = exchange.at.as_mut() else { return stray() };
        if (*at, *itt) != (slot, pdu.itt) {
            return stray();
        }
        match &mut exchange.topic {
            Topic::Targets(list) => list.add(data).map_err(ProtocolError::Text)?,
            Topic::Keys { answer, .. } => {
                if answer.len().saturating_add(data.len()) > MAX_TEXT {
                    return Err(ProtocolError::Text(BadText::TooLong));
                }
                answer.extend_from_slice(data);
            }
        }
        let reply = TextReply {
            is_final: pdu.is_final,
            cont: pdu.continues,
            ttt: pdu.ttt.0,
            data: data.to_vec(),
            agreed: Agreed::default(),
        };
        match conversation.handle(&reply).map_err(ProtocolError::TextNegotiation)? {
            //= rfc7143#section-11.11.4
            //# The initiator MUST copy the Target Transfer Tag and LUN in its next request to indicate that
            //# it wants the rest of the data.
            Some(call) => self.send_text_request(now, slot, call, pdu.lun),
            None => self.finish_text(slot)?,
        }
        Ok(())
    }

    fn finish_text(&mut self, slot: Slot) -> Result<(), ProtocolError> {
        let Some(exchange) = self.text.take() else { return Ok(()) };
        match exchange.topic {
            Topic::Targets(list) => {
                let ignored = list.ignored();
                let targets = list.finish().map_err(|why| {
                    self.events.push_back(Event::TextFailed);
                    ProtocolError::Text(why)
                })?;
                self.events.push_back(Event::Targets { targets, ignored });
            }
            Topic::Keys { answer, max_recv, quiet } => {
                self.apply_agreed_keys(slot, &answer, max_recv);
                if !quiet {
                    self.events.push_back(Event::TextDone { answer });
                }
            }
        }
        Ok(())
    }

    /// Applies the negotiated values.
    fn apply_agreed_keys(&mut self, slot: Slot, answer: &[u8], max_recv: Option<u32>) {
        let Some(connection) = self.connection_mut(slot) else { return };
        let pairs = parse(answer).unwrap_or_default();
        let told = pairs.iter().find(|pair| pair.name == Key::MaxRecvDataSegmentLength.name());
        if let Some(target_max) = told.and_then(|pair| number_in(pair.value, MAX_RECV).ok()) {
            connection.parameters.target_max_recv = target_max;
        }
        let refused = told.is_some_and(|pair| !pair.value.first().is_some_and(u8::is_ascii_digit));
        if let Some(max_recv) = max_recv.filter(|_| !refused) {
            connection.parameters.initiator_max_recv = max_recv;
        }
        connection.framing.data_len_max = connection.parameters.initiator_max_recv;
    }

    /// Gives up a text negotiation whose connection is lost.
    pub(super) fn fail_text_on(&mut self, slot: Option<Slot>) {
        let lost = |exchange: &mut Box<TextExchange>| match (&exchange.at, slot) {
            (Some((at, _, _)), Some(slot)) => *at == slot,
            (at, None) => at.is_some(),
            (None, Some(_)) => false,
        };
        if self.text.as_mut().is_some_and(lost) {
            self.fail_text();
        }
    }

    /// Gives up the text negotiation, if there is one.
    pub(super) fn fail_text(&mut self) {
        if let Some(exchange) = self.text.take()
            && !matches!(exchange.topic, Topic::Keys { quiet: true, .. })
        {
            self.events.push_back(Event::TextFailed);
        }
    }

    /// Gives up a text negotiation of which the request or the answer was lost in transit: neither can be
    /// sent twice.
    pub(super) fn fail_lost_text(&mut self, slot: Slot, synced: Instant) {
        let lost = self.text.as_ref().is_some_and(|exchange| {
            exchange.said < synced && exchange.at.as_ref().is_some_and(|(at, _, _)| *at == slot)
        });
        let itt = self.text.as_ref().and_then(|exchange| exchange.at.as_ref().map(|(_, itt, _)| *itt));
        if lost && self.connection(slot).is_some_and(|connection| connection.missing_statuses(None).is_none())
        {
            // The answer may only be late.
            itt.into_iter().for_each(|itt| self.remember(itt));
            self.fail_text_on(Some(slot));
        }
    }

    /// Returns when the last unanswered text was sent on this connection.
    pub(super) fn text_sent_at(&self, slot: Slot) -> Option<Instant> {
        self.has_text_on(slot).then(|| self.text.as_ref().map(|exchange| exchange.said)).flatten()
    }

    /// Returns whether a text negotiation waits for an answer on this connection.
    pub(super) fn has_text_on(&self, slot: Slot) -> bool {
        self.text.as_ref().is_some_and(|exchange| exchange.at.as_ref().is_some_and(|(at, _, _)| *at == slot))
    }

    /// Handles the rejection of a text.
    pub(super) fn text_refused(&mut self, itt: Itt) {
        if self
            .text
            .as_ref()
            .is_some_and(|exchange| exchange.at.as_ref().is_some_and(|(_, at, _)| *at == itt))
        {
            self.fail_text_on(None);
        }
    }
}
