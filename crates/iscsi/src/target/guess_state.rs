//! How far the try of a password in a login is.

use base::time::Instant;
use security::guess_limit::{Account, Permit};

use crate::login::LoginResponse;

/// The try of a password in the login of a connection.
#[derive(Debug)]
pub(crate) enum PasswordGuess {
    /// The response that permits it waits for the rate limit.
    Waiting {
        /// Whose password the initiator tries.
        guess: Account,
        /// When the initiator asked for it.
        since: Instant,
        /// The response.
        response: LoginResponse,
    },
    /// The response was sent.
    Permitted(Permit),
}

impl PasswordGuess {
    /// Returns whether its response was not sent yet.
    pub(crate) const fn is_waiting(&self) -> bool {
        matches!(self, Self::Waiting { .. })
    }
}
