//! The response that permits a try of a password: it waits for the rate limit, and the try counts as failed
//! until the password is proven.

use alloc::boxed::Box;

use base::state_machine::ConnId;
use base::time::Instant;

use security::guess_limit::Account;

use super::connection::index;
use super::engine::Engine;
use super::guess_state::PasswordGuess;
use super::protocol_error::ProtocolError;
use super::timer::{Owner, Timer};
use crate::login::{LoginError, LoginResponse};

impl Engine {
    /// Sends the response that permits a try of a password, now or when the rate limit permits it.
    pub(super) fn request_guess(
        &mut self,
        now: Instant,
        conn: ConnId,
        guess: Account,
        response: LoginResponse,
    ) -> Result<(), ProtocolError> {
        self.permit_guess(now, conn, guess, now, response)
    }

    /// Handles the timer of a response that waits for the rate limit.
    pub(super) fn on_guess_timer(&mut self, now: Instant, conn: ConnId) {
        let Some(connection) = self.conn_mut(conn) else { return };
        match connection.guess.take().map(|guess| *guess) {
            Some(PasswordGuess::Waiting { guess, since, response }) => {
                if let Err(why) = self.permit_guess(now, conn, guess, since, response) {
                    self.drop_connection(conn, why);
                }
            }
            other => connection.guess = other.map(Box::new),
        }
    }

    fn permit_guess(
        &mut self,
        now: Instant,
        conn: ConnId,
        guess: Account,
        since: Instant,
        response: LoginResponse,
    ) -> Result<(), ProtocolError> {
        let Some(connection) = self.conns.get_mut(index(conn)).and_then(Option::as_deref_mut) else {
            return Err(ProtocolError::impossible());
        };
        let source = connection.via.peer.ip();
        let waited = now.since(since);
        let begun = self
            .guesses
            .with(now.since(Instant::ORIGIN), |limit, now| limit.begin(now, waited, &guess, source));
        match begun.ok_or_else(ProtocolError::impossible)? {
            Ok(permit) => {
                connection.guess = Some(Box::new(PasswordGuess::Permitted(permit)));
                self.login_response(conn, response)
            }
            Err(wait) => {
                connection.guess = Some(Box::new(PasswordGuess::Waiting { guess, since, response }));
                let due = now.after(wait);
                self.timers.set(Owner::Connection(conn), &mut connection.deadlines, Timer::Guess, due);
                Ok(())
            }
        }
    }

    /// Reports a login that ended after it could try a password: the initiator, which learns first whether
    /// the password is right, hangs up when it is wrong.
    pub(super) fn report_unproven_guess(&mut self, conn: ConnId) {
        let Some(connection) = self.conn(conn) else { return };
        if let (Some(PasswordGuess::Permitted(_)), Some(login)) =
            (connection.guess.as_deref(), &connection.login)
        {
            let claims = login.claims().clone();
            self.record_failed_login(conn, claims, LoginError::PasswordNotProven.into());
        }
    }

    /// Records that a try of a password succeeded or failed, if there is one on the connection.
    pub(super) fn end_guess(&mut self, now: Instant, conn: ConnId, is_right: bool) {
        let Some(guess) = self.conn_mut(conn).and_then(|connection| connection.guess.take()) else { return };
        if let PasswordGuess::Permitted(permit) = *guess {
            self.guesses.with(now.since(Instant::ORIGIN), |limit, now| match is_right {
                true => limit.right(now, permit),
                false => limit.wrong(now, &permit),
            });
        }
    }
}
