//! Text negotiation in full feature phase (RFC 7143 §6.4, §11.10, §11.11), for both roles.
//!
//! A text negotiation is one or more Text Requests with one initiator task tag. Few keys can be negotiated in
//! this phase: the longest data segment, aliases, extensions. The initiator can also ask for targets. The
//! values that a negotiation settles take effect when it ends, and not at all if it is reset.

use alloc::string::String;
use alloc::vec::Vec;

use super::key_rules::BadNegotiation;
use super::negotiator::{answer_unknown, is_refusal};
use crate::discovery::{DirectoryView, PIECE_MAX, SendTargetsText, encode_target};
use crate::keys::{Key, Kind, Senders, Usage};
use crate::login::directory::{ConnectionPath, Directory};
use crate::login::{MAX_LOGIN_TEXTS, SessionKind};
use crate::name::IscsiName;
use crate::text::value::number_in;
use crate::text::{BadText, Collector, Pair, TextBuilder, TextSplitter, parse};

/// The target transfer tag that names no text negotiation: a request with it starts one, a response with it
/// ends one.
pub const NO_TAG: u32 = u32::MAX;

/// The most texts in one text negotiation; as many as in a login.
pub const MAX_CONVERSATION_TEXTS: usize = MAX_LOGIN_TEXTS;

/// The most responses that an initiator accepts in one text negotiation: a list of
/// [`crate::discovery::MAX_TARGETS`] targets in the smallest pieces that a target may send.
pub const MAX_RESPONSES: usize = 1 << 20;

/// The contents of a Text Request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TextRequest<'a> {
    /// F: the initiator has no more text to send.
    pub is_final: bool,
    /// C: the text continues in the next request.
    pub cont: bool,
    /// The initiator's name for the text negotiation (ITT).
    pub itt: u32,
    /// The target's name for the text negotiation (TTT); [`NO_TAG`] in the first request.
    pub ttt: u32,
    /// The text, without padding.
    pub data: &'a [u8],
}

/// The contents of a Text Response.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TextReply {
    /// F: the text negotiation is over.
    pub is_final: bool,
    /// C: the text continues in the next response.
    pub cont: bool,
    /// The tag that the next request must carry. The target sends [`NO_TAG`] in the last response, where the
    /// initiator ignores it.
    pub ttt: u32,
    /// The text.
    pub data: Vec<u8>,
    /// The values that the text negotiation settled, in its last response; they take effect after that
    /// response.
    pub agreed: Agreed,
}

/// The values that a text negotiation settled.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Agreed {
    /// The longest data segment that the initiator now receives, in bytes.
    pub initiator_max_recv: Option<u32>,
    /// The new alias of the initiator.
    pub initiator_alias: Option<String>,
}

/// The reason for which a text negotiation failed. The target answers with a Reject, reason Protocol Error,
/// and discards the negotiation; an initiator drops the connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TextNegotiationError {
    /// F and C are both set.
    #[error("a Text Request has both the F bit and the C bit")]
    FinalWithContinue,
    /// A tag names no text negotiation that is under way.
    #[error("the text negotiation does not exist")]
    NoSuchConversation,
    /// A peer sent text while the rest of the other side's text was due.
    #[error("the peer sent text before the other text was complete")]
    TextAmidAnswer,
    /// The text negotiation has no result after too many texts or responses.
    #[error("the text negotiation makes no progress")]
    TooLong,
    /// A text negotiation in a discovery session does not ask for targets.
    #[error("a Text Request in a discovery session has no SendTargets")]
    NoSendTargets,
    /// The text is not legal.
    #[error(transparent)]
    Text(#[from] BadText),
    /// A rule of negotiation was broken.
    #[error(transparent)]
    Negotiation(#[from] BadNegotiation),
}

/// The facts about a connection that the target needs for a text negotiation.
#[derive(Clone, Copy)]
pub struct TextContext<'a> {
    /// The directory of the targets that can be listed.
    pub directory: &'a dyn Directory,
    /// The portal and the addresses of the connection.
    pub via: &'a ConnectionPath,
    /// The initiator.
    pub initiator: &'a IscsiName,
    /// The kind of the session, with its target if it has one.
    pub kind: &'a SessionKind,
    /// The longest data segment that the initiator receives, in bytes.
    pub initiator_max_recv: u32,
    /// A target transfer tag that is not in use.
    pub fresh_ttt: u32,
}

/// The target's side of the text negotiations of one connection, one at a time.
#[derive(Debug, Default)]
pub struct TargetText {
    current: Option<TextNegotiation>,
}

#[derive(Debug)]
struct TextNegotiation {
    itt: u32,
    ttt: u32,
    texts: usize,
    seen: u64,
    incoming: Collector,
    outgoing: SendTargetsText,
    agreed: Agreed,
}

impl TargetText {
    /// Returns a state without a text negotiation.
    pub const fn new() -> Self {
        Self { current: None }
    }

    /// Returns how much memory is held for texts that are spread over several PDUs, in bytes.
    pub fn held(&self) -> usize {
        self.current.as_ref().map_or(0, |current| current.incoming.held())
    }

    /// Returns whether a text negotiation is under way.
    pub const fn is_negotiating(&self) -> bool {
        self.current.is_some()
    }

    /// Returns the initiator task tag of the text negotiation that is under way.
    pub fn itt(&self) -> Option<u32> {
        self.current.as_ref().map(|current| current.itt)
    }

    /// Handles a Text Request and returns the response. A request without a target transfer tag starts a new
    /// negotiation and discards one that is under way (RFC 7143 §6.4: negotiation reset).
    ///
    /// # Errors
    /// The rule that the initiator broke. The text negotiation is discarded.
    pub fn handle(
        &mut self,
        request: &TextRequest<'_>,
        context: &TextContext<'_>,
    ) -> Result<TextReply, TextNegotiationError> {
        let known = self.current.take();
        if request.is_final && request.cont {
            //= rfc7143#section-6.2
            //# As negotiation text may span PDU boundaries, a Text or Login Request or a Text or
            //# Login Response PDU that has the C bit set to 1 MUST NOT have the F bit or T bit set to
            //# 1.
            return Err(TextNegotiationError::FinalWithContinue);
        }
        let mut conversation = if request.ttt == NO_TAG {
            TextNegotiation::new(request.itt)
        } else {
            known
                .filter(|known| (known.itt, known.ttt) == (request.itt, request.ttt))
                .ok_or(TextNegotiationError::NoSuchConversation)?
        };
        let reply = conversation.handle(request, context)?;
        if !reply.is_final {
            self.current = Some(conversation);
        }
        Ok(reply)
    }
}

impl TextNegotiation {
    fn new(itt: u32) -> Self {
        Self {
            itt,
            ttt: NO_TAG,
            texts: 0,
            seen: 0,
            incoming: Collector::new(),
            outgoing: SendTargetsText::default(),
            agreed: Agreed::default(),
        }
    }

    fn handle(
        &mut self,
        request: &TextRequest<'_>,
        context: &TextContext<'_>,
    ) -> Result<TextReply, TextNegotiationError> {
        self.ttt = context.fresh_ttt;
        if !self.outgoing.is_done() {
            if !request.data.is_empty() || request.cont {
                return Err(TextNegotiationError::TextAmidAnswer);
            }
            return Ok(self.emit(request, context));
        }
        let Some(text) = self.incoming.add(request.data, request.cont)? else {
            //= rfc7143#section-6.2
            //# A target receiving a Text or Login Request with the C bit set to 1 MUST answer with a
            //# Text or Login Response with no data segment (DataSegmentLength 0).
            return Ok(self.reply(Vec::new(), false));
        };
        self.texts += 1;
        if self.texts > MAX_CONVERSATION_TEXTS {
            return Err(TextNegotiationError::TooLong);
        }
        self.outgoing = self.answer(&text, context)?;
        Ok(self.emit(request, context))
    }

    fn answer(
        &mut self,
        text: &[u8],
        context: &TextContext<'_>,
    ) -> Result<SendTargetsText, TextNegotiationError> {
        let mut out = TextBuilder::new();
        let mut list = SendTargetsScope::Nothing;
        for pair in parse(text)? {
            let Some(key) = Key::by_name(pair.name.as_bytes()) else {
                answer_unknown(&pair, &mut out)?;
                continue;
            };
            if is_refusal(pair.value) {
                return Err(BadNegotiation::AnswerWithoutOffer.into());
            }
            if self.seen & (1 << key.index()) != 0 {
                return Err(BadNegotiation::KeyTwice(key).into());
            }
            self.seen |= 1 << key.index();
            if key == Key::SendTargets {
                list = send_targets_scope(pair.value, context);
            } else {
                self.take(key, &pair, &mut out);
            }
        }
        // §4.3: a discovery session serves only Text Requests with the SendTargets key.
        let asks = self.seen & (1 << Key::SendTargets.index()) != 0;
        if !asks && matches!(context.kind, SessionKind::Discovery { .. }) {
            return Err(TextNegotiationError::NoSendTargets);
        }
        let mut listed = Vec::new();
        match &list {
            SendTargetsScope::Refused => out.put(Key::SendTargets.name(), "Reject"),
            SendTargetsScope::One(name) => {
                let found = context.directory.target_named(context.via, context.initiator, name);
                listed = found.map(|found| encode_target(&found, context.via)).unwrap_or_default();
            }
            SendTargetsScope::Nothing | SendTargetsScope::All => {}
        }
        if out.has_overflowed() {
            return Err(BadNegotiation::TooManyAnswers.into());
        }
        let mut text = out.into_bytes();
        text.append(&mut listed);
        Ok(SendTargetsText::new(text, list == SendTargetsScope::All))
    }

    /// Accepts a key that may be sent now, or refuses it: the key then keeps its value.
    fn take(&mut self, key: Key, pair: &Pair<'_>, out: &mut TextBuilder) {
        let spec = key.spec();
        let now = matches!(spec.usage, Usage::Always | Usage::FullFeatureOnly);
        match spec.kind {
            _ if !now || spec.senders == Senders::Target => out.put(pair.name, "Reject"),
            Kind::DeclaredNumber { min, max, .. } => match number_in(pair.value, min..=max) {
                Ok(number) => self.agreed.initiator_max_recv = Some(number),
                Err(_) => out.put(pair.name, "Reject"),
            },
            _ => self.agreed.initiator_alias = Some(crate::login::printable(pair.value)),
        }
    }

    /// Sends the next piece of the outgoing text, and ends the text negotiation after the last piece if the
    /// initiator set F.
    fn emit(&mut self, request: &TextRequest<'_>, context: &TextContext<'_>) -> TextReply {
        //= rfc7143#section-11.11.6
        //# The data lengths of a Text Response MUST NOT exceed the iSCSI initiator MaxRecvDataSegmentLength
        //# (a parameter that is negotiated per connection and per direction).
        let limit = usize::try_from(context.initiator_max_recv).unwrap_or(PIECE_MAX).min(PIECE_MAX);
        let TextContext { directory, via, initiator, .. } = *context;
        let (data, cont) = self.outgoing.next_piece(limit, DirectoryView { directory, via, initiator });
        //= rfc7143#section-6.4
        //# Targets MUST NOT submit parameters that require an additional initiator Text Request
        //# in a Text Response with the F bit set to 1.
        if cont || !request.is_final {
            return self.reply(data, cont);
        }
        //= rfc7143#section-6.2
        //# Negotiations MUST be handled as atomic operations.
        //= rfc7143#section-7.12
        //# The operational parameters of the session or the connection MUST continue to be the values agreed
        //# upon during an earlier successful negotiation (i.e., any partial results of this unsuccessful
        //# negotiation MUST NOT take effect and MUST be discarded).
        let agreed = core::mem::take(&mut self.agreed);
        //= rfc7143#section-11.11.1
        //# A Text Response with the F bit set to 1 MUST NOT contain key=value pairs that may require
        //# additional answers from the initiator.
        //= rfc7143#section-11.11.1
        //# A Text Response with the F bit set to 1 MUST have a Target Transfer Tag field set to the reserved
        //# value 0xffffffff.
        //= rfc7143#section-11.11.4
        //# Otherwise, the Target Transfer Tag MUST be set to 0xffffffff.
        TextReply { is_final: true, cont: false, ttt: NO_TAG, data, agreed }
    }

    fn reply(&self, data: Vec<u8>, cont: bool) -> TextReply {
        //= rfc7143#section-6.4
        //# Whenever the target responds with the F bit set to 0, it MUST set the Target Transfer
        //# Tag to a value other than the default 0xffffffff.
        //= rfc7143#section-11.10.4
        //# It MUST do so whenever it sets the F bit to 0 in the response.
        //= rfc7143#section-11.11.1
        //# A Text Response with the F bit set to 0 MUST have a Target Transfer Tag field set to a value other
        //# than the reserved value 0xffffffff.
        //= rfc7143#section-11.11.2
        //# A Text Response with the C bit set to 1 MUST have the F bit set to 0.
        //= rfc7143#section-11.11.4
        //# When a target has more work to do (e.g., cannot transfer all the remaining text data in a single
        //# Text Response or has to continue the negotiation) and has enough resources to proceed, it MUST set
        //# the Target Transfer Tag to a value other than the reserved value 0xffffffff.
        TextReply { is_final: false, cont, ttt: self.ttt, data, agreed: Agreed::default() }
    }
}

/// The targets that a `SendTargets` asks for.
#[derive(Debug, PartialEq, Eq)]
enum SendTargetsScope {
    Nothing,
    All,
    One(IscsiName),
    Refused,
}

/// Parses the value of `SendTargets` (RFC 7143 appendix C): `All` and names in discovery sessions; in a
/// normal session the empty value, or the name of the target of the session.
fn send_targets_scope(value: &[u8], context: &TextContext<'_>) -> SendTargetsScope {
    match (context.kind, value) {
        (SessionKind::Discovery { .. }, b"All") => SendTargetsScope::All,
        (SessionKind::Discovery { .. }, b"") => SendTargetsScope::Refused,
        (SessionKind::Discovery { .. }, name) => {
            IscsiName::parse(name).map_or(SendTargetsScope::Refused, SendTargetsScope::One)
        }
        (SessionKind::Normal { name, .. }, b"") => SendTargetsScope::One(name.clone()),
        (SessionKind::Normal { name, .. }, asked) if IscsiName::parse(asked).as_ref() == Ok(name) => {
            SendTargetsScope::One(name.clone())
        }
        (SessionKind::Normal { .. }, _) => SendTargetsScope::Refused,
    }
}

/// A Text Request that owns its text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OwnedTextRequest {
    /// F.
    pub is_final: bool,
    /// C.
    pub cont: bool,
    /// The initiator's task tag.
    pub itt: u32,
    /// The target's transfer tag.
    pub ttt: u32,
    /// The text.
    pub data: Vec<u8>,
}

impl OwnedTextRequest {
    /// Returns the same request in the form that the target's side takes.
    pub fn as_request(&self) -> TextRequest<'_> {
        let Self { is_final, cont, itt, ttt, data } = self;
        TextRequest { is_final: *is_final, cont: *cont, itt: *itt, ttt: *ttt, data }
    }
}

/// The initiator's side of one text negotiation that sends one text and receives the whole answer.
///
/// This type does not store the answer: the caller passes the data of each response to a
/// [`crate::discovery::TargetList`] or a [`Collector`].
#[derive(Debug)]
pub struct InitiatorText {
    itt: u32,
    ttt: u32,
    outgoing: TextSplitter,
    piece_max: usize,
    responses: usize,
    over: bool,
}

impl InitiatorText {
    /// Prepares to send `text` in pieces of at most `piece_max` bytes.
    pub fn new(itt: u32, text: TextBuilder, piece_max: usize) -> Self {
        let outgoing = TextSplitter::new(text.into_bytes());
        Self { itt, ttt: NO_TAG, outgoing, piece_max, responses: 0, over: false }
    }

    /// Returns the first request.
    pub fn start(&mut self) -> OwnedTextRequest {
        self.next_call()
    }

    /// Handles a response, of which it uses only F, C, the tag and whether there is data; returns the next
    /// request, or `None` when the text negotiation is over.
    ///
    /// # Errors
    /// The rule that the target broke.
    pub fn handle(&mut self, reply: &TextReply) -> Result<Option<OwnedTextRequest>, TextNegotiationError> {
        self.responses += 1;
        if self.over {
            return Err(TextNegotiationError::NoSuchConversation);
        }
        if self.responses > MAX_RESPONSES {
            return Err(TextNegotiationError::TooLong);
        }
        if reply.is_final && reply.cont {
            return Err(TextNegotiationError::FinalWithContinue);
        }
        let speaking = !self.outgoing.is_done();
        if speaking && (reply.is_final || reply.cont || !reply.data.is_empty()) {
            return Err(TextNegotiationError::TextAmidAnswer);
        }
        //= rfc7143#section-11.10.4
        //# The initiator MUST ignore the Target Transfer Tag in the Text Response when the F bit is set to 1.
        if !reply.is_final && reply.ttt == NO_TAG {
            return Err(TextNegotiationError::NoSuchConversation);
        }
        self.ttt = reply.ttt;
        self.over = reply.is_final;
        Ok((!self.over).then(|| self.next_call()))
    }

    fn next_call(&mut self) -> OwnedTextRequest {
        let (data, cont) = self.outgoing.next_piece(self.piece_max);
        //= rfc7143#section-6.2
        //# As negotiation text may span PDU boundaries, a Text or Login Request or a Text or
        //# Login Response PDU that has the C bit set to 1 MUST NOT have the F bit or T bit set to
        //# 1.
        //= rfc7143#section-6.4
        //# The initiator MUST indicate its intent to finish the negotiation by setting the F bit
        //# to 1; the target sets the F bit to 1 on the last response.
        //= rfc7143#section-11.10.2
        //# A Text Request with the C bit set to 1 MUST have the F bit set to 0.
        //= rfc7143#section-11.10.3
        //# If the command is sent as part of a sequence of Text Requests and responses, the Initiator Task
        //# Tag MUST be the same for all the requests within the sequence (similar to linked SCSI commands).
        OwnedTextRequest { is_final: !cont, cont, itt: self.itt, ttt: self.ttt, data }
    }
}

#[cfg(test)]
mod tests;
