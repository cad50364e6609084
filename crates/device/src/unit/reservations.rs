//! What an operator may know of the reservations of a unit.

use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;

use scsi::pr::ReservationType;
use scsi::transport_id::TransportId;

use super::LogicalUnit;
use crate::pr::{NexusName, PersistentReservations};

/// The most holders of a reservation that a report names.
pub const HOLDERS_NAMED_MAX: usize = 16;

/// The reservations of a unit.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ReservationReport {
    /// The kind of the reservation; `None` if there are only registrations.
    pub kind: Option<ReservationKind>,
    /// How many nexuses are registered.
    pub registrations: usize,
    /// The initiators that hold the reservation, at most [`HOLDERS_NAMED_MAX`] of them, each once.
    pub holders: Vec<String>,
    /// Whether it survives a restart (APTPL).
    pub persists: bool,
    /// Whether the saved state could not be read, so that nearly every command is refused.
    pub is_lost: bool,
}

/// The kind of a reservation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReservationKind {
    /// A persistent reservation of this type.
    Persistent(ReservationType),
    /// A reservation by RESERVE (SPC-2).
    Spc2,
}

impl LogicalUnit {
    /// Returns the reservations and registrations; `None` if there are none.
    pub fn reservations(&self) -> Option<ReservationReport> {
        let state = &self.server.spc;
        let spc2 = state.spc2_reservation.holder().and_then(|id| self.server.nexuses.find(id));
        let report = match spc2 {
            Some(holder) => ReservationReport {
                kind: Some(ReservationKind::Spc2),
                holders: [NexusName::of(&holder.nexus)].iter().map(initiator).collect(),
                ..persistent(&state.pr)
            },
            None => persistent(&state.pr),
        };
        (report.kind.is_some() || report.registrations > 0 || report.is_lost).then_some(report)
    }
}

fn persistent(pr: &PersistentReservations) -> ReservationReport {
    let mut holders: Vec<String> = Vec::new();
    for holder in pr.holders() {
        let name = initiator(holder);
        if holders.len() < HOLDERS_NAMED_MAX && !holders.contains(&name) {
            holders.push(name);
        }
    }
    ReservationReport {
        kind: pr.kind().map(ReservationKind::Persistent),
        registrations: pr.registrations(),
        holders,
        persists: pr.persists(),
        is_lost: pr.is_lost(),
    }
}

/// Returns the name of the initiator of a nexus.
fn initiator(nexus: &NexusName) -> String {
    match TransportId::from_bytes(&nexus.initiator_port) {
        Ok(TransportId::IscsiDevice { name } | TransportId::IscsiPort { name, .. }) => name,
        _ => format!("a port of another protocol, at target port {}", nexus.target_port.0),
    }
}
