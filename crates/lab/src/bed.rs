//! A bed: two hosts on this machine, and the link between them.
//!
//! A host is a network namespace without a name, and the link a veth pair. Both vanish with the process that
//! made them, however it ends. A bed needs `CAP_SYS_ADMIN` and `CAP_NET_ADMIN`, and no program but ours.
//!
//! A shaped link counts what a real wire carries: a frame of 1500 bytes occupies 1538 bytes of it, with
//! Ethernet header, preamble, frame check sequence and gap. TCP hands a shaped interface segments of one
//! frame; on a link that is not shaped, segments of up to 64 KiB cross in one piece, as with an adapter that
//! segments by itself.

mod calibration;
mod checksum_offload;
mod echo;
mod link;
mod mounts;
mod namespace;
mod netlink;
mod relay;
#[cfg(test)]
mod tests;
mod traffic;

use std::net::{Ipv4Addr, TcpStream};

pub use calibration::Calibration;
pub use echo::{Echo, echo_rate, write_echo_rate};
pub(crate) use echo::{EchoPlan, Exchange, echo};
pub(crate) use mounts::MountNamespace;
pub use namespace::Namespace;
pub use relay::Relay;
pub use traffic::{BareFrames, OtherTraffic, frame_rate, packets_sent};

use crate::experiment::LabError;

/// The addresses of the hosts.
pub const INITIATOR_ADDRESS: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 2);
/// The address of the host with the target.
pub const TARGET_ADDRESS: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 1);

/// The bytes of a frame on the wire beside its payload: preamble, header, frame check sequence, gap.
const WIRE_OVERHEAD: u16 = 8 + ETHERNET_HEADER_LEN + 4 + 12;
/// The bytes of an Ethernet header.
const ETHERNET_HEADER_LEN: u16 = 14;
/// The bytes of a packet beside its TCP payload: the headers of IPv4 and TCP, and the timestamp option.
const TCP_OVERHEAD: u16 = 20 + 20 + 12;

/// The smallest and the largest MTU of a link, in bytes.
pub const MTU_MIN: u32 = 576;
/// The largest MTU of a link: that of a veth interface.
pub const MTU_MAX: u32 = 65_535;

/// The slowest shaped link, in bits per second.
pub const RATE_MIN: u64 = 1_000_000;
/// The fastest shaped link, in bits per second: what a token bucket of 32 bits of bytes can be.
pub const RATE_MAX: u64 = 34_000_000_000;

/// The properties of a link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LinkPlan {
    /// The MTU in bytes, [`MTU_MIN`] to [`MTU_MAX`].
    pub mtu: u32,
    /// The rate of each direction in bits per second on the wire, [`RATE_MIN`] to [`RATE_MAX`]; without one,
    /// the link is as fast as the processors.
    pub rate_bits: Option<u64>,
}

impl LinkPlan {
    /// The link of a new bed.
    pub const DEFAULT: Self = Self { mtu: 1500, rate_bits: None };

    /// Returns the name of the link in tables and caveats: `100 Mbit/s, MTU 1500`.
    pub(crate) fn name(&self) -> String {
        let rate = self
            .rate_bits
            .map_or_else(|| "unshaped".to_owned(), |bits| format!("{} Mbit/s", to_f64(bits) / 1e6));
        format!("{rate}, MTU {}", self.mtu)
    }

    /// Returns the rate of TCP payload that the framing leaves of the link's rate, in bytes per second:
    /// 1448 of 1538 bytes at an MTU of 1500. A link that is not shaped has none.
    pub fn payload_rate(&self) -> Option<f64> {
        let mtu = f64::from(self.mtu);
        let share = (mtu - f64::from(TCP_OVERHEAD)) / (mtu + f64::from(WIRE_OVERHEAD));
        self.rate_bits.map(|bits| to_f64(bits) / 8.0 * share)
    }
}

/// Two hosts and the link between them.
#[derive(Debug)]
pub struct Bed {
    initiator: Namespace,
    target: Namespace,
    link: LinkPlan,
}

impl Bed {
    /// Creates the hosts and the link ([`LinkPlan::DEFAULT`]).
    ///
    /// # Errors
    /// [`LabError::System`]. Without the rights to create namespaces, [`is_not_permitted`] recognizes it.
    pub fn create() -> Result<Self, LabError> {
        let (initiator, target) = (Namespace::create()?, Namespace::create()?);
        link::create(&initiator, &target)?;
        Ok(Self { initiator, target, link: LinkPlan::DEFAULT })
    }

    /// Creates the hosts, and a third one between them that [`Relay`] forwards the frames of. The link is
    /// [`LinkPlan::DEFAULT`]; before it carries TCP it must be shaped, so that each frame is one of a wire.
    ///
    /// # Errors
    /// As [`Self::create`].
    pub fn create_relayed() -> Result<(Self, Relay), LabError> {
        let (initiator, target, relay) = (Namespace::create()?, Namespace::create()?, Namespace::create()?);
        link::create_relayed(&initiator, &target, &relay)?;
        for host in [&initiator, &target] {
            // A relay would carry checksums that no interface has computed.
            let disabled = host.run(checksum_offload::disable)?;
            disabled.map_err(|why| namespace::system("disable the checksum offload of a veth pair", why))?;
        }
        Ok((Self { initiator, target, link: LinkPlan::DEFAULT }, Relay::new(relay)))
    }

    /// Returns the link.
    pub const fn link(&self) -> LinkPlan {
        self.link
    }

    /// Changes the link. Connections that exist keep the segment size of the MTU before.
    ///
    /// # Errors
    /// [`LabError::System`]; the link is then undefined.
    pub fn shape(&mut self, plan: LinkPlan) -> Result<(), LabError> {
        for host in [&self.initiator, &self.target] {
            link::shape(host, self.link, plan).map_err(|why| namespace::system("shape a veth pair", why))?;
        }
        self.link = plan;
        Ok(())
    }

    /// Returns the initiator's host.
    pub const fn initiator(&self) -> &Namespace {
        &self.initiator
    }

    /// Returns the target's host.
    pub const fn target(&self) -> &Namespace {
        &self.target
    }

    /// Gives each host a further address, at which the link alone does not reach it: the end of a tunnel.
    ///
    /// # Errors
    /// [`LabError::System`]
    pub(crate) fn add_addresses(&self, initiator: Ipv4Addr, target: Ipv4Addr) -> Result<(), LabError> {
        for (host, address) in [(&self.initiator, initiator), (&self.target, target)] {
            link::add_address(host.route(), address)
                .map_err(|why| namespace::system("add an address to a host", why))?;
        }
        Ok(())
    }

    /// Connects the initiator's host to an address of the target's. Returns the initiator's end and the
    /// target's; a call that takes too long fails.
    ///
    /// # Errors
    /// [`LabError::System`]
    pub(crate) fn connect(&self, address: Ipv4Addr) -> Result<(TcpStream, TcpStream), LabError> {
        calibration::connected_at(self, address)
    }

    /// Measures the rates of bare TCP streams through the link.
    ///
    /// # Errors
    /// [`LabError::System`]
    pub fn calibrate(&self, seconds: f64) -> Result<Calibration, LabError> {
        calibration::calibrate(self, seconds)
    }
}

/// Returns whether an error says that this process may not create network namespaces.
pub fn is_not_permitted(error: &LabError) -> bool {
    matches!(error, LabError::System { why, .. } if why.kind() == std::io::ErrorKind::PermissionDenied)
}

#[allow(clippy::cast_precision_loss, reason = "rates and counts below 2^53")]
pub(crate) const fn to_f64(count: u64) -> f64 {
    count as f64
}
