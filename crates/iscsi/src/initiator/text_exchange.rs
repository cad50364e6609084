//! The state of a text negotiation.

use alloc::collections::BTreeSet;
use alloc::string::{String, ToString};
use alloc::vec::Vec;

use base::time::Instant;

use super::contract::Slot;
use crate::discovery::TargetList;
use crate::negotiate::full_feature::InitiatorText;
use crate::pdu::Itt;
use crate::text::{BadText, MAX_TEXT, TextBuilder, parse};

/// A text negotiation.
#[derive(Debug)]
pub(super) struct TextExchange {
    /// The text to send, until the negotiation begins.
    pub(super) text: Option<TextBuilder>,
    /// The connection that the negotiation must use; `None`: any.
    pub(super) on: Option<Slot>,
    /// Once the negotiation has begun: its connection, its tag, and its state.
    pub(super) at: Option<(Slot, Itt, InitiatorText)>,
    /// When the last request was sent.
    pub(super) said: Instant,
    pub(super) topic: Topic,
}

/// The subject of a text negotiation.
#[derive(Debug)]
pub(super) enum Topic {
    /// A list of targets.
    Targets(TargetList),
    /// Keys of the owner, and the longest data segment that the initiator declares among them.
    Keys { answer: KeyAnswer, max_recv: Option<u32> },
    /// No keys: the target requested the negotiation.
    Requested(KeyAnswer),
    /// No keys: the negotiation resets one in which the target broke a rule.
    Reset(KeyAnswer),
}

/// The answer of a target to keys, so far.
#[derive(Debug, Default)]
pub(super) struct KeyAnswer {
    pub(super) text: Vec<u8>,
    /// The length of the part that was checked, and the keys in it.
    pub(super) checked: usize,
    pub(super) keys: BTreeSet<String>,
}

impl KeyAnswer {
    /// Appends the text of a response. Returns whether the target said a key again.
    pub(super) fn add(&mut self, data: &[u8], continues: bool) -> Result<bool, BadText> {
        if self.text.len().saturating_add(data.len()) > MAX_TEXT {
            return Err(BadText::TooLong);
        }
        self.text.extend_from_slice(data);
        if continues {
            return Ok(false);
        }
        let pairs = parse(self.text.get(self.checked..).unwrap_or_default()).unwrap_or_default();
        let twice = pairs.iter().any(|pair| !self.keys.insert(pair.name.to_string()));
        self.checked = self.text.len();
        Ok(twice)
    }
}

impl TextExchange {
    /// Returns whether the negotiation runs on a connection.
    pub(super) fn is_at(&self, slot: Slot) -> bool {
        self.at.as_ref().is_some_and(|(at, _, _)| *at == slot)
    }

    /// Returns the tag of the negotiation, once it has begun.
    pub(super) fn itt(&self) -> Option<Itt> {
        self.at.as_ref().map(|(_, itt, _)| *itt)
    }
}
