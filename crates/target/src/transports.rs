//! The transports through which initiators reach a target.

use transport::target::TargetTransport;

use crate::transport_id::TransportId;

/// The transports of a target, by number.
pub trait Transports {
    /// Returns the transport with a number.
    fn get(&mut self, id: TransportId) -> Option<&mut dyn TargetTransport>;
}
