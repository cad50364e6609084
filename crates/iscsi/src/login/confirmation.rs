//! The transcript of a connection's login, and the confirmations by which both sides of a password login
//! check that they have the same one (docs/iscsi-aead.md §4).

use core::mem;

use subtle::ConstantTimeEq as _;

use super::transcript::{CONFIRMATION_KEY, CONFIRMATION_PAIR_LEN, LoginTranscript, RecordKeySeed};
use super::{LoginRequest, LoginResponse, Stage};
use crate::aead::AeadDigest;
use crate::aead::login_keys::{CONFIRMATION_LEN, LoginKeys};
use crate::keys::Role;
use crate::text::TextBuilder;
use crate::text::value::to_hex;

/// The reason for which a confirmation is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadConfirmation {
    /// The text of the PDU does not end with a confirmation.
    #[error("it is missing at the end of the text")]
    Missing,
    /// The confirmation is malformed, or that of another transcript.
    #[error("it does not match the login, which was changed on its way")]
    Mismatch,
    /// The key stands elsewhere than at the end of a text that requests or grants full feature phase.
    #[error("it is not at the end of the last text")]
    Misplaced,
}

/// The transcript of a login, and its keys once the password was proven.
#[derive(Debug, Default)]
pub(super) struct Transcript {
    pdus: LoginTranscript,
    keys: Option<LoginKeys>,
}

impl Transcript {
    /// Returns the hash of the PDUs so far.
    pub(super) fn digest(&self) -> [u8; 64] {
        self.pdus.digest()
    }

    /// Stores the keys of the login: the password was proven.
    pub(super) fn prove(&mut self, keys: LoginKeys) {
        self.keys = Some(keys);
    }

    /// Returns whether the password was proven.
    pub(super) const fn is_proven(&self) -> bool {
        self.keys.is_some()
    }

    /// Returns whether `name` is the key of a confirmation, which stands only where this module puts and
    /// takes it. Without the password login it is an unknown key.
    pub(super) fn is_misplaced(&self, name: &str) -> bool {
        self.is_proven() && name == CONFIRMATION_KEY
    }

    /// Adds a request that was received. Returns its text without the confirmation, which is checked if the
    /// request must have one.
    pub(super) fn receive_request<'a>(
        &mut self,
        request: &LoginRequest<'a>,
    ) -> Result<&'a [u8], BadConfirmation> {
        let text = match &self.keys {
            Some(keys) if ends_login(request.transit, request.nsg) => {
                let hash = self.pdus.confirmed_by_request(request).ok_or(BadConfirmation::Missing)?;
                checked(request.data, &keys.confirmation(Role::Initiator, &hash))?
            }
            _ => request.data,
        };
        self.pdus.add_request(request);
        Ok(text)
    }

    /// Adds a response that was received, like [`Self::receive_request`].
    pub(super) fn receive_response<'a>(
        &mut self,
        response: &'a LoginResponse,
    ) -> Result<&'a [u8], BadConfirmation> {
        let text = match &self.keys {
            Some(keys) if ends_login(response.transit, response.nsg) => {
                let hash = self.pdus.confirmed_by_response(response).ok_or(BadConfirmation::Missing)?;
                checked(&response.data, &keys.confirmation(Role::Target, &hash))?
            }
            _ => &response.data,
        };
        self.pdus.add_response(response);
        Ok(text)
    }

    /// Returns the confirmation that a request needs, whose text has no confirmation yet: the pair to append.
    pub(super) fn pair_for_request(&self, request: &LoginRequest<'_>) -> Option<TextBuilder> {
        let keys = self.keys.as_ref().filter(|_| ends_login(request.transit, request.nsg))?;
        let mut data = request.data.to_vec();
        data.extend_from_slice(&pair(&[0; CONFIRMATION_LEN]).into_bytes());
        let hash = self.pdus.confirmed_by_request(&LoginRequest { data: &data, ..*request })?;
        Some(pair(&keys.confirmation(Role::Initiator, &hash)))
    }

    /// Adds a request that is sent, with its confirmation if it needs one.
    pub(super) fn add_request(&mut self, request: &LoginRequest<'_>) {
        self.pdus.add_request(request);
    }

    /// Completes a response with its confirmation if it needs one, and adds it.
    pub(super) fn send_response(&mut self, response: &mut LoginResponse) {
        if let Some(keys) = self.keys.as_ref().filter(|_| ends_login(response.transit, response.nsg)) {
            let len = response.data.len();
            response.data.extend_from_slice(&pair(&[0; CONFIRMATION_LEN]).into_bytes());
            let hash = self.pdus.confirmed_by_response(response);
            response.data.truncate(len);
            if let Some(hash) = hash {
                let pair = pair(&keys.confirmation(Role::Target, &hash));
                response.data.extend_from_slice(&pair.into_bytes());
            }
        }
        self.pdus.add_response(response);
    }

    /// Returns how many bytes of a PDU's text are kept free for a confirmation.
    pub(super) const fn tail_len(&self, transit: bool, nsg: Stage) -> usize {
        if self.is_proven() && ends_login(transit, nsg) { CONFIRMATION_PAIR_LEN } else { 0 }
    }

    /// Ends the transcript. Returns what the keys of the connection follow from, if the login has keys and
    /// negotiated an AEAD digest. All secrets leave the transcript.
    pub(super) fn finish(&mut self, digest: Option<AeadDigest>) -> Option<RecordKeySeed> {
        let Self { pdus, keys } = mem::take(self);
        Some(RecordKeySeed::new(keys?, pdus, digest?))
    }
}

/// Returns whether a PDU with these flags moves to full feature phase.
const fn ends_login(transit: bool, nsg: Stage) -> bool {
    transit && nsg.0 == Stage::FULL_FEATURE.0
}

fn pair(confirmation: &[u8; CONFIRMATION_LEN]) -> TextBuilder {
    let mut text = TextBuilder::new();
    text.put(CONFIRMATION_KEY, to_hex(confirmation));
    text
}

/// Checks the confirmation at the end of a text, and returns the text before it.
fn checked<'a>(text: &'a [u8], expected: &[u8; CONFIRMATION_LEN]) -> Result<&'a [u8], BadConfirmation> {
    let at = text.len().checked_sub(CONFIRMATION_PAIR_LEN).ok_or(BadConfirmation::Missing)?;
    let (rest, received) = text.split_at_checked(at).ok_or(BadConfirmation::Missing)?;
    let begins_pair = rest.last().is_none_or(|byte| *byte == 0);
    let is_key =
        received.strip_prefix(CONFIRMATION_KEY.as_bytes()).is_some_and(|value| value.starts_with(b"="));
    if !begins_pair || !is_key {
        return Err(BadConfirmation::Missing);
    }
    //= iscsi-aead#section-4.2
    //# A receiver MUST compare the value in constant time
    let equal = received.ct_eq(&pair(expected).into_bytes());
    if bool::from(equal) { Ok(rest) } else { Err(BadConfirmation::Mismatch) }
}
