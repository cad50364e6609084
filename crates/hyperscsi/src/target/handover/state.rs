//! The state of a session that moves to another process.

use alloc::string::{String, ToString};
use alloc::vec::Vec;

use base::ether::EtherPort;
use serde::{Deserialize, Serialize};

use super::ResumeError;
use crate::connection::handover::{ConnectionState, NO_PORT};
use crate::exchange::xid::{PnSpace, ReceivedXids};
use crate::pdu::name::{GroupName, Name};
use crate::pdu::parameters::{Levels, Parameters, Repair};
use crate::target::contract::Traffic;
use crate::target::session::Identity;

/// The highest value that a counter begins with, so that it can go on counting.
const COUNTER_MAX: u64 = 1 << 62;

/// A session that is idle: no exchange is open, and no message is under way.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SessionState {
    /// The name of the target.
    pub target: String,
    /// The group that the initiator named in its handshake.
    pub group: String,
    /// The name of the initiator.
    pub initiator: String,
    /// The ISID; together with the initiator's name it names the initiator port.
    pub isid: [u8; 6],
    /// The SID that the initiator chose: it stands in frames to the initiator.
    pub initiator_sid: u32,
    /// The SID that the target chose: it stands in frames to the target.
    pub target_sid: u32,
    /// What both ends agreed on.
    pub parameters: ParametersState,
    /// The XIDs that were received, of unprotected and of protected requests.
    pub xids: [XidsState; 2],
    /// What the session did since it began, for display.
    pub traffic: TrafficState,
    /// Its transport.
    pub connection: ConnectionState,
}

/// [`Parameters`] that both ends agreed on. The fields that each end states for itself hold the initiator's
/// values.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ParametersState {
    /// [`Parameters::frame_max`], in bytes
    pub frame_max: u16,
    /// [`Parameters::frames_initial`]
    pub frames_initial: u32,
    /// [`Parameters::ack_delay_max_us`]
    pub ack_delay_max_us: u32,
    /// [`Parameters::levels`], as [`Levels::bits`]
    pub levels: u8,
    /// [`Parameters::exchanges`]
    pub exchanges: u16,
    /// [`Parameters::first_burst`], in bytes
    pub first_burst: u32,
    /// [`Parameters::burst_max`], in bytes
    pub burst_max: u32,
    /// [`Parameters::paths`]
    pub paths: u8,
    /// [`Parameters::repair`], as the number on the wire
    pub repair: u8,
    /// [`Parameters::lost_after_ms`]
    pub lost_after_ms: u32,
}

/// The XIDs of one class that were received.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct XidsState {
    /// All XIDs up to this one were received.
    pub low: u32,
    /// The XIDs behind `low` that were received, as ranges in ascending order: how far the first and the last
    /// of each lie ahead of `low`.
    pub ahead: Vec<(u32, u32)>,
}

/// [`Traffic`]
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TrafficState {
    /// [`Traffic::commands`]
    pub commands: u64,
    /// [`Traffic::data_in_bytes`]
    pub data_in_bytes: u64,
    /// [`Traffic::data_out_bytes`]
    pub data_out_bytes: u64,
    /// [`Traffic::duplicates`]
    pub duplicates: u64,
    /// [`Traffic::strays`]
    pub strays: u64,
}

impl SessionState {
    /// Returns the first byte of the SID in frames to the target, by which a driver may steer frames to the
    /// reactor that serves the session. The session keeps its SID, so its reactor must receive these frames.
    pub const fn steering(&self) -> u8 {
        let [steering, ..] = self.target_sid.to_be_bytes();
        steering
    }

    /// Renumbers the ports of the paths, as the process that resumes the session numbers them. A path whose
    /// port `port` does not know is left when the session is resumed.
    pub fn map_ports(&mut self, mut port: impl FnMut(EtherPort) -> Option<EtherPort>) {
        for path in &mut self.connection.paths {
            path.port = port(EtherPort(path.port)).unwrap_or(NO_PORT).0;
        }
    }

    pub(super) fn identity(&self) -> Result<Identity, ResumeError> {
        Ok(Identity {
            sids: (self.initiator_sid, self.target_sid),
            target_name: Name::new(&self.target).ok_or(ResumeError::Target)?,
            group: GroupName::new(&self.group).ok_or(ResumeError::Group)?,
            initiator: Name::new(&self.initiator).ok_or(ResumeError::Initiator)?,
            isid: self.isid,
            keyed: self.connection.keys.is_some(),
            parameters: self.parameters.agreed(self.connection.keys.is_some())?,
        })
    }
}

impl ParametersState {
    pub(super) const fn of(parameters: &Parameters) -> Self {
        Self {
            frame_max: parameters.frame_max,
            frames_initial: parameters.frames_initial,
            ack_delay_max_us: parameters.ack_delay_max_us,
            levels: parameters.levels.bits(),
            exchanges: parameters.exchanges,
            first_burst: parameters.first_burst,
            burst_max: parameters.burst_max,
            paths: parameters.paths,
            repair: parameters.repair as u8,
            lost_after_ms: parameters.lost_after_ms,
        }
    }

    fn agreed(&self, keyed: bool) -> Result<Parameters, ResumeError> {
        let levels = Levels::from_bits(self.levels)
            .filter(|levels| levels.bits() == self.levels && (keyed || *levels == Levels::OPEN));
        let repair = match self.repair {
            0 => Repair::Selective,
            1 => Repair::Window,
            _ => return Err(ResumeError::Parameters),
        };
        let parameters = Parameters {
            frame_max: self.frame_max,
            frames_initial: self.frames_initial,
            ack_delay_max_us: self.ack_delay_max_us,
            levels: levels.ok_or(ResumeError::Parameters)?,
            exchanges: self.exchanges,
            first_burst: self.first_burst,
            burst_max: self.burst_max,
            paths: self.paths,
            repair,
            lost_after_ms: self.lost_after_ms,
        };
        parameters.check().map_err(|_| ResumeError::Parameters)?;
        Ok(parameters)
    }
}

impl XidsState {
    pub(super) fn of(xids: &ReceivedXids) -> Self {
        Self { low: xids.low(), ahead: xids.ahead() }
    }

    pub(super) fn xids(&self, class: PnSpace) -> Result<ReceivedXids, ResumeError> {
        ReceivedXids::resume(class, self.low, &self.ahead).ok_or(ResumeError::Xids)
    }
}

impl TrafficState {
    pub(super) const fn of(traffic: &Traffic) -> Self {
        let Traffic { commands, data_in_bytes, data_out_bytes, duplicates, strays } = *traffic;
        Self { commands, data_in_bytes, data_out_bytes, duplicates, strays }
    }

    pub(super) const fn traffic(&self) -> Traffic {
        let Self { commands, data_in_bytes, data_out_bytes, duplicates, strays } = *self;
        Traffic {
            commands: counter(commands),
            data_in_bytes: counter(data_in_bytes),
            data_out_bytes: counter(data_out_bytes),
            duplicates: counter(duplicates),
            strays: counter(strays),
        }
    }
}

/// Returns a counter that can go on counting.
const fn counter(value: u64) -> u64 {
    if value < COUNTER_MAX { value } else { COUNTER_MAX }
}

/// Returns the text of a name.
pub(super) fn text(name: &str) -> String {
    name.to_string()
}
