//! The plan of the experiment: what varies, and how long each measurement takes.

use std::fmt;

use serde::Deserialize;

use super::protection::Protection;
use crate::bed::{MTU_MAX, MTU_MIN};
use crate::experiment::LabError;
use crate::plan::{Link, Word, block, check_measurements, check_rounds, list, number, read_keys, size_text};

/// The most measurements of one run.
const MEASUREMENTS_MAX: u64 = 100_000;

/// The most bytes under way where several commands are: more would not fit into the shortest measurement over
/// the slowest protection.
const UNDER_WAY_MAX: u32 = 8 << 20;

/// The longest command, in bytes: several at a time must fit into the disk.
const BLOCK_MAX: u32 = 4 << 20;

/// What varies, and how long each measurement takes.
///
/// A plan file is TOML and has the keys of this structure; a key that it leaves out has the value of
/// [`Self::full`].
#[derive(Clone, Debug, PartialEq)]
pub struct SecurityPlan {
    /// How often each combination is measured, 1 to 1000.
    pub rounds: u32,
    /// The duration of a measurement in seconds, 0.05 to 3600. It is longer where the commands under way fill
    /// a slow link for long.
    pub seconds: f64,
    /// The duration of the load before each measurement in seconds, 0 to 600.
    pub warmup: f64,
    /// How the traffic is protected.
    pub protection: Vec<Protection>,
    /// What is carried: `socket`, `read` or `write`.
    pub access: Vec<Access>,
    /// The bytes of a command or of an answer: multiples of 512 up to 4M.
    pub block: Vec<u32>,
    /// Commands or requests under way, 1 to 256. Long commands have fewer, so that at most 8 MiB are under
    /// way.
    pub depth: Vec<u32>,
    /// The rate of the link: `unshaped`, or bits per second such as `1G`.
    pub link: Vec<Link>,
    /// The MTU of the link in bytes, 576 to 65535.
    pub mtu: Vec<u32>,
    /// The seed of addresses, data and the order of the contestants.
    pub seed: u64,
}

/// What is carried.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// Blocks that answer requests of 48 bytes over a socket, without a storage protocol.
    Socket,
    /// Sequential reads over iSCSI.
    Read,
    /// Sequential writes over iSCSI.
    Write,
}

impl Access {
    const ALL: [(&'static str, Self); 3] =
        [("socket", Self::Socket), ("read", Self::Read), ("write", Self::Write)];

    /// Returns whether iSCSI is carried.
    pub const fn is_iscsi(self) -> bool {
        !matches!(self, Self::Socket)
    }

    fn parse(word: &str) -> Result<Self, String> {
        let found = Self::ALL.iter().find(|(name, _)| *name == word);
        found.map(|(_, access)| *access).ok_or_else(|| "expected socket, read or write".to_owned())
    }
}

impl fmt::Display for Access {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(Self::ALL.iter().find(|(_, access)| access == self).map_or("", |(name, _)| name))
    }
}

impl SecurityPlan {
    /// Returns the plan of a full run, about fifteen minutes.
    pub fn full() -> Self {
        Self {
            rounds: 5,
            seconds: 0.3,
            warmup: 0.1,
            protection: Protection::STANDARD.to_vec(),
            access: vec![Access::Socket, Access::Read, Access::Write],
            block: vec![512, 4 << 10, 64 << 10, 1 << 20, 4 << 20],
            depth: vec![1, 8],
            link: vec![Link::Shaped(1_000_000_000), Link::Unshaped],
            mtu: vec![1500],
            seed: 1,
        }
    }

    /// Returns the plan of a quick run, less than two minutes: fewer rounds of two block lengths on an
    /// unshaped link.
    pub fn quick() -> Self {
        Self { rounds: 3, block: vec![4 << 10, 1 << 20], link: vec![Link::Unshaped], ..Self::full() }
    }

    /// Parses a plan file.
    ///
    /// # Errors
    /// [`LabError::Plan`] names the key and what is possible.
    pub fn parse(text: &str) -> Result<Self, LabError> {
        let file: PlanFile = read_keys(text)?;
        let full = Self::full();
        let plan = Self {
            rounds: file.rounds.unwrap_or(full.rounds),
            seconds: file.seconds.unwrap_or(full.seconds),
            warmup: file.warmup.unwrap_or(full.warmup),
            protection: list("protection", file.protection, full.protection, Protection::parse)?,
            access: list("access", file.access, full.access, Access::parse)?,
            block: list("block", file.block, full.block, short_block)?,
            depth: list("depth", file.depth, full.depth, |word| number(word, 1, 256))?,
            link: list("link", file.link, full.link, Link::parse)?,
            mtu: list("mtu", file.mtu, full.mtu, |word| number(word, MTU_MIN, MTU_MAX))?,
            seed: file.seed.unwrap_or(full.seed),
        };
        check_rounds(plan.rounds, plan.seconds, plan.warmup)?;
        check_measurements(plan.measurements(), MEASUREMENTS_MAX)?;
        Ok(plan)
    }

    /// Returns the depths for a block length, each once.
    pub(super) fn depths(&self, block: u32) -> Vec<u32> {
        let most = (UNDER_WAY_MAX / block.max(1)).max(1);
        let mut depths: Vec<u32> = Vec::new();
        for depth in self.depth.iter().map(|depth| (*depth).min(most)) {
            if !depths.contains(&depth) {
                depths.push(depth);
            }
        }
        depths
    }

    /// Returns the number of measurements, if nothing is absent.
    pub fn measurements(&self) -> u64 {
        let loads: usize = self.block.iter().map(|block| self.depths(*block).len()).sum();
        let lists = [self.protection.len(), self.access.len(), self.link.len(), self.mtu.len()];
        let product = lists.into_iter().fold(loads, usize::saturating_mul);
        u64::try_from(product).unwrap_or(u64::MAX).saturating_mul(u64::from(self.rounds))
    }

    /// Returns the plan as TOML, which [`Self::parse`] reads.
    pub fn to_toml(&self) -> String {
        let quoted = |words: Vec<String>| format!("[\"{}\"]", words.join("\", \""));
        format!(
            "rounds = {}\nseconds = {:?}\nwarmup = {:?}\nprotection = {}\naccess = {}\nblock = {}\ndepth = \
             {:?}\nlink = {}\nmtu = {:?}\nseed = {}\n",
            self.rounds,
            self.seconds,
            self.warmup,
            quoted(self.protection.iter().map(|protection| protection.name().to_owned()).collect()),
            quoted(self.access.iter().map(Access::to_string).collect()),
            quoted(self.block.iter().map(|bytes| size_text(*bytes)).collect()),
            self.depth,
            quoted(self.link.iter().map(Link::to_string).collect()),
            self.mtu,
            self.seed
        )
    }
}

fn short_block(word: &str) -> Result<u32, String> {
    let bytes = block(word)?;
    if bytes <= BLOCK_MAX { Ok(bytes) } else { Err("expected at most 4M".to_owned()) }
}

/// A plan as a file has it.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct PlanFile {
    rounds: Option<u32>,
    seconds: Option<f64>,
    warmup: Option<f64>,
    protection: Option<Vec<Word>>,
    access: Option<Vec<Word>>,
    block: Option<Vec<Word>>,
    depth: Option<Vec<Word>>,
    link: Option<Vec<Word>>,
    mtu: Option<Vec<Word>>,
    seed: Option<u64>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_plan_survives_its_own_text() {
        for plan in [SecurityPlan::full(), SecurityPlan::quick()] {
            assert_eq!(SecurityPlan::parse(&plan.to_toml()).unwrap(), plan);
        }
        assert_eq!(SecurityPlan::parse("").unwrap(), SecurityPlan::full());
        let text = "protection = [\"tls\"]\naccess = [\"write\"]\nblock = [512, \"4M\"]\ndepth = [1, 2, 8]\n";
        let plan = SecurityPlan::parse(text).unwrap();
        assert_eq!(
            (plan.protection.as_slice(), plan.access.as_slice()),
            (&[Protection::Tls][..], &[Access::Write][..])
        );
        assert_eq!((plan.depths(512), plan.depths(4 << 20)), (vec![1, 2, 8], vec![1, 2]));
        assert_eq!(plan.measurements(), 5 * (3 + 2) * 2);
    }

    #[test]
    fn mistakes_are_refused_with_their_key() {
        for (text, wanted) in [
            ("round = 2", "unknown field `round`"),
            ("rounds = 0", "rounds: expected 1 to 1000"),
            ("seconds = 0.0", "seconds: expected 0.05 to 3600"),
            ("protection = [\"rot13\"]", "protection: \"rot13\": expected one of plain, tls"),
            ("protection = []", "protection: the list is empty"),
            ("access = [\"erase\"]", "access: \"erase\": expected socket, read or write"),
            ("block = [\"8M\"]", "block: \"8M\": expected at most 4M"),
            ("block = [100]", "block: \"100\": expected a multiple of 512"),
            ("depth = [0]", "depth: \"0\": expected 1 to 256"),
            ("link = [\"as it is\"]", "link: \"as it is\""),
            ("mtu = [1]", "mtu: \"1\": expected 576"),
            ("rounds = 1000", "measurements altogether"),
        ] {
            let why = SecurityPlan::parse(text).unwrap_err().to_string();
            assert!(why.contains(wanted), "{text}: {why}");
        }
    }

    #[test]
    fn the_built_in_plans_take_the_time_that_they_promise() {
        let seconds = |plan: SecurityPlan| {
            f64::from(u32::try_from(plan.measurements()).unwrap()) * (plan.seconds + plan.warmup + 0.1)
        };
        assert!((60.0..120.0).contains(&seconds(SecurityPlan::quick())));
        assert!((780.0..960.0).contains(&seconds(SecurityPlan::full())));
    }
}
