//! Text in full feature phase (RFC 7143 §6.4, §11.10, §11.11, appendix C): `SendTargets`, and the few keys that may
//! still be declared.
//!
//! An answer can be longer than any PDU: the list of targets is drawn from the directory target by target, as the
//! initiator asks for more, so that ten thousand of them take no more memory than one.

use alloc::boxed::Box;
use alloc::format;
use alloc::vec::Vec;
use core::mem;

use base::buffer::Bytes;
use base::machine::ConnId;

use super::arena::Key as SessionKey;
use super::connection::{Body, Control};
use super::dispatch::Cx;
use super::engine::Engine;
use super::why::Why;
use crate::keys::{Key, Kind, Usage};
use crate::login::SessionKind;
use crate::login::directory::{Directory, Listed, TargetAddress, Via};
use crate::name::IscsiName;
use crate::negotiate::exchange::is_refusal;
use crate::pdu::text_request::TextRequest;
use crate::pdu::text_response::TextResponse;
use crate::pdu::{Itt, TargetSn, Ttt};
use crate::text::value::number_in;
use crate::text::{Collector, TextOut, parse};

/// A text conversation: from a request without a transfer tag to the response that is final.
#[derive(Debug)]
pub(crate) struct Conversation {
    itt: Itt,
    ttt: Ttt,
    lun: u64,
    incoming: Collector,
    answer: Answer,
    /// The keys that came, a bit each: none may come twice in one negotiation (§6.3).
    seen: u64,
    /// What the initiator declared that it receives; it holds from the end of the conversation.
    max_recv: Option<u32>,
}

/// An answer on its way out.
#[derive(Debug, Default)]
struct Answer {
    text: Vec<u8>,
    listing: Option<Listing>,
}

/// A list of targets that is being drawn.
#[derive(Debug)]
struct Listing {
    /// The last one drawn.
    after: Option<IscsiName>,
}

/// The words of appendix C and §6.2.
const SEND_TARGETS_ALL: &[u8] = b"All";
const REJECT: &str = "Reject";
const NOT_UNDERSTOOD: &str = "NotUnderstood";

impl Answer {
    const fn is_over(&self) -> bool {
        self.text.is_empty() && self.listing.is_none()
    }

    /// Takes the next piece, of at most `limit` bytes, and says whether the text goes on behind it.
    fn next_piece(
        &mut self,
        limit: usize,
        via: &Via,
        initiator: &IscsiName,
        directory: &dyn Directory,
    ) -> (Vec<u8>, bool) {
        while self.text.len() <= limit
            && let Some(listing) = &mut self.listing
        {
            match directory.target_behind(via, initiator, listing.after.as_ref()) {
                Some(target) => {
                    put_target(&mut self.text, via, &target);
                    listing.after = Some(target.name);
                }
                None => self.listing = None,
            }
        }
        let rest = self.text.split_off(limit.min(self.text.len()));
        let piece = mem::replace(&mut self.text, rest);
        (piece, !self.is_over())
    }
}

impl Engine {
    /// Takes a Text Request.
    pub(super) fn text(
        &mut self,
        cx: Cx<'_>,
        conn: ConnId,
        session: SessionKey,
        (request, data): (&TextRequest, Option<Bytes>),
    ) -> Result<(), Why> {
        let ttt = self.new_ttt();
        let Some(connection) = self.conn_mut(conn) else { return Ok(()) };
        let going_on =
            connection.text.take().filter(|text| request.ttt == text.ttt && request.itt == text.itt);
        let mut talk = match going_on {
            Some(talk) => talk,
            // §11.10.4: the reserved tag starts anew and forgets what went before.
            None if request.ttt == Ttt::NONE && request.itt != Itt::NONE => Box::new(Conversation {
                itt: request.itt,
                ttt,
                lun: request.lun,
                incoming: Collector::new(),
                answer: Answer::default(),
                seen: 0,
                max_recv: None,
            }),
            None => {
                self.recycle(data);
                return Err(Why::TextOutOfOrder);
            }
        };
        let text = data.as_deref().unwrap_or_default();
        let taken = self.take_text(cx, &mut talk, session, (request, text));
        self.recycle(data);
        taken?;
        self.answer_text(cx, conn, session, talk, request)
    }

    /// Takes the text of one request; once it is whole, makes the answer.
    fn take_text(
        &self,
        cx: Cx<'_>,
        talk: &mut Conversation,
        session: SessionKey,
        (request, text): (&TextRequest, &[u8]),
    ) -> Result<(), Why> {
        if !talk.answer.is_over() {
            // §6.2: while an answer goes on, the initiator only asks for the rest of it.
            return if text.is_empty() && !request.continues { Ok(()) } else { Err(Why::TextOutOfOrder) };
        }
        let Some(whole) = talk.incoming.add(text, request.continues).map_err(|_| Why::TextOutOfOrder)? else {
            return Ok(());
        };
        let Some(state) = self.sessions.get(session) else { return Err(Why::Bug) };
        let mut out = TextOut::new();
        let mut named = None;
        for pair in parse(&whole).map_err(|_| Why::TextOutOfOrder)? {
            let Some(key) = Key::by_name(pair.name.as_bytes()) else {
                // An answer to an answer would never end.
                if is_refusal(pair.value) {
                    return Err(Why::TextOutOfOrder);
                }
                out.put(pair.name, NOT_UNDERSTOOD);
                continue;
            };
            if talk.seen & (1 << key.index()) != 0 {
                return Err(Why::TextOutOfOrder);
            }
            talk.seen |= 1 << key.index();
            match key {
                Key::SendTargets => match wanted(&state.kind, pair.value) {
                    Some(Wanted::All) => talk.answer.listing = Some(Listing { after: None }),
                    Some(Wanted::One(name)) => named = Some(name),
                    None => out.put(key.name(), REJECT),
                },
                Key::MaxRecvDataSegmentLength => {
                    let Kind::DeclaredNumber { min, max, .. } = key.spec().kind else { return Err(Why::Bug) };
                    let number = number_in(pair.value, min..=max).map_err(|_| Why::TextOutOfOrder)?;
                    talk.max_recv = Some(number);
                }
                key if key.spec().usage == Usage::Always && matches!(key.spec().kind, Kind::Declared) => {}
                // Everything else was settled when the session or the connection began.
                key => out.put(key.name(), REJECT),
            }
        }
        if out.has_overflowed() {
            return Err(Why::TextOutOfOrder);
        }
        talk.answer.text = out.into_bytes();
        if let (Some(name), Some(connection)) = (named, self.conn(cx.conn)) {
            let via = &connection.via;
            if let Some(target) = find_listed(cx.directory, via, &state.initiator, &name) {
                put_target(&mut talk.answer.text, via, &target);
            }
        }
        Ok(())
    }

    /// Sends the next piece of the answer.
    fn answer_text(
        &mut self,
        cx: Cx<'_>,
        conn: ConnId,
        session: SessionKey,
        mut talk: Box<Conversation>,
        request: &TextRequest,
    ) -> Result<(), Why> {
        let Some(initiator) = self.sessions.get(session).map(|state| state.initiator.clone()) else {
            return Err(Why::Bug);
        };
        let Some(connection) = self.conn_mut(conn) else { return Ok(()) };
        let limit = usize::try_from(connection.parameters.initiator_max_recv).unwrap_or(usize::MAX);
        let via = connection.via;
        let (text, goes_on) = talk.answer.next_piece(limit, &via, &initiator, cx.directory);
        let is_final = request.is_final && !goes_on;
        let response = TextResponse {
            is_final,
            continues: goes_on,
            lun: talk.lun,
            itt: talk.itt,
            ttt: if is_final { Ttt::NONE } else { talk.ttt },
            sn: TargetSn::default(),
        };
        if is_final {
            if let Some(max_recv) = talk.max_recv {
                connection.parameters.initiator_max_recv = max_recv;
            }
        } else {
            connection.text = Some(talk);
        }
        self.control(conn, Control::Text(response), Body::Text(text))
    }
}

/// What a `SendTargets` asks for.
enum Wanted {
    All,
    One(IscsiName),
}

/// Reads the value of `SendTargets`; `None` for what this kind of session must not ask (appendix C).
fn wanted(kind: &SessionKind, value: &[u8]) -> Option<Wanted> {
    match kind {
        SessionKind::Discovery if value == SEND_TARGETS_ALL => Some(Wanted::All),
        SessionKind::Discovery => IscsiName::parse(value).ok().map(Wanted::One),
        SessionKind::Normal { name, .. } if value.is_empty() => Some(Wanted::One(name.clone())),
        SessionKind::Normal { name, .. } => {
            IscsiName::parse(value).ok().filter(|asked| asked == name).map(Wanted::One)
        }
    }
}

/// Returns the entry of one target, if the initiator may know of it.
fn find_listed(
    directory: &dyn Directory,
    via: &Via,
    initiator: &IscsiName,
    name: &IscsiName,
) -> Option<Listed> {
    let mut after = None;
    while let Some(target) = directory.target_behind(via, initiator, after.as_ref()) {
        if target.name == *name {
            return Some(target);
        }
        after = Some(target.name);
    }
    None
}

fn put_target(text: &mut Vec<u8>, via: &Via, target: &Listed) {
    put(text, Key::TargetName, target.name.as_str());
    if target.addresses.is_empty() {
        put(text, Key::TargetAddress, &format!("{},1", TargetAddress::Socket(via.local)));
    }
    for (address, group) in &target.addresses {
        put(text, Key::TargetAddress, &format!("{address},{}", group.0));
    }
}

fn put(text: &mut Vec<u8>, key: Key, value: &str) {
    text.extend_from_slice(key.name().as_bytes());
    text.push(b'=');
    text.extend_from_slice(value.as_bytes());
    text.push(0);
}
