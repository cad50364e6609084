//! The plan of the experiment: the workloads, and how long each measurement takes.

use serde::Deserialize;

use crate::experiment::LabError;
use crate::plan::{
    Digests, Mix, Word, block, check_measurements, check_rounds, number, read_keys, size_text,
};

/// The most measurements of one target.
const MEASUREMENTS_MAX: u64 = 10_000;

/// The most workloads of a plan.
const WORKLOADS_MAX: usize = 64;

/// The most counts of idle sessions, and the most sessions: each needs a port of one address.
const IDLE_COUNTS_MAX: usize = 8;
const IDLE_SESSIONS_MAX: u32 = 10_000;

/// What is measured, and how long each measurement takes.
///
/// A plan file is TOML and has the keys of this structure; a key that it leaves out has the value of
/// [`Self::full`].
#[derive(Clone, Debug, PartialEq)]
pub struct TargetsPlan {
    /// How often each workload is measured, 1 to 1000. One more round counts system calls and context
    /// switches.
    pub rounds: u32,
    /// The duration of a measurement in seconds, 0.05 to 3600.
    pub seconds: f64,
    /// The duration of the load before each measurement in seconds, 0 to 600.
    pub warmup: f64,
    /// Which cases of `targe conform target` run: patterns of their names, none for no case.
    pub conformance: Vec<String>,
    /// The numbers of idle sessions with which the memory of a target is measured, from the least to the
    /// most; none for no measurement.
    pub idle_sessions: Vec<u32>,
    /// The seed of addresses, data and the order of the contestants.
    pub seed: u64,
    /// The workloads.
    pub workload: Vec<Workload>,
}

/// What a client asks of a target.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Workload {
    /// Whether addresses are random; otherwise they are sequential.
    pub random: bool,
    /// Which commands: `read`, `write`, or the percentage of reads.
    pub mix: Mix,
    /// The bytes of a command: multiples of 512 up to 16M, such as `4K`.
    pub block: u32,
    /// The queue depth, 1 to 1024.
    pub depth: u32,
    /// The digests of the session.
    pub digests: Digests,
}

impl Workload {
    const fn new(random: bool, read_percent: u8, block: u32, depth: u32) -> Self {
        Self { random, mix: Mix(read_percent), block, depth, digests: Digests::None }
    }

    /// Returns the workload in reports: `4K random reads, depth 1, both digests`.
    pub fn name(&self) -> String {
        let digests = match self.digests {
            Digests::None => "",
            Digests::Header => ", header digest",
            Digests::Data => ", data digest",
            Digests::Both => ", both digests",
        };
        format!("{} {} {}, depth {}{digests}", size_text(self.block), self.access(), self.mix, self.depth)
    }

    /// Returns this workload without digests.
    pub const fn without_digests(&self) -> Self {
        Self { digests: Digests::None, ..*self }
    }

    const fn access(&self) -> &'static str {
        if self.random { "random" } else { "sequential" }
    }
}

impl TargetsPlan {
    /// Returns the plan of a full run, about fifteen minutes with four targets.
    pub fn full() -> Self {
        Self {
            rounds: 11,
            seconds: 2.0,
            warmup: 0.3,
            conformance: vec!["*".to_owned()],
            idle_sessions: Vec::new(),
            seed: 1,
            workload: vec![
                Workload::new(false, 100, 512, 32),
                Workload::new(false, 100, 1 << 20, 4),
                Workload::new(true, 100, 4 << 10, 1),
                Workload::new(true, 100, 4 << 10, 32),
                Workload::new(true, 0, 4 << 10, 1),
                Workload::new(true, 0, 4 << 10, 32),
            ],
        }
    }

    /// Returns the plan of a quick run, about 90 seconds with three targets: fewer and shorter rounds, and a
    /// few cases of the login.
    pub fn quick() -> Self {
        let cases = ["login-stage-*", "login-version", "login-range", "login-target"];
        Self {
            rounds: 3,
            seconds: 0.5,
            warmup: 0.1,
            conformance: cases.map(str::to_owned).to_vec(),
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
        let workload = match file.workload {
            None => full.workload,
            Some(list) => list.into_iter().map(WorkloadFile::check).collect::<Result<_, _>>()?,
        };
        let plan = Self {
            rounds: file.rounds.unwrap_or(full.rounds),
            seconds: file.seconds.unwrap_or(full.seconds),
            warmup: file.warmup.unwrap_or(full.warmup),
            conformance: file.conformance.unwrap_or(full.conformance),
            idle_sessions: file.idle_sessions.unwrap_or(full.idle_sessions),
            seed: file.seed.unwrap_or(full.seed),
            workload,
        };
        plan.check()?;
        Ok(plan)
    }

    fn check(&self) -> Result<(), LabError> {
        check_rounds(self.rounds, self.seconds, self.warmup)?;
        if self.workload.is_empty() || self.workload.len() > WORKLOADS_MAX {
            return Err(LabError::Plan(format!("workload: expected 1 to {WORKLOADS_MAX} of them")));
        }
        let twice = self
            .workload
            .iter()
            .enumerate()
            .find(|(at, workload)| self.workload.iter().take(*at).any(|other| other == *workload));
        if let Some((_, workload)) = twice {
            return Err(LabError::Plan(format!("workload: \"{}\" is there twice", workload.name())));
        }
        self.check_idle_sessions()?;
        check_measurements(self.measurements(), MEASUREMENTS_MAX)
    }

    fn check_idle_sessions(&self) -> Result<(), LabError> {
        let counts = &self.idle_sessions;
        let ascends = counts.iter().zip(counts.iter().skip(1)).all(|(one, next)| one < next);
        let fits = counts.iter().all(|count| (1..=IDLE_SESSIONS_MAX).contains(count));
        if ascends && fits && counts.len() <= IDLE_COUNTS_MAX {
            return Ok(());
        }
        Err(LabError::Plan(format!(
            "idle_sessions: expected at most {IDLE_COUNTS_MAX} numbers from 1 to {IDLE_SESSIONS_MAX}, each larger \
             than the one before it"
        )))
    }

    /// Returns the number of measurements of one target, the round that counts included.
    pub fn measurements(&self) -> u64 {
        let workloads = u64::try_from(self.workload.len()).unwrap_or(u64::MAX);
        workloads.saturating_mul(u64::from(self.rounds) + 1)
    }

    /// Returns the plan as TOML, which [`Self::parse`] reads.
    pub fn to_toml(&self) -> String {
        let patterns: Vec<String> = self.conformance.iter().map(|pattern| format!("{pattern:?}")).collect();
        let mut text = format!(
            "rounds = {}\nseconds = {:?}\nwarmup = {:?}\nconformance = [{}]\nidle_sessions = {:?}\nseed = {}\n",
            self.rounds,
            self.seconds,
            self.warmup,
            patterns.join(", "),
            self.idle_sessions,
            self.seed
        );
        for workload in &self.workload {
            text += &format!(
                "\n[[workload]]\naccess = \"{}\"\nmix = \"{}\"\nblock = \"{}\"\ndepth = {}\n\
                 digests = \"{}\"\n",
                workload.access(),
                workload.mix.word(),
                size_text(workload.block),
                workload.depth,
                workload.digests.name()
            );
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
    conformance: Option<Vec<String>>,
    idle_sessions: Option<Vec<u32>>,
    seed: Option<u64>,
    workload: Option<Vec<WorkloadFile>>,
}

/// A workload as a file has it.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct WorkloadFile {
    access: Access,
    mix: Word,
    block: Word,
    depth: Word,
    digests: Option<Digests>,
}

#[derive(Deserialize)]
#[serde(rename_all = "lowercase")]
enum Access {
    Sequential,
    Random,
}

impl WorkloadFile {
    fn check(self) -> Result<Workload, LabError> {
        let wrong = |key: &str, word: &Word, why: String| {
            LabError::Plan(format!("workload: {key}: \"{word}\": {why}"))
        };
        Ok(Workload {
            random: matches!(self.access, Access::Random),
            mix: Mix::parse(&self.mix.to_string()).map_err(|why| wrong("mix", &self.mix, why))?,
            block: block(&self.block.to_string()).map_err(|why| wrong("block", &self.block, why))?,
            depth: number(&self.depth.to_string(), 1, 1024)
                .map_err(|why| wrong("depth", &self.depth, why))?,
            digests: self.digests.unwrap_or(Digests::None),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_plan_survives_its_own_text() {
        for plan in [TargetsPlan::full(), TargetsPlan::quick()] {
            assert_eq!(TargetsPlan::parse(&plan.to_toml()).unwrap(), plan);
        }
        assert_eq!(TargetsPlan::parse("").unwrap(), TargetsPlan::full());
        let text = "conformance = []\n[[workload]]\naccess = \"random\"\nmix = 70\nblock = 512\ndepth = 8\n";
        let plan = TargetsPlan::parse(text).unwrap();
        assert_eq!(plan.workload, [Workload::new(true, 70, 512, 8)]);
        assert_eq!(plan.workload[0].name(), "512 random 70 % reads, depth 8");
        assert_eq!(TargetsPlan::parse(&plan.to_toml()).unwrap(), plan);
        let text = format!("idle_sessions = [1, 100]\n{}digests = \"both\"\n", &text[17..]);
        let plan = TargetsPlan::parse(&text).unwrap();
        assert_eq!(plan.idle_sessions, [1, 100]);
        assert_eq!(plan.workload[0].name(), "512 random 70 % reads, depth 8, both digests");
        assert_eq!(TargetsPlan::parse(&plan.to_toml()).unwrap(), plan);
    }

    /// `make bench` runs this plan, and SPECIFICATION.md names what it must show.
    #[test]
    fn the_plan_of_make_bench_has_every_workload_with_and_without_digests() {
        let plan = TargetsPlan::parse(include_str!("../../../../bench/speed.toml")).unwrap();
        let (both, none): (Vec<Workload>, Vec<Workload>) =
            plan.workload.iter().copied().partition(|workload| workload.digests == Digests::Both);
        assert!(none.iter().all(|workload| workload.digests == Digests::None));
        assert_eq!(both.iter().map(Workload::without_digests).collect::<Vec<_>>(), none);
        for (mix, block, depth) in [
            (100, 4 << 10, 1),
            (0, 4 << 10, 1),
            (100, 4 << 10, 32),
            (0, 4 << 10, 32),
            (100, 1 << 20, 8),
            (0, 1 << 20, 8),
        ] {
            let workload = Workload::new(block == 4 << 10, mix, block, depth);
            assert!(none.contains(&workload), "{}", workload.name());
        }
        assert_eq!(plan.idle_sessions, [1, 100, 2000]);
    }

    #[test]
    fn mistakes_are_refused_with_their_key() {
        let workload = |access: &str, mix: &str, block: &str, depth: &str| {
            format!("[[workload]]\naccess = {access}\nmix = {mix}\nblock = {block}\ndepth = {depth}\n")
        };
        let good = workload("\"random\"", "\"read\"", "\"4K\"", "1");
        for (text, wanted) in [
            ("round = 2".to_owned(), "unknown field `round`"),
            ("rounds = 0".to_owned(), "rounds: expected 1 to 1000"),
            ("seconds = 0.0".to_owned(), "seconds: expected 0.05 to 3600"),
            ("warmup = -1".to_owned(), "warmup: expected 0 to 600"),
            ("idle_sessions = [2, 1]".to_owned(), "idle_sessions: expected at most 8 numbers"),
            ("idle_sessions = [0]".to_owned(), "idle_sessions"),
            ("idle_sessions = [20000]".to_owned(), "idle_sessions"),
            (format!("{}digests = \"crc\"\n", workload("\"random\"", "\"read\"", "512", "1")), "digests"),
            ("workload = []".to_owned(), "workload: expected 1 to 64"),
            (workload("\"any\"", "\"read\"", "512", "1"), "access"),
            (workload("\"random\"", "\"reads\"", "512", "1"), "mix: \"reads\""),
            (workload("\"random\"", "\"read\"", "500", "1"), "block: \"500\""),
            (workload("\"random\"", "\"read\"", "512", "0"), "depth: \"0\""),
            (format!("{good}{good}"), "\"4K random reads, depth 1\" is there twice"),
        ] {
            let why = TargetsPlan::parse(&text).unwrap_err().to_string();
            assert!(why.contains(wanted), "{text}: {why}");
        }
        let workload = (1..=20).map(|depth| Workload::new(true, 100, 512, depth)).collect();
        let many = TargetsPlan { rounds: 1000, workload, ..TargetsPlan::full() };
        assert!(many.check().unwrap_err().to_string().contains("the most is"));
    }

    #[test]
    fn the_built_in_plans_take_the_time_that_they_promise() {
        let seconds = |plan: TargetsPlan, targets: f64| {
            let measurements = f64::from(u32::try_from(plan.measurements()).unwrap());
            measurements * targets * (plan.seconds + plan.warmup + 0.1)
        };
        // A login of istgt takes one second, and the conformance cases take the rest.
        assert!((40.0..80.0).contains(&(seconds(TargetsPlan::quick(), 3.0) + 24.0)));
        assert!((600.0..900.0).contains(&seconds(TargetsPlan::full(), 4.0)));
    }
}
