//! The state of an idle session, as it moves to another engine.
//!
//! Only engines of the same version of the format exchange these types. Times are durations up to the moment
//! of the export.

use alloc::string::String;
use alloc::vec::Vec;
use core::net::SocketAddr;

use base::time::Duration;
use serde::{Deserialize, Serialize};

use crate::aead::record_state::RecordKeysState;
use crate::name::{IscsiName, PortalGroupTag};
use crate::target::allegiance::LostConnectionState;
use crate::target::initiator_notes::TakeoversState;
use crate::target::logout_cause::LogoutCause;

/// The state of an idle session: [`Engine::export`](crate::target::engine::Engine::export) returns it, and
/// [`Engine::resume`](crate::target::engine::Engine::resume) takes it. It contains the keys of AEAD digests,
/// so it must not be stored or logged.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SessionState {
    pub(super) target: String,
    pub(super) portal_group: u16,
    pub(super) initiator: String,
    pub(super) initiator_alias: Option<String>,
    pub(super) isid: [u8; 6],
    pub(super) tsih: u16,
    pub(super) user: Option<String>,
    pub(super) password_login: Option<PasswordLoginState>,
    /// The name of the digest that protects the session, or [`TLS`]; `None` if it is not protected. Whether a
    /// connection is inside TLS follows from its portal.
    pub(super) protection: Option<String>,
    pub(super) parameters: SessionParametersState,
    pub(super) exp_cmd_sn: u32,
    /// The MaxCmdSN that was granted last. The initiator may use all numbers up to it.
    pub(super) max_cmd_sn: u32,
    /// The next target transfer tag. The initiator may still send PDUs with tags before it.
    pub(super) next_ttt: u32,
    /// How long ago the session began.
    pub(super) age: Duration,
    pub(super) first_peer: SocketAddr,
    pub(super) takeovers: Option<TakeoversState>,
    pub(super) traffic: TrafficState,
    pub(super) repairs: RepairsState,
    /// Lost connections without tasks. A login or logout can name their CIDs.
    pub(super) lost: Vec<LostConnectionState>,
    /// What decides whose decision a logout is.
    pub(super) logout_cause: LogoutCause,
    /// The connections, the leading one first.
    pub(super) connections: Vec<ConnectionState>,
}

/// The name of the protection of a session whose first connection was inside TLS.
pub(super) const TLS: &str = "TLS";

/// A connection between two PDUs in full feature phase, with nothing to send.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct ConnectionState {
    pub(super) peer: SocketAddr,
    pub(super) cid: u16,
    /// The names of the digests that were negotiated.
    pub(super) header_digest: String,
    pub(super) data_digest: String,
    pub(super) initiator_max_recv: u32,
    pub(super) target_max_recv: u32,
    /// The number of the next status, and of the first one that is not acknowledged.
    pub(super) stat_sn: u32,
    pub(super) exp_stat_sn: u32,
    /// The keys of an AEAD digest.
    pub(super) record_keys: Option<RecordKeysState>,
    /// The sum of the wrong tags of received data segments.
    pub(super) wrong_tags: u32,
}

/// The parameters of a session, as their keys name them.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct SessionParametersState {
    pub(super) max_connections: u16,
    pub(super) initial_r2t: bool,
    pub(super) immediate_data: bool,
    pub(super) max_burst_length: u32,
    pub(super) first_burst_length: u32,
    pub(super) default_time2wait: u16,
    pub(super) default_time2retain: u16,
    pub(super) max_outstanding_r2t: u16,
    pub(super) data_pdu_in_order: bool,
    pub(super) data_sequence_in_order: bool,
    pub(super) error_recovery_level: u8,
    pub(super) task_reporting: String,
    pub(super) protocol_level: u8,
}

/// A password login, as far as further connections of the session must equal it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct PasswordLoginState {
    pub(super) user: String,
    /// The code of the protection.
    pub(super) protection: u8,
}

/// Counters of the traffic of the session.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct TrafficState {
    pub(super) commands: u64,
    pub(super) data_in_bytes: u64,
    pub(super) data_out_bytes: u64,
}

/// Counters of the error recovery of the session.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct RepairsState {
    pub(super) header_digest_errors: u64,
    pub(super) data_digest_errors: u64,
    pub(super) snacks: u64,
    pub(super) recovery_r2ts: u64,
    pub(super) reassigns: u64,
}

impl SessionState {
    /// Returns the name of the target, with which the owner finds its number in the directory. Returns `None`
    /// if the text is not a name.
    pub fn target(&self) -> Option<IscsiName> {
        parsed(&self.target, IscsiName::parse)
    }

    /// Returns the name of the initiator, if the text is one.
    pub fn initiator(&self) -> Option<IscsiName> {
        // A listener can accept names that are not of the form of the standard.
        parsed(&self.initiator, IscsiName::parse_leniently)
    }

    /// Returns the portal group that the session belongs to.
    pub const fn portal_group(&self) -> PortalGroupTag {
        PortalGroupTag(self.portal_group)
    }

    /// Returns the addresses that the connections come from, in the order of the connections.
    pub fn peers(&self) -> impl ExactSizeIterator<Item = SocketAddr> {
        self.connections.iter().map(|connection| connection.peer)
    }
}

/// Returns the name that a text is, if it is in normal form.
fn parsed<E>(text: &str, parse: impl FnOnce(&[u8]) -> Result<IscsiName, E>) -> Option<IscsiName> {
    parse(text.as_bytes()).ok().filter(|name| name.as_str() == text)
}
