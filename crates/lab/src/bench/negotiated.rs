//! What a session of a load agreed on with its target.

use initiator::SessionUp;
use iscsi::initiator::contract::ConnectionView;

/// The parameters of a session, by the names of the standard: those that were negotiated, whatever the URL or
/// the plan asked for.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Negotiated(pub Vec<(&'static str, String)>);

impl Negotiated {
    /// Reads the parameters of a session that is up; the connection is its first one, which HyperSCSI has
    /// not.
    pub(crate) fn of(up: &SessionUp, connection: Option<&ConnectionView>) -> Self {
        let yes = |flag: bool| if flag { "Yes" } else { "No" }.to_owned();
        match up {
            SessionUp::Iscsi(up) => {
                let session = up.parameters;
                let of_connection = connection.map(|view| view.parameters).into_iter().flat_map(|found| {
                    [
                        ("HeaderDigest", found.header_digest.name().to_owned()),
                        ("DataDigest", found.data_digest.name().to_owned()),
                        (TO_INITIATOR, found.initiator_max_recv.to_string()),
                        (TO_TARGET, found.target_max_recv.to_string()),
                    ]
                });
                let of_session = [
                    ("MaxBurstLength", session.max_burst_length.to_string()),
                    ("FirstBurstLength", session.first_burst_length.to_string()),
                    ("InitialR2T", yes(session.initial_r2t)),
                    ("ImmediateData", yes(session.immediate_data)),
                    ("MaxOutstandingR2T", session.max_outstanding_r2t.to_string()),
                    ("ErrorRecoveryLevel", session.error_recovery_level.number().to_string()),
                ];
                Self(of_connection.chain(of_session).collect())
            }
            SessionUp::HyperScsi(up) => {
                let found = up.parameters;
                Self(vec![
                    ("frame_max", found.frame_max.to_string()),
                    ("first_burst", found.first_burst.to_string()),
                    ("burst_max", found.burst_max.to_string()),
                    ("exchanges", found.exchanges.to_string()),
                    ("group password", yes(up.authenticated)),
                ])
            }
            _ => Self::default(),
        }
    }

    /// Returns the value of a parameter.
    pub fn get(&self, name: &str) -> Option<&str> {
        self.0.iter().find(|(known, _)| *known == name).map(|(_, value)| value.as_str())
    }
}

/// Each end declares the longest data segment that it receives.
const TO_INITIATOR: &str = "MaxRecvDataSegmentLength of the initiator";
const TO_TARGET: &str = "MaxRecvDataSegmentLength of the target";
