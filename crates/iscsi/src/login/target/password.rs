//! The password login at the target (docs/iscsi-aead.md §3), and what it demands of connections that join a
//! session.

use super::super::directory::Directory;
use super::super::{LoginError, LoginRequest, PasswordLogin, Stage};
use super::{Auth, Sorted, TargetLogin, readable};
use crate::opaque::OpaqueError;
use crate::text::TextBuilder;
use security::guess_limit::Account;

impl TargetLogin {
    /// Handles a text of the password login: the initiator's first or last step.
    pub(super) fn prove(
        &mut self,
        sorted: &Sorted<'_>,
        request: &LoginRequest<'_>,
        directory: &dyn Directory,
        out: &mut TextBuilder,
    ) -> Result<bool, LoginError> {
        let (Auth::Opaque(opaque), Some(identity)) = (&mut self.auth, &mut self.identity) else {
            return Err(LoginError::AuthenticationSkipped);
        };
        if !opaque.has_begun() {
            self.claims.user = sorted.opaque.user().map(readable);
            let realm = identity.realm;
            let record_of = |user: &str| directory.password_record(realm, &identity.initiator, user);
            //= iscsi-aead#section-3.2
            //# The *context* is the transcript (section 4.1) of all Login PDUs up to and including the request
            //# that completes the text of step 3.
            let context = self.transcript.digest();
            let user = opaque.handle_start(&sorted.opaque, context, *self.entropy, &record_of, out)?;
            // The record is the same in each realm with the same password file.
            let record = record_of(&user).ok_or(LoginError::AuthenticationSkipped)?;
            self.guess = Some(Account::of_user(&record, &user));
            return Ok(false);
        }
        //= iscsi-aead#section-3.1
        //# The initiator MUST choose NSG=1 in step 5, and the target MUST NOT enter full feature phase from the
        //# SecurityNegotiation stage
        if !request.transit || request.nsg != Stage::OPERATIONAL {
            return Err(OpaqueError::Stage.into());
        }
        let (user, keys) = opaque.handle_finish(&sorted.opaque)?;
        self.transcript.prove(keys);
        identity.negotiator.permit_aead();
        self.auth = Auth::Done(Some(user));
        Ok(true)
    }
}

/// Checks that a connection may join a session whose first connection logged in as `first`.
pub(super) fn check_joins(
    ours: Option<&PasswordLogin>,
    first: Option<&PasswordLogin>,
) -> Result<(), LoginError> {
    let (Some(ours), Some(first)) = (ours, first) else {
        // One of both did not use the password login, so its user is not the same.
        return if ours.is_some() || first.is_some() { Err(LoginError::OtherUser) } else { Ok(()) };
    };
    //= iscsi-aead#section-3.1
    //# A target MUST refuse, with status 0201h, a connection that joins a session as another user than the
    //# first connection did, and, with status 0200h, one with a lower protection than the first connection
    //# has.
    if ours.user != first.user {
        return Err(LoginError::OtherUser);
    }
    if ours.protection < first.protection { Err(LoginError::LowerProtection) } else { Ok(()) }
}
