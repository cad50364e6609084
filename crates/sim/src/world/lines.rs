//! The lines of the trace.

use crate::oracle_adapter::Effect;
use crate::transport::{CommandOutcome, Ticket, TransportEvent};

/// Returns the line for a command that is sent.
pub(super) fn describe(initiator: usize, ticket: Ticket, cdb: &[u8], meaning: &Effect) -> String {
    let bytes: String = cdb.iter().map(|byte| format!("{byte:02x}")).collect();
    format!("initiator {initiator} sends {} {bytes} {meaning:?}", ticket.0)
}

/// Returns the line for an event that a transport reports.
pub(super) fn summary(event: &TransportEvent) -> String {
    match event {
        TransportEvent::Ended { initiator, ticket, ended } => {
            let how = match ended {
                CommandOutcome::Status { status, sense, data } => {
                    let sense: String = sense.iter().map(|byte| format!("{byte:02x}")).collect();
                    format!("status {status:#04x} {sense} {} bytes", data.len())
                }
                other => format!("{other:?}"),
            };
            format!("initiator {initiator} ends {}: {how}", ticket.0)
        }
        other => format!("{other:?}"),
    }
}
