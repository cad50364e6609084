//! The rules which keys may be sent, by which side, when, and how often (RFC 7143 §6.3, §13).

use crate::keys::{Key, Kind, Role, Stages, Usage};
use crate::login::Stage;

/// A rule of negotiation that a peer broke.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadNegotiation {
    /// A key was sent twice in one negotiation.
    #[error("{} was sent twice", .0.name())]
    KeyTwice(Key),
    /// A key was sent in a stage in which it is not legal.
    #[error("{} is not allowed in this stage", .0.name())]
    KeyInWrongStage(Key),
    /// A key was sent by the side that must not send it.
    #[error("{} must not be sent by this side", .0.name())]
    KeyFromWrongSide(Key),
    /// A session-wide key was sent on a connection that joins a session.
    #[error("{} cannot change after the leading login", .0.name())]
    KeyOfLeadingConnection(Key),
    /// An answer is none of those that the offer allows.
    #[error("the answer to {} is not allowed by the offer", .0.name())]
    AnswerNotOffered(Key),
    /// An offer was not answered.
    #[error("{} was not answered", .0.name())]
    Unanswered(Key),
    /// A declared value is not legal.
    #[error("the declared value of {} is not legal", .0.name())]
    DeclaredIllegal(Key),
    /// The result of the negotiation is not acceptable to this side.
    #[error("initiator and target cannot agree on {}", .0.name())]
    NoAgreement(Key),
    /// Of HeaderDigest and DataDigest, one is an AEAD digest and the other one is not the same.
    #[error("HeaderDigest and DataDigest are not the same AEAD digest")]
    AeadDigestsDiffer,
    /// `NotUnderstood`, `Irrelevant` or `Reject` was received for a key that was not offered.
    #[error("the peer answered a key that was not offered")]
    AnswerWithoutOffer,
    /// More answers are due than one text can hold.
    #[error("the peer offered more keys than one text can answer")]
    TooManyAnswers,
}

/// Checks the keys that one side sends during one login.
#[derive(Clone, Copy, Debug)]
pub struct KeyRules {
    from: Role,
    leading: bool,
    seen: u64,
}

const _: () = assert!(Key::COUNT <= 64, "a key has a bit in `seen`");

impl KeyRules {
    /// Returns rules for the keys that `from` sends; `leading` states whether the login starts a session.
    pub const fn new(from: Role, leading: bool) -> Self {
        Self { from, leading, seen: 0 }
    }

    /// Sets whether the login starts a session, once that is known.
    pub const fn set_leading(&mut self, leading: bool) {
        self.leading = leading;
    }

    /// Returns whether `key` was received before.
    pub const fn has_seen(&self, key: Key) -> bool {
        self.seen & (1 << key.index()) != 0
    }

    /// Permits `key` in `stage`, once.
    ///
    /// # Errors
    /// The rule that forbids the key.
    pub fn admit(&mut self, key: Key, stage: Stage) -> Result<(), BadNegotiation> {
        let spec = key.spec();
        if !spec.senders.include(self.from) {
            return Err(BadNegotiation::KeyFromWrongSide(key));
        }
        let in_stage = match spec.stages {
            Stages::Either => true,
            //= rfc7143#section-6.3
            //# Authentication-related security keys (Section 12) MUST be completely negotiated within
            //# the Login Phase.
            Stages::Security => stage == Stage::SECURITY,
            Stages::Operational => stage == Stage::OPERATIONAL,
            Stages::Neither => false,
        };
        if !in_stage {
            return Err(BadNegotiation::KeyInWrongStage(key));
        }
        // A connection that joins a session repeats its type; that value is checked, not negotiated. Markers
        // are answered in the same way wherever they are offered (§13.25).
        let is_obsolete = matches!(spec.kind, Kind::Obsolete { .. });
        if spec.usage == Usage::LeadingOnly && !self.leading && key != Key::SessionType && !is_obsolete {
            return Err(BadNegotiation::KeyOfLeadingConnection(key));
        }
        // A target with several addresses sends this key for each (RFC 7143 §13.8).
        if self.has_seen(key) && key != Key::TargetAddress {
            //= rfc7143#section-6.3
            //# An attempt to renegotiate/redeclare parameters not specifically allowed MUST be
            //# detected by the initiator and target.
            return Err(BadNegotiation::KeyTwice(key));
        }
        self.seen |= 1 << key.index();
        Ok(())
    }
}
