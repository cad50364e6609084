//! The responses about the log.

use crate::admin::event_api::{Event, Events};
use crate::log::{recent, timestamp};

/// Returns the last lines of the log.
pub(super) fn events() -> Events {
    let event = |line: &recent::RecentLine| Event {
        number: line.number,
        time: timestamp(line.at),
        level: line.level.name().to_owned(),
        message: line.message.clone(),
    };
    Events { events: recent::lines().iter().map(|line| event(line)).collect() }
}
