//! Tells the service manager the state of a command that runs until a signal (`sd_notify(3)`). Nothing is
//! sent unless a service manager asks for it.

use sd_notify::NotifyState;

/// The command serves, so that the units that wait for it can start.
pub(crate) fn ready(status: &str) {
    tell(&[NotifyState::Ready, NotifyState::Status(status)]);
}

/// The command was told to end, which can take a while.
pub(crate) fn stopping(status: &str) {
    tell(&[NotifyState::Stopping, NotifyState::Status(status)]);
}

fn tell(states: &[NotifyState<'_>]) {
    if let Err(error) = sd_notify::notify(states) {
        eprintln!("targe: cannot send messages to the service manager: {error}");
    }
}
