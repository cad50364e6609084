//! The plan of the experiment: what varies, and how long each measurement takes.

use std::fmt;

use serde::Deserialize;

use crate::bed::{MTU_MAX, MTU_MIN};
use crate::experiment::LabError;
use crate::hyperscsi::carrier::Carrier;
use crate::plan::{
    Link, Word, block, check_measurements, check_rounds, list, number, read_keys, size_text, within,
};

/// The most measurements of one run.
const MEASUREMENTS_MAX: u64 = 100_000;

/// The LUNs of a stripe.
pub(super) const STRIPE_LUNS: u32 = 8;

/// What varies, and how long each measurement takes.
///
/// A plan file is TOML and has the keys of this structure; a key that it leaves out has the value of
/// [`Self::full`].
#[derive(Clone, Debug, PartialEq)]
pub struct HyperScsiPlan {
    /// How often each combination is measured, 1 to 1000.
    pub rounds: u32,
    /// The duration of a measurement in seconds, 0.05 to 3600. It is longer where frames are lost, and where
    /// the commands under way fill a slow link for long.
    pub seconds: f64,
    /// The duration of the load before each measurement in seconds, 0 to 600.
    pub warmup: f64,
    /// The rate of the link: `unshaped`, or bits per second such as `100M`.
    pub link: Vec<Link>,
    /// The MTU of the link in bytes, 576 to 65535.
    pub mtu: Vec<u32>,
    /// The workloads, measured on every link with every MTU.
    pub workload: Vec<Workload>,
    /// How many frames are lost, in percent, 0 to 50. Not empty: a relay between the hosts loses them.
    pub loss: Vec<f64>,
    /// How much of the link other traffic takes, in percent, 0 to 100.
    pub traffic: Vec<u32>,
    /// The link with loss or with other traffic: bits per second. Its MTU is the first of `mtu`.
    pub disturbed_link: Link,
    /// The workloads with loss or with other traffic.
    pub disturbed_workload: Vec<Workload>,
    /// The sets of files that are copied to and from file systems, with every MTU.
    pub copy: Vec<FileSet>,
    /// The links that they are copied over.
    pub copy_link: Vec<Link>,
    /// Whether HyperSCSI is measured with encryption too, without a disturbance.
    pub encrypt: bool,
    /// Whether ATA over Ethernet is measured too, without a disturbance and without a stripe.
    pub aoe: bool,
    /// The seed of addresses, data, losses and the order of the contestants.
    pub seed: u64,
}

/// What is done, with commands of what length, and how many at a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Workload {
    /// The commands.
    pub access: Access,
    /// The bytes of a command. Of a stripe, each LUN gets an eighth of them.
    pub block: u32,
    /// The commands under way. Of a stripe, each is one at every LUN.
    pub depth: u32,
}

/// Which commands, and where to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Access {
    /// Whether the commands are reads.
    pub read: bool,
    /// Whether the addresses are random. Otherwise they follow each other.
    pub random: bool,
    /// Whether a command is striped over eight LUNs.
    pub striped: bool,
}

impl Access {
    const ALL: [(&'static str, Self); 6] = [
        ("read", Self { read: true, random: false, striped: false }),
        ("write", Self { read: false, random: false, striped: false }),
        ("random-read", Self { read: true, random: true, striped: false }),
        ("random-write", Self { read: false, random: true, striped: false }),
        ("stripe-read", Self { read: true, random: false, striped: true }),
        ("stripe-write", Self { read: false, random: false, striped: true }),
    ];

    /// Returns the name in plans and reports.
    pub fn name(self) -> &'static str {
        Self::ALL.iter().find(|(_, access)| *access == self).map_or("", |(name, _)| name)
    }
}

impl Workload {
    fn parse(text: &str) -> Result<Self, String> {
        const FORM: &str = "expected ACCESS BLOCK DEPTH, such as read 64K 8";
        let words: Vec<&str> = text.split_ascii_whitespace().collect();
        let [access, bytes, depth] = words.as_slice() else { return Err(FORM.to_owned()) };
        let found = Access::ALL.iter().find(|(name, _)| name == access);
        let Some((_, access)) = found else {
            let names: Vec<&str> = Access::ALL.iter().map(|(name, _)| *name).collect();
            return Err(format!("{FORM}; ACCESS is one of {}", names.join(", ")));
        };
        let workload = Self { access: *access, block: block(bytes)?, depth: number(depth, 1, 256)? };
        if workload.block > BLOCK_MAX || !workload.bytes_per_command().is_multiple_of(512) {
            return Err("BLOCK is at most 1M, and of a stripe a multiple of 4K".to_owned());
        }
        Ok(workload)
    }

    /// Returns whether a command is striped over several LUNs.
    pub(super) const fn is_striped(&self) -> bool {
        self.access.striped
    }

    /// Returns the length of a command to one LUN.
    pub(super) const fn bytes_per_command(self) -> u32 {
        if self.access.striped { self.block / STRIPE_LUNS } else { self.block }
    }
}

/// The longest command, in bytes: several at a time must fit into a disk.
const BLOCK_MAX: u32 = 1 << 20;

impl fmt::Display for Workload {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {} {}", self.access.name(), size_text(self.block), self.depth)
    }
}

/// Files of one length.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FileSet {
    /// How many there are.
    pub count: u32,
    /// The bytes of each.
    pub len: u32,
}

/// The most files of a set, and the most bytes of it.
const FILES_MAX: u32 = 4096;
const FILES_LEN_MAX: u64 = 1 << 30;

impl FileSet {
    fn parse(text: &str) -> Result<Self, String> {
        const FORM: &str = "expected FILES SIZE, such as 4 16M";
        let words: Vec<&str> = text.split_ascii_whitespace().collect();
        let [count, len] = words.as_slice() else { return Err(FORM.to_owned()) };
        let set = Self { count: number(count, 1, FILES_MAX)?, len: block(len)? };
        if set.bytes() > FILES_LEN_MAX {
            return Err("the files of a set have 1G altogether at most".to_owned());
        }
        Ok(set)
    }

    /// Returns the bytes of all files.
    pub(super) fn bytes(self) -> u64 {
        u64::from(self.count) * u64::from(self.len)
    }
}

impl fmt::Display for FileSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.count, size_text(self.len))
    }
}

impl HyperScsiPlan {
    /// Returns the plan of a full run, about seventeen minutes.
    pub fn full() -> Self {
        Self {
            rounds: 5,
            seconds: 0.4,
            warmup: 0.15,
            link: vec![Link::Shaped(100_000_000), Link::Shaped(1_000_000_000), Link::Unshaped],
            mtu: vec![1500, 9000],
            workload: workloads(&[
                "read 64K 8",
                "write 64K 8",
                "read 1M 2",
                "write 1M 2",
                "random-read 4K 1",
                "random-write 4K 1",
                "random-read 4K 32",
                "random-write 4K 32",
                "stripe-read 1M 2",
                "stripe-write 1M 2",
            ]),
            loss: vec![0.0, 0.1, 1.0, 3.0, 10.0],
            traffic: vec![0, 10, 30, 50, 70, 90],
            disturbed_link: Link::Shaped(100_000_000),
            disturbed_workload: workloads(&["read 64K 8", "write 64K 8"]),
            copy: vec![FileSet { count: 4, len: 16 << 20 }, FileSet { count: 1024, len: 16 << 10 }],
            copy_link: vec![Link::Shaped(1_000_000_000)],
            encrypt: false,
            aoe: false,
            seed: 1,
        }
    }

    /// Returns the plan of a quick run, about a hundred seconds.
    pub fn quick() -> Self {
        Self {
            rounds: 3,
            seconds: 0.3,
            workload: workloads(&["read 64K 8", "random-read 4K 1", "stripe-read 1M 2"]),
            mtu: vec![1500],
            loss: vec![0.0, 1.0, 10.0],
            traffic: vec![0, 50, 90],
            disturbed_workload: workloads(&["read 64K 8"]),
            copy: vec![FileSet { count: 2, len: 16 << 20 }],
            ..Self::full()
        }
    }

    /// Parses a plan file.
    ///
    /// # Errors
    /// [`LabError::Plan`] names the key and what is possible.
    pub fn parse(text: &str) -> Result<Self, LabError> {
        let file: PlanFile = read_keys(text)?;
        let full = Self::full();
        let disturbed = match file.disturbed_link {
            Some(word) => list("disturbed_link", Some(vec![word]), Vec::new(), Link::parse)?.first().copied(),
            None => None,
        };
        let plan = Self {
            rounds: file.rounds.unwrap_or(full.rounds),
            seconds: file.seconds.unwrap_or(full.seconds),
            warmup: file.warmup.unwrap_or(full.warmup),
            link: list("link", file.link, full.link, Link::parse)?,
            mtu: list("mtu", file.mtu, full.mtu, |word| number(word, MTU_MIN, MTU_MAX))?,
            workload: list("workload", file.workload, full.workload, Workload::parse)?,
            loss: file.loss.unwrap_or(full.loss),
            traffic: file.traffic.unwrap_or(full.traffic),
            disturbed_link: disturbed.unwrap_or(full.disturbed_link),
            disturbed_workload: list(
                "disturbed_workload",
                file.disturbed_workload,
                full.disturbed_workload,
                Workload::parse,
            )?,
            copy: match file.copy {
                Some(words) if words.is_empty() => Vec::new(),
                words => list("copy", words, full.copy, FileSet::parse)?,
            },
            copy_link: list("copy_link", file.copy_link, full.copy_link, Link::parse)?,
            encrypt: file.encrypt.unwrap_or(full.encrypt),
            aoe: file.aoe.unwrap_or(full.aoe),
            seed: file.seed.unwrap_or(full.seed),
        };
        plan.check()?;
        Ok(plan)
    }

    fn check(&self) -> Result<(), LabError> {
        let refused = |text: String| Err(LabError::Plan(text));
        check_rounds(self.rounds, self.seconds, self.warmup)?;
        for loss in &self.loss {
            within("loss", *loss, 0.0, 50.0)?;
        }
        for percent in &self.traffic {
            within("traffic", f64::from(*percent), 0.0, 100.0)?;
        }
        if !matches!(self.disturbed_link, Link::Shaped(_)) && !self.traffic.is_empty() {
            return refused(
                "disturbed_link: expected bits per second, such as 100M: other traffic takes a part of them"
                    .to_owned(),
            );
        }
        check_measurements(self.measurements(), MEASUREMENTS_MAX)
    }

    /// Returns the number of measurements.
    pub fn measurements(&self) -> u64 {
        let paths = self.link.len().saturating_mul(self.mtu.len());
        let disturbances = self.loss.len() + self.traffic.len();
        // Without a disturbance, iSCSI is measured with and without digests.
        let contestants = 3 + usize::from(self.encrypt);
        let simple = self.workload.iter().filter(|workload| !workload.access.striped && self.aoe).count();
        let per_path = self.workload.len().saturating_mul(contestants) + simple;
        let undisturbed = paths.saturating_mul(per_path);
        let disturbed = disturbances.saturating_mul(self.disturbed_workload.len()).saturating_mul(2);
        let copies = self.copies().saturating_mul(Carrier::ALL.len());
        let per_round = undisturbed.saturating_add(disturbed).saturating_add(copies);
        u64::try_from(per_round).unwrap_or(u64::MAX).saturating_mul(u64::from(self.rounds))
    }

    /// Returns how many sets of files each carrier copies in a round.
    pub(super) fn copies(&self) -> usize {
        self.copy_link.len().saturating_mul(self.mtu.len()).saturating_mul(self.copy.len())
    }

    /// Returns the plan as TOML, which [`Self::parse`] reads.
    pub fn to_toml(&self) -> String {
        let quoted = |words: Vec<String>| match words.as_slice() {
            [] => "[]".to_owned(),
            words => format!("[\"{}\"]", words.join("\", \"")),
        };
        let workloads = |list: &[Workload]| quoted(list.iter().map(Workload::to_string).collect());
        format!(
            "rounds = {}\nseconds = {:?}\nwarmup = {:?}\nlink = {}\nmtu = {:?}\nworkload = {}\nloss = {:?}\ntraffic = \
             {:?}\ndisturbed_link = \"{}\"\ndisturbed_workload = {}\ncopy = {}\ncopy_link = {}\nencrypt = \
             {}\naoe = {}\nseed = {}\n",
            self.rounds,
            self.seconds,
            self.warmup,
            quoted(self.link.iter().map(Link::to_string).collect()),
            self.mtu,
            workloads(&self.workload),
            self.loss,
            self.traffic,
            self.disturbed_link,
            workloads(&self.disturbed_workload),
            quoted(self.copy.iter().map(FileSet::to_string).collect()),
            quoted(self.copy_link.iter().map(Link::to_string).collect()),
            self.encrypt,
            self.aoe,
            self.seed
        )
    }
}

/// Returns workloads that are written as in a plan file.
fn workloads(texts: &[&str]) -> Vec<Workload> {
    texts.iter().filter_map(|text| Workload::parse(text).ok()).collect()
}

/// A plan as a file has it.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct PlanFile {
    rounds: Option<u32>,
    seconds: Option<f64>,
    warmup: Option<f64>,
    link: Option<Vec<Word>>,
    mtu: Option<Vec<Word>>,
    workload: Option<Vec<Word>>,
    loss: Option<Vec<f64>>,
    traffic: Option<Vec<u32>>,
    disturbed_link: Option<Word>,
    disturbed_workload: Option<Vec<Word>>,
    copy: Option<Vec<Word>>,
    copy_link: Option<Vec<Word>>,
    encrypt: Option<bool>,
    aoe: Option<bool>,
    seed: Option<u64>,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bed::to_f64;
    use crate::hyperscsi::measure::durations;
    use crate::hyperscsi::samples::Cell;

    #[test]
    fn a_plan_survives_its_own_text() {
        for plan in [HyperScsiPlan::full(), HyperScsiPlan::quick()] {
            assert_eq!(HyperScsiPlan::parse(&plan.to_toml()).unwrap(), plan);
        }
        assert_eq!(HyperScsiPlan::parse("").unwrap(), HyperScsiPlan::full());
        assert_eq!(HyperScsiPlan::full().workload.len(), 10);
        let none = HyperScsiPlan::parse("loss = []\ntraffic = []\ncopy = []\n").unwrap();
        assert_eq!(HyperScsiPlan::parse(&none.to_toml()).unwrap(), none);
        assert_eq!(none.measurements(), 5 * 3 * 2 * 10 * 3);
        let more = HyperScsiPlan { encrypt: true, aoe: true, ..HyperScsiPlan::full() };
        assert_eq!(HyperScsiPlan::parse(&more.to_toml()).unwrap(), more);
        assert_eq!(more.measurements() - HyperScsiPlan::full().measurements(), 5 * 3 * 2 * (10 + 8));
        for plan in [HyperScsiPlan::full(), HyperScsiPlan::quick(), more] {
            let cells: usize = Cell::all(&plan).iter().map(|cell| cell.protocols(&plan).len()).sum();
            let all = cells + plan.copies() * Carrier::ALL.len();
            assert_eq!(plan.measurements(), u64::try_from(all).unwrap() * u64::from(plan.rounds));
        }
    }

    /// `make bench-hyperscsi` runs this plan, and SPECIFICATION.md names what it must show.
    #[test]
    fn the_plan_of_make_bench_has_what_is_promised() {
        let plan = HyperScsiPlan::parse(include_str!("../../../../bench/hyperscsi.toml")).unwrap();
        assert_eq!(plan.link, HyperScsiPlan::full().link);
        assert_eq!((plan.mtu, plan.loss), (vec![9000, 1500], vec![0.0, 1.0, 10.0]));
        assert!(plan.encrypt && plan.aoe && plan.disturbed_link == Link::Unshaped);
        for workload in workloads(&["read 1M 8", "write 1M 8", "random-read 4K 1", "random-write 4K 1"]) {
            assert!(plan.workload.contains(&workload), "{workload}");
        }
    }

    #[test]
    fn mistakes_are_refused_with_their_key() {
        for (text, wanted) in [
            ("round = 2", "unknown field `round`"),
            ("rounds = 0", "rounds: expected 1 to 1000"),
            ("workload = [\"read 64K\"]", "expected ACCESS BLOCK DEPTH"),
            ("workload = [\"erase 64K 1\"]", "stripe-write"),
            ("workload = [\"read 2M 1\"]", "at most 1M"),
            ("workload = [\"stripe-read 512 1\"]", "multiple of 4K"),
            ("workload = [\"read 64K 0\"]", "expected 1 to 256"),
            ("loss = [60]", "loss: expected 0 to 50"),
            ("traffic = [101]", "traffic: expected 0 to 100"),
            ("disturbed_link = \"unshaped\"", "disturbed_link: expected bits per second"),
            ("link = [\"fast\"]", "link: \"fast\""),
            ("copy = [\"16M\"]", "copy: \"16M\": expected FILES SIZE"),
            ("copy = [\"0 4K\"]", "expected 1 to 4096"),
            ("copy = [\"1000 16M\"]", "1G altogether"),
            ("copy_link = []", "copy_link: the list is empty"),
        ] {
            let why = HyperScsiPlan::parse(text).unwrap_err().to_string();
            assert!(why.contains(wanted), "{text}: {why}");
        }
    }

    #[test]
    fn the_built_in_plans_take_the_time_that_they_promise() {
        let seconds = |plan: HyperScsiPlan| {
            let cells = Cell::all(&plan).into_iter();
            let of = |cell: Cell| {
                let (warmup, time) = durations(&plan, &cell);
                to_f64(cell.protocols(&plan).len() as u64) * ((warmup + time).as_secs_f64() + 0.1)
            };
            cells.map(of).sum::<f64>() * f64::from(plan.rounds)
        };
        assert!((60.0..100.0).contains(&seconds(HyperScsiPlan::quick())));
        assert!((780.0..960.0).contains(&seconds(HyperScsiPlan::full())));
    }
}
