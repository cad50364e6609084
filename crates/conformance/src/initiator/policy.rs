//! The negotiation policy of the scripted target, and the negotiated keys.

use crate::text::Keys;

/// The values that the target wants. The result functions are those of RFC 7143 §13.
#[derive(Clone, Debug)]
pub(super) struct Policy {
    wants: Keys,
    /// The keys that matter to the case: the target offers them if the initiator does not.
    insists: Vec<String>,
    /// The longest data segment that the target declares.
    pub(super) recv_max: u32,
}

/// The negotiated keys.
#[derive(Clone, Debug)]
pub(super) struct Negotiated {
    keys: Keys,
    /// The longest data segment that the initiator accepts.
    pub(super) send_max: u32,
}

const WANTS: [(&str, &str); 13] = [
    ("HeaderDigest", "None"),
    ("DataDigest", "None"),
    ("MaxConnections", "4"),
    ("InitialR2T", "No"),
    ("ImmediateData", "Yes"),
    ("MaxBurstLength", "262144"),
    ("FirstBurstLength", "65536"),
    ("DefaultTime2Wait", "0"),
    ("DefaultTime2Retain", "20"),
    ("MaxOutstandingR2T", "4"),
    ("DataPDUInOrder", "Yes"),
    ("DataSequenceInOrder", "Yes"),
    ("ErrorRecoveryLevel", "0"),
];

impl Policy {
    /// Wants these values instead of the defaults.
    pub(super) fn new(keys: &[(&str, &str)]) -> Self {
        let mut policy = Self { wants: Keys::of(&WANTS), insists: Vec::new(), recv_max: 8192 };
        for (name, value) in keys {
            if *name == "MaxRecvDataSegmentLength" {
                policy.recv_max = value.parse().unwrap_or(8192);
                continue;
            }
            policy.wants.set(name, value);
            policy.insists.push((*name).to_owned());
        }
        policy
    }

    /// Answers the keys of an operational request, and records the results.
    pub(super) fn answer(&self, offered: &Keys, agreed: &mut Negotiated) -> Keys {
        let mut out = Keys::new();
        for (name, value) in offered.iter() {
            match name {
                "InitiatorName" | "InitiatorAlias" | "SessionType" | "TargetName" | "AuthMethod" => {}
                "MaxRecvDataSegmentLength" => agreed.send_max = value.parse().unwrap_or(8192),
                _ if agreed.keys.value(name).is_some() => {}
                _ => {
                    let answer = self.settle(name, value);
                    agreed.keys.set(name, &answer);
                    out.push(name, &answer);
                }
            }
        }
        out
    }

    /// Returns the keys that the target offers first: those that matter to the case and that the initiator
    /// has not offered.
    pub(super) fn offer(&self, agreed: &mut Negotiated) -> Keys {
        let mut out = Keys::new();
        for name in &self.insists {
            if agreed.keys.value(name).is_none()
                && let Some(value) = self.wants.value(name)
            {
                agreed.keys.set(name, value);
                out.push(name, value);
            }
        }
        out
    }

    fn settle(&self, name: &str, offered: &str) -> String {
        let Some(wanted) = self.wants.value(name) else { return "NotUnderstood".to_owned() };
        let yes = |value: &str| value == "Yes";
        let spell = |value: bool| if value { "Yes" } else { "No" }.to_owned();
        let number = |value: &str| value.parse::<u32>().unwrap_or_default();
        match name {
            "HeaderDigest" | "DataDigest" => {
                let takes = |value: &&str| wanted.split(',').any(|one| one == *value);
                offered.split(',').find(takes).unwrap_or("Reject").to_owned()
            }
            "ImmediateData" => spell(yes(offered) && yes(wanted)),
            "InitialR2T" | "DataPDUInOrder" | "DataSequenceInOrder" => spell(yes(offered) || yes(wanted)),
            "DefaultTime2Wait" => number(offered).max(number(wanted)).to_string(),
            _ => number(offered).min(number(wanted)).to_string(),
        }
    }
}

impl Negotiated {
    pub(super) const fn new() -> Self {
        Self { keys: Keys::new(), send_max: 8192 }
    }

    /// Records the initiator's answers to the keys that the target offered.
    pub(super) fn take(&mut self, offered: &Keys) {
        for (name, value) in offered.iter() {
            if self.keys.value(name).is_some() {
                self.keys.set(name, value);
            }
        }
    }

    pub(super) fn value(&self, name: &str) -> &str {
        self.keys.value(name).unwrap_or(match name {
            "InitialR2T" | "ImmediateData" | "DataPDUInOrder" | "DataSequenceInOrder" => "Yes",
            "HeaderDigest" | "DataDigest" => "None",
            _ => "",
        })
    }

    pub(super) fn yes(&self, name: &str) -> bool {
        self.value(name) == "Yes"
    }

    /// Returns the value of a numeric key, or its default in RFC 7143 §13 if it was not negotiated.
    pub(super) fn number(&self, name: &str) -> u32 {
        self.keys.number(name).unwrap_or(match name {
            "MaxBurstLength" => 262_144,
            "FirstBurstLength" => 65_536,
            "ErrorRecoveryLevel" => 0,
            _ => 1,
        })
    }
}

impl Default for Negotiated {
    fn default() -> Self {
        Self::new()
    }
}
