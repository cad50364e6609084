//! The operational stage of a login whose keys come from another login: that of an initiator behind a proxy.
//!
//! The digests are negotiated here, and so is the password login before. All other keys are texts of the
//! owner and of the target, which pass unchanged.

use alloc::vec::Vec;

use super::{InitiatorLogin, InitiatorLoginError, InitiatorLoginStep, OwnedLoginRequest, Phase};
use crate::keys::Key;
use crate::login::confirmation::BadConfirmation;
use crate::login::{LoginResponse, Stage};
use crate::negotiate::key_rules::BadNegotiation;
use crate::text::{Pair, TextBuilder, TextSplitter, parse};

impl InitiatorLogin {
    /// Removes and returns the keys that the target sent since the last call, except those of the password
    /// login and the digests.
    pub fn take_relayed(&mut self) -> Vec<u8> {
        core::mem::take(&mut self.relayed).into_bytes()
    }

    /// Returns the request that carries the next text of operational keys, after
    /// [`InitiatorLoginStep::Relay`]. `transit` requests full feature phase.
    ///
    /// # Errors
    /// The login does not wait for a text, or the text is too long.
    pub fn relay(
        &mut self,
        mut text: TextBuilder,
        transit: bool,
    ) -> Result<OwnedLoginRequest, InitiatorLoginError> {
        let is_due = self.plan.relays_keys && self.stage == Stage::OPERATIONAL && self.outgoing.is_done();
        if self.phase != Phase::UnderWay || !is_due {
            return Err(InitiatorLoginError::OutOfTurn);
        }
        //= iscsi-aead#section-5
        //# An initiator MUST offer the same AEAD digests in the
        //# same order in both lists, and both keys in one text.
        self.negotiator.offer_digests(&mut text);
        if text.has_overflowed() {
            return Err(BadNegotiation::TooManyAnswers.into());
        }
        self.outgoing = TextSplitter::new(text.into_bytes());
        self.ready = transit;
        Ok(self.next_call())
    }

    /// Handles a complete text of the operational stage.
    pub(super) fn receive_relayed(
        &mut self,
        response: &LoginResponse,
        text: &[u8],
    ) -> Result<InitiatorLoginStep, InitiatorLoginError> {
        let mut digests = Vec::new();
        for pair in parse(text)? {
            if self.transcript.is_misplaced(pair.name) {
                return Err(BadConfirmation::Misplaced.into());
            }
            match Key::by_name(pair.name.as_bytes()) {
                Some(key @ (Key::HeaderDigest | Key::DataDigest)) => {
                    self.key_rules.admit(key, self.stage)?;
                    digests.push((key, pair));
                }
                // It belongs to redirections, which end a login, and would lead past the owner.
                Some(Key::TargetAddress) => {}
                _ => self.relayed.put(pair.name, pair.value),
            }
        }
        let mut answers = TextBuilder::new();
        self.negotiator.receive(&digests, &mut answers)?;
        if !answers.is_empty() {
            return Err(BadNegotiation::AnswerWithoutOffer.into());
        }
        if self.relayed.has_overflowed() {
            return Err(BadNegotiation::TooManyAnswers.into());
        }
        if response.transit { self.enter(response) } else { Ok(InitiatorLoginStep::Relay) }
    }

    /// Keeps a key of the security stage that tells the other login about the target.
    pub(super) fn note_for_relay(&mut self, key: Key, pair: &Pair<'_>) {
        if self.plan.relays_keys && matches!(key, Key::TargetPortalGroupTag | Key::TargetAlias) {
            self.relayed.put(pair.name, pair.value);
        }
    }
}

#[cfg(test)]
mod tests {
    use alloc::string::String;

    use super::*;
    use crate::login::initiator::{AuthPlan, LoginPlan, Purpose};
    use crate::login::test_site::{INITIATOR, ISID, TARGET, name, spaced, zeroed};
    use crate::negotiate::KeyPolicy;

    #[test]
    fn relays_no_address_of_the_target() {
        let purpose = Purpose::NewSession(name(TARGET));
        let plan = LoginPlan::new(name(INITIATOR), purpose, ISID, AuthPlan::None, KeyPolicy::default());
        let mut login = InitiatorLogin::new(LoginPlan { relays_keys: true, ..plan }, [7; 32]);
        login.stage = Stage::OPERATIONAL;
        let response = LoginResponse {
            transit: false,
            cont: false,
            csg: Stage::OPERATIONAL,
            nsg: Stage(0),
            version_max: 0,
            version_active: 0,
            isid: ISID.0,
            tsih: 0,
            itt: 0,
            status_class: 0,
            status_detail: 0,
            data: Vec::new(),
        };
        let text = zeroed("InitialR2T=Yes TargetAddress=192.0.2.9:3260,1 MaxBurstLength=4096");
        let step = login.receive_relayed(&response, &text).unwrap();
        assert!(matches!(step, InitiatorLoginStep::Relay), "{step:?}");
        let relayed: String = spaced(&login.take_relayed());
        assert_eq!(relayed, "InitialR2T=Yes MaxBurstLength=4096");
    }
}
