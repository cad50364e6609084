//! What a run of the experiment `risk` does.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::corrupter::fault::{Damage, PduClass, Place};
use crate::experiment::LabError;
use crate::plan::Digests;

/// The plan of a run, as its TOML file has it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct RiskPlan {
    /// The digests of the sessions.
    pub digests: Vec<Digests>,
    /// The ErrorRecoveryLevels, 0 to 2.
    pub erl: Vec<u8>,
    /// The names of the faults ([`FAULTS`]).
    pub faults: Vec<String>,
    /// Trials with a fault for each combination of digests and ErrorRecoveryLevel.
    pub trials: usize,
    /// Trials without a fault for each combination.
    pub controls: usize,
    /// The lengths of the commands in bytes.
    pub lengths: Vec<u32>,
    /// How much of the medium is used, in bytes from its start; at most the whole of it.
    pub range: u64,
    /// How many sessions run trials at a time, each in its own part of the range.
    pub sessions: usize,
    /// How long a command may take, in milliseconds, before it counts as failed.
    pub timeout_ms: u64,
    /// Whether the digests are computed again after the damage, as a gateway does that ends them. No receiver
    /// can then detect the damage.
    pub reseal: bool,
    /// The seed of all random choices.
    pub seed: u64,
}

impl Default for RiskPlan {
    /// Returns the plan of about fifteen minutes.
    fn default() -> Self {
        Self {
            digests: Digests::ALL.to_vec(),
            erl: vec![0, 1, 2],
            faults: FAULTS.iter().map(|fault| fault.name.to_owned()).collect(),
            trials: 1500,
            controls: 250,
            lengths: vec![512, 4096, 65536],
            range: 64 << 20,
            sessions: 12,
            timeout_ms: 1000,
            reseal: false,
            seed: 1,
        }
    }
}

impl RiskPlan {
    /// Returns the plan of about two minutes.
    pub fn quick() -> Self {
        Self { trials: 208, controls: 50, range: 16 << 20, timeout_ms: 700, ..Self::default() }
    }

    /// Reads a plan from TOML. Keys that are not given have the values of [`RiskPlan::default`].
    ///
    /// # Errors
    /// [`LabError::Plan`] for an unknown key or an impossible value.
    pub fn from_toml(text: &str) -> Result<Self, LabError> {
        let plan: Self = toml::from_str(text).map_err(|error| LabError::Plan(error.to_string()))?;
        plan.check()?;
        Ok(plan)
    }

    /// Checks the values.
    ///
    /// # Errors
    /// [`LabError::Plan`] names the key and what is possible.
    pub fn check(&self) -> Result<(), LabError> {
        let refused = |text: String| Err(LabError::Plan(text));
        if let Some(level) = self.erl.iter().find(|level| **level > 2) {
            return refused(format!("erl: {level} is no ErrorRecoveryLevel; possible are 0, 1 and 2"));
        }
        if let Some(name) = self.faults.iter().find(|name| Fault::named(name).is_none()) {
            let known = FAULTS.each_ref().map(|fault| fault.name).join(", ");
            return refused(format!("faults: {name:?} is unknown; possible are {known}"));
        }
        for (key, is_empty) in [
            ("digests", self.digests.is_empty()),
            ("erl", self.erl.is_empty()),
            ("faults", self.faults.is_empty()),
            ("lengths", self.lengths.is_empty()),
        ] {
            if is_empty {
                return refused(format!("{key}: at least one is needed"));
            }
        }
        if let Some(len) =
            self.lengths.iter().find(|len| !(512..=LENGTH_MAX).contains(*len) || **len % 512 != 0)
        {
            return refused(format!("lengths: {len} is not a multiple of 512 from 512 to {LENGTH_MAX}"));
        }
        if !(1..=SESSIONS_MAX).contains(&self.sessions) {
            return refused(format!("sessions: {} is not from 1 to {SESSIONS_MAX}", self.sessions));
        }
        if !(100..=60_000).contains(&self.timeout_ms) {
            return refused(format!("timeout_ms: {} is not from 100 to 60000", self.timeout_ms));
        }
        if self.trials > TRIALS_MAX || self.controls > TRIALS_MAX {
            return refused(format!("trials, controls: at most {TRIALS_MAX} for each combination"));
        }
        Ok(())
    }

    /// Returns the plan as TOML.
    pub fn to_toml(&self) -> String {
        let digests: Vec<&str> = self.digests.iter().map(|digests| digests.name()).collect();
        let Self {
            erl, faults, trials, controls, lengths, range, sessions, timeout_ms, reseal, seed, ..
        } = self;
        // The lists of names and of numbers look the same in Rust and in TOML.
        format!(
            "digests = {digests:?}\nerl = {erl:?}\nfaults = {faults:?}\ntrials = {trials}\ncontrols = \
             {controls}\nlengths = {lengths:?}\nrange = {range}\nsessions = {sessions}\ntimeout_ms = \
             {timeout_ms}\nreseal = {reseal}\nseed = {seed}\n"
        )
    }

    /// Returns how long a command may take. Where damaged headers are discarded and the missing PDUs are
    /// requested again, a command gets `REPAIR_WITHIN` more.
    pub const fn timeout(&self, digests: Digests, erl: u8) -> Duration {
        let timeout = Duration::from_millis(self.timeout_ms);
        if digests.header() && erl > 0 { timeout.saturating_add(REPAIR_WITHIN) } else { timeout }
    }

    /// Returns the faults.
    pub fn chosen_faults(&self) -> Vec<&'static Fault> {
        self.faults.iter().filter_map(|name| Fault::named(name)).collect()
    }
}

/// The time that repairs take beyond the usual: a target of ours requests missing data again after 2 s, and
/// the first request can be lost as well.
const REPAIR_WITHIN: Duration = Duration::from_secs(5);
/// The longest command in bytes: every target takes it in one command.
const LENGTH_MAX: u32 = 256 << 10;
/// The most sessions at a time: fewer than any target allows.
const SESSIONS_MAX: usize = 32;
/// The most trials of a cell, so that a typing error does not start a run of days.
const TRIALS_MAX: usize = 1_000_000;

/// A fault that a plan can name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fault {
    /// The name.
    pub name: &'static str,
    /// Whether the command is a WRITE; otherwise it is a READ.
    pub is_write: bool,
    /// The PDU. Data of a WRITE travels as immediate data of the command in half of the sessions, and there
    /// the fault hits the command instead of the Data-Out.
    pub class: PduClass,
    /// The part of the PDU.
    pub place: Place,
    /// What happens to it.
    pub damage: Damage,
}

impl Fault {
    /// Returns the fault with a name.
    pub fn named(name: &str) -> Option<&'static Self> {
        FAULTS.iter().find(|fault| fault.name == name)
    }

    /// Returns whether the data of the command has to travel in Data-Out PDUs.
    pub fn needs_data_out(&self) -> bool {
        self.class == DataOut && self.place != Data
    }

    const fn read(name: &'static str, class: PduClass, place: Place, damage: Damage) -> Self {
        Self { name, is_write: false, class, place, damage }
    }

    const fn write(name: &'static str, class: PduClass, place: Place, damage: Damage) -> Self {
        Self { name, is_write: true, class, place, damage }
    }
}

use Damage::{Duplicate, FlipBit, FlipBits, PairedWords, SwapWords, Truncate};
use PduClass::{Command, DataIn, DataOut, Response};
use Place::{BufferOffset, Data, Header, Lba};

/// Every fault.
pub static FAULTS: [Fault; 26] = [
    Fault::read("read-data-bit", DataIn, Data, FlipBit),
    Fault::read("read-data-bits", DataIn, Data, FlipBits),
    Fault::read("read-data-swap", DataIn, Data, SwapWords),
    Fault::read("read-data-pair", DataIn, Data, PairedWords),
    Fault::read("read-data-truncate", DataIn, Data, Truncate),
    Fault::read("read-data-duplicate", DataIn, Data, Duplicate),
    Fault::read("read-offset-bit", DataIn, BufferOffset, FlipBit),
    Fault::read("read-header-bit", DataIn, Header, FlipBit),
    Fault::read("read-header-swap", DataIn, Header, SwapWords),
    Fault::read("read-lba-bit", Command, Lba, FlipBit),
    Fault::read("read-lba-pair", Command, Lba, PairedWords),
    Fault::read("read-command-bit", Command, Header, FlipBit),
    Fault::read("read-command-duplicate", Command, Header, Duplicate),
    Fault::write("write-data-bit", DataOut, Data, FlipBit),
    Fault::write("write-data-bits", DataOut, Data, FlipBits),
    Fault::write("write-data-swap", DataOut, Data, SwapWords),
    Fault::write("write-data-pair", DataOut, Data, PairedWords),
    Fault::write("write-data-truncate", DataOut, Data, Truncate),
    Fault::write("write-data-duplicate", DataOut, Header, Duplicate),
    Fault::write("write-offset-bit", DataOut, BufferOffset, FlipBit),
    Fault::write("write-header-bit", DataOut, Header, FlipBit),
    Fault::write("write-lba-bit", Command, Lba, FlipBit),
    Fault::write("write-lba-pair", Command, Lba, PairedWords),
    Fault::write("write-command-bit", Command, Header, FlipBit),
    Fault::write("write-response-bit", Response, Header, FlipBit),
    Fault::write("write-response-duplicate", Response, Header, Duplicate),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_plan_survives_its_own_toml() {
        for plan in [RiskPlan::default(), RiskPlan::quick()] {
            assert_eq!(RiskPlan::from_toml(&plan.to_toml()).unwrap(), plan);
        }
        let names: std::collections::BTreeSet<_> = FAULTS.iter().map(|fault| fault.name).collect();
        assert_eq!(names.len(), FAULTS.len());
    }

    #[test]
    fn what_is_unknown_or_impossible_is_refused_by_its_name() {
        for (text, named) in [
            ("trails = 5", "trails"),
            ("erl = [3]", "erl"),
            ("erl = []", "erl"),
            ("faults = [\"read-date-bit\"]", "read-date-bit"),
            ("lengths = [1000]", "lengths"),
            ("sessions = 0", "sessions"),
            ("timeout_ms = 1", "timeout_ms"),
            ("digests = [\"crc\"]", "crc"),
            ("trials = 100000000", "trials"),
        ] {
            let error = RiskPlan::from_toml(text).unwrap_err().to_string();
            assert!(error.contains(named), "{text}: {error}");
        }
    }
}
