//! The plan of the experiment: what varies, and how long each measurement takes.

use serde::Deserialize;

use crate::bed::{MTU_MAX, MTU_MIN};
use crate::experiment::LabError;
use crate::plan::{
    Digests, Link, Mix, Word, block, check_measurements, check_rounds, list, number, read_keys, size_text,
};

/// The load at which a session always keeps as many commands under way as the depth, in percent.
pub(super) const LOAD_FULL: u32 = 100;
/// The lowest load, in percent.
const LOAD_MIN: u32 = 10;

/// The most measurements of one run.
const MEASUREMENTS_MAX: u64 = 100_000;

/// What varies, and how long each measurement takes. A run measures every combination of the lists in every
/// round, except that loads below 100 % are measured with the greatest depth only.
///
/// A plan file is TOML and has the keys of this structure; a key that it leaves out has the value of
/// [`Self::full`].
#[derive(Clone, Debug, PartialEq)]
pub struct DigestsPlan {
    /// How often each combination is measured, 1 to 1000.
    pub rounds: u32,
    /// The duration of a measurement in seconds, 0.05 to 3600.
    pub seconds: f64,
    /// The duration of the load before each measurement in seconds, 0 to 600.
    pub warmup: f64,
    /// The digests that are compared: `none`, `header`, `data`, `both`. `none` is what the others are
    /// compared with.
    pub digests: Vec<Digests>,
    /// The MTU of the link in bytes, 576 to 65535.
    pub mtu: Vec<u32>,
    /// The queue depth, 1 to 1024.
    pub depth: Vec<u32>,
    /// The bytes of a command: multiples of 512 up to 16M, such as `4K`.
    pub block: Vec<u32>,
    /// Which commands: `read`, `write`, or the percentage of reads.
    pub mix: Vec<Mix>,
    /// The offered load, 10 to 100: 100 is as much as the depth allows; less is so many percent of the
    /// commands per second that sessions without digests reached at 100 in the same round. The list must
    /// have 100.
    pub load: Vec<u32>,
    /// The rate of the link: `unshaped`, or bits per second such as `1G`.
    pub link: Vec<Link>,
    /// The seed of addresses, data and the order of the contestants.
    pub seed: u64,
}

impl DigestsPlan {
    /// Returns the plan of a full run, about fifteen minutes. Six rounds are the fewest that give the median
    /// a confidence interval of 95 %.
    ///
    /// It has half reads and half writes, as the published measurement: what a digest costs a read, it
    /// costs a write at the other end. Blocks of 512 bytes are left out: like those of 4 KiB, their cost is
    /// that of a command.
    pub fn full() -> Self {
        Self {
            rounds: 6,
            seconds: 0.8,
            warmup: 0.2,
            digests: Digests::ALL.to_vec(),
            mtu: vec![1500, 9000],
            depth: vec![1, 32],
            block: vec![4 << 10, 64 << 10, 1 << 20],
            mix: vec![Mix(50)],
            load: vec![LOAD_FULL, 60],
            link: vec![Link::Shaped(1_000_000_000), Link::Unshaped],
            seed: 1,
        }
    }

    /// Returns the plan of a quick run, about two minutes: fewer rounds of the most common frame size, and
    /// small and medium blocks.
    pub fn quick() -> Self {
        Self {
            rounds: 5,
            seconds: 0.4,
            warmup: 0.08,
            mtu: vec![1500],
            block: vec![4 << 10, 64 << 10],
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
        let plan = Self {
            rounds: file.rounds.unwrap_or(full.rounds),
            seconds: file.seconds.unwrap_or(full.seconds),
            warmup: file.warmup.unwrap_or(full.warmup),
            digests: list("digests", file.digests, full.digests, Digests::parse)?,
            mtu: list("mtu", file.mtu, full.mtu, |word| number(word, MTU_MIN, MTU_MAX))?,
            depth: list("depth", file.depth, full.depth, |word| number(word, 1, 1024))?,
            block: list("block", file.block, full.block, block)?,
            mix: list("mix", file.mix, full.mix, Mix::parse)?,
            load: list("load", file.load, full.load, |word| number(word, LOAD_MIN, LOAD_FULL))?,
            link: list("link", file.link, full.link, Link::parse)?,
            seed: file.seed.unwrap_or(full.seed),
        };
        plan.check()?;
        Ok(plan)
    }

    fn check(&self) -> Result<(), LabError> {
        check_rounds(self.rounds, self.seconds, self.warmup)?;
        if !self.load.contains(&LOAD_FULL) {
            return Err(LabError::Plan(format!(
                "load: {LOAD_FULL} must be in the list: lower loads are percentages of what is reached there"
            )));
        }
        check_measurements(self.measurements(), MEASUREMENTS_MAX)
    }

    /// Returns the loads below 100 %, in the order of the plan.
    pub(super) fn lower_loads(&self) -> impl Iterator<Item = u32> {
        self.load.iter().copied().filter(|load| *load < LOAD_FULL)
    }

    /// Returns the depth with which loads below 100 % are measured: the one that makes the fewest commands
    /// wait for others.
    pub(super) fn paced_depth(&self) -> u32 {
        self.depth.iter().copied().max().unwrap_or(1)
    }

    /// Returns the number of measurements.
    pub fn measurements(&self) -> u64 {
        let lists = [self.digests.len(), self.mtu.len(), self.depth.len() + self.lower_loads().count()];
        let more = [self.block.len(), self.mix.len(), self.link.len()];
        let product = lists.into_iter().chain(more).fold(1, usize::saturating_mul);
        u64::try_from(product).unwrap_or(u64::MAX).saturating_mul(u64::from(self.rounds))
    }

    /// Returns the plan as TOML, which [`Self::parse`] reads.
    pub fn to_toml(&self) -> String {
        let quoted = |words: Vec<String>| format!("[\"{}\"]", words.join("\", \""));
        let blocks = quoted(self.block.iter().map(|bytes| size_text(*bytes)).collect());
        // The path of a URL is no key of a plan.
        let links: Vec<String> =
            self.link.iter().filter(|link| **link != Link::AsItIs).map(Link::to_string).collect();
        let mut text = format!(
            "rounds = {}\nseconds = {:?}\nwarmup = {:?}\ndigests = {}\ndepth = {:?}\nblock = {blocks}\nmix = \
             {}\nload = {:?}\nseed = {}\n",
            self.rounds,
            self.seconds,
            self.warmup,
            quoted(self.digests.iter().map(|digests| digests.name().to_owned()).collect()),
            self.depth,
            quoted(self.mix.iter().map(|mix| mix.word()).collect()),
            self.load,
            self.seed
        );
        if !links.is_empty() {
            text += &format!("mtu = {:?}\nlink = {}\n", self.mtu, quoted(links));
        }
        text
    }
}

/// A plan as a file has it.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct PlanFile {
    rounds: Option<u32>,
    seconds: Option<f64>,
    warmup: Option<f64>,
    digests: Option<Vec<Word>>,
    mtu: Option<Vec<Word>>,
    depth: Option<Vec<Word>>,
    block: Option<Vec<Word>>,
    mix: Option<Vec<Word>>,
    load: Option<Vec<Word>>,
    link: Option<Vec<Word>>,
    seed: Option<u64>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_plan_survives_its_own_text() {
        for plan in [DigestsPlan::full(), DigestsPlan::quick()] {
            assert_eq!(DigestsPlan::parse(&plan.to_toml()).unwrap(), plan);
        }
        assert_eq!(DigestsPlan::parse("").unwrap(), DigestsPlan::full());
        let text =
            "rounds = 2\nmix = [\"write\", 70]\nblock = [512, \"1M\"]\nlink = [\"2500M\"]\nseconds = 2\n";
        let plan = DigestsPlan::parse(&format!("{text}load = [30, \"100\"]\n")).unwrap();
        assert_eq!(plan.load, [30, 100]);
        assert_eq!(plan.mix, [Mix(0), Mix(70)]);
        assert_eq!(plan.block, [512, 1 << 20]);
        assert_eq!(plan.link, [Link::Shaped(2_500_000_000)]);
        assert_eq!(DigestsPlan::parse(&plan.to_toml()).unwrap(), plan);
    }

    #[test]
    fn mistakes_are_refused_with_their_key() {
        for (text, wanted) in [
            ("round = 2", "unknown field `round`"),
            ("rounds = 0", "rounds: expected 1 to 1000"),
            ("rounds = \"many\"", "rounds"),
            ("seconds = 0.0", "seconds: expected 0.05 to 3600"),
            ("seconds = nan", "seconds"),
            ("warmup = -1", "warmup: expected 0 to 600"),
            ("digests = [\"crc\"]", "digests: \"crc\": expected none, header, data or both"),
            ("digests = []", "digests: the list is empty"),
            ("mtu = [100]", "mtu: \"100\": expected 576 to 65535"),
            ("depth = [0]", "depth: \"0\": expected 1 to 1024"),
            ("block = [\"4000\"]", "block: \"4000\": expected a multiple of 512"),
            ("block = [\"32M\"]", "block: \"32M\""),
            ("mix = [101]", "mix: \"101\""),
            ("mix = [\"reads\"]", "mix: \"reads\""),
            ("load = [100, 5]", "load: \"5\": expected 10 to 100"),
            ("load = [60]", "load: 100 must be in the list"),
            ("link = [\"as it is\"]", "link: \"as it is\""),
            ("link = [\"1000G\"]", "link: \"1000G\""),
            ("depth = [4, 4]", "depth: \"4\" is there twice"),
            ("depth = [1.5]", "depth"),
            ("rounds = 1000\nseconds = 1\nmix = [1,2,3,4,5,6]", "measurements altogether"),
        ] {
            let why = DigestsPlan::parse(text).unwrap_err().to_string();
            assert!(why.contains(wanted), "{text}: {why}");
        }
    }

    #[test]
    fn the_built_in_plans_take_the_time_that_they_promise() {
        let seconds = |plan: DigestsPlan| {
            f64::from(u32::try_from(plan.measurements()).unwrap()) * (plan.seconds + plan.warmup + 0.05)
        };
        assert_eq!(DigestsPlan::quick().measurements(), 5 * 4 * 2 * 2 * 3);
        assert!((90.0..130.0).contains(&seconds(DigestsPlan::quick())));
        assert!((780.0..960.0).contains(&seconds(DigestsPlan::full())));
    }
}
